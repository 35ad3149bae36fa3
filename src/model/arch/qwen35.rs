//! Qwen 3.5: gated attention in every fourth layer, a gated delta net in the others.

use std::sync::Arc;

use hal::op::{HeadMapping, Pairing};

use super::llama::LLAMA;
use crate::{
    ArchSpec, Error, GatedDelta, GatedDeltaSizes, LayerReader, Mixer, Positions, RopeTable,
};

pub(super) const QWEN35: ArchSpec = ArchSpec {
    name: "qwen35",
    models: "Qwen 3.5 and 3.6, dense",
    mixer,
    qk_norm: true,
    gated_attention: true,
    positions: Positions::Rotary(Pairing::Halves),
    ffn_norm: "post_attention_norm",
    ..LLAMA
};

/// Default distance between layers with attention, in layers.
const ATTENTION_INTERVAL: usize = 4;

fn mixer(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    if is_recurrent(layer)? {
        return Ok(Mixer::GatedDelta(gated_delta(layer)?));
    }
    let mut mixer = layer.attention()?;
    if let (Mixer::Attention(attention), Some(rotates)) = (&mut mixer, sections(layer)?) {
        let table = attention.rope.take();
        attention.rope = table.map(|table| Arc::new(RopeTable::clone(&table).mask_pairs(rotates)));
    }
    Ok(mixer)
}

fn is_recurrent(layer: &LayerReader<'_>) -> Result<bool, Error> {
    const LIST: &str = "attention.recurrent_layers";
    if let Some(list) = layer.keys().flags(LIST, layer.n_listed())? {
        return Ok(list[layer.index()]);
    }
    let interval = layer.keys().count("full_attention_interval")?;
    Ok(!(layer.index() + 1).is_multiple_of(interval.unwrap_or(ATTENTION_INTERVAL)))
}

/// The pairs of a head that RoPE is applied to; `None` if the file has no sections, and RoPE is
/// applied to all pairs. The sections in the file divide the pairs between four position ids; in
/// text, three of these are equal and the fourth is 0. Source: interleaved M-RoPE of Qwen3-VL.
fn sections(layer: &LayerReader<'_>) -> Result<Option<impl Fn(usize) -> bool>, Error> {
    const KEY: &str = "rope.dimension_sections";
    let keys = layer.keys();
    let Some(list) = keys.metadata.u32_array(&keys.name(KEY))? else { return Ok(None) };
    let sections: Vec<usize> = list.iter().map(|&n| n as usize).collect();
    let most = layer.sizes().d_head;
    let total = sections.iter().try_fold(0usize, |sum, &n| sum.checked_add(n));
    match (sections.len(), total) {
        (4, Some(total)) if (1..=most).contains(&total) => Ok(Some(move |pair: usize| {
            let at = pair % total;
            at < 3 * sections[at % 3]
        })),
        (n, total) => {
            let expected = format!("four section sizes, 1 to {most} in total");
            let found = total.map_or("over 2^64".to_owned(), |total| total.to_string());
            Err(keys.wrong_key(KEY, expected, format!("{n} sizes, {found} in total")))
        }
    }
}

fn gated_delta(layer: &LayerReader<'_>) -> Result<GatedDelta, Error> {
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
    // Each size is at most 2^24, so these products do not overflow. The shapes of the tensors limit
    // the sizes further.
    let (n_k, n_v, n_embd) = (n_head_k * d, n_head_v * d, layer.n_embd());
    let all = 2 * n_k + n_v;
    let ranges = [0..n_k, n_k..2 * n_k, 2 * n_k..all];
    let part = |range| layer.affine_rows("attn_qkv", all, n_embd, range);
    let filter = |range| layer.f32_rows("ssm_conv1d.weight", all, kernel_size, range);
    let [q, k, v] = ranges.clone().map(part);
    let [q_conv, k_conv, v_conv] = ranges.map(filter);
    let vector = |part: &str| layer.f32_rows(part, 1, n_head_v, 0..1);
    Ok(GatedDelta {
        sizes: GatedDeltaSizes { n_head_k, n_head_v, d_k: d, d_v: d, heads: HeadMapping::Modulo },
        q: q?,
        k: k?,
        v: v?,
        q_conv: q_conv?,
        k_conv: k_conv?,
        v_conv: v_conv?,
        unit: layer.constant((d as f32).sqrt().recip(), d),
        alpha: layer.affine("ssm_alpha", n_head_v, n_embd)?,
        beta: layer.affine("ssm_beta", n_head_v, n_embd)?,
        dt_bias: vector("ssm_dt.bias")?,
        a: vector("ssm_a")?,
        norm: layer.norm("ssm_norm", d)?,
        z: layer.affine("attn_gate", n_v, n_embd)?,
        out: layer.affine("ssm_out", n_embd, n_v)?,
    })
}
