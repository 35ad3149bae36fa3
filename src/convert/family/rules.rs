//! Rules that map a checkpoint's tensors to the file's.
//!
//! Names are given without the prefixes `model.` and `transformer.` and without the suffixes
//! `.weight` and `.bias`; `*` is a number, the first one the layer, the second one the expert.
//!
//! Source: the tensor names of llama.cpp's gguf-py and of PowerInfer's converters.

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    /// The name in the checkpoint.
    pub(crate) from: &'static str,
    /// The name in the file; `*` is the layer.
    pub(crate) to: &'static str,
    pub(crate) how: Transform,
}

/// Transformation of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transform {
    /// Unchanged.
    Same,
    /// Dropped.
    Drop,
    /// An output matrix that equals the embedding and is dropped, unless it differs and
    /// `config.json` allows that.
    Tied,
    /// Rows of query or key heads are reordered so that RoPE pairs are adjacent.
    RopeQuery,
    RopeKey,
    /// Norm weights that are stored minus one.
    PlusOne,
    /// Falcon's fused queries, keys and values.
    FalconQkv,
    /// The first or second half of each matrix's rows.
    FirstHalf,
    SecondHalf,
    /// Rows with even or odd index.
    Even,
    Odd,
    /// As `Even`, `Odd` and `Same`, for matrices that are stored by columns.
    EvenColumns,
    OddColumns,
    Columns,
    /// 4-bit blocks with separate scales, for all, even or odd rows.
    Mxfp4,
    Mxfp4Even,
    Mxfp4Odd,
}

const fn same(from: &'static str, to: &'static str) -> Rule {
    Rule { from, to, how: Transform::Same }
}

const fn how(from: &'static str, to: &'static str, how: Transform) -> Rule {
    Rule { from, to, how }
}

pub(super) const EMBEDDINGS: &[Rule] =
    &[same("embed_tokens", "token_embd"), same("norm", "output_norm"), same("lm_head", "output")];
