//! Attention over the paged KV cache: a softmax per fixed span of positions; the spans are merged
//! in order.
//!
//! A head block (`block` in names) is up to eight query heads that share a KV head. A tile is a run
//! of tokens of one sequence, with at most 32 queries per head block; all queries of a tile share
//! one read of the keys and values.
//!
//! In decode, a chunk computes one span of one token for some head blocks; a second phase merges
//! the spans (flash decoding). In prefill, a chunk computes all spans of one tile and head block.
//! Both use the same arithmetic. A token's result does not depend on the other tokens of the batch:
//! spans begin at fixed positions, and positions that a token does not attend to contribute zero.
//!
//! In sparse attention, "positions" are indices of the list of positions that the token selected.

use std::ops::Range;

use hal::op::{self, CACHE_ROW, NO_POSITION, Window};
use hal::{KV_BLOCK, Tensor};

use super::operand::{Step, optional_view};
use super::{Context, Kernel};
use crate::buffer::{ReadView, Scratch, WriteView};
use simd::{AddWeightedFn, HeadRows, PAD, SoftmaxFn};

mod cut;
mod indexer;

pub(super) use cut::Workspace;
use cut::{Cut, GROUP, KeysOrValues, MAX_QUERIES, Positions, SPAN, Tile, TileScratch};
pub(super) use indexer::{LightningIndexer, Workspace as IndexerWorkspace};

/// V rows of a span, and the kernel for their weighted sum.
struct WeightedRows<'a> {
    /// Position of the first row, relative to the start of the span.
    first: usize,
    values: &'a HeadRows<'a>,
    kernel: AddWeightedFn,
}

#[derive(Debug)]
pub(super) struct Attention {
    cut: Cut,
    q: ReadView<f32>,
    k: KeysOrValues,
    v: KeysOrValues,
    softmax: SoftmaxFn,
    step: Step,
    slopes: Option<ReadView<f32>>,
    sinks: Option<ReadView<f32>>,
    selected: Option<ReadView<u32>>,
    y: WriteView<f32>,
    parts: WriteView<f32>,
    tiles: [WriteView<f32>; 5],
    scale: f32,
    window: Option<Window>,
    softcap: f32,
}

impl Attention {
    pub(super) fn new(op: &op::Attention<Tensor>, context: &Context<'_>) -> Attention {
        let cut = Cut::new(op);
        let spans = Workspace::new(op, context.n_threads, &mut Scratch::default());
        Attention {
            cut,
            q: context.bind.read(&op.q),
            k: KeysOrValues::new(&op.cache.k, cut.d_head, context),
            v: KeysOrValues::new(op.cache.values(), cut.d_value, context),
            softmax: context.simd.softmax(),
            step: Step::new(&op.batch, context),
            slopes: optional_view(op.slopes.as_ref(), context),
            sinks: optional_view(op.sinks.as_ref(), context),
            selected: op.selected.as_ref().map(|selected| context.bind.read(selected)),
            y: context.bind.write(&op.y),
            parts: context.bind.scratch(&spans.parts),
            tiles: spans.tiles.each_ref().map(|span| context.bind.scratch(span)),
            scale: op.scale,
            window: op.window,
            softcap: op.softcap,
        }
    }

    /// Positions that token `t` attends to.
    fn visible_positions(&self, t: usize) -> Range<usize> {
        let visible = self.step.view().visible_positions(t, self.window);
        let Some(selected) = &self.selected else { return visible };
        let listed = selected.row(t);
        let n = listed.partition_point(|&p| p != NO_POSITION);
        // Without rows of blocks, a token sees no more positions than there are.
        let has_rows = n > 0 && listed[n - 1] & CACHE_ROW != 0;
        0..if has_rows { n } else { n.min(visible.end) }
    }

    /// Spans that contain a position to which any of `tokens` attends.
    fn spans(&self, tokens: &Range<usize>) -> Range<usize> {
        let (first, last) =
            (self.visible_positions(tokens.start), self.visible_positions(tokens.end - 1));
        first.start / SPAN..last.end.div_ceil(SPAN)
    }

