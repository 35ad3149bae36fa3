//! Conversion: the resulting models, rejected checkpoints, and no incomplete output files.

mod deepseek4;
mod families;
mod files;
mod hostile;
mod importance;
mod kda;
mod lossy;
pub(crate) mod make;
mod own_code;
mod quantised;
mod settings;

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use hal::format::Format;
use thermocline::convert::{self, Conversion, Error, Limit, OutType, Quantization, Target};
use thermocline::gguf::{Container, File, TensorType};
use thermocline::synthetic::Spec;
use thermocline::tokenizer::{Tokenizer, Vocab};

fn never_stop(_: u64, _: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn conversion(folder: PathBuf, output: PathBuf) -> Conversion {
    Conversion {
        folder,
        predictor: None,
        output,
        out_type: OutType::F32,
        container: None,
        pre: None,
        name: Some("tiny".to_owned()),
        force: true,
    }
}

fn values(file: &File, name: &str) -> Vec<f32> {
    let info = file.tensor(name).unwrap_or_else(|| panic!("no tensor {name}"));
    assert_eq!(info.ty, TensorType::F32);
    let bytes = file.bytes(info).unwrap();
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Names of incomplete files in a folder.
fn incomplete_files(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| name.ends_with(".part")).collect()
}

#[test]
fn conversion_gives_the_expected_names_order_and_keys() {
    let scratch = tempfile::tempdir().unwrap();
    let weights = make::weights();
    let folder = make::folder(
        scratch.path(),
        &make::config(),
        "model.safetensors",
        &make::safetensors(&weights),
    );
    let output = scratch.path().join("tiny.gguf");
    let summary = conversion(folder, output.clone()).run(&never_stop).unwrap();
    assert_eq!((summary.n_tensors, summary.size), (11, fs::metadata(&output).unwrap().len()));
    let file = File::open(&output).unwrap();
    let metadata = file.metadata();
    assert_eq!(metadata.str("general.architecture").unwrap(), Some("llama"));
    assert_eq!(metadata.str("llama.hidden_activation").unwrap(), Some("relu"));
    assert_eq!(metadata.u32("llama.attention.head_count_kv").unwrap(), Some(1));
    assert_eq!(metadata.str("tokenizer.ggml.pre").unwrap(), Some("gpt-2"));
    assert_eq!(
        metadata.i32_array("tokenizer.ggml.token_type").unwrap().unwrap()[..6],
        [1, 1, 1, 1, 3, 5]
    );
    assert_eq!(file.tensors()[0].name, "token_embd.weight");
    assert_eq!(file.tensor("blk.0.ffn_down.weight").unwrap().shape, [make::N_FF, make::N_EMBD]);
    // Two heads of four rows: the two rows of a RoPE pair become adjacent.
    let q = values(&file, "blk.0.attn_q.weight");
    let source = &weights[4].2;
    let rows = [0, 2, 1, 3, 4, 6, 5, 7];
    for (row, from) in rows.into_iter().enumerate() {
        assert_eq!(q[8 * row..8 * row + 8], source[8 * from..8 * from + 8], "row {row}");
    }
    assert_eq!(values(&file, "blk.0.ffn_gate.weight"), weights[8].2);
}

#[test]
fn safetensors_and_pickles_give_the_same_file() {
    let scratch = tempfile::tempdir().unwrap();
    let weights = make::weights();
    let down = "model.layers.0.mlp.down_proj.weight";
    let kinds = [
        ("model.safetensors", make::safetensors(&weights)),
        ("pytorch_model.bin", make::torch(&weights, &[])),
        ("pytorch_model.bin", make::torch(&weights, &[down])),
    ];
    let files = kinds.map(|(name, bytes)| {
        let folder = make::folder(scratch.path(), &make::config(), name, &bytes);
        let output = scratch.path().join("tiny.gguf");
        conversion(folder, output.clone()).run(&never_stop).unwrap();
        fs::read(output).unwrap()
    });
    assert!(files[0] == files[1] && files[0] == files[2]);
}

#[test]
fn powerinfer_files_have_predictors_and_a_transposed_down() {
    let scratch = tempfile::tempdir().unwrap();
    let weights = make::weights();
    let folder = make::folder(
        scratch.path(),
        &make::config(),
        "model.safetensors",
        &make::safetensors(&weights),
    );
    let predictor = scratch.path().join("predictor");
    fs::create_dir(&predictor).unwrap();
    let parts = |rank: u64, n_ff: u64| {
        let fc1 = (
            "fc1.weight".to_owned(),
            vec![rank, make::N_EMBD],
            vec![0.5; (rank * make::N_EMBD) as usize],
        );
        let fc2 = ("fc2.weight".to_owned(), vec![n_ff, rank], vec![0.25; (n_ff * rank) as usize]);
        make::torch(&[fc1, fc2], &[])
    };
    fs::write(predictor.join("model_0.pt"), parts(4, make::N_FF)).unwrap();
    fs::write(predictor.join("config.json"), r#"{"sparse_threshold": 0.5}"#).unwrap();
    let output = scratch.path().join("tiny.gguf");
    let job =
        Conversion { predictor: Some(predictor.clone()), ..conversion(folder, output.clone()) };
    job.run(&never_stop).unwrap();
    let file = File::open(&output).unwrap();
    assert_eq!(file.container(), Container::PowerInfer);
    assert_eq!(file.metadata().f32("powerinfer.sparse_threshold").unwrap(), Some(0.5));
    assert!(file.tensor("blk.0.ffn_down.weight").is_none());
    let down = &weights[10].2;
    let (n_embd, n_ff) = (make::N_EMBD as usize, make::N_FF as usize);
    let transposed: Vec<f32> =
        (0..n_embd * n_ff).map(|i| down[i % n_embd * n_ff + i / n_embd]).collect();
    assert_eq!(values(&file, "blk.0.ffn_down_t.weight"), transposed);
    assert_eq!(values(&file, "output.weight"), weights[0].2);
    assert_eq!(file.tensor("blk.0.fc2.weight").unwrap().shape, [4, make::N_FF]);
    fs::write(predictor.join("model_0.pt"), parts(4, make::N_FF + 1)).unwrap();
    assert!(job.run(&never_stop).unwrap_err().to_string().contains("blk.0.fc2.weight"));
    let without = Conversion { predictor: None, container: Some(Container::PowerInfer), ..job };
    assert!(matches!(without.run(&never_stop), Err(Error::PowerInfer { .. })));
}

#[test]
fn existing_files_are_kept_and_incomplete_files_are_removed() {
    let scratch = tempfile::tempdir().unwrap();
    let bytes = make::safetensors(&make::weights());
    let folder = make::folder(scratch.path(), &make::config(), "model.safetensors", &bytes);
    let output = scratch.path().join("tiny.gguf");
    fs::write(&output, "kept").unwrap();
    let job = Conversion { force: false, ..conversion(folder, output.clone()) };
    assert!(matches!(job.run(&never_stop), Err(Error::Exists { .. })));
    let n_calls = AtomicU64::new(0);
    let stop = |_: u64, _: u64| match n_calls.fetch_add(1, Ordering::Relaxed) {
        0..5 => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    };
    let job = Conversion { force: true, ..job };
    assert!(matches!(job.run(&stop), Err(Error::Interrupted)));
    assert_eq!(fs::read_to_string(&output).unwrap(), "kept");
    assert_eq!(incomplete_files(scratch.path()), [""; 0]);
    job.run(&never_stop).unwrap();
    let onto_itself = quantization(&output, &output, "Q8_0");
    assert!(matches!(onto_itself.run(&never_stop), Err(Error::SameFile { .. })));
}

fn quantization(input: &Path, output: &Path, target: &str) -> Quantization {
    let target = target.parse().unwrap();
    Quantization { force: true, ..Quantization::new(input.to_owned(), output.to_owned(), target) }
}

#[test]
fn mixes_give_sensitive_tensors_more_bits() {
    let scratch = tempfile::tempdir().unwrap();
    let (input, output) = (scratch.path().join("in.gguf"), scratch.path().join("out.gguf"));
    let mut spec = Spec::parse("256x8x512x4/2:F16:relu").unwrap();
    spec.n_vocab = 400;
    spec.write(&input, &mut |_, _| true).unwrap();
    let types = |job: Quantization| {
        job.run(&never_stop).unwrap();
        let file = File::open(&output).unwrap();
        let ty = |name: &str| file.tensor(name).unwrap().ty.format().unwrap();
        let of_layers =
            |part: &str| (0..8).map(|n| ty(&format!("blk.{n}.{part}"))).collect::<Vec<_>>();
        assert_eq!(ty("blk.0.attn_norm.weight"), Format::F32);
        (
            ty("output.weight"),
            ty("token_embd.weight"),
            of_layers("ffn_down.weight"),
            of_layers("attn_q.weight"),
        )
    };
    use Format::{Q4_K, Q5_K, Q6_K, Q8_0};
    let more = vec![Q6_K, Q4_K, Q4_K, Q6_K, Q4_K, Q4_K, Q6_K, Q6_K];
    assert_eq!(types(quantization(&input, &output, "q4_k_m")), (Q6_K, Q4_K, more, vec![Q4_K; 8]));
    let some: Vec<_> = (0..8).map(|n| if n == 0 { Q5_K } else { Q4_K }).collect();
    assert_eq!(types(quantization(&input, &output, "Q4_K_S")).2, some);
    let pure = Quantization { pure: true, ..quantization(&input, &output, "Q4_K") };
    assert_eq!(types(pure), (Q4_K, Q4_K, vec![Q4_K; 8], vec![Q4_K; 8]));
    let named = Quantization {
        output_type: Some(Format::Q8_0),
        embedding_type: Some(Format::Q5_K),
        ..quantization(&input, &output, "Q4_K_M")
    };
    let named = types(named);
    assert_eq!((named.0, named.1), (Q8_0, Q5_K));
    let of_experts = |pure| {
        let job = Quantization { pure, ..quantization(&input, &output, "MXFP4") };
        job.run(&never_stop).unwrap().notes.join("; ")
    };
    assert!(
        of_experts(false)
            .contains("MXFP4 applies only to expert matrices, and this model has none")
    );
    assert_eq!(of_experts(true), "");
    types(quantization(&input, &output, "Q4_K_M"));
    let again = quantization(&output, &scratch.path().join("again.gguf"), "Q8_0");
    assert!(matches!(again.run(&never_stop), Err(Error::Requantize { .. })));
    let again = Quantization { requantize: true, ..again };
    again.run(&never_stop).unwrap();
}

#[test]
fn every_mix_can_be_made_and_read_back() {
    let scratch = tempfile::tempdir().unwrap();
    let (input, output) = (scratch.path().join("in.gguf"), scratch.path().join("out.gguf"));
    let mut spec = Spec::parse("256x2x512x4/2:F32:relu").unwrap();
    spec.n_vocab = 300;
    spec.write(&input, &mut |_, _| true).unwrap();
    let file = File::open(&input).unwrap();
    let name = "blk.1.ffn_up.weight";
    let source = values(&file, name);
    // Without an importance matrix, Q2_K_S is refused.
    let made = Target::all().filter(|target| target.name() != "Q2_K_S");
    for target in made {
        quantization(&input, &output, target.name()).run(&never_stop).unwrap();
        let copy = File::open(&output).unwrap();
        let info = copy.tensor(name).unwrap();
        let format = info.ty.format().unwrap();
        let mut back = vec![0.0; source.len()];
        format.dequantize(copy.bytes(info).unwrap(), &mut back);
        let square =
            |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v * v)).sum::<f64>();
        let error = square(&mut source.iter().zip(&back).map(|(a, b)| a - b))
            / square(&mut source.iter().copied());
        let limits = [(Format::Q1_0, 0.45), (Format::Q2_K, 0.1), (Format::Q3_K, 0.04)];
        let limit = limits.iter().find(|(of, _)| *of == format).map_or(0.02, |(_, limit)| *limit);
        assert!(error < limit, "{}: {error}", target.name());
        if let Some(file_type) = target.file_type() {
            assert_eq!(copy.metadata().u32("general.file_type").unwrap(), Some(file_type));
        } else {
            assert_eq!(format, Format::F32);
        }
    }
}

