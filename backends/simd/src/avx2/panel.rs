//! Products of panels with tokens: 32 rows fill four registers, of which a pass uses two.
//!
//! `vpmaddubsw` multiplies unsigned codes and sums pairs of products in 16 bits. Small codes are made
//! unsigned, and sums of several pairs fit in 16 bits too, so a product takes little more than this
//! instruction and an addition. Of other codes it multiplies the magnitudes by activations that carry
//! the codes' signs, because only the sum of two products of at most 128 * 127 fits.

use std::arch::x86_64::*;
use std::ops::Range;

use hal::format::Format;

use super::super::panel::{
    BIAS, Factors, FillFn, MINS, PANEL_ROWS, PanelFn, RowWords, SCALES, TokenRows, fill_panel,
    panel_kernels, small_codes, sums_of_16,
};
use super::super::panel_passes::panel_passes;
use super::super::tile::pad_with_zeros;
use super::grid;
use super::vector::*;

panel_kernels!("avx2,fma,f16c");
panel_passes!("avx2,fma,f16c");

/// The value added to a format's codes in a panel. It makes small codes unsigned.
pub(super) fn bias(format: Format) -> i32 {
    small_codes(format).map_or(BIAS, |(bias, _)| bias)
}

/// The products of the first `n_groups` groups of 16 rows with `TOKENS` tokens; `q` points to the
/// tokens' codes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dot_groups<const GROUP: usize, const MIN: bool>(
    format: Format,
    panel: &[f32],
    q: &[*const i32; TOKENS],
    factors: &[Factors; TOKENS],
    n_groups: usize,
) -> [[V; 2]; TOKENS] {
    let Some((_, greatest)) = small_codes(format) else {
        // SAFETY: the caller provides `n_groups` groups.
        return unsafe { signed_groups::<GROUP, MIN>(panel, q, factors, n_groups) };
    };
    let mut out = [[zero(); 2]; TOKENS];
    for first in (0..TOKENS).step_by(2) {
        let (q, factors) = ([q[first], q[first + 1]], [&factors[first], &factors[first + 1]]);
        // How many pairs of products fit in 16 bits.
        let sums = match i32::from(i16::MAX) / (2 * 127 * greatest) {
            // SAFETY: the caller provides `n_groups` groups.
            8.. => unsafe { small_groups::<GROUP, MIN, 8>(panel, q, factors, n_groups) },
            // SAFETY: as above.
            4.. => unsafe { small_groups::<GROUP, MIN, 4>(panel, q, factors, n_groups) },
            // SAFETY: as above.
            _ => unsafe { small_groups::<GROUP, MIN, 2>(panel, q, factors, n_groups) },
        };
        out[first..first + 2].copy_from_slice(&sums);
    }
    out
}

/// The products of the first `n_groups` groups of 16 rows of small codes with two tokens: their sums
/// and one word of the rows fill the registers. The products of `AT_ONCE` words fit in 16 bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn small_groups<const GROUP: usize, const MIN: bool, const AT_ONCE: usize>(
    panel: &[f32],
    q: [*const i32; 2],
    factors: [&Factors; 2],
    n_groups: usize,
) -> [[V; 2]; 2] {
    let mut out = [[zero(); 2]; 2];
    let n_words = const { GROUP / 4 };
    for g in 0..n_groups {
        let mut dots = [[_mm256_setzero_si256(); 2]; 2];
        for (dots, factors) in dots.iter_mut().zip(factors) {
            *dots = [_mm256_set1_epi32(factors.start[g]); 2];
        }
        let words = &panel[PANEL_ROWS * n_words * g..][..PANEL_ROWS * (n_words - 1) + 2 * LANES];
        for first in (0..n_words).step_by(AT_ONCE) {
            let mut sums = [[_mm256_setzero_si256(); 2]; 2];
            for i in first..n_words.min(first + AT_ONCE) {
                let at = PANEL_ROWS * i;
                let codes = two(words, at).map(|codes| _mm256_castps_si256(codes));
                for (sums, q) in sums.iter_mut().zip(q) {
                    // SAFETY: the address is inside the token's codes, because the caller provides
                    // `n_groups` groups.
                    let q = unsafe { q.add(g * n_words + i).read_unaligned() };
                    let q = _mm256_set1_epi32(q);
                    for half in 0..2 {
                        let pairs = _mm256_maddubs_epi16(codes[half], q);
                        sums[half] = _mm256_add_epi16(sums[half], pairs);
                    }
                }
            }
            for (dots, sums) in dots.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
                *dots = _mm256_add_epi32(*dots, _mm256_madd_epi16(*sums, _mm256_set1_epi16(1)));
            }
        }
        add_group::<GROUP, MIN, 2>(panel, g, dots, factors, &mut out);
    }
    out
}