    /// The largest number of spans of any token of the step.
    fn n_spans(&self) -> usize {
        let n_tokens = self.step.n_tokens(self.cut.n_tokens);
        (0..n_tokens).map(|t| self.spans(&(t..t + 1)).len()).max().unwrap_or(0)
    }

    /// Indices within the tile of the queries of head block `block` for `tokens`.
    fn queries(&self, tile: &Tile, block: usize, tokens: &Range<usize>) -> Range<usize> {
        let n_heads = self.cut.heads(block).1.len();
        let first = (block - tile.blocks.start) * self.cut.queries();
        let query = |t: usize| first + (t - tile.tokens.start) * n_heads;
        query(tokens.start)..query(tokens.end)
    }

    /// A worker's scratch memory, filled with the tile's queries: scaled, and padded with zeros.
    fn tile_scratch(&self, tile: &Tile, worker: usize) -> TileScratch<'_> {
        let [q, scores, softmax, sums, widened] =
            self.tiles.each_ref().map(|view| view.row(worker));
        let (d_head, width) = (self.cut.d_head, self.cut.width);
        for block in tile.blocks.clone() {
            let heads = self.cut.heads(block).1;
            for t in tile.tokens.clone() {
                let rows = self.queries(tile, block, &(t..t + 1));
                for (h, padded) in heads.clone().zip(q[rows.start * width..].chunks_mut(width)) {
                    let (values, rest) = padded.split_at_mut(d_head);
                    let q = &self.q.row(t)[h * d_head..][..d_head];
                    values.iter_mut().zip(q).for_each(|(out, q)| *out = self.scale * q);
                    rest.fill(0.0);
                }
            }
        }
        TileScratch { q, scores, softmax, sums, widened }
    }

    /// Computes the softmax and the weighted values of one span for the tile's tokens that attend
    /// to any of its positions; returns these tokens.
    fn attend_span(&self, tile: &Tile, span: usize, scratch: &mut TileScratch<'_>) -> Range<usize> {
        let first = span * SPAN;
        let visible = |t: usize| {
            let visible = self.visible_positions(t);
            visible.start.max(first) - first..visible.end.min(first + SPAN).max(first) - first
        };
        // A token's range neither begins nor ends before the previous token's range, so tokens
        // without positions in this span are at the ends of the tile.
        let mut tokens = tile.tokens.clone();
        while visible(tokens.start).is_empty() && tokens.len() > 1 {
            tokens.start += 1;
        }
        while visible(tokens.end - 1).is_empty() && tokens.len() > 1 {
            tokens.end -= 1;
        }
        let all = visible(tokens.start).start..visible(tokens.end - 1).end;
        let (view, mut ids) = (self.step.view(), [0u32; SPAN]);
        let seq = view.seqs()[tokens.start] as usize;
        let listed = self.selected.as_ref().map(|selected| selected.row(tokens.start));
        for i in all.clone() {
            if let Some(listed) = listed {
                let entry = listed[first + i];
                ids[i] = match entry & CACHE_ROW {
                    0 => view.kv_row(seq, entry as usize) as u32,
                    _ => entry & !CACHE_ROW,
                };
                continue;
            }
            let next = i > all.start && !(first + i).is_multiple_of(KV_BLOCK);
            ids[i] = if next { ids[i - 1] + 1 } else { view.kv_row(seq, first + i) as u32 };
        }
        let n_blocks = tile.blocks.len().min(self.cut.blocks_per_kv_head);
        let n_queries = n_blocks * self.queries(tile, tile.blocks.start, &tokens).len();
        let positions = Positions { first: all.start, ids: &ids[all], n_queries };
        self.score_keys(tile, &tokens, positions, scratch);
        for block in tile.blocks.clone() {
            for t in tokens.clone() {
                let (visible, end) = (visible(t), visible(t).end.next_multiple_of(PAD));
                let heads = self.cut.heads(block).1;
                for (r, head) in self.queries(tile, block, &(t..t + 1)).zip(heads) {
                    let scores = &mut scratch.scores[r * SPAN..][..end];
                    scores[..visible.start].fill(f32::NEG_INFINITY);
                    scores[visible.end..].fill(f32::NEG_INFINITY);
                    self.soft_cap_scores(&mut scores[visible.clone()]);
                    self.slope_scores(head, t, first + visible.start, &mut scores[visible.clone()]);
                    scratch.softmax[2 * r..][..2].copy_from_slice(&(self.softmax)(scores));
                }
            }
        }
        self.sum_values(tile, &tokens, positions, &visible, scratch);
        tokens
    }

    /// Whether the tile's previous head block has the same KV head.
    fn shares_rows(&self, tile: &Tile, block: usize) -> bool {
        block > tile.blocks.start && self.cut.heads(block - 1).0 == self.cut.heads(block).0
    }

    /// Computes the dot products of the tokens' queries with the keys at `positions`.
    fn score_keys(
        &self,
        tile: &Tile,
        tokens: &Range<usize>,
        positions: Positions<'_>,
        scratch: &mut TileScratch<'_>,
    ) {
        let (width, n_queries) = (self.cut.width, positions.n_queries);
        for (at, ids) in positions.l1_ranges() {
            for block in tile.blocks.clone() {
                let (rows, again) =
                    (self.queries(tile, block, tokens), self.shares_rows(tile, block));
                let kv_head = self.cut.heads(block).0;
                let (keys, kernels) = self.k.rows(kv_head, ids, n_queries, again, scratch.widened);
                let scores = &mut scratch.scores[rows.start * SPAN + at.start..];
                let q = &scratch.q[rows.start * width..rows.end * width];
                (kernels.scores)(q, &keys, scores, SPAN);
            }
        }
    }

    /// Sums the V rows at `positions`, weighted by the softmax of the scores.
    fn sum_values(
        &self,
        tile: &Tile,
        tokens: &Range<usize>,
        positions: Positions<'_>,
        visible: &dyn Fn(usize) -> Range<usize>,
        scratch: &mut TileScratch<'_>,
    ) {
        let width = self.cut.value_width;
        for block in tile.blocks.clone() {
            let rows = self.queries(tile, block, tokens);
            scratch.sums[rows.start * width..rows.end * width].fill(0.0);
        }
        let memory = std::mem::take(&mut scratch.widened);
        for (at, ids) in positions.l1_ranges() {
            for block in tile.blocks.clone() {
                let again = self.shares_rows(tile, block);
                let kv_head = self.cut.heads(block).0;
                let (values, kernels) =
                    self.v.rows(kv_head, ids, positions.n_queries, again, memory);
                let rows = self.queries(tile, block, tokens);
                let n_heads = self.cut.heads(block).1.len();
                // The positions of this range that query r attends to.
                let part = |r: usize| {
                    let visible = visible(tokens.start + (r - rows.start) / n_heads);
                    let start = visible.start.clamp(at.start, at.end);
                    start..visible.end.clamp(start, at.end)
                };
                for group in rows.clone().step_by(GROUP) {
                    let group = group..rows.end.min(group + GROUP);
                    self.add_weighted_values(
                        group,
                        &part,
                        &WeightedRows {
                            first: at.start,
                            values: &values,
                            kernel: kernels.add_weighted,
                        },
                        scratch,
                    );
                }
            }
        }
        scratch.widened = memory;
    }

    /// Adds weighted V rows to the sums of a group of queries; `part(r)` are the positions that
    /// query `r` attends to.
    fn add_weighted_values(
        &self,
        group: Range<usize>,
        part: &dyn Fn(usize) -> Range<usize>,
        weighted: &WeightedRows<'_>,
        scratch: &mut TileScratch<'_>,
    ) {
        let WeightedRows { first, values, kernel } = *weighted;
        let width = self.cut.value_width;
        let mut add = |rows: Range<usize>, at: Range<usize>| {
            if !at.is_empty() {
                let at = at.start - first..at.end - first;
                let next = &values.next[values.next.len().min(at.start)..];
                let values = HeadRows { ids: &values.ids[at.clone()], next, ..*values };
                let weights = &scratch.scores[rows.start * SPAN + first + at.start..];
                let sums = &mut scratch.sums[rows.start * width..rows.end * width];
                kernel(weights, SPAN, &values, sums);
            }
        };
        let (earliest, last) = (part(group.start), part(group.end - 1));
        let all = last.start..earliest.end.max(last.start);
        if earliest == last {
            return add(group, all);
        }
        for r in group.clone() {
            add(r..r + 1, part(r).start..all.start.min(part(r).end));
        }
        add(group.clone(), all.clone());
        for r in group {
            add(r..r + 1, part(r).start.max(all.end)..part(r).end);
        }
    }

    fn soft_cap_scores(&self, scores: &mut [f32]) {
        if self.softcap != 0.0 {
            scores.iter_mut().for_each(|s| *s = self.softcap * (*s / self.softcap).tanh());
        }
    }

    /// Adds the slope of `head` to the scores of token `t`, whose first position is `first`.
    fn slope_scores(&self, head: usize, t: usize, first: usize, scores: &mut [f32]) {
        let Some(slopes) = &self.slopes else { return };
        let slope = slopes.as_slice()[head];
        let pos = self.step.view().positions()[t] as usize;
        for (i, score) in scores.iter_mut().enumerate() {
            *score -= slope * pos.abs_diff(first + i) as f32;
        }
    }

    /// Merges one span into a query's running softmax: `state` has the largest score and the sum of
    /// the softmax weights, `y` the weighted values.
    fn merge_softmax(state: &mut [f32; 2], y: &mut [f32], [max, sum]: [f32; 2], values: &[f32]) {
        let new = state[0].max(max);
        let (old, add) = ((state[0] - new).exp(), (max - new).exp());
        *state = [new, state[1] * old + sum * add];
        y.iter_mut().zip(values).for_each(|(y, v)| *y = *y * old + v * add);
    }

    /// Divides `y` by the sum of all softmax weights, including the attention sink.
    fn normalise(&self, [max, sum]: [f32; 2], head: usize, y: &mut [f32]) {
        let factor = match &self.sinks {
            Some(sinks) => {
                let sink = sinks.as_slice()[head];
                let new = max.max(sink);
                let old = (max - new).exp();
                old / (sum * old + (sink - new).exp())
            }
            None => 1.0 / sum,
        };
        y.iter_mut().for_each(|y| *y *= factor);
    }

    fn output(&self, t: usize, head: usize) -> &mut [f32] {
        let d_value = self.cut.d_value;
        self.y.columns(t, head * d_value..(head + 1) * d_value)
    }

    /// Computes one span of one token for some head blocks. Each head block's partial result goes
    /// to its own row of `parts`; `first` is the row of the first head block.
    fn compute_span(&self, tile: &Tile, span: usize, worker: usize, first: usize) {
        let mut scratch = self.tile_scratch(tile, worker);
        self.attend_span(tile, span, &mut scratch);
        for (i, block) in tile.blocks.clone().enumerate() {
            let rows = self.queries(tile, block, &tile.tokens);
            let part = self.parts.row(first + i * self.cut.max_spans);
            let (softmax, sums) = part.split_at_mut(2 * rows.len());
            softmax.copy_from_slice(&scratch.softmax[2 * rows.start..2 * rows.end]);
            let from =
                &scratch.sums[rows.start * self.cut.value_width..rows.end * self.cut.value_width];
            sums[..from.len()].copy_from_slice(from);
        }
    }

    /// Merges the spans of token `t` and one head block; their partial results begin at row `first`
    /// of `parts`.
    fn merge_spans(&self, t: usize, block: usize, first: usize) {
        let (heads, width) = (self.cut.heads(block).1, self.cut.value_width);
        let n_spans = self.spans(&(t..t + 1)).len();
        for (i, head) in heads.clone().enumerate() {
            let (y, mut state) = (self.output(t, head), [f32::NEG_INFINITY, 0.0]);
            y.fill(0.0);
            for part in first..first + n_spans {
                let (softmax, sums) = self.parts.read_row(part).split_at(2 * heads.len());
                let span = [softmax[2 * i], softmax[2 * i + 1]];
                Self::merge_softmax(&mut state, y, span, &sums[i * width..]);
            }
            self.normalise(state, head, y);
        }
    }

    /// Computes all spans of a tile of one head block, and the final values of `y`.
    fn compute_tile(&self, tile: &Tile, worker: usize) {
        let (block, width) = (tile.blocks.start, self.cut.value_width);
        let heads = self.cut.heads(block).1;
        let mut scratch = self.tile_scratch(tile, worker);
        let mut states = [[f32::NEG_INFINITY, 0.0]; MAX_QUERIES];
        for t in tile.tokens.clone() {
            heads.clone().for_each(|head| self.output(t, head).fill(0.0));
        }
        for span in self.spans(&tile.tokens) {
            for t in self.attend_span(tile, span, &mut scratch) {
                let rows = self.queries(tile, block, &(t..t + 1));
                for (r, head) in rows.zip(heads.clone()) {
                    let softmax = [scratch.softmax[2 * r], scratch.softmax[2 * r + 1]];
                    let sums = &scratch.sums[r * width..];
                    Self::merge_softmax(&mut states[r], self.output(t, head), softmax, sums);
                }
            }
        }
        for t in tile.tokens.clone() {
            for (r, head) in self.queries(tile, block, &(t..t + 1)).zip(heads.clone()) {
                self.normalise(states[r], head, self.output(t, head));
            }
        }
    }

    /// Calls `f` for each run of adjacent `tokens` of one sequence.
    fn for_each_run(&self, tokens: Range<usize>, mut f: impl FnMut(Range<usize>)) {
        let view = self.step.view();
        let seqs = &view.seqs()[tokens.clone()];
        let mut first = tokens.start;
        for run in seqs.chunk_by(|a, b| a == b) {
            f(first..first + run.len());
            first += run.len();
        }
    }
}

