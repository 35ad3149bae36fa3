//! Mistral 3 (a Llama with YaRN, whose queries grow with their position) and Mistral 4 (with latent attention and experts).

use super::deepseek::DEEPSEEK2;
use super::llama_like::PLAIN;
use crate::{ArchSpec, Error, LayerReader, Mixer, TemperatureKeys, YarnLog};

pub(super) const MISTRAL3: ArchSpec = ArchSpec {
    name: "mistral3",
    models: "Ministral 3 3B to 14B, Devstral 2",
    temperature: TemperatureKeys::Context,
    yarn_log: YarnLog::Ratio,
    ..PLAIN
};

pub(super) const MISTRAL4: ArchSpec = ArchSpec {
    name: "mistral4",
    models: "Mistral 4 with latent attention",
    mixer: latent,
    ..DEEPSEEK2
};

/// Reads latent attention with the one scale of YaRN that Mistral's models have.
fn latent(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    const LOG: &str = "rope.scaling.yarn_log_multiplier";
    match layer.keys().f32(LOG)? {
        None | Some(0.0 | 0.1) => layer.attention(),
        Some(scale) => Err(layer.keys().wrong_key(LOG, "0.1", scale)),
    }
}
