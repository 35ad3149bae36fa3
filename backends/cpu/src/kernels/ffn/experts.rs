//! The rows that each token uses: the rows of its experts, or all rows if the block has no experts.
//!
//! A pair is a token of a tile and an expert that the token uses. Pairs are numbered by expert,
//! then by token, so the pairs of an expert are adjacent. Buffers store a pair's data in the row
//! with the pair's number.

use std::ops::Range;

use hal::op::SparseFfn;
use hal::{Operand, Tensor};

use super::cut::Cut;
use crate::buffer::{ReadView, Scratch, Span, WriteView};
use crate::kernels::Context;

pub(super) struct ExpertSpans {
    first: Span<u32>,
    chunks: Span<u32>,
    slots: Span<u32>,
    experts: Span<u32>,
    pairs: Span<u32>,
}

impl ExpertSpans {
    pub(super) fn new(cut: &Cut, scratch: &mut Scratch) -> ExpertSpans {
        ExpertSpans {
            first: scratch.take(1, cut.n_expert + 1),
            chunks: scratch.take(1, cut.n_expert + 1),
            slots: scratch.take(1, cut.n_pairs()),
            experts: scratch.take(1, cut.n_pairs()),
            pairs: scratch.take(cut.tile, 1 + cut.n_used),
        }
    }
}

/// The experts of an op, and the tokens of the current tile that use each expert.
#[derive(Debug)]
pub(super) struct ExpertPairs {
    /// The first row of each expert, then the end of the last expert.
    starts: Box<[usize]>,
    /// The first slice of each expert, then the number of slices.
    first_slice: Box<[usize]>,
    /// The first row of every slice, then the number of rows.
    slice_starts: Box<[u32]>,
    n_used: usize,
    /// Router weight of each expert for each token, `[n_tokens, n_expert]`; `None` without experts.
    weight: Option<ReadView<f32>>,
    /// The first pair of each expert, then the number of pairs: `[1, n_expert + 1]`.
    first: WriteView<u32>,
    /// The first chunk of each expert, then the number of chunks: `[1, n_expert + 1]`.
    chunks: WriteView<u32>,
    /// The token of each pair, relative to the first token of the tile.
    slots: WriteView<u32>,
    /// The expert of each pair.
    experts: WriteView<u32>,
    /// Number of pairs of each token, then the pairs by expert: `[tile, 1 + n_used]`.
    pairs: WriteView<u32>,
}

/// The work of a chunk: some rows of an expert, for some tokens that use the expert.
#[derive(Clone, Debug)]
pub(super) struct ExpertChunk<'a> {
    pub(super) expert: usize,
    /// Rows of the expert.
    pub(super) rows: Range<usize>,
    /// Pairs of the expert.
    pub(super) pairs: Range<usize>,
    /// Tokens of the pairs, relative to the first token of the tile.
    pub(super) slots: &'a [u32],
    /// Index of this chunk in its expert.
    pub(super) index: usize,
}

impl ExpertPairs {
    pub(super) fn new(
        op: &SparseFfn<Tensor>,
        cut: &Cut,
        spans: &ExpertSpans,
        context: &Context<'_>,
    ) -> ExpertPairs {
        let bind = &context.bind;
        let n_rows = op.up.desc().n_rows;
        let starts: Box<[usize]> = match &op.experts {
            None => [0, n_rows].into(),
            Some(experts) => experts.starts.iter().map(|&start| start as usize).collect(),
        };
        let mut slice_starts = Vec::with_capacity(cut.n_slices + 1);
        let mut first_slice = vec![0];
        for pair in starts.windows(2) {
            slice_starts.extend((pair[0]..pair[1]).step_by(cut.slice).map(|row| row as u32));
            first_slice.push(slice_starts.len());
        }
        slice_starts.push(n_rows as u32);
        ExpertPairs {
            starts,
            first_slice: first_slice.into(),
            slice_starts: slice_starts.into(),
            n_used: cut.n_used,
            weight: op.expert_weights.as_ref().map(|weight| bind.read(weight)),
            first: bind.scratch(&spans.first),
            chunks: bind.scratch(&spans.chunks),
            slots: bind.scratch(&spans.slots),
            experts: bind.scratch(&spans.experts),
            pairs: bind.scratch(&spans.pairs),
        }
    }

    /// Whether a router chooses each token's experts; otherwise every token uses every row.
    pub(super) fn has_router(&self) -> bool {
        self.weight.is_some()
    }

