//! Dots of the formats with blocks of 32: Q4_0, Q4_1, Q8_0.

use std::arch::aarch64::*;

use super::super::ActView;
use super::super::rows::Row;
use super::super::tile::for_tiles;
use super::vector::{load_bytes, nibbles};
use super::{Products, scales_apart, totals};

/// What `codes` gives for the four blocks from `first` on.
#[inline(always)]
fn four<T>(first: usize, codes: impl Fn(usize) -> T) -> [T; 4] {
    std::array::from_fn(|i| codes(first + i))
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q4_0<const N: usize>(row: Row<'_>, x: [ActView<'_>; N]) -> [f32; N] {
    let mut acc = [vdupq_n_f32(0.0); N];
    for_tiles::<{ 16 * 18 }, N>(row, x, |tile, x| {
        let mut products = Products::new(scales_apart::<18>(tile), None, x);
        for first in (0..16).step_by(4) {
            let codes = four(first, |i| {
                nibbles(tile, 18 * i + 2).map(|codes| vsubq_s8(codes, vdupq_n_s8(8)))
            });
            products.add::<false>(first, codes, x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q4_1<const N: usize>(row: Row<'_>, x: [ActView<'_>; N]) -> [f32; N] {
    let mut acc = [vdupq_n_f32(0.0); N];
    for_tiles::<{ 16 * 20 }, N>(row, x, |tile, x| {
        let mins = scales_apart::<20>(&tile[2..]).map(|min| vnegq_f32(min));
        let mut products = Products::new(scales_apart::<20>(tile), Some(mins), x);
        for first in (0..16).step_by(4) {
            products.add::<false>(first, four(first, |i| nibbles(tile, 20 * i + 4)), x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q8_0<const N: usize>(row: Row<'_>, x: [ActView<'_>; N]) -> [f32; N] {
    let mut acc = [vdupq_n_f32(0.0); N];
    for_tiles::<{ 16 * 34 }, N>(row, x, |tile, x| {
        let mut products = Products::new(scales_apart::<34>(tile), None, x);
        for first in (0..16).step_by(4) {
            let codes = four(first, |i| {
                [2, 18].map(|at| vreinterpretq_s8_u8(load_bytes(tile, 34 * i + at)))
            });
            products.add::<true>(first, codes, x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}
