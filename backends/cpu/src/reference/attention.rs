//! RoPE, the paged KV cache, and attention over it.

use hal::op::{Attention, CACHE_ROW, NO_POSITION, Pairing, Rope, StoreKv};
use hal::{Operand, Tensor};

use super::Memory;
use super::operands::{Step, floats, optional_floats, row, words, write_cache_row, write_row};

pub(super) fn rope(op: &Rope<Tensor>, memory: &dyn Memory) {
    let step = Step::new(memory, &op.batch);
    let freqs = floats(memory, &op.freqs);
    let scale = f64::from(op.scale);
    for t in 0..step.n_tokens(op.x.desc().n_rows) {
        let pos = step.view().positions()[t] as f32;
        let mut values = row(memory, &op.x, t);
        for head in values.chunks_exact_mut(op.d_head) {
            let head = &mut head[op.first..];
            for (j, freq) in freqs.iter().enumerate() {
                let (first, second) = match op.pairing {
                    Pairing::Adjacent => (2 * j, 2 * j + 1),
                    Pairing::Halves => (j, j + op.n_rot / 2),
                };
                let (sin, cos) = f64::from(pos * freq).sin_cos();
                let (a, b) = (f64::from(head[first]), f64::from(head[second]));
                head[first] = (scale * (a * cos - b * sin)) as f32;
                head[second] = (scale * (a * sin + b * cos)) as f32;
            }
        }
        write_row(memory, &op.x, t, &values);
    }
}

pub(super) fn store_kv(op: &StoreKv<Tensor>, memory: &dyn Memory) {
    let step = Step::new(memory, &op.batch);
    for t in 0..step.n_tokens(op.k.desc().n_rows) {
        let at = step.view().kv_rows()[t] as usize;
        write_cache_row(memory, &op.cache.k, at, &row(memory, &op.k, t));
        if let (Some(cache), Some(v)) = (&op.cache.v, &op.v) {
            write_cache_row(memory, cache, at, &row(memory, v, t));
        }
    }
}

pub(super) fn attention(op: &Attention<Tensor>, memory: &dyn Memory) {
    let step = Step::new(memory, &op.batch);
    let slopes = optional_floats(memory, op.slopes.as_ref());
    let sinks = optional_floats(memory, op.sinks.as_ref());
    for t in 0..step.n_tokens(op.q.desc().n_rows) {
        let visible = step.view().visible_positions(t, op.window);
        let view = step.view();
        let (seq, pos) = (view.seqs()[t] as usize, view.positions()[t] as usize);
        let rows: Vec<usize> = match &op.selected {
            None => visible.clone().map(|p| view.kv_row(seq, p)).collect(),
            Some(selected) => {
                let list = words(memory, &selected.rows(t..t + 1));
                let row = |&entry: &u32| match entry & CACHE_ROW {
                    0 => view.kv_row(seq, entry as usize),
                    _ => (entry & !CACHE_ROW) as usize,
                };
                list.iter().take_while(|&&p| p != NO_POSITION).map(row).collect()
            }
        };
        let mut scores = scores(op, memory, t, &rows);
        if let Some(slopes) = &slopes {
            for (scores, &slope) in scores.iter_mut().zip(slopes) {
                let distances = visible.clone().map(|p| p.abs_diff(pos) as f64);
                scores.iter_mut().zip(distances).for_each(|(s, d)| *s -= f64::from(slope) * d);
            }
        }
        for (h, scores) in scores.iter_mut().enumerate() {
            softmax(scores, sinks.as_ref().map(|sinks| f64::from(sinks[h])));
        }
        let d_value = op.y.desc().n_cols / op.n_head;
        let mut y = vec![0.0; op.y.desc().n_cols];
        for (i, &r) in rows.iter().enumerate() {
            let v = row(memory, op.cache.values(), r);
            for (h, y) in y.chunks_exact_mut(d_value).enumerate() {
                let v = &v[h * op.n_head_kv / op.n_head * d_value..][..d_value];
                y.iter_mut().zip(v).for_each(|(y, &v)| *y += scores[h][i] * f64::from(v));
            }
        }
        let y: Vec<f32> = y.into_iter().map(|y| y as f32).collect();
        write_row(memory, &op.y, t, &y);
    }
}

/// Soft-capped scores of token `t`: `[n_head][positions]`.
fn scores(op: &Attention<Tensor>, memory: &dyn Memory, t: usize, rows: &[usize]) -> Vec<Vec<f64>> {
    let q = row(memory, &op.q, t);
    let d_head = q.len() / op.n_head;
    let mut scores = vec![Vec::with_capacity(rows.len()); op.n_head];
    for &r in rows {
        let k = row(memory, &op.cache.k, r);
        for (h, scores) in scores.iter_mut().enumerate() {
            let q = &q[h * d_head..][..d_head];
            let k = &k[h * op.n_head_kv / op.n_head * d_head..][..d_head];
            let product: f64 = q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
            let score = f64::from(op.scale) * product;
            let cap = f64::from(op.softcap);
            scores.push(if cap == 0.0 { score } else { cap * (score / cap).tanh() });
        }
    }
    scores
}

/// Converts scores to softmax weights. An attention sink adds `exp(sink)` to the denominator.
fn softmax(scores: &mut [f64], sink: Option<f64>) {
    let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
    scores.iter_mut().for_each(|s| *s = (*s - max).exp());
    let sum = scores.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - max).exp());
    scores.iter_mut().for_each(|s| *s /= sum);
}
