//! Latent attention (MLA): the KV cache has a latent vector per token, in every format; files with one
//! matrix for keys and values and files with two have the same logits.

use rand::RngExt;
use thermocline::engine::host_bytes;
use thermocline::gguf::Writer;

use super::layers::nmse;
use super::on_devices::{on_cuda, on_graphics};
use super::*;

const N_EMBD: usize = 64;
const N_FF: usize = 96;
const N_HEAD: usize = 3;
const N_LAYER: usize = 2;
const N_VOCAB: usize = 80;
/// Values of a head without RoPE.
const D_NOPE: usize = 32;
/// Values of a head with RoPE.
const N_ROT: usize = 32;
/// Values of the latent vector.
const D_LATENT: usize = 64;
/// Values of a value head.
const D_VALUE: usize = 32;

/// A model of PLM's family whose heads are whole blocks of 32 values, with random weights.
struct Plm {
    format: Format,
    /// Whether the file has a matrix for keys and one for values, in place of one for both.
    split: bool,
    d_nope: usize,
    /// Whether queries read the columns without RoPE.
    reads_nope: bool,
}

const fn plm(format: Format, split: bool) -> Plm {
    Plm { format, split, d_nope: D_NOPE, reads_nope: true }
}

impl Plm {
    fn model(&self) -> Arc<Model> {
        let mut writer = Writer::new(Container::Gguf);
        writer.set("general.architecture", "plm").unwrap();
        for (key, value) in [
            ("block_count", N_LAYER),
            ("embedding_length", N_EMBD),
            ("feed_forward_length", N_FF),
            ("attention.head_count", N_HEAD),
            ("attention.head_count_kv", N_HEAD),
            ("attention.kv_lora_rank", D_LATENT),
            ("attention.key_length", self.d_nope + N_ROT),
            ("attention.value_length", D_VALUE),
            ("rope.dimension_count", N_ROT),
            ("context_length", 512),
        ] {
            writer.set(&format!("plm.{key}"), value as u32).unwrap();
        }
        writer.set("plm.attention.layer_norm_rms_epsilon", 1e-5f32).unwrap();
        writer.set("plm.attention.scale", 0.125f32).unwrap();
        let tensors = self.tensors();
        for (name, shape, _) in &tensors {
            let shape: Vec<u64> = shape.iter().map(|&n| n as u64).collect();
            writer.declare(name, &shape, self.format_of(name)).unwrap();
        }
        let mut data = writer.in_memory().unwrap();
        for (name, _, values) in &tensors {
            let format = self.format_of(name);
            let mut bytes = vec![0; values.len() / format.block_values() * format.block_bytes()];
            format.quantize(values, &mut bytes);
            data.write(name, &bytes).unwrap();
        }
        let file = File::from_vec(data.finish().unwrap(), "latent.gguf").unwrap();
        Arc::new(Model::from_file(file, &ModelOptions::default()).unwrap())
    }

    fn format_of(&self, name: &str) -> Format {
        if name.contains("norm") { Format::F32 } else { self.format }
    }

