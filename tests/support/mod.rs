//! Helpers that several tests share: tiny models from a seed, compressed test data, a watchdog.

pub(crate) mod packed;

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use hal::format::Format;
use rand::RngExt;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use thermocline::gguf::{Array, Container, File, Value, Writer};
use thermocline::model::{Model, ModelOptions};

/// A model small enough to run hundreds of times, with random weights.
#[derive(Clone, Debug)]
pub(crate) struct Tiny {
    pub(crate) seed: u64,
    pub(crate) n_layer: usize,
    pub(crate) n_embd: usize,
    pub(crate) n_ff: usize,
    pub(crate) n_head: usize,
    pub(crate) n_head_kv: usize,
    pub(crate) n_vocab: usize,
    pub(crate) format: Format,
    pub(crate) activation: &'static str,
    pub(crate) tied: bool,
    pub(crate) window: Option<u32>,
    pub(crate) pwri: bool,
    /// Rank of the predictor; 0 for none.
    pub(crate) rank: usize,
    /// The predictor reads only the marks of the token: the signs in the first [`MARKS`] columns of
    /// its embedding. No layer changes them and rounding does not affect them, so the same neurons
    /// are predicted on every placement.
    pub(crate) marked: bool,
    /// The first half of every layer's neurons fires for tokens whose first mark is positive, the
    /// second half for the others. Requires `marked`.
    pub(crate) topics: bool,
    /// Number of neurons of each layer if it differs between layers; 0 for a layer without a
    /// feed-forward block.
    pub(crate) n_ffs: Vec<usize>,
    /// Query heads and KV heads of each layer, if they differ between layers; 0 for a layer without
    /// attention.
    pub(crate) heads: Vec<(usize, usize)>,
}

/// Columns of the residual that hold a token's marks: one block of rounded activations.
const MARKS: usize = 32;

impl Default for Tiny {
    fn default() -> Tiny {
        Tiny {
            seed: 1,
            n_layer: 3,
            n_embd: 64,
            n_ff: 96,
            n_head: 4,
            n_head_kv: 2,
            n_vocab: 80,
            format: Format::F16,
            activation: "relu",
            tied: false,
            window: None,
            pwri: false,
            rank: 0,
            marked: false,
            topics: false,
            n_ffs: Vec::new(),
            heads: Vec::new(),
        }
    }
}

impl Tiny {
    pub(crate) fn model(&self) -> Arc<Model> {
        let bytes = self.bytes();
        let file = File::from_vec(bytes, "tiny.gguf").unwrap();
        Arc::new(Model::from_file(file, &ModelOptions::default()).unwrap())
    }

    fn tensors(&self) -> Vec<(String, usize, usize, Format)> {
        let most = self.heads.iter().map(|heads| heads.0).max().unwrap_or(self.n_head);
        let d_head = self.n_embd / most;
        let mut tensors = vec![
            ("token_embd.weight".to_owned(), self.n_vocab, self.n_embd, self.format),
            ("output_norm.weight".to_owned(), 1, self.n_embd, Format::F32),
        ];
        if !self.tied {
            tensors.push(("output.weight".to_owned(), self.n_vocab, self.n_embd, self.format));
        }
        for layer in 0..self.n_layer {
            let n_ff = self.n_ffs.get(layer).copied().unwrap_or(self.n_ff);
            let heads = self.heads.get(layer).copied().unwrap_or((self.n_head, self.n_head_kv));
            let (d_q, d_kv) = (d_head * heads.0, d_head * heads.1);
            let norms = [("attn_norm", heads.0), ("ffn_norm", n_ff)];
            for (norm, _) in norms.iter().filter(|(_, n)| *n > 0) {
                tensors.push((format!("blk.{layer}.{norm}.weight"), 1, self.n_embd, Format::F32));
            }
            let down = if self.pwri {
                ("ffn_down_t", n_ff, self.n_embd)
            } else {
                ("ffn_down", self.n_embd, n_ff)
            };
            let parts = [
                ("attn_q", d_q, self.n_embd),
                ("attn_k", d_kv, self.n_embd),
                ("attn_v", d_kv, self.n_embd),
                ("attn_output", self.n_embd, d_q),
                ("ffn_gate", n_ff, self.n_embd),
                ("ffn_up", n_ff, self.n_embd),
                down,
            ];
            for (part, rows, cols) in parts.into_iter().filter(|part| part.1 * part.2 > 0) {
                tensors.push((format!("blk.{layer}.{part}.weight"), rows, cols, self.format));
            }
            if self.rank > 0 {
                for (part, rows, cols) in
                    [("fc1", self.rank, self.n_embd), ("fc2", n_ff, self.rank)]
                {
                    tensors.push((format!("blk.{layer}.{part}.weight"), rows, cols, self.format));
                }
            }
        }
        tensors
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let container = if self.pwri { Container::PowerInfer } else { Container::Gguf };
        let mut writer = Writer::new(container);
        let mut set = |key: &str, value: Value| writer.set(key, value).unwrap();
        set("general.architecture", "llama".into());
        for (key, value) in [
            ("block_count", self.n_layer),
            ("embedding_length", self.n_embd),
            ("feed_forward_length", self.n_ff),
            ("attention.head_count", self.n_head),
            ("attention.head_count_kv", self.n_head_kv),
            ("context_length", 256),
        ] {
            let listed = match key {
                "feed_forward_length" => !self.n_ffs.is_empty(),
                "attention.head_count" | "attention.head_count_kv" => !self.heads.is_empty(),
                _ => false,
            };
            if !listed {
                set(&format!("llama.{key}"), (value as u32).into());
            }
        }
        let mut list = |key: &str, numbers: Vec<usize>| {
            if !numbers.is_empty() {
                let numbers = numbers.into_iter().map(|n| n as u32).collect();
                set(&format!("llama.{key}"), Array::U32(numbers).into());
            }
        };
        list("feed_forward_length", self.n_ffs.clone());
        list("attention.head_count", self.heads.iter().map(|heads| heads.0).collect());
        list("attention.head_count_kv", self.heads.iter().map(|heads| heads.1).collect());
        set("llama.attention.layer_norm_rms_epsilon", 1e-5f32.into());
        if !self.pwri {
            set("llama.hidden_activation", self.activation.into());
        }
        if let Some(window) = self.window {
            set("llama.attention.sliding_window", window.into());
        }
        let tensors = self.tensors();
        for (name, rows, cols, format) in &tensors {
            let shape: Vec<u64> = match rows {
                1 => vec![*cols as u64],
                _ => vec![*cols as u64, *rows as u64],
            };
            writer.declare(name, &shape, *format).unwrap();
        }
        let mut data = writer.in_memory().unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        for (name, rows, cols, format) in &tensors {
            let norm = name.contains("norm");
            let scale = if norm { 0.2 } else { 1.7 / (*cols as f32).sqrt() };
            let mut values: Vec<f32> = (0..rows * cols)
                .map(|_| {
                    let v: f32 = rng.random_range(-1.0..1.0);
                    if norm { 1.0 + scale * v } else { scale * 1.7 * v }
                })
                .collect();
            if self.marked {
                mark(name, *cols, &mut values);
            }
            if self.topics {
                plant_topics(name, *cols, &mut values);
            }
            let mut bytes = vec![0; rows * format.row_bytes(*cols).unwrap()];
            format.quantize(&values, &mut bytes);
            data.write(name, &bytes).unwrap();
        }
        data.finish().unwrap()
    }
}

