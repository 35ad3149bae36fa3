//! Products of panels with tokens: 32 rows fill two registers, and a dword of activations is
//! broadcast to all lanes.
//!
//! A token and a block of 32 values need 16 `vpdpbusd`, and 6 instructions for the scales (8 with
//! minimums). All of them run on the two ports that execute `vpdpbusd`, so at most 16 of 22
//! instructions are products: 73 % of the peak of 128 products per cycle and core (67 % with
//! minimums). Loads run on other ports.

use std::arch::x86_64::*;
use std::ops::Range;

use hal::format::Format;

use super::super::panel::{
    BIAS, Factors, FillFn, MINS, PANEL_ROWS, PanelFn, RowWords, SCALES, TokenRows, fill_panel,
    panel_kernels,
};
use super::super::tile::pad_with_zeros;
use super::grid;
use super::vector::*;

panel_kernels!("bmi2,avx512bw,avx512vl,avx512vnni");

/// Tokens per pass: their integer sums fill half of the registers.
const TOKENS: usize = 6;
/// Tokens per pass for formats without blocks.
const PLAIN_TOKENS: usize = 8;

/// The value added to a format's codes in a panel.
fn bias(_: Format) -> i32 {
    BIAS
}

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn quantised<const GROUP: usize, const MIN: bool>(
    format: Format,
    panel: &[f32],
    k: &Range<usize>,
    x: &TokenRows<'_>,
    sums: &mut [[f32; PANEL_ROWS]],
) {
    let n = sums.len();
    let q = x.acts.q8().q;
    let mut factors = [Factors::default(); TOKENS];
    for first in (0..n).step_by(TOKENS) {
        let tokens = x.tokens::<TOKENS>(first, n);
        for (factors, &t) in factors.iter_mut().zip(&tokens) {
            factors.set::<GROUP, MIN>(x, t, k, bias(format), |q, sums| sums_of_16(q, sums));
        }
        let q = tokens.map(|t| q[t * x.n_cols..][k.clone()].as_ptr().cast::<i32>());
        // SAFETY: each entry of `q` points to `k.len()` bytes, a whole number of blocks, as
        // `check_bounds` verified.
        let out = unsafe { dot_groups::<GROUP, MIN>(panel, &q, &factors, k.len() / GROUP) };
        for (sums, out) in sums[first..].iter_mut().zip(out) {
            for (half, out) in out.into_iter().enumerate() {
                let sum = add(load_ps(sums, LANES * half), out);
                store_ps(sums, LANES * half, sum);
            }
        }
    }
}

/// The products of the first `n_groups` groups of a panel with `TOKENS` tokens; `q` points to the
/// tokens' codes.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe fn dot_groups<const GROUP: usize, const MIN: bool>(
    panel: &[f32],
    q: &[*const i32; TOKENS],
    factors: &[Factors; TOKENS],
    n_groups: usize,
) -> [[V; 2]; TOKENS] {
    let mut out = [[zero(); 2]; TOKENS];
    for g in 0..n_groups {
        let mut dots = [[_mm512_setzero_si512(); 2]; TOKENS];
        for (dots, factors) in dots.iter_mut().zip(factors) {
            *dots = [_mm512_set1_epi32(factors.start[g]); 2];
        }
        let codes = &panel[g * GROUP / 4 * PANEL_ROWS..][..GROUP / 4 * PANEL_ROWS];
        for i in 0..GROUP / 4 {
            let codes = [load_ps(codes, PANEL_ROWS * i), load_ps(codes, PANEL_ROWS * i + LANES)];
            let codes = codes.map(|codes| _mm512_castps_si512(codes));
            for (dots, q) in dots.iter_mut().zip(q) {
                // SAFETY: the address is inside the token's codes, because the caller provides
                // `n_groups` groups.
                let q = _mm512_set1_epi32(unsafe { q.add(g * GROUP / 4 + i).read_unaligned() });
                for (dot, codes) in dots.iter_mut().zip(codes) {
                    *dot = _mm512_dpbusd_epi32(*dot, codes, q);
                }
            }
        }
        let table = |at: usize| {
            let at = (at + g) * PANEL_ROWS;
            [load_ps(panel, at), load_ps(panel, at + LANES)]
        };
        let scales = table(SCALES);
        let mins = if MIN { table(MINS) } else { scales };
        for ((out, dots), factors) in out.iter_mut().zip(dots).zip(factors) {
            let d = splat(factors.d[g * GROUP / 32]);
            let offset = splat(factors.offset[g]);
            for half in 0..2 {
                let dot = _mm512_cvtepi32_ps(dots[half]);
                out[half] = fmadd(dot, mul(scales[half], d), out[half]);
                if MIN {
                    out[half] = fmadd(mins[half], offset, out[half]);
                }
            }
        }
    }
    out
}

