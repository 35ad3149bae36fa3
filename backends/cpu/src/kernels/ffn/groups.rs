//! The rows that a token uses: those of its groups, or all rows as one group.
//!
//! A pair is a token of a tile and a group that it uses. Pairs are numbered by group, then by
//! token, so that the pairs of a group are adjacent; data of a pair is in the row of its number.

use std::ops::Range;

use hal::op::SparseFfn;
use hal::{Operand, Tensor};

use super::cut::Cut;
use crate::buffer::{Reads, Scratch, Span, Writes};
use crate::kernels::Context;

/// Workspace.
pub(super) struct GroupSpans {
    first: Span<u32>,
    chunks: Span<u32>,
    slots: Span<u32>,
    of: Span<u32>,
    pairs: Span<u32>,
}

impl GroupSpans {
    pub(super) fn new(cut: &Cut, scratch: &mut Scratch) -> GroupSpans {
        GroupSpans {
            first: scratch.take(1, cut.n_group + 1),
            chunks: scratch.take(1, cut.n_group + 1),
            slots: scratch.take(1, cut.n_pairs()),
            of: scratch.take(1, cut.n_pairs()),
            pairs: scratch.take(cut.tile, 1 + cut.n_used),
        }
    }
}

/// The groups of an op, and the tokens that use them in a tile.
#[derive(Debug)]
pub(super) struct Groups {
    /// Start of each group's rows, then the end of the last.
    starts: Box<[usize]>,
    /// The first slice of each group, then the number of slices.
    first_slice: Box<[usize]>,
    /// The first row of every slice, then the end.
    slice_starts: Box<[u32]>,
    n_used: usize,
    /// `[n_tokens, n_group]`; `None` without groups.
    weight: Option<Reads<f32>>,
    /// The first pair of each group, then the number of pairs: `[1, n_group + 1]`.
    first: Writes<u32>,
    /// The first chunk of each group, then the number of chunks: `[1, n_group + 1]`.
    chunks: Writes<u32>,
    /// The token of each pair, relative to the tile's first.
    slots: Writes<u32>,
    /// The group of each pair.
    of: Writes<u32>,
    /// Number of pairs of each token, then the pairs by group: `[tile, 1 + n_used]`.
    pairs: Writes<u32>,
}

/// The work of a chunk: some rows of a group for the tokens that use it.
#[derive(Clone, Debug)]
pub(super) struct GroupChunk<'a> {
    pub(super) group: usize,
    /// Rows of the group.
    pub(super) rows: Range<usize>,
    /// Its pairs.
    pub(super) pairs: Range<usize>,
    /// Their tokens, relative to the tile's first.
    pub(super) slots: &'a [u32],
    /// Index of this chunk in its group.
    pub(super) index: usize,
}

impl Groups {
    pub(super) fn new(
        op: &SparseFfn<Tensor>,
        cut: &Cut,
        spans: &GroupSpans,
        context: &Context<'_>,
    ) -> Groups {
        let bind = &context.bind;
        let n_rows = op.up.desc().n_rows;
        let starts: Box<[usize]> = match &op.groups {
            None => [0, n_rows].into(),
            Some(groups) => groups.starts.iter().map(|&start| start as usize).collect(),
        };
        let mut slice_starts = Vec::with_capacity(cut.n_slices + 1);
        let mut first_slice = vec![0];
        for pair in starts.windows(2) {
            slice_starts.extend((pair[0]..pair[1]).step_by(cut.slice).map(|row| row as u32));
            first_slice.push(slice_starts.len());
        }
        slice_starts.push(n_rows as u32);
        Groups {
            starts,
            first_slice: first_slice.into(),
            slice_starts: slice_starts.into(),
            n_used: cut.n_used,
            weight: op.group_weight.as_ref().map(|weight| bind.read(weight)),
            first: bind.scratch(&spans.first),
            chunks: bind.scratch(&spans.chunks),
            slots: bind.scratch(&spans.slots),
            of: bind.scratch(&spans.of),
            pairs: bind.scratch(&spans.pairs),
        }
    }

    /// Whether tokens use groups; otherwise every token uses every row.
    pub(super) fn are_chosen(&self) -> bool {
        self.weight.is_some()
    }

