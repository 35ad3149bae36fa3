//! No silent loss: a conversion reports data that a GGUF file cannot hold, and rejects data that
//! would make the model wrong.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use thermocline::convert::{Conversion, Error, OutType, Summary};
use thermocline::gguf::{Array, Container, File, TensorType};
use thermocline::model::{Model, ModelOptions};

use super::make::{self, Weight};
use super::{conversion, never_stop};

/// Converts `weights` with the usual settings and `more`, to a file in the folder `scratch`.
fn convert(scratch: &Path, weights: &[Weight], more: &Value) -> Result<(File, Summary), Error> {
    convert_as(scratch, weights, more, &|job| job)
}

fn convert_as(
    scratch: &Path,
    weights: &[Weight],
    more: &Value,
    job: &dyn Fn(Conversion) -> Conversion,
) -> Result<(File, Summary), Error> {
    let mut config = make::config();
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    let bytes = make::safetensors(weights);
    let folder = make::folder(scratch, &config, "model.safetensors", &bytes);
    let output = scratch.join("x.gguf");
    let summary = job(conversion(folder, output.clone())).run(&never_stop)?;
    Ok((File::open(&output).unwrap(), summary))
}

fn error_of(weights: &[Weight], more: &Value) -> String {
    let scratch = tempfile::tempdir().unwrap();
    convert(scratch.path(), weights, more).map(drop).expect_err("refused").to_string()
}

/// YaRN's attention factor (mscale), computed as in `transformers`.
fn yarn_factor(factor: f32, mscale: f32) -> f32 {
    0.1 * mscale * factor.ln() + 1.0
}

