//! Dots of the formats with blocks of 256: Q4_K, Q5_K, Q6_K. A tile is two blocks.

use std::arch::aarch64::*;

use super::super::ActView;
use super::super::rows::Row;
use super::super::tile::{Q8Tile, for_tiles, six_bits};
use super::vector::{V, load_bytes, load_ps, mul, nibbles, one_scale, widen_i8};
use super::{Products, block_sums, load_codes, pairs_of, totals};

/// The scales and the minimums of one Q4_K or Q5_K block, multiplied out.
#[inline]
#[target_feature(enable = "neon")]
fn scales_and_mins(block: &[u8]) -> [V; 2] {
    let (scales, mins) = six_bits(&block[4..16]);
    // Six bits are the same with and without a sign.
    let widen = |bytes: u64| widen_i8(&bytes.to_le_bytes(), 0);
    [mul(one_scale(block), widen(scales)), mul(one_scale(&block[2..]), widen(mins))]
}

/// Starts the products of a tile of two such blocks.
#[inline]
#[target_feature(enable = "neon")]
fn two_blocks<const N: usize>(first: &[u8], second: &[u8], x: &[Q8Tile<'_>; N]) -> Products<N> {
    let ([a, min_a], [b, min_b]) = (scales_and_mins(first), scales_and_mins(second));
    let mins = [min_a[0], min_a[1], min_b[0], min_b[1]];
    Products::new([a[0], a[1], b[0], b[1]], Some(mins), x)
}

/// The codes of four blocks of 32 from 64 bytes: the low and the high nibbles of 32 bytes make one each.
#[inline]
#[target_feature(enable = "neon")]
fn four_blocks(bytes: &[u8], at: usize) -> [[int8x16_t; 2]; 4] {
    let [a, b, c, d] = [0, 16, 32, 48].map(|part| nibbles(bytes, at + part));
    [[a[0], b[0]], [a[1], b[1]], [c[0], d[0]], [c[1], d[1]]]
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q4_k<const N: usize>(row: Row<'_>, x: [ActView<'_>; N]) -> [f32; N] {
    let mut acc = [vdupq_n_f32(0.0); N];
    for_tiles::<{ 2 * 144 }, N>(row, x, |tile, x| {
        let mut products = two_blocks(tile, &tile[144..], x);
        for i in 0..4 {
            let codes = four_blocks(tile, 144 * (i / 2) + 16 + 64 * (i % 2));
            products.add::<false>(4 * i, codes, x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q5_k<const N: usize>(row: Row<'_>, x: [ActView<'_>; N]) -> [f32; N] {
    let mut acc = [vdupq_n_f32(0.0); N];
    for_tiles::<{ 2 * 176 }, N>(row, x, |tile, x| {
        let mut products = two_blocks(tile, &tile[176..], x);
        for i in 0..4 {
            let block = 176 * (i / 2);
            let fifths = [16, 32].map(|at| load_bytes(tile, block + at));
            let mut codes = four_blocks(tile, block + 48 + 64 * (i % 2));
            for (g, codes) in codes.iter_mut().enumerate() {
                // Bit g of each byte belongs to group g of the block.
                let bit = vdupq_n_u8(1 << (4 * (i % 2) + g));
                for (codes, fifths) in codes.iter_mut().zip(fifths) {
                    let fifth = vandq_u8(vtstq_u8(fifths, bit), vdupq_n_u8(16));
                    *codes = vorrq_s8(*codes, vreinterpretq_s8_u8(fifth));
                }
            }
            products.add::<false>(4 * i, codes, x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

/// Sixteen values have a scale.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q6_k<const N: usize>(row: Row<'_>, x: [ActView<'_>; N]) -> [f32; N] {
    let mut acc = [vdupq_n_f32(0.0); N];
    for_tiles::<{ 2 * 210 }, N>(row, x, |tile, x| {
        for (b, block) in tile.as_chunks::<210>().0.iter().enumerate() {
            let d = one_scale(&block[208..]);
            let mut sums = [vdupq_n_f32(0.0); N];
            for half in 0..2 {
                let codes = six_bit_codes(block, half);
                let scales = mul(d, widen_i8(block, 192 + 8 * half));
                for (sum, x) in sums.iter_mut().zip(x) {
                    // Two groups in a row meet the same scale of the activations.
                    let d = load_ps(x.d, 8 * b)[half];
                    let weights = [vzip1q_f32(d, d), vzip2q_f32(d, d)];
                    for (i, weight) in weights.into_iter().enumerate() {
                        let dots = std::array::from_fn(|g| {
                            let (codes, at) = (codes[4 * i + g], 256 * b + 128 * half + 64 * i);
                            vpaddlq_s16(pairs_of(codes, load_codes(x, at + 16 * g)))
                        });
                        *sum = vfmaq_f32(*sum, block_sums(dots), vmulq_f32(scales[i], weight));
                    }
                }
            }
            for (acc, sum) in acc.iter_mut().zip(sums) {
                *acc = vaddq_f32(*acc, sum);
            }
        }
    });
    totals(acc)
}

/// The signed codes of one half of a Q6_K block, 16 in a register.
#[inline]
#[target_feature(enable = "neon")]
fn six_bit_codes(block: &[u8], half: usize) -> [int8x16_t; 8] {
    let mut out = [vdupq_n_s8(0); 8];
    for part in 0..2 {
        let upper = load_bytes(block, 128 + 32 * half + 16 * part);
        let first = nibbles(block, 64 * half + 16 * part);
        let second = nibbles(block, 64 * half + 32 + 16 * part);
        let lows = [first[0], second[0], first[1], second[1]];
        // Pair k of each byte comes to bits 4 and 5.
        let uppers =
            [vshlq_n_u8::<4>(upper), vshlq_n_u8::<2>(upper), upper, vshrq_n_u8::<2>(upper)];
        for (k, (low, upper)) in lows.into_iter().zip(uppers).enumerate() {
            let upper = vreinterpretq_s8_u8(vandq_u8(upper, vdupq_n_u8(48)));
            out[2 * k + part] = vsubq_s8(vorrq_s8(low, upper), vdupq_n_s8(32));
        }
    }
    out
}
