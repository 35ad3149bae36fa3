//! Runs the command on files that are not models, are truncated, or contradict themselves: it ends
//! soon, without a panic, with exit code 3 (4 if only memory is missing) and names the fault.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use thermocline::embedded;
use thermocline::gguf::{Array, Container, TensorType, Value, Writer};

/// Errors in a header are reported within this time, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Runs the command with `args` after `-m path`.
fn run(path: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
    command.env_clear().env("THERMOCLINE_ARG_BACKEND", "cpu");
    command.stdin(Stdio::null()).args(["run", "-m"]).arg(path);
    let begin = Instant::now();
    let output = command.args(["-p", "the", "-n", "2"]).args(args).output().unwrap();
    assert!(begin.elapsed() < TIMEOUT, "{path:?} took {:?}", begin.elapsed());
    output
}

#[track_caller]
fn check(path: &Path, code: i32, says: &[&str]) {
    check_output(path, &run(path, &[]), code, says);
}

#[track_caller]
fn check_output(path: &Path, output: &Output, code: i32, says: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{path:?}: {text}");
    assert!(!text.contains("panicked"), "{text}");
    let errors = text.lines().filter(|line| line.starts_with("error: ")).count();
    assert_eq!(errors, usize::from(code != 0), "{text}");
    for words in says {
        assert!(text.contains(words), "{words:?} is not in {text}");
    }
    assert!(text.bytes().all(|b| b == b'\n' || !b.is_ascii_control()), "{text:?}");
}

/// The keys and tensors of a small valid model. Each test changes one of them.
#[derive(Clone)]
struct Model {
    container: Container,
    keys: Vec<(String, Value)>,
    tensors: Vec<(String, Vec<u64>, TensorType)>,
    /// Tensors whose elements all have a given value.
    values: Vec<(String, f32)>,
}

const N_EMBD: u64 = 64;
const N_FF: u64 = 96;
const N_VOCAB: u64 = 262;

impl Model {
    fn new() -> Model {
        let byte = |b: u32| format!("<0x{b:02X}>");
        let names = ["<unk>", "<s>", "</s>", "▁", "t", "▁t"].map(str::to_owned);
        let tokens: Vec<String> = names.into_iter().chain((0..256).map(byte)).collect();
        let types = [2, 3, 3, 1, 1, 1].into_iter().chain([6; 256]).collect();
        let scores = (0..N_VOCAB).map(|i| -(i as f32)).collect();
        let texts = tokens.iter().collect();
        let mut keys: Vec<(String, Value)> = Vec::new();
        let mut key = |name: &str, value: Value| keys.push((name.to_owned(), value));
        key("general.architecture", "llama".into());
        for (name, value) in [
            ("block_count", 2),
            ("embedding_length", N_EMBD as u32),
            ("feed_forward_length", N_FF as u32),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
            ("context_length", 256),
        ] {
            key(&format!("llama.{name}"), value.into());
        }
        key("llama.attention.layer_norm_rms_epsilon", 1e-5f32.into());
        key("llama.hidden_activation", "relu".into());
        key("tokenizer.ggml.model", "llama".into());
        key("tokenizer.ggml.tokens", Array::String(texts).into());
        key("tokenizer.ggml.scores", Array::F32(scores).into());
        key("tokenizer.ggml.token_type", Array::I32(types).into());
        key("tokenizer.ggml.bos_token_id", 1u32.into());
        let mut tensors = Vec::new();
        let mut tensor = |name: String, shape: &[u64]| {
            tensors.push((name + ".weight", shape.to_vec(), TensorType::F32));
        };
        tensor("token_embd".into(), &[N_EMBD, N_VOCAB]);
        tensor("output_norm".into(), &[N_EMBD]);
        for layer in 0..2 {
            for (part, shape) in [
                ("attn_norm", &[N_EMBD][..]),
                ("ffn_norm", &[N_EMBD]),
                ("attn_q", &[N_EMBD, N_EMBD]),
                ("attn_k", &[N_EMBD, N_EMBD / 2]),
                ("attn_v", &[N_EMBD, N_EMBD / 2]),
                ("attn_output", &[N_EMBD, N_EMBD]),
                ("ffn_gate", &[N_EMBD, N_FF]),
                ("ffn_up", &[N_EMBD, N_FF]),
                ("ffn_down", &[N_FF, N_EMBD]),
            ] {
                tensor(format!("blk.{layer}.{part}"), shape);
            }
        }
        Model { container: Container::Gguf, keys, tensors, values: Vec::new() }
    }

