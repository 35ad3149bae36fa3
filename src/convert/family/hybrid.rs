//! Families in which most layers have linear attention or a convolution instead of attention.

use super::keys::{Build, Setting, count, whole};
use super::rule::{On, Reshape, Rule, Scale, Transform, rule, same_name};
use super::rules::{
    EMBEDDINGS_PLUS_ONE, EXPERTS, GATED, QK, QK_NORMS_PLUS_ONE, SHARED_EXPERT, UP_DOWN, VO,
};
use super::table::LLAMA;
use super::{Family, rope, table};
use crate::Error;
use crate::change::Selection;
use gguf::{Array, Value};

const NORM_AND_POST_PLUS_ONE: &[Rule] = &[
    rule("layers.*.input_layernorm", "blk.*.attn_norm", Transform::PlusOne),
    rule("layers.*.post_attention_layernorm", "blk.*.post_attention_norm", Transform::PlusOne),
];
/// Gated delta nets: the checkpoint interleaves queries, keys, values and gates by key head.
const QWEN3_NEXT: &[Rule] = &[
    rule("layers.*.linear_attn.in_proj_qkvz", "blk.*.attn_qkv", Transform::Rows(joined_qkv)),
    rule("layers.*.linear_attn.in_proj_qkvz", "blk.*.attn_gate", Transform::Rows(joined_gates)),
    same_name("layers.*.linear_attn.in_proj_ba", "blk.*.ssm_ba"),
    same_name("layers.*.linear_attn.conv1d", "blk.*.ssm_conv1d").reshape(Reshape::Squeeze),
    same_name("layers.*.linear_attn.dt_bias", "blk.*.ssm_dt"),
    same_name("layers.*.linear_attn.A_log", "blk.*.ssm_a=").scale(Scale::NegExp),
    same_name("layers.*.linear_attn.norm", "blk.*.ssm_norm"),
    same_name("layers.*.linear_attn.out_proj", "blk.*.ssm_out"),
];
/// The checkpoint stores the value heads of a key head together; in the file, all first ones come
/// first.
pub(super) const QWEN35: &[Rule] = &[
    rule("layers.*.linear_attn.in_proj_qkv", "blk.*.attn_qkv", Transform::Rows(tiled_qkv)),
    rule("layers.*.linear_attn.in_proj_z", "blk.*.attn_gate", Transform::Rows(tiled_values)),
    rule("layers.*.linear_attn.in_proj_b", "blk.*.ssm_beta", Transform::Rows(tiled_heads)),
    rule("layers.*.linear_attn.in_proj_a", "blk.*.ssm_alpha", Transform::Rows(tiled_heads)),
    rule("layers.*.linear_attn.conv1d", "blk.*.ssm_conv1d", Transform::Rows(tiled_qkv))
        .reshape(Reshape::Squeeze),
    rule("layers.*.linear_attn.dt_bias", "blk.*.ssm_dt", Transform::Rows(tiled_heads)),
    rule("layers.*.linear_attn.A_log", "blk.*.ssm_a=", Transform::Rows(tiled_heads))
        .scale(Scale::NegExp),
    same_name("layers.*.linear_attn.norm", "blk.*.ssm_norm"),
    rule("layers.*.linear_attn.out_proj", "blk.*.ssm_out", Transform::ReorderColumns(tiled_values)),
];
const LFM2: &[Rule] = &[
    same_name("embed_tokens", "token_embd"),
    // llama.cpp's name of the norm before the output.
    same_name("embedding_norm", "token_embd_norm"),
    rule("lm_head", "output", Transform::Tied),
    same_name("layers.*.operator_norm", "blk.*.attn_norm"),
    same_name("layers.*.ffn_norm", "blk.*.ffn_norm"),
];
const LFM2_ATTENTION: &[Rule] = &[
    same_name("layers.*.self_attn.v_proj", "blk.*.attn_v"),
    same_name("layers.*.self_attn.out_proj", "blk.*.attn_output"),
    same_name("layers.*.self_attn.q_layernorm", "blk.*.attn_q_norm"),
    same_name("layers.*.self_attn.k_layernorm", "blk.*.attn_k_norm"),
];
const LFM2_CONVOLUTION: &[Rule] = &[
    same_name("layers.*.conv.conv", "blk.*.shortconv.conv").reshape(Reshape::Squeeze),
    same_name("layers.*.conv.in_proj", "blk.*.shortconv.in_proj"),
    same_name("layers.*.conv.out_proj", "blk.*.shortconv.out_proj"),
];
const LFM2_DENSE: &[Rule] = &[
    same_name("layers.*.feed_forward.w1", "blk.*.ffn_gate"),
    same_name("layers.*.feed_forward.w2", "blk.*.ffn_down"),
    same_name("layers.*.feed_forward.w3", "blk.*.ffn_up"),
];
const LFM2_EXPERTS: &[Rule] = &[
    same_name("layers.*.feed_forward.gate", "blk.*.ffn_gate_inp"),
    same_name("layers.*.feed_forward.expert_bias", "blk.*.exp_probs_b").optional(),
    same_name("layers.*.feed_forward.experts.*.w1", "blk.*.ffn_gate_exps"),
    same_name("layers.*.feed_forward.experts.*.w2", "blk.*.ffn_down_exps"),
    same_name("layers.*.feed_forward.experts.*.w3", "blk.*.ffn_up_exps"),
];
pub(super) const DELTA: &[Setting] = &[
    count("ssm.conv_kernel", &["linear_conv_kernel_dim"]),
    count("ssm.state_size", &["linear_key_head_dim"]),
    count("ssm.group_count", &["linear_num_key_heads"]),
    count("ssm.time_step_rank", &["linear_num_value_heads"]),
    whole("full_attention_interval", &["full_attention_interval"]),
];

