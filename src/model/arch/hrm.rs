//! HRM-Text: two stacks of layers that run alternately, norms without weights, gated attention.

use hal::op::{GateActivation, Pairing};

use super::llama_like::PLAIN;
use crate::{ArchSpec, GateKind, Positions, ScaleKeys, ScaleRules};

pub(super) const HRM_TEXT: ArchSpec = ArchSpec {
    name: "hrm_text",
    models: "HRM-Text, DFM Mimir 1B (causal attention only)",
    norm_weights: false,
    gate: GateKind::Matrix { activation: GateActivation::Sigmoid, optional: false },
    positions: Positions::Rotary(Pairing::Halves),
    stacks: true,
    scales: ScaleRules { keys: ScaleKeys::Embedding, ..ScaleRules::NONE },
    ..PLAIN
};
