//! Encoders with RoPE or ALiBi: Jina, Nomic 2, NeoBERT, EuroBERT, Llama Embed.

use super::encoders::{self, BERT, FIRST, encoder};
use super::keys::{Build, EPS};
use super::rule::{On, Reshape, Rule, Transform, rule, same_name};
use super::rules::{BERT_EMBEDDINGS, GATED, NO_HEAD, NORMS, QK, ROPE_QK, UP_DOWN, VO};
use super::table::{self, LLAMA};
use super::{Family, rope};
use crate::Error;
use crate::change::Selection;
use crate::config::Json;

const ATTENTION: &[Rule] = &[
    same_name("encoder.layer.*.attention.self.query", "blk.*.attn_q"),
    same_name("encoder.layer.*.attention.self.key", "blk.*.attn_k"),
    same_name("encoder.layer.*.attention.self.value", "blk.*.attn_v"),
    same_name("encoder.layer.*.attention.output.dense", "blk.*.attn_output"),
    same_name("encoder.layer.*.attention.output.LayerNorm", "blk.*.attn_output_norm"),
];
/// The models for code have other names, norms of queries and keys, and a second norm after
/// attention. In their joined matrix, the gates follow the other half.
const JINA_2: &[Rule] = &[
    same_name("encoder.layer.*.attention.self.layer_norm_q", "blk.*.attn_q_norm").optional(),
    same_name("encoder.layer.*.attention.self.layer_norm_k", "blk.*.attn_k_norm").optional(),
    same_name("encoder.layer.*.layer_norm_1", "blk.*.attn_norm_2").optional(),
    same_name("encoder.layer.*.mlp.gated_layers", "blk.*.ffn_up"),
    rule("encoder.layer.*.mlp.up_gated_layer", "blk.*.ffn_up", Transform::Rows(gates_first)),
    same_name("encoder.layer.*.mlp.wo", "blk.*.ffn_down"),
    same_name("encoder.layer.*.mlp.down_layer", "blk.*.ffn_down"),
    same_name("encoder.layer.*.mlp.layernorm", "blk.*.layer_output_norm"),
    same_name("encoder.layer.*.layer_norm_2", "blk.*.layer_output_norm"),
];
const JINA_3: &[Rule] = &[
    same_name("embeddings.word_embeddings", "token_embd"),
    same_name("embeddings.token_type_embeddings", "token_types").optional(),
    same_name("emb_ln", "token_embd_norm"),
    same_name("encoder.layers.*.mixer.Wqkv", "blk.*.attn_qkv"),
    same_name("encoder.layers.*.mixer.out_proj", "blk.*.attn_output"),
    same_name("encoder.layers.*.norm1", "blk.*.attn_output_norm"),
    same_name("encoder.layers.*.mlp.fc1", "blk.*.ffn_up"),
    same_name("encoder.layers.*.mlp.fc2", "blk.*.ffn_down"),
    same_name("encoder.layers.*.norm2", "blk.*.layer_output_norm"),
];
const NOMIC_2: &[Rule] = &[
    same_name("embeddings.word_embeddings", "token_embd"),
    same_name("embeddings.token_type_embeddings", "token_types").optional(),
    same_name("emb_ln", "token_embd_norm"),
    same_name("encoder.layers.*.attn.Wqkv", "blk.*.attn_qkv"),
    same_name("encoder.layers.*.attn.out_proj", "blk.*.attn_output"),
    same_name("encoder.layers.*.norm1", "blk.*.attn_output_norm"),
    same_name("encoder.layers.*.norm2", "blk.*.layer_output_norm"),
];
const NOMIC_DENSE: &[Rule] = &[
    same_name("encoder.layers.*.mlp.fc1", "blk.*.ffn_up"),
    same_name("encoder.layers.*.mlp.fc2", "blk.*.ffn_down"),
];
/// Rows of all experts follow each other in one matrix.
const NOMIC_EXPERTS: &[Rule] = &[
    same_name("encoder.layers.*.mlp.router.layer", "blk.*.ffn_gate_inp"),
    same_name("encoder.layers.*.mlp.experts.mlp.w1", "blk.*.ffn_up_exps")
        .reshape(Reshape::Stack(n_experts)),
    rule("encoder.layers.*.mlp.experts.mlp.w2", "blk.*.ffn_down_exps", Transform::Columns)
        .reshape(Reshape::Stack(n_experts)),
    rule("encoder.layers.*.mlp.experts.bias", "", Transform::Drop),
];
/// The rows of a head's query, key and value follow each other.
const NEO: &[Rule] = &[
    same_name("encoder", "token_embd"),
    same_name("layer_norm", "enc.output_norm"),
    same_name("transformer_encoder.*.attention_norm", "blk.*.attn_norm"),
    same_name("transformer_encoder.*.ffn_norm", "blk.*.ffn_norm"),
    rule("transformer_encoder.*.qkv", "blk.*.attn_qkv", Transform::Rows(queries_first)),
    same_name("transformer_encoder.*.wo", "blk.*.attn_output"),
    same_name("transformer_encoder.*.ffn.w12", "blk.*.ffn_up"),
    same_name("transformer_encoder.*.ffn.w3", "blk.*.ffn_down"),
    rule("decoder", "", Transform::Drop),
];
/// Rules of models without an output matrix.
const HEADLESS: &[Rule] = &[
    same_name("embed_tokens", "token_embd"),
    same_name("norm", "output_norm"),
    rule("lm_head", "", Transform::Drop),
];
const DISTILLED: &[Rule] = &[
    same_name("embeddings.word_embeddings", "token_embd"),
    same_name("embeddings.position_embeddings", "position_embd"),
    same_name("embeddings.LayerNorm", "token_embd_norm"),
    same_name("layer.*.attention.q_lin", "blk.*.attn_q"),
    same_name("layer.*.attention.k_lin", "blk.*.attn_k"),
    same_name("layer.*.attention.v_lin", "blk.*.attn_v"),
    same_name("layer.*.attention.out_lin", "blk.*.attn_output"),
    same_name("layer.*.sa_layer_norm", "blk.*.attn_output_norm"),
    same_name("layer.*.ffn.lin1", "blk.*.ffn_up"),
    same_name("layer.*.ffn.lin2", "blk.*.ffn_down"),
    same_name("layer.*.output_layer_norm", "blk.*.layer_output_norm"),
    rule("vocab_transform", "", Transform::Drop),
    rule("vocab_layer_norm", "", Transform::Drop),
    rule("vocab_projector", "", Transform::Drop),
];

