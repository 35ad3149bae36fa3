//! LFM2: gated short convolutions, and attention in the layers that have KV heads.

use hal::op::{Pairing, Scoring};

use super::llama::LLAMA;
use crate::{
    ArchSpec, Error, LayerReader, Mixer, Positions, QkNorm, Routing, RoutingKeys, ShortConv,
};

pub(super) const LFM2: ArchSpec = ArchSpec {
    name: "lfm2",
    models: "LFM2 230M to 2.6B",
    mixer,
    qk_norm: Some(QkNorm::HEADS),
    positions: Positions::Rotary(Pairing::Halves),
    output_norm: "token_embd_norm",
    ..LLAMA
};

/// The first layers are dense.
pub(super) const LFM2MOE: ArchSpec = ArchSpec {
    name: "lfm2moe",
    models: "LFM2 8B-A1B and 24B-A2B",
    windows: false,
    routing: Routing { scoring: Scoring::Sigmoid, keys: RoutingKeys::Scoring, ..LLAMA.routing },
    ..LFM2
};

fn mixer(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    if layer.sizes().n_head_kv > 0 {
        return layer.attention();
    }
    let kernel_size =
        layer.keys().need("shortconv.l_cache", "the kernel size of the convolution")?;
    let n = layer.n_embd();
    let part =
        |first: usize| layer.affine_rows("shortconv.in_proj", 3 * n, n, first * n..(first + 1) * n);
    Ok(Mixer::ShortConv(ShortConv {
        b: part(0)?,
        c: part(1)?,
        x: part(2)?,
        conv: layer.f32_rows("shortconv.conv.weight", n, kernel_size, 0..n)?,
        out: layer.affine("shortconv.out_proj", n, n)?,
    }))
}
