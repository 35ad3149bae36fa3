//! DeepSeek V4's checkpoints: weights of 8 bits and experts of 4 bits with separate scales, tables of experts,
//! and keys of blocks of two lengths.

use hal::format::Format;
use serde_json::{Value, json};
use thermocline::convert::Summary;
use thermocline::gguf::{File, TensorType};
use thermocline::model::{Model, ModelOptions};

use super::families::settings;
use super::make;
use super::quantised::{Stored, safetensors};
use super::{conversion, never_stop, values};

const N_EMBD: u64 = 32;
const N_FF: u64 = 32;
const N_VOCAB: u64 = 8;
const N_EXPERT: usize = 2;
const Q_RANK: u64 = 4;
const D_HEAD: u64 = 8;

fn config() -> Value {
    settings(
        "DeepseekV4ForCausalLM",
        json!({
            "hidden_size": N_EMBD, "num_hidden_layers": 3, "head_dim": D_HEAD, "qk_rope_head_dim": 4,
            "q_lora_rank": Q_RANK, "o_lora_rank": 2, "o_groups": 2, "moe_intermediate_size": N_FF,
            "n_routed_experts": N_EXPERT, "num_experts_per_tok": 1, "n_shared_experts": 1, "hc_mult": 2,
            "hc_sinkhorn_iters": 3, "hc_eps": 1e-6, "num_hash_layers": 1, "swiglu_limit": 10.0,
            "routed_scaling_factor": 1.5, "sliding_window": 8, "index_n_heads": 2, "index_head_dim": D_HEAD,
            "index_topk": 4, "compress_ratios": [0, 4, 128, 0], "compress_rope_theta": 160_000.0,
            "num_nextn_predict_layers": 1, "tie_word_embeddings": false, "expert_dtype": "fp4",
            "quantization_config": {
                "quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [2, 16]
            }
        }),
    )
}

fn f32s(name: &str, shape: &[u64]) -> Stored {
    let n = shape.iter().product::<u64>();
    let numbers: Vec<f32> = (0..n).map(|i| 1.0 + (i % 7) as f32 / 8.0).collect();
    (name.to_owned(), "F32", shape.to_vec(), make::bytes(&numbers))
}

fn stored(name: String, dtype: &'static str, shape: &[u64], byte: impl Fn(u64) -> u8) -> Stored {
    let bytes = (0..shape.iter().product()).map(byte).collect();
    (name, dtype, shape.to_vec(), bytes)
}

/// The byte with the values `2i` and `2i + 1` of an expert, and the scale of row `row`.
fn pair(expert: usize, i: u64) -> u8 {
    (i as u8).wrapping_mul(29).wrapping_add(11 * expert as u8)
}

fn scale(expert: usize, row: u64) -> u8 {
    120 + (row % 5) as u8 + expert as u8
}

fn layer(index: usize) -> Vec<Stored> {
    let start = format!("layers.{index}.");
    let mut all: Vec<Stored> = Vec::new();
    let mut add = |name: &str, shape: &[u64]| all.push(f32s(&format!("{start}{name}"), shape));
    for part in ["attn", "ffn"] {
        add(&format!("{part}_norm.weight"), &[N_EMBD]);
        add(&format!("hc_{part}_fn"), &[8, 2 * N_EMBD]);
        add(&format!("hc_{part}_base"), &[8]);
        add(&format!("hc_{part}_scale"), &[3]);
    }
    add("attn.q_norm.weight", &[Q_RANK]);
    add("attn.wq_b.weight", &[2 * D_HEAD, Q_RANK]);
    add("attn.wkv.weight", &[D_HEAD, N_EMBD]);
    add("attn.kv_norm.weight", &[D_HEAD]);
    add("attn.wo_a.weight", &[4, D_HEAD]);
    add("attn.wo_b.weight", &[N_EMBD, 4]);
    add("attn.attn_sink", &[2]);
    add("ffn.gate.weight", &[N_EXPERT as u64, N_EMBD]);
    for part in ["w1", "w3"] {
        add(&format!("ffn.shared_experts.{part}.weight"), &[N_FF, N_EMBD]);
    }
    add("ffn.shared_experts.w2.weight", &[N_EMBD, N_FF]);
    if index > 0 {
        add("ffn.gate.bias", &[N_EXPERT as u64]);
    }
    let mut blocks = |part: &str, ratio: u64, width: u64| {
        add(&format!("attn.{part}.wkv.weight"), &[width, N_EMBD]);
        add(&format!("attn.{part}.wgate.weight"), &[width, N_EMBD]);
        add(&format!("attn.{part}.ape"), &[ratio, width]);
        add(&format!("attn.{part}.norm.weight"), &[D_HEAD]);
    };
    match index {
        1 => {
            blocks("compressor", 4, 2 * D_HEAD);
            blocks("indexer.compressor", 4, 2 * D_HEAD);
            add("attn.indexer.wq_b.weight", &[2 * D_HEAD, Q_RANK]);
            add("attn.indexer.weights_proj.weight", &[2, N_EMBD]);
        }
        2 => blocks("compressor", 128, D_HEAD),
        _ => {}
    }
    // 8-bit floats: 2, 2.25, and so on; powers of two for blocks of 2 rows and 16 columns.
    let name = |part: &str| format!("{start}{part}");
    all.push(stored(name("attn.wq_a.weight"), "F8_E4M3", &[Q_RANK, N_EMBD], |i| {
        0x40 + (i % 8) as u8
    }));
    all.push(stored(name("attn.wq_a.scale"), "F8_E8M0", &[2, 2], |i| 126 + i as u8));
    for expert in 0..N_EXPERT {
        for part in ["w1", "w2", "w3"] {
            let part = name(&format!("ffn.experts.{expert}.{part}"));
            let codes = |i| pair(expert, i);
            all.push(stored(format!("{part}.weight"), "I8", &[32, 16], codes));
            all.push(stored(format!("{part}.scale"), "F8_E8M0", &[32, 1], |i| scale(expert, i)));
        }
    }
    all
}

