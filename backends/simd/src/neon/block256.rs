//! Dot products of the formats with blocks of 256 values. A tile is two blocks.

use std::arch::aarch64::*;

use hal::format::IQ4_CODES;

use super::super::rows::Row;
use super::super::tile::{Q8Tile, Tokens, for_tiles, q3_scales, six_bits};
use super::products::CodeProducts;
use super::vector::{V, load_bytes, look_up, mul, nibbles, one_scale, store_ps, widen_i8};
use super::{Products, SubBlockProducts, totals};

/// The scales and the minimums of one Q4_K or Q5_K block, multiplied by `d` and `dmin`.
#[inline]
#[target_feature(enable = "neon")]
fn scales_and_mins(block: &[u8]) -> [V; 2] {
    let (scales, mins) = six_bits(&block[4..16]);
    // Six-bit values are the same signed and unsigned.
    let widen = |bytes: u64| widen_i8(&bytes.to_le_bytes(), 0);
    [mul(one_scale(block), widen(scales)), mul(one_scale(&block[2..]), widen(mins))]
}

/// Starts the products of a tile of two Q4_K or Q5_K blocks.
#[inline]
#[target_feature(enable = "neon")]
fn two_blocks<const N: usize>(first: &[u8], second: &[u8], x: &[Q8Tile<'_>; N]) -> Products<N> {
    let ([a, min_a], [b, min_b]) = (scales_and_mins(first), scales_and_mins(second));
    let mins = [min_a[0], min_a[1], min_b[0], min_b[1]];
    Products::new([a[0], a[1], b[0], b[1]], Some(mins), x)
}

/// The codes of four blocks of 32 values from 64 bytes. The low nibbles of 32 bytes form one block,
/// the high nibbles the next.
#[inline]
#[target_feature(enable = "neon")]
fn four_blocks(bytes: &[u8], at: usize) -> [[int8x16_t; 2]; 4] {
    let [a, b, c, d] = [0, 16, 32, 48].map(|part| nibbles(bytes, at + part));
    [[a[0], b[0]], [a[1], b[1]], [c[0], d[0]], [c[1], d[1]]]
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q4_k<P: CodeProducts, const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [vdupq_n_f32(0.0); N];
    for_tiles::<{ 2 * 144 }, N>(row, x, |tile, x| {
        let mut products = two_blocks(tile, &tile[144..], x);
        for i in 0..4 {
            let codes = four_blocks(tile, 144 * (i / 2) + 16 + 64 * (i % 2));
            products.add::<P, false, 0>(4 * i, codes, x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q5_k<P: CodeProducts, const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [vdupq_n_f32(0.0); N];
    for_tiles::<{ 2 * 176 }, N>(row, x, |tile, x| {
        let mut products = two_blocks(tile, &tile[176..], x);
        for i in 0..4 {
            let block = 176 * (i / 2);
            let high_bits = [16, 32].map(|at| load_bytes(tile, block + at));
            let mut codes = four_blocks(tile, block + 48 + 64 * (i % 2));
            for (g, codes) in codes.iter_mut().enumerate() {
                // Bit g of each byte is the high bit of a code of group g of the block. Negative
                // counts shift to the right.
                let shift = vdupq_n_s8(4 - (4 * (i % 2) + g) as i8);
                for (codes, high_bits) in codes.iter_mut().zip(high_bits) {
                    let high_bit = vandq_u8(vshlq_u8(high_bits, shift), vdupq_n_u8(16));
                    *codes = vorrq_s8(*codes, vreinterpretq_s8_u8(high_bit));
                }
            }
            products.add::<P, false, 0>(4 * i, codes, x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

/// 16 signed bytes times the f16 at the beginning of `d`.
#[inline]
#[target_feature(enable = "neon")]
fn sixteen_scales(bytes: &[u8], d: &[u8]) -> [f32; 16] {
    let mut scales = [0.0; 16];
    for at in [0, 8] {
        store_ps(&mut scales, at, mul(one_scale(d), widen_i8(bytes, at)));
    }
    scales
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q6_k<P: CodeProducts, const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [vdupq_n_f32(0.0); N];
    for_tiles::<{ 2 * 210 }, N>(row, x, |tile, x| {
        for (half, block) in tile.as_chunks::<210>().0.iter().enumerate() {
            let scales = sixteen_scales(&block[192..208], &block[208..]);
            let mut products = SubBlockProducts::new(half, &scales, x);
            for part in 0..2 {
                products.add::<P>(part, six_bit_codes(block, part), x);
            }
            products.add_to(&mut acc);
        }
    });
    totals(acc)
}

/// The bit pairs of 32 bytes.
#[inline]
#[target_feature(enable = "neon")]
fn bit_pairs(bytes: &[u8], at: usize) -> [int8x16_t; 8] {
    let mut out = [vdupq_n_s8(0); 8];
    for part in 0..2 {
        let mut pairs = load_bytes(bytes, at + 16 * part);
        for k in 0..4 {
            out[2 * k + part] = vreinterpretq_s8_u8(vandq_u8(pairs, vdupq_n_u8(3)));
            pairs = vshrq_n_u8::<2>(pairs);
        }
    }
    out
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q2_k<P: CodeProducts, const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [vdupq_n_f32(0.0); N];
    for_tiles::<{ 2 * 84 }, N>(row, x, |tile, x| {
        for (half, block) in tile.as_chunks::<84>().0.iter().enumerate() {
            // The low nibble of each byte is a scale, the high nibble a minimum.
            let [low, high] =
                [0, 4].map(|shift| std::array::from_fn::<u8, 16, _>(|i| block[i] >> shift & 15));
            let scales = sixteen_scales(&low, &block[80..]);
            let mins = sixteen_scales(&high, &block[82..]);
            let mut products = SubBlockProducts::new(half, &scales, x);
            for part in 0..2 {
                products.add::<P>(part, bit_pairs(block, 16 + 32 * part), x);
                products.subtract_mins::<P>(part, &mins, x);
            }
            products.add_to(&mut acc);
        }
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q3_k<P: CodeProducts, const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [vdupq_n_f32(0.0); N];
    for_tiles::<{ 2 * 110 }, N>(row, x, |tile, x| {
        for (half, block) in tile.as_chunks::<110>().0.iter().enumerate() {
            let scales = q3_scales(&block[96..108]);
            let scales = sixteen_scales(bytemuck::cast_slice(&scales), &block[108..]);
            let mut products = SubBlockProducts::new(half, &scales, x);
            for part in 0..2 {
                let mut codes = bit_pairs(block, 32 + 32 * part);
                for (i, codes) in codes.iter_mut().enumerate() {
                    // Bit g of each byte is the high bit of a code of the 32 values from 32 * g on.
                    let bit = vdupq_n_u8(1 << (4 * part + i / 2));
                    let set = vtstq_u8(load_bytes(block, 16 * (i % 2)), bit);
                    // Subtracts 4 where the high bit is not set.
                    let less = vbicq_u8(vdupq_n_u8(4), set);
                    *codes = vsubq_s8(*codes, vreinterpretq_s8_u8(less));
                }
                products.add::<P>(part, codes, x);
            }
            products.add_to(&mut acc);
        }
    });
    totals(acc)
}

/// The scales of one IQ4_XS block, multiplied by `d`.
#[inline]
#[target_feature(enable = "neon")]
fn iq4_scales(block: &[u8]) -> V {
    let low = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    let upper = u16::from_le_bytes([block[2], block[3]]);
    let scales: [i8; 8] = std::array::from_fn(|i| {
        ((low >> (4 * i) & 15) as i8 | ((upper >> (2 * i) & 3) as i8) << 4) - 32
    });
    mul(one_scale(block), widen_i8(bytemuck::cast_slice(&scales), 0))
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn iq4_xs<P: CodeProducts, const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [vdupq_n_f32(0.0); N];
    for_tiles::<{ 2 * 136 }, N>(row, x, |tile, x| {
        let ([a, b], [c, d]) = (iq4_scales(tile), iq4_scales(&tile[136..]));
        let mut products = Products::new([a, b, c, d], None, x);
        for first in (0..16).step_by(4) {
            let block = 136 * (first / 8) + 8 + 16 * (first % 8);
            let codes = std::array::from_fn(|i| look_up(&IQ4_CODES, tile, block + 16 * i));
            products.add::<P, true, 0>(first, codes, x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

/// The signed codes of one half of a Q6_K block, 16 per register.
#[inline]
#[target_feature(enable = "neon")]
fn six_bit_codes(block: &[u8], half: usize) -> [int8x16_t; 8] {
    let mut out = [vdupq_n_s8(0); 8];
    for part in 0..2 {
        let upper = load_bytes(block, 128 + 32 * half + 16 * part);
        let first = nibbles(block, 64 * half + 16 * part);
        let second = nibbles(block, 64 * half + 32 + 16 * part);
        let lows = [first[0], second[0], first[1], second[1]];
        // Moves pair k of each byte to bits 4 and 5.
        let uppers =
            [vshlq_n_u8::<4>(upper), vshlq_n_u8::<2>(upper), upper, vshrq_n_u8::<2>(upper)];
        for (k, (low, upper)) in lows.into_iter().zip(uppers).enumerate() {
            let upper = vreinterpretq_s8_u8(vandq_u8(upper, vdupq_n_u8(48)));
            out[2 * k + part] = vsubq_s8(vorrq_s8(low, upper), vdupq_n_s8(32));
        }
    }
    out
}
