//! Families whose layers differ, or whose tensors change between checkpoint and file: tiny checkpoints that
//! the test makes from names and shapes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use thermocline::convert::{Error, Summary, families};
use thermocline::gguf::File;

use super::make::{self, Weight};
use super::{conversion, never_stop, values};

const N_EMBD: u64 = 8;
const N_VOCAB: u64 = 8;

/// Tensors with distinct values.
pub(super) fn weights(shapes: &[(&str, &[u64])]) -> Vec<Weight> {
    let values = |n: usize, shape: &[u64]| {
        (0..shape.iter().product()).map(|i: u64| (i as f32 + 100.0 * n as f32) / 64.0).collect()
    };
    let all = shapes.iter().enumerate();
    all.map(|(n, (name, shape))| ((*name).to_owned(), shape.to_vec(), values(n, shape))).collect()
}

pub(super) fn with(config: &Value, more: Value) -> Value {
    let mut config = config.clone();
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

pub(super) fn settings(class: &str, more: Value) -> Value {
    let config = json!({
        "architectures": [class], "hidden_size": N_EMBD, "intermediate_size": 12, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": N_VOCAB,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "norm_eps": 1e-5, "rope_theta": 10000.0
    });
    with(&config, more)
}

fn convert(config: &Value, weights: &[Weight], output: &Path) -> Result<Summary, Error> {
    let scratch = tempfile::tempdir().unwrap();
    let bytes = make::safetensors(weights);
    let folder = make::folder(scratch.path(), config, "model.safetensors", &bytes);
    conversion(folder, output.to_owned()).run(&never_stop)
}

pub(super) fn converted(config: &Value, weights: &[Weight]) -> (File, Summary) {
    let scratch = tempfile::tempdir().unwrap();
    let output = scratch.path().join("x.gguf");
    let summary = convert(config, weights, &output).unwrap();
    let bytes = fs::read(&output).unwrap();
    (File::from_bytes_of(&output, bytes).unwrap(), summary)
}

pub(super) fn refused(config: &Value, weights: &[Weight]) -> String {
    let scratch = tempfile::tempdir().unwrap();
    convert(config, weights, &scratch.path().join("x.gguf")).expect_err("refused").to_string()
}

/// LFM2: a layer with a convolution, then one with attention.
fn lfm2() -> (Value, Vec<Weight>) {
    let config = settings(
        "Lfm2ForCausalLM",
        json!({"layer_types": ["conv", "full_attention"], "conv_L_cache": 3, "block_auto_adjust_ff_dim": false}),
    );
    let mut all = weights(&[
        ("model.embed_tokens.weight", &[N_VOCAB, N_EMBD]),
        ("model.embedding_norm.weight", &[N_EMBD]),
        ("model.layers.0.conv.conv.weight", &[N_EMBD, 1, 3]),
        ("model.layers.0.conv.in_proj.weight", &[3 * N_EMBD, N_EMBD]),
        ("model.layers.0.conv.out_proj.weight", &[N_EMBD, N_EMBD]),
        ("model.layers.1.self_attn.q_proj.weight", &[N_EMBD, N_EMBD]),
        ("model.layers.1.self_attn.k_proj.weight", &[4, N_EMBD]),
        ("model.layers.1.self_attn.v_proj.weight", &[4, N_EMBD]),
        ("model.layers.1.self_attn.out_proj.weight", &[N_EMBD, N_EMBD]),
        ("model.layers.1.self_attn.q_layernorm.weight", &[4]),
        ("model.layers.1.self_attn.k_layernorm.weight", &[4]),
    ]);
    for layer in 0..2 {
        for (name, shape) in [
            ("operator_norm", vec![N_EMBD]),
            ("ffn_norm", vec![N_EMBD]),
            ("feed_forward.w1", vec![12, N_EMBD]),
            ("feed_forward.w2", vec![N_EMBD, 12]),
            ("feed_forward.w3", vec![12, N_EMBD]),
        ] {
            all.extend(weights(&[(&format!("model.layers.{layer}.{name}.weight"), &shape)]));
        }
    }
    (config, all)
}

#[test]
fn each_layer_needs_the_tensors_of_its_kind() {
    let (config, all) = lfm2();
    let (file, _) = converted(&config, &all);
    assert_eq!(file.tensor("blk.0.shortconv.conv.weight").unwrap().shape, [3, N_EMBD]);
    let n_kv = file.metadata().i32_array("lfm2.attention.head_count_kv").unwrap().unwrap();
    assert_eq!(n_kv[..], [0, 1]);
    assert!(
        file.tensor("token_embd_norm.weight").is_some()
            && file.tensor("blk.0.attn_q.weight").is_none()
    );
    for (name, expected) in [
        ("layers.0.conv.in_proj", "blk.0.shortconv.in_proj"),
        ("layers.1.self_attn.v_proj", "blk.1.attn_v"),
    ] {
        let rest: Vec<Weight> = all.iter().filter(|(of, ..)| !of.contains(name)).cloned().collect();
        let error = refused(&config, &rest);
        assert!(error.contains(expected) && error.contains("missing"), "{error}");
    }
    let other = weights(&[("model.layers.0.self_attn.q_proj.weight", &[N_EMBD, N_EMBD])]);
    let error = refused(&config, &[all.clone(), other].concat());
    assert!(error.contains("layers.0.self_attn.q_proj"), "{error}");
    let short = with(&config, json!({"layer_types": ["conv"]}));
    assert!(refused(&short, &all).contains("layer_types"));
}

/// Mamba-2: two heads of two values in one group each, a state of three values.
fn mamba2() -> (Value, Vec<Weight>) {
    let config = json!({
        "architectures": ["Mamba2ForCausalLM"], "hidden_size": N_EMBD, "num_hidden_layers": 1,
        "vocab_size": N_VOCAB, "num_heads": 2, "head_dim": 2, "n_groups": 2, "state_size": 3,
        "conv_kernel": 4, "expand": 2, "layer_norm_epsilon": 1e-5
    });
    let all = weights(&[
        ("backbone.embeddings.weight", &[N_VOCAB, N_EMBD]),
        ("backbone.norm_f.weight", &[N_EMBD]),
        ("backbone.layers.0.norm.weight", &[N_EMBD]),
        ("backbone.layers.0.mixer.in_proj.weight", &[22, N_EMBD]),
        ("backbone.layers.0.mixer.conv1d.weight", &[16, 1, 4]),
        ("backbone.layers.0.mixer.conv1d.bias", &[16]),
        ("backbone.layers.0.mixer.dt_bias", &[2]),
        ("backbone.layers.0.mixer.A_log", &[2]),
        ("backbone.layers.0.mixer.D", &[2]),
        ("backbone.layers.0.mixer.norm.weight", &[4]),
        ("backbone.layers.0.mixer.out_proj.weight", &[N_EMBD, 4]),
    ]);
    (config, all)
}

#[test]
fn state_spaces_change_shapes_and_values() {
    let (config, all) = mamba2();
    let (file, _) = converted(&config, &all);
    let logs = &all[7].2;
    let expected: Vec<f32> = logs.iter().map(|log| -log.exp()).collect();
    assert_eq!(values(&file, "blk.0.ssm_a"), expected);
    for (name, shape) in [
        ("blk.0.ssm_a", vec![1, 2]),
        ("blk.0.ssm_d", vec![1, 2]),
        ("blk.0.ssm_norm.weight", vec![2, 2]),
        ("blk.0.ssm_conv1d.weight", vec![4, 16]),
        ("blk.0.ssm_dt.bias", vec![2]),
    ] {
        assert_eq!(file.tensor(name).unwrap().shape, shape, "{name}");
    }
    let mut without = all.clone();
    without.remove(6);
    assert!(refused(&config, &without).contains("blk.0.ssm_dt.bias"));
    let groups = with(&config, json!({"n_groups": 3}));
    assert!(refused(&groups, &all).contains("3 equal groups"));
}

/// One layer of a gated delta net: two key heads of two values, four value heads of two.
fn qwen35() -> (Value, Vec<Weight>) {
    let config = settings(
        "Qwen3_5ForCausalLM",
        json!({
            "num_hidden_layers": 1, "layer_types": ["linear_attention"], "linear_num_key_heads": 2,
            "linear_num_value_heads": 4, "linear_key_head_dim": 2, "linear_value_head_dim": 2,
            "linear_conv_kernel_dim": 4, "head_dim": 8
        }),
    );
    let all = weights(&[
        ("model.embed_tokens.weight", &[N_VOCAB, N_EMBD]),
        ("model.norm.weight", &[N_EMBD]),
        ("model.layers.0.input_layernorm.weight", &[N_EMBD]),
        ("model.layers.0.post_attention_layernorm.weight", &[N_EMBD]),
        ("model.layers.0.mlp.gate_proj.weight", &[12, N_EMBD]),
        ("model.layers.0.mlp.up_proj.weight", &[12, N_EMBD]),
        ("model.layers.0.mlp.down_proj.weight", &[N_EMBD, 12]),
        ("model.layers.0.linear_attn.in_proj_qkv.weight", &[16, N_EMBD]),
        ("model.layers.0.linear_attn.in_proj_z.weight", &[8, N_EMBD]),
        ("model.layers.0.linear_attn.in_proj_b.weight", &[4, N_EMBD]),
        ("model.layers.0.linear_attn.in_proj_a.weight", &[4, N_EMBD]),
        ("model.layers.0.linear_attn.conv1d.weight", &[16, 1, 4]),
        ("model.layers.0.linear_attn.dt_bias", &[4]),
        ("model.layers.0.linear_attn.A_log", &[4]),
        ("model.layers.0.linear_attn.norm.weight", &[2]),
        ("model.layers.0.linear_attn.out_proj.weight", &[N_EMBD, 8]),
        ("mtp.fc.weight", &[N_EMBD, N_EMBD]),
    ]);
    (config, all)
}

#[test]
fn value_heads_of_delta_nets_are_reordered() {
    let (config, all) = qwen35();
    let (file, summary) = converted(&config, &all);
    let rows = |values: &[f32], n: usize| values.chunks(n).map(|row| row[0]).collect::<Vec<_>>();
    let pick =
        |source: &[f32], order: &[usize]| order.iter().map(|&i| source[i]).collect::<Vec<_>>();
    let beta = rows(&values(&file, "blk.0.ssm_beta.weight"), 8);
    assert_eq!(
        beta,
        pick(&rows(&all[9].2, 8), &[0, 2, 1, 3]),
        "the first heads of both key heads first"
    );
    let qkv = rows(&values(&file, "blk.0.attn_qkv.weight"), 8);
    let order = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15];
    assert_eq!(qkv, pick(&rows(&all[7].2, 8), &order));
    assert_eq!(values(&file, "blk.0.ssm_dt.bias"), pick(&all[12].2, &[0, 2, 1, 3]));
    let out = values(&file, "blk.0.ssm_out.weight");
    assert_eq!(out[..8], pick(&all[15].2[..8], &[0, 1, 4, 5, 2, 3, 6, 7]), "columns");
    let norm = values(&file, "blk.0.attn_norm.weight");
    assert_eq!(norm, all[2].2.iter().map(|v| v + 1.0).collect::<Vec<_>>());
    assert!(
        summary.notes.iter().any(|note| note.contains("1 tensors for multi-token")),
        "{:?}",
        summary.notes
    );
    let heads = with(&config, json!({"linear_num_value_heads": 3}));
    assert!(refused(&heads, &all).contains("a multiple of the 2 key heads"));
    let wide = with(&config, json!({"linear_value_head_dim": 4}));
    let error = refused(&wide, &all);
    assert!(error.contains("in_proj_qkv") || error.contains("linear_attn"), "{error}");
    let huge = with(&config, json!({"linear_key_head_dim": 1 << 20}));
    assert!(refused(&huge, &all).contains("at most 4096"));
}

