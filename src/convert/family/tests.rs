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
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    let config = Json::open(&path).unwrap();
    let family = find(&config).unwrap();
    let config = config.with_defaults(family.defaults);
    let build = family.build(&config)?;
    let start = format!("{}.", family.arch);
    let bare = |key: &str| key.strip_prefix(&start).unwrap().to_owned();
    let keys = build.keys.iter().map(|(key, value)| (bare(key), value.clone())).collect();
    Ok((keys, build.notes))
}

fn u32_of(keys: &Keys, key: &str) -> Option<i128> {
    keys.0.get(key).and_then(Value::as_integer)
}

fn refused_config(class: &str, more: &Setting) -> String {
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
