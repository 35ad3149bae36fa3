//! The settings and tensors of small models, as published.

use serde_json::{Value, json};

use super::{Case, D, FF, N, case};

const GPT: [&str; 3] = ["transformer.wte.weight", "transformer.ln_f.weight", "lm_head.weight"];
const LLAMA: [&str; 3] = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"];
const NORMS: [(&str, &[u64]); 2] =
    [("input_layernorm.weight", &[N]), ("post_attention_layernorm.weight", &[N])];
const GPT_NORMS: [(&str, &[u64]); 2] = [("ln_1.weight", &[N]), ("ln_2.weight", &[N])];

pub(super) fn bailing() -> Case {
    let ends = ["model.word_embeddings.weight", LLAMA[1], LLAMA[2]];
    let mut case = case(
        "BailingMoeV2ForCausalLM",
        json!({"head_dim": D, "moe_intermediate_size": 8, "num_experts": 4, "num_experts_per_tok": 2,
            "num_shared_experts": 1, "n_group": 2, "topk_group": 1, "norm_topk_prob": true,
            "routed_scaling_factor": 2.5, "first_k_dense_replace": 1, "score_function": "sigmoid",
            "num_nextn_predict_layers": 1}),
        &ends,
    );
    for layer in 0..2 {
        let start = format!("model.layers.{layer}.");
        case.add(&start, &NORMS);
        case.add(
            &format!("{start}attention."),
            &[
                ("query_key_value.weight", &[4 * D, N]),
                ("dense.weight", &[N, N]),
                ("query_layernorm.weight", &[D]),
                ("key_layernorm.weight", &[D]),
            ],
        );
    }
    case.gated("model.layers.0.mlp.", FF);
    case.add("model.layers.1.mlp.", &[("gate.weight", &[4, N]), ("gate.expert_bias", &[4])]);
    for part in ["experts.0", "experts.1", "experts.2", "experts.3", "shared_experts"] {
        case.gated(&format!("model.layers.1.mlp.{part}."), 8);
    }
    case.add("model.layers.2.", &[("eh_proj.weight", &[N, 2 * N])]);
    case
}

pub(super) fn exaone() -> Case {
    let mut case = case("ExaoneForCausalLM", json!({"num_layers": 2, "head_dim": D}), &GPT);
    case.config.as_object_mut().unwrap().remove("num_hidden_layers");
    for layer in 0..2 {
        let start = format!("transformer.h.{layer}.");
        case.add(&start, &GPT_NORMS);
        case.add(
            &start,
            &[
                ("attn.attention.q_proj.weight", &[N, N]),
                ("attn.attention.k_proj.weight", &[D, N]),
                ("attn.attention.v_proj.weight", &[D, N]),
                ("attn.attention.out_proj.weight", &[N, N]),
                ("mlp.c_fc_0.weight", &[FF, N]),
                ("mlp.c_fc_1.weight", &[FF, N]),
                ("mlp.c_proj.weight", &[N, FF]),
            ],
        );
    }
    case
}

pub(super) fn qwen() -> Case {
    let more = json!({"intermediate_size": 2 * FF, "num_key_value_heads": 2});
    let mut case = case("QWenLMHeadModel", more, &GPT);
    for layer in 0..2 {
        let start = format!("transformer.h.{layer}.");
        case.add(&start, &GPT_NORMS);
        case.add(
            &start,
            &[
                ("attn.c_attn.weight", &[3 * N, N]),
                ("attn.c_attn.bias", &[3 * N]),
                ("attn.c_proj.weight", &[N, N]),
                ("mlp.w1.weight", &[FF, N]),
                ("mlp.w2.weight", &[FF, N]),
                ("mlp.c_proj.weight", &[N, FF]),
            ],
        );
    }
    case
}

pub(super) fn baichuan(more: Value) -> Case {
    let mut case = case("BaichuanForCausalLM", more, &LLAMA);
    case.config["num_hidden_layers"] = json!(32);
    case.config["num_key_value_heads"] = json!(2);
    for layer in 0..32 {
        let start = format!("model.layers.{layer}.");
        case.add(&start, &NORMS);
        case.add(
            &start,
            &[("self_attn.W_pack.weight", &[3 * N, N]), ("self_attn.o_proj.weight", &[N, N])],
        );
        case.gated(&format!("{start}mlp."), FF);
    }
    case
}