const QWEN35_DENSE: Family = Family {
    arch: "qwen35",
    classes: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
    rules: &[EMBEDDINGS_PLUS_ONE, NORM_AND_POST_PLUS_ONE, GATED, UP_DOWN],
    some: &[
        (On::Attention, QK),
        (On::Attention, QK_NORMS_PLUS_ONE),
        (On::Attention, VO),
        (On::Recurrent, QWEN35),
    ],
    settings: DELTA,
    keys: |build| {
        build.feed_forward()?;
        delta(build)?;
        rope::set_sections(build, [11, 11, 10, 0])
    },
    ..LLAMA
};

pub(super) const FAMILIES: &[Family] = &[
    Family {
        arch: "qwen3next",
        classes: &["Qwen3NextForCausalLM"],
        rules: &[EMBEDDINGS_PLUS_ONE, NORM_AND_POST_PLUS_ONE, EXPERTS, SHARED_EXPERT],
        some: &[
            (On::Attention, QK),
            (On::Attention, QK_NORMS_PLUS_ONE),
            (On::Attention, VO),
            (On::Recurrent, QWEN3_NEXT),
        ],
        settings: DELTA,
        keys: delta_experts,
        ..LLAMA
    },
    QWEN35_DENSE,
    Family {
        arch: "qwen35moe",
        classes: &["Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"],
        rules: &[EMBEDDINGS_PLUS_ONE, NORM_AND_POST_PLUS_ONE, EXPERTS, SHARED_EXPERT],
        keys: |build| {
            delta_experts(build)?;
            rope::set_sections(build, [11, 11, 10, 0])
        },
        ..QWEN35_DENSE
    },
    Family {
        arch: "lfm2",
        classes: &["Lfm2ForCausalLM"],
        rules: &[LFM2, LFM2_DENSE],
        some: &[
            (On::Attention, QK),
            (On::Attention, LFM2_ATTENTION),
            (On::Recurrent, LFM2_CONVOLUTION),
        ],
        settings: &[count("shortconv.l_cache", &["conv_L_cache"])],
        keys: lfm2,
        ..LLAMA
    },
    Family {
        arch: "lfm2moe",
        classes: &["Lfm2MoeForCausalLM"],
        rules: &[LFM2],
        some: &[
            (On::Attention, QK),
            (On::Attention, LFM2_ATTENTION),
            (On::Recurrent, LFM2_CONVOLUTION),
            (On::Dense, LFM2_DENSE),
            (On::Experts, LFM2_EXPERTS),
        ],
        settings: &[
            count("shortconv.l_cache", &["conv_L_cache"]),
            count("expert_feed_forward_length", &["moe_intermediate_size"]),
        ],
        keys: lfm2moe,
        ..LLAMA
    },
];