#[test]
fn merged_parts_equal_the_original_file() {
    let scratch = tempfile::tempdir().unwrap();
    let input = scratch.path().join("in.gguf");
    let mut spec = Spec::parse("64x3x96x4/2:Q8_0:relu").unwrap();
    spec.n_vocab = 300;
    spec.write(&input, &mut |_, _| true).unwrap();
    let whole = fs::read(&input).unwrap();
    for (limit, prefix) in [(Limit::Tensors(5), "by-n"), (Limit::Bytes(20_000), "by-size")] {
        let prefix = scratch.path().join(prefix);
        let (paths, _) = convert::split(&input, &prefix, limit, false, &never_stop).unwrap();
        assert!(paths.len() > 3, "{paths:?}");
        assert!(
            paths[0].to_string_lossy().ends_with(&format!("-00001-of-{:05}.gguf", paths.len()))
        );
        let output = scratch.path().join("whole.gguf");
        // `merge` accepts any part of the model.
        convert::merge(&paths[1], &output, true, &never_stop).unwrap();
        assert!(fs::read(&output).unwrap() == whole);
        assert!(matches!(
            convert::split(&input, &prefix, limit, false, &never_stop),
            Err(Error::Exists { .. })
        ));
        assert!(matches!(
            convert::merge(&paths[0], &paths[1], true, &never_stop),
            Err(Error::SameFile { .. })
        ));
    }
    let prefix = scratch.path().join("stopped");
    let n_calls = AtomicU64::new(0);
    let stop = |_: u64, _: u64| match n_calls.fetch_add(1, Ordering::Relaxed) {
        0..20 => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    };
    assert!(convert::split(&input, &prefix, Limit::Tensors(1), false, &stop).is_err());
    let names = fs::read_dir(scratch.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.filter(|name| name.to_string_lossy().starts_with("stopped")).count(), 0);
}