/// These precede the families in `encoders.rs`, whose classes they share.
pub(super) const FAMILIES: &[Family] = &[
    Family {
        classes: &["DistilBertModel", "DistilBertForMaskedLM"],
        rules: &[DISTILLED],
        keys: distilled,
        ..BERT
    },
    Family {
        arch: "jina-bert-v2",
        classes: &["JinaBertModel", "JinaBertForMaskedLM"],
        activation: "gelu",
        rules: &[BERT_EMBEDDINGS, ATTENTION, JINA_2, NO_HEAD],
        keys: jina_2,
        ..LLAMA
    },
    Family {
        arch: "jina-bert-v3",
        classes: &["JinaEmbeddingsV3Model", "XLMRobertaModel"],
        when: is_jina_3,
        activation: "gelu",
        rules: &[JINA_3, NO_HEAD],
        keys: jina_3,
        ..LLAMA
    },
    Family {
        arch: "nomic-bert-moe",
        classes: &["NomicBertModel"],
        when: |config| config.u32(&["moe_every_n_layers"]).ok().flatten().is_some_and(|n| n > 0),
        activation: "gelu",
        rules: &[NOMIC_2],
        some: &[(On::Dense, NOMIC_DENSE), (On::Experts, NOMIC_EXPERTS)],
        keys: nomic_2,
        ..LLAMA
    },
    Family {
        arch: "neo-bert",
        classes: &["NeoBERT", "NeoBERTLMHead"],
        activation: "",
        rules: &[NEO],
        keys: neo,
        ..LLAMA
    },
    Family {
        arch: "eurobert",
        classes: &["EuroBertModel", "EuroBertForMaskedLM"],
        rules: &[HEADLESS, NORMS, QK, VO, GATED, UP_DOWN],
        keys: euro,
        ..LLAMA
    },
    Family {
        arch: "llama-embed",
        classes: &["LlamaBidirectionalModel"],
        rules: &[HEADLESS, NORMS, ROPE_QK, VO, GATED, UP_DOWN],
        keys: |build| {
            table::llama(build)?;
            encoder(build)
        },
        ..LLAMA
    },
];

fn distilled(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    build.sizes()?;
    build.feed_forward()?;
    // The models have no setting.
    build.set("attention.layer_norm_epsilon", 1e-12_f32);
    // llama.cpp requires the number of token types.
    build.keys.push(("tokenizer.ggml.token_type_count".to_owned(), 1_u32.into()));
    if config.bool(&["sinusoidal_pos_embds"])? == Some(true) {
        build.notes.push("sinusoidal_pos_embds: positions come from the stored table".to_owned());
    }
    encoder(build)
}

/// Jina's models have the older class of XLM-RoBERTa, and name their adapters.
fn is_jina_3(config: &Json) -> bool {
    let kind = config.text(&["model_type"]).ok().flatten();
    config.get(&["lora_adaptations"]).is_some() || kind.as_deref() == Some("jina_embeddings_v3")
}

/// Moves the gates before the other half, where readers of the file expect them.
fn gates_first(build: &Build<'_>) -> Result<Selection, Error> {
    let n_ff = build.config.count(&["intermediate_size"], "the number of neurons in a layer")?;
    Ok(Selection::join((n_ff..2 * n_ff).chain(0..n_ff), 2 * n_ff))
}

fn jina_2(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    for (key, expected) in [("position_embedding_type", "alibi"), ("feed_forward_type", "geglu")] {
        if let Some(found) = config.text(&[key])?.filter(|found| found != expected) {
            let expected = format!("{expected}, as in Jina Embeddings 2");
            return Err(config.wrong_value(key, &expected, found));
        }
    }
    build.sizes()?;
    build.feed_forward()?;
    build.layer_norm()?;
    encoder(build)
}