    /// Names, shapes (columns first) and values. The weights do not depend on the kind of file.
    fn tensors(&self) -> Vec<(String, Vec<usize>, Vec<f32>)> {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let mut random = |n: usize, mean: f32, size: f32| -> Vec<f32> {
            (0..n).map(|_| mean + size * rng.random_range(-1.0..1.0)).collect()
        };
        let mut all = Vec::new();
        let (d_nope, reads_nope) = (self.d_nope, self.reads_nope);
        let mut add = |name: String, mut rows: usize, cols: usize| {
            let size = if rows == 1 { 0.2 } else { 2.5 / (cols as f32).sqrt() };
            let mut values = random(rows * cols, if rows == 1 { 1.0 } else { 0.0 }, size);
            let is_query = name.contains("attn_q");
            if is_query || name.contains("attn_kv_b") {
                // The columns without RoPE, which not every model of this test has.
                let factor = if is_query && !reads_nope { 0.0 } else { -1.0 };
                let heads = values.chunks_exact(rows / N_HEAD * cols);
                let padded = heads.flat_map(|head| {
                    let first = head.iter().cycle().take(d_nope * cols);
                    first.map(move |v| factor * v).chain(head.iter().copied())
                });
                values = padded.collect();
                rows += N_HEAD * d_nope;
            }
            let shape = if rows == 1 { vec![cols] } else { vec![cols, rows] };
            all.push((name, shape, values));
        };
        add("token_embd.weight".to_owned(), N_VOCAB, N_EMBD);
        add("output_norm.weight".to_owned(), 1, N_EMBD);
        for i in 0..N_LAYER {
            for (part, rows, cols) in [
                ("attn_norm", 1, N_EMBD),
                ("attn_q", N_HEAD * N_ROT, N_EMBD),
                ("attn_kv_a_mqa", D_LATENT + N_ROT, N_EMBD),
                ("attn_kv_a_norm", 1, D_LATENT),
                ("attn_kv_b", N_HEAD * D_VALUE, D_LATENT),
                ("attn_output", N_EMBD, N_HEAD * D_VALUE),
                ("ffn_norm", 1, N_EMBD),
                ("ffn_up", N_FF, N_EMBD),
                ("ffn_down", N_EMBD, N_FF),
            ] {
                add(format!("blk.{i}.{part}.weight"), rows, cols);
            }
        }
        if !self.split {
            return all;
        }
        let whole = |name: &str| name.contains("attn_kv_b");
        let (joined, mut all): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(name, ..)| whole(name));
        for (name, _, values) in joined {
            let [mut keys, mut parts] = [Vec::new(), Vec::new()];
            for head in values.chunks_exact((D_NOPE + D_VALUE) * D_LATENT) {
                let (k, v) = head.split_at(D_NOPE * D_LATENT);
                keys.extend((0..D_LATENT).flat_map(|c| k.iter().skip(c).step_by(D_LATENT)));
                parts.extend_from_slice(v);
            }
            let renamed = |part: &str| name.replace("attn_kv_b", part);
            all.push((renamed("attn_k_b"), vec![D_NOPE, D_LATENT, N_HEAD], keys));
            all.push((renamed("attn_v_b"), vec![D_LATENT, D_VALUE, N_HEAD], parts));
        }
        all
    }
}

fn ids(n: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * i + 5 * i) % N_VOCAB) as u32).collect()
}

fn engine(
    model: &Arc<Model>,
    devices: Vec<Device>,
    kv: Format,
    placement: Option<Placement>,
) -> Engine {
    let kv_formats = KvCache::both(kv);
    let options =
        EngineOptions { n_ctx: 384, n_ubatch: 40, kv_formats, ..EngineOptions::default() };
    let model = Arc::clone(model);
    Engine::load(model, devices, options, placement, ignore_notices(), &|_, _| {}).unwrap()
}

#[test]
fn both_kinds_of_files_have_the_same_bits() {
    within(LIMIT, || {
        for format in [Format::F32, Format::F16, Format::BF16] {
            let [joined, split] = [false, true].map(|split| {
                let model = plm(format, split).model();
                logits_of(
                    &mut engine(&model, vec![cpu_device(2)], Format::F16, None),
                    &ids(60),
                    &[40, 1],
                )
            });
            assert_eq!(joined, split, "{format}");
        }
    });
}

/// A quantised file with one matrix for both has the logits of the same file with its values as F32,
/// up to the rounding of activations.
#[test]
fn transposed_keys_have_the_values_of_the_file() {
    within(LIMIT, || {
        let [exact, quantised] = [Format::F32, Format::Q8_0].map(|format| {
            let model = plm(format, false).model();
            logits_of(&mut engine(&model, vec![cpu_device(2)], Format::F32, None), &ids(60), &[40])
        });
        let error = nmse(&exact, &quantised);
        assert!(error > 0.0 && error < 2e-3, "{error}");
    });
}

#[test]
fn a_token_of_the_cache_is_its_latent_vector() {
    let model = plm(Format::F16, true).model();
    let placement = Placement::all_on(0, N_LAYER);
    for (kv, row) in [(Format::F32, 4 * 96), (Format::F16, 2 * 96), (Format::Q8_0, 3 * 34)] {
        let kv_formats = KvCache::both(kv);
        let options = EngineOptions { n_ctx: 1024, kv_formats, ..EngineOptions::default() };
        let held = host_bytes(&model, &[cpu_device(1)], &options, &placement);
        for layer in &held.layers {
            // Allocations are padded, and each sequence may leave a block incomplete.
            let cache = layer.cache.0;
            assert!((1024 * row..=1200 * row).contains(&cache), "{kv}: {cache}");
        }
        let mut engine = engine(&model, vec![cpu_device(1)], kv, None);
        let mut saved = |n: usize| {
            let mut sequence = engine.new_sequence();
            let interrupt = std::sync::atomic::AtomicBool::new(false);
            let want = thermocline::engine::LogitsRequest::Last;
            engine.feed(&mut sequence, &ids(n), want, &interrupt, &mut |_, _| {}).unwrap();
            engine.save(&sequence).unwrap().len() as u64
        };
        assert_eq!(saved(13) - saved(3), 10 * (4 + N_LAYER as u64 * row), "{kv}");
    }
}

