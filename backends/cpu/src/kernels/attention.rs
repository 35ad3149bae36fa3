//! Attention over the paged cache: softmax over fixed spans of positions, merged in their order.
//!
//! A block is up to four query heads that share a key head, so that a cache row is read once for all of them.
//! Few tokens: one chunk per token, block and span, then a merge (flash decoding). Many: a chunk walks the spans
//! of its token and block itself. Both ways do the same arithmetic.

use std::ops::Range;

use hal::format::{Activation, Format};
use hal::op;
use hal::{BatchShape, KV_BLOCK, Operand, Tensor};

use super::operand::{Step, Weight, maybe};
use super::{Context, Kernel};
use crate::buffer::{Reads, Scratch, Span, Writes};
use crate::simd::{ActView, AxpyFn};

/// Positions per span.
const SPAN: usize = 256;
/// Query heads of a block.
const HEADS: usize = 4;
/// Programs of up to so many tokens hand out spans.
const FEW_TOKENS: usize = 4;

/// How the heads of an op are cut into blocks.
#[derive(Clone, Copy, Debug)]
struct Blocks {
    /// Query heads per key head.
    n_shared: usize,
    /// Blocks per key head.
    per_group: usize,
    /// Blocks of a token.
    n: usize,
}

impl Blocks {
    fn new(n_head: usize, n_head_kv: usize) -> Blocks {
        let n_shared = n_head / n_head_kv;
        let per_group = n_shared.div_ceil(HEADS);
        Blocks { n_shared, per_group, n: n_head_kv * per_group }
    }

    /// The key head of a block, and its query heads.
    fn heads(&self, block: usize) -> (usize, Range<usize>) {
        let (group, part) = (block / self.per_group, block % self.per_group);
        let first = group * self.n_shared;
        let end = first + self.n_shared;
        (group, first + part * HEADS..end.min(first + (part + 1) * HEADS))
    }
}

fn max_spans(shape: BatchShape) -> usize {
    (shape.max_blocks * KV_BLOCK).div_ceil(SPAN)
}

/// Workspace of the op: unmerged spans, `HEADS` heads a row, each `[max, sum, weighted values]`.
pub(super) struct Spans {
    parts: Span<f32>,
}

impl Spans {
    pub(super) fn new<T: Operand>(
        op: &op::Attention<T>,
        n_threads: usize,
        scratch: &mut Scratch,
    ) -> Spans {
        let q = op.q.desc();
        let row = HEADS * (2 + q.n_cols / op.n_head);
        let rows = match q.n_rows <= FEW_TOKENS {
            true => q.n_rows * Blocks::new(op.n_head, op.n_head_kv).n * max_spans(op.batch.shape),
            false => n_threads,
        };
        Spans { parts: scratch.take(rows, row) }
    }
}

#[derive(Debug)]
pub(super) struct Attention {
    q: Reads<f32>,
    k: Weight,
    v: Reads<u8>,
    add_v: AxpyFn,
    k_head_bytes: usize,
    v_head_bytes: usize,
    step: Step,
    sinks: Option<Reads<f32>>,
    y: Writes<f32>,
    parts: Writes<f32>,
    blocks: Blocks,
    max_spans: usize,
    d_head: usize,
    scale: f32,
    window: Option<usize>,
    softcap: f32,
}

impl Attention {
    pub(super) fn new(op: &op::Attention<Tensor>, context: &Context<'_>) -> Attention {
        let spans = Spans::new(op, context.n_threads, &mut Scratch::default());
        let d_head = op.q.desc().n_cols / op.n_head;
        let bytes = |format: Format| d_head * format.block_bytes();
        Attention {
            q: context.bind.read(&op.q),
            k: Weight::new(&op.cache.k, context),
            v: context.bind.read(&op.cache.v),
            add_v: context.simd.axpy(op.cache.v.desc().format),
            k_head_bytes: bytes(op.cache.k.desc().format),
            v_head_bytes: bytes(op.cache.v.desc().format),
            step: Step::new(&op.batch, context),
            sinks: maybe(op.sinks.as_ref(), context),
            y: context.bind.write(&op.y),
            parts: context.bind.scratch(&spans.parts),
            blocks: Blocks::new(op.n_head, op.n_head_kv),
            max_spans: max_spans(op.batch.shape),
            d_head,
            scale: op.scale,
            window: op.window,
            softcap: op.softcap,
        }
    }

    fn hands_out_spans(&self) -> bool {
        self.q.n_rows() <= FEW_TOKENS
    }

    /// Positions that token `t` sees.
    fn seen(&self, t: usize) -> Range<usize> {
        let end = self.step.view().positions()[t] as usize + 1;
        self.window.map_or(0, |window| end.saturating_sub(window))..end
    }

    /// Spans that hold some of these positions.
    fn spans(&self, seen: &Range<usize>) -> Range<usize> {
        seen.start / SPAN..seen.end.div_ceil(SPAN)
    }

    /// The longest list of spans of the step's tokens.
    fn n_spans(&self) -> usize {
        let n_tokens = self.step.n_tokens(self.q.n_rows());
        (0..n_tokens).map(|t| self.spans(&self.seen(t)).len()).max().unwrap_or(0)
    }

