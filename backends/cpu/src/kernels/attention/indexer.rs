//! The lightning indexer of sparse attention: scores of all blocks of positions that a token sees,
//! then the selection of the best.
//!
//! In decode, a chunk computes the scores of one span of one token, and a second phase
//! selects. In prefill, a chunk does both for one token, in the scratch memory of its worker. The
//! scores have the same bits in both cases.

use std::ops::Range;

use hal::op::{BlockList, NO_POSITION, block_row};
use hal::{KV_BLOCK, Operand, Tensor, op};

use super::super::compress::{list_window, listed_row};
use super::super::operand::{Step, optional_view};
use super::super::{Context, Kernel, nth_range};
use super::cut::{FEW_TOKENS, KeysOrValues, L1_ROWS, Positions, SPAN};
use crate::buffer::{ReadView, Scratch, Span, WriteView};
use simd::PAD;

pub(in super::super) struct Workspace {
    /// Scores of all blocks, a row per token in decode, per worker in prefill.
    scores: Span<f32>,
    /// Per worker: blocks in the order of [`rank`].
    ranks: Span<u64>,
    /// Per worker: padded queries, their products with [`L1_ROWS`] keys, and these keys as F32.
    passes: [Span<f32>; 3],
}

impl Workspace {
    pub(in super::super) fn new<T: Operand>(
        op: &op::LightningIndexer<T>,
        n_threads: usize,
        scratch: &mut Scratch,
    ) -> Self {
        let n_scores = op.batch.shape.max_blocks * KV_BLOCK / op.pool.max(1);
        let q = op.q.desc();
        let width = (q.n_cols / op.n_head).next_multiple_of(PAD);
        let n_rows = if splits_spans(q.n_rows) { q.n_rows } else { n_threads };
        Self {
            scores: scratch.take(n_rows, n_scores),
            ranks: scratch.take(n_threads, n_scores),
            passes: [op.n_head * width, op.n_head * L1_ROWS, L1_ROWS * width]
                .map(|len| scratch.take(n_threads, len)),
        }
    }
}

fn splits_spans(n_tokens: usize) -> bool {
    n_tokens <= FEW_TOKENS
}

#[derive(Debug)]
pub(in super::super) struct LightningIndexer {
    q: ReadView<f32>,
    weights: Option<ReadView<f32>>,
    keys: KeysOrValues,
    step: Step,
    selected: WriteView<u32>,
    scores: WriteView<f32>,
    ranks: WriteView<u64>,
    passes: [WriteView<f32>; 3],
    n_head: usize,
    pool: usize,
    top_k: usize,
    list: Option<BlockList>,
}

impl LightningIndexer {
    pub(in super::super) fn new(
        op: &op::LightningIndexer<Tensor>,
        context: &Context<'_>,
    ) -> LightningIndexer {
        let spans = Workspace::new(op, context.n_threads, &mut Scratch::default());
        let bind = &context.bind;
        LightningIndexer {
            q: bind.read(&op.q),
            weights: optional_view(op.weights.as_ref(), context),
            keys: KeysOrValues::new(&op.cache.k, op.q.desc().n_cols / op.n_head, context),
            step: Step::new(&op.batch, context),
            selected: bind.write(&op.selected),
            scores: bind.scratch(&spans.scores),
            ranks: bind.scratch(&spans.ranks),
            passes: spans.passes.each_ref().map(|span| bind.scratch(span)),
            n_head: op.n_head,
            pool: op.pool,
            top_k: op.top_k(),
            list: op.list,
        }
    }

    fn n_tokens(&self) -> usize {
        self.step.n_tokens(self.q.n_rows())
    }

    /// Number of positions that token `t` sees.
    fn n_visible(&self, t: usize) -> usize {
        self.step.view().positions()[t] as usize + 1
    }

    /// Number of complete blocks that token `t` sees.
    fn n_blocks(&self, t: usize) -> usize {
        self.n_visible(t) / self.pool
    }

    /// The largest number of spans of blocks of any token of the step.
    fn n_spans(&self) -> usize {
        (0..self.n_tokens()).map(|t| self.n_blocks(t).div_ceil(SPAN)).max().unwrap_or(0)
    }

    /// Whether token `t` selects all positions, so that the scores are not needed.
    fn selects_all(&self, t: usize) -> bool {
        self.n_blocks(t) <= self.top_k
    }

    /// Computes the scores of `blocks`, at most [`SPAN`], for token `t`.
    fn score(&self, t: usize, blocks: Range<usize>, scores: &mut [f32], worker: usize) {
        let [q, dots, widened] = self.passes.each_ref().map(|view| view.row(worker));
        let d_head = self.keys.d_head;
        let width = d_head.next_multiple_of(PAD);
        for (padded, head) in q.chunks_mut(width).zip(self.q.row(t).chunks(d_head)) {
            let (values, rest) = padded.split_at_mut(d_head);
            values.copy_from_slice(head);
            rest.fill(0.0);
        }
        let (view, mut ids) = (self.step.view(), [0u32; SPAN]);
        let seq = view.seqs()[t] as usize;
        for (id, block) in ids.iter_mut().zip(blocks.clone()) {
            let last = view.kv_row(seq, (block + 1) * self.pool - 1);
            *id = if self.list.is_some() { block_row(last, self.pool) } else { last } as u32;
        }
        let rows = Positions { first: 0, ids: &ids[..blocks.len()], n_queries: self.n_head };
        for (at, ids) in rows.l1_ranges() {
            let (keys, kernels) = self.keys.rows(0, ids, self.n_head, false, widened);
            (kernels.scores)(q, &keys, dots, L1_ROWS);
            let scores = &mut scores[at.clone()];
            scores.fill(0.0);
            let weights = self.weights.as_ref().map(|weights| weights.row(t));
            for (head, dots) in dots.chunks(L1_ROWS).enumerate() {
                let weight = weights.map_or(1.0, |weights| weights[head]);
                for (score, &dot) in scores.iter_mut().zip(dots) {
                    // A NaN must stay NaN; `max` would turn it into 0.
                    *score += weight * if dot <= 0.0 { 0.0 } else { dot };
                }
            }
        }
    }

