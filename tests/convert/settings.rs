//! Invalid `config.json`, tokenizer and template files of a checkpoint: errors name the file or the
//! key, and none panics.

use std::fs;
#[cfg(unix)]
use std::path::Path;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use thermocline::convert::{Error, classes};

use super::{conversion, make, never_stop};

fn convert_with(config: &str) -> Result<(), Error> {
    let scratch = tempfile::tempdir().unwrap();
    let folder = make::folder(
        scratch.path(),
        &make::config(),
        "model.safetensors",
        &make::safetensors(&make::weights()),
    );
    fs::write(folder.join("config.json"), config).unwrap();
    conversion(folder, scratch.path().join("x.gguf")).run(&never_stop).map(drop)
}

fn error_for(key: &str, value: Value) -> String {
    let mut config = make::config();
    config[key] = value;
    convert_with(&config.to_string()).expect_err("refused").to_string()
}

#[test]
fn errors_name_the_invalid_key() {
    for key in
        ["architectures", "hidden_size", "num_hidden_layers", "num_attention_heads", "rms_norm_eps"]
    {
        let error = error_for(key, Value::Null);
        assert!(error.contains(key) && error.contains("missing"), "{error}");
    }
    for value in [json!(-1), json!("8"), json!(0), json!(1e30), json!([8]), json!(u32::MAX)] {
        let error = error_for("num_attention_heads", value);
        assert!(error.contains("num_attention_heads"), "{error}");
    }
    assert!(error_for("num_hidden_layers", json!(2)).contains("`blk.1."));
    assert!(error_for("hidden_act", json!("tanh")).contains("tanh"));
    assert!(error_for("rope_scaling", json!({"rope_type": "linear"})).contains("factor"));
    assert!(error_for("rope_scaling", json!({"rope_type": "spiral"})).contains("spiral"));
    assert!(error_for("head_dim", json!(3)).contains("whole heads of 3"));
    assert!(convert_with("{").unwrap_err().to_string().contains("not valid JSON"));
    assert!(convert_with(&"[".repeat(100_000)).unwrap_err().to_string().contains("not valid JSON"));
}

#[test]
fn an_unknown_architecture_is_refused_with_the_known_ones() {
    let mut config = make::config();
    config["architectures"] = json!(["WhisperForConditionalGeneration"]);
    let error = convert_with(&config.to_string()).unwrap_err();
    let Error::Architecture { found, known, .. } = &error else { panic!("{error}") };
    assert_eq!((found.as_str(), known), ("WhisperForConditionalGeneration", &classes()));
    assert!(classes().len() > 20);
}

/// Settings of all families, each as small as in a tiny model of one of them.
fn all_settings() -> Value {
    let numbers = "head_dim global_head_dim num_experts num_local_experts n_routed_experts moe_num_experts \
        num_experts_per_tok moe_k moe_topk moe_intermediate_size n_shared_experts num_shared_experts \
        n_group topk_group first_k_dense_replace num_nextn_predict_layers q_lora_rank kv_lora_rank \
        qk_rope_head_dim qk_nope_head_dim v_head_dim linear_num_key_heads linear_num_value_heads \
        linear_key_head_dim linear_value_head_dim linear_conv_kernel_dim full_attention_interval \
        conv_L_cache block_multiple_of state_size ssm_state_size mamba_d_state n_groups \
        mamba_n_groups num_heads mamba_n_heads mamba_num_heads mamba_d_head mamba_head_dim \
        mamba_d_ssm conv_kernel mamba_d_conv expand mamba_expand mamba_dt_rank time_step_rank \
        attn_layer_period attn_layer_offset expert_layer_period expert_layer_offset \
        interleave_moe_layer_step intermediate_size_mlp moe_layer_interval moe_layer_start_index \
        sliding_window hidden_size_per_layer_input num_kv_shared_layers top_k_experts n_positions \
        n_embd n_head n_layer d_model n_heads n_layers max_seq_len expansion_ratio rotary_dim \
        moe_shared_expert_intermediate_size num_dense_layers shared_intermediate_size \
        shared_expert_intermediate_size moe_ffn_hidden_size moe_num_primary_experts \
        moe_num_active_primary_experts ffn_dim local_attention";
    let mut config = make::config();
    for key in numbers.split_whitespace() {
        config[key] = json!(2);
    }
    let others = json!({
        "layer_types": ["full_attention"], "layers_block_type": ["moe"], "hybrid_override_pattern": "M",
        "mlp_layer_types": ["dense"], "rope_parameters": {"rope_type": "default", "mscale": 1.0,
        "mscale_all_dim": 1.0, "full_attention": {"rope_type": "proportional", "rope_theta": 1e4}},
        "partial_rotary_factor": 1.0, "layer_norm_eps": 1e-5, "layer_norm_epsilon": 1e-5, "norm_eps": 1e-5,
        "mlp_multipliers": [1.0, 1.0], "ssm_multipliers": [1.0, 1.0, 1.0, 1.0, 1.0], "mup_enabled": true,
        "activation_sparsity_pattern": [0.5], "attn_config": {"alibi": true}, "enable_moe_block": true,
        "use_double_wide_mlp": true, "scoring_func": "sigmoid", "no_rope_layers": [1]
    });
    for (key, value) in others.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

#[test]
fn invalid_configs_never_panic() {
    let (few, all) = (make::config(), all_settings());
    let odd = [
        json!(0),
        json!(1),
        json!(-1),
        json!(3),
        json!(u64::MAX),
        json!(1 << 24),
        json!(1e308),
        json!(""),
        json!("M*-E"),
        json!([]),
        json!({}),
        json!(true),
        json!(false),
        json!([0]),
        json!([1.0, 2.0]),
        json!(["mamba"]),
        json!(["sliding_attention"]),
        json!({"type": "yarn", "factor": 0}),
        json!({"rope_type": "llama3"}),
        json!({"rope_type": "longrope", "long_factor": [1.0], "short_factor": [1.0]}),
        json!({"0": {"head_dim": 4, "num_key_value_heads": 0}}),
        Value::Null,
    ];
    for seed in 0..900 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut config = if seed % 3 == 0 { few.clone() } else { all.clone() };
        let keys: Vec<String> = config.as_object().unwrap().keys().cloned().collect();
        config["architectures"] = json!([classes()[rng.random_range(0..classes().len())]]);
        for _ in 0..rng.random_range(0..4) {
            let key = match rng.random_range(0..4) {
                0 => "rope_scaling",
                _ => keys[rng.random_range(0..keys.len())].as_str(),
            };
            config[key] = odd[rng.random_range(0..odd.len())].clone();
        }
        let _ = convert_with(&config.to_string());
    }
}

