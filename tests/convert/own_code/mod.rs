//! Families whose code is in the models' own repositories: names and shapes as published, converted and run.

mod models;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde_json::{Value, json};
use thermocline::devices;
use thermocline::engine::{Engine, EngineOptions, LogitsRequest};
use thermocline::gguf::File;
use thermocline::model::{Model, ModelOptions};

use super::make::{self, Weight};
use super::{conversion, never_stop, values};
use models::{
    baichuan, bailing, codeshell, deci, exaone, internlm2, minicpm, plamo2, qwen, refact, rwkv6,
    rwkv7,
};

const N: u64 = 16;
const D: u64 = 8;
const FF: u64 = 24;
const VOCAB: u64 = 8;

struct Case {
    config: Value,
    shapes: Vec<(String, Vec<u64>)>,
}

/// Settings and tensors outside of the layers.
fn case(class: &str, more: Value, ends: &[&str]) -> Case {
    let mut config = json!({
        "architectures": [class], "hidden_size": N, "intermediate_size": FF, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": VOCAB,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "layer_norm_epsilon": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": false
    });
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    let mut case = Case { config, shapes: Vec::new() };
    for end in ends {
        let shape: &[u64] =
            if end.contains("norm") || end.contains("ln") { &[N] } else { &[VOCAB, N] };
        case.add("", &[(end, shape)]);
    }
    case
}

impl Case {
    fn add(&mut self, start: &str, shapes: &[(&str, &[u64])]) {
        for (name, shape) in shapes {
            self.shapes.push((format!("{start}{name}"), shape.to_vec()));
        }
    }

    fn gated(&mut self, start: &str, n: u64) {
        let (wide, down) = ([n, N], [N, n]);
        self.add(
            start,
            &[("gate_proj.weight", &wide), ("up_proj.weight", &wide), ("down_proj.weight", &down)],
        );
    }

    fn without(&self, tensor: &str) -> Case {
        let shapes = self.shapes.iter().filter(|(name, _)| name != tensor).cloned().collect();
        Case { config: self.config.clone(), shapes }
    }

    fn weights(&self) -> Vec<Weight> {
        let value = |tensor: usize, i: u64| {
            let noise = ((i * 7919 + tensor as u64 * 104_729) % 997) as f32 / 997.0 - 0.5;
            0.5 * noise
        };
        let all = self.shapes.iter().enumerate();
        all.map(|(tensor, (name, shape))| {
            let n = shape.iter().product();
            (name.clone(), shape.clone(), (0..n).map(|i| value(tensor, i)).collect())
        })
        .collect()
    }

    fn convert(&self) -> Result<File, String> {
        let scratch = tempfile::tempdir().unwrap();
        let bytes = make::safetensors(&self.weights());
        let folder = make::folder(scratch.path(), &self.config, "model.safetensors", &bytes);
        let output = scratch.path().join("x.gguf");
        conversion(folder, output.clone()).run(&never_stop).map_err(|error| error.to_string())?;
        Ok(File::from_bytes_of(&output, fs::read(&output).unwrap()).unwrap())
    }

    /// The values of tensor `name` of the checkpoint.
    fn of(&self, name: &str) -> Vec<f32> {
        self.weights().into_iter().find(|(of, ..)| of == name).unwrap().2
    }
}

/// Logits of a few tokens.
fn run(file: File) -> Vec<f32> {
    let model = Arc::new(Model::from_file(file, &ModelOptions::default()).unwrap());
    let options = EngineOptions { n_ctx: 32, n_ubatch: 8, ..EngineOptions::default() };
    let quiet = Arc::new(|_: &str| {});
    let devices = vec![devices::cpu(Some(1))];
    let mut engine = Engine::load(model, devices, options, None, quiet, &|_, _| {}).unwrap();
    let mut sequence = engine.new_sequence();
    let mut all = Vec::new();
    let sink = &mut |_: usize, row: &[f32]| all.extend_from_slice(row);
    let never = AtomicBool::new(false);
    engine.feed(&mut sequence, &[1, 2, 3, 1], LogitsRequest::All, &never, sink).unwrap();
    all
}

