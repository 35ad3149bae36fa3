//! Grok: norms before and after both halves of a layer, factors on embeddings and logits, and in
//! Grok 2 a dense block beside the experts.

use hal::op::{Activation, Pairing};

use super::llama::LLAMA;
use crate::{
    ArchSpec, BlockKind, DenseBeside, Factor, Positions, ScaleKeys, ScaleRules, ScoreScale,
};

/// The numbers are those of Grok 1, whose files do not state them.
pub(super) const GROK: ArchSpec = ArchSpec {
    name: "grok",
    models: "Grok 1 and 2",
    block: BlockKind::Sandwich,
    positions: Positions::Rotary(Pairing::Halves),
    windows: false,
    attn_scale: ScoreScale::OutputKey(0.088_388_35),
    attn_softcap: 30.0,
    scales: ScaleRules {
        embedding: Factor::Number(78.383_67),
        logits: Factor::Number(0.577_350_3),
        keys: ScaleKeys::Ends,
        ..ScaleRules::NONE
    },
    activation: Activation::Gelu,
    dense_beside: DenseBeside::Plain,
    ..LLAMA
};