    fn without(mut self, name: &str) -> Model {
        self.keys.retain(|(key, _)| key != name);
        self.tensors.retain(|(tensor, ..)| tensor != name);
        self
    }

    fn key(self, name: &str, value: impl Into<Value>) -> Model {
        let mut maker = self.without(name);
        maker.keys.push((name.to_owned(), value.into()));
        maker
    }

    /// Replaces a tensor in place, or appends it.
    fn tensor(mut self, name: &str, shape: &[u64], ty: TensorType) -> Model {
        let new = (name.to_owned(), shape.to_vec(), ty);
        match self.tensors.iter_mut().find(|(tensor, ..)| tensor == name) {
            Some(old) => *old = new,
            None => self.tensors.push(new),
        }
        self
    }

    fn values(mut self, name: &str, value: f32) -> Model {
        self.values.push((name.to_owned(), value));
        self
    }

    fn writer(&self) -> Writer {
        let mut writer = Writer::new(self.container);
        for (key, value) in &self.keys {
            writer.set(key, value.clone()).unwrap();
        }
        for (name, shape, ty) in &self.tensors {
            writer.declare(name, shape, *ty).unwrap();
        }
        writer
    }

    fn bytes(&self) -> Vec<u8> {
        let mut data = self.writer().in_memory().unwrap();
        for (name, shape, ty) in &self.tensors {
            let block = ty.block().unwrap();
            let n: u64 = shape.iter().product();
            let mut bytes = vec![0; (n / block.values * block.bytes) as usize];
            if *ty == TensorType::F32 {
                let chosen = self.values.iter().find(|(tensor, _)| tensor == name).map(|(_, v)| *v);
                for (i, value) in bytes.chunks_exact_mut(4).enumerate() {
                    let small = if shape.len() == 1 { 1.0 } else { (i % 13) as f32 / 50.0 - 0.12 };
                    value.copy_from_slice(&chosen.unwrap_or(small).to_le_bytes());
                }
            }
            data.write(name, &bytes).unwrap();
        }
        data.finish().unwrap()
    }

    #[track_caller]
    fn fails(&self, says: &[&str]) {
        self.ends(3, says);
    }

    #[track_caller]
    fn ends(&self, code: i32, says: &[&str]) {
        check_bytes(&self.bytes(), code, says);
    }
}

#[track_caller]
fn check_bytes(bytes: &[u8], code: i32, says: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    check(&path, code, says);
}

#[test]
fn the_unchanged_model_runs() {
    Model::new().ends(0, &[]);
    let sparse = Model { container: Container::PowerInfer, ..Model::new() };
    sparse.ends(0, &[]);
}

#[test]
fn other_files_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    check(folder.path(), 3, &["is a directory", "it contains no GGUF file"]);
    let made = |name: &str, bytes: &[u8]| -> PathBuf {
        std::fs::write(at(name), bytes).unwrap();
        at(name)
    };
    check(&made("story.txt", b"once upon a time"), 3, &["story.txt", "text that begins with"]);
    check(&made("empty.gguf", b""), 3, &["empty.gguf", "is empty (0 bytes)"]);
    check(&made("loss.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"), 3, &["loss.png", "a PNG image"]);
    check(&made("model.zip", b"PK\x03\x04\x14\0\0\0"), 3, &["model.zip", "a zip archive"]);
    check(&made("zeros.bin", &[0; 4096]), 3, &["zeros.bin", "unfinished download"]);
    check(&at("gone.gguf"), 3, &["gone.gguf", "cannot open"]);
    check(folder.path(), 3, &["is a directory", "it contains empty.gguf"]);
    std::fs::remove_file(at("empty.gguf")).unwrap();
    made("config.json", b"{}");
    check(folder.path(), 3, &["Hugging Face model folder"]);
}

