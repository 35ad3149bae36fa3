//! The activation functions of feed-forward blocks, in f32.

use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_PI};

use hal::op::{Activation, FfnKind};

/// `act(x)`. A value that is no number stays none.
// Inlined, every neuron's exponential is computed before it is known whether a ReLU needs one.
#[inline(never)]
pub(super) fn activate(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Relu | Activation::Relu2 if x <= 0.0 => 0.0,
        Activation::Relu => x,
        Activation::Relu2 => x * x,
        Activation::Silu => x * sigmoid(x),
        Activation::Gelu => {
            let inner = FRAC_2_PI.sqrt() * x * (1.0 + 0.044_715 * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::GeluErf => 0.5 * x * (1.0 + erf(x * FRAC_1_SQRT_2)),
        Activation::SwigluOai { alpha, limit } => {
            let x = x.min(limit);
            x * sigmoid(alpha * x)
        }
    }
}

/// The value of a neuron from its test value (the gate, or up where there is none) and up.
pub(super) fn neuron(kind: FfnKind, activation: Activation, test: f32, up: f32) -> f32 {
    let gate = activate(activation, test);
    match (kind, activation) {
        (FfnKind::Plain, _) => gate,
        (FfnKind::Gated, Activation::SwigluOai { limit, .. }) => {
            gate * (up.max(-limit).min(limit) + 1.0)
        }
        (FfnKind::Gated, _) => gate * up,
        (FfnKind::GatedBoth, _) => gate * activate(activation, up),
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// The error function to 1.5e-7: Abramowitz and Stegun 7.1.26.
fn erf(x: f32) -> f32 {
    let a = x.abs();
    let t = 1.0 / (1.0 + 0.327_591_1 * a);
    let poly = 1.421_413_7 + t * (-1.453_152 + t * 1.061_405_4);
    let poly = t * (0.254_829_6 + t * (-0.284_496_74 + t * poly));
    (1.0 - poly * (-a * a).exp()).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_has_its_table_values() {
        for (x, y) in [(0.0, 0.0), (0.5, 0.520_499_9), (-1.0, -0.842_700_8), (3.0, 0.999_977_9)] {
            assert!((erf(x) - y).abs() < 5e-7, "erf({x}) = {}", erf(x));
        }
    }

    #[test]
    fn nan_is_not_dropped() {
        for activation in [Activation::Relu, Activation::Relu2, Activation::Silu] {
            assert!(activate(activation, f32::NAN).is_nan());
        }
    }
}
