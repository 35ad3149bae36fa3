//! Qwen 3.5 and Qwen3-Next: gated attention in every fourth layer, a gated delta net in the others.

use std::ops::Range;

use hal::op::{DecayCurve, GateActivation, HeadMapping, Pairing};

use super::llama::LLAMA;
use super::sections::interleaved;
use crate::{
    Affine, ArchSpec, Error, GateKind, GatedDelta, GatedDeltaSizes, LayerReader, Mixer, Positions,
    QkNorm,
};

pub(super) const QWEN35: ArchSpec = ArchSpec {
    name: "qwen35",
    models: "Qwen 3.5 and 3.6, dense",
    mixer,
    qk_norm: Some(QkNorm::HEADS),
    gate: GateKind::Joint,
    positions: Positions::Rotary(Pairing::Halves),
    windows: false,
    ffn_norm: "post_attention_norm",
    ..LLAMA
};

/// Qwen 3.5 with experts and a gated shared expert.
pub(super) const QWEN35MOE: ArchSpec = ArchSpec {
    name: "qwen35moe",
    models: "Qwen 3.5 and 3.6 with experts (35B-A3B, 122B-A10B)",
    ..QWEN35
};

pub(super) const QWEN3NEXT: ArchSpec = ArchSpec {
    name: "qwen3next",
    models: "Qwen3-Next, Qwen3-Coder-Next (80B-A3B)",
    mixer: next_mixer,
    ..QWEN35
};

/// Default distance between layers with attention, in layers.
const ATTENTION_INTERVAL: usize = 4;

pub(super) fn mixer(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    if is_recurrent(layer)? {
        let (sizes, kernel_size) = sizes(layer, HeadMapping::Modulo)?;
        let inputs = separate_inputs(layer, &sizes)?;
        return Ok(Mixer::GatedDelta(gated_delta(layer, sizes, kernel_size, inputs)?));
    }
    interleaved(layer)
}

fn next_mixer(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    if !is_recurrent(layer)? {
        return layer.attention();
    }
    let (sizes, kernel_size) = sizes(layer, HeadMapping::Grouped)?;
    let inputs = grouped_inputs(layer, &sizes)?;
    Ok(Mixer::GatedDelta(gated_delta(layer, sizes, kernel_size, inputs)?))
}

fn is_recurrent(layer: &LayerReader<'_>) -> Result<bool, Error> {
    const LIST: &str = "attention.recurrent_layers";
    if let Some(list) = layer.keys().flags(LIST, layer.n_listed())? {
        return Ok(list[layer.index()]);
    }
    let interval = layer.keys().count("full_attention_interval")?;
    Ok(!(layer.index() + 1).is_multiple_of(interval.unwrap_or(ATTENTION_INTERVAL)))
}

/// Reads the sizes of a gated delta net, and the kernel size of its convolution.
fn sizes(layer: &LayerReader<'_>, heads: HeadMapping) -> Result<(GatedDeltaSizes, usize), Error> {
    let keys = layer.keys();
    let d = keys.need("ssm.state_size", "the head size of the gated delta net")?;
    let n_head_k = keys.need("ssm.group_count", "the number of key heads")?;
    let n_head_v = keys.need("ssm.time_step_rank", "the number of value heads")?;
    let kernel_size = keys.need("ssm.conv_kernel", "the kernel size of the convolution")?;
    let inner = keys.need("ssm.inner_size", "the total size of the value heads")?;
    if !n_head_v.is_multiple_of(n_head_k) {
        let expected = format!("a multiple of the {n_head_k} key heads");
        return Err(keys.wrong_key("ssm.time_step_rank", expected, n_head_v));
    }
    if Some(inner) != n_head_v.checked_mul(d) {
        return Err(keys.wrong_key(
            "ssm.inner_size",
            format!("{n_head_v} heads of {d} values"),
            inner,
        ));
    }
    Ok((GatedDeltaSizes { n_head_k, n_head_v, d_k: d, d_v: d, heads }, kernel_size))
}

/// The matrices that read a layer's input.
struct Inputs {
    q: Affine,
    k: Affine,
    v: Affine,
    z: Affine,
    alpha: Affine,
    beta: Affine,
}