    /// The blocks of the best `scores` of token `t` in ascending order, as the lower halves of ranks.
    fn best_blocks(&self, t: usize, scores: &[f32], worker: usize) -> &[u64] {
        let ranks = &mut self.ranks.row(worker)[..self.n_blocks(t)];
        if self.selects_all(t) {
            ranks.iter_mut().zip(0..).for_each(|(rank, block)| *rank = block);
            return ranks;
        }
        for ((rank_of, &score), block) in ranks.iter_mut().zip(scores).zip(0..) {
            *rank_of = rank(score, block);
        }
        ranks.select_nth_unstable(self.top_k - 1);
        let best = &mut ranks[..self.top_k];
        best.sort_unstable_by_key(|&rank| rank as u32);
        best
    }

    /// Writes the positions of the blocks of the best `scores` of token `t`.
    fn select(&self, t: usize, scores: &[f32], worker: usize) {
        let selected = self.selected.row(t);
        let (n_visible, n_blocks) = (self.n_visible(t), self.n_blocks(t));
        if self.list.is_none() && self.selects_all(t) {
            let (all, rest) = selected.split_at_mut(n_visible);
            all.iter_mut().zip(0..).for_each(|(out, p)| *out = p);
            return rest.fill(NO_POSITION);
        }
        let ranks = self.best_blocks(t, scores, worker);
        if let Some(list) = self.list {
            let view = self.step.view();
            let rest = list_window(&view, t, list, selected);
            let (rows, rest) = rest.split_at_mut(ranks.len());
            for (out, &rank) in rows.iter_mut().zip(ranks) {
                *out = listed_row(&view, t, list, self.pool, rank as u32 as usize);
            }
            return rest.fill(NO_POSITION);
        }
        let (whole, rest) = selected.split_at_mut(ranks.len() * self.pool);
        for (positions, &rank) in whole.chunks_exact_mut(self.pool).zip(ranks) {
            let first = rank as u32 * self.pool as u32;
            positions.iter_mut().zip(first..).for_each(|(out, p)| *out = p);
        }
        let tail = n_blocks * self.pool..n_visible;
        let (tail_entries, rest) = rest.split_at_mut(tail.len());
        tail_entries.iter_mut().zip(tail).for_each(|(out, p)| *out = p as u32);
        rest.fill(NO_POSITION);
    }
}

/// A number that is lower for a higher score, and in a tie for a lower block; its lower half is the
/// block. NaN has the highest numbers.
fn rank(score: f32, block: u32) -> u64 {
    // -0.0 becomes 0.0.
    let bits = (score + 0.0).to_bits();
    let ascending = match (score.is_nan(), bits >> 31) {
        (true, _) => 0,
        (false, 0) => bits | 1 << 31,
        (false, _) => !bits,
    };
    u64::from(!ascending) << 32 | u64::from(block)
}

impl Kernel for LightningIndexer {
    fn n_phases(&self) -> usize {
        2
    }

    fn chunks(&self, phase: usize) -> usize {
        match (phase, splits_spans(self.q.n_rows())) {
            (0, true) => self.n_tokens() * self.n_spans(),
            (0, false) => 0,
            _ => self.n_tokens(),
        }
    }

    fn run(&self, phase: usize, chunk: usize, worker: usize) {
        if phase == 0 {
            let n_spans = self.n_spans();
            let (t, span) = (chunk / n_spans, chunk % n_spans);
            let blocks = nth_range(span, SPAN, self.n_blocks(t));
            if !blocks.is_empty() && !self.selects_all(t) {
                let scores = self.scores.columns(t, blocks.clone());
                self.score(t, blocks, scores, worker);
            }
            return;
        }
        let (t, n) = (chunk, self.n_blocks(chunk));
        if splits_spans(self.q.n_rows()) {
            return self.select(t, &self.scores.read_row(t)[..n], worker);
        }
        let scores = &mut self.scores.row(worker)[..n];
        if !self.selects_all(t) {
            for (span, scores) in scores.chunks_mut(SPAN).enumerate() {
                self.score(t, nth_range(span, SPAN, n), scores, worker);
            }
        }
        self.select(t, scores, worker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_order_scores_and_then_blocks() {
        let order = [
            (f32::INFINITY, 9),
            (2.0, 3),
            (1.0, 1),
            (1.0, 8),
            (0.0, 2),
            (-0.0, 4),
            (-1.0, 0),
            (-2.0, 5),
            (f32::NEG_INFINITY, 6),
            (f32::NAN, 7),
            (-f32::NAN, 10),
        ];
        let ranks = order.map(|(score, block)| rank(score, block));
        assert!(ranks.is_sorted(), "{ranks:?}");
        assert_eq!(ranks.map(|rank| rank as u32), order.map(|(_, block)| block));
    }
}
