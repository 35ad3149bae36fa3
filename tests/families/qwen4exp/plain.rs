//! The logits of a tiny model as plain loops in f64, from the tensors of its file alone.

use std::collections::HashMap;

use super::{
    D_HEAD, D_INDEX, D_STATE, EOS, KERNEL, LAYERS, MULTIPLIERS, N_EMBD, N_EXPERT, N_HEAD, N_KV,
    N_NGRAM, N_ROT, N_STREAM, N_USED, N_V, NGRAMS, PLE_KERNEL, TOP_K,
};

const EPS: f64 = 1e-5;

/// The tensors of a model by name.
pub(super) struct Plain {
    pub(super) tensors: HashMap<String, Vec<f32>>,
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn root_mean_square(x: &[f64]) -> Vec<f64> {
    let root = (dot(x, x) / x.len() as f64 + EPS).sqrt();
    x.iter().map(|x| x / root).collect()
}

/// RoPE of a head's first values.
fn rotated(x: &[f64], position: usize) -> Vec<f64> {
    let mut y = x.to_vec();
    for j in 0..N_ROT / 2 {
        let angle = position as f64 * 10_000f64.powf(-2.0 * j as f64 / N_ROT as f64);
        let (a, b) = (x[j], x[j + N_ROT / 2]);
        y[j] = a * angle.cos() - b * angle.sin();
        y[j + N_ROT / 2] = a * angle.sin() + b * angle.cos();
    }
    y
}

/// The `n` indices of the largest values, a lower index first where two are equal, ascending.
fn best(values: &[f64], n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].partial_cmp(&values[a]).unwrap());
    order.truncate(n);
    order.sort_unstable();
    order
}

impl Plain {
    fn values(&self, name: &str) -> Vec<f64> {
        self.tensors[name].iter().map(|&v| f64::from(v)).collect()
    }

    fn times(&self, name: &str, x: &[f64]) -> Vec<f64> {
        self.values(name).chunks_exact(x.len()).map(|row| dot(row, x)).collect()
    }

    /// The values of heads of `width`, each normed.
    fn normed(&self, name: &str, x: &[f64], width: usize) -> Vec<f64> {
        let weights = self.values(name);
        let head = |(at, x): (usize, &[f64])| -> Vec<f64> {
            let weights = weights.chunks(width).cycle().nth(at).unwrap();
            root_mean_square(x).iter().zip(weights).map(|(x, w)| x * w).collect()
        };
        x.chunks(width).enumerate().flat_map(head).collect()
    }

    /// The mixture of the streams and, in a layer, the shares of its output.
    fn mix(&self, prefix: &str, streams: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let h = self.normed(&format!("{prefix}norm.weight"), streams, N_EMBD);
        let low = self.times(&format!("{prefix}down.weight"), &h);
        let low: Vec<f64> = low.iter().map(|x| silu(x / N_STREAM as f64)).collect();
        let gates = self.times(&format!("{prefix}up.weight"), &low);
        let gated: Vec<f64> = h.iter().zip(gates).map(|(h, gate)| h * sigmoid(gate)).collect();
        let stream = |i: usize| (0..N_STREAM).map(|s| gated[s * N_EMBD + i]).sum::<f64>();
        let x = (0..N_EMBD).map(|i| stream(i) / N_STREAM as f64).collect();
        let inject = format!("{prefix}inject.weight");
        let shares = if self.tensors.contains_key(&inject) {
            let shares = self.times(&inject, &h);
            shares.iter().map(|x| 2.0 * sigmoid(x / N_STREAM as f64)).collect()
        } else {
            Vec::new()
        };
        (x, shares)
    }

