//! Attention, activations and recurrent layers in plain Rust: the kernels of `attention`,
//! `activation` and `recurrent` with arrays as registers.

pub(super) mod activation {
    #![allow(unused_unsafe, reason = "other levels need the unsafe blocks")]

    use super::vector::*;

    super::super::activation::activation_kernels!();
}

pub(super) mod attention {
    #![allow(unused_unsafe, reason = "other levels need the unsafe blocks")]

    use super::vector::*;

    super::super::attention::attention_kernels!();
}

pub(super) mod recurrent {
    #![allow(unused_unsafe, reason = "other levels need the unsafe blocks")]

    use super::vector::*;

    super::super::recurrent::recurrent_kernels!();
}

/// Vector operations for the kernels that are written once for all SIMD levels. A vector is an
/// array of 8 floats, which the compiler maps to available registers.
mod vector {
    use half::{bf16, f16};

    pub(super) use super::super::scalar_panel::look_up_pairs;

    pub(super) type V = [f32; LANES];
    pub(super) const LANES: usize = 8;

    #[inline(always)]
    fn from_fn(f: impl Fn(usize) -> f32) -> V {
        std::array::from_fn(f)
    }

    #[inline(always)]
    pub(super) fn zero() -> V {
        [0.0; LANES]
    }

    #[inline(always)]
    pub(super) fn splat(v: f32) -> V {
        [v; LANES]
    }

    #[inline(always)]
    pub(super) fn add(a: V, b: V) -> V {
        from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    pub(super) fn mul(a: V, b: V) -> V {
        from_fn(|i| a[i] * b[i])
    }

    /// `a * b + c`
    #[inline(always)]
    pub(super) fn fmadd(a: V, b: V, c: V) -> V {
        from_fn(|i| a[i] * b[i] + c[i])
    }

    /// `c - a * b`
    #[inline(always)]
    pub(super) fn fnmadd(a: V, b: V, c: V) -> V {
        from_fn(|i| c[i] - a[i] * b[i])
    }

    /// The larger of a and b; b if either is NaN.
    #[inline(always)]
    pub(super) fn max(a: V, b: V) -> V {
        from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    pub(super) fn div(a: V, b: V) -> V {
        from_fn(|i| a[i] / b[i])
    }

    /// The smaller of a and b; b if either is NaN.
    #[inline(always)]
    pub(super) fn min(a: V, b: V) -> V {
        from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }

    /// In each lane: a if x is below 0, else b.
    #[inline(always)]
    pub(super) fn where_negative(x: V, a: V, b: V) -> V {
        from_fn(|i| if x[i] < 0.0 { a[i] } else { b[i] })
    }

    /// `2^n` for the integer n in the low bits of each lane, from -127 (which gives zero) to 127.
    #[inline(always)]
    pub(super) fn power_of_two(n: V) -> V {
        from_fn(|i| f32::from_bits(n[i].to_bits().wrapping_add(127) << 23))
    }

    #[inline(always)]
    pub(super) fn total(v: V) -> f32 {
        ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
    }

    #[inline(always)]
    pub(super) fn lane_sums(v: [V; LANES]) -> V {
        v.map(total)
    }

    #[inline(always)]
    pub(super) fn load_ps(from: &[f32], at: usize) -> V {
        from[at..][..LANES].try_into().expect("the slice has enough floats")
    }

    #[inline(always)]
    pub(super) fn store_ps(to: &mut [f32], at: usize, v: V) {
        to[at..][..LANES].copy_from_slice(&v);
    }

    #[inline(always)]
    pub(super) fn widen_f32(from: &[u8], at: usize) -> V {
        let from = &from[at..][..4 * LANES];
        from_fn(|i| {
            f32::from_le_bytes([from[4 * i], from[4 * i + 1], from[4 * i + 2], from[4 * i + 3]])
        })
    }

    #[inline(always)]
    pub(super) fn widen_f16(from: &[u8], at: usize) -> V {
        let from = &from[at..][..2 * LANES];
        from_fn(|i| f16::from_le_bytes([from[2 * i], from[2 * i + 1]]).to_f32())
    }

    #[inline(always)]
    pub(super) fn widen_bf16(from: &[u8], at: usize) -> V {
        let from = &from[at..][..2 * LANES];
        from_fn(|i| bf16::from_le_bytes([from[2 * i], from[2 * i + 1]]).to_f32())
    }

    #[inline(always)]
    pub(super) fn widen_i8(from: &[u8], at: usize) -> V {
        let from = &from[at..][..LANES];
        from_fn(|i| f32::from(from[i] as i8))
    }

    /// The f16 at the beginning of `bytes`, in every lane.
    #[inline(always)]
    pub(super) fn one_scale(bytes: &[u8]) -> V {
        splat(f16::from_le_bytes([bytes[0], bytes[1]]).to_f32())
    }

    /// Rounds to the nearest f16, ties to even.
    #[inline(always)]
    pub(super) fn narrow_f16(v: V) -> [f16; LANES] {
        v.map(f16::from_f32)
    }
}
