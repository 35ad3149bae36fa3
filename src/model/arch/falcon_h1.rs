//! Falcon H1: each layer has attention and a Mamba-2 block, which read the same input and whose
//! outputs are added.

use hal::op::Pairing;

use super::llama_like::PLAIN;
use super::mamba2::block;
use crate::{ArchSpec, Error, LayerReader, Mixer, Positions};

pub(super) const FALCON_H1: ArchSpec = ArchSpec {
    name: "falcon-h1",
    models: "Falcon H1 0.5B to 34B",
    mixer: both,
    positions: Positions::Rotary(Pairing::Halves),
    ..PLAIN
};

fn both(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    let Mixer::Attention(attention) = layer.attention()? else {
        return Err(layer.keys().wrong_key("attention.head_count", "at least 1 in every layer", 0));
    };
    Ok(Mixer::Parallel { attention, mamba: Box::new(block(layer, false)?) })
}
