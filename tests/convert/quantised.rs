//! Checkpoints with quantised weights: 8-bit floats, 8-bit integers, packed 4-bit integers.

use serde_json::{Value, json};
use thermocline::gguf::File;

use super::make::{self, N_EMBD, N_FF};
use super::{conversion, never_stop, values};

/// Name, type, shape and bytes of a tensor.
pub(super) type Stored = (String, &'static str, Vec<u64>, Vec<u8>);

const GATE: &str = "model.layers.0.mlp.gate_proj";
const ROWS: usize = N_FF as usize;
const COLS: usize = N_EMBD as usize;

pub(super) fn safetensors(tensors: &[Stored]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let start = data.len();
        data.extend(bytes);
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]});
        header.insert(name.clone(), entry);
    }
    make::safetensors_of(&Value::Object(header).to_string(), &data)
}

/// The small Llama without its gate, and `more` tensors.
fn model(more: &[Stored]) -> Vec<Stored> {
    let plain = make::weights().into_iter().filter(|(name, ..)| !name.starts_with(GATE));
    let mut all: Vec<Stored> =
        plain.map(|(name, shape, values)| (name, "F32", shape, make::bytes(&values))).collect();
    all.extend(more.iter().cloned());
    all
}

fn attempt(quantisation: &Value, more: &[Stored]) -> Result<Vec<f32>, String> {
    let scratch = tempfile::tempdir().unwrap();
    let mut config = make::config();
    config["quantization_config"] = quantisation.clone();
    let bytes = safetensors(&model(more));
    let folder = make::folder(scratch.path(), &config, "model.safetensors", &bytes);
    let output = scratch.path().join("x.gguf");
    conversion(folder, output.clone()).run(&never_stop).map_err(|error| error.to_string())?;
    Ok(values(&File::open(&output).unwrap(), "blk.0.ffn_gate.weight"))
}

fn f32s(name: &str, shape: &[u64], values: &[f32]) -> Stored {
    (format!("{GATE}.{name}"), "F32", shape.to_vec(), make::bytes(values))
}

fn words(name: &str, shape: &[u64], values: &[u32]) -> Stored {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    (format!("{GATE}.{name}"), "I32", shape.to_vec(), bytes)
}

/// 8-bit floats: 2, 2.25, and so on in each row, every second one negative.
fn codes() -> (Stored, Vec<f32>) {
    let code = |i: usize| 0x40 + (i % 8) as u8 + 0x80 * (i % 2) as u8;
    let value = |i: usize| (2.0 + 0.25 * (i % 8) as f32) * if i % 2 == 1 { -1.0 } else { 1.0 };
    let bytes = (0..ROWS * COLS).map(code).collect();
    let tensor = (format!("{GATE}.weight"), "F8_E4M3", vec![N_FF, N_EMBD], bytes);
    (tensor, (0..ROWS * COLS).map(value).collect())
}

/// The values of a matrix by row and column.
fn by_place(value: impl Fn(usize, usize) -> f32) -> Vec<f32> {
    (0..ROWS * COLS).map(|i| value(i / COLS, i % COLS)).collect()
}

#[test]
fn eight_bit_floats_have_scales_of_blocks_rows_or_the_tensor() {
    let (weight, numbers) = codes();
    let at = |row: usize, col: usize| numbers[row * COLS + col];
    // Blocks of 5 by 3: the last ones are smaller.
    let scales: Vec<f32> = (0..9).map(|i| 0.3 + i as f32).collect();
    let settings = json!({"quant_method": "fp8", "weight_block_size": [5, 3]});
    let unused = f32s("activation_scale", &[1], &[7.0]);
    let scale = f32s("weight_scale_inv", &[3, 3], &scales);
    let found = attempt(&settings, &[weight.clone(), scale, unused]).unwrap();
    assert_eq!(found, by_place(|row, col| at(row, col) * scales[row / 5 * 3 + col / 3]));
    let one = attempt(
        &json!({"quant_method": "fp8", "weight_block_size": null, "activation_scheme": "static"}),
        &[weight.clone(), f32s("weight_scale_inv", &[], &[0.7])],
    );
    assert_eq!(one.unwrap(), by_place(|row, col| at(row, col) * 0.7));
    let rows: Vec<f32> = (0..ROWS).map(|row| 1.1 + row as f32).collect();
    let weights = json!({"num_bits": 8, "type": "float", "strategy": "channel"});
    let compressed = json!({
        "quant_method": "compressed-tensors", "format": "float-quantized",
        "config_groups": {"group_0": {"weights": weights, "targets": ["Linear"]}}
    });
    let scale = f32s("weight_scale", &[N_FF, 1], &rows);
    let found = attempt(&compressed, &[weight.clone(), scale]).unwrap();
    assert_eq!(found, by_place(|row, col| at(row, col) * rows[row]));
    let integers: Vec<u8> = (0..ROWS * COLS).map(|i| (i as u8).wrapping_mul(37)).collect();
    let weight = (format!("{GATE}.weight"), "I8", vec![N_FF, N_EMBD], integers.clone());
    let mut settings = compressed;
    settings["format"] = json!("int-quantized");
    let scale = f32s("weight_scale", &[N_FF, 1], &rows);
    let found = attempt(&settings, &[weight, scale]).unwrap();
    let signed = |row: usize, col: usize| f32::from(integers[row * COLS + col].cast_signed());
    assert_eq!(found, by_place(|row, col| signed(row, col) * rows[row]));
}

