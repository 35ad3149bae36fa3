//! Families with Llama's layers under another name, or with one difference.

use hal::op::{Activation, GateActivation, NormKind, Pairing};

use super::llama::LLAMA;
use crate::attention_reader::alibi_slopes;
use crate::{
    Alibi, ArchSpec, Error, GateKind, LayerReader, Mixer, Positions, QkNorm, RotaryLayers,
};

/// The base of this file's families: Llama without a sliding window.
pub(super) const PLAIN: ArchSpec = ArchSpec { windows: false, ..LLAMA };

pub(super) const INTERNLM2: ArchSpec =
    ArchSpec { name: "internlm2", models: "InternLM 2 and 2.5", ..PLAIN };

pub(super) const XVERSE: ArchSpec =
    ArchSpec { name: "xverse", models: "XVERSE 7B, 13B and 65B", ..PLAIN };

/// RoPE is applied in all layers but every fourth one.
pub(super) const SMOLLM3: ArchSpec = ArchSpec {
    name: "smollm3",
    models: "SmolLM3 3B",
    rotary: RotaryLayers::AllBut { period: 4 },
    ..PLAIN
};

pub(super) const SEED_OSS: ArchSpec = ArchSpec {
    name: "seed_oss",
    models: "Seed-OSS 36B",
    positions: Positions::Rotary(Pairing::Halves),
    ffn_norm: "post_attention_norm",
    ..PLAIN
};

pub(super) const ORION: ArchSpec = ArchSpec {
    name: "orion",
    models: "Orion 14B",
    norm: NormKind::Layer,
    positions: Positions::Rotary(Pairing::Halves),
    ..PLAIN
};

pub(super) const PANGU: ArchSpec = ArchSpec {
    name: "pangu-embedded",
    models: "openPangu Embedded 1B and 7B",
    positions: Positions::Rotary(Pairing::Halves),
    ..PLAIN
};

/// Queries and keys are normalised after RoPE.
pub(super) const MAINCODER: ArchSpec = ArchSpec {
    name: "maincoder",
    models: "Maincoder 1B",
    qk_norm: Some(QkNorm { after_rope: true, ..QkNorm::HEADS }),
    ..PLAIN
};

/// Layers can lack attention or a feed-forward block.
pub(super) const DECI: ArchSpec = ArchSpec {
    name: "deci",
    models: "DeciLM, Llama-3.1-Nemotron 51B and Ultra 253B (without linear attention)",
    ..PLAIN
};

/// The 7B model has RoPE, the 13B model ALiBi.
pub(super) const BAICHUAN: ArchSpec =
    ArchSpec { name: "baichuan", models: "Baichuan 1 and 2", mixer: baichuan, ..PLAIN };

fn baichuan(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    // Files do not say how positions are encoded.
    let n_layer = layer.keys().need("block_count", "the number of layers")?;
    let mut mixer = layer.attention()?;
    if let (Mixer::Attention(attention), true) = (&mut mixer, n_layer != 32) {
        attention.rope = None;
        let slopes = || alibi_slopes(8.0, attention.sizes.n_head);
        attention.slopes = (n_layer == 40).then(slopes);
    }
    Ok(mixer)
}

/// ALiBi instead of positions.
pub(super) const REFACT: ArchSpec = ArchSpec {
    name: "refact",
    models: "Refact 1.6B",
    positions: Positions::None,
    alibi: Alibi::Fixed(8.0),
    ..PLAIN
};

/// Gated attention with a gate per head, and a sliding window in the layers that the file lists.
pub(super) const SPARK2_5: ArchSpec = ArchSpec {
    name: "spark2_5",
    models: "Spark 2.5",
    gate: GateKind::Matrix { activation: GateActivation::Sigmoid, optional: false },
    positions: Positions::Rotary(Pairing::Halves),
    activation: Activation::Gelu,
    ..LLAMA
};

/// Layers have different numbers of heads and neurons.
pub(super) const OPENELM: ArchSpec = ArchSpec {
    name: "openelm",
    models: "OpenELM 270M to 3B",
    qk_norm: Some(QkNorm::HEADS),
    positions: Positions::Rotary(Pairing::Halves),
    ..PLAIN
};

pub(super) const NANBEIGE: ArchSpec =
    ArchSpec { name: "nanbeige", models: "Nanbeige without loops", mixer: no_loops, ..PLAIN };

/// Reads attention. A model whose layers run several times is rejected.
fn no_loops(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    const LOOPS: &str = "num_loops";
    match layer.keys().count(LOOPS)? {
        None | Some(1) => layer.attention(),
        Some(n) => Err(layer.keys().wrong_key(LOOPS, "1: layers run once", n)),
    }
}

/// The weights that only images use are not run.
pub(super) const COGVLM: ArchSpec = ArchSpec {
    name: "cogvlm",
    models: "CogVLM 17B (text)",
    mixer: without_images,
    positions: Positions::Rotary(Pairing::Halves),
    ..PLAIN
};

fn without_images(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    for part in ["attn_qkv", "attn_output", "gate", "up", "down"] {
        layer.skip(&format!("vis_{part}.weight"));
    }
    layer.attention()
}
