//! Bamboo (Mistral's shape, dReLU: ReLU on gate and on up).

use hal::op::{Activation, FfnKind, NormKind, Pairing};

use crate::model::{ArchSpec, PredictorInput};

pub(super) const BAMBOO: ArchSpec = ArchSpec {
    name: "bamboo",
    norm: NormKind::Rms,
    pairing: Pairing::Adjacent,
    ffn: FfnKind::GatedBoth,
    activation: Activation::Relu,
    sparse_activation: Activation::Relu,
    predictor_input: PredictorInput::Residual,
};