#[cfg(unix)]
#[test]
fn unreadable_files_are_rejected() {
    use std::os::unix::fs::PermissionsExt;
    check(Path::new("/dev/null"), 3, &["/dev/null", "is not a regular file"]);
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe.gguf");
    let made = Command::new("mkfifo").arg(&pipe).status();
    if made.is_ok_and(|status| status.success()) {
        check(&pipe, 3, &["pipe.gguf", "is not a regular file"]);
    }
    let locked = folder.path().join("locked.gguf");
    std::fs::write(&locked, Model::new().bytes()).unwrap();
    std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o000)).unwrap();
    match std::fs::File::open(&locked) {
        Ok(_) => println!("skipped: this user may read any file"),
        Err(_) => check(&locked, 3, &["locked.gguf", "cannot open"]),
    }
}

#[test]
fn truncated_files_are_rejected() {
    let bytes = Model::new().bytes();
    let data: usize = 2 * 64 * 262;
    let in_header = (0..40).chain((40..bytes.len() - data).step_by(4099));
    let in_data = [bytes.len() / 2, bytes.len() - 5000, bytes.len() - 1];
    for length in in_header.chain(in_data) {
        check_bytes(&bytes[..length], 3, &["model.gguf"]);
    }
}

#[test]
fn truncated_real_models_are_rejected() {
    let bytes = embedded::BYTES;
    for part in 1..8 {
        check_bytes(&bytes[..bytes.len() / 8 * part], 3, &["model.gguf", "expected at least"]);
    }
}

/// Checks the error of a valid file with `number` at offset `at` of its header.
#[track_caller]
fn reject(at: usize, number: &[u8], says: &[&str]) {
    let mut bytes = Model::new().bytes();
    bytes[at..at + number.len()].copy_from_slice(number);
    check_bytes(&bytes, 3, says);
}

#[test]
fn wrong_headers_are_rejected() {
    reject(0, b"GGUX", &["expected the magic"]);
    reject(4, &1u32.to_le_bytes(), &["version 1, expected 2 or 3"]);
    reject(4, &4u32.to_le_bytes(), &["version 4, expected 2 or 3"]);
    reject(4, &3u32.to_be_bytes(), &["big-endian"]);
    for count in [1 << 20, 1 << 40, u64::MAX] {
        reject(8, &count.to_le_bytes(), &["the tensor table has a count of"]);
        reject(16, &count.to_le_bytes(), &["the metadata has a count of"]);
        reject(24, &count.to_le_bytes(), &["has a name of"]);
    }
    reject(8, &[0; 8], &["`token_embd.weight` is missing", "[64, the number of tokens]"]);
}

/// The offset of the numbers after a tensor's name in its entry of the tensor table.
fn entry(bytes: &[u8], name: &str) -> usize {
    let name = name.as_bytes();
    let at = bytes.windows(name.len()).position(|window| window == name).unwrap();
    at + name.len()
}

#[test]
fn wrong_tensor_tables_are_rejected() {
    let good = Model::new().bytes();
    let at = entry(&good, "blk.0.attn_q.weight");
    let reject_entry = |offset: usize, number: &[u8], says: &[&str]| {
        let all: Vec<&str> = says.iter().copied().chain(["blk.0.attn_q.weight"]).collect();
        reject(at + offset, number, &all);
    };
    // After the name: number of dimensions, two lengths, type, offset.
    for n in [0u32, 5, u32::MAX] {
        reject_entry(0, &n.to_le_bytes(), &["dimensions, expected 1 to 4"]);
    }
    reject_entry(4, &(u64::MAX / 2).to_le_bytes(), &["more values or bytes"]);
    reject_entry(12, &(1u64 << 40).to_le_bytes(), &["ends beyond the file"]);
    reject_entry(12, &0u64.to_le_bytes(), &["shape [64, 0], expected [64, 64]"]);
    reject_entry(20, &99u32.to_le_bytes(), &["the unknown type 99", "expected one of F32"]);
    reject_entry(20, &4u32.to_le_bytes(), &["the unknown type 4, which was removed"]);
    reject_entry(24, &1u64.to_le_bytes(), &["data offset 1, expected a multiple"]);
    reject_entry(24, &0u64.to_le_bytes(), &["overlap", "token_embd.weight"]);
    reject_entry(24, &(u64::MAX - 31).to_le_bytes(), &["ends beyond the file"]);
}

