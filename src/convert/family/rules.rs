//! Rules that families share.
//!
//! Names lack the prefixes `model.` and `transformer.` and the suffixes `.weight` and `.bias`. The
//! first `*` stands for the layer number, the second for the expert number.
//!
//! Source: the tensor names of llama.cpp's gguf-py and of PowerInfer's converters.

use super::rule::{Rule, Transform, rule, same_name};

pub(super) const EMBEDDINGS: &[Rule] = &[
    same_name("embed_tokens", "token_embd"),
    same_name("norm", "output_norm"),
    same_name("lm_head", "output"),
];
pub(super) const NORMS: &[Rule] = &[
    same_name("layers.*.input_layernorm", "blk.*.attn_norm"),
    same_name("layers.*.post_attention_layernorm", "blk.*.ffn_norm"),
];
pub(super) const QK: &[Rule] = &[
    same_name("layers.*.self_attn.q_proj", "blk.*.attn_q"),
    same_name("layers.*.self_attn.k_proj", "blk.*.attn_k"),
];
pub(super) const ROPE_QK: &[Rule] = &[
    rule("layers.*.self_attn.q_proj", "blk.*.attn_q", Transform::Rope),
    rule("layers.*.self_attn.k_proj", "blk.*.attn_k", Transform::Rope),
];
pub(super) const QK_NORMS: &[Rule] = &[
    same_name("layers.*.self_attn.q_norm", "blk.*.attn_q_norm"),
    same_name("layers.*.self_attn.k_norm", "blk.*.attn_k_norm"),
];
pub(super) const VO: &[Rule] = &[
    same_name("layers.*.self_attn.v_proj", "blk.*.attn_v"),
    same_name("layers.*.self_attn.o_proj", "blk.*.attn_output"),
];
pub(super) const GATED: &[Rule] = &[same_name("layers.*.mlp.gate_proj", "blk.*.ffn_gate")];
pub(super) const UP_DOWN: &[Rule] = &[
    same_name("layers.*.mlp.up_proj", "blk.*.ffn_up"),
    same_name("layers.*.mlp.down_proj", "blk.*.ffn_down"),
];
pub(super) const MIXTRAL: &[Rule] = &[
    same_name("layers.*.block_sparse_moe.gate", "blk.*.ffn_gate_inp"),
    same_name("layers.*.block_sparse_moe.experts.*.w1", "blk.*.ffn_gate_exps"),
    same_name("layers.*.block_sparse_moe.experts.*.w2", "blk.*.ffn_down_exps"),
    same_name("layers.*.block_sparse_moe.experts.*.w3", "blk.*.ffn_up_exps"),
];
/// Qwen's names, with a tensor per expert or one for all; also Mixtral's in newer checkpoints.
pub(super) const EXPERTS: &[Rule] = &[
    same_name("layers.*.mlp.gate", "blk.*.ffn_gate_inp"),
    same_name("layers.*.mlp.experts.*.gate_proj", "blk.*.ffn_gate_exps"),
    same_name("layers.*.mlp.experts.*.up_proj", "blk.*.ffn_up_exps"),
    same_name("layers.*.mlp.experts.*.down_proj", "blk.*.ffn_down_exps"),
    rule("layers.*.mlp.experts.gate_up_proj", "blk.*.ffn_gate_exps", Transform::FirstHalf),
    rule("layers.*.mlp.experts.gate_up_proj", "blk.*.ffn_up_exps", Transform::SecondHalf),
    same_name("layers.*.mlp.experts.down_proj", "blk.*.ffn_down_exps"),
];
pub(super) const SHARED_EXPERT: &[Rule] = &[
    same_name("layers.*.mlp.shared_expert.gate_proj", "blk.*.ffn_gate_shexp"),
    same_name("layers.*.mlp.shared_expert.up_proj", "blk.*.ffn_up_shexp"),
    same_name("layers.*.mlp.shared_expert.down_proj", "blk.*.ffn_down_shexp"),
    same_name("layers.*.mlp.shared_expert_gate", "blk.*.ffn_gate_inp_shexp"),
];
pub(super) const SMALLTHINKER: &[Rule] = &[
    same_name("layers.*.block_sparse_moe.primary_router", "blk.*.ffn_gate_inp"),
    same_name("layers.*.block_sparse_moe.experts.*.gate", "blk.*.ffn_gate_exps"),
    same_name("layers.*.block_sparse_moe.experts.*.up", "blk.*.ffn_up_exps"),
    same_name("layers.*.block_sparse_moe.experts.*.down", "blk.*.ffn_down_exps"),
];
pub(super) const FUSED: &[Rule] = &[
    same_name("layers.*.self_attn.qkv_proj", "blk.*.attn_qkv"),
    same_name("layers.*.self_attn.o_proj", "blk.*.attn_output"),
    same_name("layers.*.mlp.gate_up_proj", "blk.*.ffn_up"),
    same_name("layers.*.mlp.down_proj", "blk.*.ffn_down"),
];
pub(super) const MLA: &[Rule] = &[
    same_name("layers.*.self_attn.q_proj", "blk.*.attn_q"),
    same_name("layers.*.self_attn.kv_a_proj_with_mqa", "blk.*.attn_kv_a_mqa"),
    same_name("layers.*.self_attn.kv_a_layernorm", "blk.*.attn_kv_a_norm"),
    same_name("layers.*.self_attn.kv_b_proj", "blk.*.attn_kv_b"),
    same_name("layers.*.self_attn.o_proj", "blk.*.attn_output"),
];
pub(super) const EMBEDDINGS_PLUS_ONE: &[Rule] = &[
    same_name("embed_tokens", "token_embd"),
    rule("norm", "output_norm", Transform::PlusOne),
    same_name("lm_head", "output"),
];
/// The output matrix equals the embedding, but some tools store both.
pub(super) const TIED_PLUS_ONE: &[Rule] = &[
    same_name("embed_tokens", "token_embd"),
    rule("norm", "output_norm", Transform::PlusOne),
    rule("lm_head", "output", Transform::Tied),
];
/// Rules of models without an output matrix.
pub(super) const GEMMA_EMBEDDINGS: &[Rule] =
    &[same_name("embed_tokens", "token_embd"), rule("norm", "output_norm", Transform::PlusOne)];
