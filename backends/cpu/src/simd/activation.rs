//! Activation functions, written once for all levels, and the exponential that they and softmax are made of.
//!
//! A value comes out the same wherever in a slice it stands, and all levels with vectors give the same bits. Plain
//! Rust has the same formula without fused products: SiLU differs by up to 4 units in the last place, the others by so
//! many (GELU by the error function by 12) above -1, and by more in their tails, where the value is next to nothing.

use hal::op::Activation;

/// `act(x)` of each value. What is no number stays none.
pub type ActivateFn = fn(activation: Activation, x: &mut [f32]);

/// `e^x = 2^n * e^r`: adding this leaves n, the nearest whole number, in the last bits.
pub(super) const WHOLE: f32 = 12_582_912.0;
/// ln 2 in two parts, of which the first has few enough bits that n times it is exact.
pub(super) const LN_2: [f32; 2] = [355.0 / 512.0, -2.121_944_4e-4];
/// Here n is -127, which is the exponent of zero.
pub(super) const EXP_MIN: f32 = -88.1;
/// `1 / k!` from the highest on.
pub(super) const EXP: [f32; 8] =
    [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
/// `1 - erf(a) = (ERFC[0] * t^5 + ... + ERFC[4] * t) * exp(-a^2)` to 1.5e-7, with `t = 1 / (1 + ERFC_T * a)` for a from
/// 0 up. Source: Abramowitz and Stegun, 7.1.26.
pub(super) const ERFC: [f32; 5] =
    [1.061_405_4, -1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6];
/// See [`ERFC`].
pub(super) const ERFC_T: f32 = 0.327_591_1;

/// The module `activation` of a level; `$level` are the attributes of its functions.
macro_rules! activation_kernels {
    ($(#[$level:meta])*) => {
        use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_PI, LOG2_E};

        use hal::op::Activation;

        use super::super::activation::{ActivateFn, ERFC, ERFC_T, EXP, EXP_MIN, LN_2, WHOLE};
        use super::super::tile::padded;

        // SAFETY: `Kernels::select` hands out this level only where it was detected.
        pub(in super::super) const ACTIVATE: ActivateFn = |kind, x| unsafe { activate(kind, x) };

        /// `e^x` for x up to 0 to 3e-7 of the value, 0 below -88; what is no number stays none.
        #[inline]
        $(#[$level])*
        pub(super) fn exp(x: V) -> V {
            let x = max(splat(EXP_MIN), x);
            let shifted = fmadd(x, splat(LOG2_E), splat(WHOLE));
            let n = add(shifted, splat(-WHOLE));
            let r = fnmadd(n, splat(LN_2[1]), fnmadd(n, splat(LN_2[0]), x));
            let mut sum = splat(EXP[0]);
            for factor in &EXP[1..] {
                sum = fmadd(sum, r, splat(*factor));
            }
            mul(sum, power_of_two(shifted))
        }

        /// `-|x|`
        #[inline]
        $(#[$level])*
        fn below_zero(x: V) -> V {
            min(x, mul(x, splat(-1.0)))
        }

        /// `x / (1 + e^-y)`, by a power that cannot overflow.
        #[inline]
        $(#[$level])*
        fn times_sigmoid(x: V, y: V) -> V {
            let power = exp(below_zero(y));
            let above = where_negative(y, power, splat(1.0));
            mul(x, div(above, add(splat(1.0), power)))
        }

        /// `x / 2 * (1 + erf(x / sqrt 2))`
        #[inline]
        $(#[$level])*
        fn gelu_erf(x: V) -> V {
            let a = mul(below_zero(x), splat(-FRAC_1_SQRT_2));
            let t = div(splat(1.0), fmadd(a, splat(ERFC_T), splat(1.0)));
            let mut sum = splat(ERFC[0]);
            for factor in &ERFC[1..] {
                sum = fmadd(sum, t, splat(*factor));
            }
            let tail = mul(mul(sum, t), exp(mul(a, mul(a, splat(-1.0)))));
            let both = where_negative(x, tail, add(splat(2.0), mul(tail, splat(-1.0))));
            mul(x, mul(splat(0.5), both))
        }

        /// `f` of each value, of which the last few are padded.
        #[inline]
        $(#[$level])*
        fn each(x: &mut [f32], f: impl Fn(V) -> V) {
            let (vectors, rest) = x.as_chunks_mut::<LANES>();
            for v in vectors {
                let y = f(load_ps(v, 0));
                store_ps(v, 0, y);
            }
            if !rest.is_empty() {
                let mut last = padded::<_, LANES>(rest);
                let y = f(load_ps(&last, 0));
                store_ps(&mut last, 0, y);
                rest.copy_from_slice(&last[..rest.len()]);
            }
        }

        $(#[$level])*
        fn activate(activation: Activation, x: &mut [f32]) {
            match activation {
                Activation::Relu => {
                    x.iter_mut().for_each(|x| *x = if *x <= 0.0 { 0.0 } else { *x });
                }
                Activation::Relu2 => {
                    x.iter_mut().for_each(|x| *x = if *x <= 0.0 { 0.0 } else { *x * *x });
                }
                Activation::Silu => each(x, |x| times_sigmoid(x, x)),
                // (1 + tanh y) / 2 is the sigmoid of 2y.
                Activation::Gelu => each(x, |x| {
                    let factor = fmadd(splat(0.044_715), mul(x, x), splat(1.0));
                    times_sigmoid(x, mul(mul(splat(2.0 * FRAC_2_PI.sqrt()), x), factor))
                }),
                Activation::GeluErf => each(x, |x| gelu_erf(x)),
                Activation::SwigluOai { alpha, limit } => each(x, |x| {
                    let x = min(splat(limit), x);
                    times_sigmoid(x, mul(splat(alpha), x))
                }),
            }
        }
    };
}
pub(super) use activation_kernels;
