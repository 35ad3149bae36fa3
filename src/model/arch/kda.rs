//! Kimi Linear, Kimi K3, Ling 3 and GLM-5.3-Flash: Kimi Delta Attention (KDA) in most layers, latent
//! attention in the others. The first layers are dense, the others have experts and a shared expert.

use hal::HostRows;
use hal::op::{Activation, DecayCurve, GateActivation, HeadMapping, Pairing, Scoring};

use super::llama::LLAMA;
use super::qwen35::joint_qkv;
use super::sections::consecutive;
use crate::reader::f32_matrix;
use crate::{
    Affine, ArchSpec, Clamp, Error, GateKind, GatedDelta, GatedDeltaSizes, KvKind, LayerReader,
    Mixer, Positions, Routing, RoutingKeys, StreamEndKind,
};

pub(super) const KIMI_LINEAR: ArchSpec = ArchSpec {
    name: "kimi-linear",
    models: "Kimi Linear 48B-A3B",
    mixer: kimi,
    kv: KvKind::Latent,
    positions: Positions::None,
    windows: false,
    routing: Routing { scoring: Scoring::Sigmoid, keys: RoutingKeys::Scoring, ..LLAMA.routing },
    ..LLAMA
};

/// Ling 3: the decay is bounded, its matrices are not of low rank, attention has RoPE and a gate per
/// head, and layers can limit their neurons' values.
pub(super) const BAILINGMOE3: ArchSpec = ArchSpec {
    name: "bailingmoe3",
    models: "Ling 3.0: tiny and flash; the text half of Ling 3.0 VL",
    mixer: ling,
    gate: GateKind::Matrix { activation: GateActivation::Sigmoid, optional: false },
    positions: Positions::Rotary(Pairing::Adjacent),
    clamp: Clamp::Activated,
    routing: Routing { renormalise: false, keys: RoutingKeys::Both, ..KIMI_LINEAR.routing },
    ..KIMI_LINEAR
};

/// GLM-5.3-Flash: the decay may be bounded, attention has no RoPE and is sparse by blocks of positions,
/// and all blocks mix several residual streams.
pub(super) const GLM5_NEXT: ArchSpec = ArchSpec {
    name: "glm5-next",
    models: "GLM-5.3-Flash",
    mixer: glm,
    pooled_indexer: true,
    hyper_connections: Some(StreamEndKind::Mean),
    clamp: Clamp::Gate,
    routing: Routing { renormalise: false, keys: RoutingKeys::Both, ..KIMI_LINEAR.routing },
    ..KIMI_LINEAR
};

/// Kimi K3: the decay is bounded, attention has a gate, the experts are narrower than the residual, and
/// layers read a mix of earlier residuals.
pub(super) const KIMI_K3: ArchSpec = ArchSpec {
    name: "kimi-k3",
    models: "Kimi K3 2.8T-A50B",
    mixer: k3,
    gate: GateKind::Matrix { activation: GateActivation::Sigmoid, optional: true },
    activation: Activation::Situ { beta: 1.0, cap: 0.0 },
    residual_mix: true,
    routing: Routing { renormalise: false, keys: RoutingKeys::Both, ..KIMI_LINEAR.routing },
    ..KIMI_LINEAR
};

/// Key of the lower bound of the logarithm of the decay.
const BOUND: &str = "kda.gate_lower_bound";

/// The names of two matrices of low rank, before and after their common axis.
const DECAY: &[&str] = &["ssm_f_a", "ssm_f_b"];
const GATE: &[&str] = &["ssm_g_a", "ssm_g_b"];

fn kimi(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    if layer.sizes().n_head_kv > 0 {
        return layer.attention();
    }
    kda(layer, DecayCurve::Softplus, [DECAY, GATE])
}

fn k3(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    if layer.sizes().n_head_kv > 0 {
        return layer.attention();
    }
    with_negative_rates(layer, [DECAY, &["ssm_g"]])
}

/// Reads Kimi Delta Attention from files that store -exp(A_log), whichever of the two decay
/// functions they use.
fn with_negative_rates(layer: &LayerReader<'_>, matrices: [&[&str]; 2]) -> Result<Mixer, Error> {
    let Some(bound) = lower_bound(layer)? else {
        return kda(layer, DecayCurve::Softplus, matrices);
    };
    let mut mixer = kda(layer, DecayCurve::Sigmoid { bound }, matrices)?;
    if let Mixer::GatedDelta(by) = &mut mixer {
        let rates = layer.flat("ssm_a", by.sizes.n_head_v)?;
        by.a = f32_matrix(1, &rates.iter().map(|rate| -rate).collect::<Vec<f32>>());
    }
    Ok(mixer)
}

fn ling(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    const SAFE: &str = "kda.safe_gate";
    if layer.sizes().n_head_kv > 0 {
        return consecutive(layer);
    }
    let keys = layer.keys();
    if keys.metadata.bool(&keys.name(SAFE))? == Some(false) {
        return Err(keys.wrong_key(SAFE, "true: only bounded decays are supported", false));
    }
    match lower_bound(layer)? {
        None => Err(keys.missing(BOUND, "the lower bound of the logarithm of the decay")),
        Some(bound) => kda(layer, DecayCurve::Sigmoid { bound }, [&["ssm_f_a"], &["ssm_g_a"]]),
    }
}