/// A code of 4 bits for each row and column.
fn nibble(row: usize, col: usize) -> u32 {
    ((5 * row + 3 * col) % 16) as u32
}

/// Scales of groups of four columns: two for each row.
fn group_scale(row: usize, group: usize) -> f32 {
    0.25 + row as f32 + 0.5 * group as f32
}

fn packed_settings() -> Value {
    json!({
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"group_0": {"weights": {
            "num_bits": 4, "type": "int", "strategy": "group", "group_size": 4
        }}}
    })
}

#[test]
fn packed_integers_are_read_along_rows() {
    let word = |row: usize| (0..8).map(|col| nibble(row, col) << (4 * col)).sum::<u32>();
    let all: Vec<u32> = (0..ROWS).map(word).collect();
    let scales: Vec<f32> =
        (0..ROWS).flat_map(|row| (0..2).map(move |group| group_scale(row, group))).collect();
    let packed = [
        words("weight_packed", &[N_FF, 1], &all),
        f32s("weight_scale", &[N_FF, 2], &scales),
        words("weight_shape", &[2], &[ROWS as u32, COLS as u32]),
    ];
    let found = attempt(&packed_settings(), &packed).unwrap();
    let number = |row, col| nibble(row, col) as f32;
    assert_eq!(found, by_place(|row, col| (number(row, col) - 8.0) * group_scale(row, col / 4)));
    // Zeros are packed along columns: eight rows in a word.
    let zero = |row: usize, group: usize| ((row + 2 * group) % 16) as u32;
    let of_rows = |first: usize, group: usize| {
        let rows = first..ROWS.min(first + 8);
        rows.map(|row| zero(row, group) << (4 * (row - first))).sum::<u32>()
    };
    let zeros: Vec<u32> =
        [0, 8].into_iter().flat_map(|first| [of_rows(first, 0), of_rows(first, 1)]).collect();
    let mut more = packed.to_vec();
    more.push(words("weight_zero_point", &[2, 2], &zeros));
    let found = attempt(&packed_settings(), &more).unwrap();
    let expected = by_place(|row, col| {
        (number(row, col) - zero(row, col / 4) as f32) * group_scale(row, col / 4)
    });
    assert_eq!(found, expected);
    let mut short = packed.to_vec();
    short[2] = words("weight_shape", &[2], &[ROWS as u32, 16]);
    assert!(attempt(&packed_settings(), &short).unwrap_err().contains("weight_packed"));
    let error = attempt(&packed_settings(), &packed[..2]).unwrap_err();
    assert!(error.contains("weight_shape") && error.contains("missing"), "{error}");
}

