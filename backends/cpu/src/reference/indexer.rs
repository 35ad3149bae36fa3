//! The lightning indexer of sparse attention.

use std::cmp::Ordering;

use hal::op::{LightningIndexer, NO_POSITION, block_row};
use hal::{Operand, Tensor};

use super::Memory;
use super::compress::list;
use super::operands::{Step, row, write_words};

pub(super) fn lightning_indexer(op: &LightningIndexer<Tensor>, memory: &dyn Memory) {
    let step = Step::new(memory, &op.batch);
    for t in 0..step.n_tokens(op.q.desc().n_rows) {
        let view = step.view();
        let seq = view.seqs()[t] as usize;
        let q = row(memory, &op.q, t);
        let weights = op.weights.as_ref().map(|weights| row(memory, weights, t));
        let weights = weights.unwrap_or_else(|| vec![1.0; op.n_head]);
        let n_visible = view.visible_positions(t, None).len();
        let n_blocks = n_visible / op.pool;
        let score = |block: usize| {
            let last = (block + 1) * op.pool - 1;
            let at = view.kv_row(seq, last);
            let at = if op.list.is_some() { block_row(at, op.pool) } else { at };
            let k = row(memory, &op.cache.k, at);
            let heads = q.chunks_exact(k.len()).zip(&weights);
            let head = |(q, &weight): (&[f32], &f32)| {
                let dot: f64 = q.iter().zip(&k).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
                f64::from(weight) * if dot > 0.0 || dot.is_nan() { dot } else { 0.0 }
            };
            heads.map(head).sum::<f64>() as f32
        };
        let scores: Vec<f32> = (0..n_blocks).map(score).collect();
        let mut blocks: Vec<usize> = (0..n_blocks).collect();
        // The sort is stable: in a tie, the lower block stays first.
        blocks.sort_by(|&a, &b| best_first(scores[a], scores[b]));
        blocks.truncate(op.top_k());
        blocks.sort_unstable();
        let mut words = match op.list {
            Some(by) => list(&view, t, by, op.pool, &mut blocks.into_iter()),
            None => {
                let whole = blocks.into_iter().flat_map(|b| b * op.pool..(b + 1) * op.pool);
                let tail = n_blocks * op.pool..n_visible;
                whole.chain(tail).map(|p| p as u32).collect()
            }
        };
        words.resize(op.selected.desc().n_cols, NO_POSITION);
        write_words(memory, &op.selected.rows(t..t + 1), &words);
    }
}

/// The order of two scores, the higher one first and NaN last.
fn best_first(a: f32, b: f32) -> Ordering {
    b.partial_cmp(&a).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}
