//! The keys that follow from settings.

use std::collections::BTreeMap;

use serde_json::{Value as Setting, json};

use super::*;
use gguf::{Array, Value};

/// Values by key (without the architecture's prefix), and notes.
type Keys = (BTreeMap<String, Value>, Vec<String>);

/// The keys of family `class` for small default settings, changed by `more`; `"gone"` removes a
/// setting.
fn keys_of(class: &str, more: &Setting) -> Result<Keys, Error> {
    let folder = tempfile::tempdir().unwrap();
    keys_in(folder.path(), class, more)
}

/// Small default settings of `class`, changed by `more`, in `folder`.
fn config_in(folder: &std::path::Path, class: &str, more: &Setting) -> Json {
    let mut config = json!({
        "architectures": [class], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5, "norm_eps": 1e-5, "num_local_experts": 4, "num_experts_per_tok": 2,
        "moe_num_primary_experts": 4, "moe_num_active_primary_experts": 2, "moe_ffn_hidden_size": 32
    });
    for (key, value) in more.as_object().unwrap() {
        if value == "gone" {
            config.as_object_mut().unwrap().remove(key);
        } else {
            config[key] = value.clone();
        }
    }
    let path = folder.join("config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    Json::open(&path).unwrap()
}

/// As [`keys_of`], in a folder that may have other files.
fn keys_in(folder: &std::path::Path, class: &str, more: &Setting) -> Result<Keys, Error> {
    let config = config_in(folder, class, more);
    let family = find(&config).unwrap();
    let config = config.with_defaults(family.defaults);
    let build = family.build(&config)?;
    let start = format!("{}.", family.arch);
    let bare = |key: &str| key.strip_prefix(&start).unwrap_or(key).to_owned();
    let keys = build.keys.iter().map(|(key, value)| (bare(key), value.clone())).collect();
    Ok((keys, build.notes))
}

fn u32_of(keys: &Keys, key: &str) -> Option<i128> {
    keys.0.get(key).and_then(Value::as_integer)
}

pub(super) fn refused_config(class: &str, more: &Setting) -> String {
    keys_of(class, more).map(|(keys, _)| keys).expect_err("refused").to_string()
}

fn windowed_layers(keys: &Keys) -> Option<Vec<bool>> {
    let pattern = keys.0.get("attention.sliding_window_pattern")?.as_array()?;
    if let Array::Bool(list) = pattern { Some(list.clone()) } else { None }
}

#[test]
fn rope_applies_to_a_fraction_of_a_head() {
    let n_rot = |class: &str, more: &Setting| {
        u32_of(&keys_of(class, more).unwrap(), "rope.dimension_count")
    };
    assert_eq!(n_rot("NemotronForCausalLM", &json!({})), Some(8));
    assert_eq!(n_rot("NemotronForCausalLM", &json!({"partial_rotary_factor": 0.25})), Some(4));
    assert_eq!(n_rot("Phi3ForCausalLM", &json!({})), Some(16));
    let newer = json!({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.75}});
    assert_eq!(n_rot("Phi3ForCausalLM", &newer), Some(12));
    for share in [json!(0), json!(-0.5), json!(1.5), json!(1e300), json!(0.07), json!(0.2)] {
        for class in ["NemotronForCausalLM", "Phi3ForCausalLM"] {
            let error = refused_config(class, &json!({"partial_rotary_factor": share}));
            assert!(error.contains("partial_rotary_factor"), "{error}");
        }
    }
    for half in [
        json!({"partial_rotary_factor": 0.5}),
        json!({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}),
    ] {
        let error = refused_config("GlmMoeDsaForCausalLM", &half);
        assert!(error.contains("partial_rotary_factor"), "{error}");
    }
}

