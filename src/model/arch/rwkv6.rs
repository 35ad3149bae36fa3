//! RWKV-6, and QRWKV: Qwen 2's feed-forward blocks after a time mix like that of RWKV-6.

use hal::op::GateActivation;

use super::llama::LLAMA;
use super::rwkv7::{RWKV7, head_size, shift};
use crate::reader::{MatrixStack, f32_matrix};
use crate::rwkv6::{ChannelMix, GroupNorm, Mixed, Rwkv6};
use crate::{Affine, ArchSpec, Error, LayerReader, Mixer, Positions, Shifted};

pub(super) const RWKV6: ArchSpec = ArchSpec {
    name: "rwkv6",
    models: "RWKV-6 World, 1.6B to 14B (squared ReLU)",
    mixer: rwkv6,
    halves: true,
    ..RWKV7
};

pub(super) const RWKV6QWEN2: ArchSpec = ArchSpec {
    name: "rwkv6qwen2",
    models: "QRWKV6 7B and 32B",
    mixer: qrwkv,
    attention: false,
    positions: Positions::None,
    ..LLAMA
};

/// Products with a share of their own, in the order of the file's tensors: w, k, v, r, g.
const N_MIXED: usize = 5;
const SHARES: [&str; N_MIXED] = ["w", "k", "v", "r", "g"];

fn rwkv6(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    let n = layer.n_embd();
    let d_head = head_size(layer, 2)?;
    let by = time_mix(layer, [d_head, n / d_head])?;
    let receptance = Shifted {
        shift: shift(&layer.flat("channel_mix_lerp_r.weight", n)?),
        by: layer.affine("channel_mix_receptance", n, n)?,
    };
    Ok(Mixer::Rwkv6(Box::new(Rwkv6 {
        first: Some(f32_matrix(1, &layer.flat("time_mix_first.weight", n)?)),
        norm: Some(GroupNorm {
            weight: layer.f32_row("time_mix_ln.weight", 1, n)?,
            bias: layer.f32_row("time_mix_ln.bias", 1, n)?,
        }),
        channels: Some(ChannelMix {
            shift: shift(&layer.flat("channel_mix_lerp_k.weight", n)?),
            r: receptance,
        }),
        ..by
    })))
}

fn qrwkv(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    const HEADS: &str = "attention.head_count_kv";
    let (n, d_head) = (layer.n_embd(), head_size(layer, 1)?);
    let n_head = n / d_head;
    let n_head_kv = layer.keys().count(HEADS)?.unwrap_or(n_head);
    if n_head_kv == 0 || !n_head.is_multiple_of(n_head_kv) {
        let expected = format!("a divisor of the {n_head} heads");
        return Err(layer.keys().wrong_key(HEADS, expected, n_head_kv));
    }
    let by = time_mix(layer, [d_head, n_head_kv])?;
    let scale = layer.constant((d_head as f32).sqrt().recip(), 1);
    Ok(Mixer::Rwkv6(Box::new(Rwkv6 {
        gate_activation: GateActivation::Sigmoid,
        scale: Some(scale),
        ..by
    })))
}

/// The parts that all time mixes have.
fn time_mix(layer: &LayerReader<'_>, [d_head, n_head_kv]: [usize; 2]) -> Result<Rwkv6, Error> {
    let n = layer.n_embd();
    let rank = layer.keys().need("time_mix_extra_dim", "the rank of the token shifts")?;
    let means = if layer.has("time_mix_lerp_fused.weight") {
        layer.flat("time_mix_lerp_fused.weight", N_MIXED * n)?
    } else {
        let each = SHARES.map(|part| layer.flat(&format!("time_mix_lerp_{part}.weight"), n));
        each.into_iter().collect::<Result<Vec<_>, _>>()?.concat()
    };
    let mixed = |index: usize, part: &str, n_out: usize| {
        let rows = index * rank..(index + 1) * rank;
        let low = layer.affine_rows("time_mix_w1", N_MIXED * rank, n, rows)?;
        let stack = MatrixStack { n: N_MIXED, rows: n, cols: rank };
        let w = layer.stacked("time_mix_w2.weight", stack, index)?;
        let mean = f32_matrix(1, &means[index * n..][..n]);
        let share = Affine { w, bias: Some(mean) };
        Ok::<_, Error>(Mixed { low, share, by: layer.affine(part, n_out, n)? })
    };
    let w_rank = layer.n_rows("time_mix_decay_w1.weight", n)?;
    let n_kv = n_head_kv * d_head;
    let subtract: Vec<f32> = [1.0, -1.0].repeat(n);
    Ok(Rwkv6 {
        n_head: n / d_head,
        n_head_kv,
        d_head,
        difference: f32_matrix(n, &subtract),
        shift: shift(&layer.flat("time_mix_lerp_x.weight", n)?),
        w: mixed(0, "time_mix_decay_w1", w_rank)?,
        w_out: Affine {
            bias: Some(f32_matrix(1, &layer.flat("time_mix_decay.weight", n)?)),
            ..layer.affine("time_mix_decay_w2", n, w_rank)?
        },
        k: mixed(1, "time_mix_key", n_kv)?,
        v: mixed(2, "time_mix_value", n_kv)?,
        r: mixed(3, "time_mix_receptance", n)?,
        gate: mixed(4, "time_mix_gate", n)?,
        gate_activation: GateActivation::Silu,
        first: None,
        norm: None,
        scale: None,
        out: layer.affine("time_mix_output", n, n)?,
        channels: None,
    })
}
