//! An architecture is a value. What would need an `if` in the engine is a field here.

use hal::op::{Activation, FfnKind, NormKind, Pairing};

/// What PowerInfer's predictor of this family reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PredictorInput {
    /// The residual after attention was added, before the norm.
    Residual,
}

/// A family of models.
#[derive(Clone, Copy, Debug)]
pub struct ArchSpec {
    /// `general.architecture`.
    pub name: &'static str,
    /// Norm of the residual.
    pub norm: NormKind,
    /// Which values of a head turn together.
    pub pairing: Pairing,
    /// Shape of the feed-forward block.
    pub ffn: FfnKind,
    /// Its activation in an ordinary file that does not say.
    pub activation: Activation,
    /// Its activation in PowerInfer's container, which means a ReLU model by itself.
    pub sparse_activation: Activation,
    /// What a predictor reads.
    pub predictor_input: PredictorInput,
}
