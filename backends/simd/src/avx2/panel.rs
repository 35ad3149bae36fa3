//! Products of panels with tokens: 32 rows fill four registers.
//!
//! `vpmaddubsw` multiplies unsigned codes and sums pairs of products in 16 bits. Small codes are made
//! unsigned, and sums of several pairs fit in 16 bits too, so a product takes little more than this
//! instruction and an addition. Of other codes it multiplies the magnitudes by activations that carry
//! the codes' signs, because only the sum of two products of at most 128 * 127 fits.

use std::arch::{asm, x86_64::*};
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

/// The products of the first `n_groups` groups of a panel with `TOKENS` tokens; `q` points to the
/// tokens' codes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dot_groups<const GROUP: usize, const MIN: bool>(
    format: Format,
    panel: &[f32],
    q: &[*const i32; TOKENS],
    factors: &[Factors; TOKENS],
    n_groups: usize,
) -> [[V; ROW_VECTORS]; TOKENS] {
    let mut out = [[zero(); ROW_VECTORS]; TOKENS];
    let Some((_, greatest)) = small_codes(format) else {
        for first in (0..ROW_VECTORS).step_by(2) {
            let panel = &panel[LANES * first..];
            // SAFETY: the caller provides `n_groups` groups.
            let sums = unsafe { signed_groups::<GROUP, MIN>(panel, q, factors, n_groups) };
            for (out, sums) in out.iter_mut().zip(&sums) {
                out[first..first + 2].copy_from_slice(sums);
            }
        }
        return out;
    };
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

/// The products of the first `n_groups` groups of a panel of small codes with two tokens: their sums
/// fill half of the registers. The products of `AT_ONCE` words fit in 16 bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn small_groups<const GROUP: usize, const MIN: bool, const AT_ONCE: usize>(
    panel: &[f32],
    q: [*const i32; 2],
    factors: [&Factors; 2],
    n_groups: usize,
) -> [[V; ROW_VECTORS]; 2] {
    let mut out = [[zero(); ROW_VECTORS]; 2];
    let n_words = const { GROUP / 4 };
    for g in 0..n_groups {
        let mut dots = [[_mm256_setzero_si256(); ROW_VECTORS]; 2];
        // Small codes of formats with minimums have no bias.
        if !MIN {
            dots = factors.map(|factors| [_mm256_set1_epi32(factors.start[g]); ROW_VECTORS]);
        }
        let words = panel[PANEL_ROWS * n_words * g..].as_chunks::<PANEL_ROWS>().0;
        let words = &words[..n_words];
        for (chunk, words) in words.chunks(AT_ONCE).enumerate() {
            let [first, rest @ ..] = words else { continue };
            let at = g * n_words + chunk * AT_ONCE;
            // SAFETY: the word is inside the tokens' codes, because the caller provides
            // `n_groups` groups.
            let q_first = q.map(|q| _mm256_set1_epi32(unsafe { q.add(at).read_unaligned() }));
            let mut sums = q_first.map(|q| {
                std::array::from_fn(|i| {
                    let codes = _mm256_castps_si256(load_ps(first, LANES * i));
                    _mm256_maddubs_epi16(codes, q)
                })
            });
            for (i, codes) in rest.iter().enumerate() {
                // SAFETY: as above.
                unsafe { add_word(codes, q, at + 1 + i, &mut sums) };
            }
            for (dots, sums) in dots.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
                *dots = _mm256_add_epi32(*dots, _mm256_madd_epi16(*sums, _mm256_set1_epi16(1)));
            }
        }
        add_group::<GROUP, MIN, 2, ROW_VECTORS>(panel, g, dots, factors, &mut out);
    }
    out
}

/// Adds the products of a word of 32 rows with word `at` of two tokens in 16 bits.
///
/// In assembly, because the compiler moves the loads of many words together, and then more values
/// are live than there are registers: products took up to 1.5 times as long.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add_word(
    codes: &[f32; PANEL_ROWS],
    q: [*const i32; 2],
    at: usize,
    sums: &mut [[__m256i; ROW_VECTORS]; 2],
) {
    let [[a0, a1, a2, a3], [b0, b1, b2, b3]] = sums;
    // SAFETY: `codes` has four vectors, and the caller provides word `at` of each token.
    unsafe {
        asm!(
            "vpbroadcastd {a}, dword ptr [{qa} + 4*{at}]",
            "vpbroadcastd {b}, dword ptr [{qb} + 4*{at}]",
            "vmovdqu {codes}, [{from}]",
            "vpmaddubsw {pairs}, {codes}, {a}",
            "vpmaddubsw {codes}, {codes}, {b}",
            "vpaddw {a0}, {a0}, {pairs}",
            "vpaddw {b0}, {b0}, {codes}",
            "vmovdqu {codes}, [{from} + 32]",
            "vpmaddubsw {pairs}, {codes}, {a}",
            "vpmaddubsw {codes}, {codes}, {b}",
            "vpaddw {a1}, {a1}, {pairs}",
            "vpaddw {b1}, {b1}, {codes}",
            "vmovdqu {codes}, [{from} + 64]",
            "vpmaddubsw {pairs}, {codes}, {a}",
            "vpmaddubsw {codes}, {codes}, {b}",
            "vpaddw {a2}, {a2}, {pairs}",
            "vpaddw {b2}, {b2}, {codes}",
            "vmovdqu {codes}, [{from} + 96]",
            "vpmaddubsw {pairs}, {codes}, {a}",
            "vpmaddubsw {codes}, {codes}, {b}",
            "vpaddw {a3}, {a3}, {pairs}",
            "vpaddw {b3}, {b3}, {codes}",
            from = in(reg) codes.as_ptr(),
            at = in(reg) at,
            qa = in(reg) q[0],
            qb = in(reg) q[1],
            a0 = inout(ymm_reg) *a0,
            a1 = inout(ymm_reg) *a1,
            a2 = inout(ymm_reg) *a2,
            a3 = inout(ymm_reg) *a3,
            b0 = inout(ymm_reg) *b0,
            b1 = inout(ymm_reg) *b1,
            b2 = inout(ymm_reg) *b2,
            b3 = inout(ymm_reg) *b3,
            a = out(ymm_reg) _,
            b = out(ymm_reg) _,
            codes = out(ymm_reg) _,
            pairs = out(ymm_reg) _,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
}

/// [`dot_groups`] of 16 rows with codes of any magnitude.
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
        add_group::<GROUP, MIN, TOKENS, 2>(panel, g, dots, factors.each_ref(), &mut out);
    }
    out
}

/// Adds the integer products of group `g` of `N` tokens and `R` vectors of rows, times their scales,
/// and subtracts the minimums.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn add_group<const GROUP: usize, const MIN: bool, const N: usize, const R: usize>(
    panel: &[f32],
    g: usize,
    dots: [[__m256i; R]; N],
    factors: [&Factors; N],
    out: &mut [[V; R]; N],
) {
    let table = |at: usize| &panel[(at + g) * PANEL_ROWS..][..R * LANES];
    let scales = table(SCALES);
    let mins = if MIN { table(MINS) } else { scales };
    for ((out, dots), factors) in out.iter_mut().zip(dots).zip(factors) {
        let d = splat(factors.d[g * GROUP / 32]);
        let offset = splat(factors.offset[g]);
        for (i, (out, dots)) in out.iter_mut().zip(dots).enumerate() {
            let scale = mul(load_ps(scales, LANES * i), d);
            *out = fmadd(_mm256_cvtepi32_ps(dots), scale, *out);
            if MIN {
                *out = fmadd(load_ps(mins, LANES * i), offset, *out);
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