#[test]
fn yarn_attention_factors_match_transformers() {
    let usual = yarn_factor(4.0, 1.0);
    let cases = [
        (json!({}), usual, 0),
        (json!({"attention_factor": 1.0}), 1.0, 0),
        (json!({"attention_factor": 1.3}), 1.3, 0),
        (
            json!({"mscale": 0.7, "mscale_all_dim": 0.5}),
            yarn_factor(4.0, 0.7) / yarn_factor(4.0, 0.5),
            0,
        ),
        (json!({"mscale": 1.0, "mscale_all_dim": 1.0}), 1.0, 0),
        (json!({"mscale": 0.7}), usual, 1),
        (json!({"mscale": 0.7, "mscale_all_dim": 0.5, "attention_factor": 1.2}), 1.2, 2),
        (json!({"truncate": false}), usual, 1),
    ];
    for (more, expected, n_notes) in cases {
        let mut scaling =
            json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16});
        for (key, value) in more.as_object().unwrap() {
            scaling[key] = value.clone();
        }
        let scratch = tempfile::tempdir().unwrap();
        let more = json!({"rope_scaling": scaling});
        let (file, summary) = convert(scratch.path(), &make::weights(), &more).unwrap();
        assert_eq!(summary.notes.len(), n_notes, "{scaling}: {:?}", summary.notes);
        let model = Model::from_file(file, &ModelOptions::default()).unwrap();
        let scale = model.layers[0].attention().unwrap().rope.as_ref().unwrap().scale;
        assert!((scale - expected).abs() < 1e-6, "{scaling}: {scale}, expected {expected}");
    }
    // If `config.json` has no factor, it follows from the context sizes.
    let stretched =
        json!({"rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 16}});
    let scratch = tempfile::tempdir().unwrap();
    let (file, _) = convert(scratch.path(), &make::weights(), &stretched).unwrap();
    assert_eq!(file.metadata().f32("llama.rope.scaling.factor").unwrap(), Some(4.0));
    for scaling in [json!({"factor": 0.5}), json!({"factor": 2.0, "attention_factor": -1.0})] {
        let mut scaling = scaling;
        scaling["rope_type"] = json!("yarn");
        assert!(
            error_of(&make::weights(), &json!({"rope_scaling": scaling})).contains("rope_scaling.")
        );
    }
}

#[test]
fn a_checkpoint_with_missing_tensors_is_refused() {
    let two = json!({"num_hidden_layers": 2});
    let scratch = tempfile::tempdir().unwrap();
    let (file, _) = convert(scratch.path(), &make::layers(2), &two).unwrap();
    assert!(file.tensor("blk.1.ffn_up.weight").is_some());
    let without = |part: &str| -> Vec<Weight> {
        make::layers(2).into_iter().filter(|(name, ..)| !name.contains(part)).collect()
    };
    let holes = [
        ("layers.1.mlp.up_proj", "blk.1.ffn_up.weight"),
        ("layers.0.mlp.down_proj", "blk.0.ffn_down.weight"),
        ("mlp.gate_proj", "blk.0.ffn_gate.weight"),
        ("layers.0.self_attn.o_proj", "blk.0.attn_output.weight"),
        ("layers.1.", "blk.1."),
    ];
    for (part, expected) in holes {
        let error = error_of(&without(part), &two);
        assert!(error.contains(expected) && error.contains("missing"), "{error}");
    }
    assert!(error_of(&make::layers(2), &json!({})).contains("num_hidden_layers"));
    let untied = json!({"tie_word_embeddings": false});
    assert!(error_of(&make::weights(), &untied).contains("output.weight"));
    let mut narrow = make::layers(2);
    let up = narrow.iter_mut().find(|(name, ..)| name.contains("layers.1.mlp.up_proj")).unwrap();
    (up.1, up.2) = (vec![make::N_FF - 1, make::N_EMBD], vec![0.0; 88]);
    let error = error_of(&narrow, &two);
    assert!(error.contains("blk.1.ffn_up.weight") && error.contains("[11, 8]"), "{error}");
}

fn mixtral(n: usize, n_router: u64) -> Vec<Weight> {
    let mut weights = make::weights();
    weights.retain(|(name, ..)| !name.contains(".mlp."));
    let moe = "model.layers.0.block_sparse_moe";
    let mut add = |name: String, shape: [u64; 2]| {
        weights.push((name, shape.to_vec(), vec![0.5; (shape[0] * shape[1]) as usize]));
    };
    add(format!("{moe}.gate.weight"), [n_router, make::N_EMBD]);
    for expert in 0..n {
        for (part, shape) in [("w1", [12, 8]), ("w2", [8, 12]), ("w3", [12, 8])] {
            add(format!("{moe}.experts.{expert}.{part}.weight"), shape);
        }
    }
    weights
}

#[test]
fn the_number_of_experts_must_match_the_config() {
    let config = json!({
        "architectures": ["MixtralForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2, "hidden_act": "silu"
    });
    let scratch = tempfile::tempdir().unwrap();
    let (file, _) = convert(scratch.path(), &mixtral(4, 4), &config).unwrap();
    assert_eq!(file.tensor("blk.0.ffn_up_exps.weight").unwrap().shape, [8, 12, 4]);
    let error = error_of(&mixtral(3, 4), &config);
    assert!(error.contains("_exps.weight") && error.contains("4 experts"), "{error}");
    let error = error_of(&mixtral(4, 5), &config);
    assert!(error.contains("ffn_gate_inp") && error.contains("4 experts"), "{error}");
}

#[test]
fn gelu_variants_are_distinguished() {
    let cases = [
        ("gelu", "gelu_erf"),
        ("gelu_new", "gelu"),
        ("gelu_fast", "gelu"),
        ("gelu_pytorch_tanh", "gelu"),
        ("relu", "relu"),
    ];
    for (named, expected) in cases {
        let scratch = tempfile::tempdir().unwrap();
        let more = json!({"hidden_act": named});
        let (file, _) = convert(scratch.path(), &make::weights(), &more).unwrap();
        let found = file.metadata().str("llama.hidden_activation").unwrap();
        assert_eq!(found, Some(expected), "{named}");
    }
    for named in ["gelu_10", "quick_gelu", "gelu_unheard_of"] {
        assert!(error_of(&make::weights(), &json!({"hidden_act": named})).contains(named));
    }
    // Gemma was trained with the tanh approximation, although its first `config.json` named `gelu`.
    for (named, expected) in [("gelu", None), ("gelu_pytorch_tanh", None), ("silu", Some("silu"))] {
        let scratch = tempfile::tempdir().unwrap();
        let more =
            json!({"architectures": ["GemmaForCausalLM"], "hidden_act": named, "head_dim": 4});
        let (file, _) = convert(scratch.path(), &make::weights(), &more).unwrap();
        let found = file.metadata().str("gemma.hidden_activation").unwrap();
        assert_eq!(found, expected, "{named}");
    }
}

/// Converts a Gemma model with a separate output matrix, whose values are those of the embedding
/// plus `plus`.
fn gemma(plus: f32, more: Value) -> Result<(File, Summary), Error> {
    let mut weights = make::weights();
    let (_, shape, values) = weights[0].clone();
    let values = values.iter().map(|value| value + plus).collect();
    weights.push(("lm_head.weight".to_owned(), shape, values));
    let mut config =
        json!({"architectures": ["GemmaForCausalLM"], "hidden_act": "gelu", "head_dim": 4});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let scratch = tempfile::tempdir().unwrap();
    convert(scratch.path(), &weights, &config)
}

#[test]
fn an_untied_output_matrix_is_kept() {
    let output = |found: &(File, Summary)| found.0.tensor("output.weight").is_some();
    let same = gemma(0.0, json!({})).unwrap();
    assert!(!output(&same) && same.1.notes.is_empty(), "{:?}", same.1.notes);
    let untied = gemma(1.0, json!({"tie_word_embeddings": false})).unwrap();
    assert!(output(&untied) && untied.1.notes.is_empty());
    let tied = gemma(1.0, json!({"tie_word_embeddings": true})).unwrap();
    assert!(!output(&tied));
    let [note] = &tied.1.notes[..] else { panic!("{:?}", tied.1.notes) };
    assert!(note.contains("`lm_head.weight`"), "{note}");
}

#[test]
fn skipped_tensors_are_counted_in_a_note() {
    let scratch = tempfile::tempdir().unwrap();
    let mut weights = make::weights();
    for name in ["vision_tower.a.weight", "vision_tower.b.weight", "multi_modal_projector.c.weight"]
    {
        weights.push((name.to_owned(), vec![4], vec![0.0; 4]));
    }
    let small = |job| Conversion { out_type: OutType::Q8_0, pre: Some("qwen2".to_owned()), ..job };
    let (file, summary) = convert_as(scratch.path(), &weights, &json!({}), &small).unwrap();
    let notes = summary.notes.join("\n");
    for expected in [
        "2 tensors outside the text model, `vision_tower.*`",
        "1 tensors outside the text model, `multi_modal_projector.*`",
        "rows of 8 values do not fit Q8_0; using F16 for 7 tensors",
        "rows of 12 values do not fit Q8_0; using F16 for 1 tensors",
    ] {
        assert!(notes.contains(expected), "{notes}");
    }
    assert_eq!(summary.notes.len(), 4, "naming the pre-tokenizer in use loses nothing: {notes}");
    assert_eq!(file.tensor("blk.0.ffn_up.weight").unwrap().ty, TensorType::F16);
}

#[test]
fn biases_of_predictors_are_noted() {
    let scratch = tempfile::tempdir().unwrap();
    let predictor = scratch.path().join("predictor");
    fs::create_dir(&predictor).unwrap();
    let part = |name: &str, shape: &[u64]| -> Weight {
        (name.to_owned(), shape.to_vec(), vec![0.5; shape.iter().product::<u64>() as usize])
    };
    let parts = [
        part("fc1.weight", &[4, make::N_EMBD]),
        part("fc1.bias", &[4]),
        part("fc2.weight", &[make::N_FF, 4]),
        part("fc2.bias", &[make::N_FF]),
    ];
    fs::write(predictor.join("model_0.pt"), make::torch(&parts, &[])).unwrap();
    let with_predictor = |job| Conversion { predictor: Some(predictor.clone()), ..job };
    let (file, summary) =
        convert_as(scratch.path(), &make::weights(), &json!({}), &with_predictor).unwrap();
    assert_eq!(file.container(), Container::PowerInfer);
    let [note] = &summary.notes[..] else { panic!("{:?}", summary.notes) };
    assert!(note.contains("2 tensors of the predictors (`fc1.bias`, `fc2.bias`)"), "{note}");
}

#[test]
fn a_unigram_tokenizer_keeps_its_charsmap_and_notes_other_normalizers() {
    let scratch = tempfile::tempdir().unwrap();
    let tokenizer = json!({
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Precompiled", "precompiled_charsmap": "AAEC/w=="},
            {"type": "Lowercase"},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u{2581}"}
        ]},
        "pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "always"},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0]]}
    });
    let bytes = make::safetensors(&make::weights());
    let folder = make::folder(scratch.path(), &make::config(), "model.safetensors", &bytes);
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let output = scratch.path().join("x.gguf");
    let job = Conversion { pre: Some("qwen2".to_owned()), ..conversion(folder, output.clone()) };
    let summary = job.run(&never_stop).unwrap();
    let file = File::open(&output).unwrap();
    let map = file.metadata().get("tokenizer.ggml.precompiled_charsmap").unwrap();
    assert_eq!(map.as_array(), Some(&Array::U8(vec![0, 1, 2, 255])));
    let key = "tokenizer.ggml.remove_extra_whitespaces";
    assert_eq!(file.metadata().bool(key).unwrap(), Some(true));
    let [lowercase, pre] = &summary.notes[..] else { panic!("{:?}", summary.notes) };
    assert!(lowercase.contains("`Lowercase`") && pre.contains("--pre qwen2"), "{lowercase}; {pre}");
}
