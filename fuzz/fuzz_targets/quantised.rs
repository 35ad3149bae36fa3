//! Converts tiny checkpoints with weights in FP8, 8-bit integers, packed integers, GPTQ and AWQ, with some bytes of
//! `config.json` and of the safetensors file changed: the conversion must succeed or return an error.
#![no_main]

mod made;

use std::fs;
use std::ops::ControlFlow;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value, json};
use thermocline::convert::{Conversion, OutType};

const N_EMBD: usize = 8;
const N_FF: usize = 16;
const GATE: &str = "model.layers.0.mlp.gate_proj";

/// Name, type, shape and size of a tensor.
type Stored = (String, &'static str, Vec<usize>, usize);

/// A checkpoint: its settings and its weights.
struct Folder {
    config: Vec<u8>,
    weights: Vec<u8>,
}

/// The tensor `name` of the gate, with elements of `size` bytes.
fn stored(name: &str, dtype: &'static str, shape: &[usize], size: usize) -> Stored {
    (format!("{GATE}.{name}"), dtype, shape.to_vec(), size)
}

/// A Llama with one layer, whose gate is quantised.
fn folder(quantisation: Value, gate: &[Stored]) -> Folder {
    let plain: [(&str, &[usize]); 10] = [
        ("model.embed_tokens.weight", &[8, N_EMBD]),
        ("model.norm.weight", &[N_EMBD]),
        ("model.layers.0.input_layernorm.weight", &[N_EMBD]),
        ("model.layers.0.post_attention_layernorm.weight", &[N_EMBD]),
        ("model.layers.0.self_attn.q_proj.weight", &[N_EMBD, N_EMBD]),
        ("model.layers.0.self_attn.k_proj.weight", &[N_EMBD / 2, N_EMBD]),
        ("model.layers.0.self_attn.v_proj.weight", &[N_EMBD / 2, N_EMBD]),
        ("model.layers.0.self_attn.o_proj.weight", &[N_EMBD, N_EMBD]),
        ("model.layers.0.mlp.up_proj.weight", &[N_FF, N_EMBD]),
        ("model.layers.0.mlp.down_proj.weight", &[N_EMBD, N_FF]),
    ];
    let plain = plain.map(|(name, shape)| (name.to_owned(), "F16", shape.to_vec(), 2));
    let (mut header, mut n_bytes) = (Map::new(), 0);
    for (name, dtype, shape, size) in plain.iter().chain(gate) {
        let end = n_bytes + shape.iter().product::<usize>() * size;
        header.insert(
            name.clone(),
            json!({"dtype": dtype, "shape": shape, "data_offsets": [n_bytes, end]}),
        );
        n_bytes = end;
    }
    let header = Value::Object(header).to_string();
    // Zeros are valid numbers of every type, and valid groups of inputs.
    let weights =
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; n_bytes]].concat();
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": N_EMBD, "intermediate_size": N_FF,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 8,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "relu",
        "quantization_config": quantisation
    });
    Folder { config: config.to_string().into_bytes(), weights }
}

fn compressed(format: &str, bits: u32) -> Value {
    json!({
        "quant_method": "compressed-tensors", "format": format,
        "config_groups": {"group_0": {"weights": {"num_bits": bits, "group_size": 4}}}
    })
}

static FOLDERS: LazyLock<Vec<Folder>> = LazyLock::new(|| {
    let weight = |dtype| stored("weight", dtype, &[N_FF, N_EMBD], 1);
    let gptq = json!({"quant_method": "gptq", "bits": 4, "group_size": 4, "desc_act": true});
    let awq = json!({"quant_method": "awq", "bits": 4, "group_size": 4, "version": "gemm"});
    let blocks = json!({"quant_method": "fp8", "weight_block_size": [5, 3]});
    let zeros = stored("qzeros", "I32", &[2, 2], 4);
    let scales = stored("scales", "F16", &[2, N_FF], 2);
    vec![
        folder(blocks, &[weight("F8_E4M3"), stored("weight_scale_inv", "F32", &[4, 3], 4)]),
        folder(
            compressed("int-quantized", 8),
            &[weight("I8"), stored("weight_scale", "BF16", &[N_FF, 1], 2)],
        ),
        folder(
            compressed("pack-quantized", 4),
            &[
                stored("weight_packed", "I32", &[N_FF, 1], 4),
                stored("weight_scale", "F32", &[N_FF, 2], 4),
                stored("weight_shape", "I64", &[2], 8),
                stored("weight_zero_point", "I32", &[2, 2], 4),
            ],
        ),
        folder(
            gptq,
            &[
                stored("qweight", "I32", &[1, N_FF], 4),
                zeros.clone(),
                scales.clone(),
                stored("g_idx", "I32", &[N_EMBD], 4),
            ],
        ),
        folder(awq, &[stored("qweight", "I32", &[N_EMBD, 2], 4), zeros, scales]),
    ]
});

/// Settings and weights of each checkpoint, one behind the other.
static FILES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let with_shape = |folder: &Folder| {
        let mut weights = folder.weights.clone();
        // `weight_shape` is behind the scales, and `weight_zero_point` behind it.
        let end = weights.len() - 16;
        weights[end - 16..end]
            .copy_from_slice(&[N_FF as u64, N_EMBD as u64].map(u64::to_le_bytes).concat());
        [folder.config.clone(), weights].concat()
    };
    let plain = |folder: &Folder| [folder.config.clone(), folder.weights.clone()].concat();
    FOLDERS
        .iter()
        .enumerate()
        .map(|(i, folder)| if i == 2 { with_shape(folder) } else { plain(folder) })
        .collect()
});

/// Converts a checkpoint; returns the message of an error.
fn convert(config: &[u8], weights: &[u8]) -> Result<(), String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let tokenizer = json!({
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
    });
    let write = |name: &str, bytes: &[u8]| {
        fs::write(folder.path().join(name), bytes).map_err(|error| error.to_string())
    };
    write("config.json", config)?;
    write("model.safetensors", weights)?;
    write("tokenizer.json", tokenizer.to_string().as_bytes())?;
    let job = Conversion {
        folder: folder.path().to_owned(),
        predictor: None,
        output: folder.path().join("x.gguf"),
        out_type: OutType::Auto,
        container: None,
        pre: None,
        name: None,
        force: true,
    };
    job.run(&|_, _| ControlFlow::Continue(())).map(drop).map_err(|error| error.to_string())
}

fuzz_target!(
    init: {
        for (folder, file) in FOLDERS.iter().zip(FILES.iter()) {
            let (config, weights) = file.split_at(folder.config.len());
            assert_eq!(convert(config, weights), Ok(()), "an unchanged checkpoint must be convertible");
        }
    },
    |input: &[u8]| {
        let Some(folder) = input.first().and_then(|&which| FOLDERS.get(usize::from(which))) else { return };
        let Some(file) = made::changed(&FILES, input) else { return };
        let (config, weights) = file.split_at(folder.config.len());
        let _ = convert(config, weights);
    }
);
