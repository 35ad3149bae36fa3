//! Apertus: feed-forward blocks without a gate, whose activation (xIELU) was trained in each layer.

use hal::op::{Activation, FfnKind, Pairing};

use super::llama::LLAMA;
use crate::{ArchSpec, Positions, QkNorm};

pub(super) const APERTUS: ArchSpec = ArchSpec {
    name: "apertus",
    models: "Apertus 8B and 70B",
    qk_norm: Some(QkNorm::HEADS),
    positions: Positions::Rotary(Pairing::Halves),
    windows: false,
    ffn: FfnKind::Plain,
    // The file states the numbers of each layer.
    activation: Activation::XIelu { positive: 0.0, negative: 0.0, slope: 0.0 },
    ..LLAMA
};
