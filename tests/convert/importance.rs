//! Quantisation with an importance matrix, rules for single tensors, and keys.

use super::{never_stop, quantization, values};
use hal::format::Format;
use std::path::Path;
use std::sync::Arc;
use thermocline::convert::{
    Error, ImportanceFile, ImportanceMatrix, InputSums, KeyOverride, Quantization, TensorTypeRule,
};
use thermocline::gguf::{File, Value};
use thermocline::synthetic::Spec;

fn model(path: &Path, spec: &str) {
    let mut spec = Spec::parse(spec).unwrap();
    spec.n_vocab = 300;
    spec.write(path, &mut |_, _| true).unwrap();
}

/// An importance matrix of all matrices in `file`: every eighth column is 400 times as important as
/// the others.
fn importance(file: &File) -> Arc<ImportanceFile> {
    let mut matrix = ImportanceMatrix { chunk_size: 512, ..ImportanceMatrix::default() };
    for tensor in file.tensors().iter().filter(|tensor| tensor.name.starts_with("blk.")) {
        let squares: Vec<f32> =
            (0..tensor.row_len()).map(|i| if i % 8 == 0 { 400.0 } else { 1.0 }).collect();
        matrix.entries.insert(tensor.name.clone(), InputSums { squares, counts: vec![1] });
    }
    matrix.datasets.push("text.txt".to_owned());
    Arc::new(ImportanceFile { path: "m.gguf".to_owned(), matrix })
}

/// The squared errors of the important columns and of the others.
fn errors(source: &[f32], back: &[f32]) -> (f64, f64) {
    let mut sums = (0.0, 0.0);
    for (i, (a, b)) in source.iter().zip(back).enumerate() {
        let sum = if i % 8 == 0 { &mut sums.0 } else { &mut sums.1 };
        *sum += f64::from(a - b).powi(2);
    }
    sums
}

#[test]
fn important_columns_have_smaller_errors() {
    let scratch = tempfile::tempdir().unwrap();
    let (input, output) = (scratch.path().join("in.gguf"), scratch.path().join("out.gguf"));
    model(&input, "256x2x512x4/2:F32:relu");
    let file = File::open(&input).unwrap();
    let name = "blk.1.ffn_up.weight";
    let source = values(&file, name);
    let made = |target: &str, importance: Option<Arc<ImportanceFile>>| {
        let job = Quantization { importance, pure: true, ..quantization(&input, &output, target) };
        job.run(&never_stop).unwrap();
        let copy = File::open(&output).unwrap();
        let info = copy.tensor(name).unwrap();
        assert_eq!(info.ty, job.target.format());
        let mut back = vec![0.0; source.len()];
        job.target.format().dequantize(copy.bytes(info).unwrap(), &mut back);
        errors(&source, &back)
    };
    for target in [
        "Q2_K", "Q3_K_S", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ4_NL", "Q4_0", "Q4_1", "Q5_0",
        "Q5_1",
    ] {
        let (plain, _) = made(target, None);
        let (weighted, others) = made(target, Some(importance(&file)));
        assert!(weighted < 0.97 * plain, "{target}: {weighted} with, {plain} without");
        assert!(others > weighted, "{target}");
    }
    // Formats without a search ignore the importance.
    assert_eq!(made("Q8_0", None), made("Q8_0", Some(importance(&file))));
    let copy = File::open(&output).unwrap();
    let metadata = copy.metadata();
    assert_eq!(metadata.str("quantize.imatrix.file").unwrap(), Some("m.gguf"));
    assert_eq!(metadata.str("quantize.imatrix.dataset").unwrap(), Some("text.txt"));
    assert!(metadata.u32("quantize.imatrix.entries_count").unwrap().unwrap() > 10);
}

#[test]
fn an_importance_matrix_must_fit_the_model() {
    let scratch = tempfile::tempdir().unwrap();
    let (input, output) = (scratch.path().join("in.gguf"), scratch.path().join("out.gguf"));
    model(&input, "256x2x512x4/2:F32:relu");
    let file = File::open(&input).unwrap();
    let plain = quantization(&input, &output, "Q2_K_S");
    assert!(matches!(plain.run(&never_stop), Err(Error::NeedsImportance { .. })));
    let weighted = Quantization { importance: Some(importance(&file)), ..plain.clone() };
    assert_eq!(weighted.run(&never_stop).unwrap().notes, [""; 0]);
    let change = |f: &dyn Fn(&mut ImportanceMatrix)| {
        let mut importance = ImportanceFile::clone(&importance(&file));
        f(&mut importance.matrix);
        Quantization {
            importance: Some(Arc::new(importance)),
            ..quantization(&input, &output, "Q4_K_M")
        }
    };
    let fewer = change(&|matrix| matrix.exclude(&["ffn_up".to_owned()]));
    let notes = fewer.run(&never_stop).unwrap().notes.join("; ");
    assert!(notes.contains("no entry for 2 of 14 quantised matrices"), "{notes}");
    let foreign = change(&|matrix| {
        let sums = InputSums { squares: vec![1.0; 7], counts: vec![1] };
        matrix.entries.insert("blk.0.ffn_up.weight".to_owned(), sums);
    });
    assert!(matches!(foreign.run(&never_stop), Err(Error::ImportanceSize { found: 7, .. })));
}

#[test]
fn rules_and_keys_change_single_tensors_and_values() {
    let scratch = tempfile::tempdir().unwrap();
    let (input, output) = (scratch.path().join("in.gguf"), scratch.path().join("out.gguf"));
    model(&input, "256x8x512x4/2:F16:relu");
    let rule = |pattern: &str, format| TensorTypeRule::new(pattern, format).unwrap();
    let job = Quantization {
        tensor_types: vec![rule(r"blk\.[0-3]\.attn_q", Format::Q8_0), rule("attn_q", Format::Q5_K)],
        overrides: vec![KeyOverride { key: "general.name".to_owned(), value: Value::from("x") }],
        ..quantization(&input, &output, "Q3_K_M")
    };
    let summary = job.run(&never_stop).unwrap();
    let copy = File::open(&output).unwrap();
    let ty = |name: &str| copy.tensor(name).unwrap().ty.format().unwrap();
    let of_layers =
        |part: &str| (0..8).map(|n| ty(&format!("blk.{n}.{part}.weight"))).collect::<Vec<Format>>();
    use Format::{Q3_K, Q4_K, Q5_K, Q8_0};
    assert_eq!(of_layers("attn_q"), [Q8_0, Q8_0, Q8_0, Q8_0, Q5_K, Q5_K, Q5_K, Q5_K]);
    assert_eq!(of_layers("attn_v")[..4], [Q5_K, Q5_K, Q4_K, Q4_K]);
    assert_eq!(of_layers("attn_output"), [Q4_K; 8]);
    assert_eq!(of_layers("ffn_down"), [Q4_K; 8]);
    assert_eq!(of_layers("ffn_gate"), [Q3_K; 8]);
    assert_eq!(copy.metadata().str("general.name").unwrap(), Some("x"));
    let bytes: u64 = copy.tensors().iter().map(|tensor| tensor.n_bytes()).sum();
    assert_eq!(summary.tensor_bytes.after, bytes);
    assert!((3.4..6.0).contains(&summary.bits_per_value()), "{}", summary.bits_per_value());
    assert!(matches!(TensorTypeRule::new("(", Format::Q8_0), Err(Error::Pattern { .. })));
    for name in ["IQ3_XXS", "19", "iq1_s"] {
        let parsed = name.parse::<thermocline::convert::Target>();
        assert!(matches!(parsed, Err(Error::CodebookTarget { .. })), "{name}");
    }
}
