//! Dots of the formats with blocks of 32: Q4_0, Q4_1, Q8_0.

use std::arch::x86_64::*;

use super::super::ActView;
use super::super::rows::Row;
use super::super::tile::for_tiles;
use super::vector::{load_bytes, load_half};
use super::{Products, scales_apart, totals};

/// The codes of a block whose nibbles begin at `at`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn nibbles(tile: &[u8], at: usize) -> __m256i {
    let low = load_half(tile, at);
    let both = _mm256_set_m128i(_mm_srli_epi16::<4>(low), low);
    _mm256_and_si256(both, _mm256_set1_epi8(15))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q4_0<const N: usize>(row: Row<'_>, x: [ActView<'_>; N]) -> [f32; N] {
    let mut acc = [_mm256_setzero_ps(); N];
    for_tiles::<{ 16 * 18 }, N>(row, x, |tile, x| {
        let mut products = Products::new(scales_apart::<18>(tile), None, x);
        for i in 0..16 {
            let codes = _mm256_sub_epi8(nibbles(tile, 18 * i + 2), _mm256_set1_epi8(8));
            products.add_signed(i, codes, x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q4_1<const N: usize>(row: Row<'_>, x: [ActView<'_>; N]) -> [f32; N] {
    let mut acc = [_mm256_setzero_ps(); N];
    for_tiles::<{ 16 * 20 }, N>(row, x, |tile, x| {
        let mut mins = scales_apart::<20>(&tile[2..]);
        for min in &mut mins {
            *min = _mm256_sub_ps(_mm256_setzero_ps(), *min);
        }
        let mut products = Products::new(scales_apart::<20>(tile), Some(mins), x);
        for i in 0..16 {
            products.add(i, nibbles(tile, 20 * i + 4), x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q8_0<const N: usize>(row: Row<'_>, x: [ActView<'_>; N]) -> [f32; N] {
    let mut acc = [_mm256_setzero_ps(); N];
    for_tiles::<{ 16 * 34 }, N>(row, x, |tile, x| {
        let mut products = Products::new(scales_apart::<34>(tile), None, x);
        for i in 0..16 {
            products.add_signed(i, load_bytes(tile, 34 * i + 2), x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}