#[test]
fn gptq_and_awq_store_the_transposed_matrix() {
    // Two groups of inputs; input 1 is of the second group.
    let groups: [u32; COLS] = [0, 1, 0, 0, 1, 1, 0, 1];
    let zero = |group: usize, out: usize| ((3 * group + out) % 15) as u32;
    let scales: Vec<f32> =
        (0..2).flat_map(|group| (0..ROWS).map(move |out| group_scale(out, group))).collect();
    let gptq_words: Vec<u32> = (0..ROWS)
        .map(|out| (0..8).map(|input| nibble(out, input) << (4 * input)).sum::<u32>())
        .collect();
    let row_of = |group: usize, order: [usize; 8], value: &dyn Fn(usize, usize) -> u32| {
        [0, 8].map(|first| {
            let outs = (0..8).filter(|i| first + i < ROWS);
            outs.map(|i| value(group, first + i) << (4 * order[i])).sum::<u32>()
        })
    };
    let straight = [0, 1, 2, 3, 4, 5, 6, 7];
    let zeros: Vec<u32> = (0..2).flat_map(|group| row_of(group, straight, &zero)).collect();
    let gptq = [
        words("qweight", &[1, N_FF], &gptq_words),
        words("qzeros", &[2, 2], &zeros),
        f32s("scales", &[2, N_FF], &scales),
        words("g_idx", &[N_EMBD], &groups),
    ];
    let settings = json!({"quant_method": "gptq", "bits": 4, "group_size": 4, "desc_act": true});
    let found = attempt(&settings, &gptq).unwrap();
    let number = |out, input| nibble(out, input) as f32;
    let expected = by_place(|out, input| {
        let group = groups[input] as usize;
        (number(out, input) - (zero(group, out) + 1) as f32) * group_scale(out, group)
    });
    assert_eq!(found, expected);
    let mut far = gptq.to_vec();
    far[3] = words("g_idx", &[N_EMBD], &[0, 1, 0, 2, 1, 1, 0, 1]);
    assert!(attempt(&settings, &far).unwrap_err().contains("g_idx"));
    // AWQ: rows of inputs, even outputs first in a word.
    let order = [0, 4, 1, 5, 2, 6, 3, 7];
    let code = |input: usize, out: usize| nibble(out, input);
    let awq_words: Vec<u32> = (0..COLS).flat_map(|input| row_of(input, order, &code)).collect();
    let zeros: Vec<u32> = (0..2).flat_map(|group| row_of(group, order, &zero)).collect();
    let awq = [
        words("qweight", &[N_EMBD, 2], &awq_words),
        words("qzeros", &[2, 2], &zeros),
        f32s(
            "scales",
            &[2, 16],
            &[scales[..12].to_vec(), vec![0.0; 4], scales[12..].to_vec(), vec![0.0; 4]].concat(),
        ),
    ];
    let settings = json!({"quant_method": "awq", "bits": 4, "group_size": 4, "version": "gemm"});
    // Outputs fill whole words: 16, of which the last four are 0.
    let found = attempt(&settings, &awq).unwrap();
    let expected = by_place(|out, input| {
        let group = input / 4;
        (number(out, input) - zero(group, out) as f32) * group_scale(out, group)
    });
    assert_eq!((found.len(), &found[..ROWS * COLS]), (16 * COLS, &expected[..]));
}

#[test]
fn other_quantisation_is_refused_by_name() {
    let (weight, _) = codes();
    let scale = f32s("weight_scale_inv", &[1], &[1.0]);
    for (settings, expected) in [
        (json!({"quant_method": "bitsandbytes", "load_in_4bit": true}), "bitsandbytes"),
        (json!({"quant_method": "modelopt", "quant_algo": "NVFP4"}), "NVFP4"),
        (json!({"quant_method": "gptq", "bits": 3}), "bits"),
        (json!({"quant_method": "fp8", "weight_block_size": [0, 128]}), "weight_block_size"),
        (json!({"quant_method": "fp8", "weight_block_size": [4, 4]}), "weight_scale_inv"),
        (
            json!({"quant_method": "compressed-tensors", "format": "pack-quantized"}),
            "config_groups",
        ),
        (
            json!({"quant_method": "compressed-tensors", "format": "marlin-24",
                "config_groups": {"a": {"weights": {"num_bits": 4}}}}),
            "marlin-24",
        ),
    ] {
        let error = attempt(&settings, &[weight.clone(), scale.clone()]).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    let fp8 = json!({"quant_method": "fp8"});
    let error = attempt(&fp8, std::slice::from_ref(&weight)).unwrap_err();
    assert!(error.contains("F8_E4M3"), "a weight without a scale: {error}");
    let error = attempt(&fp8, std::slice::from_ref(&scale)).unwrap_err();
    assert!(error.contains("gate_proj.weight") && error.contains("missing"), "{error}");
    let plain = f32s("weight", &[N_FF, N_EMBD], &vec![0.0; ROWS * COLS]);
    let error = attempt(&fp8, &[plain, scale]).unwrap_err();
    assert!(error.contains("F32") && error.contains("8 bits"), "{error}");
    let other = f32s("weight_scale_inv", &[N_EMBD, 1], &[1.0; COLS]);
    let error = attempt(&fp8, &[weight, other]).unwrap_err();
    assert!(error.contains("weight_scale_inv"), "{error}");
}
