//! Vector operations for the kernels that are written once for all SIMD levels; a vector is two
//! registers of 4 floats.
//!
//! NEON has twice as many registers as AVX2, of half the size. Pairs of registers therefore fit the
//! same tiles as AVX2 registers.

use std::arch::aarch64::*;
use std::arch::asm;

use half::f16;

pub(super) type V = [float32x4_t; 2];
pub(super) const LANES: usize = 8;

macro_rules! vector_ops {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty $body:block)+) => {
        $(
            $(#[$doc])*
            // Always inlined, because a call would pass a pair of registers through memory.
            #[inline(always)]
            #[allow(unused_unsafe, reason = "some bodies are safe or have their own unsafe blocks")]
            pub(super) fn $name($($arg: $type),*) -> $result {
                // SAFETY: only kernels of this level call these functions, and `Kernels::select`
                // returns this level only if NEON was detected.
                unsafe { $body }
            }
        )+
    };
}

vector_ops! {
    fn zero() -> V { splat(0.0) }
    fn splat(v: f32) -> V { [vdupq_n_f32(v); 2] }
    fn add(a: V, b: V) -> V { [vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1])] }
    fn mul(a: V, b: V) -> V { [vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])] }
    /// `a * b + c`
    fn fmadd(a: V, b: V, c: V) -> V { [vfmaq_f32(c[0], a[0], b[0]), vfmaq_f32(c[1], a[1], b[1])] }
    /// `c - a * b`
    fn fnmadd(a: V, b: V, c: V) -> V { [vfmsq_f32(c[0], a[0], b[0]), vfmsq_f32(c[1], a[1], b[1])] }
    /// The larger of a and b; b if either is NaN.
    fn max(a: V, b: V) -> V {
        // `vmaxq_f32` would return NaN if either is NaN.
        let larger = |i: usize| vbslq_f32(vcgtq_f32(a[i], b[i]), a[i], b[i]);
        [larger(0), larger(1)]
    }
    fn div(a: V, b: V) -> V { [vdivq_f32(a[0], b[0]), vdivq_f32(a[1], b[1])] }
    /// The smaller of a and b; b if either is NaN.
    fn min(a: V, b: V) -> V {
        let smaller = |i: usize| vbslq_f32(vcltq_f32(a[i], b[i]), a[i], b[i]);
        [smaller(0), smaller(1)]
    }
    /// In each lane: a if x is below 0, else b.
    fn where_negative(x: V, a: V, b: V) -> V {
        [vbslq_f32(vcltzq_f32(x[0]), a[0], b[0]), vbslq_f32(vcltzq_f32(x[1]), a[1], b[1])]
    }
    /// `2^n` for the integer n in the low bits of each lane, from -127 (which gives zero) to 127.
    fn power_of_two(n: V) -> V {
        n.map(|n| {
            let exponent = vaddq_s32(vreinterpretq_s32_f32(n), vdupq_n_s32(127));
            vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent))
        })
    }
    fn lane_sums(v: [V; LANES]) -> V {
        let [a, b, c, d, e, f, g, h] = v.map(|v| vaddq_f32(v[0], v[1]));
        [
            vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)),
            vpaddq_f32(vpaddq_f32(e, f), vpaddq_f32(g, h)),
        ]
    }
    /// The sum of the lanes, in a fixed order: the two registers, then neighbours, then pairs.
    fn total(v: V) -> f32 { vaddvq_f32(vaddq_f32(v[0], v[1])) }

    /// 16 bytes at `at`.
    fn load_bytes(from: &[u8], at: usize) -> uint8x16_t {
        let part = &from[at..][..16];
        // SAFETY: `part` has 16 bytes.
        unsafe { vld1q_u8(part.as_ptr()) }
    }
    fn load_ps(from: &[f32], at: usize) -> V {
        let part = &from[at..][..LANES];
        // SAFETY: `part` has 8 floats.
        unsafe { [vld1q_f32(part.as_ptr()), vld1q_f32(part.as_ptr().add(4))] }
    }
    fn store_ps(to: &mut [f32], at: usize, v: V) -> () {
        let part = &mut to[at..][..LANES];
        // SAFETY: `part` has 8 floats.
        unsafe {
            vst1q_f32(part.as_mut_ptr(), v[0]);
            vst1q_f32(part.as_mut_ptr().add(4), v[1]);
        }
    }

    /// Converts four f16 values to floats. This is `vcvt_f32_f16`, which needs Rust 1.94: newer than
    /// this workspace requires.
    fn widen_four(halves: uint16x4_t) -> float32x4_t {
        let values: float32x4_t;
        asm!(
            "fcvtl {values:v}.4s, {halves:v}.4h",
            values = lateout(vreg) values,
            halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags),
        );
        values
    }
    /// Converts eight f16 values to floats.
    fn widen_eight(halves: uint16x8_t) -> V {
        [widen_four(vget_low_u16(halves)), widen_four(vget_high_u16(halves))]
    }
    /// Converts eight signed bytes to floats.
    fn widen_bytes(bytes: int8x8_t) -> V {
        let wide = vmovl_s8(bytes);
        [
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))),
            vcvtq_f32_s32(vmovl_high_s16(wide)),
        ]
    }

    /// The 8 values at byte `at`, as floats.
    fn widen_f32(from: &[u8], at: usize) -> V {
        let part = &from[at..][..32];
        [vreinterpretq_f32_u8(load_bytes(part, 0)), vreinterpretq_f32_u8(load_bytes(part, 16))]
    }
    fn widen_f16(from: &[u8], at: usize) -> V {
        widen_eight(vreinterpretq_u16_u8(load_bytes(from, at)))
    }
    fn widen_bf16(from: &[u8], at: usize) -> V {
        let words = vreinterpretq_u16_u8(load_bytes(from, at));
        [
            vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(words))),
            vreinterpretq_f32_u32(vshll_high_n_u16::<16>(words)),
        ]
    }
    fn widen_i8(from: &[u8], at: usize) -> V {
        let part = &from[at..][..LANES];
        // SAFETY: `part` has 8 bytes.
        widen_bytes(unsafe { vld1_s8(part.as_ptr().cast()) })
    }
    /// The f16 at the beginning of `bytes`, in every lane.
    fn one_scale(bytes: &[u8]) -> V {
        [widen_four(vdup_n_u16(u16::from_le_bytes([bytes[0], bytes[1]]))); 2]
    }
    /// Rounds to the nearest f16, ties to even.
    fn narrow_f16(v: V) -> [f16; LANES] {
        let mut values = [0.0; LANES];
        store_ps(&mut values, 0, v);
        values.map(f16::from_f32)
    }
}