pub(super) fn internlm2() -> Case {
    let ends = ["model.tok_embeddings.weight", LLAMA[1], "output.weight"];
    let mut case = case("InternLM2ForCausalLM", json!({}), &ends);
    for layer in 0..2 {
        case.add(
            &format!("model.layers.{layer}."),
            &[
                ("attention_norm.weight", &[N]),
                ("ffn_norm.weight", &[N]),
                ("attention.wqkv.weight", &[4 * D, N]),
                ("attention.wo.weight", &[N, N]),
                ("feed_forward.w1.weight", &[FF, N]),
                ("feed_forward.w2.weight", &[N, FF]),
                ("feed_forward.w3.weight", &[FF, N]),
            ],
        );
    }
    case
}

pub(super) fn codeshell() -> Case {
    let more = json!({"num_query_groups": 1, "position_embedding_type": "rope",
        "activation_function": "gelu_pytorch_tanh"});
    let mut case = case("CodeShellForCausalLM", more, &GPT);
    case.add("", &[("transformer.ln_f.bias", &[N])]);
    for layer in 0..2 {
        let start = format!("transformer.h.{layer}.");
        case.add(&start, &GPT_NORMS);
        case.add(&start, &[("ln_1.bias", &[N]), ("ln_2.bias", &[N])]);
        for (part, rows, cols) in [
            ("attn.c_attn", 4 * D, N),
            ("attn.c_proj", N, N),
            ("mlp.c_fc", 4 * N, N),
            ("mlp.c_proj", N, 4 * N),
        ] {
            case.add(&format!("{start}{part}."), &[("weight", &[rows, cols]), ("bias", &[rows])]);
        }
    }
    case
}

pub(super) fn refact() -> Case {
    let mut case = case("GPTRefactForCausalLM", json!({}), &GPT);
    for layer in 0..2 {
        let start = format!("transformer.h.{layer}.");
        case.add(&start, &GPT_NORMS);
        case.add(
            &start,
            &[
                ("attn.q.weight", &[N, N]),
                ("attn.kv.weight", &[2 * D, N]),
                ("attn.c_proj.weight", &[N, N]),
                ("mlp.gate_up_proj.weight", &[512, N]),
                ("mlp.c_proj.weight", &[N, 256]),
            ],
        );
    }
    case
}

/// A layer without attention, and one without a feed-forward block.
pub(super) fn deci() -> Case {
    let block = |group: Option<u32>, factor: Option<f32>| {
        json!({"attention": {"n_heads_in_group": group, "replace_with_linear": false},
            "ffn": {"ffn_mult": factor, "replace_with_linear": false}})
    };
    let blocks = [block(Some(2), Some(3.0)), block(None, Some(40.0)), block(Some(1), None)];
    let more = json!({"num_hidden_layers": 3, "block_configs": blocks});
    let mut case = case("DeciLMForCausalLM", more, &LLAMA);
    for (layer, n_kv, n_ff) in [(0, 1, 256), (1, 0, 512), (2, 2, 0)] {
        let start = format!("model.layers.{layer}.");
        if n_kv > 0 {
            case.add(&start, &NORMS[..1]);
            llama_attention(&mut case, &start, n_kv);
        }
        if n_ff > 0 {
            case.add(&start, &NORMS[1..]);
            case.gated(&format!("{start}mlp."), n_ff);
        }
    }
    case
}

fn llama_attention(case: &mut Case, start: &str, n_kv: u64) {
    case.add(
        &format!("{start}self_attn."),
        &[
            ("q_proj.weight", &[N, N]),
            ("k_proj.weight", &[n_kv * D, N]),
            ("v_proj.weight", &[n_kv * D, N]),
            ("o_proj.weight", &[N, N]),
        ],
    );
}