/// GLM-4.5: a dense layer, a layer with experts, and a layer for multi-token prediction.
fn glm4moe() -> (Value, Vec<Weight>) {
    let config = settings(
        "Glm4MoeForCausalLM",
        json!({
            "first_k_dense_replace": 1, "num_nextn_predict_layers": 1, "n_routed_experts": 2,
            "num_experts_per_tok": 1, "moe_intermediate_size": 4, "n_shared_experts": 1, "n_group": 1,
            "topk_group": 1, "routed_scaling_factor": 1.5, "norm_topk_prob": true
        }),
    );
    let mut all = weights(&[
        ("model.embed_tokens.weight", &[N_VOCAB, N_EMBD]),
        ("model.norm.weight", &[N_EMBD]),
        ("model.layers.0.mlp.gate_proj.weight", &[12, N_EMBD]),
        ("model.layers.0.mlp.up_proj.weight", &[12, N_EMBD]),
        ("model.layers.0.mlp.down_proj.weight", &[N_EMBD, 12]),
        ("model.layers.1.mlp.gate.weight", &[2, N_EMBD]),
        ("model.layers.1.mlp.gate.e_score_correction_bias", &[2]),
        ("model.layers.2.eh_proj.weight", &[N_EMBD, 2 * N_EMBD]),
    ]);
    for layer in 0..2 {
        for (name, shape) in [
            ("input_layernorm", vec![N_EMBD]),
            ("post_attention_layernorm", vec![N_EMBD]),
            ("self_attn.q_proj", vec![N_EMBD, N_EMBD]),
            ("self_attn.k_proj", vec![4, N_EMBD]),
            ("self_attn.v_proj", vec![4, N_EMBD]),
            ("self_attn.o_proj", vec![N_EMBD, N_EMBD]),
        ] {
            all.extend(weights(&[(&format!("model.layers.{layer}.{name}.weight"), &shape)]));
        }
    }
    for part in ["experts.0", "experts.1", "shared_experts"] {
        for (name, shape) in
            [("gate_proj", [4, N_EMBD]), ("up_proj", [4, N_EMBD]), ("down_proj", [N_EMBD, 4])]
        {
            all.extend(weights(&[(&format!("model.layers.1.mlp.{part}.{name}.weight"), &shape)]));
        }
    }
    (config, all)
}

