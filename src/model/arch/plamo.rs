//! PLaMo 1 to 3.

use hal::op::Pairing;

use super::llama::LLAMA;
use super::mamba::Sizes;
use crate::{
    Affine, ArchSpec, BlockKind, Error, GlobalLayers, LayerReader, Mamba1, Mamba1Sizes, Mixer,
    NormSpan, Positions, QkNorm,
};

/// Attention and feed-forward block share a norm.
pub(super) const PLAMO: ArchSpec = ArchSpec {
    name: "plamo",
    models: "PLaMo 13B",
    block: BlockKind::Parallel,
    positions: Positions::Rotary(Pairing::Halves),
    windows: false,
    ..LLAMA
};

/// Mamba blocks in layers without KV heads, attention in the others.
pub(super) const PLAMO2: ArchSpec = ArchSpec {
    name: "plamo2",
    models: "PLaMo 2 1B, 2B and 8B",
    block: BlockKind::Sandwich,
    mixer: plamo2,
    qk_norm: Some(QkNorm { over: NormSpan::HeadWeights, ..QkNorm::HEADS }),
    ..PLAMO
};

/// A sliding window in all layers but every eighth one.
pub(super) const PLAMO3: ArchSpec = ArchSpec {
    name: "plamo3",
    models: "PLaMo 3 2B to 31B",
    block: BlockKind::Sandwich,
    qk_norm: Some(QkNorm::HEADS),
    windows: true,
    global_layers: Some(GlobalLayers { period: 8, first: false }),
    ..PLAMO
};

fn plamo2(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    if layer.sizes().n_head_kv > 0 {
        return layer.attention();
    }
    let keys = layer.keys();
    // The key of the rank has the number of heads.
    let Sizes { d_inner, d_state, kernel_size, rank: n_head } = Sizes::read(layer)?;
    if !d_inner.is_multiple_of(n_head) {
        let expected = format!("a divisor of the inner size {d_inner}");
        return Err(keys.wrong_key("ssm.time_step_rank", expected, n_head));
    }
    let (n_embd, d_head) = (layer.n_embd(), d_inner / n_head);
    // Files have no key for the rank of the step sizes.
    let rank = (n_embd / 16).max(64);
    let norms = Sizes { d_inner, d_state, kernel_size, rank }.norms(layer)?;
    // Rows of `ssm_in` for each head: z, x.
    let half = |half: usize| {
        let first = move |head: usize| (2 * head + half) * d_head;
        let ranges = (0..n_head).map(|head| first(head)..first(head) + d_head);
        layer.affine_parts("ssm_in", 2 * d_inner, n_embd, ranges)
    };
    // Rows of `ssm_x`, in order: b, c, dt.
    let n_x = 2 * d_state + rank;
    let part = |range| layer.affine_rows("ssm_x", n_x, d_inner, range);
    let conv = layer.f32_rows("ssm_conv1d.weight", d_inner, kernel_size, 0..d_inner)?;
    Ok(Mixer::Mamba1(Mamba1 {
        sizes: Mamba1Sizes { n_head, d_inner, d_state },
        z: half(0)?,
        x: half(1)?,
        x_conv: Affine { w: conv, bias: None },
        b: part(0..d_state)?,
        c: part(d_state..2 * d_state)?,
        dt_in: part(2 * d_state..n_x)?,
        norms: Some(norms),
        dt: layer.matrix("ssm_dt.weight", n_head, rank)?,
        dt_bias: layer.f32_row("ssm_dt.bias", 1, n_head)?,
        a: layer.f32_row("ssm_a", 1, n_head)?,
        d: layer.f32_row("ssm_d", 1, n_head)?,
        out: layer.affine("ssm_out", n_embd, d_inner)?,
    }))
}
