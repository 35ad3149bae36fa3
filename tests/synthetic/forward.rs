//! Runs a model with plain 32-bit loops, and records which neurons fire and which neurons the
//! predictor selects.

use hal::HostRows;
use hal::format::Format;
use hal::op::Activation;
use rayon::prelude::*;
use thermocline::model::{Attention, Kv, Model};

/// Fractions over all layers, tokens and neurons, and the logits.
pub(crate) struct Measurement {
    /// Fraction of gates above zero.
    pub(super) fired: f64,
    /// Fraction of neurons that the predictor selects.
    pub(super) predicted: f64,
    /// Fraction of the fired neurons that the predictor selects.
    pub(super) recall: f64,
    /// Standard deviation of the logits of the last token.
    pub(super) logit_deviation: f64,
    pub(crate) logits: Vec<Vec<f32>>,
}

impl std::fmt::Debug for Measurement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Measurement { fired, predicted, recall, logit_deviation, .. } = self;
        write!(
            f,
            "fired {fired:.4}, predicted {predicted:.4}, recall {recall:.4}, logits {logit_deviation:.3}"
        )
    }
}

/// An F32 matrix with rows of `cols` values.
struct Matrix {
    cols: usize,
    values: Vec<f32>,
}

impl Matrix {
    fn new(stored: &HostRows) -> Matrix {
        let desc = stored.desc();
        let mut values = vec![0.0; desc.n_rows * desc.n_cols];
        desc.format.dequantize(&stored.rows(0..desc.n_rows).unwrap(), &mut values);
        Matrix { cols: desc.n_cols, values }
    }

    fn named(model: &Model, name: &str) -> Option<Matrix> {
        let tensor = model.file.tensor(name)?;
        let format: Format = tensor.ty.name().parse().unwrap();
        let mut values = vec![0.0; tensor.shape.iter().product::<u64>() as usize];
        format.dequantize(model.file.bytes(tensor).unwrap(), &mut values);
        Some(Matrix { cols: tensor.shape[0] as usize, values })
    }

    fn times(&self, x: &[f32]) -> Vec<f32> {
        self.values.par_chunks(self.cols).map(|row| dot(row, x)).collect()
    }

    /// The sum of rows, each times its factor.
    fn rows_times(&self, x: &[f32]) -> Vec<f32> {
        let mut sum = vec![0.0; self.cols];
        for (row, x) in self.values.chunks(self.cols).zip(x).filter(|(_, x)| **x != 0.0) {
            // By index, as in `dot`.
            let mut i = 0;
            while i < row.len() {
                sum[i] += row[i] * x;
                i += 1;
            }
        }
        sum
    }
}

/// By index: without optimisation, iterators take several times as long.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (mut sum, mut i) = (0.0, 0);
    let b = &b[..a.len()];
    while i < a.len() {
        sum += a[i] * b[i];
        i += 1;
    }
    sum
}

fn normalise(x: &[f32], norm: &HostRows, eps: f32) -> Vec<f32> {
    let inverse = (dot(x, x) / x.len() as f32 + eps).sqrt().recip();
    x.iter().zip(&Matrix::new(norm).values).map(|(x, w)| x * inverse * w).collect()
}

fn apply_rope(x: &mut [f32], d_head: usize, position: usize, freqs: &[f32]) {
    for head in x.chunks_mut(d_head) {
        for (pair, freq) in head.chunks_mut(2).zip(freqs) {
            let (sin, cos) = (position as f32 * freq).sin_cos();
            (pair[0], pair[1]) = (pair[0] * cos - pair[1] * sin, pair[0] * sin + pair[1] * cos);
        }
    }
}

/// The attention output of each query head.
fn attend(
    q: &[f32],
    keys: &[Vec<f32>],
    values: &[Vec<f32>],
    d_head: usize,
    group: usize,
) -> Vec<f32> {
    let head = |(h, q): (usize, &[f32])| {
        let at = h / group * d_head..(h / group + 1) * d_head;
        let score = |k: &Vec<f32>| dot(q, &k[at.clone()]) / (d_head as f32).sqrt();
        let scores: Vec<f32> = keys.iter().map(score).collect();
        let most = scores.iter().fold(f32::MIN, |a, &b| a.max(b));
        let weights: Vec<f32> = scores.iter().map(|s| (s - most).exp()).collect();
        let sum: f32 = weights.iter().sum();
        let mut out = vec![0.0; d_head];
        for (v, weight) in values.iter().zip(&weights) {
            out.iter_mut().zip(&v[at.clone()]).for_each(|(out, v)| *out += weight / sum * v);
        }
        out
    };
    q.chunks(d_head).enumerate().flat_map(head).collect()
}

