//! Integer products of panels with tokens, with the instructions of each NEON level.

use std::arch::aarch64::*;

use super::super::panel::{FillFn, PANEL_ROWS, SCALES};
use super::panel::{FILL, TOKENS};
use super::products::{DotProducts, WideningProducts, sdot_lane, smmla};
use super::vector::*;

/// How a level multiplies panels of quantised rows.
pub(super) trait PanelProducts {
    /// Fills the panels that this level multiplies.
    const FILL: FillFn;
    /// Whether the products leave registers for the sums of all groups.
    const LEAVES_REGISTERS: bool;

    /// The products of one group of `GROUP` columns of 8 rows with each token: exact integer sums.
    /// `words` begins with the group's codes of these rows, `q` has the group's activations.
    ///
    /// # Safety
    /// Each entry of `q` must point to `GROUP` bytes.
    unsafe fn of_group<const GROUP: usize>(words: &[f32], q: [*const i8; TOKENS]) -> [V; TOKENS];
}

/// The first `N` words of 8 rows: four signed codes of each row.
#[inline(always)]
fn words_of_rows<const N: usize>(words: &[f32]) -> [[int8x16_t; 2]; N] {
    std::array::from_fn(|i| {
        // SAFETY: every level of this folder has NEON.
        load_ps(words, PANEL_ROWS * i).map(|v| unsafe { vreinterpretq_s8_f32(v) })
    })
}

impl PanelProducts for WideningProducts {
    const FILL: FillFn = FILL;
    const LEAVES_REGISTERS: bool = false;

    #[inline(always)]
    unsafe fn of_group<const GROUP: usize>(words: &[f32], q: [*const i8; TOKENS]) -> [V; TOKENS] {
        // SAFETY: every level of this folder has NEON, and the activations are inside the group.
        unsafe {
            // The sums have two lanes per row.
            let mut sums = [[vdupq_n_s32(0); 4]; TOKENS];
            for i in (0..GROUP / 4).step_by(2) {
                let [first, second] = words_of_rows::<2>(&words[PANEL_ROWS * i..]);
                for (sums, q) in sums.iter_mut().zip(q) {
                    let q = q.cast::<i32>();
                    let [a, b] = [i, i + 1].map(|i| vdupq_n_s32(q.add(i).read_unaligned()));
                    let [a, b] = [a, b].map(|q| vreinterpretq_s8_s32(q));
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
            sums.map(|[a, b, c, d]| {
                [vcvtq_f32_s32(vpaddq_s32(a, b)), vcvtq_f32_s32(vpaddq_s32(c, d))]
            })
        }
    }
}

impl PanelProducts for DotProducts {
    const FILL: FillFn = FILL;
    const LEAVES_REGISTERS: bool = true;

    #[inline(always)]
    unsafe fn of_group<const GROUP: usize>(words: &[f32], q: [*const i8; TOKENS]) -> [V; TOKENS] {
        // SAFETY: `Kernels::select` returns a level with these products only if `dotprod` was
        // detected, and the activations are inside the group.
        unsafe {
            let mut sums = [[vdupq_n_s32(0); 2]; TOKENS];
            for at in (0..GROUP).step_by(16) {
                let codes = words_of_rows::<4>(&words[PANEL_ROWS * (at / 4)..]);
                let q = q.map(|q| vld1q_s8(q.add(at)));
                add_word::<0>(&mut sums, codes[0], q);
                add_word::<1>(&mut sums, codes[1], q);
                add_word::<2>(&mut sums, codes[2], q);
                add_word::<3>(&mut sums, codes[3], q);
            }
            sums.map(|sums| sums.map(|sum| vcvtq_f32_s32(sum)))
        }
    }
}

/// Adds the products of word `LANE` of 8 rows with the activations of word `LANE` of each token.
///
/// # Safety
/// The processor must have the feature `dotprod`.
#[inline(always)]
unsafe fn add_word<const LANE: usize>(
    sums: &mut [[int32x4_t; 2]; TOKENS],
    codes: [int8x16_t; 2],
    q: [int8x16_t; TOKENS],
) {
    for (sums, q) in sums.iter_mut().zip(q) {
        for (sum, codes) in sums.iter_mut().zip(codes) {
            // SAFETY: the caller checked the feature.
            *sum = unsafe { sdot_lane::<LANE>(*sum, codes, q) };
        }
    }
}

/// `smmla` (the feature `i8mm`): 8 codes of two rows by 8 activations of two tokens in one
/// instruction. In its panels, a register has 8 codes of two rows instead of 4 codes of four rows.
pub(super) struct MatrixProducts;

impl PanelProducts for MatrixProducts {
    const FILL: FillFn = |format, rows, panel| {
        FILL(format, rows, panel);
        if format.quants().is_some() {
            // SAFETY: every level of this folder has NEON.
            unsafe { join_words(panel) }
        }
    };
    const LEAVES_REGISTERS: bool = true;

    #[inline(always)]
    unsafe fn of_group<const GROUP: usize>(words: &[f32], q: [*const i8; TOKENS]) -> [V; TOKENS] {
        // SAFETY: `Kernels::select` returns a level with these products only if `i8mm` was
        // detected, and the activations are inside the group.
        unsafe {
            // Of each two tokens, the sums of each two of the 8 rows.
            let mut sums = [[vdupq_n_s32(0); 4]; TOKENS / 2];
            for at in (0..GROUP).step_by(8) {
                let codes = words_of_rows::<2>(&words[PANEL_ROWS * (at / 4)..]);
                for (sums, q) in sums.iter_mut().zip(q.as_chunks::<2>().0) {
                    let [a, b] = q.map(|q| vld1_s8(q.add(at)));
                    let q = vcombine_s8(a, b);
                    for (sum, codes) in sums.iter_mut().zip(codes.as_flattened()) {
                        *sum = smmla(*sum, q, *codes);
                    }
                }
            }
            let mut out = [zero(); TOKENS];
            for (out, sums) in out.as_chunks_mut::<2>().0.iter_mut().zip(sums) {
                let [a, b, c, d] = sums.map(|sum| vreinterpretq_s64_s32(sum));
                let rows =
                    [[vzip1q_s64(a, b), vzip1q_s64(c, d)], [vzip2q_s64(a, b), vzip2q_s64(c, d)]];
                *out = rows.map(|v| v.map(|v| vcvtq_f32_s32(vreinterpretq_s32_s64(v))));
            }
            out
        }
    }
}

/// Joins each two words of a row in a panel: of each 8 rows, the first word's place takes both words
/// of rows 0 to 3, the second word's place those of rows 4 to 7.
#[target_feature(enable = "neon")]
fn join_words(panel: &mut [f32]) {
    for pair in panel[..SCALES * PANEL_ROWS].as_chunks_mut::<{ 2 * PANEL_ROWS }>().0 {
        for at in (0..PANEL_ROWS).step_by(LANES) {
            let (first, second) = (load_ps(pair, at), load_ps(pair, PANEL_ROWS + at));
            for (half, to) in [at, PANEL_ROWS + at].into_iter().enumerate() {
                let joined =
                    [vzip1q_f32(first[half], second[half]), vzip2q_f32(first[half], second[half])];
                store_ps(pair, to, joined);
            }
        }
    }
}