    /// Finds the pairs of a tile. `n_chunks(n_pairs, n_rows)` returns the number of chunks of an
    /// expert.
    pub(super) fn find_pairs(&self, tile: &Range<usize>, n_chunks: impl Fn(usize, usize) -> usize) {
        let (first, next) = (self.first.row(0), self.chunks.row(0));
        first.fill(0);
        for (slot, t) in tile.clone().enumerate() {
            let (count, experts) = self.pairs.row(slot).split_at_mut(1);
            count[0] = 0;
            let mut uses = |g: usize| {
                experts[count[0] as usize] = g as u32;
                first[g + 1] += 1;
                count[0] += 1;
            };
            match &self.weight {
                None => uses(0),
                Some(weight) => {
                    let used = weight.row(t).iter().enumerate().filter(|(_, w)| **w != 0.0);
                    used.take(self.n_used).for_each(|(g, _)| uses(g));
                }
            }
        }
        for g in 1..first.len() {
            first[g] += first[g - 1];
        }
        // Until the chunks are known, `chunks` holds the next pair of each expert.
        next.copy_from_slice(first);
        let (slots, experts) = (self.slots.row(0), self.experts.row(0));
        for slot in 0..tile.len() {
            let (count, pairs) = self.pairs.row(slot).split_at_mut(1);
            for pair in &mut pairs[..count[0] as usize] {
                let next = &mut next[*pair as usize];
                (slots[*next as usize], experts[*next as usize]) = (slot as u32, *pair);
                *pair = *next;
                *next += 1;
            }
        }
        let mut sum = 0;
        for (g, chunk) in next.iter_mut().enumerate() {
            *chunk = sum as u32;
            if let Some(&end) = first.get(g + 1) {
                let n_rows = self.n_rows(g);
                match (end - first[g]) as usize {
                    0 => {}
                    n => sum += n_chunks(n, n_rows),
                }
            }
        }
    }

    pub(super) fn n_chunks(&self) -> usize {
        self.chunks.read_row(0).last().map_or(0, |&n| n as usize)
    }

    pub(super) fn n_pairs(&self) -> usize {
        self.first.read_row(0).last().map_or(0, |&n| n as usize)
    }

    /// The expert and the pairs of a chunk, with all rows of the expert.
    pub(super) fn chunk(&self, chunk: usize) -> ExpertChunk<'_> {
        let chunks = self.chunks.read_row(0);
        let expert = chunks.partition_point(|&first| first as usize <= chunk) - 1;
        let pairs = self.pairs_of_expert(expert);
        ExpertChunk {
            expert,
            index: chunk - chunks[expert] as usize,
            ..self.chunk_of_pairs(expert, pairs)
        }
    }

    /// Some pairs of an expert, with all rows of the expert.
    fn chunk_of_pairs(&self, expert: usize, pairs: Range<usize>) -> ExpertChunk<'_> {
        let slots = &self.slots.read_row(0)[pairs.clone()];
        ExpertChunk {
            expert,
            rows: self.starts[expert]..self.starts[expert + 1],
            pairs,
            slots,
            index: 0,
        }
    }

    fn pairs_of_expert(&self, expert: usize) -> Range<usize> {
        let first = self.first.read_row(0);
        first[expert] as usize..first[expert + 1] as usize
    }

    /// Every expert that any of the tokens `slots` uses, with the pairs of these tokens.
    pub(super) fn chunks_used_by(
        &self,
        slots: Range<usize>,
    ) -> impl Iterator<Item = ExpertChunk<'_>> {
        (0..self.starts.len() - 1).filter_map(move |expert| {
            let pairs = self.pairs_of_expert(expert);
            let all = &self.slots.read_row(0)[pairs.clone()];
            let [from, to] = [slots.start, slots.end]
                .map(|end| pairs.start + all.partition_point(|&slot| (slot as usize) < end));
            (from < to).then(|| self.chunk_of_pairs(expert, from..to))
        })
    }

    /// Splits consecutive pairs by expert.
    pub(super) fn expert_runs(&self, pairs: Range<usize>) -> impl Iterator<Item = ExpertChunk<'_>> {
        let experts = &self.experts.read_row(0)[pairs.clone()];
        let mut first = pairs.start;
        experts.chunk_by(|a, b| a == b).map(move |run| {
            let pairs = first..first + run.len();
            first = pairs.end;
            self.chunk_of_pairs(run[0] as usize, pairs)
        })
    }

    /// The pairs of a token, by expert.
    pub(super) fn pairs_of_token(&self, slot: usize) -> impl Iterator<Item = usize> {
        let (count, pairs) = self.pairs.read_row(slot).split_at(1);
        pairs[..count[0] as usize].iter().map(|&pair| pair as usize)
    }

    pub(super) fn expert(&self, pair: usize) -> usize {
        self.experts.read_row(0)[pair] as usize
    }

    pub(super) fn n_rows(&self, expert: usize) -> usize {
        self.starts[expert + 1] - self.starts[expert]
    }

    pub(super) fn weight(&self, expert: usize, t: usize) -> f32 {
        self.weight.as_ref().map_or(1.0, |weight| weight.row(t)[expert])
    }

    /// Index of an expert's `n`-th slice among the slices of all experts.
    pub(super) fn slice_index(&self, expert: usize, n: usize) -> usize {
        self.first_slice[expert] + n
    }

    pub(super) fn slice_starts(&self) -> &[u32] {
        &self.slice_starts
    }
}