/// Adds a layer's attention to the residual of each token.
fn add_attention(model: &Model, attention: &Attention, norm: &HostRows, stream: &mut [Vec<f32>]) {
    let (hyper, sizes) = (&model.hyper, attention.sizes);
    let Attention { q, kv: Kv::Direct { k, v: Some(v) }, o, .. } = attention else {
        panic!("expected the attention of the llama architecture");
    };
    let freqs = attention.rope.as_ref().unwrap().freqs(hyper.n_ctx_train);
    let [q, k, v, o] = [q, k, v, o].map(|part| Matrix::new(&part.w));
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for (position, x) in stream.iter_mut().enumerate() {
        let h = normalise(x, norm, hyper.eps);
        let (mut query, mut key) = (q.times(&h), k.times(&h));
        apply_rope(&mut query, sizes.d_head, position, freqs);
        apply_rope(&mut key, sizes.d_head, position, freqs);
        keys.push(key);
        values.push(v.times(&h));
        let group = sizes.n_head / sizes.n_head_kv;
        let gathered = attend(&query, &keys, &values, sizes.d_head, group);
        x.iter_mut().zip(o.times(&gathered)).for_each(|(x, y)| *x += y);
    }
}

/// Runs `ids` through the model: with every neuron, or with those whose score is at least
/// `threshold`.
pub(crate) fn run(model: &Model, ids: &[u32], threshold: Option<f32>) -> Measurement {
    let hyper = &model.hyper;
    let embedding = Matrix::new(&model.token_embd);
    let mut stream: Vec<Vec<f32>> = ids
        .iter()
        .map(|&id| embedding.values[id as usize * hyper.n_embd..][..hyper.n_embd].to_vec())
        .collect();
    let (mut fired, mut predicted, mut both, mut neurons) = (0.0, 0.0, 0.0, 0.0);
    for (number, layer) in model.layers.iter().enumerate() {
        if let (Some(norm), Some(attention)) = (&layer.frame.attn_norm, layer.attention()) {
            add_attention(model, attention, &norm.w, &mut stream);
        }
        let (Some(ffn_norm), Some(ffn)) = (&layer.frame.ffn_norm, &layer.ffn) else { continue };
        let gate = ffn.gate.as_ref().unwrap();
        let [gate, up, down] = [gate, &ffn.up, &ffn.down].map(|m| Matrix::new(&m.w));
        let [fc1, fc2] =
            ["fc1", "fc2"].map(|n| Matrix::named(model, &format!("blk.{number}.{n}.weight")));
        for x in &mut stream {
            let h = normalise(x, &ffn_norm.w, hyper.eps);
            let mut gates = gate.times(&h);
            if let (Some(fc1), Some(fc2)) = (&fc1, &fc2) {
                let hidden: Vec<f32> = fc1.times(x).into_iter().map(|v| v.max(0.0)).collect();
                for (score, gate) in fc2.times(&hidden).into_iter().zip(&mut gates) {
                    predicted += f64::from(u8::from(score >= 0.0));
                    both += f64::from(u8::from(score >= 0.0 && *gate > 0.0));
                    fired += f64::from(u8::from(*gate > 0.0));
                    if threshold.is_some_and(|threshold| score < threshold) {
                        *gate = 0.0;
                    }
                }
            }
            if fc1.is_none() {
                fired += gates.iter().filter(|gate| **gate > 0.0).count() as f64;
            }
            neurons += gates.len() as f64;
            let relu = model.activation == Activation::Relu;
            let act = |gate: f32| if relu { gate.max(0.0) } else { gate / (1.0 + (-gate).exp()) };
            let carried: Vec<f32> =
                gates.iter().zip(up.times(&h)).map(|(gate, up)| act(*gate) * up).collect();
            let y =
                if ffn.down_by_neuron { down.rows_times(&carried) } else { down.times(&carried) };
            x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
        }
    }
    let output = Matrix::new(model.output.as_ref().unwrap());
    let all: Vec<Vec<f32>> = stream
        .iter()
        .map(|x| output.times(&normalise(x, &model.output_norm.as_ref().unwrap().w, hyper.eps)))
        .collect();
    let logits: Vec<f64> = all.last().unwrap().iter().copied().skip(259).map(f64::from).collect();
    let mean = logits.iter().sum::<f64>() / logits.len() as f64;
    let variance =
        logits.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / logits.len() as f64;
    Measurement {
        fired: fired / neurons,
        predicted: predicted / neurons,
        recall: both / fired,
        logit_deviation: variance.sqrt(),
        logits: all,
    }
}
