//! Products of panels with tokens: 32 rows fill eight registers, of which a pass over quantised
//! rows uses two.

use std::arch::aarch64::*;
use std::ops::Range;

use hal::format::Format;

use super::super::grid;
use super::super::panel::{
    BIAS, Factors, FillFn, MINS, PANEL_ROWS, PanelFn, RowWords, SCALES, TokenRows, fill_panel,
    panel_kernels, sums_of_16,
};
use super::super::panel_passes::panel_passes;
use super::super::tile::pad_with_zeros;
use super::vector::*;

panel_kernels!("neon");
panel_passes!("neon");

/// The value added to a format's codes in a panel.
fn bias(_: Format) -> i32 {
    BIAS
}

/// The products of the first `n_groups` groups of 16 rows with `TOKENS` tokens; `q` points to the
/// tokens' codes.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn dot_groups<const GROUP: usize, const MIN: bool>(
    _: Format,
    panel: &[f32],
    q: &[*const i32; TOKENS],
    factors: &[Factors; TOKENS],
    n_groups: usize,
) -> [[V; 2]; TOKENS] {
    let mut out = [[zero(); 2]; TOKENS];
    // The integer sums of 8 rows fill half of the registers.
    for half in 0..2 {
        let panel = &panel[LANES * half..];
        for g in 0..n_groups {
            // SAFETY: the caller provides `n_groups` groups of values.
            let dots = unsafe { dots::<GROUP>(panel, q, g) };
            let scales = load_ps(panel, (SCALES + g) * PANEL_ROWS);
            let mins = if MIN { load_ps(panel, (MINS + g) * PANEL_ROWS) } else { scales };
            for ((out, dots), factors) in out.iter_mut().zip(dots).zip(factors) {
                let d = splat(factors.d[g * GROUP / 32]);
                out[half] = fmadd(dots, mul(scales, d), out[half]);
                if MIN {
                    out[half] = fmadd(mins, splat(factors.offset[g]), out[half]);
                }
            }
        }
    }
    out
}

/// The products of 8 rows with each token. Within a group they are exact integer sums.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn dots<const GROUP: usize>(
    panel: &[f32],
    q: &[*const i32; TOKENS],
    g: usize,
) -> [V; TOKENS] {
    // The sums have two lanes per row.
    let mut sums = [[vdupq_n_s32(0); 4]; TOKENS];
    for i in (g * GROUP / 4..(g + 1) * GROUP / 4).step_by(2) {
        let [first, second] = [i, i + 1].map(|i| {
            let codes = load_ps(panel, PANEL_ROWS * i);
            // The panel's codes have 128 added, which the XOR removes.
            codes.map(|v| veorq_s8(vreinterpretq_s8_f32(v), vdupq_n_s8(-128)))
        });
        for (sums, q) in sums.iter_mut().zip(q) {
            // SAFETY: the address is inside the group, whose values the caller provides.
            let [a, b] = [i, i + 1].map(|i| unsafe { q.add(i).read_unaligned() });
            let [a, b] = [a, b].map(|q| vreinterpretq_s8_s32(vdupq_n_s32(q)));
            for (half, (first, second)) in first.into_iter().zip(second).enumerate() {
                // The sum of two products of at most 128 * 127 fits in 16 bits.
                let low = vmull_s8(vget_low_s8(first), vget_low_s8(a));
                let low = vmlal_s8(low, vget_low_s8(second), vget_low_s8(b));
                let high = vmlal_high_s8(vmull_high_s8(first, a), second, b);
                sums[2 * half] = vpadalq_s16(sums[2 * half], low);
                sums[2 * half + 1] = vpadalq_s16(sums[2 * half + 1], high);
            }
        }
    }
    sums.map(|[a, b, c, d]| [vcvtq_f32_s32(vpaddq_s32(a, b)), vcvtq_f32_s32(vpaddq_s32(c, d))])
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
