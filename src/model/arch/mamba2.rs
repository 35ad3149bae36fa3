//! Mamba-2: each layer is one Mamba-2 block, without attention or a feed-forward block. Other
//! families read their Mamba-2 blocks with [`mamba2`].

use std::ops::Range;

use super::llama::LLAMA;
use crate::{ArchSpec, Error, LayerReader, Mamba2, Mamba2Sizes, Mixer, Positions};

pub(super) const MAMBA2: ArchSpec = ArchSpec {
    name: "mamba2",
    models: "Mamba-2 130M to 2.7B, Mamba-Codestral 7B",
    mixer: mamba2,
    attention: false,
    positions: Positions::None,
    feed_forward: false,
    ..LLAMA
};

/// Reads a block whose output is normalised.
pub(super) fn mamba2(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    block(layer, true).map(Mixer::Mamba2)
}

/// Reads a block, whose output is normalised unless the file lacks the norm and `needs_norm` is
/// false.
pub(super) fn block(layer: &LayerReader<'_>, needs_norm: bool) -> Result<Mamba2, Error> {
    let (sizes, kernel_size) = sizes(layer)?;
    let Mamba2Sizes { n_head, n_group, d_inner, .. } = sizes;
    let (n_embd, n_b) = (layer.n_embd(), sizes.n_b());
    // Rows of `ssm_in`, in order: z, x, b, c, dt. The convolution covers x, b and c.
    let (n_conv, n_in) = (d_inner + 2 * n_b, 2 * d_inner + 2 * n_b + n_head);
    let part = |range: Range<usize>| layer.affine_rows("ssm_in", n_in, n_embd, range);
    let filter = |range| layer.f32_affine_rows("ssm_conv1d", n_conv, kernel_size, range);
    let [x, b, c] =
        [0..d_inner, d_inner..d_inner + n_b, d_inner + n_b..n_conv].map(|range: Range<usize>| {
            let rows = d_inner + range.start..d_inner + range.end;
            Ok::<_, Error>((part(rows)?, filter(range)?))
        });
    let ((x, x_conv), (b, b_conv), (c, c_conv)) = (x?, b?, c?);
    let norm = "ssm_norm.weight";
    let has_norm = needs_norm || layer.has(norm);
    Ok(Mamba2 {
        sizes,
        z: part(0..d_inner)?,
        x,
        b,
        c,
        dt: part(d_inner + n_conv..n_in)?,
        x_conv,
        b_conv,
        c_conv,
        dt_bias: layer.f32_row("ssm_dt.bias", 1, n_head)?,
        a: layer.f32_row("ssm_a", n_head, 1)?,
        d: layer.f32_row("ssm_d", n_head, 1)?,
        norm: has_norm.then(|| layer.f32_row(norm, n_group, d_inner / n_group)).transpose()?,
        out: layer.affine("ssm_out", n_embd, d_inner)?,
    })
}

/// Reads the sizes of a block, and the kernel size of its convolution.
fn sizes(layer: &LayerReader<'_>) -> Result<(Mamba2Sizes, usize), Error> {
    let keys = layer.keys();
    let d_inner = keys.need("ssm.inner_size", "the total size of all heads")?;
    let d_state = keys.need("ssm.state_size", "the state size of a head")?;
    let n_head = keys.need("ssm.time_step_rank", "the number of heads")?;
    let n_group = keys.need("ssm.group_count", "the number of groups of heads")?;
    let kernel_size = keys.need("ssm.conv_kernel", "the kernel size of the convolution")?;
    for (key, n) in [("ssm.time_step_rank", n_head), ("ssm.group_count", n_group)] {
        if !d_inner.is_multiple_of(n) {
            return Err(keys.wrong_key(key, format!("a divisor of the inner size {d_inner}"), n));
        }
    }
    if !n_head.is_multiple_of(n_group) {
        let expected = format!("a divisor of the {n_head} heads");
        return Err(keys.wrong_key("ssm.group_count", expected, n_group));
    }
    // Each size is at most 2^24, so the sum or product of two sizes does not overflow. The shapes
    // of the tensors limit the sizes further.
    Ok((Mamba2Sizes { n_head, n_group, d_inner, d_state }, kernel_size))
}
