//! Families with experts, and attention in every layer.

use super::dense::{GRANITE_SCALES, HUNYUAN_QK_NORMS, NORM_AND_POST, qwen3vl, rms};
use super::keys::{Build, Setting, count, flag, number, whole};
use super::rule::{On, Part, Reshape, Rule, Transform, rule, same_name};
use super::rules::{
    EMBEDDINGS, EXPERTS, GATED, MIXTRAL, NORMS, QK, QK_NORMS, ROPE_QK, UP_DOWN, VO,
};
use super::table::LLAMA;
use super::{Family, dense, table, window};
use crate::Error;

/// llama.cpp's numbers of the functions that turn a router's outputs into weights.
pub(super) const SOFTMAX: u32 = 1;
pub(super) const SIGMOID: u32 = 2;

/// Bias of each expert that the router adds for the selection only.
pub(super) const SELECTION_BIAS: &[Rule] =
    &[same_name("layers.*.mlp.gate.e_score_correction_bias", "blk.*.exp_probs_b").optional()];
pub(super) const SHARED: &[Rule] = &[
    same_name("layers.*.mlp.shared_experts.gate_proj", "blk.*.ffn_gate_shexp").optional(),
    same_name("layers.*.mlp.shared_experts.up_proj", "blk.*.ffn_up_shexp").optional(),
    same_name("layers.*.mlp.shared_experts.down_proj", "blk.*.ffn_down_shexp").optional(),
];
/// The halves of a layer: a dense block in the first layers, experts in the others.
const DENSE_THEN_EXPERTS: &[(On, &[Rule])] = &[
    (On::Dense, GATED),
    (On::Dense, UP_DOWN),
    (On::Experts, EXPERTS),
    (On::Experts, SELECTION_BIAS),
    (On::Experts, SHARED),
];
pub(super) const GRANITE: &[Rule] = &[
    same_name("layers.*.block_sparse_moe.router.layer", "blk.*.ffn_gate_inp"),
    rule("layers.*.block_sparse_moe.input_linear", "blk.*.ffn_gate_exps", Transform::FirstHalf),
    rule("layers.*.block_sparse_moe.input_linear", "blk.*.ffn_up_exps", Transform::SecondHalf),
    same_name("layers.*.block_sparse_moe.output_linear", "blk.*.ffn_down_exps"),
    rule("layers.*.shared_mlp.input_linear", "blk.*.ffn_gate_shexp", Transform::FirstHalf)
        .optional(),
    rule("layers.*.shared_mlp.input_linear", "blk.*.ffn_up_shexp", Transform::SecondHalf)
        .optional(),
    same_name("layers.*.shared_mlp.output_linear", "blk.*.ffn_down_shexp").optional(),
];
/// Granite's dense block, under the name of its shared expert.
pub(super) const GRANITE_DENSE: &[Rule] = &[
    rule("layers.*.shared_mlp.input_linear", "blk.*.ffn_gate", Transform::FirstHalf),
    rule("layers.*.shared_mlp.input_linear", "blk.*.ffn_up", Transform::SecondHalf),
    same_name("layers.*.shared_mlp.output_linear", "blk.*.ffn_down"),
];
const MINIMAX: &[Rule] =
    &[same_name("layers.*.block_sparse_moe.e_score_correction_bias", "blk.*.exp_probs_b")];
const ERNIE: &[Rule] =
    &[same_name("layers.*.mlp.moe_statics.e_score_correction_bias", "blk.*.exp_probs_b")
        .reshape(Reshape::Squeeze)];
const HUNYUAN: &[Rule] = &[
    same_name("layers.*.mlp.gate.wg", "blk.*.ffn_gate_inp"),
    same_name("layers.*.mlp.shared_mlp.gate_proj", "blk.*.ffn_gate_shexp"),
    same_name("layers.*.mlp.shared_mlp.up_proj", "blk.*.ffn_up_shexp"),
    same_name("layers.*.mlp.shared_mlp.down_proj", "blk.*.ffn_down_shexp"),
    same_name("layers.*.mlp.experts.*.gate_proj", "blk.*.ffn_gate_exps"),
    same_name("layers.*.mlp.experts.*.up_proj", "blk.*.ffn_up_exps"),
    same_name("layers.*.mlp.experts.*.down_proj", "blk.*.ffn_down_exps"),
];
const EXAONE_BIAS: &[Rule] =
    &[same_name("layers.*.mlp.e_score_correction_bias", "blk.*.exp_probs_b")];
