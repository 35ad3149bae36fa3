//! BERT and its relatives: encoders with norms after each addition.

use hal::op::{Activation, FfnKind, NormKind, Pairing};

use super::llama::LLAMA;
use crate::{Alibi, ArchSpec, BlockKind, EmbeddingNorm, NormSpan, Positions, QkNorm, Routing};

pub(super) const BERT: ArchSpec = ArchSpec {
    name: "bert",
    models: "BERT, MiniLM, BGE, E5, GTE, Snowflake Arctic Embed; RoBERTa and XLM-RoBERTa (BGE-M3, rerankers)",
    encoder: true,
    norm: NormKind::Layer,
    block: BlockKind::SumNorm,
    positions: Positions::Learned { offset: 0 },
    windows: false,
    embedding_norm: EmbeddingNorm::Weights,
    ffn: FfnKind::Plain,
    activation: Activation::Gelu,
    ..LLAMA
};

/// RoPE and SwiGLU.
pub(super) const NOMIC_BERT: ArchSpec = ArchSpec {
    name: "nomic-bert",
    models: "Nomic Embed 1 and 1.5",
    positions: Positions::Rotary(Pairing::Halves),
    ffn: FfnKind::Gated,
    activation: Activation::Silu,
    ..BERT
};

/// Experts in every second layer.
pub(super) const NOMIC_BERT_MOE: ArchSpec = ArchSpec {
    name: "nomic-bert-moe",
    models: "Nomic Embed 2",
    positions: Positions::Rotary(Pairing::Halves),
    routing: Routing { renormalise: false, ..LLAMA.routing },
    ..BERT
};

/// ALiBi and GEGLU; the models for code also norm queries and keys.
pub(super) const JINA_BERT_V2: ArchSpec = ArchSpec {
    name: "jina-bert-v2",
    models: "Jina Embeddings 2, also for code; Jina Reranker 1",
    positions: Positions::None,
    alibi: Alibi::Fixed(8.0),
    qk_norm: Some(QkNorm { over: NormSpan::Row, after_rope: false, optional: true }),
    ffn: FfnKind::Gated,
    ..BERT
};

pub(super) const JINA_BERT_V3: ArchSpec = ArchSpec {
    name: "jina-bert-v3",
    models: "Jina Embeddings 3 without its adapters",
    positions: Positions::Rotary(Pairing::Halves),
    ..BERT
};