/// See [`super::super::panel::sums_of_16`].
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn sums_of_16(q: &[i8], sums: &mut [i32; 32]) {
    let q: &[u8] = bytemuck::cast_slice(q);
    for at in (0..q.len()).step_by(32) {
        let q = _mm512_castsi256_si512(load_half(q, at));
        let fours = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), q);
        let pairs = _mm512_add_epi32(fours, _mm512_shuffle_epi32::<0b1011_0001>(fours));
        let all = _mm512_add_epi32(pairs, _mm512_shuffle_epi32::<0b0100_1110>(pairs));
        let all = _mm512_castsi512_si256(all);
        sums[at / 16] = _mm256_extract_epi32::<0>(all);
        sums[at / 16 + 1] = _mm256_extract_epi32::<4>(all);
    }
}

/// Products for formats without blocks: one fused multiply-add per value, at most 32 per cycle.
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn plain(panel: &[f32], k: &Range<usize>, x: &TokenRows<'_>, sums: &mut [[f32; PANEL_ROWS]]) {
    let n = sums.len();
    let x_all = x.acts.f32();
    for first in (0..n).step_by(PLAIN_TOKENS) {
        let tokens = x.tokens::<PLAIN_TOKENS>(first, n);
        let x = tokens.map(|t| &x_all[t * x.n_cols..][k.clone()]);
        let mut out = [[zero(); 2]; PLAIN_TOKENS];
        for (i, weights) in panel.as_chunks::<PANEL_ROWS>().0[..k.len()].iter().enumerate() {
            let weights = [load_ps(weights, 0), load_ps(weights, LANES)];
            for (out, x) in out.iter_mut().zip(x) {
                // SAFETY: each slice of `x` has `k.len()` values.
                let x = splat(unsafe { *x.get_unchecked(i) });
                for (out, weights) in out.iter_mut().zip(weights) {
                    *out = fmadd(weights, x, *out);
                }
            }
        }
        for (sums, out) in sums[first..].iter_mut().zip(out) {
            for (half, out) in out.into_iter().enumerate() {
                let sum = add(load_ps(sums, LANES * half), out);
                store_ps(sums, LANES * half, sum);
            }
        }
    }
}

/// Transposes 16 words of 16 rows, from column `at` on, into the panel from row `first` on.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn transpose(words: &RowWords<LANES>, at: usize, panel: &mut [u32], first: usize) {
    let mut r = [_mm512_setzero_si512(); 16];
    for (r, words) in r.iter_mut().zip(&words.0) {
        *r = load_bytes(bytemuck::cast_slice(&words[at..at + 16]), 0);
    }
    let mut s = r;
    for i in 0..8 {
        s[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        s[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    // r[4i + c] has, in each 128-bit quarter, column c of this quarter for rows 4i..4i + 4.
    for i in 0..4 {
        let (a, b) = (4 * i, 4 * i + 2);
        r[a] = _mm512_unpacklo_epi64(s[a], s[b]);
        r[a + 1] = _mm512_unpackhi_epi64(s[a], s[b]);
        r[a + 2] = _mm512_unpacklo_epi64(s[a + 1], s[b + 1]);
        r[a + 3] = _mm512_unpackhi_epi64(s[a + 1], s[b + 1]);
    }
    for c in 0..4 {
        // Quarters 0 and 2 (even), and 1 and 3 (odd), of rows 0..8, then of rows 8..16.
        let even = _mm512_shuffle_i32x4::<0b1000_1000>(r[c], r[4 + c]);
        let odd = _mm512_shuffle_i32x4::<0b1101_1101>(r[c], r[4 + c]);
        let even_8 = _mm512_shuffle_i32x4::<0b1000_1000>(r[8 + c], r[12 + c]);
        let odd_8 = _mm512_shuffle_i32x4::<0b1101_1101>(r[8 + c], r[12 + c]);
        let columns = [
            (c, _mm512_shuffle_i32x4::<0b1000_1000>(even, even_8)),
            (4 + c, _mm512_shuffle_i32x4::<0b1000_1000>(odd, odd_8)),
            (8 + c, _mm512_shuffle_i32x4::<0b1101_1101>(even, even_8)),
            (12 + c, _mm512_shuffle_i32x4::<0b1101_1101>(odd, odd_8)),
        ];
        for (column, words) in columns {
            let to = &mut panel[(at + column) * PANEL_ROWS + first..][..LANES];
            store_ps(bytemuck::cast_slice_mut(to), 0, _mm512_castsi512_ps(words));
        }
    }
}
