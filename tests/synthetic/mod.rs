//! Synthetic models: valid specifications, correct containers, and the set density of active
//! neurons.

pub(crate) mod forward;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use hal::format::Format;
use proptest::prelude::*;
use thermocline::devices;
use thermocline::engine::{Engine, EngineOptions, LogitsRequest, Sparsity};
use thermocline::gguf::{Container, File};
use thermocline::model::{Model, ModelOptions};
use thermocline::synthetic::{Error, Rope, Shape, Spec};
use thermocline::tokenizer::{Detokenizer, Start, Tokenizer, Vocab};

const TEXT: &str = "Once upon a time there was a little girl who lived near the edge of a big forest. Every day \
    she took her red coat and went out to see what the animals were doing. One morning, the fox was not there. \
    \"Where did you go?\" she asked, but no one answered; only the wind moved the 3 tall trees.\nSo she waited.";

/// Small enough for every test, large enough for every format.
fn small(format: Format, relu: bool) -> Spec {
    let shape = Shape { n_embd: 512, n_layer: 2, n_ff: 768, n_head: 4, n_head_kv: 2 };
    Spec { n_vocab: 400, ..Spec::new(shape, format, relu) }
}

fn pwri(spec: &Spec) -> Spec {
    Spec { container: Container::PowerInfer, ..spec.clone() }
}

fn build(spec: &Spec) -> File {
    spec.build(&mut |_, _| true).unwrap()
}

fn model(spec: &Spec) -> Arc<Model> {
    Arc::new(Model::from_file(build(spec), &ModelOptions::default()).unwrap())
}

fn tokenizer(file: &File) -> Tokenizer {
    Tokenizer::new(Vocab::from_metadata(file.metadata()).unwrap()).unwrap()
}

fn is_spec_format(format: Format) -> bool {
    let has_bits = 8 * format.block_bytes() >= 4 * format.block_values();
    format.is_weight() && format.quantizes() && has_bits
}

fn formats() -> impl Iterator<Item = Format> {
    Format::ALL.iter().copied().filter(|format| is_spec_format(*format))
}