/// The folder with the built-in model's checkpoint and GGUF file, or `None` with a printed reason.
fn published() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/models/tinystories-relu");
    if !folder.is_dir() {
        println!("skipped: {} does not exist", folder.display());
        return None;
    }
    Some(folder)
}

#[test]
fn converting_the_checkpoint_gives_the_published_model() {
    let Some(published) = published() else { return };
    let scratch = tempfile::tempdir().unwrap();
    let output = scratch.path().join("model.gguf");
    let job =
        Conversion { out_type: OutType::Auto, ..conversion(published.join("hf"), output.clone()) };
    job.run(&never_stop).unwrap();
    let (ours, theirs) = (
        File::open(&output).unwrap(),
        File::open(&published.join("tinystories-relu-f16.gguf")).unwrap(),
    );
    assert_eq!(ours.tensors().len(), theirs.tensors().len());
    for tensor in theirs.tensors() {
        let own = ours.tensor(&tensor.name).unwrap();
        assert_eq!((&own.shape, own.ty), (&tensor.shape, tensor.ty));
        assert!(ours.bytes(own).unwrap() == theirs.bytes(tensor).unwrap(), "{}", tensor.name);
    }
    for (key, value) in theirs.metadata().iter().filter(|(key, _)| key.starts_with("tokenizer.")) {
        assert_eq!(ours.metadata().get(key), Some(value), "{key}");
    }
    // Without SentencePiece's file the scores are the ranks of merges: different numbers that give
    // the same tokens.
    let copy = scratch.path().join("copy");
    fs::create_dir(&copy).unwrap();
    for entry in fs::read_dir(published.join("hf")).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "tokenizer.model" {
            fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
        }
    }
    drop(ours);
    conversion(copy, output.clone()).run(&never_stop).unwrap();
    let from_json = File::open(&output).unwrap();
    let tokenizer =
        |file: &File| Tokenizer::new(Vocab::from_metadata(file.metadata()).unwrap()).unwrap();
    let (by_rank, by_score) = (tokenizer(&from_json), tokenizer(&theirs));
    let text = fs::read_to_string(published.join("eval.txt")).unwrap();
    for line in text.lines().chain(["  two  spaces", "caf\u{e9} \u{2603}", "<s>x</s>"]) {
        assert_eq!(
            by_rank.encode(line, true, true).unwrap(),
            by_score.encode(line, true, true).unwrap(),
            "{line}"
        );
    }
}
