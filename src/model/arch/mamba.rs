//! Mamba-1: each layer is one Mamba-1 block, without attention or a feed-forward block. Jamba has
//! Mamba-1 blocks in most layers, and attention without RoPE in the others.

use std::ops::Range;

use super::llama::LLAMA;
use super::llama_like::PLAIN;
use crate::{
    ArchSpec, Error, LayerReader, Mamba1, Mamba1Sizes, Mixer, Positions, Routing, ScanNorms,
};

pub(super) const MAMBA: ArchSpec = ArchSpec {
    name: "mamba",
    models: "Mamba 130M to 2.8B, Falcon Mamba 7B",
    mixer: mamba,
    attention: false,
    positions: Positions::None,
    feed_forward: false,
    ..LLAMA
};

/// Experts in some layers.
pub(super) const JAMBA: ArchSpec = ArchSpec {
    name: "jamba",
    models: "Jamba 1.5 and 2, Jamba Reasoning 3B",
    mixer: jamba,
    positions: Positions::None,
    routing: Routing { renormalise: false, ..LLAMA.routing },
    ..PLAIN
};

/// The sizes of a block, besides its number of heads.
pub(super) struct Sizes {
    pub(super) d_inner: usize,
    pub(super) d_state: usize,
    pub(super) kernel_size: usize,
    /// The key `ssm.time_step_rank`.
    pub(super) rank: usize,
}

fn mamba(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    const NORMS: &str = "ssm.dt_b_c_rms";
    let keys = layer.keys();
    let sizes = Sizes::read(layer)?;
    let normed = keys.metadata.bool(&keys.name(NORMS))?.unwrap_or(false);
    // Norms without weights (Falcon Mamba).
    let ones = |n| crate::Affine { w: layer.constant(1.0, n), bias: None };
    let norms = normed.then(|| ScanNorms {
        dt: ones(sizes.rank),
        b: ones(sizes.d_state),
        c: ones(sizes.d_state),
    });
    mamba1(layer, &sizes, norms)
}

/// Reads a Mamba-1 block in a layer without KV heads, and attention in the others.
fn jamba(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    if layer.sizes().n_head_kv > 0 {
        return layer.attention();
    }
    let sizes = Sizes::read(layer)?;
    let norms = sizes.norms(layer)?;
    mamba1(layer, &sizes, Some(norms))
}

impl Sizes {
    pub(super) fn read(layer: &LayerReader<'_>) -> Result<Sizes, Error> {
        let keys = layer.keys();
        Ok(Sizes {
            d_inner: keys.need("ssm.inner_size", "the number of channels")?,
            d_state: keys.need("ssm.state_size", "the state size of a channel")?,
            kernel_size: keys.need("ssm.conv_kernel", "the kernel size of the convolution")?,
            rank: keys.need("ssm.time_step_rank", "the rank of the step sizes")?,
        })
    }

    /// Reads the norms of the scan's inputs.
    pub(super) fn norms(&self, layer: &LayerReader<'_>) -> Result<ScanNorms, Error> {
        Ok(ScanNorms {
            dt: layer.norm("ssm_dt_norm", self.rank)?,
            b: layer.norm("ssm_b_norm", self.d_state)?,
            c: layer.norm("ssm_c_norm", self.d_state)?,
        })
    }
}

/// Reads a block in which each channel is a head.
fn mamba1(
    layer: &LayerReader<'_>,
    sizes: &Sizes,
    norms: Option<ScanNorms>,
) -> Result<Mixer, Error> {
    let &Sizes { d_inner, d_state, kernel_size, rank } = sizes;
    let n_embd = layer.n_embd();
    let input = |range: Range<usize>| layer.affine_rows("ssm_in", 2 * d_inner, n_embd, range);
    // Rows of `ssm_x`, in order: dt, b, c. Each size is at most 2^24.
    let n_x = rank + 2 * d_state;
    let part = |range: Range<usize>| layer.affine_rows("ssm_x", n_x, d_inner, range);
    Ok(Mixer::Mamba1(Mamba1 {
        sizes: Mamba1Sizes { n_head: d_inner, d_inner, d_state },
        x: input(0..d_inner)?,
        z: input(d_inner..2 * d_inner)?,
        x_conv: layer.f32_affine_rows("ssm_conv1d", d_inner, kernel_size, 0..d_inner)?,
        dt_in: part(0..rank)?,
        b: part(rank..rank + d_state)?,
        c: part(rank + d_state..n_x)?,
        norms,
        dt: layer.matrix("ssm_dt.weight", d_inner, rank)?,
        dt_bias: layer.f32_row("ssm_dt.bias", 1, d_inner)?,
        a: layer.f32_row("ssm_a", d_inner, d_state)?,
        d: layer.f32_row("ssm_d", 1, d_inner)?,
        out: layer.affine("ssm_out", n_embd, d_inner)?,
    }))
}