fn values(file: &File, name: &str) -> Vec<f32> {
    let info = file.tensor(name).unwrap();
    let bytes = file.bytes(info).unwrap();
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

#[test]
fn specs_are_read() {
    let spec = Spec::parse("1b:Q4_0:relu").unwrap();
    let shape = Shape { n_embd: 2048, n_layer: 16, n_ff: 8192, n_head: 32, n_head_kv: 8 };
    assert_eq!(spec, Spec::new(shape, Format::Q4_0, true));
    assert_eq!((spec.n_vocab, spec.density, spec.seed), (32_000, Some(0.1), 1));
    assert_eq!(Spec::parse("4096x32x11008x32/32:q4_k:SiLU").unwrap().to_string(), "7b:Q4_K:silu");
    assert_eq!(Spec::parse("tiny:f16:relu:pwri").unwrap().container, Container::PowerInfer);
    let spec = Spec::parse("7b:F16:relu").unwrap();
    assert_eq!(spec.container_for(Path::new("a/b.gguf")), Container::Gguf);
    assert_eq!(spec.container_for(Path::new("a/b.PWRI.gguf")), Container::PowerInfer);
}

#[test]
fn errors_list_the_valid_values() {
    let refused = [
        ("", "expected SHAPE:TYPE:relu"),
        ("7b:Q4_0", "expected SHAPE:TYPE:relu"),
        ("7b:Q4_0:relu:gguf", "expected SHAPE:TYPE:relu"),
        ("9b:Q4_0:relu", "tiny, 1b, 3b, 7b, 8b, 13b, 70b"),
        ("8x8x8x8x8:Q4_0:relu", "EMBDxLAYERSxFFxHEADS/KV"),
        ("7b:Q3_K:relu", "F32, F16, BF16, Q4_0"),
        ("7b:U32:relu", "F32, F16, BF16, Q4_0"),
        ("7b:Q4_0:gelu", "expected relu or silu"),
        ("7b:Q4_0:silu:pwri", "needs a ReLU model with a set density, but this is a SiLU model"),
        ("104x2x128x4/2:Q4_0:relu", "the embedding size is 104, expected a multiple of 32"),
        ("128x2x100x4/2:Q4_0:silu", "the number of neurons is 100, expected a multiple of 32"),
        ("128x2x128x4/3:F16:relu", "a divisor of the 4 heads"),
        ("128x2x128x0/0:F16:relu", "the number of heads is 0"),
        ("256x2x256x4/2:Q4_K:relu", "the embedding size is 256, expected 512 to"),
        ("1x99999999999x1x1/1:F16:relu", "the number of layers is 99999999999"),
    ];
    for (given, expected) in refused {
        let message = Spec::parse(given).unwrap_err().to_string();
        assert!(message.contains(expected), "{given}: {message:?} lacks {expected:?}");
    }
    for density in [0.0, -1.0, 1.0, f64::NAN, f64::INFINITY] {
        let spec = Spec { density: Some(density), ..small(Format::F16, true) };
        assert!(matches!(spec.check(), Err(Error::Size { what: "the density", .. })), "{density}");
    }
    let silu = small(Format::F16, false);
    let folder = tempfile::tempdir().unwrap();
    let refused = silu.write(&folder.path().join("a.pwri.gguf"), &mut |_, _| true);
    assert!(matches!(refused, Err(Error::Container { .. })));
}

proptest! {
    #[test]
    fn a_spec_is_read_as_it_is_written(
        sizes in (1..40usize, 1..100usize, 1..40usize, 0..5u32, 0..5u32),
        format in proptest::sample::select(Format::ALL),
        flags in (any::<bool>(), any::<bool>()),
    ) {
        let (n_embd, n_layer, n_ff, heads, kv) = sizes;
        let n_head = 1 << heads.max(kv);
        let shape = Shape { n_embd: 512 * n_embd, n_layer, n_ff: 256 * n_ff, n_head, n_head_kv: 1 << kv };
        let mut spec = Spec::new(shape, format, flags.0);
        if flags.0 && flags.1 {
            spec.container = Container::PowerInfer;
        }
        let again = Spec::parse(&spec.to_string());
        if is_spec_format(format) {
prop_assert_eq!(again.unwrap(), spec)
} else {
prop_assert!(again.is_err())
}
    }

    #[test]
    fn no_spec_panics(given in "[0-9x/:a-zQ_K]{0,40}", sizes in any::<[u32; 5]>()) {
        let _ = Spec::parse(&given);
        let [a, b, c, d, e] = sizes.map(|size| size >> (size % 32));
        if let Ok(spec) = Spec::parse(&format!("{a}x{b}x{c}x{d}/{e}:F16:relu:pwri")) {
            prop_assert!(spec.size().unwrap().0 > 0);
        }
    }
}

#[test]
fn every_format_loads_from_both_containers() {
    for format in formats() {
        for spec in [small(format, false), small(format, true), pwri(&small(format, true))] {
            let is_younger =
                matches!(format, Format::BF16 | Format::MXFP4 | Format::IQ4_NL | Format::IQ4_XS);
            if spec.container == Container::PowerInfer && is_younger {
                assert!(matches!(spec.build(&mut |_, _| true), Err(Error::Gguf(_))));
                continue;
            }
            let model = model(&spec);
            let predictors = if spec.container == Container::PowerInfer { 2 } else { 0 };
            assert_eq!(model.n_predictors, predictors, "{spec}");
            assert_eq!(model.is_exactly_sparse(), spec.relu, "{spec}");
            assert_eq!(model.layers[1].ffn.as_ref().unwrap().up.w.desc().format, format, "{spec}");
            let tensors = model.file.tensors();
            let size: u64 = tensors.iter().map(|t| model.file.bytes(t).unwrap().len() as u64).sum();
            assert_eq!(spec.size().unwrap().0, size, "{spec}");
            assert!(
                model.file.metadata().str("general.name").unwrap().unwrap().contains("synthetic")
            );
        }
    }
}

#[test]
fn both_containers_hold_the_same_weights() {
    for format in [Format::F32, Format::Q4_0] {
        let spec = small(format, true);
        let (dense, sparse) = (build(&spec), build(&pwri(&spec)));
        let mut n_same = 0;
        for tensor in dense.tensors().iter().filter(|t| !t.name.contains("ffn_down")) {
            let other = sparse.tensor(&tensor.name).unwrap();
            assert!(
                dense.bytes(tensor).unwrap() == sparse.bytes(other).unwrap(),
                "{}",
                tensor.name
            );
            n_same += 1;
        }
        assert_eq!(n_same, 3 + 2 * 8);
    }
    let spec = small(Format::F32, true);
    let (dense, sparse) = (build(&spec), build(&pwri(&spec)));
    let (n_embd, n_ff) = (spec.shape.n_embd, spec.shape.n_ff);
    let down = values(&dense, "blk.1.ffn_down.weight");
    let by_neuron = values(&sparse, "blk.1.ffn_down_t.weight");
    for neuron in 0..n_ff {
        for output in 0..n_embd {
            assert_eq!(down[output * n_ff + neuron], by_neuron[neuron * n_embd + output]);
        }
    }
}

#[test]
fn files_depend_only_on_the_seed() {
    let spec = Spec { n_vocab: 300, ..small(Format::Q8_0, true) };
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, spec: &Spec| {
        let path = folder.path().join(name);
        let mut last = (0, 0);
        let mut progress = |done, total| {
            assert!(done > last.0 && done <= total);
            last = (done, total);
            true
        };
        spec.write(&path, &mut progress).unwrap();
        assert_eq!(last.0, last.1);
        std::fs::read(path).unwrap()
    };
    let first = write("first.gguf", &spec);
    let one_thread = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    assert!(first == one_thread.install(|| write("again.gguf", &spec)));
    assert!(first != write("other.gguf", &Spec { seed: 2, ..spec.clone() }));
    let path = folder.path().join("b.pwri.gguf");
    write("b.pwri.gguf", &spec);
    assert_eq!(File::open(&path).unwrap().container(), Container::PowerInfer);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 4);
}

