//! Products of panels with tokens: 32 rows fill eight registers, of which a loop over quantised
//! rows uses two.

use std::arch::aarch64::*;
use std::ops::Range;

use hal::format::Format;

use super::super::grid;
use super::super::panel::{
    Factors, FillFn, MINS, PANEL_ROWS, PanelFn, RowWords, SCALES, TokenRows, fill_panel,
    panel_kernels, sums_of_16,
};
use super::super::panel_passes::panel_passes;
use super::super::tile::pad_with_zeros;
use super::panel_products::PanelProducts;
use super::vector::*;

panel_kernels!("neon", P: PanelProducts);
panel_passes!("neon", P: PanelProducts);

/// The value added to a format's codes in a panel: none, because all products are signed.
fn bias(_: Format) -> i32 {
    0
}

/// The products of the first `n_groups` groups of a panel with `TOKENS` tokens; `q` points to the
/// tokens' codes.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn dot_groups<P: PanelProducts, const GROUP: usize, const MIN: bool>(
    _: Format,
    panel: &[f32],
    q: &[*const i32; TOKENS],
    factors: &[Factors; TOKENS],
    n_groups: usize,
) -> [[V; ROW_VECTORS]; TOKENS] {
    let mut out = [[zero(); ROW_VECTORS]; TOKENS];
    // The integer sums of 8 rows fill half of the registers.
    for part in 0..ROW_VECTORS {
        let panel = &panel[LANES * part..];
        let mut sums = [zero(); TOKENS]; // in registers, unless the products need them all
        for g in 0..n_groups {
            let q = q.map(|q| q.cast::<i8>().wrapping_add(GROUP * g));
            // One check of the length for all loads.
            let words = &panel[PANEL_ROWS * (GROUP / 4 * g)..];
            let words = &words[..const { PANEL_ROWS * (GROUP / 4 - 1) + LANES }];
            // SAFETY: the caller provides `n_groups` groups of values.
            let dots = unsafe { P::of_group::<GROUP>(words, q) };
            let scales = load_ps(panel, (SCALES + g) * PANEL_ROWS);
            let mins = if MIN { load_ps(panel, (MINS + g) * PANEL_ROWS) } else { scales };
            for (t, (dots, factors)) in dots.into_iter().zip(factors).enumerate() {
                let sum = if P::LEAVES_REGISTERS { &mut sums[t] } else { &mut out[t][part] };
                let d = splat(factors.d[g * GROUP / 32]);
                *sum = fmadd(dots, mul(scales, d), *sum);
                if MIN {
                    *sum = fmadd(mins, splat(factors.offset[g]), *sum);
                }
            }
        }
        if P::LEAVES_REGISTERS {
            out.iter_mut().zip(sums).for_each(|(out, sum)| out[part] = sum);
        }
    }
    out
}

/// Transposes 8 words of 8 rows, from column `at` on, into the panel from row `first` on.
#[inline]
#[target_feature(enable = "neon")]
fn transpose(words: &RowWords<LANES>, at: usize, panel: &mut [u32], first: usize) {
    let load = |row: usize, column: usize| {
        vreinterpretq_u32_u8(load_bytes(bytemuck::cast_slice(&words.0[row]), 4 * column))
    };
    for column in [at, at + 4] {
        // Four columns of rows 0..4, then of rows 4..8.
        let [low, high] = [0, 4].map(|row| {
            let [a, b, c, d] = [row, row + 1, row + 2, row + 3].map(|row| load(row, column));
            let pairs = [vtrn1q_u32(a, b), vtrn2q_u32(a, b), vtrn1q_u32(c, d), vtrn2q_u32(c, d)];
            let [a, b, c, d] = pairs.map(|v| vreinterpretq_u64_u32(v));
            let columns = [vtrn1q_u64(a, c), vtrn1q_u64(b, d), vtrn2q_u64(a, c), vtrn2q_u64(b, d)];
            columns.map(|v| vreinterpretq_f32_u64(v))
        });
        for (i, (low, high)) in low.into_iter().zip(high).enumerate() {
            let to = &mut panel[(column + i) * PANEL_ROWS + first..][..LANES];
            store_ps(bytemuck::cast_slice_mut(to), 0, [low, high]);
        }
    }
}