    /// The logits of all tokens of a text.
    pub(super) fn logits(&self, ids: &[u32]) -> Vec<Vec<f32>> {
        let embedding = self.values("token_embd.weight");
        let row = |&id: &u32| embedding[id as usize * N_EMBD..][..N_EMBD].repeat(N_STREAM);
        let mut streams: Vec<Vec<f64>> = ids.iter().map(row).collect();
        for (index, &ratio) in LAYERS.iter().enumerate() {
            let blk = format!("blk.{index}.");
            if self.tensors.contains_key(&format!("{blk}ple_key.weight")) {
                self.add_ngrams(&blk, ids, &mut streams);
            }
            let mixed: Vec<_> =
                streams.iter().map(|s| self.mix(&format!("{blk}hc_attn_"), s)).collect();
            let inputs: Vec<Vec<f64>> = mixed.iter().map(|(x, _)| x.clone()).collect();
            let outputs = match ratio {
                Some(ratio) => self.attention(&blk, &inputs, ratio),
                None => self.delta(&blk, &inputs),
            };
            add(&mut streams, &outputs, mixed.iter().map(|(_, shares)| &shares[..]));
            let mixed: Vec<_> =
                streams.iter().map(|s| self.mix(&format!("{blk}hc_ffn_"), s)).collect();
            let outputs: Vec<Vec<f64>> = mixed.iter().map(|(x, _)| self.ffn(&blk, x)).collect();
            add(&mut streams, &outputs, mixed.iter().map(|(_, shares)| &shares[..]));
        }
        let logits = |streams: &Vec<f64>| -> Vec<f32> {
            let (x, _) = self.mix("output_hc_", streams);
            self.times("output.weight", &x).iter().map(|&x| x as f32).collect()
        };
        streams.iter().map(logits).collect()
    }

    fn add_ngrams(&self, blk: &str, ids: &[u32], streams: &mut [Vec<f64>]) {
        let table = self.values("per_layer_token_embd.weight");
        let width = N_EMBD / NGRAMS.len();
        let name = |part: &str| format!("{blk}ple_{part}.weight");
        let (mut values, mut inputs) = (Vec::new(), Vec::new());
        for (at, streams) in streams.iter().enumerate() {
            let mut tokens = vec![u64::from(ids[at])];
            for back in 1..N_NGRAM {
                let token = at.checked_sub(back).map(|at| u64::from(ids[at]));
                let ended = tokens[1..].contains(&u64::from(EOS));
                tokens.push(token.filter(|_| !ended).unwrap_or(u64::from(EOS)));
            }
            let embedding: Vec<f64> = (NGRAMS.iter().enumerate())
                .flat_map(|(head, &(first, n))| {
                    let n_tokens = 2 + head / (NGRAMS.len() / (N_NGRAM - 1));
                    let terms = tokens.iter().zip(MULTIPLIERS).take(n_tokens);
                    let hash = terms.fold(0, |hash, (token, by)| hash ^ token.wrapping_mul(by));
                    let row = (first + hash % n) as usize;
                    table[row * width..][..width].to_vec()
                })
                .collect();
            let key = self.times(&name("key"), &embedding);
            let key = self.normed(&name("norm_key"), &key, N_EMBD);
            let query = self.normed(&name("norm_query"), streams, N_EMBD);
            let value = self.times(&name("value"), &embedding);
            let gated = |(key, query): (&[f64], &[f64])| -> Vec<f64> {
                let score = dot(key, query) / (N_EMBD as f64).sqrt();
                let gate = sigmoid(score.signum() * score.abs().max(1e-6).sqrt());
                value.iter().map(|value| value * gate).collect()
            };
            let gated: Vec<f64> =
                key.chunks(N_EMBD).zip(query.chunks(N_EMBD)).flat_map(gated).collect();
            inputs.push(self.normed(&name("norm_conv"), &gated, N_EMBD));
            values.push(gated);
        }
        let filters = self.values(&name("conv1d"));
        for (at, streams) in streams.iter_mut().enumerate() {
            for (channel, x) in streams.iter_mut().enumerate() {
                let taps = (0..PLE_KERNEL).filter_map(|tap| {
                    let at = at.checked_sub((PLE_KERNEL - 1 - tap) * N_NGRAM)?;
                    Some(filters[channel * PLE_KERNEL + tap] * inputs[at][channel])
                });
                *x += values[at][channel] + silu(taps.sum());
            }
        }
    }

