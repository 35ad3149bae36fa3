//! Writes tiny checkpoints: a folder with `config.json`, `tokenizer.json`, and weights as
//! safetensors or a PyTorch archive.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// One tensor: name, shape, values.
pub(crate) type Weight = (String, Vec<u64>, Vec<f32>);

pub(super) const N_EMBD: u64 = 8;
pub(super) const N_FF: u64 = 12;
const N_VOCAB: u64 = 8;

pub(crate) fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": N_EMBD, "intermediate_size": N_FF,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": N_VOCAB,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "relu"
    })
}

fn tokenizer() -> Value {
    let vocab: serde_json::Map<String, Value> = ["a", "b", "c", "ab", "<s>"]
        .iter()
        .enumerate()
        .map(|(id, text)| ((*text).to_owned(), id.into()))
        .collect();
    json!({
        "added_tokens": [{"id": 4, "content": "<s>", "special": true}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
        "model": {"type": "BPE", "vocab": vocab, "merges": ["a b"]}
    })
}

/// All weights of a Llama model whose `n_layer` layers are copies of the layer in [`weights`].
pub(super) fn layers(n_layer: usize) -> Vec<Weight> {
    let first = weights();
    let of_layer = |layer: usize| {
        let renamed = move |(name, shape, values): &Weight| {
            let name = name.replace("layers.0.", &format!("layers.{layer}."));
            (name, shape.clone(), values.clone())
        };
        first.iter().filter(|(name, ..)| name.contains("layers.0.")).map(renamed)
    };
    let rest: Vec<Weight> = (1..n_layer).flat_map(of_layer).collect();
    [first, rest].concat()
}

/// All weights of a one-layer Llama model; within a tensor, each value identifies its position.
pub(crate) fn weights() -> Vec<Weight> {
    let names: [(&str, &[u64]); 11] = [
        ("model.embed_tokens.weight", &[N_VOCAB, N_EMBD]),
        ("model.norm.weight", &[N_EMBD]),
        ("model.layers.0.input_layernorm.weight", &[N_EMBD]),
        ("model.layers.0.post_attention_layernorm.weight", &[N_EMBD]),
        ("model.layers.0.self_attn.q_proj.weight", &[N_EMBD, N_EMBD]),
        ("model.layers.0.self_attn.k_proj.weight", &[N_EMBD / 2, N_EMBD]),
        ("model.layers.0.self_attn.v_proj.weight", &[N_EMBD / 2, N_EMBD]),
        ("model.layers.0.self_attn.o_proj.weight", &[N_EMBD, N_EMBD]),
        ("model.layers.0.mlp.gate_proj.weight", &[N_FF, N_EMBD]),
        ("model.layers.0.mlp.up_proj.weight", &[N_FF, N_EMBD]),
        ("model.layers.0.mlp.down_proj.weight", &[N_EMBD, N_FF]),
    ];
    let values = |n: usize, shape: &[u64]| {
        (0..shape.iter().product()).map(|i: u64| (i as f32 + n as f32) / 64.0).collect()
    };
    names
        .iter()
        .enumerate()
        .map(|(n, (name, shape))| ((*name).to_owned(), shape.to_vec(), values(n, shape)))
        .collect()
}

pub(super) fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub(super) fn safetensors_of(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    file
}

pub(crate) fn safetensors(weights: &[Weight]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape, values) in weights {
        let start = data.len();
        data.extend(bytes(values));
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]});
        header.insert(name.clone(), entry);
    }
    safetensors_of(&Value::Object(header).to_string(), &data)
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    out.push(b'X');
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text.as_bytes());
}

fn push_number(out: &mut Vec<u8>, number: u64) {
    out.push(b'J');
    out.extend((number as u32).to_le_bytes());
}

fn push_tuple(out: &mut Vec<u8>, all: &[u64]) {
    out.push(b'(');
    all.iter().for_each(|&n| push_number(out, n));
    out.push(b't');
}

/// The pickle of a state dictionary; matrices named in `by_columns` are stored transposed.
pub(super) fn pickle(weights: &[Weight], by_columns: &[&str]) -> Vec<u8> {
    let mut out = vec![0x80, 2, b'}', b'('];
    for (key, (name, shape, values)) in weights.iter().enumerate() {
        push_text(&mut out, name);
        out.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        push_text(&mut out, "storage");
        out.extend(b"ctorch\nFloatStorage\n");
        push_text(&mut out, &key.to_string());
        push_text(&mut out, "cpu");
        push_number(&mut out, values.len() as u64);
        out.extend(b"tQ");
        push_number(&mut out, 0);
        push_tuple(&mut out, shape);
        let strides = match (shape.as_slice(), by_columns.contains(&name.as_str())) {
            ([rows, _], true) => vec![1, *rows],
            ([_, cols], false) => vec![*cols, 1],
            (_, _) => vec![1],
        };
        push_tuple(&mut out, &strides);
        out.extend(b"\x89ccollections\nOrderedDict\n)RtR");
    }
    out.extend(b"u.");
    out
}

pub(crate) fn zip(members: &[(String, Vec<u8>)]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in members {
        let offset = out.len() as u32;
        let sizes = [(data.len() as u32).to_le_bytes(), (data.len() as u32).to_le_bytes()].concat();
        let name_len = (name.len() as u16).to_le_bytes();
        // Version, flags, method, time, date, checksum.
        let common = [0u8; 14];
        out.extend(b"PK\x03\x04");
        out.extend(common);
        out.extend(&sizes);
        out.extend(name_len);
        out.extend([0, 0]);
        out.extend(name.as_bytes());
        out.extend(data);
        directory.extend(b"PK\x01\x02\0\0");
        directory.extend(common);
        directory.extend(&sizes);
        directory.extend(name_len);
        directory.extend([0; 12]);
        directory.extend(offset.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let (start, len, n) = (out.len() as u32, directory.len() as u32, members.len() as u16);
    out.extend(directory);
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend(n.to_le_bytes());
    out.extend(n.to_le_bytes());
    out.extend(len.to_le_bytes());
    out.extend(start.to_le_bytes());
    out.extend([0, 0]);
    out
}

pub(crate) fn torch(weights: &[Weight], by_columns: &[&str]) -> Vec<u8> {
    let mut members = vec![("archive/data.pkl".to_owned(), pickle(weights, by_columns))];
    for (key, (name, shape, values)) in weights.iter().enumerate() {
        let mut stored = values.clone();
        if by_columns.contains(&name.as_str()) {
            let (rows, cols) = (shape[0] as usize, shape[1] as usize);
            stored = (0..rows * cols).map(|i| values[i % rows * cols + i / rows]).collect();
        }
        members.push((format!("archive/data/{key}"), bytes(&stored)));
    }
    zip(&members)
}

/// Writes a folder with `config.json`, `tokenizer.json`, and `weights` as the file `name`.
pub(crate) fn folder(at: &Path, config: &Value, name: &str, weights: &[u8]) -> PathBuf {
    let folder = at.join("hf");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    fs::write(folder.join("tokenizer.json"), tokenizer().to_string()).unwrap();
    fs::write(folder.join(name), weights).unwrap();
    folder
}