pub(super) const NORMS_PLUS_ONE: &[Rule] = &[
    rule("layers.*.input_layernorm", "blk.*.attn_norm", Transform::PlusOne),
    rule("layers.*.post_attention_layernorm", "blk.*.ffn_norm", Transform::PlusOne),
];
pub(super) const FOUR_NORMS_PLUS_ONE: &[Rule] = &[
    rule("layers.*.input_layernorm", "blk.*.attn_norm", Transform::PlusOne),
    rule("layers.*.post_attention_layernorm", "blk.*.post_attention_norm", Transform::PlusOne),
    rule("layers.*.pre_feedforward_layernorm", "blk.*.ffn_norm", Transform::PlusOne),
    rule("layers.*.post_feedforward_layernorm", "blk.*.post_ffw_norm", Transform::PlusOne),
];
pub(super) const QK_NORMS_PLUS_ONE: &[Rule] = &[
    rule("layers.*.self_attn.q_norm", "blk.*.attn_q_norm", Transform::PlusOne),
    rule("layers.*.self_attn.k_norm", "blk.*.attn_k_norm", Transform::PlusOne),
];
pub(super) const FALCON: &[Rule] = &[
    same_name("word_embeddings", "token_embd"),
    same_name("ln_f", "output_norm"),
    same_name("lm_head", "output"),
    // Falcon 7B has one norm for attention and feed-forward block; 40B has one for each.
    same_name("h.*.input_layernorm", "blk.*.attn_norm"),
    same_name("h.*.ln_mlp", "blk.*.attn_norm"),
    same_name("h.*.ln_attn", "blk.*.attn_norm_2").optional(),
    rule("h.*.self_attention.query_key_value", "blk.*.attn_qkv", Transform::FalconQkv),
    same_name("h.*.self_attention.dense", "blk.*.attn_output"),
    same_name("h.*.mlp.dense_h_to_4h", "blk.*.ffn_up"),
    same_name("h.*.mlp.dense_4h_to_h", "blk.*.ffn_down"),
];
pub(super) const OPT: &[Rule] = &[
    same_name("decoder.embed_tokens", "token_embd"),
    same_name("decoder.embed_positions", "position_embd"),
    same_name("decoder.final_layer_norm", "output_norm"),
    rule("lm_head", "output", Transform::Tied),
    same_name("decoder.layers.*.self_attn_layer_norm", "blk.*.attn_norm"),
    same_name("decoder.layers.*.self_attn.q_proj", "blk.*.attn_q"),
    same_name("decoder.layers.*.self_attn.k_proj", "blk.*.attn_k"),
    same_name("decoder.layers.*.self_attn.v_proj", "blk.*.attn_v"),
    same_name("decoder.layers.*.self_attn.out_proj", "blk.*.attn_output"),
    same_name("decoder.layers.*.final_layer_norm", "blk.*.ffn_norm"),
    same_name("decoder.layers.*.fc1", "blk.*.ffn_up"),
    same_name("decoder.layers.*.fc2", "blk.*.ffn_down"),
];
pub(super) const GPT_OSS: &[Rule] = &[
    same_name("layers.*.input_layernorm", "blk.*.attn_norm"),
    same_name("layers.*.post_attention_layernorm", "blk.*.post_attention_norm"),
    same_name("layers.*.self_attn.sinks", "blk.*.attn_sinks"),
    same_name("layers.*.mlp.router", "blk.*.ffn_gate_inp"),
    // Packed weights are two tensors, `_blocks` and `_scales`; the rule applies to the first.
    rule("layers.*.mlp.experts.gate_up_proj_blocks", "blk.*.ffn_gate_exps", Transform::Mxfp4Even),
    rule("layers.*.mlp.experts.gate_up_proj_blocks", "blk.*.ffn_up_exps", Transform::Mxfp4Odd),
    rule("layers.*.mlp.experts.down_proj_blocks", "blk.*.ffn_down_exps", Transform::Mxfp4),
    rule("layers.*.mlp.experts.gate_up_proj_scales", "", Transform::Drop),
    rule("layers.*.mlp.experts.down_proj_scales", "", Transform::Drop),
    rule("layers.*.mlp.experts.gate_up_proj", "blk.*.ffn_gate_exps", Transform::EvenColumns),
    rule("layers.*.mlp.experts.gate_up_proj", "blk.*.ffn_up_exps", Transform::OddColumns),
    rule("layers.*.mlp.experts.down_proj", "blk.*.ffn_down_exps", Transform::Columns),
    rule("layers.*.mlp.experts.gate_up_proj_bias", "blk.*.ffn_gate_exps", Transform::Even),
    rule("layers.*.mlp.experts.gate_up_proj_bias", "blk.*.ffn_up_exps", Transform::Odd),
    same_name("layers.*.mlp.experts.down_proj_bias", "blk.*.ffn_down_exps"),
];
/// Embeddings of BERT. Token types are optional.
pub(super) const BERT_EMBEDDINGS: &[Rule] = &[
    same_name("embeddings.word_embeddings", "token_embd"),
    same_name("embeddings.token_type_embeddings", "token_types").optional(),
    same_name("embeddings.LayerNorm", "token_embd_norm"),
    rule("embeddings.position_ids", "", Transform::Drop),
];
pub(super) const BERT_POSITIONS: &[Rule] =
    &[same_name("embeddings.position_embeddings", "position_embd")];