/// Sizes of gated delta nets: heads of keys and of values.
struct Delta {
    n_key: u32,
    n_value: u32,
    d_key: u32,
    d_value: u32,
}

impl Delta {
    fn of(build: &Build<'_>) -> Result<Delta, Error> {
        let size = |key: &'static str| {
            let n = build.config.count(&[key], "a size of the gated delta nets")?;
            // The number of rows of a matrix then fits in 32 bits.
            if n > 1 << 12 {
                return Err(build.config.wrong_value(key, "at most 4096", n));
            }
            Ok(n)
        };
        let delta = Delta {
            n_key: size("linear_num_key_heads")?,
            n_value: size("linear_num_value_heads")?,
            d_key: size("linear_key_head_dim")?,
            d_value: size("linear_value_head_dim")?,
        };
        if !delta.n_value.is_multiple_of(delta.n_key) {
            let expected = format!("a multiple of the {} key heads", delta.n_key);
            let found = delta.n_value;
            return Err(build.config.wrong_value("linear_num_value_heads", &expected, found));
        }
        Ok(delta)
    }

    /// Source rows of value heads of `size` rows each, the first of each key head first.
    fn tiled(&self, size: u32) -> impl Iterator<Item = u32> {
        let (n_key, per_key) = (self.n_key, self.n_value / self.n_key);
        let heads = (0..per_key).flat_map(move |i| (0..n_key).map(move |key| key * per_key + i));
        heads.flat_map(move |head| (0..size).map(move |row| head * size + row))
    }

    /// Rows of a key head in Qwen3-Next's joined matrix: query, key, values, gates.
    fn group(&self) -> (u32, u32) {
        let values = self.n_value / self.n_key * self.d_value;
        (2 * self.d_key + 2 * values, values)
    }
}

fn joined_qkv(build: &Build<'_>) -> Result<Selection, Error> {
    let delta = Delta::of(build)?;
    let (group, values) = delta.group();
    let part = |first: u32, n: u32| {
        (0..delta.n_key).flat_map(move |key| (0..n).map(move |row| key * group + first + row))
    };
    let (q, k) = (part(0, delta.d_key), part(delta.d_key, delta.d_key));
    Ok(Selection::join(q.chain(k).chain(part(2 * delta.d_key, values)), delta.n_key * group))
}

fn joined_gates(build: &Build<'_>) -> Result<Selection, Error> {
    let delta = Delta::of(build)?;
    let (group, values) = delta.group();
    let first = 2 * delta.d_key + values;
    let rows =
        (0..delta.n_key).flat_map(|key| (0..values).map(move |row| key * group + first + row));
    Ok(Selection::join(rows, delta.n_key * group))
}

fn tiled_qkv(build: &Build<'_>) -> Result<Selection, Error> {
    let delta = Delta::of(build)?;
    let n_qk = 2 * delta.n_key * delta.d_key;
    let values = delta.tiled(delta.d_value).map(|row| n_qk + row);
    Ok(Selection::join((0..n_qk).chain(values), n_qk + delta.n_value * delta.d_value))
}

fn tiled_values(build: &Build<'_>) -> Result<Selection, Error> {
    let delta = Delta::of(build)?;
    Ok(Selection::join(delta.tiled(delta.d_value), delta.n_value * delta.d_value))
}

fn tiled_heads(build: &Build<'_>) -> Result<Selection, Error> {
    let delta = Delta::of(build)?;
    Ok(Selection::join(delta.tiled(1), delta.n_value))
}

