//! Dot products of the formats with blocks of 32 values.

use std::arch::aarch64::*;

use hal::format::{E2M1_CODES, IQ4_CODES};

use super::super::rows::Row;
use super::super::tile::{Tokens, e8m0_normal, for_tiles};
use super::products::CodeProducts;
use super::vector::{load_bytes, load_ps, look_up, nibbles};
use super::{Products, strided_scales, totals};

/// Returns `codes` of the four blocks from `first` on.
#[inline(always)]
fn four_blocks<T>(first: usize, codes: impl Fn(usize) -> T) -> [T; 4] {
    std::array::from_fn(|i| codes(first + i))
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q4_0<P: CodeProducts, const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [vdupq_n_f32(0.0); N];
    for_tiles::<{ 16 * 18 }, N>(row, x, |tile, x| {
        let mut products = Products::new(strided_scales::<18>(tile), None, x);
        for first in (0..16).step_by(4) {
            let codes = four_blocks(first, |i| nibbles(tile, 18 * i + 2));
            products.add::<P, false, 8>(first, codes, x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q4_1<P: CodeProducts, const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [vdupq_n_f32(0.0); N];
    for_tiles::<{ 16 * 20 }, N>(row, x, |tile, x| {
        let mins = strided_scales::<20>(&tile[2..]).map(|min| vnegq_f32(min));
        let mut products = Products::new(strided_scales::<20>(tile), Some(mins), x);
        for first in (0..16).step_by(4) {
            products.add::<P, false, 0>(
                first,
                four_blocks(first, |i| nibbles(tile, 20 * i + 4)),
                x,
            );
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q8_0<P: CodeProducts, const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [vdupq_n_f32(0.0); N];
    for_tiles::<{ 16 * 34 }, N>(row, x, |tile, x| {
        let mut products = Products::new(strided_scales::<34>(tile), None, x);
        for first in (0..16).step_by(4) {
            let codes = four_blocks(first, |i| {
                [2, 18].map(|at| vreinterpretq_s8_u8(load_bytes(tile, 34 * i + at)))
            });
            products.add::<P, true, 0>(first, codes, x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

/// The 5-bit codes of a block: the high bits begin at `at`, and the nibbles follow them.
#[inline]
#[target_feature(enable = "neon")]
fn five_bits(tile: &[u8], at: usize) -> [int8x16_t; 2] {
    let bits = u32::from_le_bytes([tile[at], tile[at + 1], tile[at + 2], tile[at + 3]]);
    let bits = vreinterpretq_u8_u32(vdupq_n_u32(bits));
    // Moves bit i of a byte to bit 4 for code i of eight; negative counts shift to the right.
    let shift = vreinterpretq_s8_u64(vdupq_n_u64(0xFDFE_FF00_0102_0304));
    let mut codes = nibbles(tile, at + 4);
    for (i, codes) in codes.iter_mut().enumerate() {
        let byte = [2 * i as u8, 2 * i as u8 + 1].map(|byte| vdup_n_u8(byte));
        let bits = vqtbl1q_u8(bits, vcombine_u8(byte[0], byte[1]));
        let fifth = vandq_u8(vshlq_u8(bits, shift), vdupq_n_u8(16));
        *codes = vorrq_s8(*codes, vreinterpretq_s8_u8(fifth));
    }
    codes
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q5_0<P: CodeProducts, const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [vdupq_n_f32(0.0); N];
    for_tiles::<{ 16 * 22 }, N>(row, x, |tile, x| {
        let mut products = Products::new(strided_scales::<22>(tile), None, x);
        for first in (0..16).step_by(4) {
            let codes = four_blocks(first, |i| five_bits(tile, 22 * i + 2));
            products.add::<P, false, 16>(first, codes, x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q5_1<P: CodeProducts, const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [vdupq_n_f32(0.0); N];
    for_tiles::<{ 16 * 24 }, N>(row, x, |tile, x| {
        let mins = strided_scales::<24>(&tile[2..]).map(|min| vnegq_f32(min));
        let mut products = Products::new(strided_scales::<24>(tile), Some(mins), x);
        for first in (0..16).step_by(4) {
            products.add::<P, false, 0>(
                first,
                four_blocks(first, |i| five_bits(tile, 24 * i + 4)),
                x,
            );
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn iq4_nl<P: CodeProducts, const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [vdupq_n_f32(0.0); N];
    for_tiles::<{ 16 * 18 }, N>(row, x, |tile, x| {
        let mut products = Products::new(strided_scales::<18>(tile), None, x);
        for first in (0..16).step_by(4) {
            let codes = four_blocks(first, |i| look_up(&IQ4_CODES, tile, 18 * i + 2));
            products.add::<P, true, 0>(first, codes, x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn mxfp4<P: CodeProducts, const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [vdupq_n_f32(0.0); N];
    for_tiles::<{ 16 * 17 }, N>(row, x, |tile, x| {
        let scales: [f32; 16] = std::array::from_fn(|i| e8m0_normal(tile[17 * i]));
        let ([a, b], [c, d]) = (load_ps(&scales, 0), load_ps(&scales, 8));
        let mut products = Products::new([a, b, c, d], None, x);
        for first in (0..16).step_by(4) {
            let codes = four_blocks(first, |i| look_up(&E2M1_CODES, tile, 17 * i + 1));
            products.add::<P, false, 0>(first, codes, x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}