#[test]
fn layer_types_select_the_layers_with_a_window() {
    let (s, f) = ("sliding_attention", "full_attention");
    let keys_with = |class: &str, kinds: [&str; 4], window: Setting| {
        keys_of(class, &json!({"layer_types": kinds, "sliding_window": window})).unwrap()
    };
    for class in ["Gemma2ForCausalLM", "GptOssForCausalLM"] {
        assert_eq!(
            windowed_layers(&keys_with(class, [s, f, s, f], json!(8))),
            None,
            "the default of the family"
        );
        let other = keys_with(class, [s, s, f, f], json!(8));
        assert_eq!(windowed_layers(&other), Some(vec![true, true, false, false]));
        assert_eq!(u32_of(&other, "attention.sliding_window"), Some(8));
        let none = keys_with(class, [f; 4], json!(8));
        assert_eq!(u32_of(&none, "attention.sliding_window"), Some(0));
    }
    let gemma3 = |kinds| keys_with("Gemma3ForCausalLM", kinds, json!(8));
    let pattern = |keys: &Keys| u32_of(keys, "attention.sliding_window_pattern");
    assert_eq!(pattern(&gemma3([s, f, s, f])), Some(2));
    assert_eq!(windowed_layers(&gemma3([s, f, f, s])), Some(vec![true, false, false, true]));
    assert_eq!(
        pattern(&keys_of("Gemma3ForCausalLM", &json!({"sliding_window_pattern": 3})).unwrap()),
        Some(3)
    );
    assert!(
        refused_config("Gemma3ForCausalLM", &json!({"sliding_window_pattern": 0}))
            .contains("sliding_window_pattern")
    );
    assert_eq!(
        windowed_layers(&keys_with("MistralForCausalLM", [s, f, s, s], json!(8))),
        Some(vec![true, false, true, true])
    );
    let full = keys_with("MistralForCausalLM", [f; 4], Setting::Null);
    assert_eq!(u32_of(&full, "attention.sliding_window"), None);
    for kinds in
        [json!([s, f]), json!([s, f, s, "chunked_attention"]), json!([s, f, s, 1]), json!(s)]
    {
        let error = refused_config(
            "Gemma2ForCausalLM",
            &json!({"layer_types": kinds, "sliding_window": 8}),
        );
        assert!(error.contains("layer_types"), "{error}");
    }
    let error = refused_config("MistralForCausalLM", &json!({"layer_types": [s, f, s, f]}));
    assert!(error.contains("sliding_window"), "{error}");
}

#[test]
fn qwen_windows_start_at_a_layer() {
    let used = json!({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 2});
    let keys = keys_of("Qwen3ForCausalLM", &used).unwrap();
    assert_eq!(windowed_layers(&keys), Some(vec![false, false, true, true]));
    assert_eq!(u32_of(&keys, "attention.sliding_window"), Some(8));
    let unused = json!({"use_sliding_window": false, "sliding_window": 8, "max_window_layers": 2});
    let keys = keys_of("Qwen2ForCausalLM", &unused).unwrap();
    assert_eq!((windowed_layers(&keys), u32_of(&keys, "attention.sliding_window")), (None, None));
    let kinds = json!({"layer_types": ["full_attention", "full_attention", "full_attention", "sliding_attention"]});
    assert!(refused_config("Qwen2ForCausalLM", &kinds).contains("use_sliding_window"));
}

#[test]
fn smallthinker_applies_rope_in_layers_with_a_window() {
    let keys = |windows: Setting, with_rope: Setting| {
        keys_of(
            "SmallThinkerForCausalLM",
            &json!({"sliding_window_layout": windows, "rope_layout": with_rope, "sliding_window_size": 8}),
        )
    };
    let usual = keys(json!([0, 1, 1, 1]), json!([0, 1, 1, 1])).unwrap();
    assert_eq!(
        (windowed_layers(&usual), u32_of(&usual, "attention.sliding_window")),
        (None, Some(8))
    );
    let other = keys(json!([1, 1, 0, 1]), json!([1, 1, 0, 1])).unwrap();
    assert_eq!(windowed_layers(&other), Some(vec![true, true, false, true]));
    let none = keys(json!([0, 0, 0, 0]), json!([1, 1, 1, 1])).unwrap();
    assert_eq!(u32_of(&none, "attention.sliding_window"), None);
    for (windows, with_rope) in [([0, 1, 1, 1], [1, 1, 1, 1]), ([0, 0, 0, 0], [0, 1, 1, 1])] {
        let error = keys(json!(windows), json!(with_rope)).map(|(keys, _)| keys).unwrap_err();
        assert!(error.to_string().contains("rope_layout"), "{error}");
    }
    let error = keys(json!([0, 2, 1, 1]), json!([0, 1, 1, 1])).map(|(keys, _)| keys).unwrap_err();
    assert!(error.to_string().contains("sliding_window_layout"), "{error}");
}

