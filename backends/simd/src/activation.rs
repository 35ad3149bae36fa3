//! Activation functions, written once for all SIMD levels, and the exponential, which softmax also
//! uses.
//!
//! A result does not depend on the position of the value in the slice, and all vector levels give
//! the same bits. Plain Rust uses the same formulas without fused multiply-add. Its SiLU differs by
//! up to 4 units in the last place (ULP). Its other functions differ by up to 4 ULP (12 for
//! `GeluErf`) for x above -1, and by more in their tails, where results are close to zero.

use hal::op::{Activation, GateActivation};

/// `act(x)` of each value. NaN stays NaN.
pub type ActivateFn = fn(activation: Activation, x: &mut [f32]);
/// `cap * tanh(x / cap)` of each value. NaN stays NaN.
pub type SoftCapFn = fn(cap: f32, x: &mut [f32]);
/// `act(x)` of each gate value. NaN stays NaN.
pub type GateFn = fn(activation: GateActivation, x: &mut [f32]);

/// `1.5 * 2^23`. Adding this constant to `x / ln 2` rounds it to the integer n of `e^x = 2^n * e^r`
/// and leaves n in the low mantissa bits.
pub(super) const ROUNDING: f32 = 12_582_912.0;
/// ln 2 as a sum of two floats; the first has few enough bits that its product with n is exact.
pub(super) const LN_2: [f32; 2] = [355.0 / 512.0, -2.121_944_4e-4];
/// Lower limit of x, at which n is -127: `2^n` then has zero exponent bits, so the result is 0.
pub(super) const EXP_MIN: f32 = -88.1;
/// Taylor coefficients `1 / k!` of `e^r`, highest k first.
pub(super) const EXP: [f32; 8] =
    [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
/// `1 - erf(a) = (ERFC[0] * t^5 + ... + ERFC[4] * t) * exp(-a^2)` to 1.5e-7 for a >= 0, with
/// `t = 1 / (1 + ERFC_T * a)`. Source: Abramowitz and Stegun, 7.1.26.
pub(super) const ERFC: [f32; 5] =
    [1.061_405_4, -1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6];
/// Coefficients, highest power first, of `ln(1 + e) = 2 s * (1 + s^2 / 3 + s^4 / 5 + ...)` with
/// `s = e / (2 + e)`. For e from 0 to 1, s is at most 1/3 and the relative error is 2e-8.
pub(super) const LN_1P: [f32; 7] =
    [1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 0.2, 1.0 / 3.0, 1.0];
/// Taylor coefficients `1 / k!` of `(e^x - 1 - x) / x^2`, highest power first: for x from -0.5 to 0
/// the relative error is 5e-8. Below, the difference itself loses less than that.
pub(super) const EXP_CURVE: [f32; 7] =
    [1.0 / 40320.0, 1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5];
/// See [`ERFC`].
pub(super) const ERFC_T: f32 = 0.327_591_1;

/// Contents of the module `activation` of a SIMD level; `$level` are the attributes of the
/// functions.
macro_rules! activation_kernels {
    ($(#[$level:meta])*) => {
        use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_PI, LOG2_E};

        use hal::op::{Activation, GateActivation};

        use super::super::activation::{
            ActivateFn, ERFC, ERFC_T, EXP, EXP_CURVE, EXP_MIN, GateFn, LN_1P, LN_2, ROUNDING,
            SoftCapFn,
        };
        use super::super::tile::pad_with_zeros;

        // SAFETY: `Kernels::select` returns this level only if it was detected.
        pub(in super::super) const ACTIVATE: ActivateFn = |kind, x| unsafe { activate(kind, x) };

        // SAFETY: as above.
        pub(in super::super) const GATE: GateFn = |kind, x| unsafe { gate(kind, x) };

        // SAFETY: as above.
        pub(in super::super) const SOFT_CAP: SoftCapFn = |cap, x| unsafe { soft_cap(cap, x) };

        /// `e^x` for x <= 0 with a relative error of 3e-7. Below -88 the result is 0. NaN stays
        /// NaN.
        #[inline]
        $(#[$level])*
        pub(super) fn exp(x: V) -> V {
            let x = max(splat(EXP_MIN), x);
            let shifted = fmadd(x, splat(LOG2_E), splat(ROUNDING));
            let n = add(shifted, splat(-ROUNDING));
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
        fn negated_abs(x: V) -> V {
            min(x, mul(x, splat(-1.0)))
        }

        /// `x * sigmoid(y)`, with an exponential that cannot overflow.
        #[inline]
        $(#[$level])*
        fn times_sigmoid(x: V, y: V) -> V {
            let power = exp(negated_abs(y));
            let above = where_negative(y, power, splat(1.0));
            mul(x, div(above, add(splat(1.0), power)))
        }

        /// `x * (1 + tanh y) / 2` with `y = sqrt(2 / pi) * (x + 0.044715 x^3)`, computed as
        /// `x * sigmoid(2 y)`.
        #[inline]
        $(#[$level])*
        fn gelu(x: V) -> V {
            let factor = fmadd(splat(0.044_715), mul(x, x), splat(1.0));
            times_sigmoid(x, mul(mul(splat(2.0 * FRAC_2_PI.sqrt()), x), factor))
        }

        /// `ln(1 + e^x)`
        #[inline]
        $(#[$level])*
        fn softplus(x: V) -> V {
            let power = exp(negated_abs(x));
            let s = div(power, add(splat(2.0), power));
            let square = mul(s, s);
            let mut sum = splat(LN_1P[0]);
            for factor in &LN_1P[1..] {
                sum = fmadd(sum, square, splat(*factor));
            }
            fmadd(mul(splat(2.0), s), sum, where_negative(x, zero(), x))
        }

        /// `x / 2 * (1 + erf(x / sqrt 2))`
        #[inline]
        $(#[$level])*
        fn gelu_erf(x: V) -> V {
            let a = mul(negated_abs(x), splat(-FRAC_1_SQRT_2));
            let t = div(splat(1.0), fmadd(a, splat(ERFC_T), splat(1.0)));
            let mut sum = splat(ERFC[0]);
            for factor in &ERFC[1..] {
                sum = fmadd(sum, t, splat(*factor));
            }
            let tail = mul(mul(sum, t), exp(mul(a, mul(a, splat(-1.0)))));
            let both = where_negative(x, tail, add(splat(2.0), mul(tail, splat(-1.0))));
            mul(x, mul(splat(0.5), both))
        }

        /// `e^x - 1 - x` for x from -0.5 to 0.
        #[inline]
        $(#[$level])*
        fn near_curve(x: V) -> V {
            let mut sum = splat(EXP_CURVE[0]);
            for factor in &EXP_CURVE[1..] {
                sum = fmadd(sum, x, splat(*factor));
            }
            mul(mul(x, x), sum)
        }

        /// `e^x - 1 - x` for x <= 0.
        #[inline]
        $(#[$level])*
        fn exp_curve(x: V) -> V {
            let near = near_curve(x);
            let far = add(add(exp(x), splat(-1.0)), mul(x, splat(-1.0)));
            where_negative(add(x, splat(0.5)), far, near)
        }

        /// `tanh x`, by `(1 - e^-2|x|) / (1 + e^-2|x|)`; the difference keeps its digits near 0.
        #[inline]
        $(#[$level])*
        fn tanh(x: V) -> V {
            let twice = mul(negated_abs(x), splat(2.0));
            let far = add(exp(twice), splat(-1.0));
            let near = add(near_curve(twice), twice);
            let difference = where_negative(add(twice, splat(0.5)), far, near);
            let size = div(difference, add(splat(2.0), difference));
            where_negative(x, size, mul(size, splat(-1.0)))
        }

        /// Applies `f` to each value; the last vector is padded.
        #[inline]
        $(#[$level])*
        fn map_values(x: &mut [f32], f: impl Fn(V) -> V) {
            let (vectors, rest) = x.as_chunks_mut::<LANES>();
            for v in vectors {
                let y = f(load_ps(v, 0));
                store_ps(v, 0, y);
            }
            if !rest.is_empty() {
                let mut last = pad_with_zeros::<_, LANES>(rest);
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
                Activation::Silu => map_values(x, |x| times_sigmoid(x, x)),
                Activation::Gelu => map_values(x, |x| gelu(x)),
                Activation::GeluErf => map_values(x, |x| gelu_erf(x)),
                Activation::SwigluOai { alpha, limit } => map_values(x, |x| {
                    let x = min(splat(limit), x);
                    times_sigmoid(x, mul(splat(alpha), x))
                }),
                Activation::SwigluClamped { limit } => map_values(x, |x| {
                    let x = min(splat(limit), x);
                    times_sigmoid(x, x)
                }),
                Activation::SiluClamped { limit } => {
                    map_values(x, |x| min(splat(limit), times_sigmoid(x, x)));
                }
                Activation::XIelu { positive, negative, slope } => map_values(x, |x| {
                    let above = where_negative(x, zero(), x);
                    let below = where_negative(x, x, zero());
                    let line = mul(splat(slope), x);
                    let curve = fmadd(splat(negative), exp_curve(below), line);
                    fmadd(splat(positive), mul(above, above), curve)
                }),
                Activation::Situ { beta, .. } => map_values(x, |x| {
                    let inner = mul(x, splat(beta.recip()));
                    times_sigmoid(mul(splat(beta), tanh(inner)), x)
                }),
            }
        }

        $(#[$level])*
        fn soft_cap(cap: f32, x: &mut [f32]) {
            map_values(x, |x| mul(splat(cap), tanh(mul(x, splat(cap.recip())))));
        }

        $(#[$level])*
        fn gate(activation: GateActivation, x: &mut [f32]) {
            match activation {
                GateActivation::None => {}
                GateActivation::Sigmoid => map_values(x, |x| times_sigmoid(splat(1.0), x)),
                GateActivation::Silu => map_values(x, |x| times_sigmoid(x, x)),
                GateActivation::Softplus => map_values(x, |x| softplus(x)),
                GateActivation::Gelu => map_values(x, |x| gelu(x)),
                GateActivation::SigmoidOfRoot => {
                    // A token has few of these gates.
                    for x in x.iter_mut().filter(|x| **x != 0.0 && !x.is_nan()) {
                        *x = x.abs().max(1e-6).sqrt().copysign(*x);
                    }
                    map_values(x, |x| times_sigmoid(splat(1.0), x));
                }
            }
        }
    };
}
pub(super) use activation_kernels;
