//! Talkie: norms without weights, queries with a factor per head after RoPE, and the normed embedding
//! added after each layer.

use hal::op::Pairing;

use super::llama_like::PLAIN;
use crate::{ArchSpec, EmbeddingNorm, NormSpan, Positions, QkNorm, ScaleKeys, ScaleRules};

pub(super) const TALKIE: ArchSpec = ArchSpec {
    name: "talkie",
    models: "Talkie 13B",
    norm_weights: false,
    qk_norm: Some(QkNorm { over: NormSpan::QueryFactors, after_rope: true, optional: false }),
    positions: Positions::Rotary(Pairing::Halves),
    embedding_norm: EmbeddingNorm::Plain,
    embedding_skip: true,
    scales: ScaleRules { keys: ScaleKeys::Logits, ..ScaleRules::NONE },
    ..PLAIN
};
