//! Nemotron-H: each layer is a state space, attention, a dense block, or experts.

use super::keys::{Build, count, flag, number, whole};
use super::mamba::{GROUP, HEADS, KERNEL, MAMBA_ENDS, MIXER, STATE, set_inner};
use super::rule::{On, Rule, same_name};
use super::table::LLAMA;
use super::{Family, rope};
use crate::Error;
use crate::config::Json;

const NEMOTRON_ATTENTION: &[Rule] = &[
    same_name("layers.*.mixer.q_proj", "blk.*.attn_q"),
    same_name("layers.*.mixer.k_proj", "blk.*.attn_k"),
    same_name("layers.*.mixer.v_proj", "blk.*.attn_v"),
    same_name("layers.*.mixer.o_proj", "blk.*.attn_output"),
];
const NEMOTRON_DENSE: &[Rule] = &[
    same_name("layers.*.mixer.up_proj", "blk.*.ffn_up"),
    same_name("layers.*.mixer.down_proj", "blk.*.ffn_down"),
];
const NEMOTRON_EXPERTS: &[Rule] = &[
    same_name("layers.*.mixer.gate", "blk.*.ffn_gate_inp"),
    same_name("layers.*.mixer.gate.e_score_correction_bias", "blk.*.exp_probs_b"),
    same_name("layers.*.mixer.experts.*.up_proj", "blk.*.ffn_up_exps"),
    same_name("layers.*.mixer.experts.*.down_proj", "blk.*.ffn_down_exps"),
    same_name("layers.*.mixer.shared_experts.up_proj", "blk.*.ffn_up_shexp"),
    same_name("layers.*.mixer.shared_experts.down_proj", "blk.*.ffn_down_shexp"),
];

pub(super) const FAMILIES: &[Family] = &[NEMOTRON_H, NEMOTRON_H_MOE];

const NEMOTRON_H: Family = Family {
    arch: "nemotron_h",
    classes: &["NemotronHForCausalLM"],
    when: |config| !has_experts(config),
    activation: "relu2",
    rules: &[MAMBA_ENDS],
    some: &[
        (On::Recurrent, MIXER),
        (On::Attention, NEMOTRON_ATTENTION),
        (On::Dense, NEMOTRON_DENSE),
    ],
    settings: &[KERNEL, STATE, HEADS, GROUP],
    keys: nemotron_h,
    ..LLAMA
};

/// The same class with experts instead of dense blocks.
const NEMOTRON_H_MOE: Family = Family {
    arch: "nemotron_h_moe",
    when: has_experts,
    some: &[
        (On::Recurrent, MIXER),
        (On::Attention, NEMOTRON_ATTENTION),
        (On::Experts, NEMOTRON_EXPERTS),
    ],
    settings: &[
        KERNEL,
        STATE,
        HEADS,
        GROUP,
        count("expert_feed_forward_length", &["moe_intermediate_size"]),
        count("expert_shared_feed_forward_length", &["moe_shared_expert_intermediate_size"]),
        whole("expert_shared_count", &["n_shared_experts"]),
        whole("expert_group_count", &["n_group"]),
        whole("expert_group_used_count", &["topk_group"]),
        number("expert_weights_scale", &["routed_scaling_factor"]),
        flag("expert_weights_norm", &["norm_topk_prob"]),
    ],
    keys: nemotron_h_moe,
    ..NEMOTRON_H
};

/// The kind of each layer of Nemotron-H: `M` for Mamba, `*` for attention, `-` for a dense block, `E`
/// for experts.
fn pattern(build: &Build<'_>) -> Result<Vec<char>, Error> {
    const KEY: &str = "hybrid_override_pattern";
    let config = build.config;
    let kinds: Vec<char> = match (config.text(&[KEY])?, build.kinds("layers_block_type")?) {
        (Some(text), _) => text.chars().collect(),
        (None, Some(kinds)) => kinds
            .iter()
            .map(|kind| match kind.as_str() {
                "mamba" | "linear_attention" => 'M',
                "attention" | "full_attention" => '*',
                "mlp" => '-',
                "moe" => 'E',
                _ => '?',
            })
            .collect(),
        (None, None) => return Err(config.missing(KEY, "the kind of each layer")),
    };
    let n_layer = build.n_layer()? as usize;
    if kinds.len() != n_layer || !kinds.iter().all(|kind| "M*-E".contains(*kind)) {
        let expected = format!("M, *, - or E for each of the {n_layer} layers");
        return Err(config.wrong_value(KEY, &expected, kinds.iter().collect::<String>()));
    }
    Ok(kinds)
}

/// Whether a Nemotron-H has experts, and thus another architecture.
fn has_experts(config: &Json) -> bool {
    let is_set = |key: &str| config.get(&[key]).map(|(_, value)| value.to_string());
    is_set("hybrid_override_pattern").is_some_and(|pattern| pattern.contains('E'))
        || is_set("layers_block_type").is_some_and(|kinds| kinds.contains("\"moe\""))
}

fn nemotron_h_layers(build: &mut Build<'_>, wide: char, n_ff: u32) -> Result<(), Error> {
    let n_ctx = build.config.count(super::keys::CONTEXT, "the context length")?;
    build.set("context_length", n_ctx);
    build.shape()?;
    set_inner(build)?;
    let kinds = pattern(build)?;
    let unexpected = if wide == 'E' { '-' } else { 'E' };
    if kinds.contains(&unexpected) {
        let expected = "either dense blocks or experts";
        return Err(build.config.wrong_value("hybrid_override_pattern", expected, "both"));
    }
    let is = |kind: char| {
        let kinds = &kinds;
        move |layer: u32| kinds[layer as usize] == kind
    };
    build.layers_on(On::Recurrent, is('M'))?;
    build.layers_on(On::Attention, is('*'))?;
    build.layers_on(On::Dense, is('-'))?;
    build.layers_on(On::Experts, is('E'))?;
    let n_head_kv = build.n_head_kv()?;
    build.per_layer("attention.head_count_kv", On::Attention, n_head_kv);
    let on = if wide == 'E' { On::Experts } else { On::Dense };
    build.per_layer("feed_forward_length", on, n_ff);
    let config = build.config;
    let eps = config.f32(&["layer_norm_epsilon", "rms_norm_eps", "norm_eps"])?.unwrap_or(1e-5);
    // llama.cpp requires both keys.
    build.set("attention.layer_norm_rms_epsilon", eps);
    build.set("attention.layer_norm_epsilon", eps);
    let d_head = config.count(&["head_dim", "attention_head_dim"], "the head size")?;
    build.set("attention.key_length", d_head);
    build.set("attention.value_length", d_head);
    build.set("rope.dimension_count", d_head);
    rope::set(build, d_head)
}

fn nemotron_h(build: &mut Build<'_>) -> Result<(), Error> {
    let n_ff = build.config.count(&["intermediate_size"], "the number of neurons in a layer")?;
    nemotron_h_layers(build, '-', n_ff)
}

fn nemotron_h_moe(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    if let Some(size) = config.u32(&["moe_latent_size"])? {
        return Err(config.wrong_value("moe_latent_size", "null, as in Nemotron 3 Nano", size));
    }
    let n_ff = config.count(&["moe_intermediate_size"], "the number of neurons in an expert")?;
    nemotron_h_layers(build, 'E', n_ff)?;
    // Sigmoid.
    build.set("expert_gating_func", 2_u32);
    build.experts()
}