/// The logits over each cache, cut in several ways and on several devices, differ from those over F32
/// by the rounding of the format.
#[test]
fn caches_of_every_format_hold_latent_vectors() {
    within(Duration::from_secs(500), || {
        let model = plm(Format::F16, true).model();
        let text = ids(90);
        let exact =
            logits_of(&mut engine(&model, vec![cpu_device(2)], Format::F32, None), &text, &[40]);
        for (kv, most) in
            [(Format::F16, 1e-5), (Format::Q8_0, 2e-3), (Format::Q5_1, 0.06), (Format::Q4_0, 0.2)]
        {
            let mut whole = None;
            for pieces in [&[40][..], &[1], &[7, 33]] {
                let mut engine = engine(&model, vec![cpu_device(2)], kv, None);
                let got = logits_of(&mut engine, &text, pieces);
                let error = nmse(&exact, &got);
                assert!(error < most, "{kv}, {pieces:?}: {error}");
                let first = whole.get_or_insert_with(|| got.clone());
                assert!(nmse(first, &got) < 0.3 * most, "{kv}, {pieces:?}");
            }
        }
    });
}

fn check_on(backend: &Arc<dyn hal::Backend>) {
    for (format, kv) in [
        (Format::F32, Format::F32),
        (Format::F16, Format::Q8_0),
        (Format::Q8_0, Format::F16),
        (Format::Q4_0, Format::Q4_0),
    ] {
        let model = plm(format, format != Format::Q8_0).model();
        let text = ids(70);
        let expected = logits_of(&mut engine(&model, vec![cpu_device(2)], kv, None), &text, &[40]);
        let device = Device::new(Arc::clone(backend), hal::DeviceId(1), Bytes::MAX);
        let placement = Some(Placement::all_on(1, N_LAYER));
        let devices = vec![cpu_device(2), device];
        let mut engine = engine(&model, devices, kv, placement);
        for pieces in [&[40][..], &[1, 6, 13]] {
            let error = nmse(&expected, &logits_of(&mut engine, &text, pieces));
            let most = if format == Format::F32 { 1e-6 } else { 2e-2 };
            assert!(error < most, "{format}, {kv}, {pieces:?}: {error}");
        }
    }
}

#[test]
fn latent_attention_runs_on_a_graphics_device() {
    on_graphics(check_on);
}

#[test]
fn latent_attention_runs_on_a_fake_of_cuda() {
    on_cuda(check_on);
}

/// With RoPE on whole keys, the scores are those of keys whose other columns the queries do not read.
#[test]
fn keys_may_consist_of_rotated_columns() {
    within(LIMIT, || {
        let [rotated, padded] = [0, D_NOPE].map(|d_nope| {
            let plm = Plm { format: Format::F32, split: false, d_nope, reads_nope: false };
            let mut engine = engine(&plm.model(), vec![cpu_device(2)], Format::F32, None);
            logits_of(&mut engine, &ids(60), &[40, 1])
        });
        let error = nmse(&padded, &rotated);
        assert!(error < 1e-8, "{error}");
    });
}

#[test]
fn a_cache_type_for_values_has_no_effect_and_a_note_says_so() {
    let path = folder().join("deepseek2.gguf");
    let plan = |more: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_thermocline"));
        command.env_clear().args(["plan", "--backend", "cpu", "-m"]).arg(&path).args(more);
        let output = command.stdin(std::process::Stdio::null()).output().unwrap();
        let notes = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{notes}");
        notes.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let says = "the cache type of values has no effect on";
    let notes = plan(&["-ctv", "q8_0"]);
    assert!(notes.contains(says), "{notes}");
    for same in [&[][..], &["-ctk", "q8_0", "-ctv", "q8_0"]] {
        let notes = plan(same);
        assert!(!notes.contains(says), "{notes}");
    }
}