fn checkpoint() -> Vec<Stored> {
    let mut all: Vec<Stored> = (0..3).flat_map(layer).collect();
    all.extend([
        f32s("embed.weight", &[N_VOCAB, N_EMBD]),
        f32s("norm.weight", &[N_EMBD]),
        f32s("head.weight", &[N_VOCAB, N_EMBD]),
        f32s("hc_head_fn", &[2, 2 * N_EMBD]),
        f32s("hc_head_base", &[2]),
        f32s("hc_head_scale", &[1]),
        f32s("mtp.0.enorm.weight", &[N_EMBD]),
    ]);
    let ids: Vec<u8> = (0..N_VOCAB).flat_map(|token| (token % 2).to_le_bytes()).collect();
    all.push(("layers.0.ffn.gate.tid2eid".to_owned(), "I64", vec![N_VOCAB, 1], ids));
    all
}

fn attempt(tensors: &[Stored]) -> Result<(File, Summary), String> {
    let scratch = tempfile::tempdir().unwrap();
    let bytes = safetensors(tensors);
    let folder = make::folder(scratch.path(), &config(), "model.safetensors", &bytes);
    let output = scratch.path().join("x.gguf");
    let summary = conversion(folder, output.clone()).run(&never_stop);
    let summary = summary.map_err(|error| error.to_string())?;
    let bytes = std::fs::read(&output).unwrap();
    Ok((File::from_vec(bytes, "x.gguf").unwrap(), summary))
}

#[test]
fn experts_keep_their_bits_and_tables_become_integers() {
    let (file, summary) = attempt(&checkpoint()).unwrap();
    assert!(summary.notes.iter().any(|note| note.contains("1 tensors for multi-token")));
    let numbers = values(&file, "blk.1.attn_q_a.weight");
    let power = [0.5, 1.0, 2.0, 4.0];
    let expected = (0..Q_RANK * N_EMBD).map(|i| {
        let (row, col) = (i / N_EMBD, i % N_EMBD);
        (2.0 + 0.25 * (i % 8) as f32) * power[(row / 2 * 2 + col / 16) as usize]
    });
    assert!(numbers.iter().copied().eq(expected), "{numbers:?}");
    let table = file.tensor("blk.0.ffn_gate_tid2eid.weight").unwrap();
    assert_eq!((table.ty, table.shape.as_slice()), (TensorType::I32, &[1, N_VOCAB][..]));
    let ids: Vec<u8> = (0..N_VOCAB as u32).flat_map(|token| (token % 2).to_le_bytes()).collect();
    assert_eq!(file.bytes(table).unwrap(), ids);
    let magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    for part in ["gate", "up", "down"] {
        let name = format!("blk.2.ffn_{part}_exps.weight");
        let tensor = file.tensor(&name).unwrap();
        let shape = [32, 32, N_EXPERT as u64];
        assert_eq!((tensor.ty, tensor.shape.as_slice()), (Format::MXFP4.into(), &shape[..]));
        let mut found = vec![0.0; 32 * 32 * N_EXPERT];
        Format::MXFP4.dequantize(file.bytes(tensor).unwrap(), &mut found);
        for (i, found) in found.iter().enumerate() {
            let (expert, within) = (i / 1024, (i % 1024) as u64);
            let code = pair(expert, within / 2) >> (4 * (within % 2)) & 15;
            let sign = if code < 8 { 1.0 } else { -1.0 };
            let power = 2f32.powi(i32::from(scale(expert, within / 32)) - 127);
            assert_eq!(*found, sign * magnitudes[usize::from(code % 8)] * power, "{name}, {i}");
        }
    }
    let model = Model::from_file(file, &ModelOptions::default()).unwrap();
    assert_eq!(model.layers.len(), 3);
}

#[test]
fn broken_experts_and_tables_are_refused() {
    let refused = |name: &str, change: &dyn Fn(&mut Stored), expected: &str| {
        let mut all = checkpoint();
        change(all.iter_mut().find(|tensor| tensor.0 == name).unwrap());
        let error = attempt(&all).map(drop).expect_err("refused");
        assert!(error.contains(expected), "{error}");
    };
    let scale = "layers.1.ffn.experts.1.w2.scale";
    // One scale for 64 values of two rows.
    let fewer = |tensor: &mut Stored| {
        tensor.2 = vec![16, 1];
        tensor.3.truncate(16);
    };
    refused(scale, &fewer, "32 scales");
    refused(scale, &|tensor| tensor.2 = vec![1, 32], "32 rows of 1 scales");
    let other = |tensor: &mut Stored| *tensor = f32s(scale, &[32, 1]);
    refused(scale, &other, "F8_E8M0");
    let missing = |tensor: &mut Stored| "mtp.0.x".clone_into(&mut tensor.0);
    refused(scale, &missing, "layers.1.ffn.experts.1.w2.weight");
    let table = "layers.0.ffn.gate.tid2eid";
    refused(table, &missing, "layers.0.ffn.gate.tid2eid");
    let unknown = |tensor: &mut Stored| tensor.3[8] = N_EXPERT as u8;
    refused(table, &unknown, "numbers below the 2 experts");
    let negative = |tensor: &mut Stored| tensor.3[..8].fill(255);
    refused(table, &negative, "not negative");
}