#[test]
fn any_text_tokenises() {
    let tokenizer = tokenizer(&build(&small(Format::Q4_0, true)));
    let check = |text: &str| {
        let ids = tokenizer.encode(text, true, false).unwrap();
        let mut detokenizer = Detokenizer::new(&tokenizer, Start::BeginningOfText, false);
        let mut again = String::new();
        for &id in &ids {
            again += detokenizer.push(id).unwrap();
        }
        again + &detokenizer.finish()
    };
    assert_eq!(check(TEXT), TEXT);
    proptest!(|(text in "\\PC{0,40}|[a-z ]{0,40}")| prop_assert_eq!(check(&text), text));
    let words = Spec { n_vocab: 20_000, ..small(Format::Q4_0, true) };
    let words = self::tokenizer(&build(&words));
    assert!(words.encode(TEXT, true, false).unwrap().len() < TEXT.len() / 2);
}

/// Runs a model built from `spec` on the first 96 tokens of `TEXT` in plain loops.
fn measure(spec: &Spec) -> forward::Measurement {
    let model = model(spec);
    let ids = tokenizer(&model.file).encode(TEXT, true, false).unwrap();
    forward::run(&model, &ids[..ids.len().min(96)], None)
}

#[test]
fn the_active_fraction_matches_the_density() {
    for (format, density) in
        [(Format::F32, 0.1), (Format::Q4_0, 0.1), (Format::Q4_0, 0.3), (Format::Q6_K, 0.03)]
    {
        let spec = Spec::new("512x3x2048x8/4".parse().unwrap(), format, true);
        let measured = measure(&pwri(&Spec { density: Some(density), n_vocab: 4000, ..spec }));
        let off = measured.fired / density - 1.0;
        assert!(off.abs() < 0.2, "{format} {density}: {measured:?}");
        assert!(measured.recall > 0.9, "{format} {density}: {measured:?}");
        assert!(measured.predicted < 1.5 * measured.fired, "{format} {density}: {measured:?}");
        assert!((1.5..4.0).contains(&measured.logit_deviation), "{measured:?}");
    }
}

fn perplexity(ids: &[u32], logits: &[Vec<f32>]) -> f64 {
    let nll = |(row, next): (&Vec<f32>, &u32)| {
        let most = row.iter().copied().fold(f32::MIN, f32::max);
        let sum: f64 = row.iter().map(|v| f64::from(v - most).exp()).sum();
        sum.ln() - f64::from(row[*next as usize] - most)
    };
    let sum: f64 = logits.iter().zip(&ids[1..]).map(nll).sum();
    (sum / (ids.len() - 1) as f64).exp()
}