pub(super) const NORMS: &[Rule] = &[
    same("layers.*.input_layernorm", "blk.*.attn_norm"),
    same("layers.*.post_attention_layernorm", "blk.*.ffn_norm"),
];
pub(super) const QK: &[Rule] = &[
    same("layers.*.self_attn.q_proj", "blk.*.attn_q"),
    same("layers.*.self_attn.k_proj", "blk.*.attn_k"),
];
pub(super) const TURNED_QK: &[Rule] = &[
    how("layers.*.self_attn.q_proj", "blk.*.attn_q", Transform::RopeQuery),
    how("layers.*.self_attn.k_proj", "blk.*.attn_k", Transform::RopeKey),
];
pub(super) const QK_NORMS: &[Rule] = &[
    same("layers.*.self_attn.q_norm", "blk.*.attn_q_norm"),
    same("layers.*.self_attn.k_norm", "blk.*.attn_k_norm"),
];
pub(super) const VO: &[Rule] = &[
    same("layers.*.self_attn.v_proj", "blk.*.attn_v"),
    same("layers.*.self_attn.o_proj", "blk.*.attn_output"),
];
pub(super) const GATED: &[Rule] = &[same("layers.*.mlp.gate_proj", "blk.*.ffn_gate")];
pub(super) const UP_DOWN: &[Rule] = &[
    same("layers.*.mlp.up_proj", "blk.*.ffn_up"),
    same("layers.*.mlp.down_proj", "blk.*.ffn_down"),
];
pub(super) const MIXTRAL: &[Rule] = &[
    same("layers.*.block_sparse_moe.gate", "blk.*.ffn_gate_inp"),
    same("layers.*.block_sparse_moe.experts.*.w1", "blk.*.ffn_gate_exps"),
    same("layers.*.block_sparse_moe.experts.*.w2", "blk.*.ffn_down_exps"),
    same("layers.*.block_sparse_moe.experts.*.w3", "blk.*.ffn_up_exps"),
];
/// Qwen's names, with a tensor per expert or one for all; also Mixtral's in newer checkpoints.
pub(super) const EXPERTS: &[Rule] = &[
    same("layers.*.mlp.gate", "blk.*.ffn_gate_inp"),
    same("layers.*.mlp.experts.*.gate_proj", "blk.*.ffn_gate_exps"),
    same("layers.*.mlp.experts.*.up_proj", "blk.*.ffn_up_exps"),
    same("layers.*.mlp.experts.*.down_proj", "blk.*.ffn_down_exps"),
    how("layers.*.mlp.experts.gate_up_proj", "blk.*.ffn_gate_exps", Transform::FirstHalf),
    how("layers.*.mlp.experts.gate_up_proj", "blk.*.ffn_up_exps", Transform::SecondHalf),
    same("layers.*.mlp.experts.down_proj", "blk.*.ffn_down_exps"),
];
pub(super) const SHARED_EXPERT: &[Rule] = &[
    same("layers.*.mlp.shared_expert.gate_proj", "blk.*.ffn_gate_shexp"),
    same("layers.*.mlp.shared_expert.up_proj", "blk.*.ffn_up_shexp"),
    same("layers.*.mlp.shared_expert.down_proj", "blk.*.ffn_down_shexp"),
    same("layers.*.mlp.shared_expert_gate", "blk.*.ffn_gate_inp_shexp"),
];
pub(super) const SMALLTHINKER: &[Rule] = &[
    same("layers.*.block_sparse_moe.primary_router", "blk.*.ffn_gate_inp"),
    same("layers.*.block_sparse_moe.experts.*.gate", "blk.*.ffn_gate_exps"),
    same("layers.*.block_sparse_moe.experts.*.up", "blk.*.ffn_up_exps"),
    same("layers.*.block_sparse_moe.experts.*.down", "blk.*.ffn_down_exps"),
];
pub(super) const FUSED: &[Rule] = &[
    same("layers.*.self_attn.qkv_proj", "blk.*.attn_qkv"),
    same("layers.*.self_attn.o_proj", "blk.*.attn_output"),
    same("layers.*.mlp.gate_up_proj", "blk.*.ffn_up"),
    same("layers.*.mlp.down_proj", "blk.*.ffn_down"),
];
pub(super) const LATENT: &[Rule] = &[
    same("layers.*.self_attn.q_proj", "blk.*.attn_q"),
    same("layers.*.self_attn.kv_a_proj_with_mqa", "blk.*.attn_kv_a_mqa"),
    same("layers.*.self_attn.kv_a_layernorm", "blk.*.attn_kv_a_norm"),
    same("layers.*.self_attn.kv_b_proj", "blk.*.attn_kv_b"),
    same("layers.*.self_attn.o_proj", "blk.*.attn_output"),
];
pub(super) const EMBEDDINGS_PLUS_ONE: &[Rule] = &[
    same("embed_tokens", "token_embd"),
    how("norm", "output_norm", Transform::PlusOne),
    same("lm_head", "output"),
];
/// The output matrix equals the embedding; some tools store it nevertheless.
pub(super) const TIED_PLUS_ONE: &[Rule] = &[
    same("embed_tokens", "token_embd"),
    how("norm", "output_norm", Transform::PlusOne),
    how("lm_head", "output", Transform::Tied),
];
pub(super) const NORMS_PLUS_ONE: &[Rule] = &[
    how("layers.*.input_layernorm", "blk.*.attn_norm", Transform::PlusOne),
    how("layers.*.post_attention_layernorm", "blk.*.ffn_norm", Transform::PlusOne),
];
pub(super) const FOUR_NORMS_PLUS_ONE: &[Rule] = &[
    how("layers.*.input_layernorm", "blk.*.attn_norm", Transform::PlusOne),
    how("layers.*.post_attention_layernorm", "blk.*.post_attention_norm", Transform::PlusOne),
    how("layers.*.pre_feedforward_layernorm", "blk.*.ffn_norm", Transform::PlusOne),
    how("layers.*.post_feedforward_layernorm", "blk.*.post_ffw_norm", Transform::PlusOne),
];
pub(super) const QK_NORMS_PLUS_ONE: &[Rule] = &[
    how("layers.*.self_attn.q_norm", "blk.*.attn_q_norm", Transform::PlusOne),
    how("layers.*.self_attn.k_norm", "blk.*.attn_k_norm", Transform::PlusOne),
];
pub(super) const FALCON: &[Rule] = &[
    same("word_embeddings", "token_embd"),
    same("ln_f", "output_norm"),
    same("lm_head", "output"),
    // 7B has one norm for both branches, 40B one for each.
    same("h.*.input_layernorm", "blk.*.attn_norm"),
    same("h.*.ln_mlp", "blk.*.attn_norm"),
    same("h.*.ln_attn", "blk.*.attn_norm_2"),
    how("h.*.self_attention.query_key_value", "blk.*.attn_qkv", Transform::FalconQkv),
    same("h.*.self_attention.dense", "blk.*.attn_output"),
    same("h.*.mlp.dense_h_to_4h", "blk.*.ffn_up"),
    same("h.*.mlp.dense_4h_to_h", "blk.*.ffn_down"),
];
pub(super) const OPT: &[Rule] = &[
    same("decoder.embed_tokens", "token_embd"),
    same("decoder.embed_positions", "position_embd"),
    same("decoder.final_layer_norm", "output_norm"),
    how("lm_head", "output", Transform::Tied),
    same("decoder.layers.*.self_attn_layer_norm", "blk.*.attn_norm"),
    same("decoder.layers.*.self_attn.q_proj", "blk.*.attn_q"),
    same("decoder.layers.*.self_attn.k_proj", "blk.*.attn_k"),
    same("decoder.layers.*.self_attn.v_proj", "blk.*.attn_v"),
    same("decoder.layers.*.self_attn.out_proj", "blk.*.attn_output"),
    same("decoder.layers.*.final_layer_norm", "blk.*.ffn_norm"),
    same("decoder.layers.*.fc1", "blk.*.ffn_up"),
    same("decoder.layers.*.fc2", "blk.*.ffn_down"),
];
pub(super) const GPT_OSS: &[Rule] = &[
    same("layers.*.input_layernorm", "blk.*.attn_norm"),
    same("layers.*.post_attention_layernorm", "blk.*.post_attention_norm"),
    same("layers.*.self_attn.sinks", "blk.*.attn_sinks"),
    same("layers.*.mlp.router", "blk.*.ffn_gate_inp"),
    // Packed weights are two tensors, `_blocks` and `_scales`; the rule applies to the first.
    how("layers.*.mlp.experts.gate_up_proj_blocks", "blk.*.ffn_gate_exps", Transform::Mxfp4Even),
    how("layers.*.mlp.experts.gate_up_proj_blocks", "blk.*.ffn_up_exps", Transform::Mxfp4Odd),
    how("layers.*.mlp.experts.down_proj_blocks", "blk.*.ffn_down_exps", Transform::Mxfp4),
    how("layers.*.mlp.experts.gate_up_proj_scales", "", Transform::Drop),
    how("layers.*.mlp.experts.down_proj_scales", "", Transform::Drop),
    how("layers.*.mlp.experts.gate_up_proj", "blk.*.ffn_gate_exps", Transform::EvenColumns),
    how("layers.*.mlp.experts.gate_up_proj", "blk.*.ffn_up_exps", Transform::OddColumns),
    how("layers.*.mlp.experts.down_proj", "blk.*.ffn_down_exps", Transform::Columns),
    how("layers.*.mlp.experts.gate_up_proj_bias", "blk.*.ffn_gate_exps", Transform::Even),
    how("layers.*.mlp.experts.gate_up_proj_bias", "blk.*.ffn_up_exps", Transform::Odd),
    same("layers.*.mlp.experts.down_proj_bias", "blk.*.ffn_down_exps"),
];