pub(super) const ROBERTA_POSITIONS: &[Rule] =
    &[rule("embeddings.position_embeddings", "position_embd", Transform::AfterPadding)];
pub(super) const BERT: &[Rule] = &[
    same_name("encoder.layer.*.attention.self.query", "blk.*.attn_q"),
    same_name("encoder.layer.*.attention.self.key", "blk.*.attn_k"),
    same_name("encoder.layer.*.attention.self.value", "blk.*.attn_v"),
    same_name("encoder.layer.*.attention.output.dense", "blk.*.attn_output"),
    same_name("encoder.layer.*.attention.output.LayerNorm", "blk.*.attn_output_norm"),
    same_name("encoder.layer.*.intermediate.dense", "blk.*.ffn_up"),
    same_name("encoder.layer.*.output.dense", "blk.*.ffn_down"),
    same_name("encoder.layer.*.output.LayerNorm", "blk.*.layer_output_norm"),
];
/// Heads that embeddings do not use: BERT's pooler, and the prediction of masked tokens.
pub(super) const NO_HEAD: &[Rule] = &[
    rule("pooler.dense", "", Transform::Drop),
    rule("cls.predictions", "", Transform::Drop),
    rule("cls.predictions.decoder", "", Transform::Drop),
    rule("cls.predictions.transform.dense", "", Transform::Drop),
    rule("cls.predictions.transform.LayerNorm", "", Transform::Drop),
    rule("cls.seq_relationship", "", Transform::Drop),
    rule("lm_head", "", Transform::Drop),
    rule("lm_head.dense", "", Transform::Drop),
    rule("lm_head.layer_norm", "", Transform::Drop),
    rule("lm_head.decoder", "", Transform::Drop),
];
/// The head of a BERT that classifies: its pooler, then a layer.
pub(super) const POOLED_CLASSIFIER: &[Rule] =
    &[same_name("pooler.dense", "cls"), same_name("classifier", "cls.output")];
