//! The activation functions of feed-forward blocks and gates.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use hal::op::{Activation, FfnKind, GateActivation};

/// `act(x)` of one value.
pub(crate) fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        // Not `x.max(0.0)`, which would turn NaN into 0.
        Activation::Relu => {
            if x <= 0.0 {
                0.0
            } else {
                x
            }
        }
        Activation::Relu2 => {
            if x <= 0.0 {
                0.0
            } else {
                x * x
            }
        }
        Activation::Silu => x * sigmoid(x),
        Activation::Gelu => {
            let inner = (2.0 / PI).sqrt() * x * (1.0 + 0.044715 * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::GeluErf => 0.5 * x * (1.0 + erf(x * FRAC_1_SQRT_2)),
        Activation::SwigluOai { alpha, limit } => {
            let limit = f64::from(limit);
            let x = if x > limit { limit } else { x };
            x * sigmoid(f64::from(alpha) * x)
        }
        Activation::SwigluClamped { limit } => {
            activate(Activation::SwigluOai { alpha: 1.0, limit }, x)
        }
        Activation::SiluClamped { limit } => {
            let (value, limit) = (x * sigmoid(x), f64::from(limit));
            if value > limit { limit } else { value }
        }
        Activation::XIelu { positive, negative, slope } => {
            let curve = if x > 0.0 {
                f64::from(positive) * x * x
            } else {
                f64::from(negative) * (x.exp_m1() - x)
            };
            curve + f64::from(slope) * x
        }
        Activation::Situ { beta, .. } => soft_cap(f64::from(beta), x) * sigmoid(x),
    }
}

/// A neuron's value from up and the test value, which is the gate, or up in blocks without a gate.
pub(super) fn neuron(kind: FfnKind, activation: Activation, test: f64, up: f64) -> f64 {
    let gate = activate(activation, test);
    let up = match activation.up_cap() {
        Some(cap) if kind == FfnKind::Gated => soft_cap(f64::from(cap), up),
        Some(_) | None => up,
    };
    match (kind, activation.up_limit()) {
        (FfnKind::Plain, _) => gate,
        (FfnKind::Gated, None) => gate * up,
        (FfnKind::Gated, Some((limit, added))) => {
            let limit = f64::from(limit);
            gate * (up.clamp(-limit, limit) + f64::from(added))
        }
        (FfnKind::GatedBoth, _) => gate * activate(activation, up),
    }
}

/// `x`, limited to `-cap..=cap` by a hyperbolic tangent.
fn soft_cap(cap: f64, x: f64) -> f64 {
    cap * (x / cap).tanh()
}

/// `act(g)` of one gate value.
pub(crate) fn gate(activation: GateActivation, g: f64) -> f64 {
    match activation {
        GateActivation::None => g,
        GateActivation::Sigmoid => sigmoid(g),
        GateActivation::Silu => activate(Activation::Silu, g),
        GateActivation::Softplus => softplus(g),
        GateActivation::Gelu => activate(Activation::Gelu, g),
        GateActivation::SigmoidOfRoot if g == 0.0 || g.is_nan() => sigmoid(g),
        GateActivation::SigmoidOfRoot => sigmoid(g.abs().max(1e-6).sqrt().copysign(g)),
    }
}

/// `ln(1 + exp(x))`, without overflow.
pub(super) fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The error function, as the series `2 / sqrt(pi) * exp(-x^2) * sum of 2^n x^(2n+1) / (2n+1)!!`,
/// whose terms have the same sign, so they do not cancel.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= 2.0 * x * x / f64::from(2 * n + 1);
        sum += term;
    }
    2.0 / PI.sqrt() * (-x * x).exp() * sum
}

#[cfg(test)]
mod tests {
    use super::{activate, erf};
    use hal::op::Activation;

    #[test]
    fn erf_has_its_table_values() {
        for (x, y) in [(0.0, 0.0), (0.5, 0.520_499_877_813_046_5), (-1.0, -0.842_700_792_949_714_9)]
        {
            assert!((erf(x) - y).abs() < 1e-14, "erf({x})");
        }
        assert!((erf(3.0) - 0.999_977_909_503_001_4).abs() < 1e-14);
        assert!((erf(7.0) - 1.0).abs() < 1e-14);
    }

    #[test]
    fn both_gelus_agree_roughly_and_relu_keeps_nan() {
        for x in [-3.0, -0.7, 0.0, 0.4, 2.5] {
            let difference = activate(Activation::Gelu, x) - activate(Activation::GeluErf, x);
            assert!(difference.abs() < 1e-3, "at {x}");
        }
        assert!(activate(Activation::Relu, f64::NAN).is_nan());
    }
}
