//! Dots of the formats with blocks of 32: Q4_0, Q4_1, Q8_0.
//!
//! The nibbles of four blocks fill a register, 16 bytes each; their low and high halves meet the halves of the
//! activations, so that a block's products end up in four lanes. About 62 vector instructions for the 288 bytes of
//! a tile.

use std::arch::x86_64::*;

use super::super::ActView;
use super::super::rows::Row;
use super::super::tile::for_tiles;
use super::vector::{load_bytes, load_half, load_quarter};
use super::{Products, scales_apart, totals};

/// The codes of four blocks of `STRIDE` bytes whose nibbles begin at `at`: the low nibbles, then the high ones.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn nibbles<const STRIDE: usize>(tile: &[u8], at: usize) -> [__m512i; 2] {
    // Three blocks lie within 64 bytes, and at even places.
    let pick: [u16; 32] = const {
        let mut pick = [0; 32];
        let mut i = 0;
        while i < 24 {
            pick[i] = (i / 8 * (STRIDE / 2) + i % 8) as u16;
            i += 1;
        }
        pick
    };
    let three =
        _mm512_permutexvar_epi16(load_bytes(bytemuck::bytes_of(&pick), 0), load_bytes(tile, at));
    let four = _mm512_inserti32x4::<3>(three, load_quarter(tile, at + 3 * STRIDE));
    let low = _mm512_set1_epi8(15);
    [_mm512_and_si512(four, low), _mm512_and_si512(_mm512_srli_epi16::<4>(four), low)]
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn q4_0<const N: usize>(row: Row<'_>, x: [ActView<'_>; N]) -> [f32; N] {
    let mut acc = [_mm512_setzero_ps(); N];
    for_tiles::<{ 16 * 18 }, N>(row, x, |tile, x| {
        let scales = scales_apart::<18>(tile);
        let mins = _mm512_mul_ps(scales, _mm512_set1_ps(8.0));
        let mut products = Products::with_mins(scales, mins, x);
        for i in 0..4 {
            products.add_halves(i, nibbles::<18>(tile, 72 * i + 2), x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn q4_1<const N: usize>(row: Row<'_>, x: [ActView<'_>; N]) -> [f32; N] {
    let mut acc = [_mm512_setzero_ps(); N];
    for_tiles::<{ 16 * 20 }, N>(row, x, |tile, x| {
        let scales = scales_apart::<20>(tile);
        let mins = _mm512_sub_ps(_mm512_setzero_ps(), scales_apart::<20>(&tile[2..]));
        let mut products = Products::with_mins(scales, mins, x);
        for i in 0..4 {
            products.add_halves(i, nibbles::<20>(tile, 80 * i + 4), x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn q8_0<const N: usize>(row: Row<'_>, x: [ActView<'_>; N]) -> [f32; N] {
    let mut acc = [_mm512_setzero_ps(); N];
    for_tiles::<{ 16 * 34 }, N>(row, x, |tile, x| {
        let scales = scales_apart::<34>(tile);
        let mut products = Products::new(scales, x);
        for i in 0..8 {
            let first = _mm512_castsi256_si512(load_half(tile, 68 * i + 2));
            let codes = _mm512_inserti64x4::<1>(first, load_half(tile, 68 * i + 36));
            products.add_signed(i, codes, x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}
