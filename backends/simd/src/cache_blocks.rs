//! Rows of the KV cache in formats that attention does not read as they are: converted to F32, with
//! the bits of [`hal::format::Format::dequantize`].

/// The codes of 16 bytes of nibbles, minus `offset`: first the low nibbles, then the high nibbles.
#[inline(always)]
pub(super) fn nibbles(pairs: &[u8], offset: u8, codes: &mut [u8; 32]) {
    let (low, high) = codes.split_at_mut(16);
    for ((low, high), &pair) in low.iter_mut().zip(high).zip(&pairs[..16]) {
        *low = (pair & 15).wrapping_sub(offset);
        *high = (pair >> 4).wrapping_sub(offset);
    }
}

/// The codes of 4 bytes of high bits and 16 bytes of nibbles, minus 16 if `centred`.
#[inline(always)]
pub(super) fn five_bits(bytes: &[u8], centred: bool, codes: &mut [u8; 32]) {
    super::panel_rows::five_bits(bytes, if centred { 112 } else { 128 }, codes);
    codes.iter_mut().for_each(|code| *code ^= 128);
}

/// The functions of a SIMD level that convert blocks of 32 values; part of the level's module
/// `attention`.
macro_rules! block_kernels {
    ($(#[$level:meta])*) => {
        /// Converts rows of blocks of `BYTES` bytes, which begin with a scale; with `MIN`, the value
        /// of code 0 follows. `unpack` gets the bytes after them, and gives the signed codes.
        #[inline]
        $(#[$level])*
        fn widen_blocks<const BYTES: usize, const MIN: bool>(
            rows: &HeadRows<'_>,
            out: &mut [f32],
            unpack: impl Fn(&[u8], &mut [u8; 32]),
        ) {
            let mut codes = [0; 32];
            for (i, out) in out.chunks_exact_mut(rows.width()).enumerate() {
                rows.prefetch(i, 0..rows.len);
                let blocks = rows.row(i).as_chunks::<BYTES>().0.iter();
                for (block, out) in blocks.zip(out.as_chunks_mut::<32>().0) {
                    unpack(&block[if MIN { 4 } else { 2 }..], &mut codes);
                    let scale = one_scale(block);
                    for e in 0..32 / LANES {
                        let scaled = mul(scale, widen_i8(&codes, e * LANES));
                        let value = if MIN { add(scaled, one_scale(&block[2..])) } else { scaled };
                        store_ps(out, e * LANES, value);
                    }
                }
            }
        }

        $(#[$level])*
        fn widen_q4_0(rows: &HeadRows<'_>, out: &mut [f32]) {
            widen_blocks::<18, false>(rows, out, |bytes, codes| nibbles(bytes, 8, codes));
        }

        $(#[$level])*
        fn widen_q4_1(rows: &HeadRows<'_>, out: &mut [f32]) {
            widen_blocks::<20, true>(rows, out, |bytes, codes| nibbles(bytes, 0, codes));
        }

        $(#[$level])*
        fn widen_q5_0(rows: &HeadRows<'_>, out: &mut [f32]) {
            widen_blocks::<22, false>(rows, out, |bytes, codes| five_bits(bytes, true, codes));
        }

        $(#[$level])*
        fn widen_q5_1(rows: &HeadRows<'_>, out: &mut [f32]) {
            widen_blocks::<24, true>(rows, out, |bytes, codes| five_bits(bytes, false, codes));
        }

        $(#[$level])*
        fn widen_iq4_nl(rows: &HeadRows<'_>, out: &mut [f32]) {
            let unpack = |pairs: &[u8], codes: &mut [u8; 32]| {
                look_up_pairs(&IQ4_CODES, pairs, codes);
            };
            widen_blocks::<18, false>(rows, out, unpack);
        }
    };
}
pub(super) use block_kernels;
