//! Gemma 4: sliding-window and global layers have different head sizes, the last layers share an
//! earlier layer's KV cache, tokens have per-layer embeddings, and experts run in parallel with a
//! dense block.

use super::gemma::GEMMA3;
use crate::{ArchSpec, DenseBeside, Error, LayerReader, Mixer, RouterInput, Routing, ScoreScale};

pub(super) const GEMMA4: ArchSpec = ArchSpec {
    name: "gemma4",
    models: "Gemma 4 (text): 31B, E2B and E4B, 26B-A4B",
    mixer,
    v_norm: true,
    keys_as_values: true,
    attn_scale: ScoreScale::Number(1.0),
    // The list in the file says which layers use global attention.
    global_layers: None,
    // llama.cpp's value for files without the key.
    logit_softcap: 30.0,
    width_scaled: None,
    dense_beside: DenseBeside::Normed,
    routing: Routing { input: RouterInput::Residual, ..GEMMA3.routing },
    ..GEMMA3
};

fn mixer(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    let keys = layer.keys();
    if keys.metadata.get(&keys.name(PATTERN)).is_none_or(|value| value.as_array().is_none()) {
        return Err(keys.missing(PATTERN, "a list that says which layers use a sliding window"));
    }
    keys.need("attention.sliding_window", "the size of the sliding window")?;
    layer.attention()
}
