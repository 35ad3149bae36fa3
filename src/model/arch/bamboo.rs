//! Bamboo: the architecture of Mistral with dReLU (ReLU on gate and on up).

use hal::op::{Activation, FfnKind};

use super::llama::LLAMA;
use crate::ArchSpec;

pub(super) const BAMBOO: ArchSpec = ArchSpec {
    name: "bamboo",
    models: "Bamboo, TurboSparse-Mistral (ReLU on gate and up)",
    ffn: FfnKind::GatedBoth,
    activation: Activation::Relu,
    ..LLAMA
};
