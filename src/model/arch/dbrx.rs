//! DBRX: LayerNorm without biases, experts, and limited queries, keys and values.

use hal::op::{NormKind, Pairing};

use super::llama::LLAMA;
use crate::{ArchSpec, Positions};

pub(super) const DBRX: ArchSpec = ArchSpec {
    name: "dbrx",
    models: "DBRX 132B-A36B",
    norm: NormKind::Layer,
    positions: Positions::Rotary(Pairing::Halves),
    windows: false,
    clamps: true,
    ffn_norm: "attn_output_norm",
    ..LLAMA
};
