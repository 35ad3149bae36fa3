//! Greedy merging of neighbouring symbols, used by both BPE tokenizers. The pair of greatest rank
//! is merged first; of equal ranks, the leftmost. A closure gives the rank and token of a pair.
//!
//! Time is O(n log n) for n symbols, whatever the text, without recursion.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Stands for no token or no neighbour.
pub(super) const NONE: u32 = u32::MAX;

/// Bytes `start..start + len` of the text, and their token.
#[derive(Debug, Clone, Copy)]
pub(super) struct Symbol {
    pub(super) start: u32,
    /// 0 once the symbol has been merged into its left neighbour.
    pub(super) len: u32,
    /// Token id, or [`NONE`].
    pub(super) id: u32,
    prev: u32,
    next: u32,
}

impl Symbol {
    pub(super) fn end(&self) -> u32 {
        self.start + self.len
    }
}

/// A possible merge. The order is by rank, then leftmost first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pair<W> {
    rank: W,
    left: Reverse<u32>,
    right: u32,
    /// Bytes of both halves when the pair was found. If either half grows, the pair is stale.
    len: u32,
    id: u32,
}

/// Scratch memory for merging, reused from word to word.
#[derive(Debug)]
pub(super) struct Merger<W> {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Pair<W>>,
}

impl<W: Ord + Copy> Merger<W> {
    pub(super) fn new() -> Merger<W> {
        Merger { symbols: Vec::new(), heap: BinaryHeap::new() }
    }

    /// Drops the previous word.
    pub(super) fn clear(&mut self) {
        self.symbols.clear();
        self.heap.clear();
    }

    /// Appends the next symbol of the word: `len` bytes of token `id` (or [`NONE`]).
    pub(super) fn push(&mut self, len: u32, id: u32) {
        let i = u32::try_from(self.symbols.len()).expect("the text length fits in u32");
        let start = self.symbols.last().map_or(0, Symbol::end);
        if let Some(last) = self.symbols.last_mut() {
            last.next = i;
        }
        let prev = i.checked_sub(1).unwrap_or(NONE);
        self.symbols.push(Symbol { start, len, id, prev, next: NONE });
    }

    /// Merges until `join(left, right)` finds no more pairs. `join` returns the rank and the merged
    /// token of a pair; the greatest rank is merged first. Returns the remaining symbols, in order.
    pub(super) fn run(
        &mut self,
        join: impl Fn(&Symbol, &Symbol) -> Option<(W, u32)>,
    ) -> impl Iterator<Item = &Symbol> {
        for right in 1..self.symbols.len() as u32 {
            self.push_pair(right - 1, right, &join);
        }
        while let Some(pair) = self.heap.pop() {
            let (left, right) = (pair.left.0 as usize, pair.right as usize);
            let (l, r) = (self.symbols[left], self.symbols[right]);
            if l.len == 0 || r.len == 0 || l.len + r.len != pair.len {
                continue;
            }
            self.symbols[left] = Symbol { len: pair.len, id: pair.id, next: r.next, ..l };
            self.symbols[right].len = 0;
            if r.next != NONE {
                self.symbols[r.next as usize].prev = pair.left.0;
            }
            self.push_pair(l.prev, pair.left.0, &join);
            self.push_pair(pair.left.0, r.next, &join);
        }
        self.symbols.iter().filter(|s| s.len > 0)
    }

    fn push_pair(
        &mut self,
        left: u32,
        right: u32,
        join: &impl Fn(&Symbol, &Symbol) -> Option<(W, u32)>,
    ) {
        if left == NONE || right == NONE {
            return;
        }
        let (l, r) = (&self.symbols[left as usize], &self.symbols[right as usize]);
        if let Some((rank, id)) = join(l, r) {
            let len = l.len + r.len;
            self.heap.push(Pair { rank, left: Reverse(left), right, len, id });
        }
    }
}
