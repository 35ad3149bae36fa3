//! Encoders with norms before each half of a layer, as in decoders.

use hal::op::{Activation, NormKind, Pairing};

use super::llama::LLAMA;
use super::llama_like::PLAIN;
use crate::{ArchSpec, EmbeddingNorm, GlobalLayers, Positions, RankActivation};

/// GEGLU. A sliding window in two of three layers, with another RoPE base.
pub(super) const MODERN_BERT: ArchSpec = ArchSpec {
    name: "modern-bert",
    models: "ModernBERT, GTE ModernBERT, Granite Embedding R2",
    encoder: true,
    norm: NormKind::Layer,
    positions: Positions::Rotary(Pairing::Halves),
    global_layers: Some(GlobalLayers { period: 3, first: true }),
    embedding_norm: EmbeddingNorm::Weights,
    activation: Activation::Gelu,
    rank_activation: RankActivation::Gelu,
    ..LLAMA
};

pub(super) const NEO_BERT: ArchSpec = ArchSpec {
    name: "neo-bert",
    models: "NeoBERT",
    encoder: true,
    output_norm: "enc.output_norm",
    ..PLAIN
};

pub(super) const EUROBERT: ArchSpec = ArchSpec {
    name: "eurobert",
    models: "EuroBERT 210M to 2.1B",
    encoder: true,
    positions: Positions::Rotary(Pairing::Halves),
    ..PLAIN
};

/// Llama whose tokens attend to the whole text.
pub(super) const LLAMA_EMBED: ArchSpec =
    ArchSpec { name: "llama-embed", models: "Llama Embed Nemotron 8B", encoder: true, ..PLAIN };
