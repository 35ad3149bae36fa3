//! Families with a squared ReLU and no gate. Inactive neurons are skipped without a predictor or
//! calibration.

use hal::op::{Activation, FfnKind, NormKind, Pairing};

use super::llama::LLAMA;
use crate::{ArchSpec, KvKind, Positions};

pub(super) const ARCEE: ArchSpec = ArchSpec {
    name: "arcee",
    models: "Arcee AFM (squared ReLU)",
    ffn: FfnKind::Plain,
    activation: Activation::Relu2,
    sparse_activation: Activation::Relu2,
    ..LLAMA
};

/// Nemotron 4 and Minitron. GGUF files store the norm weights with 1 added.
pub(super) const NEMOTRON: ArchSpec = ArchSpec {
    name: "nemotron",
    models: "Nemotron 4, Minitron (squared ReLU)",
    norm: NormKind::Layer,
    positions: Positions::Rotary(Pairing::Halves),
    ..ARCEE
};

pub(super) const JAIS2: ArchSpec =
    ArchSpec { name: "jais2", models: "Jais 2 (squared ReLU)", ..NEMOTRON };

/// PLM, with multi-head latent attention.
pub(super) const PLM: ArchSpec = ArchSpec {
    name: "plm",
    models: "PLM 1.8B (squared ReLU, latent attention)",
    kv: KvKind::Latent,
    ..ARCEE
};