fn jina_3(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    if let Some(kind) = config.text(&["position_embedding_type"])?.filter(|kind| kind != "rotary") {
        return Err(config.wrong_value("position_embedding_type", "rotary", kind));
    }
    build.sizes()?;
    build.feed_forward()?;
    build.layer_norm()?;
    build.rope(rope::n_rotated(build, 1.0)?)?;
    if !build.has("rope.freq_base") {
        build.set("rope.freq_base", 20_000.0_f32);
    }
    if let Some(names) = config.list("lora_adaptations")? {
        build.notes.push(format!(
            "skipped: {} adapters ({}); the file has the weights without them",
            names.len(),
            names.iter().filter_map(|name| name.as_str()).collect::<Vec<_>>().join(", ")
        ));
        encoders::after_padding(build)?;
    }
    encoder(build)
}

fn n_experts(build: &Build<'_>) -> Result<u32, Error> {
    build.config.count(&["num_experts", "num_local_experts"], "the number of experts")
}

fn nomic_2(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    encoders::nomic_layout(build)?;
    for (key, expected) in [
        ("moe_normalize_expert_weights", false),
        ("ffn_gated", false),
        ("expert_choice_router", false),
    ] {
        if let Some(found) = config.bool(&[key])?.filter(|found| *found != expected) {
            return Err(config.wrong_value(key, "false, as in Nomic Embed 2", found));
        }
    }
    if let Some(n) = config.u32(&["num_shared_experts"])?.filter(|&n| n > 0) {
        return Err(config.wrong_value("num_shared_experts", "0, as in Nomic Embed 2", n));
    }
    build.sizes()?;
    // Nomic Embed 2 states a context that its training did not reach.
    let n_ctx = config.count(super::keys::CONTEXT, "the context length")?;
    let trained = config.u32(&["max_trained_positions"])?.unwrap_or(2048);
    build.replace("context_length", if n_ctx == trained { n_ctx.min(512) } else { n_ctx });
    build.feed_forward()?;
    build.layer_norm()?;
    build.rope(rope::n_rotated(build, 1.0)?)?;
    let period = config.count(&["moe_every_n_layers"], "the layers up to one with experts")?;
    build.set("moe_every_n_layers", period);
    let has_experts = |layer: u32| layer % period == 1;
    if period < 2 {
        let expected = "at least 2, as in Nomic Embed 2";
        return Err(config.wrong_value("moe_every_n_layers", expected, period));
    }
    build.layers_on(On::Experts, has_experts)?;
    build.layers_on(On::Dense, |layer| !has_experts(layer))?;
    build.set("expert_count", n_experts(build)?);
    build.set("expert_used_count", config.count(&["moe_top_k"], "the experts per token")?);
    build.notes.push("skipped: the bias after the experts of each layer, which files of this architecture do not have, as in llama.cpp".to_owned());
    encoder(build)
}

/// All queries, then all keys, then all values.
fn queries_first(build: &Build<'_>) -> Result<Selection, Error> {
    let (n_head, d_head) = (build.n_head()?, build.d_head()?);
    let n = n_head.saturating_mul(d_head);
    let part = |part: u32| (0..n).map(move |row| (row / d_head * 3 + part) * d_head + row % d_head);
    Ok(Selection::join(part(0).chain(part(1)).chain(part(2)), n.saturating_mul(3)))
}

fn neo(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    for key in ["rope", "rms_norm"] {
        if config.bool(&[key])? == Some(false) {
            return Err(config.wrong_value(key, "true, as in NeoBERT", false));
        }
    }
    if let Some(other) = config.text(&["hidden_act"])?.filter(|act| act.to_lowercase() != "swiglu")
    {
        return Err(config.wrong_value("hidden_act", "SwiGLU", other));
    }
    build.set("context_length", config.count(&["max_length"], "the context length")?);
    build.shape()?;
    // Two thirds of the stated number, in multiples of 8, as in the model's code.
    let n_ff = config.count(&["intermediate_size"], "the number of neurons in a layer")?;
    build.set("feed_forward_length", (2 * n_ff / 3).next_multiple_of(8));
    let eps = config.f32(EPS)?.unwrap_or(1e-6);
    build.set("attention.layer_norm_rms_epsilon", eps);
    build.set("rope.freq_base", 10_000.0_f32);
    build.set("rope.dimension_count", build.d_head()?);
    encoder(build)?;
    // As the model's card pools.
    if !build.has("pooling_type") {
        build.set("pooling_type", FIRST);
    }
    Ok(())
}

fn euro(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    for key in ["attention_bias", "mlp_bias"] {
        if config.bool(&[key])? == Some(true) {
            return Err(config.wrong_value(key, "false, as in EuroBERT", true));
        }
    }
    build.sizes()?;
    build.feed_forward()?;
    build.rms()?;
    build.heads()?;
    build.rope(build.d_head()?)?;
    encoder(build)
}