/// Norms before and after both halves of a layer, and a gate for the output of attention.
const AFMOE: &[Rule] = &[
    same_name("layers.*.input_layernorm", "blk.*.attn_norm"),
    same_name("layers.*.post_attention_layernorm", "blk.*.post_attention_norm"),
    same_name("layers.*.pre_mlp_layernorm", "blk.*.ffn_norm"),
    same_name("layers.*.post_mlp_layernorm", "blk.*.post_ffw_norm"),
    same_name("layers.*.self_attn.gate_proj", "blk.*.attn_gate"),
];
const AFMOE_EXPERTS: &[Rule] = &[
    same_name("layers.*.mlp.router.gate", "blk.*.ffn_gate_inp"),
    same_name("layers.*.mlp.expert_bias", "blk.*.exp_probs_b"),
    same_name("layers.*.mlp.experts.*.gate_proj", "blk.*.ffn_gate_exps"),
    same_name("layers.*.mlp.experts.*.up_proj", "blk.*.ffn_up_exps"),
    same_name("layers.*.mlp.experts.*.down_proj", "blk.*.ffn_down_exps"),
];
const HY_V3: &[Rule] = &[
    same_name("layers.*.mlp.router.gate", "blk.*.ffn_gate_inp"),
    // llama.cpp's name in this family has no ending.
    same_name("layers.*.mlp.expert_bias", "blk.*.exp_probs_b="),
    same_name("layers.*.mlp.experts.*.gate_proj", "blk.*.ffn_gate_exps"),
    same_name("layers.*.mlp.experts.*.up_proj", "blk.*.ffn_up_exps"),
    same_name("layers.*.mlp.experts.*.down_proj", "blk.*.ffn_down_exps"),
    same_name("layers.*.mlp.shared_mlp.gate_proj", "blk.*.ffn_gate_shexp"),
    same_name("layers.*.mlp.shared_mlp.up_proj", "blk.*.ffn_up_shexp"),
    same_name("layers.*.mlp.shared_mlp.down_proj", "blk.*.ffn_down_shexp"),
];
const LLAMA4_DENSE: &[Rule] = &[
    same_name("layers.*.feed_forward.gate_proj", "blk.*.ffn_gate"),
    same_name("layers.*.feed_forward.up_proj", "blk.*.ffn_up"),
    same_name("layers.*.feed_forward.down_proj", "blk.*.ffn_down"),
];
/// Llama 4 stores its experts transposed.
const LLAMA4: &[Rule] = &[
    same_name("layers.*.feed_forward.router", "blk.*.ffn_gate_inp"),
    rule(
        "layers.*.feed_forward.experts.gate_up_proj",
        "blk.*.ffn_gate_exps",
        Transform::FirstHalfColumns,
    ),
    rule(
        "layers.*.feed_forward.experts.gate_up_proj",
        "blk.*.ffn_up_exps",
        Transform::SecondHalfColumns,
    ),
    rule("layers.*.feed_forward.experts.down_proj", "blk.*.ffn_down_exps", Transform::Columns),
    same_name("layers.*.feed_forward.shared_expert.gate_proj", "blk.*.ffn_gate_shexp"),
    same_name("layers.*.feed_forward.shared_expert.up_proj", "blk.*.ffn_up_shexp"),
    same_name("layers.*.feed_forward.shared_expert.down_proj", "blk.*.ffn_down_shexp"),
];
/// Qwen3-VL stores its experts transposed.
const QWEN3_VL: &[Rule] = &[
    same_name("layers.*.mlp.gate", "blk.*.ffn_gate_inp"),
    rule(
        "layers.*.mlp.experts.gate_up_proj",
        "blk.*.ffn_gate_exps",
        Transform::EitherWay(Part::Gate),
    ),
    rule("layers.*.mlp.experts.gate_up_proj", "blk.*.ffn_up_exps", Transform::EitherWay(Part::Up)),
    rule("layers.*.mlp.experts.down_proj", "blk.*.ffn_down_exps", Transform::EitherWay(Part::Down)),
];

pub(super) const DEEPSEEK: &[Setting] = &[
    count("expert_feed_forward_length", &["moe_intermediate_size"]),
    whole("expert_shared_count", &["n_shared_experts", "num_shared_experts"]),
    whole("expert_group_count", &["n_group"]),
    whole("expert_group_used_count", &["topk_group"]),
    number("expert_weights_scale", &["routed_scaling_factor"]),
    flag("expert_weights_norm", &["norm_topk_prob"]),
];
pub(super) const SHARED_LENGTH: Setting =
    whole("expert_shared_feed_forward_length", &["shared_intermediate_size"]);