impl Kernel for Attention {
    fn n_phases(&self) -> usize {
        2
    }

    fn chunks(&self, phase: usize) -> usize {
        let n_tokens = self.step.n_tokens(self.cut.n_tokens);
        match (phase, self.cut.splits_spans()) {
            (0, true) => {
                let n_spans = self.n_spans();
                let per_chunk = self.cut.blocks_per_chunk(n_spans);
                n_tokens * n_spans * self.cut.n_blocks.div_ceil(per_chunk)
            }
            (0, false) => 0,
            _ => n_tokens.div_ceil(self.cut.tile) * self.cut.n_blocks,
        }
    }

    fn run(&self, phase: usize, chunk: usize, worker: usize) {
        let n_blocks = self.cut.n_blocks;
        if phase == 0 {
            // Chunks that read the same cache rows are adjacent.
            let n_spans = self.n_spans();
            let per_chunk = self.cut.blocks_per_chunk(n_spans);
            let n_groups = n_blocks.div_ceil(per_chunk);
            let (at, block_group) = (chunk / n_groups, chunk % n_groups);
            let (t, index) = (at / n_spans, at % n_spans);
            let first = block_group * per_chunk;
            let blocks = first..n_blocks.min(first + per_chunk);
            let tile = Tile { tokens: t..t + 1, blocks };
            let spans = self.spans(&tile.tokens);
            if index < spans.len() {
                let part = (t * n_blocks + first) * self.cut.max_spans + index;
                self.compute_span(&tile, spans.start + index, worker, part);
            }
            return;
        }
        let (at, block) = (chunk / n_blocks, chunk % n_blocks);
        if self.cut.splits_spans() {
            return self.merge_spans(at, block, chunk * self.cut.max_spans);
        }
        let n_tokens = self.step.n_tokens(self.cut.n_tokens);
        let tokens = at * self.cut.tile..n_tokens.min((at + 1) * self.cut.tile);
        let blocks = block..block + 1;
        self.for_each_run(tokens, |tokens| {
            self.compute_tile(&Tile { tokens, blocks: blocks.clone() }, worker);
        });
    }
}