/// The low and the high nibbles of 16 bytes.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn nibbles(bytes: &[u8], at: usize) -> [int8x16_t; 2] {
    let pairs = load_bytes(bytes, at);
    let low = vandq_u8(pairs, vdupq_n_u8(15));
    [vreinterpretq_s8_u8(low), vreinterpretq_s8_u8(vshrq_n_u8::<4>(pairs))]
}

/// The entries of `table` for the low and for the high nibbles of 16 bytes.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn look_up(table: &[i8; 16], pairs: &[u8], at: usize) -> [int8x16_t; 2] {
    let table = vreinterpretq_s8_u8(load_bytes(bytemuck::cast_slice(table), 0));
    nibbles(pairs, at).map(|nibbles| vqtbl1q_s8(table, vreinterpretq_u8_s8(nibbles)))
}

/// [`look_up`] with the result in 32 bytes of `codes`.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn look_up_pairs(table: &[i8; 16], pairs: &[u8], codes: &mut [u8]) {
    for (found, codes) in look_up(table, pairs, 0).into_iter().zip(codes.as_chunks_mut::<16>().0) {
        // SAFETY: `codes` has 16 bytes.
        unsafe { vst1q_u8(codes.as_mut_ptr(), vreinterpretq_u8_s8(found)) }
    }
}

/// Adds `h * (nibble - offset)` to the sums. Each 16 bytes of the row have the low nibbles for two
/// sums and the high nibbles for the next two sums.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn add_nibbles<const R: usize>(h: V, row: &[u8], offset: i8, sums: &mut [V; R]) {
    for u in 0..R / 4 {
        for (i, codes) in nibbles(row, 16 * u).into_iter().enumerate() {
            let codes = vsubq_s8(codes, vdupq_n_s8(offset));
            for (k, codes) in [vget_low_s8(codes), vget_high_s8(codes)].into_iter().enumerate() {
                let sum = &mut sums[4 * u + 2 * i + k];
                *sum = fmadd(h, widen_bytes(codes), *sum);
            }
        }
    }
}