    /// Softmax over one span for one block, into `part`.
    fn span(&self, t: usize, block: usize, span: usize, part: &mut [f32]) {
        let (group, heads) = self.blocks.heads(block);
        let seen = self.seen(t);
        let positions = seen.start.max(span * SPAN)..seen.end.min((span + 1) * SPAN);
        let (view, n) = (self.step.view(), positions.len());
        let seq = view.seqs()[t] as usize;
        let mut rows = [0u32; SPAN];
        for (row, p) in rows.iter_mut().zip(positions) {
            *row = view.kv_row(seq, p) as u32;
        }
        let q = self.q.row(t);
        let last = heads.len() - 1;
        let queries: [ActView<'_>; HEADS] = std::array::from_fn(|h| {
            ActView::F32(&q[(heads.start + h.min(last)) * self.d_head..][..self.d_head])
        });
        let mut scores = [[0.0f32; SPAN]; HEADS];
        let k_at = group * self.k_head_bytes;
        for (i, &row) in rows[..n].iter().enumerate() {
            let k = &self.k.rows.row(row as usize)[k_at..][..self.k_head_bytes];
            let products = self.k.times_row(k, &queries[..heads.len()]);
            for (scores, product) in scores.iter_mut().zip(products).take(heads.len()) {
                scores[i] = self.score(product);
            }
        }
        let v_at = group * self.v_head_bytes;
        let parts = part.chunks_exact_mut(2 + self.d_head).zip(&mut scores);
        for (part, scores) in parts.take(heads.len()) {
            let (ml, acc) = part.split_at_mut(2);
            let scores = &mut scores[..n];
            let max = scores.iter().fold(f32::NEG_INFINITY, |max, &s| max.max(s));
            scores.iter_mut().for_each(|s| *s = (*s - max).exp());
            ml.copy_from_slice(&[max, scores.iter().sum()]);
            acc.fill(0.0);
            for (&row, &weight) in rows[..n].iter().zip(&*scores) {
                let v = &self.v.row(row as usize)[v_at..][..self.v_head_bytes];
                (self.add_v)(weight, v, acc);
            }
        }
    }

    fn score(&self, product: f32) -> f32 {
        let score = self.scale * product;
        match self.softcap == 0.0 {
            true => score,
            false => self.softcap * (score / self.softcap).tanh(),
        }
    }

    /// Merges the spans of a block in order into its part of y; `part` gives the span of an index.
    fn merge<'a>(&self, t: usize, block: usize, mut part: impl FnMut(usize) -> &'a [f32]) {
        let (_, heads) = self.blocks.heads(block);
        let cols = heads.start * self.d_head..heads.end * self.d_head;
        let y = self.y.part(t, cols);
        y.fill(0.0);
        let (mut max, mut sum) = ([f32::NEG_INFINITY; HEADS], [0.0f32; HEADS]);
        let spans = self.spans(&self.seen(t));
        for (index, _) in spans.enumerate() {
            let parts = part(index).chunks_exact(2 + self.d_head);
            for ((h, y), part) in y.chunks_exact_mut(self.d_head).enumerate().zip(parts) {
                let new = max[h].max(part[0]);
                let (old, add) = ((max[h] - new).exp(), (part[0] - new).exp());
                sum[h] = sum[h] * old + part[1] * add;
                y.iter_mut().zip(&part[2..]).for_each(|(y, v)| *y = *y * old + v * add);
                max[h] = new;
            }
        }
        for (h, y) in y.chunks_exact_mut(self.d_head).enumerate() {
            let factor = match &self.sinks {
                Some(sinks) => {
                    let sink = sinks.all()[heads.start + h];
                    let new = max[h].max(sink);
                    let old = (max[h] - new).exp();
                    old / (sum[h] * old + (sink - new).exp())
                }
                None => 1.0 / sum[h],
            };
            y.iter_mut().for_each(|y| *y *= factor);
        }
    }
}

impl Kernel for Attention {
    fn n_phases(&self) -> usize {
        2
    }

    fn chunks(&self, phase: usize) -> usize {
        let blocks = self.step.n_tokens(self.q.n_rows()) * self.blocks.n;
        match (phase, self.hands_out_spans()) {
            (0, true) => blocks * self.n_spans(),
            (0, false) => 0,
            _ => blocks,
        }
    }

    fn run(&self, phase: usize, chunk: usize, worker: usize) {
        if phase == 0 {
            let n_spans = self.n_spans();
            let (block, index) = (chunk / n_spans, chunk % n_spans);
            let t = block / self.blocks.n;
            let spans = self.spans(&self.seen(t));
            if index < spans.len() {
                let part = self.parts.row(block * self.max_spans + index);
                self.span(t, block % self.blocks.n, spans.start + index, part);
            }
            return;
        }
        let (t, block) = (chunk / self.blocks.n, chunk % self.blocks.n);
        if self.hands_out_spans() {
            self.merge(t, block, |index| self.parts.reads_row(chunk * self.max_spans + index));
        } else {
            let first = self.spans(&self.seen(t)).start;
            self.merge(t, block, |index| {
                let part = self.parts.row(worker);
                self.span(t, block, first + index, part);
                part
            });
        }
    }
}

/// The cache's formats meet plain floats.
const _: () = assert!(matches!(Format::F16.activation(), Activation::F32));