#[test]
fn gemma_3_has_default_heads() {
    let bare = json!({"num_attention_heads": "gone", "num_key_value_heads": "gone"});
    let keys = keys_of("Gemma3ForConditionalGeneration", &bare).unwrap();
    let value = |key: &str| u32_of(&keys, key).unwrap();
    assert_eq!((value("attention.head_count"), value("attention.head_count_kv")), (8, 4));
    assert_eq!((value("attention.key_length"), value("attention.value_length")), (256, 256));
    assert!(refused_config("LlamaForCausalLM", &bare).contains("num_attention_heads"));
}

/// The keys of family `class` in a folder with other files, as name and content.
fn keys_with_files(class: &str, more: &Setting, files: &[(&str, &str)]) -> Result<Keys, Error> {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    keys_in(folder.path(), class, more)
}

#[test]
fn folders_of_sentence_transformers_state_the_pooling_of_decoders() {
    let modules = r#"[{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]"#;
    let pooling = |pooling: &str| {
        let files = [("modules.json", modules), ("1_Pooling/config.json", pooling)];
        keys_with_files("Qwen3Model", &json!({}), &files)
    };
    let last = pooling(r#"{"pooling_mode_lasttoken": true}"#).unwrap();
    assert_eq!(u32_of(&last, "pooling_type"), Some(3));
    let mean = pooling(r#"{"pooling_mode": "mean"}"#).unwrap();
    assert_eq!(u32_of(&mean, "pooling_type"), Some(1));
    let error = pooling(r#"{"pooling_mode": "max"}"#).map(|(keys, _)| keys).unwrap_err();
    assert!(error.to_string().contains("pooling_mode"), "{error}");
    let plain = keys_of("Qwen3Model", &json!({})).unwrap();
    assert_eq!(u32_of(&plain, "pooling_type"), None);
    let dense = r#"[{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]"#;
    let error = keys_with_files("Qwen3Model", &json!({}), &[("modules.json", dense)]);
    let error = error.map(|(keys, _)| keys).unwrap_err().to_string();
    assert!(error.contains("gemma-embedding"), "{error}");
}

#[test]
fn qwen_3_ranks_if_its_class_or_its_card_says_so() {
    let plain = keys_of("Qwen3ForCausalLM", &json!({})).unwrap();
    assert_eq!(u32_of(&plain, "pooling_type"), None);
    let card = [("README.md", "---\n---\n# Qwen3-Reranker-0.6B\n")];
    let ranker = keys_with_files("Qwen3ForCausalLM", &json!({}), &card).unwrap();
    assert_eq!(u32_of(&ranker, "pooling_type"), Some(4));
    let labels = |keys: &Keys| {
        let Some(Array::String(labels)) =
            keys.0.get("classifier.output_labels").and_then(Value::as_array)
        else {
            return Vec::new();
        };
        labels.iter().map(|label| String::from_utf8(label.to_vec()).unwrap()).collect()
    };
    assert_eq!(labels(&ranker), ["yes", "no"]);
    let one = json!({"id2label": {"0": "LABEL_0"}});
    let one = keys_of("Qwen3ForSequenceClassification", &one).unwrap();
    assert_eq!(labels(&one), ["yes", "no"]);
    let three = json!({"id2label": {"0": "a", "2": "c", "1": "b"}});
    let three = keys_of("Qwen3ForSequenceClassification", &three).unwrap();
    assert_eq!(labels(&three), ["a", "b", "c"]);
}

#[test]
fn encoders_refuse_settings_of_other_layouts() {
    let eps = json!({"layer_norm_eps": 1e-5});
    let jina = keys_of("JinaBertForMaskedLM", &eps).unwrap();
    assert_eq!(jina.0["attention.causal"], Value::from(false));
    let more = |key: &str, value: Setting| {
        let mut all = eps.clone();
        all[key] = value;
        all
    };
    for (class, key, value) in [
        ("JinaBertForMaskedLM", "position_embedding_type", json!("absolute")),
        ("JinaBertForMaskedLM", "feed_forward_type", json!("reglu")),
        ("JinaEmbeddingsV3Model", "position_embedding_type", json!("absolute")),
        ("NeoBERTLMHead", "rms_norm", json!(false)),
        ("NeoBERTLMHead", "hidden_act", json!("gelu")),
        ("EuroBertModel", "mlp_bias", json!(true)),
    ] {
        let mut settings = more(key, value);
        settings["model_type"] = json!("jina_embeddings_v3");
        settings["max_length"] = json!(64);
        let error = refused_config(class, &settings);
        assert!(error.contains(key), "{class}: {error}");
    }
    let moe = json!({
        "layer_norm_eps": 1e-5, "moe_every_n_layers": 2, "num_experts": 4, "moe_top_k": 2,
        "moe_normalize_expert_weights": true
    });
    assert!(refused_config("NomicBertModel", &moe).contains("moe_normalize_expert_weights"));
    let adapters =
        json!({"layer_norm_eps": 1e-5, "lora_adaptations": ["a", "b"], "pad_token_id": 1});
    let (keys, notes) = keys_of("XLMRobertaModel", &adapters).unwrap();
    assert!(notes.iter().any(|note| note.contains("2 adapters (a, b)")), "{notes:?}");
    assert_eq!(keys.get("context_length").and_then(Value::as_integer), Some(254));
}

#[test]
fn joined_rows_are_split_by_head() {
    let rows = |class: &str, from: &str, more: &Setting| -> Vec<Vec<u32>> {
        let folder = tempfile::tempdir().unwrap();
        let config = config_in(folder.path(), class, more);
        let family = find(&config).unwrap();
        let build = family.build(&config).unwrap();
        let of = |rule: &Rule| {
            let Transform::Rows(list) = rule.transform else { return None };
            (rule.from == from).then(|| list(&build).unwrap().list.to_vec())
        };
        family.all_rules().filter_map(|(_, rule)| of(rule)).collect()
    };
    // Two heads of two values.
    let small = json!({"hidden_size": 4, "num_attention_heads": 2, "num_key_value_heads": 2,
        "max_length": 64, "first_k_dense_replace": 1, "moe_intermediate_size": 8, "n_shared_head": 1});
    let neo = rows("NeoBERTLMHead", "transformer_encoder.*.qkv", &small);
    assert_eq!(neo, [[0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]]);
    let ling = rows("BailingMoeForCausalLM", "layers.*.attention.query_key_value", &small);
    assert_eq!(ling, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]);
    let jina = json!({"layer_norm_eps": 1e-5, "intermediate_size": 2});
    let jina = rows("JinaBertModel", "encoder.layer.*.mlp.up_gated_layer", &jina);
    assert_eq!(jina, [[2, 3, 0, 1]]);
    let plamo = json!({"hidden_size": 8, "num_attention_heads": 8, "n_shared_head": 4});
    let plamo = rows("PlamoForCausalLM", "layers.layers.*.self_attn.q_proj", &plamo);
    assert_eq!(plamo, [[0, 2, 4, 6, 1, 3, 5, 7]]);
}

#[test]
fn the_second_stack_of_hrm_follows_the_first() {
    let more = json!({"num_layers_per_stack": 2, "num_hidden_layers": 12, "H_cycles": 2, "L_cycles": 2,
        "num_key_value_heads": 4, "prefix_lm": true});
    let (keys, notes) = keys_of("HrmTextForCausalLM", &more).unwrap();
    let number = |key: &str| keys.get(key).and_then(Value::as_integer);
    assert_eq!((number("block_count"), number("hrm.layers_per_stack")), (Some(12), Some(2)));
    assert!(notes.iter().any(|note| note.contains("prefix_lm")), "{notes:?}");
    let folder = tempfile::tempdir().unwrap();
    let config = config_in(folder.path(), "HrmTextForCausalLM", &more);
    let family = find(&config).unwrap();
    let build = family.build(&config).unwrap();
    assert_eq!(build.n_layer().unwrap(), 4, "layers of the checkpoint");
    let before = |start: &str| {
        let mut rules = family.all_rules().filter(|(_, rule)| rule.from.starts_with(start));
        let after = rules.next().unwrap().1.after;
        after.map(|after| after(&build).unwrap())
    };
    assert_eq!((before("L_module"), before("H_module")), (None, Some(2)));
}

#[test]
fn newer_hybrids_refuse_settings_that_files_cannot_hold() {
    let kda = json!({
        "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
        "moe_intermediate_size": 8, "num_experts": 4, "num_shared_experts": 1,
        "mla_use_nope": true, "hidden_act": "situ", "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0, "attn_res_block_size": 2,
        "linear_attn_config": {"full_attn_layers": [4], "head_dim": 16, "short_conv_kernel_size": 4}
    });
    let with = |base: &Setting, key: &str, value: Setting| {
        let mut all = base.clone();
        all[key] = value;
        all
    };
    let keys = keys_of("KimiK3ForConditionalGeneration", &kda).unwrap();
    let Some(Array::I32(kv)) = keys.0["attention.head_count_kv"].as_array() else { panic!() };
    assert_eq!(kv, &[0, 0, 0, 1]);
    for (key, value) in [("hidden_act", json!("silu")), ("mla_use_nope", json!(false))] {
        let error = refused_config("KimiK3ForConditionalGeneration", &with(&kda, key, value));
        assert!(error.contains(key), "{error}");
    }
    let kinds = ["linear_attention", "linear_attention", "indexed_attention", "linear_attention"];
    let glm = json!({
        "kv_lora_rank": 8, "q_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 0,
        "v_head_dim": 8, "moe_intermediate_size": 8, "n_routed_experts": 4, "layer_types": kinds,
        "index_n_heads": 2, "index_head_dim": 8, "index_topk": 8, "index_kpool": 4, "hc_mult": 2,
        "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "linear_num_heads": 4, "linear_head_dim": 8,
        "linear_conv_kernel_dim": 4, "swiglu_limit": 10.0
    });
    let keys = keys_of("Glm5NextForConditionalGeneration", &glm).unwrap();
    assert_eq!(keys.0["kda.gate_lower_bound"], Value::from(-5.0_f32), "the usual bound");
    for (key, value) in [
        ("qk_rope_head_dim", json!(8)),
        ("n_group", json!(2)),
        ("index_topk_pattern", json!("FS")),
        ("layer_types", json!(["mamba", "mamba", "mamba", "mamba"])),
        ("linear_num_heads", json!(2)),
    ] {
        let error = refused_config("Glm5NextForConditionalGeneration", &with(&glm, key, value));
        assert!(error.contains(key.trim_start_matches("linear_")), "{error}");
    }
    let qwen = json!({
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
        "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4, "num_experts": 4,
        "moe_intermediate_size": 8, "hc_count": 2, "hc_lowrank": 4, "indexer_n_heads": 2,
        "indexer_head_dim": 8, "indexer_budget": 8, "indexer_compress_ratio": 4,
        "output_gate_type": "sigmoid", "ple_layer_ids": [2], "heads_per_ngram": 2,
        "eos_token_id": [7, 9]
    });
    let keys = keys_of("Qwen4ExpForCausalLM", &qwen).unwrap();
    let Some(Array::I32(ratios)) = keys.0["attention.compress_ratios"].as_array() else { panic!() };
    assert_eq!(ratios, &[0, 0, 0, 4]);
    assert_eq!(u32_of(&keys, "ple.eos_token_id"), Some(7), "the first");
    assert_eq!(u32_of(&keys, "embedding_length_per_layer_input"), Some(16));
    for (key, value) in [
        ("output_gate_type", json!("silu")),
        ("ple_layer_ids", json!([1, 2])),
        ("ple_embed_dim", json!(7)),
        ("indexer_kv_heads", json!(2)),
    ] {
        let error = refused_config("Qwen4ExpForCausalLM", &with(&qwen, key, value));
        assert!(error.contains(key), "{error}");
    }
}

/// The settings of a small DeepSeek V4 with the names of published checkpoints.
fn deepseek4() -> Setting {
    json!({
        "num_key_value_heads": 1, "head_dim": 16, "qk_rope_head_dim": 8, "q_lora_rank": 8,
        "o_lora_rank": 8, "o_groups": 2, "moe_intermediate_size": 32, "n_routed_experts": 4,
        "n_shared_experts": 1, "scoring_func": "sqrtsoftplus", "norm_topk_prob": true,
        "routed_scaling_factor": 1.5, "swiglu_limit": 10.0, "sliding_window": 128, "hc_mult": 4,
        "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "num_hash_layers": 1, "index_n_heads": 4,
        "index_head_dim": 64, "index_topk": 8, "compress_ratios": [0, 4, 128, 4, 0],
        "rope_theta": 10000, "compress_rope_theta": 160000, "expert_dtype": "fp4",
        "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 64}
    })
}

#[test]
fn deepseek_v4_has_kinds_of_layers_and_two_bases_of_rope() {
    const CLASS: &str = "DeepseekV4ForCausalLM";
    let all = deepseek4();
    let keys = keys_of(CLASS, &all).unwrap();
    let ratios = Value::Array(Array::I32(vec![0, 4, 128, 4]));
    assert_eq!(keys.0["attention.compress_ratios"], ratios);
    for (key, number) in
        [("hash_layer_count", 1), ("expert_gating_func", 4), ("embedding_length_out", 256)]
    {
        assert_eq!(u32_of(&keys, key), Some(number), "{key}");
    }
    assert!(!keys.0.contains_key("rope.scaling.attn_factor"));
    // The same settings as `transformers` stores them.
    let kinds = [
        "sliding_attention",
        "compressed_sparse_attention",
        "heavily_compressed_attention",
        "compressed_sparse_attention",
    ];
    let mut newer = all.clone();
    for gone in ["compress_ratios", "num_hash_layers", "rope_scaling", "qk_rope_head_dim"] {
        newer[gone] = json!("gone");
    }
    newer["layer_types"] = json!(kinds);
    newer["mlp_layer_types"] = json!(["hash_moe", "moe", "moe", "moe"]);
    newer["partial_rotary_factor"] = json!(0.5);
    newer["rope_parameters"] = json!({
        "main": {"rope_type": "default", "rope_theta": 10000},
        "compress": {"rope_type": "yarn", "rope_theta": 160000, "factor": 16,
            "original_max_position_embeddings": 64, "attention_factor": 1.0}
    });
    assert_eq!(keys_of(CLASS, &newer).unwrap().0, keys.0);
    let refuses = |base: &Setting, key: &str, value: Setting, names: &str| {
        let mut all = base.clone();
        all[key] = value;
        let error = refused_config(CLASS, &all);
        assert!(error.contains(names), "{error}");
    };
    for (key, value) in [
        ("num_key_value_heads", json!(2)),
        ("n_group", json!(2)),
        ("norm_topk_prob", json!(false)),
        ("scoring_func", json!("sigmoid")),
        ("expert_dtype", json!("int4")),
        ("attention_bias", json!(true)),
        ("compress_ratios", json!([0, 4, 128])),
        ("compress_ratios", json!([0, 4, 64, 4])),
        ("num_hash_layers", json!(5)),
        ("qk_rope_head_dim", json!(18)),
        ("qk_rope_head_dim", json!(7)),
        ("swiglu_limit", json!("gone")),
        ("head_dim", json!("gone")),
        ("compress_rope_theta", json!("gone")),
    ] {
        refuses(&all, key, value, key);
    }
    refuses(&all, "compress_rate_csa", json!(8), "compress_rates.compressed_sparse_attention");
    refuses(
        &all,
        "layer_types",
        json!(["full_attention", kinds[0], kinds[0], kinds[0]]),
        "layer_types",
    );
    refuses(&newer, "mlp_layer_types", json!(["moe", "hash_moe", "moe", "moe"]), "mlp_layer_types");
    let scaling = json!({"type": "linear", "factor": 4});
    refuses(&all, "rope_scaling", scaling, "default or yarn");
    let mut split = newer.clone();
    split["rope_parameters"]["compress"]["attention_factor"] = json!(1.5);
    assert!(refused_config(CLASS, &split).contains("attention_factor"));
    split["rope_parameters"]["compress"]["attention_factor"] = json!(1.0);
    split["rope_parameters"]["main"]["rope_type"] = json!("yarn");
    assert!(refused_config(CLASS, &split).contains("rope_parameters.main"));
}

#[test]
fn loops_and_other_scales_are_refused() {
    let nanbeige = json!({"num_loops": 2});
    assert!(refused_config("NanbeigeForCausalLM", &nanbeige).contains("num_loops"));
    let phi = json!({"rope_scaling": {
        "type": "longrope", "short_mscale": 1.2, "long_mscale": 1.3, "long_factor": [1, 1, 1, 1, 1, 1, 1, 1],
        "short_factor": [1, 1, 1, 1, 1, 1, 1, 1], "original_max_position_embeddings": 64}});
    assert!(refused_config("PhiMoEForCausalLM", &phi).contains("short_mscale"));
    let (_, notes) = keys_of("PhiMoEForCausalLM", &json!({})).unwrap();
    assert!(notes.iter().any(|note| note.contains("SparseMixer")), "{notes:?}");
    let jais = json!({"layer_norm_epsilon": 1e-5, "n_inner": 96, "n_positions": 64, "scale_qk_dot_by_d": false});
    assert!(refused_config("JAISLMHeadModel", &jais).contains("scale_qk_dot_by_d"));
}
