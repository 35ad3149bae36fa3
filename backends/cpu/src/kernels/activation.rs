//! The values of neurons in feed-forward blocks, in f32.

use hal::op::{Activation, FfnKind};

use simd::{ActivateFn, SoftCapFn};

/// Computes neurons' values from up and the test value, which is the gate, or up in blocks without
/// a gate.
#[derive(Debug)]
pub(super) struct NeuronActivation {
    pub(super) kind: FfnKind,
    pub(super) activation: Activation,
    pub(super) activate: ActivateFn,
    pub(super) soft_cap: SoftCapFn,
}

impl NeuronActivation {
    /// `act(x)` of one value.
    pub(super) fn activate(&self, x: f32) -> f32 {
        let mut x = [x];
        (self.activate)(self.activation, &mut x);
        x[0]
    }

    /// Replaces test values with the neurons' values. NaN stays NaN.
    pub(super) fn apply(&self, tests: &mut [f32], ups: &mut [f32]) {
        (self.activate)(self.activation, tests);
        if self.kind == FfnKind::GatedBoth {
            (self.activate)(self.activation, ups);
        }
        if let (Some(cap), FfnKind::Gated) = (self.activation.up_cap(), self.kind) {
            (self.soft_cap)(cap, ups);
        }
        let pairs = tests.iter_mut().zip(ups);
        match (self.kind, self.activation.up_limit()) {
            (FfnKind::Plain, _) => {}
            (FfnKind::Gated, Some((limit, added))) => {
                pairs.for_each(|(h, up)| *h *= clamp_keeping_nan(*up, limit) + added);
            }
            (FfnKind::Gated | FfnKind::GatedBoth, _) => pairs.for_each(|(h, up)| *h *= *up),
        }
    }
}

/// Limits `x` to `-limit..=limit`. `f32::clamp` would panic if the limit is NaN.
fn clamp_keeping_nan(x: f32, limit: f32) -> f32 {
    if x > limit {
        limit
    } else if x < -limit {
        -limit
    } else {
        x
    }
}
