//! The values of neurons in feed-forward blocks, in f32.

use hal::op::{Activation, FfnKind};

use crate::simd::ActivateFn;

/// How a neuron's value follows from its test value (the gate, or up without a gate) and up.
#[derive(Debug)]
pub(super) struct Neurons {
    pub(super) kind: FfnKind,
    pub(super) activation: Activation,
    pub(super) activate: ActivateFn,
}

impl Neurons {
    /// `act(x)` of one value.
    pub(super) fn activated(&self, x: f32) -> f32 {
        let mut x = [x];
        (self.activate)(self.activation, &mut x);
        x[0]
    }

    /// Converts test values to the neurons' values. NaN stays NaN.
    pub(super) fn values(&self, tests: &mut [f32], ups: &mut [f32]) {
        (self.activate)(self.activation, tests);
        if self.kind == FfnKind::GatedBoth {
            (self.activate)(self.activation, ups);
        }
        let pairs = tests.iter_mut().zip(ups);
        match (self.kind, self.activation) {
            (FfnKind::Plain, _) => {}
            (FfnKind::Gated, Activation::SwigluOai { limit, .. }) => {
                pairs.for_each(|(h, up)| *h *= clamped(*up, limit) + 1.0);
            }
            (FfnKind::Gated | FfnKind::GatedBoth, _) => pairs.for_each(|(h, up)| *h *= *up),
        }
    }
}

/// Not `f32::clamp`, which panics if a limit is NaN.
fn clamped(x: f32, limit: f32) -> f32 {
    if x > limit {
        limit
    } else if x < -limit {
        -limit
    } else {
        x
    }
}
