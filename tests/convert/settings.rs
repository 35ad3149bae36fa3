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
    config["architectures"] = json!(["MambaForCausalLM"]);
    let error = convert_with(&config.to_string()).unwrap_err();
    let Error::Architecture { found, known, .. } = &error else { panic!("{error}") };
    assert_eq!((found.as_str(), known), ("MambaForCausalLM", &classes()));
    assert!(classes().len() > 20);
}

#[test]
fn invalid_configs_never_panic() {
    let keys: Vec<String> = make::config().as_object().unwrap().keys().cloned().collect();
    let odd = [
        json!(0),
        json!(1),
        json!(-1),
        json!(3),
        json!(u64::MAX),
        json!(1e308),
        json!(""),
        json!([]),
        json!({}),
        json!(true),
        json!([0]),
        json!({"type": "yarn", "factor": 0}),
        json!({"rope_type": "llama3"}),
        json!({"rope_type": "longrope", "long_factor": [1.0], "short_factor": [1.0]}),
    ];
    for seed in 0..300 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut config = make::config();
        config["architectures"] = json!([classes()[rng.random_range(0..classes().len())]]);
        for _ in 0..rng.random_range(1..4) {
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
    assert!(error_of(&bpe(r#""vocab": {"a": 0}, "merges": ["ab"]"#)).contains("merge"));
    assert!(error_of(&bpe(r#""vocab": {"a": 0}, "merges": [["a", "b", "c"]]"#)).contains("merge"));
    let other = r#"{"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "xyz"}}, "model": {"vocab": {"a": 0}, "merges": []}}"#;
    assert!(error_of(other).contains("xyz"));
    let added = r#"{"added_tokens": [{"id": 77777777, "content": "x"}], "pre_tokenizer": {"type": "ByteLevel"},
        "model": {"vocab": {"a": 0}, "merges": []}}"#;
    assert!(error_of(added).contains("added token"));
}
