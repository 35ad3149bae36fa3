//! Llama 1 to 3, CodeLlama, Mistral, TinyLlama, and ReLU-fied ones (ReluLLaMA, ProSparse).

use hal::op::{Activation, FfnKind, NormKind, Pairing};

use crate::model::{ArchSpec, PredictorInput};

pub(super) const LLAMA: ArchSpec = ArchSpec {
    name: "llama",
    norm: NormKind::Rms,
    pairing: Pairing::Adjacent,
    ffn: FfnKind::Gated,
    activation: Activation::Silu,
    sparse_activation: Activation::Relu,
    predictor_input: PredictorInput::Residual,
};