    /// The positions that a token attends to.
    fn selected(&self, blk: &str, inputs: &[Vec<f64>], at: usize, ratio: usize) -> Vec<usize> {
        if ratio == 0 {
            return (0..=at).collect();
        }
        let name = |part: &str| format!("{blk}indexer.{part}.weight");
        let query = self.times(&name("q_proj"), &inputs[at]);
        let query = self.normed(&name("q_norm"), &query, D_INDEX);
        let n_blocks = (at + 1) / ratio;
        let score = |block: usize| {
            let first = block * ratio;
            let keys = (first..first + ratio).map(|p| self.times(&name("k_proj"), &inputs[p]));
            let mean = keys.fold(vec![0.0; D_INDEX], |sum, key| {
                sum.iter().zip(key).map(|(sum, key)| sum + key / ratio as f64).collect()
            });
            let key = rotated(&self.normed(&name("k_norm"), &mean, D_INDEX), first);
            let heads = query.chunks(D_INDEX).map(|head| dot(&rotated(head, at), &key).max(0.0));
            heads.sum::<f64>()
        };
        let scores: Vec<f64> = (0..n_blocks).map(score).collect();
        let blocks = best(&scores, TOP_K / ratio);
        let whole = blocks.into_iter().flat_map(|block| block * ratio..(block + 1) * ratio);
        whole.chain(n_blocks * ratio..=at).collect()
    }

    fn attention(&self, blk: &str, inputs: &[Vec<f64>], ratio: usize) -> Vec<Vec<f64>> {
        let name = |part: &str| format!("{blk}attn_{part}.weight");
        let heads = |x: &[f64], norm: &str, at: usize| -> Vec<Vec<f64>> {
            let normed = self.normed(&name(norm), x, D_HEAD);
            normed.chunks(D_HEAD).map(|head| rotated(head, at)).collect()
        };
        let keys: Vec<Vec<Vec<f64>>> = (inputs.iter().enumerate())
            .map(|(at, x)| heads(&self.times(&name("k"), x), "k_norm", at))
            .collect();
        let values: Vec<Vec<f64>> = inputs.iter().map(|x| self.times(&name("v"), x)).collect();
        let one = |(at, x): (usize, &Vec<f64>)| {
            let both = self.times(&name("q"), x);
            let part = |first: usize| -> Vec<f64> {
                both.chunks(2 * D_HEAD).flat_map(|head| head[first..][..D_HEAD].to_vec()).collect()
            };
            let (queries, gates) = (heads(&part(0), "q_norm", at), part(D_HEAD));
            let positions = self.selected(blk, inputs, at, ratio);
            let mut output = Vec::new();
            for (head, query) in queries.iter().enumerate() {
                let kv = head * N_KV / N_HEAD;
                let scores =
                    positions.iter().map(|&p| dot(query, &keys[p][kv]) / (D_HEAD as f64).sqrt());
                let weights: Vec<f64> = scores.map(f64::exp).collect();
                let sum: f64 = weights.iter().sum();
                output.extend((kv * D_HEAD..(kv + 1) * D_HEAD).map(|i| {
                    let terms = positions.iter().zip(&weights).map(|(&p, w)| w * values[p][i]);
                    terms.sum::<f64>() / sum
                }));
            }
            output.iter_mut().zip(gates).for_each(|(x, gate)| *x *= sigmoid(gate));
            self.times(&name("output"), &output)
        };
        inputs.iter().enumerate().map(one).collect()
    }