#[test]
fn predicted_texts_match_powerinfers_formula() {
    let spec = pwri(&Spec { n_vocab: 1000, ..small(Format::F16, true) });
    let model = model(&spec);
    let mut ids = tokenizer(&model.file).encode(TEXT, true, false).unwrap();
    ids.truncate(64);
    let mut texts = Vec::new();
    for (sparsity, sparse_threshold, independent) in [
        (Sparsity::Exact, None, None),
        (Sparsity::Predicted, None, Some(0.0)),
        (Sparsity::Predicted, Some(0.2), Some(0.2)),
    ] {
        let options = EngineOptions {
            n_ctx: 64,
            n_ubatch: 16,
            kv_formats: hal::KvCache::both(Format::F32),
            sparsity,
            sparse_threshold,
            ..EngineOptions::default()
        };
        let (device, quiet) = (devices::cpu(Some(2)), Arc::new(|_: &str| {}));
        let model = Arc::clone(&model);
        let expected = forward::run(&model, &ids, independent).logits;
        let mut engine =
            Engine::load(model, vec![device], options, None, quiet, &|_, _| {}).unwrap();
        assert_eq!(engine.predicts(), sparsity == Sparsity::Predicted);
        let (mut sequence, interrupt) = (engine.new_sequence(), AtomicBool::new(false));
        let mut got = Vec::new();
        let sink = &mut |_: usize, row: &[f32]| got.push(row.to_vec());
        engine.feed(&mut sequence, &ids, LogitsRequest::All, &interrupt, sink).unwrap();
        let (expected, got) = (perplexity(&ids, &expected), perplexity(&ids, &got));
        println!("{sparsity:?} {sparse_threshold:?}: perplexity {got}, in plain loops {expected}");
        assert!((got / expected - 1.0).abs() < 1e-4, "{sparsity:?}: {got} for {expected}");
        texts.push(expected);
    }
    assert!((texts[1] / texts[2] - 1.0).abs() > 1e-3, "the threshold changes nothing: {texts:?}");
    assert!((texts[0] / texts[1] - 1.0).abs() > 1e-6, "the predictor drops nothing: {texts:?}");
}

#[test]
fn random_weights_give_plausible_logits() {
    let silu = Spec { n_vocab: 1000, ..small(Format::F16, false) };
    let tied = Spec { tied: true, ..silu.clone() };
    for spec in [silu, tied, Spec { n_vocab: 1000, tied: true, ..small(Format::F16, true) }] {
        let measured = measure(&spec);
        assert!((1.2..4.0).contains(&measured.logit_deviation), "{spec}: {measured:?}");
        if spec.density.is_none() {
            assert!((0.45..0.55).contains(&measured.fired), "{spec}: {measured:?}");
        }
    }
}

/// `n` greedy tokens after the first 60 of `TEXT`, and active neurons divided by all neurons.
fn greedy(spec: &Spec, n: usize) -> (Vec<u32>, f64) {
    let model = model(spec);
    let mut tokens = tokenizer(&model.file).encode(TEXT, true, false).unwrap();
    tokens.truncate(60);
    let options = EngineOptions { n_ctx: 256, n_ubatch: 64, ..EngineOptions::default() };
    let (device, quiet) = (devices::cpu(Some(2)), Arc::new(|_: &str| {}));
    let mut engine = Engine::load(model, vec![device], options, None, quiet, &|_, _| {}).unwrap();
    let mut sequence = engine.new_sequence();
    let interrupt = AtomicBool::new(false);
    let (mut new, mut active, mut neurons) = (Vec::new(), 0.0, 0.0);
    for _ in 0..n {
        let mut best = 0;
        let sink = &mut |_: usize, logits: &[f32]| {
            let largest = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
            best = largest.unwrap().0 as u32;
        };
        let stats =
            engine.feed(&mut sequence, &tokens, LogitsRequest::Last, &interrupt, sink).unwrap();
        (active, neurons) = (active + stats.active, neurons + stats.neurons);
        tokens = vec![best];
        new.push(best);
    }
    (new, active / neurons)
}

#[test]
fn greedy_text_does_not_repeat_one_token() {
    let base = Spec { n_vocab: 2000, ..small(Format::Q4_0, true) };
    let silu = Spec { relu: false, density: None, ..base.clone() };
    let specs = [
        base.clone(),
        pwri(&base),
        Spec { tied: true, ..base.clone() },
        Spec { rope: Rope::Linear { factor: 4.0 }, ..silu.clone() },
        Spec { rope: Rope::Yarn { factor: 4.0, n_ctx_orig: 64 }, tied: true, ..silu.clone() },
        Spec {
            rope: Rope::Llama3 { factor: 8.0 },
            d_head: Some(80),
            format: Format::Q8_0,
            ..silu.clone()
        },
        Spec { window: Some(16), ..silu },
    ];
    let mut texts = Vec::new();
    for spec in specs {
        let (text, density) = greedy(&spec, 40);
        let mut distinct = text.clone();
        distinct.sort_unstable();
        distinct.dedup();
        println!("{spec}: density {density:.3}, {} different of {}", distinct.len(), text.len());
        assert!(distinct.len() > 10, "{spec:?}: {text:?}");
        assert!(text.iter().all(|&id| id >= 259), "{spec:?} writes no text: {text:?}");
        if spec.relu {
            assert!((density / 0.1 - 1.0).abs() < 0.25, "{spec:?}: {density}");
        }
        texts.push(text);
    }
    let (window, plain) =
        (texts.pop().unwrap(), greedy(&Spec { relu: false, density: None, ..base }, 40).0);
    assert_ne!(window, plain, "the window changes nothing");
}