#[test]
fn invalid_keys_are_rejected() {
    let key = |name: &str, value: Value, says: &str| {
        let name = format!("llama.{name}");
        Model::new().key(&name, value).fails(&[&format!("`{name}`"), says, "model.gguf"]);
    };
    for name in ["block_count", "embedding_length", "feed_forward_length", "context_length"] {
        key(name, 0u32.into(), "is 0, expected 1 to");
        key(name, u32::MAX.into(), "expected 1 to 16777216");
        key(name, "two".into(), "should hold a whole number");
        key(name, (-1i32).into(), "found the i32 `-1`");
        let missing = Model::new().without(&format!("llama.{name}"));
        missing.fails(&[&format!("key `llama.{name}` is missing")]);
    }
    key("block_count", 10_001u32.into(), "at most 10000");
    key("attention.head_count", 0u32.into(), "is 0");
    key("attention.head_count", 6u32.into(), "a divisor of the embedding size 64");
    key("attention.head_count_kv", 0u32.into(), "is 0");
    key("attention.head_count_kv", 3u32.into(), "a divisor of the 4 heads");
    key("attention.value_length", 0u32.into(), "is 0");
    key("attention.scale", (-1.0f32).into(), "a finite number of at least 0");
    key("attn_logit_softcapping", f32::INFINITY.into(), "a finite number of at least 0");
    key("attention.sliding_window_pattern", Array::Bool(vec![true]).into(), "2 entries");
    key("rope.freq_base_swa", 0.0f32.into(), "a positive number");
    key("rope.dimension_count", 3u32.into(), "an even number up to 16");
    key("rope.dimension_count", 18u32.into(), "an even number up to 16");
    let narrow = Model::new().key("llama.feed_forward_length", Array::U32(vec![96, 64]));
    narrow.fails(&["blk.1.ffn_gate.weight", "[64, 96]", "expected [64, 64]"]);
    key("feed_forward_length", Array::U32(vec![]).into(), "a number for each of the 2 layers");
    for bad in [f32::NAN, f32::INFINITY, -1.0] {
        key("attention.layer_norm_rms_epsilon", bad.into(), "at least 0 and below 1");
        key("rope.freq_base", bad.into(), "a positive number");
        key("rope.scaling.factor", bad.into(), "a positive number");
    }
    key("rope.scaling.type", "su".into(), "`su`, expected none, linear, longrope or yarn");
    key("hidden_activation", "magic".into(), "`magic`, expected relu");
    Model::new().key("llama.expert_count", 8u32).fails(&["llama.expert_used_count"]);
}

#[test]
fn invalid_rope_keys_are_rejected() {
    let yarn = Model::new().key("llama.rope.scaling.type", "yarn");
    let yarn = yarn.key("llama.rope.scaling.factor", 4.0f32);
    yarn.ends(0, &[]);
    for name in ["attn_factor", "yarn_beta_fast", "yarn_beta_slow"] {
        let name = format!("llama.rope.scaling.{name}");
        for bad in [f32::NAN, 0.0] {
            yarn.clone().key(&name, bad).fails(&[&name, "expected a positive number"]);
        }
    }
    let tiny = Model::new().key("llama.rope.freq_base", f32::MIN_POSITIVE);
    tiny.key("llama.rope.scaling.factor", 1e-30f32).fails(&["finite frequencies"]);
    let factors = Model::new().tensor("rope_freqs.weight", &[8], TensorType::F32);
    factors.ends(0, &[]);
    for bad in [0.0, f32::NAN, -1.0] {
        let factors = factors.clone().values("rope_freqs.weight", bad);
        factors.fails(&["`rope_freqs.weight` holds", "expected positive numbers"]);
    }
    // 0 means no window.
    Model::new().key("llama.attention.sliding_window", 0u32).ends(0, &[]);
}

