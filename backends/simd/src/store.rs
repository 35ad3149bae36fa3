//! Stores new rows of the KV cache: quantises values to the cache format, with the same bits as
//! [`Format::quantize_cache`].

use hal::format::Format;

/// Quantises whole blocks of 32 values to Q8_0, in a form that the compiler vectorises.
#[inline(always)]
pub(super) fn q8_0_row(values: &[f32], row: &mut [u8]) {
    const INFINITY: u32 = f32::INFINITY.to_bits();
    let (blocks, _) = row.as_chunks_mut::<34>();
    for (values, block) in values.as_chunks::<32>().0.iter().zip(blocks) {
        let most = values.iter().map(|v| v.to_bits() & 0x7fff_ffff).fold(0, u32::max);
        let scale = f32::from_bits(most) / 127.0;
        if most >= INFINITY || !scale.is_normal() {
            Format::Q8_0.quantize(values, block);
            continue;
        }
        let inverse = 1.0 / scale;
        block[..2].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes());
        for (code, v) in block[2..].iter_mut().zip(values) {
            // Rounds to nearest, halves away from zero, in a form that the compiler vectorises.
            let v = v * inverse;
            let whole = v as i32;
            let rest = v - whole as f32;
            let up = i32::from(rest >= 0.5) - i32::from(rest <= -0.5);
            *code = (whole + up).clamp(-128, 127) as u8;
        }
    }
}

/// Rounds to the nearest BF16, ties to even, in a form that the compiler vectorises.
#[inline(always)]
pub(super) fn bf16_row(values: &[f32], row: &mut [u8]) {
    for (out, v) in row.as_chunks_mut::<2>().0.iter_mut().zip(values) {
        let bits = v.to_bits();
        let odd = bits >> 16 & 1;
        let rounded = bits.wrapping_add(0x7fff + odd) >> 16;
        let word = if v.is_nan() { bits >> 16 | 0x40 } else { rounded };
        *out = (word as u16).to_le_bytes();
    }
}

/// The functions of a SIMD level that store rows; part of the level's module `attention`.
macro_rules! store_kernels {
    ($(#[$level:meta])*) => {
        $(#[$level])*
        fn store_f16(values: &[f32], row: &mut [u8]) {
            assert_eq!(2 * values.len(), row.len());
            let (steps, rest) = values.as_chunks::<LANES>();
            let (outs, last) = row.as_chunks_mut::<{ 2 * LANES }>();
            for (values, out) in steps.iter().zip(outs) {
                out.copy_from_slice(bytemuck::cast_slice(&narrow_f16(load_ps(values, 0))));
            }
            let narrow = narrow_f16(load_ps(&pad_with_zeros::<_, LANES>(rest), 0));
            last.copy_from_slice(bytemuck::cast_slice(&narrow[..rest.len()]));
        }

        $(#[$level])*
        fn store_bf16(values: &[f32], row: &mut [u8]) {
            assert_eq!(2 * values.len(), row.len());
            bf16_row(values, row);
        }

        $(#[$level])*
        fn store_q8_0(values: &[f32], row: &mut [u8]) {
            assert_eq!(Format::Q8_0.row_bytes(values.len()), Some(row.len()));
            q8_0_row(values, row);
        }
    };
}
pub(super) use store_kernels;