pub(super) fn minicpm() -> Case {
    let more = json!({"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 8});
    let mut case = case("MiniCPMForCausalLM", more, &LLAMA);
    for layer in 0..2 {
        let start = format!("model.layers.{layer}.");
        case.add(&start, &NORMS);
        llama_attention(&mut case, &start, 1);
        case.gated(&format!("{start}mlp."), FF);
    }
    case
}

pub(super) fn rwkv6() -> Case {
    let ends = ["rwkv.embeddings.weight", "rwkv.ln_out.weight", "rwkv.ln_out.bias", "head.weight"];
    let mut case = case("Rwkv6ForCausalLM", json!({"head_size": D}), &ends);
    let parts = ["x", "w", "k", "v", "r", "g"];
    for layer in 0..2 {
        let start = format!("rwkv.blocks.{layer}.");
        for norm in ["ln1", "ln2", "attention.ln_x", "pre_ln"] {
            if norm != "pre_ln" || layer == 0 {
                case.add(&format!("{start}{norm}."), &[("weight", &[N]), ("bias", &[N])]);
            }
        }
        for part in parts {
            case.add(&format!("{start}attention.time_maa_{part}"), &[("", &[1, 1, N])]);
        }
        case.add(
            &start,
            &[
                ("attention.time_decay", &[1, 1, N]),
                ("attention.time_maa_w1", &[N, 160]),
                ("attention.time_maa_w2", &[5, 32, N]),
                ("attention.time_decay_w1", &[N, 64]),
                ("attention.time_decay_w2", &[64, N]),
                ("attention.time_faaaa", &[2, D]),
                ("feed_forward.time_maa_k", &[1, 1, N]),
                ("feed_forward.time_maa_r", &[1, 1, N]),
                ("feed_forward.key.weight", &[FF, N]),
                ("feed_forward.receptance.weight", &[N, N]),
                ("feed_forward.value.weight", &[N, FF]),
            ],
        );
        for part in ["key", "value", "receptance", "gate", "output"] {
            case.add(&format!("{start}attention.{part}.weight"), &[("", &[N, N])]);
        }
    }
    case
}

pub(super) fn rwkv7() -> Case {
    let ends =
        ["model.embeddings.weight", "model.norm.weight", "model.norm.bias", "lm_head.weight"];
    let more = json!({"head_dim": D, "decay_low_rank_dim": 3, "a_low_rank_dim": 4,
        "v_low_rank_dim": 5, "gate_low_rank_dim": 6});
    let mut case = case("RWKV7ForCausalLM", more, &ends);
    case.add("model.layers.0.pre_norm.", &[("weight", &[N]), ("bias", &[N])]);
    for layer in 0..2 {
        let start = format!("model.layers.{layer}.");
        for norm in ["attn_norm", "ffn_norm", "attn.g_norm"] {
            case.add(&format!("{start}{norm}."), &[("weight", &[N]), ("bias", &[N])]);
        }
        for part in ["r", "w", "k", "v", "a", "g"] {
            case.add(&format!("{start}attn.x_{part}"), &[("", &[1, 1, N])]);
        }
        for part in ["r", "k", "v", "o"] {
            case.add(&format!("{start}attn.{part}_proj.weight"), &[("", &[N, N])]);
        }
        case.add(
            &start,
            &[
                ("attn.k_k", &[N]),
                ("attn.k_a", &[N]),
                ("attn.r_k", &[2, D]),
                ("ffn.x_k", &[N]),
                ("ffn.key.weight", &[FF, N]),
                ("ffn.value.weight", &[N, FF]),
            ],
        );
        for (part, rank) in [("w", 3), ("a", 4), ("v", 5), ("g", 6)] {
            let start = format!("{start}attn.{part}_lora.lora.");
            if part != "v" || layer > 0 {
                case.add(&start, &[("0.weight", &[rank, N]), ("2.weight", &[N, rank])]);
            }
            if part != "g" && (part != "v" || layer > 0) {
                case.add(&start, &[("2.bias", &[N])]);
            }
        }
    }
    case
}

pub(super) fn plamo2() -> Case {
    let more = json!({"hidden_size_per_head": D, "mamba_d_state": 4, "mamba_d_conv": 4,
        "mamba_num_heads": 3, "mamba_step": 2, "tie_word_embeddings": true});
    let mut case = case("Plamo2ForCausalLM", more, &LLAMA[..2]);
    for layer in 0..2 {
        let start = format!("model.layers.layers.{layer}.");
        for norm in ["pre_mixer_norm", "post_mixer_norm", "pre_mlp_norm", "post_mlp_norm"] {
            case.add(&format!("{start}{norm}.weight"), &[("", &[N])]);
        }
        case.add(
            &start,
            &[("mlp.gate_up_proj.weight", &[2 * FF, N]), ("mlp.down_proj.weight", &[N, FF])],
        );
    }
    case.add(
        "model.layers.layers.0.mixer.",
        &[
            ("in_proj.weight", &[6 * D, N]),
            ("conv1d.weight", &[3 * D, 1, 4]),
            ("bcdt_proj.weight", &[72, 3 * D]),
            ("dt_proj.weight", &[3, 64]),
            ("dt_bias", &[3]),
            ("dt_norm_weight", &[64]),
            ("B_norm_weight", &[4]),
            ("C_norm_weight", &[4]),
            ("A_log", &[3]),
            ("D", &[3]),
            ("out_proj.weight", &[N, 3 * D]),
        ],
    );
    case.add(
        "model.layers.layers.1.mixer.",
        &[
            ("qkv_proj.weight", &[4 * D, N]),
            ("o_proj.weight", &[N, N]),
            ("q_weight", &[2, D]),
            ("k_weight", &[1, D]),
        ],
    );
    case
}