fn glm(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    const ROTATED: &str = "rope.dimension_count";
    let keys = layer.keys();
    let sizes = layer.sizes();
    if sizes.n_rot > 0 {
        let expected = "0: the latent attention of this family has no RoPE";
        return Err(keys.wrong_key(ROTATED, expected, sizes.n_rot));
    }
    if sizes.n_head_kv > 0 {
        let has_indexer = layer.indexer_listed()?;
        return layer.sparse(layer.attention()?, Pairing::Halves, has_indexer);
    }
    with_negative_rates(layer, [DECAY, GATE])
}

/// The lower bound of the logarithm of the decay; `None` if the file states none.
fn lower_bound(layer: &LayerReader<'_>) -> Result<Option<f32>, Error> {
    match layer.keys().f32(BOUND)? {
        None => Ok(None),
        Some(bound) if bound < 0.0 && bound.is_finite() => Ok(Some(bound)),
        Some(bound) => Err(layer.keys().wrong_key(BOUND, "a negative number", bound)),
    }
}

/// Reads Kimi Delta Attention: a gated delta net with a decay for each value of a key, and a sigmoid
/// as the gate of its output. Decay and gate have the names of their matrices: one, or two of low rank.
fn kda(
    layer: &LayerReader<'_>,
    curve: DecayCurve,
    [decay, gate]: [&[&str]; 2],
) -> Result<Mixer, Error> {
    let keys = layer.keys();
    let d = keys.need("kda.head_dim", "the head size of Kimi Delta Attention")?;
    let kernel_size = keys.need("ssm.conv_kernel", "the kernel size of the convolutions")?;
    let n_head = n_head(layer)?;
    let heads = HeadMapping::Modulo;
    let sizes = GatedDeltaSizes { n_head_k: n_head, n_head_v: n_head, d_k: d, d_v: d, heads };
    let (n, n_embd) = (sizes.n_v(), layer.n_embd());
    let [q, k, v] = if layer.has("attn_qkv.weight") {
        joint_qkv(layer, &sizes)?
    } else {
        [
            layer.affine("attn_q", n, n_embd)?,
            layer.affine("attn_k", n, n_embd)?,
            layer.affine("attn_v", n, n_embd)?,
        ]
    };
    // Filters have an axis of length 1 between their two axes.
    let filter = |tensor: &str| -> Result<HostRows, Error> {
        Ok(f32_matrix(n, &layer.flat(tensor, n.saturating_mul(kernel_size))?))
    };
    let (alpha_in, alpha) = product(layer, decay, n)?;
    let (z_in, z) = product(layer, gate, n)?;
    Ok(Mixer::GatedDelta(GatedDelta {
        sizes,
        curve,
        gate: GateActivation::Sigmoid,
        q,
        k,
        v,
        q_conv: filter("ssm_conv1d_q.weight")?,
        k_conv: filter("ssm_conv1d_k.weight")?,
        v_conv: filter("ssm_conv1d_v.weight")?,
        unit: layer.constant((d as f32).sqrt().recip(), d),
        alpha_in,
        alpha,
        beta: layer.affine("ssm_beta", n_head, n_embd)?,
        dt_bias: layer.f32_row("ssm_dt.bias", 1, n)?,
        a: f32_matrix(1, &layer.flat("ssm_a", n_head)?),
        norm: layer.norm("ssm_norm", d)?,
        z_in,
        z,
        out: layer.affine("attn_output", n_embd, n)?,
    }))
}

/// Number of heads of Kimi Delta Attention: that of the layers with attention. Lists may state 0 for
/// the other layers.
fn n_head(layer: &LayerReader<'_>) -> Result<usize, Error> {
    const KEY: &str = "attention.head_count";
    let list = layer.keys().per_layer(KEY, layer.n_listed())?.unwrap_or_default();
    let mut stated = list.into_iter().filter(|&n| n > 0);
    let expected = "the same number in all layers that have heads";
    match stated.next() {
        None => Err(layer.keys().wrong_key(KEY, expected, "0 in all layers")),
        Some(n) if stated.all(|other| other == n) => Ok(n),
        Some(_) => Err(layer.keys().wrong_key(KEY, expected, "a mixed list")),
    }
}

/// The matrix of `n` rows, or, if there are two names, two matrices of any rank between them.
fn product(
    layer: &LayerReader<'_>,
    names: &[&str],
    n: usize,
) -> Result<(Option<Affine>, Affine), Error> {
    match *names {
        [first, second] => {
            let rank = layer.n_rows(&format!("{first}.weight"), layer.n_embd())?;
            let first = layer.affine(first, rank, layer.n_embd())?;
            Ok((Some(first), layer.affine(second, n, rank)?))
        }
        _ => Ok((None, layer.affine(names[0], n, layer.n_embd())?)),
    }
}
