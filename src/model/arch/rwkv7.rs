//! RWKV-7: a recurrence without attention, and feed-forward blocks with a squared ReLU. Both read a
//! mean of the token's input and of the input before it.

use hal::HostRows;
use hal::op::{Activation, FfnKind, NormKind};

use super::llama::LLAMA;
use crate::reader::f32_matrix;
use crate::rwkv7::{Gate, Rwkv7, Shifted};
use crate::{Affine, ArchSpec, EmbeddingNorm, Error, LayerReader, Mixer, Positions};

pub(super) const RWKV7: ArchSpec = ArchSpec {
    name: "rwkv7",
    models: "RWKV-7 World and G1, 0.1B to 13.3B (squared ReLU)",
    norm: NormKind::Layer,
    mixer,
    attention: false,
    positions: Positions::None,
    ffn: FfnKind::Plain,
    activation: Activation::Relu2,
    sparse_activation: Activation::Relu2,
    ffn_norm: "attn_norm_2",
    ffn_names: ["channel_mix_key", "channel_mix_value"],
    embedding_norm: EmbeddingNorm::Weights,
    ..LLAMA
};

/// Token shifts in `time_mix_lerp_fused`, in order: r, w, k, v, a, and g in files with a gate.
const N_SHIFTS: usize = 6;

fn mixer(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    let n = layer.n_embd();
    let d_head = head_size(layer, 2)?;
    let has_gate = layer.has("time_mix_g1.weight");
    let n_shifts = if has_gate { N_SHIFTS } else { N_SHIFTS - 1 };
    let shares = layer.flat("time_mix_lerp_fused.weight", n_shifts * n)?;
    let shifted =
        |index: usize, by: Affine| Shifted { shift: shift(&shares[index * n..][..n]), by };
    let low = |part: &str| {
        let rank = layer.n_rows(&format!("{part}.weight"), n)?;
        layer.affine(part, rank, n)
    };
    let high = |part: &str, rank: usize, bias: &str| {
        let bias = Some(layer.f32_row(&format!("{bias}.weight"), 1, n)?);
        Ok::<_, Error>(Affine { bias, ..layer.affine(part, n, rank)? })
    };
    let (w, a) = (low("time_mix_w1")?, low("time_mix_a1")?);
    let [w_rank, a_rank] = [&w, &a].map(rank);
    let mix = if layer.index() == 0 {
        // llama.cpp's files have them although nothing reads them.
        for part in ["v0", "v1", "v2"] {
            layer.skip(&format!("time_mix_{part}.weight"));
        }
        None
    } else {
        let v1 = low("time_mix_v1")?;
        let v2 = high("time_mix_v2", rank(&v1), "time_mix_v0")?;
        Some([v1, v2])
    };
    let gate = if has_gate {
        let g1 = low("time_mix_g1")?;
        let rank = rank(&g1);
        let [zeros, ones] = [0.0, 1.0].map(|value| layer.constant(value, rank));
        let out = layer.affine("time_mix_g2", n, rank)?;
        Some(Gate { input: shifted(N_SHIFTS - 1, g1), zeros, ones, out })
    } else {
        None
    };
    let mut vectors = Vec::with_capacity(4 * n);
    for part in ["k_k.weight", "k_a.weight", "r_k.weight", "ln.bias"] {
        vectors.extend(layer.flat(&format!("time_mix_{part}"), n)?);
    }
    let square = |part: &str| layer.affine(&format!("time_mix_{part}"), n, n);
    Ok(Mixer::Rwkv7(Box::new(Rwkv7 {
        n_head: n / d_head,
        d_head,
        r: shifted(0, square("receptance")?),
        w: shifted(1, w),
        w_out: high("time_mix_w2", w_rank, "time_mix_w0")?,
        k: shifted(2, square("key")?),
        v: shifted(3, square("value")?),
        mix,
        a: shifted(4, a),
        a_out: high("time_mix_a2", a_rank, "time_mix_a0")?,
        gate,
        vectors: f32_matrix(4, &vectors),
        norm: layer.f32_row("time_mix_ln.weight", 1, n)?,
        out: square("output")?,
        channel_shift: shift(&layer.flat("channel_mix_lerp_k.weight", n)?),
    })))
}

/// Number of columns of a head, in a layer that shifts `n_shifts` inputs.
pub(super) fn head_size(layer: &LayerReader<'_>, n_shifts: usize) -> Result<usize, Error> {
    const COUNT: &str = "token_shift_count";
    let (keys, n) = (layer.keys(), layer.n_embd());
    let d_head = keys.need("wkv.head_size", "the number of values of a head")?;
    if !n.is_multiple_of(d_head) {
        let expected = format!("a divisor of the embedding size {n}");
        return Err(keys.wrong_key("wkv.head_size", expected, d_head));
    }
    // Files without the key have two.
    let count = keys.count(COUNT)?.unwrap_or(2);
    if count != n_shifts {
        return Err(keys.wrong_key(COUNT, n_shifts, count));
    }
    Ok(d_head)
}

fn rank(by: &Affine) -> usize {
    by.w.desc().n_rows
}

/// The filter of a token shift from each channel's share of the earlier input.
pub(super) fn shift(shares: &[f32]) -> HostRows {
    let both: Vec<f32> = shares.iter().flat_map(|&share| [share, 1.0 - share]).collect();
    f32_matrix(shares.len(), &both)
}
