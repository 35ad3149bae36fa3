//! Hunyuan: queries and keys are normalised after RoPE; before RoPE in version 3.

use hal::op::{Pairing, Scoring};

use super::llama::LLAMA;
use super::sections::consecutive;
use crate::{ArchSpec, Error, LayerReader, Mixer, Positions, QkNorm, Routing, RoutingKeys};

pub(super) const HUNYUAN_DENSE: ArchSpec = ArchSpec {
    name: "hunyuan-dense",
    models: "Hunyuan 0.5B to 7B",
    mixer: |layer| without_alpha(layer, |layer| layer.attention()),
    qk_norm: Some(QkNorm { after_rope: true, ..QkNorm::HEADS }),
    positions: Positions::Rotary(Pairing::Halves),
    windows: false,
    ..LLAMA
};

pub(super) const HUNYUAN_VL: ArchSpec = ArchSpec {
    name: "hunyuan_vl",
    models: "HunyuanOCR (text)",
    mixer: |layer| without_alpha(layer, consecutive),
    ..HUNYUAN_DENSE
};

/// Hunyuan with experts and a shared expert.
pub(super) const HUNYUAN_MOE: ArchSpec =
    ArchSpec { name: "hunyuan-moe", models: "Hunyuan A13B", mixer: LLAMA.mixer, ..HUNYUAN_DENSE };

/// Hunyuan 3. The first layers are dense.
pub(super) const HY_V3: ArchSpec = ArchSpec {
    name: "hy_v3",
    models: "Hunyuan 3 (Hy3)",
    qk_norm: Some(QkNorm::HEADS),
    routing: Routing {
        scoring: Scoring::Sigmoid,
        renormalise: false,
        keys: RoutingKeys::Both,
        ..LLAMA.routing
    },
    ..HUNYUAN_MOE
};

/// Reads attention by `read`. A file whose RoPE base still has to be scaled is rejected.
fn without_alpha(
    layer: &LayerReader<'_>,
    read: fn(&LayerReader<'_>) -> Result<Mixer, Error>,
) -> Result<Mixer, Error> {
    const ALPHA: &str = "rope.scaling.alpha";
    match layer.keys().f32(ALPHA)? {
        Some(alpha) if alpha > 0.0 => {
            let expected = "no such key: rope.freq_base has the scaled base";
            Err(layer.keys().wrong_key(ALPHA, expected, alpha))
        }
        _ => read(layer),
    }
}