    /// Finds the pairs of a tile; `n_chunks` gives the number of chunks for a number of pairs and
    /// rows of a group.
    pub(super) fn index(&self, tile: &Range<usize>, n_chunks: impl Fn(usize, usize) -> usize) {
        let (first, next) = (self.first.row(0), self.chunks.row(0));
        first.fill(0);
        for (slot, t) in tile.clone().enumerate() {
            let (count, groups) = self.pairs.row(slot).split_at_mut(1);
            count[0] = 0;
            let mut uses = |g: usize| {
                groups[count[0] as usize] = g as u32;
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
        // Used for the next pair of each group until the chunks are known.
        next.copy_from_slice(first);
        let (slots, of) = (self.slots.row(0), self.of.row(0));
        for slot in 0..tile.len() {
            let (count, pairs) = self.pairs.row(slot).split_at_mut(1);
            for pair in &mut pairs[..count[0] as usize] {
                let next = &mut next[*pair as usize];
                (slots[*next as usize], of[*next as usize]) = (slot as u32, *pair);
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

    /// Chunks of all groups.
    pub(super) fn n_chunks(&self) -> usize {
        self.chunks.reads_row(0).last().map_or(0, |&n| n as usize)
    }

    /// Pairs of all groups.
    pub(super) fn n_pairs(&self) -> usize {
        self.first.reads_row(0).last().map_or(0, |&n| n as usize)
    }

    /// The group that a chunk belongs to.
    pub(super) fn chunk(&self, chunk: usize) -> GroupChunk<'_> {
        let chunks = self.chunks.reads_row(0);
        let group = chunks.partition_point(|&first| first as usize <= chunk) - 1;
        let pairs = self.pairs_of(group);
        GroupChunk { group, index: chunk - chunks[group] as usize, ..self.of_pairs(group, pairs) }
    }

    /// Some pairs of a group.
    fn of_pairs(&self, group: usize, pairs: Range<usize>) -> GroupChunk<'_> {
        let slots = &self.slots.reads_row(0)[pairs.clone()];
        GroupChunk {
            group,
            rows: self.starts[group]..self.starts[group + 1],
            pairs,
            slots,
            index: 0,
        }
    }

    fn pairs_of(&self, group: usize) -> Range<usize> {
        let first = self.first.reads_row(0);
        first[group] as usize..first[group + 1] as usize
    }

    /// Every group that one of the tokens `slots` uses, with their pairs.
    pub(super) fn used_by(&self, slots: Range<usize>) -> impl Iterator<Item = GroupChunk<'_>> {
        (0..self.starts.len() - 1).filter_map(move |group| {
            let pairs = self.pairs_of(group);
            let all = &self.slots.reads_row(0)[pairs.clone()];
            let [from, to] = [slots.start, slots.end]
                .map(|end| pairs.start + all.partition_point(|&slot| (slot as usize) < end));
            (from < to).then(|| self.of_pairs(group, from..to))
        })
    }

    /// Consecutive pairs, group by group.
    pub(super) fn runs(&self, pairs: Range<usize>) -> impl Iterator<Item = GroupChunk<'_>> {
        let of = &self.of.reads_row(0)[pairs.clone()];
        let mut first = pairs.start;
        of.chunk_by(|a, b| a == b).map(move |run| {
            let pairs = first..first + run.len();
            first = pairs.end;
            self.of_pairs(run[0] as usize, pairs)
        })
    }

    /// The pairs of a token, by group.
    pub(super) fn of_token(&self, slot: usize) -> impl Iterator<Item = usize> {
        let (count, pairs) = self.pairs.reads_row(slot).split_at(1);
        pairs[..count[0] as usize].iter().map(|&pair| pair as usize)
    }

    /// The group of a pair.
    pub(super) fn group(&self, pair: usize) -> usize {
        self.of.reads_row(0)[pair] as usize
    }

    /// Rows of a group.
    pub(super) fn n_rows(&self, group: usize) -> usize {
        self.starts[group + 1] - self.starts[group]
    }

    /// The weight of a group for token `t`.
    pub(super) fn weight(&self, group: usize, t: usize) -> f32 {
        self.weight.as_ref().map_or(1.0, |weight| weight.row(t)[group])
    }

    /// The number of a group's `n`-th slice.
    pub(super) fn slice(&self, group: usize, n: usize) -> usize {
        self.first_slice[group] + n
    }

    /// The first row of every slice, then the end.
    pub(super) fn slice_starts(&self) -> &[u32] {
        &self.slice_starts
    }
}