#[test]
fn converted_models_run() {
    for (case, missing) in [
        (bailing(), "model.layers.1.mlp.experts.2.up_proj.weight"),
        (exaone(), "transformer.h.1.mlp.c_fc_0.weight"),
        (qwen(), "transformer.h.0.mlp.w2.weight"),
        (baichuan(json!({})), "model.layers.9.self_attn.W_pack.weight"),
        (internlm2(), "model.layers.1.attention.wqkv.weight"),
        (codeshell(), "transformer.h.0.ln_2.weight"),
        (refact(), "transformer.h.1.attn.kv.weight"),
        (deci(), "model.layers.1.mlp.down_proj.weight"),
        (minicpm(), "model.layers.1.self_attn.k_proj.weight"),
        (rwkv6(), "rwkv.blocks.1.attention.time_maa_g"),
        (rwkv7(), "model.layers.1.attn.v_lora.lora.0.weight"),
        (plamo2(), "model.layers.layers.0.mixer.dt_norm_weight"),
    ] {
        let class = case.config["architectures"][0].clone();
        let file = case.convert().unwrap_or_else(|error| panic!("{class}: {error}"));
        let logits = run(file);
        assert!(logits.len() == 4 * VOCAB as usize, "{class}");
        assert!(logits.iter().all(|logit| logit.is_finite()), "{class}");
        let spread = logits.iter().fold(0.0f32, |most, logit| most.max(logit.abs()));
        assert!(spread > 1e-3, "{class}: {spread}");
        let error = case.without(missing).convert().expect_err("a missing tensor");
        assert!(error.contains("missing"), "{class}: {error}");
    }
}

#[test]
fn joined_queries_keys_and_values_are_taken_apart() {
    let rows = |values: &[f32]| values.chunks(N as usize).map(|row| row[0]).collect::<Vec<_>>();
    let pick = |all: &[f32], order: &[usize]| order.iter().map(|&row| all[row]).collect::<Vec<_>>();
    // Pairs of RoPE, half a head apart, become adjacent.
    let pairs = [0, 4, 1, 5, 2, 6, 3, 7];
    let shifted = |by: usize| pairs.map(|row| row + by);
    let case = internlm2();
    let file = case.convert().unwrap();
    let joined = rows(&case.of("model.layers.1.attention.wqkv.weight"));
    let q = rows(&values(&file, "blk.1.attn_q.weight"));
    assert_eq!(q, pick(&joined, &[shifted(0), shifted(8)].concat()));
    assert_eq!(rows(&values(&file, "blk.1.attn_k.weight")), pick(&joined, &shifted(16)));
    assert_eq!(rows(&values(&file, "blk.1.attn_v.weight")), joined[24..]);
    let case = baichuan(json!({"z_loss_weight": 0}));
    let file = case.convert().unwrap();
    let joined = rows(&case.of("model.layers.3.self_attn.W_pack.weight"));
    let k = rows(&values(&file, "blk.3.attn_k.weight"));
    assert_eq!(k, pick(&joined, &[shifted(16), shifted(24)].concat()));
    let head = values(&file, "output.weight");
    for row in head.chunks(N as usize) {
        let norm = row.iter().map(|value| value * value).sum::<f32>();
        assert!((norm - 1.0).abs() < 1e-5, "Baichuan 2 has rows of length 1");
    }
    let mut other = baichuan(json!({}));
    other.config["num_hidden_layers"] = json!(31);
    assert!(other.convert().unwrap_err().contains("32 (RoPE) or 40 (ALiBi)"));
}

#[test]
fn rwkv_shifts_are_one_tensor_and_its_first_layer_has_what_llama_cpp_requires() {
    let case = rwkv7();
    let file = case.convert().unwrap();
    let fused = file.tensor("blk.1.time_mix_lerp_fused.weight").unwrap();
    assert_eq!(fused.shape, [N, 1, 1, 6]);
    let all = values(&file, "blk.1.time_mix_lerp_fused.weight");
    assert_eq!(all[4 * N as usize..5 * N as usize], case.of("model.layers.1.attn.x_a"));
    let bias = case.of("model.layers.0.attn.a_lora.lora.2.bias");
    assert_eq!(values(&file, "blk.0.time_mix_v0.weight"), bias);
    let rank = file.tensor("blk.1.time_mix_v1.weight").unwrap();
    assert_eq!(rank.shape, [N, 5]);
    let six = rwkv6();
    let file = six.convert().unwrap();
    let low = six.of("rwkv.blocks.0.attention.time_maa_w1");
    let w1 = values(&file, "blk.0.time_mix_w1.weight");
    assert_eq!((w1[0], w1[1], w1[N as usize]), (low[0], low[160], low[1]), "transposed");
}

#[test]
fn models_that_files_cannot_describe_are_refused_with_the_reason() {
    let mut linear = deci();
    linear.config["block_configs"][1]["attention"]["replace_with_linear"] = json!(true);
    assert!(linear.convert().unwrap_err().contains("replace_with_linear"));
    let mut biased = bailing();
    biased.config["use_qkv_bias"] = json!(true);
    assert!(biased.convert().unwrap_err().contains("use_qkv_bias"));
    let mut base = minicpm();
    base.config["dim_model_base"] = json!(0);
    assert!(base.convert().unwrap_err().contains("dim_model_base"));
}