/// [`dot_groups`] for codes of any magnitude.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn signed_groups<const GROUP: usize, const MIN: bool>(
    panel: &[f32],
    q: &[*const i32; TOKENS],
    factors: &[Factors; TOKENS],
    n_groups: usize,
) -> [[V; 2]; TOKENS] {
    let mut out = [[zero(); 2]; TOKENS];
    for g in 0..n_groups {
        let mut dots = [[_mm256_setzero_si256(); 2]; TOKENS];
        for i in g * GROUP / 4..(g + 1) * GROUP / 4 {
            let codes = two(panel, PANEL_ROWS * i)
                .map(|codes| _mm256_xor_si256(_mm256_castps_si256(codes), _mm256_set1_epi8(-128)));
            let sizes = codes.map(|codes| _mm256_abs_epi8(codes));
            for (dots, q) in dots.iter_mut().zip(q) {
                // SAFETY: the address is inside the token's codes, because the caller provides
                // `n_groups` groups.
                let q = _mm256_set1_epi32(unsafe { q.add(i).read_unaligned() });
                for half in 0..2 {
                    let q = _mm256_sign_epi8(q, codes[half]);
                    let pairs = _mm256_maddubs_epi16(sizes[half], q);
                    let dot = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
                    dots[half] = _mm256_add_epi32(dots[half], dot);
                }
            }
        }
        add_group::<GROUP, MIN, TOKENS>(panel, g, dots, factors.each_ref(), &mut out);
    }
    out
}

/// Adds the integer products of group `g`, times their scales, and subtracts the minimums.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn add_group<const GROUP: usize, const MIN: bool, const N: usize>(
    panel: &[f32],
    g: usize,
    dots: [[__m256i; 2]; N],
    factors: [&Factors; N],
    out: &mut [[V; 2]; N],
) {
    let scales = two(panel, (SCALES + g) * PANEL_ROWS);
    let mins = if MIN { two(panel, (MINS + g) * PANEL_ROWS) } else { scales };
    for ((out, dots), factors) in out.iter_mut().zip(dots).zip(factors) {
        let d = splat(factors.d[g * GROUP / 32]);
        let offset = splat(factors.offset[g]);
        for half in 0..2 {
            let dot = _mm256_cvtepi32_ps(dots[half]);
            out[half] = fmadd(dot, mul(scales[half], d), out[half]);
            if MIN {
                out[half] = fmadd(mins[half], offset, out[half]);
            }
        }
    }
}

/// 16 values from `at` on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn two(from: &[f32], at: usize) -> [V; 2] {
    [load_ps(from, at), load_ps(from, at + LANES)]
}

/// Transposes 8 words of 8 rows, from column `at` on, into the panel from row `first` on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn transpose(words: &RowWords<LANES>, at: usize, panel: &mut [u32], first: usize) {
    let mut r = [_mm256_setzero_si256(); 8];
    for (r, words) in r.iter_mut().zip(&words.0) {
        *r = load_bytes(bytemuck::cast_slice(&words[at..at + 8]), 0);
    }
    let mut s = r;
    for i in 0..4 {
        s[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        s[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    // r[4i + c] has, in each 128-bit half, column c of this half for rows 4i..4i + 4.
    for i in 0..2 {
        let (a, b) = (4 * i, 4 * i + 2);
        r[a] = _mm256_unpacklo_epi64(s[a], s[b]);
        r[a + 1] = _mm256_unpackhi_epi64(s[a], s[b]);
        r[a + 2] = _mm256_unpacklo_epi64(s[a + 1], s[b + 1]);
        r[a + 3] = _mm256_unpackhi_epi64(s[a + 1], s[b + 1]);
    }
    for c in 0..4 {
        let columns = [
            (c, _mm256_permute2x128_si256::<0x20>(r[c], r[4 + c])),
            (4 + c, _mm256_permute2x128_si256::<0x31>(r[c], r[4 + c])),
        ];
        for (column, words) in columns {
            let to = &mut panel[(at + column) * PANEL_ROWS + first..][..LANES];
            store_ps(bytemuck::cast_slice_mut(to), 0, _mm256_castsi256_ps(words));
        }
    }
}