/// Reads queries, keys and values from one matrix (`attn_qkv`).
pub(super) fn joint_qkv(
    layer: &LayerReader<'_>,
    sizes: &GatedDeltaSizes,
) -> Result<[Affine; 3], Error> {
    let [q, k, v] = ranges(sizes);
    let all = v.end;
    let part = |range| layer.affine_rows("attn_qkv", all, layer.n_embd(), range);
    Ok([part(q)?, part(k)?, part(v)?])
}

fn separate_inputs(layer: &LayerReader<'_>, sizes: &GatedDeltaSizes) -> Result<Inputs, Error> {
    let (n_embd, n_head) = (layer.n_embd(), sizes.n_head_v);
    let [q, k, v] = joint_qkv(layer, sizes)?;
    Ok(Inputs {
        q,
        k,
        v,
        z: layer.affine("attn_gate", sizes.n_v(), n_embd)?,
        alpha: layer.affine("ssm_alpha", n_head, n_embd)?,
        beta: layer.affine("ssm_beta", n_head, n_embd)?,
    })
}

/// Reads matrices whose rows are grouped by key head: write strengths and decays (`ssm_ba`), and in
/// older files queries, keys, values and gates (`ssm_in`).
fn grouped_inputs(layer: &LayerReader<'_>, sizes: &GatedDeltaSizes) -> Result<Inputs, Error> {
    let &GatedDeltaSizes { n_head_k, n_head_v, d_k, d_v, .. } = sizes;
    let n_embd = layer.n_embd();
    let per_head = n_head_v / n_head_k;
    let of_heads = |part: &str, width: usize, columns: Range<usize>| {
        let starts = (0..n_head_k).map(|head| head * width);
        let parts = starts.map(|start| start + columns.start..start + columns.end);
        layer.affine_parts(part, n_head_k * width, n_embd, parts)
    };
    let values = per_head * d_v;
    let width = 2 * d_k + 2 * values;
    let [q, k, v, z] = if layer.has("attn_qkv.weight") {
        layer.skip("ssm_in.weight");
        let [q, k, v] = joint_qkv(layer, sizes)?;
        [q, k, v, layer.affine("attn_gate", sizes.n_v(), n_embd)?]
    } else {
        [
            of_heads("ssm_in", width, 0..d_k)?,
            of_heads("ssm_in", width, d_k..2 * d_k)?,
            of_heads("ssm_in", width, 2 * d_k..2 * d_k + values)?,
            of_heads("ssm_in", width, 2 * d_k + values..width)?,
        ]
    };
    Ok(Inputs {
        q,
        k,
        v,
        z,
        alpha: of_heads("ssm_ba", 2 * per_head, per_head..2 * per_head)?,
        beta: of_heads("ssm_ba", 2 * per_head, 0..per_head)?,
    })
}

/// Rows of queries, keys and values, in the order of the convolution's channels. Each size is at
/// most 2^24, so these products do not overflow. The shapes of the tensors limit the sizes further.
fn ranges(sizes: &GatedDeltaSizes) -> [Range<usize>; 3] {
    let (n_k, n_v) = (sizes.n_k(), sizes.n_v());
    [0..n_k, n_k..2 * n_k, 2 * n_k..2 * n_k + n_v]
}

fn gated_delta(
    layer: &LayerReader<'_>,
    sizes: GatedDeltaSizes,
    kernel_size: usize,
    inputs: Inputs,
) -> Result<GatedDelta, Error> {
    let ranges = ranges(&sizes);
    let all = ranges[2].end;
    let filter = |range| layer.f32_rows("ssm_conv1d.weight", all, kernel_size, range);
    let [q_conv, k_conv, v_conv] = ranges.map(filter);
    let vector = |part: &str| layer.f32_rows(part, 1, sizes.n_head_v, 0..1);
    let Inputs { q, k, v, z, alpha, beta } = inputs;
    Ok(GatedDelta {
        q,
        k,
        v,
        q_conv: q_conv?,
        k_conv: k_conv?,
        v_conv: v_conv?,
        unit: layer.constant((sizes.d_k as f32).sqrt().recip(), sizes.d_k),
        curve: DecayCurve::Softplus,
        gate: GateActivation::Silu,
        alpha_in: None,
        alpha,
        beta,
        dt_bias: vector("ssm_dt.bias")?,
        a: vector("ssm_a")?,
        norm: layer.norm("ssm_norm", sizes.d_v)?,
        z_in: None,
        z,
        out: layer.affine("ssm_out", layer.n_embd(), sizes.n_v())?,
        sizes,
    })
}
