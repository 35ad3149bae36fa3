//! GPT-2 and its relatives: LayerNorm, biases, and a GELU without a gate.

use hal::op::{Activation, FfnKind, NormKind, Pairing};

use super::llama::LLAMA;
use crate::{Alibi, ArchSpec, BlockKind, EmbeddingNorm, NormSpan, Positions, QkNorm, ScoreScale};

pub(super) const GPT2: ArchSpec = ArchSpec {
    name: "gpt2",
    models: "GPT-2, Cerebras-GPT",
    norm: NormKind::Layer,
    positions: Positions::Learned { offset: 0 },
    windows: false,
    ffn: FfnKind::Plain,
    activation: Activation::Gelu,
    ..LLAMA
};

pub(super) const STARCODER: ArchSpec =
    ArchSpec { name: "starcoder", models: "StarCoder, SantaCoder", ..GPT2 };

pub(super) const STARCODER2: ArchSpec = ArchSpec {
    name: "starcoder2",
    models: "StarCoder 2 3B to 15B, Granite Code 20B",
    positions: Positions::Rotary(Pairing::Halves),
    ..GPT2
};

pub(super) const CODESHELL: ArchSpec =
    ArchSpec { name: "codeshell", models: "CodeShell 7B", ..STARCODER2 };

/// Whether attention and feed-forward block are parallel depends on the file.
pub(super) const GPTNEOX: ArchSpec = ArchSpec {
    name: "gptneox",
    models: "GPT-NeoX, Pythia, RedPajama",
    block: BlockKind::ParallelByKey,
    ..STARCODER2
};

/// Attention and feed-forward block share a norm.
pub(super) const PHI2: ArchSpec =
    ArchSpec { name: "phi2", models: "Phi 1, 1.5 and 2", block: BlockKind::Parallel, ..STARCODER2 };

/// ALiBi instead of positions; some files limit queries, keys and values, or normalise queries and
/// keys as whole rows.
pub(super) const MPT: ArchSpec = ArchSpec {
    name: "mpt",
    models: "MPT 7B and 30B",
    qk_norm: Some(QkNorm { over: NormSpan::Row, after_rope: false, optional: true }),
    positions: Positions::None,
    alibi: Alibi::Key,
    clamps: true,
    ..GPT2
};

/// ALiBi, and a norm of the embeddings.
pub(super) const BLOOM: ArchSpec = ArchSpec {
    name: "bloom",
    models: "BLOOM and BLOOMZ",
    positions: Positions::None,
    alibi: Alibi::Fixed(8.0),
    embedding_norm: EmbeddingNorm::Weights,
    ..GPT2
};

/// ALiBi with a gate; scores are divided by the size of a head.
pub(super) const JAIS: ArchSpec = ArchSpec {
    name: "jais",
    models: "Jais 13B and 30B",
    positions: Positions::None,
    alibi: Alibi::Key,
    ffn: FfnKind::Gated,
    activation: Activation::Silu,
    attn_scale: ScoreScale::PerHeadSize,
    ..GPT2
};
