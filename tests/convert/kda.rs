//! Checkpoints with Kimi Delta Attention: latent attention becomes matrices per head, filters and rates of
//! several shapes become those of the file.

use serde_json::{Value, json};

use super::families::{converted, refused, settings, weights, with};
use super::make::Weight;
use super::values;

/// A layer with Kimi Delta Attention and a layer with latent attention: two heads, rank 3, keys of 2 + 2 and
/// values of 2 values.
fn kimi() -> (Value, Vec<Weight>) {
    let config = settings(
        "KimiLinearForCausalLM",
        json!({
            "kv_lora_rank": 3, "qk_nope_head_dim": 2, "qk_rope_head_dim": 2, "v_head_dim": 2, "num_experts": 2,
            "num_experts_per_token": 1, "moe_intermediate_size": 4, "num_shared_experts": 1,
            "first_k_dense_replace": 2, "routed_scaling_factor": 2.5, "num_key_value_heads": 2,
            "linear_attn_config": {
                "full_attn_layers": [2], "head_dim": 2, "num_heads": 2, "short_conv_kernel_size": 4
            }
        }),
    );
    let mut shapes: Vec<(String, Vec<u64>)> = vec![
        ("model.embed_tokens.weight".to_owned(), vec![8, 8]),
        ("model.norm.weight".to_owned(), vec![8]),
        ("lm_head.weight".to_owned(), vec![8, 8]),
    ];
    for layer in 0..2 {
        let mut add = |name: &str, shape: &[u64]| {
            shapes.push((format!("model.layers.{layer}.{name}"), shape.to_vec()));
        };
        add("input_layernorm.weight", &[8]);
        add("post_attention_layernorm.weight", &[8]);
        add("mlp.gate_proj.weight", &[12, 8]);
        add("mlp.up_proj.weight", &[12, 8]);
        add("mlp.down_proj.weight", &[8, 12]);
        if layer == 0 {
            for part in ["q", "k", "v"] {
                add(&format!("self_attn.{part}_proj.weight"), &[4, 8]);
            }
            add("self_attn.q_conv1d.weight", &[4, 1, 4]);
            add("self_attn.k_conv1d.weight", &[4, 4]);
            add("self_attn.v_conv1d.weight", &[4, 1, 4]);
            for part in ["f", "g"] {
                add(&format!("self_attn.{part}_a_proj.weight"), &[2, 8]);
                add(&format!("self_attn.{part}_b_proj.weight"), &[4, 2]);
            }
            add("self_attn.b_proj.weight", &[2, 8]);
            add("self_attn.A_log", &[1, 1, 2, 1]);
            add("self_attn.dt_bias", &[4]);
            add("self_attn.o_norm.weight", &[2]);
            add("self_attn.o_proj.weight", &[8, 4]);
        } else {
            add("self_attn.q_proj.weight", &[8, 8]);
            add("self_attn.kv_a_proj_with_mqa.weight", &[5, 8]);
            add("self_attn.kv_a_layernorm.weight", &[3]);
            add("self_attn.kv_b_proj.weight", &[8, 3]);
            add("self_attn.o_proj.weight", &[8, 4]);
        }
    }
    let named: Vec<(&str, &[u64])> =
        shapes.iter().map(|(name, shape)| (name.as_str(), shape.as_slice())).collect();
    (config, weights(&named))
}

#[test]
fn latent_matrices_are_split_by_head() {
    let (config, all) = kimi();
    let (file, _) = converted(&config, &all);
    let source = |name: &str| {
        let found = all.iter().find(|(tensor, ..)| tensor.ends_with(name));
        found.unwrap_or_else(|| panic!("{name}")).2.clone()
    };
    let shape = |name: &str| file.tensor(name).unwrap().shape.clone();
    let kv_b = source("kv_b_proj.weight");
    // Rows of a head: two of keys, two of values. Keys are transposed.
    let (mut keys, mut head_values) = (Vec::new(), Vec::new());
    for head in 0..2 {
        let at = |row: usize, column: usize| kv_b[(head * 4 + row) * 3 + column];
        keys.extend((0..3).flat_map(|column| [at(0, column), at(1, column)]));
        head_values.extend((2..4).flat_map(|row| (0..3).map(move |column| at(row, column))));
    }
    assert_eq!(shape("blk.1.attn_k_b.weight"), [2, 3, 2]);
    assert_eq!(values(&file, "blk.1.attn_k_b.weight"), keys);
    assert_eq!(shape("blk.1.attn_v_b.weight"), [3, 2, 2]);
    assert_eq!(values(&file, "blk.1.attn_v_b.weight"), head_values);
    for part in ["q", "k", "v"] {
        let name = format!("blk.0.ssm_conv1d_{part}.weight");
        assert_eq!(shape(&name), [4, 1, 4], "{name}");
        assert_eq!(values(&file, &name), source(&format!("{part}_conv1d.weight")));
    }
    assert_eq!(shape("blk.0.ssm_a"), [1, 2]);
    let rates: Vec<f32> = source("A_log").iter().map(|log| -log.exp()).collect();
    assert_eq!(values(&file, "blk.0.ssm_a"), rates);
    let heads = file.metadata().u32_array("kimi-linear.attention.head_count_kv").unwrap().unwrap();
    assert_eq!(heads[..], [0, 1]);
}

/// Published files of Kimi Linear state the length under another name.
#[test]
fn the_context_length_of_kimi_linear_is_found() {
    let (mut config, all) = kimi();
    config.as_object_mut().unwrap().remove("max_position_embeddings");
    config["model_max_length"] = json!(96);
    let (file, _) = converted(&config, &all);
    assert_eq!(file.metadata().u32("kimi-linear.context_length").unwrap(), Some(96));
}

#[test]
fn settings_that_kimi_linear_lacks_are_refused() {
    let (config, all) = kimi();
    let cases = [
        (json!({"mla_use_nope": false}), "mla_use_nope"),
        (json!({"moe_renormalize": false}), "moe_renormalize"),
        (json!({"moe_router_activation_func": "softmax"}), "sigmoid"),
        (json!({"q_lora_rank": 4}), "q_lora_rank"),
        (json!({"num_expert_group": 2}), "num_expert_group"),
        (json!({"qk_nope_head_dim": 5}), "kv_b_proj"),
        (json!({"v_head_dim": 1 << 25}), "1 to 16777216"),
        (json!({"linear_attn_config": {"head_dim": 2}}), "full_attn_layers"),
        (json!({"linear_attn_config": {"full_attn_layers": [2], "num_heads": 3}}), "num_heads"),
        (json!({"linear_attn_config": {"full_attn_layers": [2]}}), "head_dim"),
    ];
    for (change, says) in cases {
        let error = refused(&with(&config, change), &all);
        assert!(error.contains(says), "{error} lacks {says}");
    }
}