fn delta(build: &mut Build<'_>) -> Result<(), Error> {
    build.sizes()?;
    build.rms()?;
    build.heads()?;
    let delta = Delta::of(build)?;
    build.set("ssm.inner_size", delta.n_value * delta.d_value);
    let interval = build.config.u32(&["full_attention_interval"])?.unwrap_or(4);
    let is_linear: Vec<bool> = match build.kinds("layer_types")? {
        Some(kinds) => kinds.iter().map(|kind| kind == "linear_attention").collect(),
        None => (1..=build.n_layer()?).map(|i| !i.is_multiple_of(interval.max(1))).collect(),
    };
    attention_or(build, &is_linear)?;
    build.set("attention.recurrent_layers", Value::Array(Array::Bool(is_linear)));
    build.rope(rope::n_rotated(build, 0.25)?)
}

pub(super) fn delta_experts(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    if config.list("mlp_only_layers")?.is_some_and(|list| !list.is_empty()) {
        return Err(config.wrong_value("mlp_only_layers", "an empty list", "layers"));
    }
    delta(build)?;
    table::experts_of(build)
}

/// Sets the layers with attention, and those with something else.
pub(super) fn attention_or(build: &mut Build<'_>, other: &[bool]) -> Result<(), Error> {
    build.layers_on(On::Recurrent, |layer| other[layer as usize])?;
    build.layers_on(On::Attention, |layer| !other[layer as usize])
}

fn lfm2_layers(build: &mut Build<'_>) -> Result<(), Error> {
    build.sizes()?;
    build.set("attention.layer_norm_rms_epsilon", build.config.f32(&["norm_eps"])?.unwrap_or(1e-5));
    if build.config.bool(&["conv_bias"])? == Some(true) {
        return Err(build.config.wrong_value("conv_bias", "false, as in LFM2", true));
    }
    let config = build.config;
    let attention = config.list("full_attn_idxs")?;
    let is_convolution: Vec<bool> = match (build.kinds("layer_types")?, attention) {
        (Some(kinds), _) => kinds.iter().map(|kind| kind == "conv").collect(),
        (None, Some(list)) => {
            let is_listed = |layer: u32| list.iter().any(|n| n.as_u64() == Some(u64::from(layer)));
            (0..build.n_layer()?).map(|layer| !is_listed(layer)).collect()
        }
        (None, None) => return Err(config.missing("layer_types", "the kind of each layer")),
    };
    attention_or(build, &is_convolution)?;
    let n_head_kv = build.n_head_kv()?;
    build.per_layer("attention.head_count_kv", On::Attention, n_head_kv);
    build.rope(build.d_head()?)
}

fn lfm2(build: &mut Build<'_>) -> Result<(), Error> {
    lfm2_layers(build)?;
    let config = build.config;
    let mut n_ff = config.count(&["block_ff_dim", "intermediate_size"], "the number of neurons")?;
    if config.bool(&["block_auto_adjust_ff_dim"])?.unwrap_or(true) {
        n_ff = 2 * n_ff / 3;
        if let Some(factor) = config.f32(&["block_ffn_dim_multiplier"])? {
            n_ff = (f64::from(factor) * f64::from(n_ff)) as u32;
        }
        n_ff = n_ff
            .next_multiple_of(config.u32(&["block_multiple_of"])?.unwrap_or(256).clamp(1, 1 << 20));
    }
    build.set("feed_forward_length", n_ff);
    Ok(())
}

fn lfm2moe(build: &mut Build<'_>) -> Result<(), Error> {
    lfm2_layers(build)?;
    build.feed_forward()?;
    build.experts()?;
    let config = build.config;
    if let Some(scale) = config.f32(&["routed_scaling_factor"])?.filter(|&scale| scale != 1.0) {
        return Err(config.wrong_value("routed_scaling_factor", "1, as in LFM2 8B-A1B", scale));
    }
    // Sigmoid.
    build.set("expert_gating_func", 2_u32);
    let n_dense = config.u32(&["num_dense_layers"])?.unwrap_or(0);
    build.set("leading_dense_block_count", n_dense);
    build.layers_on(On::Dense, |layer| layer < n_dense)?;
    build.layers_on(On::Experts, |layer| layer >= n_dense)
}
