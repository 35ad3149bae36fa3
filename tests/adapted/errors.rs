//! Adapters that cannot be merged, and the words that say so.

use thermocline::gguf::{Container, File, TensorType, Value, Writer};
use thermocline::model::{Adapter, AdapterError, AdapterMerge, Error, ModelOptions};

use super::*;

/// A tensor of an adapter: name, shape in ggml order, type.
type Entry<'a> = (&'a str, &'a [u64], TensorType);

/// Factors that fit `attn_q` of the granite fixture, `[32, 32]`.
const A: Entry<'_> = ("blk.0.attn_q.weight.lora_a", &[32, 2], TensorType::F16);
const B: Entry<'_> = ("blk.0.attn_q.weight.lora_b", &[2, 32], TensorType::F16);

/// The keys of an adapter for the granite fixture, with `changes`.
fn file_of(changes: &[(&str, Value)], tensors: &[Entry<'_>], fill: f32) -> File {
    let usual: [(&str, Value); 3] = [
        ("general.type", "adapter".into()),
        ("general.architecture", "granite".into()),
        ("adapter.type", "lora".into()),
    ];
    let mut writer = Writer::new(Container::Gguf);
    for (key, value) in &usual {
        if changes.iter().all(|(changed, _)| changed != key) {
            writer.set(key, value.clone()).unwrap();
        }
    }
    for (key, value) in changes {
        writer.set(key, value.clone()).unwrap();
    }
    for (name, shape, ty) in tensors {
        writer.declare(name, shape, *ty).unwrap();
    }
    let mut data = writer.in_memory().unwrap();
    for (name, shape, ty) in tensors {
        let values = vec![fill; shape.iter().product::<u64>() as usize];
        let bytes = match ty.format() {
            Some(format) => {
                let mut bytes = vec![0; format.row_bytes(values.len()).unwrap()];
                format.quantize(&values, &mut bytes);
                bytes
            }
            None => vec![0; 4 * values.len()],
        };
        data.write(name, &bytes).unwrap();
    }
    File::from_vec(data.finish().unwrap(), "a.gguf").unwrap()
}

fn error_of(family: &str, file: File, scale: f32) -> AdapterError {
    let model = family_file(family);
    AdapterMerge::new(&model, &[Adapter { file, scale }]).map(drop).unwrap_err()
}

#[track_caller]
fn check(changes: &[(&str, Value)], tensors: &[Entry<'_>], says: &[&str]) {
    let error = error_of("granite", file_of(changes, tensors, 0.5), 1.0).to_string();
    for word in [&["a.gguf"], says].concat() {
        assert!(error.contains(word), "{word:?} is not in {error:?}");
    }
}

#[test]
fn a_file_that_is_no_adapter_for_this_architecture_is_rejected() {
    check(&[("general.type", "model".into())], &[A, B], &["`general.type` is `model`"]);
    check(&[("adapter.type", "control_vector".into())], &[A, B], &["`control_vector`", "`lora`"]);
    check(&[("general.architecture", "llama".into())], &[A, B], &["`llama`", "`granite`"]);
    check(&[("adapter.lora.alpha", f32::NAN.into())], &[A, B], &["alpha` is NaN"]);
    let tokens = thermocline::gguf::Array::U32(vec![1, 2]);
    let activated = [("adapter.alora.invocation_tokens", tokens.into())];
    check(&activated, &[A, B], &["activated by tokens"]);
    let model = error_of("granite", family_file("granite"), 1.0);
    assert!(matches!(model, AdapterError::NotAnAdapter { .. }), "{model}");
    let infinite = error_of("granite", adapter("granite-a", 1.0).file, f32::INFINITY);
    assert!(infinite.to_string().contains("the scale is inf"), "{infinite}");
}

#[test]
fn tensors_that_do_not_fit_are_rejected_by_name() {
    check(&[], &[], &["no tensors"]);
    check(&[], &[A], &["`blk.0.attn_q.weight.lora_b` is missing"]);
    check(&[], &[B], &["`blk.0.attn_q.weight.lora_a` is missing"]);
    let other = ("blk.0.attn_q.weight", &[32u64, 32][..], TensorType::F16);
    check(&[], &[A, B, other], &["`blk.0.attn_q.weight`", "neither"]);
    let pair = |name: &str| [format!("{name}.lora_a"), format!("{name}.lora_b")];
    let none = pair("blk.9.attn_q.weight");
    let none = [(none[0].as_str(), A.1, A.2), (none[1].as_str(), B.1, B.2)];
    check(&[], &none, &["`blk.9.attn_q.weight`", "granite.gguf does not have"]);
    let wide = (A.0, &[48u64, 2][..], TensorType::F16);
    check(&[], &[wide, B], &["lora_a` has shape [48, 2]", "expected [32, 2]", "rank 2"]);
    let long = (B.0, &[2u64, 16][..], TensorType::F16);
    check(&[], &[A, long], &["lora_b` has shape [2, 16]", "expected [2, 32]"]);
    let ranks = (B.0, &[3u64, 32][..], TensorType::F16);
    check(&[], &[A, ranks], &["lora_a` has shape [32, 2]", "expected [32, 3]"]);
    let stacked = (A.0, &[32u64, 2, 2][..], TensorType::F16);
    check(&[], &[stacked, B], &["[32, 2, 2]"]);
    let integers = (A.0, A.1, TensorType::I32);
    check(&[], &[integers, B], &["is I32"]);
}

#[test]
fn tensors_that_are_no_matrices_are_rejected_by_name() {
    let check = |family: &str, tensor: &str, n_in: u64, n_out: u64, why: &str| {
        let (a, b) = (format!("{tensor}.lora_a"), format!("{tensor}.lora_b"));
        let shapes = [[n_in, 1], [1, n_out]];
        let tensors =
            [(a.as_str(), &shapes[0][..], TensorType::F32), (&b, &shapes[1], TensorType::F32)];
        let arch = family_file(family);
        let arch = arch.metadata().str("general.architecture").unwrap().unwrap().to_owned();
        let file = file_of(&[("general.architecture", arch.into())], &tensors, 0.5);
        let error = error_of(family, file, 1.0).to_string();
        assert!(error.contains(tensor) && error.contains(why), "{error}");
    };
    check("granite", "blk.0.attn_norm.weight", 32, 1, "a vector");
    check("granite", "token_embd.weight", 32, 99, "the embedding and the output matrix");
    check("mamba2", "blk.0.ssm_conv1d.weight", 4, 96, "a convolution");
    check("mamba2", "blk.0.ssm_a", 1, 4, "a vector");
    check("opt", "position_embd.weight", 48, 66, "a table of positions");
}

#[test]
fn a_merged_value_that_its_format_cannot_hold_is_rejected() {
    let wide = |fill: f32| {
        let tensors = [(A.0, A.1, TensorType::F32), (B.0, B.1, TensorType::F32)];
        let adapters = [Adapter { file: file_of(&[], &tensors, fill), scale: 1.0 }];
        let file = family_file("granite");
        AdapterMerge::new(&file, &adapters).unwrap().apply(file, &|_, _| {}).map(drop)
    };
    wide(100.0).unwrap();
    let error = wide(1000.0).unwrap_err().to_string();
    assert!(error.contains("`blk.0.attn_q.weight`") && error.contains("F16"), "{error}");
    assert!(wide(f32::NAN).unwrap_err().to_string().contains("NaN"));
}

/// llama.cpp ignores norms in adapters; they are counted for the note.
#[test]
fn norms_of_an_adapter_are_counted() {
    let norm = ("blk.0.attn_norm.weight", &[32u64][..], TensorType::F32);
    let adapters = [Adapter { file: file_of(&[], &[A, B, norm], 0.5), scale: 1.0 }];
    let merge = AdapterMerge::new(&family_file("granite"), &adapters).unwrap();
    assert_eq!((merge.n_ignored(), merge.n_matrices()), (1, 1));
}

#[test]
fn rope_settings_out_of_range_are_rejected() {
    let check = |rope: RopeOverrides, says: &str| {
        let options = ModelOptions { rope, ..ModelOptions::default() };
        let error = Model::from_file(family_file("granite"), &options).unwrap_err();
        assert!(matches!(error, Error::Rope { .. }) && error.to_string().contains(says), "{error}");
    };
    let rope = RopeOverrides::default;
    check(RopeOverrides { freq_base: Some(0.0), ..rope() }, "rope_freq_base is 0");
    check(RopeOverrides { freq_scale: Some(f32::INFINITY), ..rope() }, "rope_freq_scale is inf");
    check(RopeOverrides { yarn_ext_factor: Some(-0.5), ..rope() }, "yarn_ext_factor is -0.5");
    check(RopeOverrides { yarn_attn_factor: Some(f32::NAN), ..rope() }, "yarn_attn_factor is NaN");
    check(RopeOverrides { yarn_beta_fast: Some(0.0), ..rope() }, "yarn_beta_fast is 0");
    check(RopeOverrides { yarn_orig_ctx: Some(0), ..rope() }, "yarn_orig_ctx is 0");
}

/// The context of the training follows the settings, so that a longer context is not warned about.
#[test]
fn rope_settings_extend_the_context_of_the_training() {
    let n_ctx_train = |family: &str, rope: RopeOverrides| {
        let options = ModelOptions { rope, ..ModelOptions::default() };
        Model::from_file(family_file(family), &options).unwrap().hyper.n_ctx_train
    };
    let rope = RopeOverrides::default;
    let yarn = RopeOverrides { scaling: Some(RopeScaling::Yarn), ..rope() };
    assert_eq!(n_ctx_train("granite", rope()), 256);
    assert_eq!(n_ctx_train("granite", RopeOverrides { freq_scale: Some(0.25), ..rope() }), 1024);
    assert_eq!(n_ctx_train("granite", RopeOverrides { freq_base: Some(5e5), ..rope() }), 256);
    let short = RopeOverrides { freq_scale: Some(0.5), yarn_orig_ctx: Some(64), ..yarn.clone() };
    assert_eq!(n_ctx_train("granite", short), 128);
    assert_eq!(n_ctx_train("granite", yarn), 256);
}
