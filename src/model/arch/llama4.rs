//! Llama 4: attention within chunks in most layers, and RoPE only in those; the weight of a token's
//! expert scales its input.

use hal::op::Scoring;

use super::llama::LLAMA;
use crate::attention::{HeadNorm, Temperature};
use crate::{Affine, ArchSpec, Error, GlobalLayers, LayerReader, Mixer, RotaryLayers, Routing};

/// Length of a chunk, and number of positions for which the queries of layers without RoPE have the
/// same factor. Files have keys for neither.
const CHUNK: usize = 8192;

pub(super) const LLAMA4: ArchSpec = ArchSpec {
    name: "llama4",
    models: "Llama 4 Scout and Maverick (text)",
    mixer,
    chunk: Some(CHUNK),
    global_layers: Some(GlobalLayers { period: 4, first: false }),
    rotary: RotaryLayers::AllBut { period: 4 },
    routing: Routing {
        scoring: Scoring::Sigmoid,
        renormalise: false,
        scales_input: true,
        ..LLAMA.routing
    },
    ..LLAMA
};

fn mixer(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    // The model with 128 experts does not normalise queries and keys; files do not say so.
    const N_EXPERT_PLAIN: u32 = 128;
    let keys = layer.keys();
    let is_chunked = keys.metadata.u32(&keys.name("attention.sliding_window"))? != Some(0);
    let plain = keys.metadata.u32(&keys.name("expert_count"))? == Some(N_EXPERT_PLAIN);
    let mut mixer = layer.attention()?;
    let Mixer::Attention(attention) = &mut mixer else { return Ok(mixer) };
    if !is_chunked {
        // All layers have RoPE then.
        attention.rope = Some(layer.global_rope());
    }
    if attention.rope.is_none() {
        let length = CHUNK as u32;
        attention.sizes.temperature = Some(Temperature { factor: 0.1, length, offset: 1 });
    } else if !plain {
        let width = attention.sizes.d_head;
        let norm = || HeadNorm { by: Affine { w: layer.constant(1.0, width), bias: None }, width };
        (attention.q_norm, attention.k_norm) = (Some(norm()), Some(norm()));
        attention.norms_after_rope = true;
    }
    Ok(mixer)
}
