//! Arithmetic of `f32`. Without `.ftz`, subnormal numbers are kept. A NaN result has the bits
//! 0x7fffffff, whatever the operands.
//!
//! The results of `.approx` instructions are not defined to the bit. Here they are the exact value,
//! moved by as many places as the PTX ISA allows: code that passes does not depend on those bits.

use super::{Compute, binary, ternary, unary};

pub(super) fn find(opcode: &str) -> Option<Compute> {
    match opcode {
        "add.rn.f32" => two(|a, b| a + b),
        "sub.rn.f32" => two(|a, b| a - b),
        "mul.rn.f32" => two(|a, b| a * b),
        "div.rn.f32" => two(|a, b| a / b),
        "add.rz.f32" => two(add_toward_zero),
        "min.f32" => two(min),
        "max.f32" => two(|a, b| -min(-a, -b)),
        "fma.rn.f32" => three(fma),
        "fma.rm.f32" => three(fma_down),
        "rcp.rn.f32" => one(|a| 1.0 / a),
        "sqrt.rn.f32" => one(f32::sqrt),
        "abs.f32" => unary(|a: u32| a & 0x7fff_ffff),
        "neg.f32" => unary(|a: u32| a ^ 0x8000_0000),
        // Maximum relative error 2^-22 (PTX ISA, "ex2"): two places; 0 and subnormals give 1.
        "ex2.approx.ftz.f32" => one(|a| {
            let a = flush(a);
            if a == 0.0 { 1.0 } else { flush(inexact(f64::from(a).exp2() as f32, 2)) }
        }),
        // Maximum relative error 2^-23 (PTX ISA, "rcp"): one place.
        "rcp.approx.ftz.f32" => one(|a| flush(inexact((1.0 / f64::from(flush(a))) as f32, 1))),
        _ => None,
    }
}

fn number(value: f32) -> u32 {
    if value.is_nan() { 0x7fff_ffff } else { value.to_bits() }
}

fn one(f: impl Fn(f32) -> f32 + Copy + Send + Sync + 'static) -> Option<Compute> {
    unary(move |a: u32| number(f(f32::from_bits(a))))
}

fn two(f: impl Fn(f32, f32) -> f32 + Copy + Send + Sync + 'static) -> Option<Compute> {
    binary(move |a: u32, b: u32| number(f(f32::from_bits(a), f32::from_bits(b))))
}

fn three(f: impl Fn(f32, f32, f32) -> f32 + Copy + Send + Sync + 'static) -> Option<Compute> {
    ternary(move |a: u32, b: u32, c: u32| {
        number(f(f32::from_bits(a), f32::from_bits(b), f32::from_bits(c)))
    })
}

/// The smaller number; of a number and NaN, the number. -0 is smaller than 0.
fn min(a: f32, b: f32) -> f32 {
    if a.is_nan() {
        b
    } else if b.is_nan() || a < b || a == b && a.is_sign_negative() {
        a
    } else {
        b
    }
}

/// Subnormal numbers become 0 of the same sign.
fn flush(a: f32) -> f32 {
    if a.is_subnormal() { 0.0_f32.copysign(a) } else { a }
}

/// Moves a value by at most `places` places, up or down, depending on its bits alone.
fn inexact(a: f32, places: u32) -> f32 {
    if a == 0.0 || !a.is_finite() {
        return a;
    }
    let bits = a.to_bits();
    let by = bits.wrapping_mul(0x9e37_79b1) >> 16;
    f32::from_bits(bits.wrapping_add(by % (2 * places + 1)).wrapping_sub(places))
}

/// The sum of two doubles, and what its rounding lost.
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let of_b = sum - a;
    (sum, (a - (sum - of_b)) + (b - of_b))
}