/// Sets the first columns of a token's embedding to signs, the token's marks. Zeroes the weights
/// that would change them, and those with which a predictor reads other columns.
fn mark(name: &str, cols: usize, values: &mut [f32]) {
    let part = name.trim_end_matches(".weight").rsplit('.').next().unwrap_or(name);
    for (at, value) in values.iter_mut().enumerate() {
        let (row, col) = (at / cols, at % cols);
        match part {
            "token_embd" if col < MARKS => *value = value.signum(),
            "attn_output" | "ffn_down" if row < MARKS => *value = 0.0,
            "ffn_down_t" if col < MARKS => *value = 0.0,
            "fc1" if col >= MARKS => *value = 0.0,
            _ => {}
        }
    }
}

/// Makes the first mark of a token decide which half of a layer's neurons fires. The output
/// matrices of attention and feed-forward blocks are scaled down, so that no layer outweighs the
/// mark in the residual.
fn plant_topics(name: &str, cols: usize, values: &mut [f32]) {
    let factor = match name {
        _ if name.contains("ffn_gate") => {
            let n_rows = values.len() / cols;
            for (row, values) in values.chunks_exact_mut(cols).enumerate() {
                values[0] = if 2 * row < n_rows { 20.0 } else { -20.0 };
            }
            return;
        }
        _ if name.contains("ffn_down") => 0.05,
        _ if name.contains("attn_output") => 0.3,
        _ => return,
    };
    values.iter_mut().for_each(|value| *value *= factor);
}

/// Runs `f` on its own thread and returns its result; panics after `limit`, so that a test that
/// hangs fails.
pub(crate) fn within<T: Send + 'static>(
    limit: Duration,
    f: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (send, receive) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let _ = send.send(f());
    });
    match receive.recv_timeout(limit) {
        Ok(value) => value,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("still waiting after {limit:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().expect_err("the sender was dropped by a panic"))
        }
    }
}

/// The largest difference of two lists of numbers; infinite if one of them has a NaN or an
/// infinity.
pub(crate) fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let numbers = a.iter().chain(b).all(|v| v.is_finite());
    let most = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    if numbers { most } else { f32::INFINITY }
}

#[test]
fn nan_and_infinity_always_differ() {
    assert_eq!(largest_difference(&[1.0, -2.0], &[0.5, -1.0]), 1.0);
    for odd in [f32::NAN, f32::INFINITY] {
        assert_eq!(largest_difference(&[1.0, odd], &[1.0, odd]), f32::INFINITY);
        assert_eq!(largest_difference(&[1.0, 2.0], &[odd, 2.0]), f32::INFINITY);
    }
}
