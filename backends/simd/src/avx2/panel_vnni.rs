//! Products of panels with tokens on processors with AVX-VNNI: `vpdpbusd` multiplies 32 unsigned codes
//! and adds four products each to a sum of 32 bits.
//!
//! Desktop processors of Intel have it from Alder Lake on, without AVX-512. Codes have the bias of
//! [`super::panel`], and the sums start with its negated contribution. Integer sums are exact, so the
//! results have the bits of that module.

/// `multiplication` for a level with instructions `$features`, one of which is `$dot`.
macro_rules! products {
    ($features:literal, $dot:path) => {
        use std::arch::x86_64::*;
        use std::ops::Range;

        use hal::format::Format;

        use super::super::panel::{add_group, bias, two};
        use super::super::vector::*;
        use crate::panel::{Factors, PANEL_ROWS, PanelFn, TokenRows, panel_products, sums_of_16};
        use crate::panel_passes::panel_passes;

        panel_products!($features);
        panel_passes!($features);

        /// The products of the first `n_groups` groups of a panel with `TOKENS` tokens; `q` points to
        /// the tokens' codes.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn dot_groups<const GROUP: usize, const MIN: bool>(
            _: Format,
            panel: &[f32],
            q: &[*const i32; TOKENS],
            factors: &[Factors; TOKENS],
            n_groups: usize,
        ) -> [[V; ROW_VECTORS]; TOKENS] {
            let mut out = [[zero(); ROW_VECTORS]; TOKENS];
            for first in (0..ROW_VECTORS).step_by(2) {
                let panel = &panel[LANES * first..];
                // SAFETY: the caller provides `n_groups` groups.
                let sums = unsafe { two_vectors::<GROUP, MIN>(panel, q, factors, n_groups) };
                for (out, sums) in out.iter_mut().zip(&sums) {
                    out[first..first + 2].copy_from_slice(sums);
                }
            }
            out
        }

        /// [`dot_groups`] of 16 rows: their integer sums fill half of the registers.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn two_vectors<const GROUP: usize, const MIN: bool>(
            panel: &[f32],
            q: &[*const i32; TOKENS],
            factors: &[Factors; TOKENS],
            n_groups: usize,
        ) -> [[V; 2]; TOKENS] {
            let mut out = [[zero(); 2]; TOKENS];
            for g in 0..n_groups {
                let mut dots = [[_mm256_setzero_si256(); 2]; TOKENS];
                for (dots, factors) in dots.iter_mut().zip(factors) {
                    *dots = [_mm256_set1_epi32(factors.start[g]); 2];
                }
                for i in g * GROUP / 4..(g + 1) * GROUP / 4 {
                    let codes = two(panel, PANEL_ROWS * i).map(|codes| _mm256_castps_si256(codes));
                    for (dots, q) in dots.iter_mut().zip(q) {
                        // SAFETY: the address is inside the token's codes, because the caller
                        // provides `n_groups` groups.
                        let q = _mm256_set1_epi32(unsafe { q.add(i).read_unaligned() });
                        for half in 0..2 {
                            dots[half] = $dot(dots[half], codes[half], q);
                        }
                    }
                }
                let factors = factors.each_ref();
                add_group::<GROUP, MIN, TOKENS, 2>(panel, g, dots, factors, &mut out);
            }
            out
        }
    };
}

mod vex {
    products!("avx2,fma,f16c,avxvnni", _mm256_dpbusd_avx_epi32);
}

/// The same instruction in the encoding that processors with AVX-512 have.
#[cfg(test)]
mod evex {
    products!("avx2,fma,f16c,avx512vl,avx512vnni", _mm256_dpbusd_epi32);
}

pub(super) const MULTIPLY: crate::panel::PanelFn = vex::multiplication();

#[cfg(test)]
mod tests {
    use hal::format::{Format, Q8Row};

    use crate::panel::{PANEL_LEN, PANEL_ROWS, TokenRows, panel_columns};
    use crate::{ActView, RowIds};

    /// Where the test runs is known to have AVX-512; the encoding of a release is tested by
    /// `tests/simd` on processors that have it.
    #[test]
    fn products_have_the_bits_of_avx2() {
        if !crate::avx512::is_supported() {
            println!("skipped: this processor has no AVX-512 VNNI");
            return;
        }
        let with_blocks = Format::ALL.iter().filter(|format| format.quants().is_some());
        for (seed, &format) in with_blocks.enumerate() {
            let n_cols = panel_columns(format);
            let row = |r: u64| conformance::random_weights(format, n_cols, 97 * seed as u64 + r);
            let rows: Vec<Vec<u8>> = (0..PANEL_ROWS as u64).map(row).collect();
            let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
            let mut panel = vec![f32::NAN; PANEL_LEN];
            (super::super::panel::FILL)(format, &rows, &mut panel);
            let x: Vec<f32> =
                (0..7 * n_cols).map(|i| ((i * i + 7 * i) % 1013) as f32 - 506.0).collect();
            let mut q = Q8Row::default();
            q.quantize_into(&x);
            let x = TokenRows { acts: ActView::from(&q), n_cols, ids: RowIds::From(0) };
            let products = [super::super::panel::multiplication(), super::evex::multiplication()]
                .map(|multiply| {
                    let mut sums = [[0.5f32; PANEL_ROWS]; 7];
                    multiply(format, &panel, 0..n_cols, &x, &mut sums);
                    sums.as_flattened().iter().map(|sum| sum.to_bits()).collect::<Vec<u32>>()
                });
            assert!(products[0] == products[1], "{format}");
        }
    }
}