/// Rounds once: a double whose last bit is set wherever something was lost rounds to the nearest
/// `f32` as the exact sum does, because it has more than two further bits.
fn fma(a: f32, b: f32, c: f32) -> f32 {
    // A product of two `f32` is exact in 53 bits.
    let (sum, lost) = two_sum(f64::from(a) * f64::from(b), f64::from(c));
    let bits = sum.to_bits();
    if lost == 0.0 || lost.is_nan() || bits & 1 == 1 {
        return sum as f32;
    }
    // Toward the exact sum: away from zero if what was lost has the sign of the sum.
    let away = (lost > 0.0) == (sum > 0.0);
    f64::from_bits(if away { bits + 1 } else { bits - 1 }) as f32
}

/// The exact product and sum, rounded toward -infinity.
fn fma_down(a: f32, b: f32, c: f32) -> f32 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let (sum, lost) = two_sum(product, c);
    if sum == 0.0 && product.is_sign_negative() != c.is_sign_negative() {
        return -0.0;
    }
    let nearest = sum as f32;
    let above = f64::from(nearest) > sum || f64::from(nearest) == sum && lost < 0.0;
    if above { nearest.next_down() } else { nearest }
}

fn add_toward_zero(a: f32, b: f32) -> f32 {
    let (sum, lost) = two_sum(f64::from(a), f64::from(b));
    let nearest = sum as f32;
    let (near, exact) = (f64::from(nearest.abs()), sum.abs());
    let lost = if sum < 0.0 { -lost } else { lost };
    let beyond = near > exact || near == exact && lost < 0.0;
    if !beyond {
        nearest
    } else if nearest > 0.0 {
        nearest.next_down()
    } else {
        nearest.next_up()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers whose sums and products round in every way.
    fn samples() -> impl Iterator<Item = [f32; 3]> {
        let mut state = 1_u64;
        let mut next = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let exponent = 100 + (state >> 40) as u32 % 56;
            f32::from_bits((state >> 32) as u32 & 0x807f_ffff | exponent << 23)
        };
        (0..100_000).map(move |_| [next(), next(), next()])
    }

    #[test]
    fn fused_products_round_once() {
        for [a, b, c] in samples() {
            assert_eq!(fma(a, b, c).to_bits(), a.mul_add(b, c).to_bits(), "{a:e} {b:e} {c:e}");
        }
        let tiny = f32::from_bits(1);
        assert_eq!(fma(tiny, 0.5, 0.0), tiny.mul_add(0.5, 0.0));
        assert!(fma(f32::INFINITY, 0.0, 1.0).is_nan());
        assert_eq!(fma(f32::MAX, 2.0, f32::NEG_INFINITY), f32::NEG_INFINITY);
    }

    #[test]
    fn directed_rounding_is_next_to_the_nearest() {
        for [a, b, c] in samples() {
            let (down, nearest) = (fma_down(a, b, c), a.mul_add(b, c));
            assert!(down == nearest || down == nearest.next_down());
            // Rounding up is rounding the negated value down.
            let up = -fma_down(-a, b, -c);
            assert!(up == down || up == down.next_up(), "{a:e} {b:e} {c:e}");
            assert!(nearest == down || nearest == up);
            let cut = add_toward_zero(a, b);
            assert!(cut.abs() <= (a + b).abs());
        }
        assert_eq!(fma_down(1.0, 1.0, f32::MIN_POSITIVE), 1.0);
        assert_eq!(fma_down(-1.0, 1.0, -f32::MIN_POSITIVE), (-1.0_f32).next_down());
        assert_eq!(add_toward_zero(1.0, -1e-30), 1.0_f32.next_down());
        assert_eq!(add_toward_zero(1.0, 1e-30), 1.0);
    }

    #[test]
    fn of_a_number_and_nan_the_number_is_smaller() {
        assert_eq!(min(f32::NAN, 1.0), 1.0);
        assert_eq!(min(1.0, f32::NAN), 1.0);
        assert!(min(0.0, -0.0).is_sign_negative());
    }

    #[test]
    fn approximations_stay_within_their_places() {
        for [a, ..] in samples() {
            let moved = inexact(a, 2).to_bits().abs_diff(a.to_bits());
            assert!(moved <= 2);
        }
    }
}