pub(super) const ROBERTA_CLASSIFIER: &[Rule] =
    &[same_name("classifier.dense", "cls"), same_name("classifier.out_proj", "cls.output")];
pub(super) const NOMIC_BERT: &[Rule] = &[
    same_name("embeddings.word_embeddings", "token_embd"),
    same_name("embeddings.token_type_embeddings", "token_types").optional(),
    same_name("emb_ln", "token_embd_norm"),
    same_name("encoder.layers.*.attn.Wqkv", "blk.*.attn_qkv"),
    same_name("encoder.layers.*.attn.out_proj", "blk.*.attn_output"),
    same_name("encoder.layers.*.norm1", "blk.*.attn_output_norm"),
    same_name("encoder.layers.*.mlp.fc11", "blk.*.ffn_up"),
    same_name("encoder.layers.*.mlp.fc12", "blk.*.ffn_gate"),
    same_name("encoder.layers.*.mlp.fc2", "blk.*.ffn_down"),
    same_name("encoder.layers.*.norm2", "blk.*.layer_output_norm"),
];
/// The first layer has no norm before attention.
pub(super) const MODERN_BERT: &[Rule] = &[
    same_name("embeddings.tok_embeddings", "token_embd"),
    same_name("embeddings.norm", "token_embd_norm"),
    same_name("layers.*.attn_norm", "blk.*.attn_norm"),
    same_name("layers.*.attn.Wqkv", "blk.*.attn_qkv"),
    same_name("layers.*.attn.Wo", "blk.*.attn_output"),
    same_name("layers.*.mlp_norm", "blk.*.ffn_norm"),
    same_name("layers.*.mlp.Wi", "blk.*.ffn_up"),
    same_name("layers.*.mlp.Wo", "blk.*.ffn_down"),
    same_name("final_norm", "output_norm"),
];
pub(super) const NO_MODERN_HEAD: &[Rule] = &[
    rule("head.dense", "", Transform::Drop),
    rule("head.norm", "", Transform::Drop),
    rule("decoder", "", Transform::Drop),
];
pub(super) const MODERN_CLASSIFIER: &[Rule] = &[
    same_name("head.dense", "cls"),
    same_name("head.norm", "cls.norm"),
    same_name("classifier", "cls.output"),
];
/// The numbers of the activation become keys.
pub(super) const APERTUS: &[Rule] = &[
    same_name("layers.*.attention_layernorm", "blk.*.attn_norm"),
    same_name("layers.*.feedforward_layernorm", "blk.*.ffn_norm"),
    rule("layers.*.mlp.act_fn.alpha_n", "", Transform::Drop),
    rule("layers.*.mlp.act_fn.alpha_p", "", Transform::Drop),
    rule("layers.*.mlp.act_fn.beta", "", Transform::Drop),
    rule("layers.*.mlp.act_fn.eps", "", Transform::Drop),
];
/// A dense block beside the experts, each with a norm.
pub(super) const ARCTIC: &[Rule] = &[
    same_name("layers.*.input_layernorm", "blk.*.attn_norm"),
    same_name("layers.*.residual_layernorm", "blk.*.ffn_norm"),
    same_name("layers.*.post_attention_layernorm", "blk.*.ffn_norm_exps"),
    same_name("layers.*.residual_mlp.w1", "blk.*.ffn_gate"),
    same_name("layers.*.residual_mlp.w2", "blk.*.ffn_down"),
    same_name("layers.*.residual_mlp.w3", "blk.*.ffn_up"),
];
