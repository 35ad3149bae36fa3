//! The paged KV cache and attention over it.

use std::ops::Range;

use super::facts::Work;
use super::{Check, Visit, op, op_map, op_type, op_visit};
use crate::format::Format;
use crate::{KV_BLOCK, KvRows, Operand, Result};

/// Formats of keys and values; the two may differ.
pub const KV_FORMATS: &[Format] = &[
    Format::F32,
    Format::F16,
    Format::BF16,
    Format::Q8_0,
    Format::Q4_0,
    Format::Q4_1,
    Format::Q5_0,
    Format::Q5_1,
    Format::IQ4_NL,
];

/// The positions of its sequence that a token attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Window {
    /// The last `n` positions, including the token's own.
    Sliding(usize),
    /// The positions of the token's chunk: chunks of `n` positions begin at multiples of `n`
    /// (Llama 4).
    Chunk(usize),
    /// The positions at most `n` before or after the token's own, with `usize::MAX` the whole
    /// sequence (encoders). Positions after those of the step do not exist yet, so a step must have
    /// all later positions that its tokens attend to.
    Around(usize),
}

impl Window {
    /// Maximum number of positions.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Window::Sliding(n) | Window::Chunk(n) => n,
            Window::Around(n) => n.saturating_mul(2).saturating_add(1),
        }
    }

    /// The positions that a token at `pos` attends to in a sequence of `len` positions, which has
    /// the token's. Without a window, all up to its own.
    #[must_use]
    pub fn positions(window: Option<Window>, pos: usize, len: usize) -> Range<usize> {
        match window {
            None => 0..pos + 1,
            Some(Window::Sliding(n)) => (pos + 1).saturating_sub(n)..pos + 1,
            Some(Window::Chunk(n)) => pos / n * n..pos + 1,
            Some(Window::Around(n)) => {
                pos.saturating_sub(n)..len.min(pos.saturating_add(n).saturating_add(1))
            }
        }
    }

    /// The window as a word for kernels: 0 for none, the highest bit for chunks, the next one for
    /// [`Window::Around`], then the length.
    #[must_use]
    pub fn word(window: Option<Window>) -> u32 {
        const CHUNK: u32 = 1 << 31;
        const AROUND: u32 = 1 << 30;
        // No position reaches a longer window.
        let length = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).min(AROUND - 1);
        match window {
            None => 0,
            Some(Window::Sliding(n)) => length(n),
            Some(Window::Chunk(n)) => CHUNK | length(n),
            Some(Window::Around(n)) => AROUND | length(n),
        }
    }
}

impl Check {
    /// Checks a cache with `n_cols` values per key row and, if it has value rows, per value row, and
    /// as many key rows as value rows.
    pub(super) fn cache<T: Operand>(&self, cache: &KvRows<T>, n_cols: [usize; 2]) -> Result<()> {
        self.at_least("cache", &cache.k, 1, n_cols[0])?;
        self.format("cache", &cache.k, KV_FORMATS)?;
        let Some(v) = &cache.v else { return Ok(()) };
        self.at_least("cache", v, 1, n_cols[1])?;
        self.format("cache", v, KV_FORMATS)?;
        let n_rows = cache.k.desc().n_rows;
        let expected = format!("{n_rows} rows, as for the keys");
        self.require(n_rows == v.desc().n_rows, "cache", expected, v.desc())
    }
}

op! {
    /// Writes the keys and values of the step's tokens to their cache rows.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `k`, `v` | `[n_tokens, n_head_kv * d_head]`; `k` and `v` may differ in `d_head` | F32 |
    /// | `cache` | `[n_blocks * KV_BLOCK, n_head_kv * d_head]`, with the same `d_head` | each one of [`KV_FORMATS`] |
    ///
    /// Values are rounded by [`Format::quantize_cache`]. Padding tokens write nothing. `v` is present
    /// exactly if the cache has rows of values.
    StoreKv {
        /// Keys, after RoPE.
        read k,
        /// Values; `None` if they are a part of the keys ([`KvRows::v`]).
        maybe v,
        /// Gives each token's cache row.
        batch batch,
        /// The layer's cache.
        cache_out cache,
        ;
    }
}

impl<T: Operand> StoreKv<T> {
    pub(super) fn check(&self) -> Result<()> {
        let c = Check("StoreKv");
        let k = self.k.desc();
        let v_cols = self.v.as_ref().map_or(0, |v| v.desc().n_cols);
        c.f32("k", &self.k, k.n_rows, k.n_cols)?;
        c.maybe_f32("v", &self.v, k.n_rows, v_cols)?;
        let both = self.v.is_some() == self.cache.v.is_some();
        c.require(both, "v", "values exactly if the cache has rows for them", both)?;
        c.cache(&self.cache, [k.n_cols, v_cols])?;
        c.batch(&self.batch, k.n_rows)
    }
}

