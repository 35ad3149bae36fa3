//! Weighted sums of rows in the plain layout, written once for all vector levels (see `plain.rs`).
//! A pass over `y` adds four rows in order, with the same bits as four passes of one row.

use half::f16;

use super::tile::six_bits;

/// An unpacked block of 256 values.
pub(super) struct BlockParts {
    pub codes: [u8; 256],
    /// Scale of each 16 values.
    pub scales: [f32; 16],
    /// Minimum that is subtracted from each 16 values; zero if the format has no minimums.
    pub mins: [f32; 16],
}

impl BlockParts {
    pub(super) const EMPTY: BlockParts =
        BlockParts { codes: [0; 256], scales: [0.0; 16], mins: [0.0; 16] };
}

fn read_f16(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Scales and minimums of Q4_K and Q5_K, whose groups have 32 values.
#[inline(always)]
fn six_bit_scales(block: &[u8], parts: &mut BlockParts) {
    let (d, min) = (read_f16(block, 0), read_f16(block, 2));
    let (scales, mins) = six_bits(&block[4..16]);
    for (i, (scale, m)) in scales.to_le_bytes().into_iter().zip(mins.to_le_bytes()).enumerate() {
        parts.scales[2 * i..2 * i + 2].fill(d * f32::from(scale));
        parts.mins[2 * i..2 * i + 2].fill(min * f32::from(m));
    }
}

// The functions below are always inlined, so each level compiles them for its own instructions.

#[inline(always)]
pub(super) fn unpack_q4_k(block: &[u8; 144], parts: &mut BlockParts) {
    six_bit_scales(block, parts);
    let (pairs, _) = block[16..].as_chunks::<32>();
    for (codes, pairs) in parts.codes.as_chunks_mut::<64>().0.iter_mut().zip(pairs) {
        for (j, pair) in pairs.iter().enumerate() {
            codes[j] = pair & 15;
            codes[32 + j] = pair >> 4;
        }
    }
}

#[inline(always)]
pub(super) fn unpack_q5_k(block: &[u8; 176], parts: &mut BlockParts) {
    six_bit_scales(block, parts);
    let mut high_bits = [0; 32];
    high_bits.copy_from_slice(&block[16..48]);
    let (pairs, _) = block[48..].as_chunks::<32>();
    for (codes, pairs) in parts.codes.as_chunks_mut::<64>().0.iter_mut().zip(pairs) {
        for (j, pair) in pairs.iter().enumerate() {
            codes[j] = pair & 15 | (high_bits[j] & 1) << 4;
            codes[32 + j] = pair >> 4 | (high_bits[j] & 2) << 3;
            high_bits[j] >>= 2;
        }
    }
}

#[inline(always)]
pub(super) fn unpack_q6_k(block: &[u8; 210], parts: &mut BlockParts) {
    let d = read_f16(block, 208);
    for (scale, &byte) in parts.scales.iter_mut().zip(&block[192..208]) {
        *scale = d * f32::from(byte as i8);
    }
    let (lows, _) = block[..128].as_chunks::<64>();
    let (uppers, _) = block[128..192].as_chunks::<32>();
    let halves = parts.codes.as_chunks_mut::<128>().0.iter_mut();
    for ((codes, low), upper) in halves.zip(lows).zip(uppers) {
        for j in 0..32 {
            let (first, second, upper) = (low[j], low[32 + j], upper[j]);
            codes[j] = (first & 15 | (upper & 3) << 4).wrapping_sub(32);
            codes[32 + j] = (second & 15 | (upper & 12) << 2).wrapping_sub(32);
            codes[64 + j] = (first >> 4 | upper & 48).wrapping_sub(32);
            codes[96 + j] = (second >> 4 | (upper & 192) >> 2).wrapping_sub(32);
        }
    }
}

/// Contents of the module `sum_rows` of a SIMD level with instructions `$features`.
macro_rules! sum_rows_kernels {
    ($features:literal) => {
        use super::super::sum_rows::{BlockParts, unpack_q4_k, unpack_q5_k, unpack_q6_k};
        use hal::format::{Format, UnpackedBlock};

        use super::super::rows::{Matrix, Row};
        use super::super::{SumRowsFn, scalar};
        use super::plain::{of_bf16, of_f16, of_f32};
        use super::vector::*;

        pub(super) fn sum_rows(format: Format) -> SumRowsFn {
            macro_rules! entry {
                ($add:path) => {{
                    #[target_feature(enable = $features)]
                    fn sum(matrix: Matrix<'_>, list: &[(u32, f32)], y: &mut [f32]) {
                        let bytes = |i: usize| {
                            let (id, _) = list[i.min(list.len() - 1)];
                            matrix.row(id as usize)
                        };
                        let row = |i: usize| Row::with_next(bytes(i), bytes(i + 4));
                        let (fours, rest) = list.as_chunks::<4>();
                        for (i, four) in fours.iter().enumerate() {
                            let rows = std::array::from_fn(|k| row(4 * i + k));
                            $add(four.map(|(_, h)| h), rows, y);
                        }
                        for (i, &(_, h)) in (4 * fours.len()..).zip(rest) {
                            $add([h], [row(i)], y);
                        }
                    }
                    // SAFETY: `Kernels::select` returns this level only if it was detected.
                    |matrix, list, y| unsafe { sum(matrix, list, y) }
                }};
            }
            match format {
                Format::F32 => entry!(of_f32::add_rows),
                Format::F16 => entry!(of_f16::add_rows),
                Format::BF16 => entry!(of_bf16::add_rows),
                Format::Q4_0 => entry!(q4_0),
                Format::Q4_1 => entry!(q4_1),
                Format::Q8_0 => entry!(q8_0),
                Format::Q4_K => entry!(q4_k),
                Format::Q5_K => entry!(q5_k),
                Format::Q6_K => entry!(q6_k),
                Format::Q5_0 => entry!(q5_0),
                Format::Q5_1 => entry!(q5_1),
                Format::Q2_K => entry!(q2_k),
                Format::Q3_K => entry!(q3_k),
                Format::IQ2_XXS => entry!(iq2_xxs),
                Format::IQ2_XS => entry!(iq2_xs),
                Format::IQ3_XXS => entry!(iq3_xxs),
                Format::IQ1_S => entry!(iq1_s),
                Format::IQ4_NL => entry!(iq4_nl),
                Format::IQ3_S => entry!(iq3_s),
                Format::IQ2_S => entry!(iq2_s),
                Format::IQ4_XS => entry!(iq4_xs),
                Format::IQ1_M => entry!(iq1_m),
                Format::MXFP4 => entry!(mxfp4),
                Format::Q1_0 => entry!(q1_0),
                Format::U32 => (scalar::TABLE.sum_rows)(Format::U32),
            }
        }

        /// Values per block of the formats with small blocks.
        const BLOCK: usize = 32;

        /// Defines a function that loads each block of `y` into registers and calls `$add(factor,
        /// block, sums)` for each row.
        macro_rules! small_blocks {
            ($name:ident, $size:literal, $add:expr) => {
                #[target_feature(enable = $features)]
                fn $name<const N: usize>(h: [f32; N], rows: [Row<'_>; N], y: &mut [f32]) {
                    for row in rows {
                        assert_eq!(
                            row.bytes.len() * BLOCK,
                            y.len() * $size,
                            "y and the row differ in length"
                        );
                    }
                    let h = h.map(|h| splat(h));
                    for (i, y) in y.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
                        let mut sums = [zero(); BLOCK / LANES];
                        for (r, sum) in sums.iter_mut().enumerate() {
                            *sum = load_ps(y, r * LANES);
                        }
                        for (h, row) in h.into_iter().zip(rows) {
                            if i % 4 == 0 {
                                row.prefetch_ahead::<{ 4 * $size }>(i * $size);
                            }
                            $add(h, &row.bytes.as_chunks::<$size>().0[i], &mut sums);
                        }
                        for (r, sum) in sums.into_iter().enumerate() {
                            store_ps(y, r * LANES, sum);
                        }
                    }
                }
            };
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn add_q4_0(h: V, block: &[u8; 18], sums: &mut [V; BLOCK / LANES]) {
            add_nibbles(mul(h, one_scale(block)), &block[2..], 8, sums);
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn add_q4_1(h: V, block: &[u8; 20], sums: &mut [V; BLOCK / LANES]) {
            // The minimum is added before h is applied: weights may be far smaller than minimums.
            let mut values = [one_scale(&block[2..]); BLOCK / LANES];
            add_nibbles(one_scale(block), &block[4..], 0, &mut values);
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum = fmadd(h, value, *sum);
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn add_q8_0(h: V, block: &[u8; 34], sums: &mut [V; BLOCK / LANES]) {
            let factor = mul(h, one_scale(block));
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = fmadd(factor, widen_i8(block, 2 + r * LANES), *sum);
            }
        }

        small_blocks!(q4_0, 18, add_q4_0);
        small_blocks!(q4_1, 20, add_q4_1);
        small_blocks!(q8_0, 34, add_q8_0);

        /// Like `small_blocks`, for a format with blocks of 256 values, which `$unpack` unpacks.
        macro_rules! large_blocks {
            ($name:ident, $size:literal, $unpack:ident) => {
                #[target_feature(enable = $features)]
                fn $name<const N: usize>(h: [f32; N], rows: [Row<'_>; N], y: &mut [f32]) {
                    for row in rows {
                        assert_eq!(
                            row.bytes.len() * 256,
                            y.len() * $size,
                            "y and the row differ in length"
                        );
                    }
                    let mut parts = [BlockParts::EMPTY; N];
                    for (i, y) in y.as_chunks_mut::<256>().0.iter_mut().enumerate() {
                        for (parts, row) in parts.iter_mut().zip(rows) {
                            row.prefetch_ahead::<$size>(i * $size);
                            $unpack(&row.bytes.as_chunks::<$size>().0[i], parts);
                        }
                        for at in (0..256).step_by(LANES) {
                            let mut sum = load_ps(y, at);
                            for (h, BlockParts { codes, scales, mins }) in h.into_iter().zip(&parts)
                            {
                                let (scale, min) = (splat(scales[at / 16]), splat(-mins[at / 16]));
                                let values = fmadd(scale, widen_i8(codes, at), min);
                                sum = fmadd(splat(h), values, sum);
                            }
                            store_ps(y, at, sum);
                        }
                    }
                }
            };
        }
        /// Adds multiples of rows of any format with blocks, which `unpack` unpacks. Each prefetch
        /// covers `FETCH` bytes, which are at least 128 values.
        #[inline]
        #[target_feature(enable = $features)]
        fn add_blocks<const FETCH: usize, const N: usize>(
            format: Format,
            h: [f32; N],
            rows: [Row<'_>; N],
            y: &mut [f32],
            unpack: impl Fn(&[u8], &mut UnpackedBlock),
        ) {
            let quants = format.quants().expect("the format has blocks");
            let (n_values, n_bytes) = (format.block_values(), format.block_bytes());
            for row in rows {
                assert_eq!(
                    row.bytes.len() * n_values,
                    y.len() * n_bytes,
                    "y and the row differ in length"
                );
            }
            let mut parts = [const { UnpackedBlock::ZERO }; N];
            for (i, y) in y.chunks_exact_mut(n_values).enumerate() {
                for (parts, row) in parts.iter_mut().zip(rows) {
                    if (i * n_bytes).is_multiple_of(FETCH) {
                        row.prefetch_ahead::<FETCH>(i * n_bytes);
                    }
                    unpack(&row.bytes[i * n_bytes..][..n_bytes], parts);
                }
                for at in (0..n_values).step_by(LANES) {
                    let (mut sum, group) = (load_ps(y, at), at / quants.group);
                    for (h, parts) in h.into_iter().zip(&parts) {
                        let codes = widen_i8(bytemuck::cast_slice(&parts.codes), at);
                        let (scale, min) = (splat(parts.scales[group]), splat(-parts.mins[group]));
                        sum = fmadd(splat(h), fmadd(scale, codes, min), sum);
                    }
                    store_ps(y, at, sum);
                }
            }
        }

        macro_rules! blocks {
            ($name:ident, $format:ident, $unpack:expr) => {
                #[target_feature(enable = $features)]
                fn $name<const N: usize>(h: [f32; N], rows: [Row<'_>; N], y: &mut [f32]) {
                    const FORMAT: Format = Format::$format;
                    const BLOCKS: usize = if FORMAT.block_values() == BLOCK { 4 } else { 1 };
                    const FETCH: usize = BLOCKS * FORMAT.block_bytes();
                    let unpack = |block: &[u8], parts: &mut UnpackedBlock| {
                        $unpack(FORMAT, block, parts);
                    };
                    add_blocks::<FETCH, N>(FORMAT, h, rows, y, unpack);
                }
            };
        }
        macro_rules! any_blocks {
            ($name:ident, $format:ident) => {
                blocks!($name, $format, |format: Format, block: &[u8], parts: &mut _| {
                    format.quants().expect("the format has blocks").unpack(block, parts);
                });
            };
        }
        macro_rules! grid_blocks {
            ($name:ident, $format:ident) => {
                blocks!($name, $format, |format, block, parts: &mut UnpackedBlock| {
                    let codes = bytemuck::cast_slice_mut(&mut parts.codes);
                    grid::unpack(format, block, 0, codes, &mut parts.scales);
                });
            };
        }
        any_blocks!(q5_0, Q5_0);
        any_blocks!(q5_1, Q5_1);
        any_blocks!(q2_k, Q2_K);
        any_blocks!(q3_k, Q3_K);
        grid_blocks!(iq2_xxs, IQ2_XXS);
        grid_blocks!(iq2_xs, IQ2_XS);
        grid_blocks!(iq3_xxs, IQ3_XXS);
        grid_blocks!(iq1_s, IQ1_S);
        any_blocks!(iq4_nl, IQ4_NL);
        grid_blocks!(iq3_s, IQ3_S);
        grid_blocks!(iq2_s, IQ2_S);
        any_blocks!(iq4_xs, IQ4_XS);
        grid_blocks!(iq1_m, IQ1_M);
        any_blocks!(mxfp4, MXFP4);
        any_blocks!(q1_0, Q1_0);
        large_blocks!(q4_k, 144, unpack_q4_k);
        large_blocks!(q5_k, 176, unpack_q5_k);
        large_blocks!(q6_k, 210, unpack_q6_k);
    };
}
pub(super) use sum_rows_kernels;
