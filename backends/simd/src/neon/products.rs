//! Integer products of codes with activations, with the instructions of each NEON level.
//!
//! The sums are exact, so all levels have the same results to the bit. `sdot` and `smmla` are
//! assembly, because their intrinsics are not stable in Rust (`stdarch_neon_dotprod`,
//! rust-lang/rust#117224, and `stdarch_neon_i8mm`, rust-lang/rust#117223).
//!
//! BF16 and F16 weights have no such instructions: `bfdot` and `bfmmla` round activations to BF16,
//! and `fmla` for F16 rounds sums to F16, but the products of these formats are those of F32 values.

use std::arch::aarch64::*;
use std::arch::asm;

/// How the dot-product kernels of a level multiply signed codes by activations.
///
/// The lanes of a result may hold any part of the products; only their sum is defined.
pub(super) trait CodeProducts {
    /// Sums of 16 products.
    fn of_16(codes: int8x16_t, q: int8x16_t) -> int32x4_t;

    /// Sums of 32 products. `WIDE` is set for codes of more than six bits.
    fn of_32<const WIDE: bool>(codes: [int8x16_t; 2], q: [int8x16_t; 2]) -> int32x4_t;

    /// Sums of 16 activations.
    fn sums_of_16(q: int8x16_t) -> int32x4_t;
}

/// Products of 16 bits, which every AArch64 processor has; pairs of them are added in 32 bits.
pub(super) struct WideningProducts;

/// `sdot` (the feature `dotprod`): a lane's sum of four products in one instruction.
pub(super) struct DotProducts;

impl WideningProducts {
    /// Sums of two products of codes with activations. A sum of two products of at most 128 * 127
    /// fits in 16 bits.
    #[inline]
    #[target_feature(enable = "neon")]
    fn pair_sums(codes: int8x16_t, q: int8x16_t) -> int16x8_t {
        vmlal_high_s8(vmull_s8(vget_low_s8(codes), vget_low_s8(q)), codes, q)
    }
}

impl CodeProducts for WideningProducts {
    #[inline(always)]
    fn of_16(codes: int8x16_t, q: int8x16_t) -> int32x4_t {
        // SAFETY: every level of this folder has NEON.
        unsafe { vpaddlq_s16(Self::pair_sums(codes, q)) }
    }

    #[inline(always)]
    fn of_32<const WIDE: bool>([low, high]: [int8x16_t; 2], q: [int8x16_t; 2]) -> int32x4_t {
        // SAFETY: every level of this folder has NEON.
        unsafe {
            let sums = Self::pair_sums(low, q[0]);
            if WIDE {
                vpadalq_s16(vpaddlq_s16(sums), Self::pair_sums(high, q[1]))
            } else {
                // The sum of four products of at most 64 * 127 also fits in 16 bits.
                let sums = vmlal_s8(sums, vget_low_s8(high), vget_low_s8(q[1]));
                vpaddlq_s16(vmlal_high_s8(sums, high, q[1]))
            }
        }
    }

    #[inline(always)]
    fn sums_of_16(q: int8x16_t) -> int32x4_t {
        // SAFETY: every level of this folder has NEON.
        unsafe { vpaddlq_s16(vpaddlq_s8(q)) }
    }
}

impl CodeProducts for DotProducts {
    #[inline(always)]
    fn of_16(codes: int8x16_t, q: int8x16_t) -> int32x4_t {
        // SAFETY: `Kernels::select` returns a level with these products only if `dotprod` was
        // detected.
        unsafe { sdot(vdupq_n_s32(0), codes, q) }
    }

    #[inline(always)]
    fn of_32<const WIDE: bool>(codes: [int8x16_t; 2], q: [int8x16_t; 2]) -> int32x4_t {
        // SAFETY: as above.
        unsafe { sdot(sdot(vdupq_n_s32(0), codes[0], q[0]), codes[1], q[1]) }
    }

    #[inline(always)]
    fn sums_of_16(q: int8x16_t) -> int32x4_t {
        // SAFETY: as above.
        unsafe { sdot(vdupq_n_s32(0), vdupq_n_s8(1), q) }
    }
}

/// Adds the products of four consecutive codes to each of the four sums.
///
/// # Safety
/// The processor must have the feature `dotprod`.
#[inline(always)]
pub(super) unsafe fn sdot(sums: int32x4_t, codes: int8x16_t, q: int8x16_t) -> int32x4_t {
    let out;
    // SAFETY: the instruction only reads and writes these registers, and the caller checked that it
    // exists. The directive, which holds for this assembly alone, lets functions without the feature
    // contain it.
    unsafe {
        asm!(
            ".arch_extension dotprod",
            "sdot {sums:v}.4s, {codes:v}.16b, {q:v}.16b",
            sums = inout(vreg) sums => out,
            codes = in(vreg) codes,
            q = in(vreg) q,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    out
}

/// [`sdot`] where all four sums take the same four activations, number `4 * LANE` and the following.
///
/// # Safety
/// The processor must have the feature `dotprod`.
#[inline(always)]
pub(super) unsafe fn sdot_lane<const LANE: usize>(
    sums: int32x4_t,
    codes: int8x16_t,
    q: int8x16_t,
) -> int32x4_t {
    let out;
    // SAFETY: as for `sdot`.
    unsafe {
        asm!(
            ".arch_extension dotprod",
            "sdot {sums:v}.4s, {codes:v}.16b, {q:v}.4b[{lane}]",
            lane = const LANE,
            sums = inout(vreg) sums => out,
            codes = in(vreg) codes,
            q = in(vreg) q,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    out
}

/// Adds the products of two tokens (8 codes each) with two rows (8 codes each) to four sums: the
/// first token with both rows, then the second token.
///
/// # Safety
/// The processor must have the feature `i8mm`.
#[inline(always)]
pub(super) unsafe fn smmla(sums: int32x4_t, q: int8x16_t, codes: int8x16_t) -> int32x4_t {
    let out;
    // SAFETY: as for `sdot`.
    unsafe {
        asm!(
            ".arch_extension i8mm",
            "smmla {sums:v}.4s, {q:v}.16b, {codes:v}.16b",
            sums = inout(vreg) sums => out,
            q = in(vreg) q,
            codes = in(vreg) codes,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    out
}