#[test]
fn unsupported_architectures_are_rejected() {
    for name in ["hrm-text", "", "LLAMA", "llama\n\u{1b}[31m"] {
        let maker = Model::new().key("general.architecture", name);
        maker.fails(&["is not supported", "supported architectures: llama, bamboo", "20 tensors"]);
    }
    Model::new().without("general.architecture").fails(&["key `general.architecture` is missing"]);
    Model::new().key("general.architecture", 5u32).fails(&["should hold a UTF-8 string"]);
}

#[test]
fn missing_and_misshapen_tensors_are_rejected() {
    for (name, _, _) in &Model::new().tensors {
        Model::new().without(name).fails(&[&format!("tensor `{name}` is missing, expected shape")]);
    }
    let shape = |name: &str, shape: &[u64], says: &str| {
        Model::new().tensor(name, shape, TensorType::F32).fails(&[name, says]);
    };
    shape("token_embd.weight", &[64], "[64], expected [64, the number of tokens]");
    shape("token_embd.weight", &[64, 0], "[64, 0], expected [64, the number of tokens]");
    shape("output.weight", &[64, 263], "[64, 263], expected [64, 262]");
    shape("blk.1.ffn_up.weight", &[96, 64], "[96, 64], expected [64, 96]");
    shape("blk.1.attn_q.bias", &[63], "[63], expected [64]");
    for unknown in ["extra.weight", "blk.7.attn_q.weight", "blk.0.ffn_up.scale", "blk.9.fc1.weight"]
    {
        shape(unknown, &[64], "is unknown in architecture `llama`");
    }
    for ty in [TensorType::NVFP4, TensorType::I8, TensorType::I16, TensorType::F64] {
        let maker = Model::new().tensor("blk.0.ffn_up.weight", &[64, 96], ty);
        maker.fails(&["`blk.0.ffn_up.weight` is ", ty.name(), "llama-quantize"]);
    }
}

#[test]
fn missing_and_misshapen_predictors_are_rejected() {
    let model = |fc1: &[u64], fc2: &[u64]| {
        let maker = Model::new().tensor("blk.1.fc1.weight", fc1, TensorType::F32);
        maker.tensor("blk.1.fc2.weight", fc2, TensorType::F32)
    };
    model(&[64, 8], &[8, 96]).ends(0, &["chooses neurons in 1 layers"]);
    model(&[64, 8], &[8, 96]).without("blk.1.fc2.weight").fails(&["`blk.1.fc2.weight` is missing"]);
    model(&[64, 8], &[8, 96]).without("blk.1.fc1.weight").fails(&["`blk.1.fc1.weight` is missing"]);
    model(&[63, 8], &[8, 96]).fails(&["blk.1.fc1.weight", "[63, 8], expected [64, 8]"]);
    model(&[64, 8], &[9, 96]).fails(&["blk.1.fc2.weight", "[9, 96], expected [8, 96]"]);
    model(&[64, 8], &[8, 95]).fails(&["blk.1.fc2.weight", "[8, 95], expected [8, 96]"]);
    model(&[64, 0], &[0, 96]).fails(&["blk.1.fc1.weight", "[64, 0]"]);
    model(&[64], &[8, 96]).fails(&["blk.1.fc1.weight", "[64]"]);
    // NaN scores count as active, so the output is still right.
    model(&[64, 8], &[8, 96]).values("blk.1.fc2.weight", f32::NAN).ends(0, &[]);
    let threshold = model(&[64, 8], &[8, 96]).key("powerinfer.sparse_threshold", "high");
    threshold.fails(&["powerinfer.sparse_threshold"]);
    let none = model(&[64, 8], &[8, 96]).key("powerinfer.sparse_threshold", f32::NAN);
    none.fails(&["powerinfer.sparse_threshold", "NaN"]);
}

#[test]
fn nan_and_infinite_weights_are_reported() {
    for name in ["token_embd.weight", "output_norm.weight", "blk.1.ffn_down.weight"] {
        for bad in [f32::NAN, f32::INFINITY] {
            Model::new().values(name, bad).fails(&["NaN logits"]);
        }
    }
}

