//! The logits of a tiny model as plain loops in f64, from the tensors of its file alone.

use std::collections::HashMap;

use super::{
    BASE, CLAMP, COMPRESS_BASE, D_HEAD, D_INDEX, EPS, FACTOR, HASH_LAYERS, HC_EPS, ITERATIONS,
    N_CTX_ORIG, N_EMBD, N_EXPERT, N_GROUP, N_HEAD, N_INDEX, N_ROT, N_STREAM, N_USED, O_RANK,
    RATIOS, SCALE, TOP_K, WINDOW, listed,
};

/// The tensors of a model by name.
pub(super) struct Plain {
    pub(super) tensors: HashMap<String, Vec<f32>>,
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn root_mean_square(x: &[f64]) -> Vec<f64> {
    let root = (dot(x, x) / x.len() as f64 + EPS).sqrt();
    x.iter().map(|x| x / root).collect()
}

/// The weights of a softmax.
fn softmax(x: &[f64]) -> Vec<f64> {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = x.iter().map(|x| (x - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

/// Radians per position: YaRN's in a layer with compressed keys, unscaled in the others.
fn frequency(pair: usize, compressed: bool) -> f64 {
    let base: f64 = if compressed { COMPRESS_BASE.into() } else { BASE.into() };
    let n_rot = N_ROT as f64;
    let frequency = base.powf(-2.0 * pair as f64 / n_rot);
    if !compressed {
        return frequency;
    }
    let turns = |beta: f64| {
        let n = N_CTX_ORIG as f64 / (beta * 2.0 * std::f64::consts::PI);
        n_rot * n.ln() / (2.0 * base.ln())
    };
    let (low, high) = (turns(32.0).floor().max(0.0), turns(1.0).ceil().min(n_rot - 1.0));
    let ramp = ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
    frequency / f64::from(FACTOR) * ramp + frequency * (1.0 - ramp)
}

/// RoPE of a head's last values, or its inverse.
fn rotated(x: &[f64], position: f64, compressed: bool) -> Vec<f64> {
    let mut y = x.to_vec();
    let first = x.len() - N_ROT;
    for j in 0..N_ROT / 2 {
        let angle = position * frequency(j, compressed);
        let (a, b) = (x[first + 2 * j], x[first + 2 * j + 1]);
        y[first + 2 * j] = a * angle.cos() - b * angle.sin();
        y[first + 2 * j + 1] = a * angle.sin() + b * angle.cos();
    }
    y
}

impl Plain {
    fn values(&self, name: &str) -> Vec<f64> {
        self.tensors[name].iter().map(|&v| f64::from(v)).collect()
    }

    fn times(&self, name: &str, x: &[f64]) -> Vec<f64> {
        self.values(name).chunks_exact(x.len()).map(|row| dot(row, x)).collect()
    }

    fn normed(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let weights = self.values(name);
        root_mean_square(x).iter().zip(weights).map(|(x, w)| x * w).collect()
    }

    /// The sum of the streams, the shares of the block's output, and the mixing matrix.
    fn read(&self, prefix: &str, streams: &[f64]) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
        const N: usize = N_STREAM;
        let part = |part: &str| format!("{prefix}{part}.weight");
        let z = self.times(&part("fn"), &root_mean_square(streams));
        let (scale, base) = (self.values(&part("scale")), self.values(&part("base")));
        let z: Vec<f64> = (z.iter().enumerate())
            .map(|(i, z)| z * scale[(i / N).min(2).min(scale.len() - 1)] + base[i])
            .collect();
        let shares: Vec<f64> = z[..N].iter().map(|z| sigmoid(*z) + HC_EPS).collect();
        let x = |i: usize| (0..N).map(|s| shares[s] * streams[s * N_EMBD + i]).sum();
        let x = (0..N_EMBD).map(x).collect();
        if z.len() == N {
            return (x, Vec::new(), Vec::new());
        }
        let post = z[N..2 * N].iter().map(|z| 2.0 * sigmoid(*z)).collect();
        let mut mix: Vec<f64> =
            z[2 * N..].chunks(N).flat_map(softmax).map(|w| w + HC_EPS).collect();
        let divide = |mix: &mut Vec<f64>, of: &dyn Fn(usize, usize) -> usize| {
            for i in 0..N {
                let sum: f64 = (0..N).map(|j| mix[of(i, j)]).sum::<f64>() + HC_EPS;
                (0..N).for_each(|j| mix[of(i, j)] /= sum);
            }
        };
        divide(&mut mix, &|i, j| j * N + i);
        for _ in 1..ITERATIONS {
            divide(&mut mix, &|i, j| i * N + j);
            divide(&mut mix, &|i, j| j * N + i);
        }
        (x, post, mix)
    }

    /// The logits of all tokens of a text.
    pub(super) fn logits(&self, ids: &[u32]) -> Vec<Vec<f32>> {
        let embedding = self.values("token_embd.weight");
        let row = |&id: &u32| embedding[id as usize * N_EMBD..][..N_EMBD].repeat(N_STREAM);
        let mut streams: Vec<Vec<f64>> = ids.iter().map(row).collect();
        for (index, &ratio) in RATIOS.iter().enumerate() {
            let blk = format!("blk.{index}.");
            for kind in ["attn", "ffn"] {
                let read = |s: &Vec<f64>| self.read(&format!("{blk}hc_{kind}_"), s);
                let parts: Vec<_> = streams.iter().map(read).collect();
                let norm = format!("{blk}{kind}_norm.weight");
                let inputs: Vec<Vec<f64>> =
                    parts.iter().map(|(x, ..)| self.normed(&norm, x)).collect();
                let outputs: Vec<Vec<f64>> = if kind == "attn" {
                    self.attention(&blk, &inputs, ratio)
                } else {
                    let ffn = |(x, &id): (&Vec<f64>, &u32)| self.ffn(&blk, index, x, id);
                    inputs.iter().zip(ids).map(ffn).collect()
                };
                for ((s, (_, post, mix)), y) in streams.iter_mut().zip(&parts).zip(&outputs) {
                    let new = |i: usize| {
                        let (to, i) = (i / N_EMBD, i % N_EMBD);
                        let old = |from: usize| mix[from * N_STREAM + to] * s[from * N_EMBD + i];
                        post[to] * y[i] + (0..N_STREAM).map(old).sum::<f64>()
                    };
                    *s = (0..s.len()).map(new).collect();
                }
            }
        }
        let logits = |streams: &Vec<f64>| -> Vec<f32> {
            let (x, ..) = self.read("output_hc_", streams);
            let x = self.normed("output_norm.weight", &x);
            self.times("output.weight", &x).iter().map(|&x| x as f32).collect()
        };
        streams.iter().map(logits).collect()
    }

    /// The keys of all complete blocks.
    fn compressed(&self, part: &str, inputs: &[Vec<f64>], ratio: usize, d: usize) -> Vec<Vec<f64>> {
        let all = |name: &str| -> Vec<Vec<f64>> {
            inputs.iter().map(|x| self.times(&format!("{part}_{name}.weight"), x)).collect()
        };
        let (values, gates) = (all("kv"), all("gate"));
        let ape = self.values(&format!("{part}_ape.weight"));
        let width = ape.len() / ratio;
        let key = |block: usize| {
            // Positions and their first columns.
            let own = (block * ratio..(block + 1) * ratio).map(|p| (p, width - d));
            let before = block.saturating_sub(1) * ratio..block * ratio;
            let before = before.filter(|_| width > d).map(|p| (p, 0));
            let places: Vec<(usize, usize)> = before.chain(own).collect();
            let value = |i: usize| {
                let gate =
                    |&(p, at): &(usize, usize)| gates[p][at + i] + ape[p % ratio * width + at + i];
                let weights = softmax(&places.iter().map(gate).collect::<Vec<_>>());
                places.iter().zip(weights).map(|(&(p, at), w)| w * values[p][at + i]).sum()
            };
            let key: Vec<f64> = (0..d).map(value).collect();
            let key = self.normed(&format!("{part}_norm.weight"), &key);
            rotated(&key, (block * ratio) as f64, true)
        };
        (0..inputs.len() / ratio).map(key).collect()
    }

    /// The blocks that a token at `position` attends to, of `n` complete ones.
    fn selected(
        &self,
        blk: &str,
        q: &[f64],
        x: &[f64],
        keys: &[Vec<f64>],
        position: usize,
    ) -> Vec<usize> {
        let queries = self.times(&format!("{blk}indexer.attn_q_b.weight"), q);
        let weights = self.times(&format!("{blk}indexer.proj.weight"), x);
        assert_eq!(queries.len(), N_INDEX * D_INDEX);
        let queries: Vec<Vec<f64>> =
            queries.chunks(D_INDEX).map(|q| rotated(q, position as f64, true)).collect();
        let score = |key: &Vec<f64>| -> f64 {
            queries.iter().zip(&weights).map(|(q, w)| w * dot(q, key).max(0.0)).sum()
        };
        let scores: Vec<f64> = keys.iter().map(score).collect();
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by(|&a, &b| scores[b].partial_cmp(&scores[a]).unwrap());
        order.truncate(TOP_K);
        order
    }

    fn attention(&self, blk: &str, inputs: &[Vec<f64>], ratio: usize) -> Vec<Vec<f64>> {
        let name = |part: &str| format!("{blk}{part}.weight");
        let compressed = ratio > 0;
        let keys: Vec<Vec<f64>> = (inputs.iter().enumerate())
            .map(|(p, x)| {
                let key = self.normed(&name("attn_kv_a_norm"), &self.times(&name("attn_kv"), x));
                rotated(&key, p as f64, compressed)
            })
            .collect();
        let (mut blocks, mut index) = (Vec::new(), Vec::new());
        if compressed {
            blocks = self.compressed(&format!("{blk}attn_compressor"), inputs, ratio, D_HEAD);
        }
        if ratio == 4 {
            index = self.compressed(&format!("{blk}indexer_compressor"), inputs, ratio, D_INDEX);
        }
        let sinks = self.values(&name("attn_sinks"));
        let output = |(p, x): (usize, &Vec<f64>)| {
            let q = self.normed(&name("attn_q_a_norm"), &self.times(&name("attn_q_a"), x));
            let visible = (p + 1).checked_div(ratio).unwrap_or(0);
            let seen = match ratio {
                4 => self.selected(blk, &q, x, &index[..visible], p),
                _ => (0..visible).collect(),
            };
            let window = &keys[(p + 1).saturating_sub(WINDOW)..=p];
            let rows: Vec<&Vec<f64>> =
                window.iter().chain(seen.iter().map(|&block| &blocks[block])).collect();
            let queries = self.times(&name("attn_q_b"), &q);
            let mut outputs = Vec::new();
            for (head, q) in queries.chunks(D_HEAD).enumerate() {
                let q = rotated(&root_mean_square(q), p as f64, compressed);
                let scale = (D_HEAD as f64).sqrt();
                let scores = rows.iter().map(|key| dot(&q, key) / scale);
                let weights = softmax(&scores.chain([sinks[head]]).collect::<Vec<_>>());
                let sum = |i: usize| rows.iter().zip(&weights).map(|(key, w)| w * key[i]).sum();
                let y: Vec<f64> = (0..D_HEAD).map(sum).collect();
                outputs.extend(rotated(&y, -(p as f64), compressed));
            }
            let matrices = self.values(&name("attn_output_a"));
            let per_group = outputs.len() / N_GROUP;
            let grouped = (outputs.chunks(per_group))
                .zip(matrices.chunks(O_RANK * per_group))
                .flat_map(|(x, matrix)| matrix.chunks(per_group).map(move |row| dot(row, x)));
            self.times(&name("attn_output_b"), &grouped.collect::<Vec<_>>())
        };
        assert_eq!(sinks.len(), N_HEAD);
        inputs.iter().enumerate().map(output).collect()
    }

    /// `down . (silu(min(gate, c)) * clamp(up, -c, c))` of an expert, or of the shared one.
    fn block(&self, blk: &str, suffix: &str, expert: usize, x: &[f64]) -> Vec<f64> {
        let times = |part: &str, x: &[f64]| -> Vec<f64> {
            let all = self.values(&format!("{blk}ffn_{part}{suffix}.weight"));
            let n = if suffix == "_exps" { N_EXPERT } else { 1 };
            let own = &all[expert * (all.len() / n)..][..all.len() / n];
            own.chunks(x.len()).map(|row| dot(row, x)).collect()
        };
        let clamp = f64::from(CLAMP);
        let (gate, up) = (times("gate", x), times("up", x));
        let neuron = |(gate, up): (&f64, &f64)| {
            let gate = gate.min(clamp);
            gate * sigmoid(gate) * up.clamp(-clamp, clamp)
        };
        times("down", &gate.iter().zip(&up).map(neuron).collect::<Vec<_>>())
    }

    fn ffn(&self, blk: &str, layer: usize, x: &[f64], id: u32) -> Vec<f64> {
        let logits = self.times(&format!("{blk}ffn_gate_inp.weight"), x);
        let scores: Vec<f64> = logits.iter().map(|x| x.exp().ln_1p().sqrt()).collect();
        let experts: Vec<usize> = if layer < HASH_LAYERS {
            listed(layer, id).iter().map(|&expert| expert as usize).collect()
        } else {
            let bias = self.values(&format!("{blk}exp_probs_b.bias"));
            let mut order: Vec<usize> = (0..N_EXPERT).collect();
            let key = |expert: usize| scores[expert] + bias[expert];
            order.sort_by(|&a, &b| key(b).partial_cmp(&key(a)).unwrap());
            order[..N_USED].to_vec()
        };
        let sum: f64 = experts.iter().map(|&expert| scores[expert]).sum();
        let mut y = self.block(blk, "_shexp", 0, x);
        for expert in experts {
            let weight = scores[expert] / sum * f64::from(SCALE);
            let out = self.block(blk, "_exps", expert, x);
            y.iter_mut().zip(out).for_each(|(y, out)| *y += weight * out);
        }
        y
    }
}