pub(super) const FAMILIES: &[Family] = &[
    Family {
        arch: "granitemoe",
        classes: &["GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, ROPE_QK, VO, GRANITE],
        settings: &[
            GRANITE_SCALES[0],
            GRANITE_SCALES[1],
            GRANITE_SCALES[2],
            GRANITE_SCALES[3],
            SHARED_LENGTH,
        ],
        keys: table::mixtral,
        ..LLAMA
    },
    Family {
        arch: "olmoe",
        classes: &["OlmoeForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, QK, QK_NORMS, VO, EXPERTS],
        keys: olmoe,
        ..LLAMA
    },
    Family {
        arch: "glm4moe",
        classes: &["Glm4MoeForCausalLM"],
        rules: &[EMBEDDINGS, NORM_AND_POST, QK, dense::OPTIONAL_QK_NORMS, VO],
        some: DENSE_THEN_EXPERTS,
        settings: DEEPSEEK,
        keys: |build| deepseek(build, 0.5, SIGMOID),
        ..LLAMA
    },
    Family {
        arch: "dots1",
        classes: &["Dots1ForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, QK, QK_NORMS, VO],
        some: DENSE_THEN_EXPERTS,
        settings: DEEPSEEK,
        keys: dots1,
        ..LLAMA
    },
    Family {
        arch: "minimax-m2",
        classes: &["MiniMaxM2ForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, QK, QK_NORMS, VO, MIXTRAL, MINIMAX],
        settings: &[count("expert_feed_forward_length", &["intermediate_size"])],
        keys: minimax,
        ..LLAMA
    },
    Family {
        arch: "ernie4_5-moe",
        classes: &["Ernie4_5_MoeForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, QK, VO],
        some: &[
            (On::Dense, GATED),
            (On::Dense, UP_DOWN),
            (On::Experts, EXPERTS),
            (On::Experts, ERNIE),
            (On::Experts, SHARED),
        ],
        settings: &[
            count("expert_feed_forward_length", &["moe_intermediate_size"]),
            whole("expert_shared_count", &["moe_num_shared_experts"]),
        ],
        keys: ernie,
        ..LLAMA
    },
    Family {
        arch: "exaone-moe",
        classes: &["ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, QK, QK_NORMS, VO],
        some: &[
            (On::Dense, GATED),
            (On::Dense, UP_DOWN),
            (On::Experts, EXPERTS),
            (On::Experts, EXAONE_BIAS),
            (On::Experts, SHARED),
        ],
        settings: DEEPSEEK,
        keys: exaone,
        ..LLAMA
    },
    Family {
        arch: "afmoe",
        classes: &["AfmoeForCausalLM"],
        rules: &[EMBEDDINGS, AFMOE, QK, QK_NORMS, VO],
        some: &[
            (On::Dense, GATED),
            (On::Dense, UP_DOWN),
            (On::Experts, AFMOE_EXPERTS),
            (On::Experts, SHARED),
        ],
        settings: &[
            count("expert_feed_forward_length", &["moe_intermediate_size"]),
            whole("expert_shared_count", &["num_shared_experts"]),
            number("expert_weights_scale", &["route_scale"]),
            flag("expert_weights_norm", &["route_norm"]),
        ],
        keys: afmoe,
        ..LLAMA
    },
    Family {
        arch: "hy_v3",
        classes: &["HYV3ForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, QK, QK_NORMS, VO],
        some: &[(On::Dense, GATED), (On::Dense, UP_DOWN), (On::Experts, HY_V3)],
        settings: &[
            count("expert_feed_forward_length", &["moe_intermediate_size"]),
            number("expert_weights_scale", &["router_scaling_factor"]),
            flag("expert_weights_norm", &["route_norm"]),
        ],
        keys: hy_v3,
        ..LLAMA
    },
    Family {
        arch: "llama4",
        classes: &["Llama4ForCausalLM", "Llama4ForConditionalGeneration"],
        rules: &[EMBEDDINGS, NORMS, QK, VO],
        some: &[(On::Dense, LLAMA4_DENSE), (On::Experts, LLAMA4)],
        settings: &[count("expert_feed_forward_length", &["intermediate_size"])],
        keys: llama4,
        ..LLAMA
    },
    Family {
        arch: "hunyuan-moe",
        classes: &["HunYuanMoEV1ForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, QK, HUNYUAN_QK_NORMS, VO, HUNYUAN],
        settings: &[
            count("expert_feed_forward_length", &["intermediate_size"]),
            count("expert_shared_feed_forward_length", &["intermediate_size"]),
        ],
        keys: hunyuan,
        ..LLAMA
    },
    Family {
        arch: "qwen3vlmoe",
        classes: &["Qwen3VLMoeForConditionalGeneration"],
        rules: &[EMBEDDINGS, NORMS, QK, QK_NORMS, VO, QWEN3_VL],
        keys: |build| {
            table::qwen_moe(build)?;
            qwen3vl(build)
        },
        ..LLAMA
    },
];

/// Granite's hybrids have the same experts, or a dense block.
pub(super) const GRANITE_BLOCKS: &[(On, &[Rule])] =
    &[(On::Experts, GRANITE), (On::Dense, GRANITE_DENSE)];

fn olmoe(build: &mut Build<'_>) -> Result<(), Error> {
    if let Some(limit) = build.config.f32(&["clip_qkv"])? {
        return Err(build.config.wrong_value("clip_qkv", "null, as in OLMoE 1B-7B", limit));
    }
    if build.config.bool(&["norm_topk_prob"])? == Some(true) {
        return Err(build.config.wrong_value("norm_topk_prob", "false, as in OLMoE 1B-7B", true));
    }
    rms(build, 1.0)?;
    build.experts()
}

/// Layers with a dense block before those with experts, and extra layers that are not converted.
pub(super) fn leading_dense(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    let n_dense = config.u32(&["first_k_dense_replace", "num_dense_layers"])?.unwrap_or(0);
    build.set("leading_dense_block_count", n_dense);
    build.layers_on(On::Dense, |layer| layer < n_dense)?;
    build.layers_on(On::Experts, |layer| layer >= n_dense)?;
    if config.u32(&["moe_layer_freq"])?.is_some_and(|n| n != 1) {
        return Err(config.wrong_value("moe_layer_freq", "1: experts in every layer", "another"));
    }
    build.n_extra_layer = config.u32(&["num_nextn_predict_layers"])?.unwrap_or(0);
    Ok(())
}

/// The router's function: `usual` unless `config.json` states one.
pub(super) fn gating(build: &mut Build<'_>, usual: u32) -> Result<(), Error> {
    let stated = build.config.text(&["scoring_func", "score_function"])?;
    let function = match stated.as_deref() {
        None => usual,
        Some("softmax") => SOFTMAX,
        Some("sigmoid") => SIGMOID,
        Some(other) => {
            return Err(build.config.wrong_value("scoring_func", "softmax or sigmoid", other));
        }
    };
    build.set("expert_gating_func", function);
    build.experts()
}

fn deepseek(build: &mut Build<'_>, share: f32, usual: u32) -> Result<(), Error> {
    rms(build, share)?;
    leading_dense(build)?;
    gating(build, usual)
}

fn dots1(build: &mut Build<'_>) -> Result<(), Error> {
    if window::layer_types(build)?.is_some_and(|layers| layers.contains(&true)) {
        let expected = "full_attention in all layers, as in dots.llm1";
        return Err(build.config.wrong_value("layer_types", expected, "sliding_attention"));
    }
    deepseek(build, 1.0, SIGMOID)
}

fn minimax(build: &mut Build<'_>) -> Result<(), Error> {
    rms(build, 1.0)?;
    if let Some(n_rot) = build.config.u32(&["rotary_dim"])? {
        build.replace("rope.dimension_count", n_rot);
    }
    gating(build, SIGMOID)
}

fn ernie(build: &mut Build<'_>) -> Result<(), Error> {
    rms(build, 1.0)?;
    build.experts()?;
    let config = build.config;
    let first = config.u32(&["moe_layer_start_index"])?.unwrap_or(0);
    let step = config.u32(&["moe_layer_interval"])?.unwrap_or(1);
    let n_layer = build.n_layer()?;
    // -1, or the last layer.
    if let Some((key, end)) = config.get(&["moe_layer_end_index"])
        && end.as_i64().is_none_or(|end| end != -1 && end != i64::from(n_layer) - 1)
    {
        return Err(config.wrong_value(key, "the last layer", end));
    }
    if step == 0 {
        return Err(config.wrong_value("moe_layer_interval", "at least 1", step));
    }
    build.set("interleave_moe_layer_step", step);
    build.set("leading_dense_block_count", first);
    let has_experts = |layer: u32| layer >= first && (layer + 1).is_multiple_of(step);
    build.layers_on(On::Experts, has_experts)?;
    build.layers_on(On::Dense, |layer| !has_experts(layer))?;
    let n_shared = config.u32(&["moe_num_shared_experts"])?.unwrap_or(0);
    let n_ff = config.count(&["moe_intermediate_size"], "the number of neurons in an expert")?;
    if n_shared > 0 {
        build.set("expert_shared_feed_forward_length", n_ff.saturating_mul(n_shared));
    }
    Ok(())
}

fn hunyuan(build: &mut Build<'_>) -> Result<(), Error> {
    dense::hunyuan(build)?;
    let config = build.config;
    let n = config.count(&["num_experts"], "the number of experts")?;
    // A number, or one for each layer.
    let used = config.get(&["moe_topk", "num_experts_per_tok"]);
    let n_used = used.and_then(|(_, n)| match n.as_array() {
        Some(list) => list.first().filter(|first| list.iter().all(|n| n == *first))?.as_u64(),
        None => n.as_u64(),
    });
    let n_used =
        n_used.and_then(|n| u32::try_from(n).ok()).filter(|&n| n > 0).ok_or_else(|| {
            config.missing("moe_topk", "the number of experts per token, equal in all layers")
        })?;
    build.set("expert_count", n);
    build.set("expert_used_count", n_used);
    Ok(())
}

/// The number of layers with a dense block at the start of `mlp_layer_types`, if that is stated.
pub(super) fn set_dense_by_kind(build: &mut Build<'_>) -> Result<(), Error> {
    let Some(kinds) = build.kinds("mlp_layer_types")? else { return Ok(()) };
    let n_dense = kinds.iter().take_while(|kind| *kind == "dense").count() as u32;
    if kinds[n_dense as usize..].iter().any(|kind| kind != "sparse") {
        let expected = "dense for the first layers, then sparse";
        return Err(build.config.wrong_value("mlp_layer_types", expected, kinds.join(", ")));
    }
    build.replace("leading_dense_block_count", n_dense);
    build.layers_on(On::Dense, |layer| layer < n_dense)?;
    build.layers_on(On::Experts, |layer| layer >= n_dense)
}

fn exaone(build: &mut Build<'_>) -> Result<(), Error> {
    rms(build, 1.0)?;
    window::set_listed(build, 4)?;
    leading_dense(build)?;
    set_dense_by_kind(build)?;
    gating(build, SIGMOID)
}

fn afmoe(build: &mut Build<'_>) -> Result<(), Error> {
    // Embeddings are scaled by the root of their size.
    if build.config.bool(&["mup_enabled"])? != Some(true) {
        return Err(build.config.wrong_value("mup_enabled", "true, as in Trinity", false));
    }
    rms(build, 1.0)?;
    window::set_listed(
        build,
        build.config.u32(&["global_attn_every_n_layers"])?.unwrap_or(4).max(1),
    )?;
    leading_dense(build)?;
    build.set("expert_weights_norm", true);
    build.set("expert_gating_func", SIGMOID);
    build.experts()
}

fn hy_v3(build: &mut Build<'_>) -> Result<(), Error> {
    rms(build, 1.0)?;
    leading_dense(build)?;
    set_dense_by_kind(build)?;
    let config = build.config;
    let n_ff = config.count(&["moe_intermediate_size"], "the number of neurons in an expert")?;
    let n_shared = config.u32(&["num_shared_experts"])?.unwrap_or(1);
    build.set("expert_shared_feed_forward_length", n_ff.saturating_mul(n_shared));
    build.set("expert_weights_norm", true);
    build.set("expert_gating_func", SIGMOID);
    build.experts()
}

fn llama4(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    build.sizes()?;
    let n_ff =
        config.count(&["intermediate_size_mlp"], "the number of neurons in a dense layer")?;
    build.set("feed_forward_length", n_ff);
    build.rms()?;
    build.heads()?;
    build.experts()?;
    for (key, usual) in [("attention_chunk_size", 8192), ("floor_scale", 8192)] {
        if let Some(other) = config.u32(&[key])?.filter(|&found| found != usual) {
            return Err(config.wrong_value(key, "8192, as in Scout and Maverick", other));
        }
    }
    let step =
        config.count(&["interleave_moe_layer_step"], "the distance of layers with experts")?;
    build.set("interleave_moe_layer_step", step);
    build.layers_on(On::Experts, |layer| (layer + 1).is_multiple_of(step))?;
    build.layers_on(On::Dense, |layer| !(layer + 1).is_multiple_of(step))?;
    if let Some(kinds) = build.kinds("layer_types")? {
        let is_usual = |(kind, i): (&String, u32)| {
            *kind == if i.is_multiple_of(4) { "full_attention" } else { "chunked_attention" }
        };
        if !kinds.iter().zip(1..).all(is_usual) {
            let expected = "full_attention in every fourth layer, otherwise chunked_attention";
            return Err(config.wrong_value("layer_types", expected, kinds.join(", ")));
        }
    }
    build.rope(build.d_head()?)
}