#[test]
fn invalid_vocabularies_are_rejected() {
    let key = |name: &str, value: Value, says: &str| {
        let name = format!("tokenizer.ggml.{name}");
        Model::new().key(&name, value).fails(&[&name, says, "model.gguf"]);
    };
    let strings =
        |n: usize, text: &str| Value::from(Array::String(vec![text; n].into_iter().collect()));
    key(
        "model",
        "whitespace".into(),
        "`whitespace`, which is not supported; supported: llama, gpt2",
    );
    Model::new().key("tokenizer.ggml.model", "gpt2").fails(&["tokenizer.ggml.merges is missing"]);
    key("tokens", strings(0, ""), "0 entries");
    key("tokens", strings(262, "a"), "twice");
    key("tokens", Array::U32(vec![1; 262]).into(), "an array of strings");
    key("scores", Array::F32(vec![0.0; 261]).into(), "261 entries for 262 tokens");
    key("scores", Array::F32(vec![f32::NAN; 262]).into(), "NaN");
    key("token_type", Array::I32(vec![1; 3]).into(), "3 entries for 262 tokens");
    key("token_type", Array::I32(vec![6; 262]).into(), "a byte");
    Model::new().key("tokenizer.ggml.scores", Array::F32(vec![-1.0; 262])).ends(0, &[]);
    Model::new().key("tokenizer.ggml.eos_token_id", u32::MAX).ends(0, &["the key is ignored"]);
    let rows = Model::new().tensor("token_embd.weight", &[64, 261], TensorType::F32);
    rows.fails(&["261", "262"]);
}

/// The file is consistent, but its model does not fit in any machine. It is a sparse file, so it
/// takes no disk space.
#[test]
fn a_model_larger_than_memory_is_rejected() {
    const RANK: u64 = 1 << 33;
    let names = ["blk.1.fc1.weight", "blk.1.fc2.weight"];
    let mut bytes = Model::new()
        .tensor(names[0], &[64, 8], TensorType::F32)
        .tensor(names[1], &[8, 96], TensorType::F32)
        .bytes();
    // Both matrices of a predictor get a huge rank; the second begins where the first now ends.
    let grown = (RANK - 8) * 64 * 4;
    let [fc1, fc2] = names.map(|name| entry(&bytes, name));
    bytes[fc1 + 12..fc1 + 20].copy_from_slice(&RANK.to_le_bytes());
    bytes[fc2 + 4..fc2 + 12].copy_from_slice(&RANK.to_le_bytes());
    let offset = u64::from_le_bytes(bytes[fc2 + 24..fc2 + 32].try_into().unwrap());
    bytes[fc2 + 24..fc2 + 32].copy_from_slice(&(offset + grown).to_le_bytes());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("huge.gguf");
    std::fs::write(&path, &bytes).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    if let Err(error) = file.set_len(bytes.len() as u64 + grown + (RANK - 8) * 96 * 4) {
        println!("skipped: the file system has no sparse files of 5 TiB: {error}");
        return;
    }
    check_output(&path, &run(&path, &["--ram-check"]), 4, &["the model needs 5.", "weights 5."]);
    check_output(&path, &run(&path, &["--no-mmap"]), 4, &["cannot read 5.", "--no-mmap"]);
}

#[test]
fn a_context_larger_than_memory_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, Model::new().bytes()).unwrap();
    let says = ["KV cache of 4294967295 tokens", "use a context of at most ", " tokens: -c "];
    check_output(&path, &run(&path, &["-c", "4294967295"]), 4, &says);
}

#[test]
fn a_synthetic_model_larger_than_memory_is_rejected() {
    let shape = "16384x1000x65536x128/128:f32:silu";
    let args = ["bench", "--synthetic", shape, "-p", "8", "-n", "0", "--backend", "cpu"];
    let output = Command::new(env!("CARGO_BIN_EXE_thermocline")).args(args).output().unwrap();
    let says = ["TiB of memory, but this machine has", "--write FILE"];
    check_output(Path::new(shape), &output, 4, &says);
}