op! {
    /// Grouped-query attention over the paged cache, causal except with [`Window::Around`].
    ///
    /// `y[t, h] = sum_p softmax_p(scale * q[t, h] . k[p, g]) * v[p, g]` with
    /// `g = h * n_head_kv / n_head`, over the positions `p` of [`Window::positions`]. A soft cap `c`
    /// maps a score `s` to `c * tanh(s / c)`; a slope then subtracts `slope[h] * |p - pos|` (ALiBi,
    /// Press et al.); a sink adds `exp(sink[h])` to the denominator. With `selected`, a token attends
    /// to the positions of its row alone, which are in ascending order, at most its own, and not
    /// followed by others after a [`super::NO_POSITION`]; there is no window and no slope then. An entry
    /// with [`super::CACHE_ROW`] set is a row of the cache, which has more rows than its blocks then, in
    /// place of a position ([`super::BlockList`]).
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `q` | `[n_tokens, n_head * d_head]` | F32 |
    /// | `y` | `[n_tokens, n_head * d_value]` | F32 |
    /// | `cache` | `[n_blocks * KV_BLOCK, n_head_kv * d_head]`; `d_value` for values | each one of [`KV_FORMATS`] |
    /// | `slopes`, `sinks` | `[1, n_head]` | F32 |
    /// | `selected` | `[n_tokens, top_k]` | U32 |
    ///
    /// Keys and values are dequantised from their cache format; queries and attention weights stay
    /// F32. Even with a quantised cache, only the stored keys and values are rounded. A quantised
    /// cache needs heads of whole blocks: a multiple of 32 values. In a cache without rows of values,
    /// a value is the first `d_value` values of its key; such a cache has one KV head.
    ///
    /// Splits over positions have a fixed size, so that the result has the same bits for any
    /// number of threads. Source: Flash attention's online softmax (Dao et al.), paged as in vLLM
    /// (Kwon et al.).
    Attention {
        /// Queries.
        read q,
        /// The cache, which already holds this step's keys and values.
        cache cache,
        /// Positions and block tables.
        batch batch,
        /// Slopes of ALiBi.
        maybe slopes,
        /// Learned attention sinks.
        maybe sinks,
        /// The positions that each token attends to, from [`super::LightningIndexer`]; `None` for all
        /// of its window.
        maybe selected,
        /// Output.
        write y,
        ;
        /// Query heads.
        n_head: usize,
        /// Key and value heads.
        n_head_kv: usize,
        /// Factor on the scores.
        scale: f32,
        /// The positions that a token attends to; `None` for all up to its own.
        window: Option<Window>,
        /// Soft cap of the scores; 0 for none.
        softcap: f32,
    }
}

impl<T: Operand> Attention<T> {
    /// An upper bound: every token attends to all positions of a full block table.
    pub(super) fn work(&self) -> Work {
        let positions = (self.batch.shape.max_blocks * KV_BLOCK) as u64;
        let positions = self.window.map_or(positions, |window| positions.min(window.size() as u64));
        let top_k = self.selected.as_ref().map(|selected| selected.desc().n_cols as u64);
        let positions = top_k.map_or(positions, |top_k| positions.min(top_k));
        let (q, y) = (self.q.desc(), self.y.desc());
        Work::new(q.n_rows, positions.saturating_mul((q.n_cols + y.n_cols) as u64))
    }

    pub(super) fn check(&self) -> Result<()> {
        let c = Check("Attention");
        let q = self.q.desc();
        let grouped =
            self.n_head_kv > 0 && self.n_head.is_multiple_of(self.n_head_kv) && self.n_head > 0;
        c.require(grouped, "n_head", format!("a multiple of {}", self.n_head_kv), self.n_head)?;
        let y = self.y.desc();
        for (name, desc) in [("q", q), ("y", y)] {
            let heads = desc.n_cols.is_multiple_of(self.n_head);
            c.require(heads, name, format!("{} heads", self.n_head), desc)?;
        }
        let [d_head, d_value] = [q, y].map(|desc| desc.n_cols / self.n_head);
        c.f32("q", &self.q, q.n_rows, q.n_cols)?;
        c.f32("y", &self.y, q.n_rows, y.n_cols)?;
        c.cache(&self.cache, [d_head * self.n_head_kv, d_value * self.n_head_kv])?;
        if self.cache.v.is_none() {
            let within = self.n_head_kv == 1 && d_value <= d_head;
            let expected = "one KV head with keys at least as long as the values";
            c.require(within, "cache", expected, format!("{} KV heads", self.n_head_kv))?;
        }
        for (half, d_head) in [(&self.cache.k, d_head), (self.cache.values(), d_value)] {
            let block = half.desc().format.block_values();
            let expected = format!("heads of a multiple of {block} values");
            c.require(d_head.is_multiple_of(block), "cache", expected, half.desc())?;
        }
        c.maybe_f32("slopes", &self.slopes, 1, self.n_head)?;
        c.maybe_f32("sinks", &self.sinks, 1, self.n_head)?;
        let empty = self.window.is_some_and(|window| window.size() == 0);
        c.require(!empty, "window", "at least 1", 0)?;
        if let Some(selected) = &self.selected {
            c.selected(selected, q.n_rows)?;
            let alone = self.window.is_none() && self.slopes.is_none();
            c.require(alone, "selected", "neither a window nor slopes", selected.desc())?;
        }
        c.batch(&self.batch, q.n_rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_contain_the_positions_that_they_promise() {
        let seen = |window| Window::positions(window, 5, 8);
        assert_eq!(seen(None), 0..6);
        assert_eq!(seen(Some(Window::Sliding(2))), 4..6);
        assert_eq!(seen(Some(Window::Chunk(4))), 4..6);
        assert_eq!(seen(Some(Window::Around(0))), 5..6);
        assert_eq!(seen(Some(Window::Around(1))), 4..7);
        assert_eq!(seen(Some(Window::Around(4))), 1..8);
        assert_eq!(seen(Some(Window::Around(usize::MAX))), 0..8);
        let words = [Some(Window::Sliding(usize::MAX)), Some(Window::Around(3))].map(Window::word);
        assert_eq!(words, [(1 << 30) - 1, 1 << 30 | 3]);
    }
}