    fn delta(&self, blk: &str, inputs: &[Vec<f64>]) -> Vec<Vec<f64>> {
        const N_K: usize = 2;
        let name = |part: &str| format!("{blk}{part}.weight");
        let raw: Vec<Vec<f64>> = inputs.iter().map(|x| self.times(&name("attn_qkv"), x)).collect();
        let filters = self.values(&name("ssm_conv1d"));
        let (rate, bias) =
            (self.values(&format!("{blk}ssm_a")), self.values(&format!("{blk}ssm_dt.bias")));
        let mut states = vec![vec![0.0; D_STATE * D_STATE]; N_V];
        let mut outputs = Vec::new();
        for (at, x) in inputs.iter().enumerate() {
            let convolved: Vec<f64> = (0..raw[at].len())
                .map(|channel| {
                    let taps = (0..KERNEL).filter_map(|tap| {
                        let at = (at + tap).checked_sub(KERNEL - 1)?;
                        Some(filters[channel * KERNEL + tap] * raw[at][channel])
                    });
                    silu(taps.sum())
                })
                .collect();
            let unit = |head: usize| -> Vec<f64> {
                let x = &convolved[head * D_STATE..][..D_STATE];
                let root = (dot(x, x) + EPS).sqrt();
                x.iter().map(|x| x / root).collect()
            };
            let (alpha, beta) =
                (self.times(&name("ssm_alpha"), x), self.times(&name("ssm_beta"), x));
            let mut y = Vec::new();
            for (head, state) in states.iter_mut().enumerate() {
                let (q, k) = (unit(head % N_K), unit(N_K + head % N_K));
                let v = &convolved[(2 * N_K + head) * D_STATE..][..D_STATE];
                let decay = (rate[head] * (alpha[head] + bias[head]).exp().ln_1p()).exp();
                state.iter_mut().for_each(|s| *s *= decay);
                for (j, v) in v.iter().enumerate() {
                    let old: f64 = (0..D_STATE).map(|i| state[i * D_STATE + j] * k[i]).sum();
                    let change = sigmoid(beta[head]) * (v - old);
                    (0..D_STATE).for_each(|i| state[i * D_STATE + j] += k[i] * change);
                }
                let read =
                    |j: usize| -> f64 { (0..D_STATE).map(|i| state[i * D_STATE + j] * q[i]).sum() };
                y.extend((0..D_STATE).map(|j| read(j) / (D_STATE as f64).sqrt()));
            }
            let y = self.normed(&name("ssm_norm"), &y, D_STATE);
            let gates = self.times(&name("attn_gate"), x);
            let y: Vec<f64> = y.iter().zip(gates).map(|(y, gate)| y * sigmoid(gate)).collect();
            outputs.push(self.times(&name("ssm_out"), &y));
        }
        outputs
    }

    fn ffn(&self, blk: &str, x: &[f64]) -> Vec<f64> {
        let name = |part: &str| format!("{blk}ffn_{part}.weight");
        let block = |gate: &[f64], up: &[f64], down: &[f64]| -> Vec<f64> {
            let product = |rows: &[f64]| -> Vec<f64> {
                rows.chunks_exact(x.len()).map(|row| dot(row, x)).collect()
            };
            let gates = product(gate).into_iter().map(silu);
            let h: Vec<f64> = gates.zip(product(up)).map(|(gate, up)| gate * up).collect();
            down.chunks_exact(h.len()).map(|row| dot(row, &h)).collect()
        };
        let logits = self.times(&name("gate_inp"), x);
        let used = best(&logits, N_USED);
        let sum: f64 = used.iter().map(|&e| logits[e].exp()).sum();
        let weight = sigmoid(self.times(&name("gate_inp_shexp"), x)[0]);
        let all = |part: &str| self.values(&name(part));
        let shared = block(&all("gate_shexp"), &all("up_shexp"), &all("down_shexp"));
        let mut y: Vec<f64> = shared.iter().map(|y| y * weight).collect();
        let [gate, up, down] = ["gate_exps", "up_exps", "down_exps"].map(all);
        for expert in used {
            let part = |all: &[f64]| {
                let n = all.len() / N_EXPERT;
                all[expert * n..][..n].to_vec()
            };
            let weight = logits[expert].exp() / sum;
            let of_expert = block(&part(&gate), &part(&up), &part(&down));
            y.iter_mut().zip(of_expert).for_each(|(y, of)| *y += weight * of);
        }
        y
    }
}

/// Adds the output of each token to its streams.
fn add<'a>(
    streams: &mut [Vec<f64>],
    outputs: &[Vec<f64>],
    shares: impl Iterator<Item = &'a [f64]>,
) {
    for ((streams, output), shares) in streams.iter_mut().zip(outputs).zip(shares) {
        for (stream, share) in streams.chunks_mut(N_EMBD).zip(shares) {
            stream.iter_mut().zip(output).for_each(|(x, y)| *x += share * y);
        }
    }
}