#[test]
#[cfg(unix)]
fn only_regular_files_of_limited_size_are_read() {
    let scratch = tempfile::tempdir().unwrap();
    let bytes = make::safetensors(&make::weights());
    let error_with = |name: &str, put: &dyn Fn(&Path)| {
        let folder = make::folder(scratch.path(), &make::config(), "model.safetensors", &bytes);
        if name == "merges.txt" || name == "vocab.json" {
            fs::remove_file(folder.join("tokenizer.json")).unwrap();
            fs::write(folder.join("vocab.json"), r#"{"a": 0}"#).unwrap();
        }
        let path = folder.join(name);
        let _ = fs::remove_file(&path);
        put(&path);
        conversion(folder, scratch.path().join("x.gguf")).run(&never_stop).unwrap_err().to_string()
    };
    for name in ["config.json", "tokenizer.json", "merges.txt", "chat_template.jinja"] {
        let device = |path: &Path| std::os::unix::fs::symlink("/dev/zero", path).unwrap();
        let error = error_with(name, &device);
        assert!(error.contains(name) && error.contains("not a regular file"), "{error}");
        let error = error_with(name, &|path| fs::create_dir(path).unwrap());
        assert!(error.contains("not a regular file"), "{error}");
        // The sparse file of 1 TiB must not be read.
        let error =
            error_with(name, &|path| fs::File::create(path).unwrap().set_len(1 << 40).unwrap());
        assert!(error.contains("has 1099511627776 bytes, expected at most"), "{error}");
    }
    let binary = error_with("merges.txt", &|path| fs::write(path, [0xff, 0xfe]).unwrap());
    assert!(binary.contains("merges.txt") && binary.contains("utf-8"), "{binary}");
}

#[test]
fn an_embedding_for_more_tokens_than_any_vocabulary_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let mut weights = make::weights();
    let n = (1 << 20) + 1;
    weights[0] = (weights[0].0.clone(), vec![n, 1], vec![0.0; n as usize]);
    let bytes = make::safetensors(&weights);
    let folder = make::folder(scratch.path(), &make::config(), "model.safetensors", &bytes);
    let error = conversion(folder, scratch.path().join("x.gguf")).run(&never_stop).unwrap_err();
    assert!(error.to_string().contains("1048577 tokens"), "{error}");
}

#[test]
fn tokenizers_are_refused_with_a_reason() {
    let error_of = |tokenizer: &str| {
        let scratch = tempfile::tempdir().unwrap();
        let bytes = make::safetensors(&make::weights());
        let folder = make::folder(scratch.path(), &make::config(), "model.safetensors", &bytes);
        fs::write(folder.join("tokenizer.json"), tokenizer).unwrap();
        conversion(folder, scratch.path().join("x.gguf")).run(&never_stop).unwrap_err().to_string()
    };
    let bpe = |model: &str| {
        format!(
            r#"{{"pre_tokenizer": {{"type": "ByteLevel"}}, "model": {{"type": "BPE", {model}}}}}"#
        )
    };
    assert!(error_of("{}").contains("model.merges is missing"));
    assert!(error_of(r#"{"model": {"type": "WordLevel"}}"#).contains("WordLevel"));
    assert!(
        error_of(&bpe(r#""vocab": {"a": 99999999999}, "merges": []"#))
            .contains("the id of a token is negative")
    );
    assert!(
        error_of(&bpe(r#""vocab": {"a": -1}, "merges": []"#))
            .contains("the id of a token is negative")
    );
    assert!(error_of(&bpe(r#""vocab": {"a": 0}, "merges": []"#)).contains("merges is empty"));
    assert!(error_of(&bpe(r#""vocab": {"a": 0}, "merges": ["ab"]"#)).contains("merge"));
    assert!(error_of(&bpe(r#""vocab": {"a": 0}, "merges": [["a", "b", "c"]]"#)).contains("merge"));
    let other = r#"{"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "xyz"}}, "model": {"vocab": {"a": 0}, "merges": []}}"#;
    assert!(error_of(other).contains("xyz"));
    let added = r#"{"added_tokens": [{"id": 77777777, "content": "x"}], "pre_tokenizer": {"type": "ByteLevel"},
        "model": {"vocab": {"a": 0}, "merges": ["a a"]}}"#;
    assert!(error_of(added).contains("added token"));
}