#[test]
fn experts_follow_dense_layers_and_extra_layers_are_left_out() {
    let (config, all) = glm4moe();
    let (file, summary) = converted(&config, &all);
    let key = |key: &str| file.metadata().u32(&format!("glm4moe.{key}")).unwrap();
    assert_eq!((key("leading_dense_block_count"), key("expert_count")), (Some(1), Some(2)));
    assert_eq!((key("expert_gating_func"), key("block_count")), (Some(2), Some(2)));
    assert_eq!(file.tensor("blk.1.ffn_up_exps.weight").unwrap().shape, [N_EMBD, 4, 2]);
    assert_eq!(file.tensor("blk.1.exp_probs_b.bias").unwrap().shape, [2]);
    assert!(file.tensors().iter().all(|tensor| !tensor.name.starts_with("blk.2")));
    assert!(summary.notes.iter().any(|note| note.contains("multi-token prediction")));
    let error = refused(&with(&config, json!({"num_nextn_predict_layers": 0})), &all);
    assert!(error.contains("layers.2.eh_proj"), "{error}");
    let error = refused(&with(&config, json!({"first_k_dense_replace": 2})), &all);
    assert!(error.contains("layers.1.mlp"), "{error}");
    let error = refused(&with(&config, json!({"n_routed_experts": 3})), &all);
    assert!(error.contains("3 experts"), "{error}");
    let error = refused(&with(&config, json!({"scoring_func": "dice"})), &all);
    assert!(error.contains("scoring_func"), "{error}");
}

/// docs/convert.md has a table of the architectures and their classes.
#[test]
fn the_page_lists_all_families() {
    let mut expected: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (arch, classes) in families() {
        expected.entry(arch).or_default().extend(classes);
    }
    let row = |(arch, mut classes): (&str, Vec<&str>)| {
        classes.sort_unstable();
        classes.dedup();
        let classes: Vec<String> = classes.iter().map(|class| format!("`{class}`")).collect();
        format!("| `{arch}` | {} |", classes.join(", "))
    };
    let expected: Vec<String> = expected.into_iter().map(row).collect();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/convert.md");
    let page = fs::read_to_string(page).unwrap();
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
    assert!(rows == expected, "docs/convert.md should have the rows\n{}", expected.join("\n"));
}
