//! The down projection of a feed-forward block: partial sums, which a second shader adds in order.

use hal::op::{Down, ExpertRanges, SparseFfn};
use hal::{Operand, Result, Tensor, TensorDesc};
use lower::{FEW_TOKENS, Scratch, ScratchRange, quantizes_h, takes_q8};

use super::matmul::{ExpertTokens, LastProduct, Product, decode_source, quantize};
use super::operand::{Access, Weight, include, lanes, part_rows};
use crate::buffer::{Span, plain};
use crate::facts::Facts;
use crate::lowering::Lowering;
use crate::shader::Source;

/// Maximum number of slices of rows with separate sums.
const MAX_SLICES: usize = 64;
/// The number of rows of a slice is a multiple of this; the last slice may have fewer.
const SLICE_STEP: usize = 64;
/// Columns, and tokens, per tile of `down_many`.
const TILE: usize = 64;

/// Rows per slice. In decode the number depends on the matrix alone; in prefill it makes enough
/// tiles to fill the device, with up to 8 slices.
pub(super) fn slice(n_rows: usize, n_out: usize, n_tokens: usize, facts: &Facts) -> usize {
    let n_slices = match n_tokens {
        0..=FEW_TOKENS => MAX_SLICES,
        _ => {
            let tiles = n_out.div_ceil(TILE) * n_tokens.div_ceil(TILE);
            (facts.tuning.fill as usize / tiles.max(1)).clamp(1, 8)
        }
    };
    n_rows.div_ceil(n_slices).next_multiple_of(SLICE_STEP).max(SLICE_STEP)
}

/// Scratch memory of the down projection.
#[derive(Clone, Copy, Debug)]
pub(super) struct DownScratch {
    /// Neuron values in Q8 blocks, if the down projection reads them in that format.
    pub(super) q8: ScratchRange,
    partial: ScratchRange,
    n_slices: usize,
    slice: usize,
}

impl DownScratch {
    /// Reserves memory for `n_tokens` at a time.
    pub(super) fn new(
        op: &SparseFfn<TensorDesc>,
        n_tokens: usize,
        facts: &Facts,
        scratch: &mut Scratch,
    ) -> DownScratch {
        let (n_rows, n_out) = (op.up.n_rows, op.y.n_cols);
        let slice = slice(n_rows, n_out, n_tokens, facts);
        let across = op.orientation == Down::AcrossNeurons;
        let n_slices = match (across, &op.experts) {
            (false, _) => n_rows.div_ceil(slice),
            (true, None) => 1,
            (true, Some(_)) => op.down.n_rows.div_ceil(part_rows(&op.down, 1, facts).max(1)),
        };
        let q8 = scratch.q8(if quantizes_h(op) { n_tokens * n_rows } else { 0 });
        DownScratch { q8, partial: scratch.words(n_slices * n_tokens * n_out), n_slices, slice }
    }
}

/// The down projection for some tokens of an op whose neuron values are already computed.
pub(super) struct DownProjection<'a> {
    pub(super) op: &'a SparseFfn<Tensor>,
    pub(super) ranges: DownScratch,
    pub(super) first_token: usize,
    pub(super) n_tokens: usize,
    /// Neuron values, `[n_tokens, n_rows]`.
    pub(super) h: Span,
    /// Number of active neurons per token, `[n_tokens]`.
    pub(super) counts: Span,
    /// Whether the neuron values are in Q8 blocks already, at [`DownScratch::q8`].
    pub(super) is_quantized: bool,
}

impl DownProjection<'_> {
    pub(super) fn lower(&self, out: &mut Lowering<'_>) -> Result<()> {
        match (self.op.orientation, &self.op.experts) {
            (Down::ByNeuron, _) => self.lower_by_neuron(out)?,
            (Down::AcrossNeurons, None) if self.n_tokens <= FEW_TOKENS => {
                self.lower_hits(out)?;
                return self.lower_across_few(out);
            }
            (Down::AcrossNeurons, None) => self.lower_across(out)?,
            (Down::AcrossNeurons, Some(experts)) => self.lower_across_experts(experts, out)?,
        }
        self.lower_hits(out)?;
        self.lower_reduce(out)
    }

    /// Adds to `hits` the number of tokens for which each row was active.
    fn lower_hits(&self, out: &mut Lowering<'_>) -> Result<()> {
        let Some(hits) = &self.op.hits else { return Ok(()) };
        let flat = out.facts().tuning.flat as usize;
        let source = Source::new("ffn_count").set("FLAT", flat);
        let n_rows = self.op.up.desc().n_rows;
        let numbers = [n_rows as u32, self.n_tokens as u32];
        let grid = out.facts().grid(n_rows.div_ceil(flat));
        out.dispatch(&source, &[self.h.clone(), plain(hits)?], &numbers, grid)
    }

    fn lower_by_neuron(&self, out: &mut Lowering<'_>) -> Result<()> {
        let weight = Weight::new(&self.op.down, self.ranges.slice, out)?;
        if self.n_tokens > FEW_TOKENS {
            return DownMany {
                weight: &weight,
                n_out: self.op.y.desc().n_cols,
                n_tokens: self.n_tokens,
                h: self.h.clone(),
                slice: self.ranges.slice,
                experts: None,
                partial: self.ranges.partial.span(out)?,
            }
            .lower(out);
        }
        let (n_out, row) = (self.op.y.desc().n_cols, out.facts().tuning.row as usize);
        let (tables, table_offsets) = weight.transposed_tables(out)?;
        let source = decode_source(Source::new("down_few"), self.n_tokens, row);
        let source = include(source, "down", &weight.desc, Access::Fours)?;
        let tokens_at_once = if self.n_tokens == 1 { 1 } else { 4 };
        for part in &weight.parts {
            let numbers = [
                weight.desc.n_rows,
                part.first,
                part.n,
                weight.first_row + part.first,
                weight.row_words,
                n_out,
                self.n_tokens,
                self.ranges.slice,
            ];
            let mut numbers: Vec<u32> = numbers.iter().map(|&n| n as u32).collect();
            numbers.extend(table_offsets);
            let slices = part.n.div_ceil(self.ranges.slice);
            let grid = [n_out.div_ceil(4 * row), slices, self.n_tokens.div_ceil(tokens_at_once)];
            let spans = [
                part.span.clone(),
                weight.tables(out)?,
                tables.clone(),
                self.h.clone(),
                self.ranges.partial.span(out)?,
            ];
            out.dispatch(&source, &spans, &numbers, grid.map(|n| n as u32))?;
        }
        Ok(())
    }

    /// The neuron values in the format that the down projection reads.
    fn lower_values(&self, out: &mut Lowering<'_>) -> Result<Span> {
        if !takes_q8(self.op.down.desc().format) {
            return Ok(self.h.clone());
        }
        let q = self.ranges.q8.span(out)?;
        if self.is_quantized {
            return Ok(q);
        }
        quantize(&self.h, self.n_tokens * self.op.up.desc().n_rows, &q, None, out)?;
        Ok(q)
    }

    /// Writes y at once: there are no partial sums.
    fn lower_across_few(&self, out: &mut Lowering<'_>) -> Result<()> {
        let (op, x) = (self.op, self.lower_values(out)?);
        let weight = Weight::new(&op.down, 1, out)?;
        let bias = op.bias_down.as_ref().map(plain).transpose()?;
        let last = LastProduct {
            accumulate: op.accumulate,
            counts: self.counts.clone(),
            active: self.active()?,
        };
        let (n_tokens, y) = (self.n_tokens, tokens(&op.y, self.first_token, self.n_tokens)?);
        let (experts, last) = (None, Some(last));
        Product { weight: &weight, x, n_tokens, bias, relu: false, experts, y, last }.lower(out)
    }

    /// The counters of active neurons that carry on from step to step.
    fn active(&self) -> Result<Span> {
        let active = plain(&self.op.active)?;
        Ok(active.part(4 * self.first_token as u64, 4 * self.n_tokens as u64))
    }

    fn lower_across(&self, out: &mut Lowering<'_>) -> Result<()> {
        let x = self.lower_values(out)?;
        let weight = Weight::new(&self.op.down, 1, out)?;
        let y = self.ranges.partial.span(out)?;
        let n_tokens = self.n_tokens;
        let (bias, last) = (None, None);
        Product { weight: &weight, x, n_tokens, bias, relu: false, experts: None, y, last }
            .lower(out)
    }

    /// `down` has one matrix for each expert that has rows; those of unused experts are not read.
    fn lower_across_experts(&self, experts: &ExpertRanges, out: &mut Lowering<'_>) -> Result<()> {
        let x = self.lower_values(out)?;
        let weight = Weight::new(&self.op.down, 1, out)?;
        let (desc, n_out) = (weight.desc, self.op.y.desc().n_cols);
        let filled = experts.rows().enumerate().filter(|(_, rows)| !rows.is_empty());
        let filled: Vec<u32> = filled.map(|(g, _)| g as u32).collect();
        let filled_span = out.constants(&filled)?;
        let row = out.facts().tuning.row as usize;
        let lanes = lanes(&desc, out.facts());
        let source = decode_source(Source::new("across_few"), self.n_tokens, row);
        let source = include(source, "weight", &desc, Access::dots(self.n_tokens, out.facts()))?;
        for (i, part) in weight.parts.iter().enumerate() {
            let numbers = [
                part.first,
                part.n,
                weight.row_words,
                desc.n_cols,
                self.op.up.desc().n_rows,
                n_out,
                filled.len(),
                experts.n_expert(),
                self.n_tokens,
                lanes,
                i,
            ];
            let spans = [
                part.span.clone(),
                weight.tables(out)?,
                x.clone(),
                self.expert_weights(out)?,
                filled_span.clone(),
                self.ranges.partial.span(out)?,
            ];
            let grid = out.facts().grid(n_out.div_ceil(row / lanes));
            out.dispatch(&source, &spans, &numbers.map(|n| n as u32), grid)?;
        }
        Ok(())
    }

    fn lower_reduce(&self, out: &mut Lowering<'_>) -> Result<()> {
        let (op, n_out) = (self.op, self.op.y.desc().n_cols);
        let flat = out.facts().tuning.flat as usize;
        let source = Source::new("down_reduce").set("FLAT", flat);
        let numbers = [
            n_out,
            self.n_tokens,
            self.ranges.n_slices,
            op.experts.as_ref().map_or(0, ExpertRanges::n_expert),
            usize::from(op.bias_down.is_some()),
            usize::from(op.accumulate),
        ];
        let spans = [
            self.ranges.partial.span(out)?,
            out.plain_or_dummy(op.bias_down.as_ref())?,
            self.expert_weights(out)?,
            self.counts.clone(),
            tokens(&op.y, self.first_token, self.n_tokens)?,
            self.active()?,
        ];
        let grid = out.facts().grid((self.n_tokens * n_out.max(1)).div_ceil(flat));
        out.dispatch(&source, &spans, &numbers.map(|n| n as u32), grid)
    }

    fn expert_weights(&self, out: &Lowering<'_>) -> Result<Span> {
        expert_weights(self.op, self.first_token, self.n_tokens, out)
    }
}

/// The tiled product of neuron values and rows of the down projection. Without experts, the rows
/// are split into slices; with experts, each expert is one slice.
pub(super) struct DownMany<'a> {
    pub(super) weight: &'a Weight,
    pub(super) n_out: usize,
    pub(super) n_tokens: usize,
    /// Neuron values: a row per token, or with experts a row per (token, expert) pair.
    pub(super) h: Span,
    pub(super) slice: usize,
    /// The experts, and the maximum number of pairs.
    pub(super) experts: Option<(ExpertTokens, usize)>,
    pub(super) partial: Span,
}

impl DownMany<'_> {
    pub(super) fn lower(&self, out: &mut Lowering<'_>) -> Result<()> {
        let weight = self.weight;
        let (tables, table_offsets) = weight.transposed_tables(out)?;
        let slice_file = if self.experts.is_some() { "lib/down_groups" } else { "lib/down_every" };
        let source = Source::new("down_many").include("which", slice_file);
        let source = include(source, "down", &weight.desc, Access::Fours)?;
        let none = out.dummy();
        for (i, part) in weight.parts.iter().enumerate() {
            let (pairs, rows, n_expert, h_cols, n_pairs) = match &self.experts {
                None => (&none, &none, 0, weight.desc.n_rows, 0),
                Some((g, n)) => (&g.pairs, &g.rows, g.n_expert, g.max_rows, *n),
            };
            // Index of the first slice of partial sums that this part writes.
            let first = if n_expert > 0 { i } else { part.first / self.slice };
            let numbers = [
                h_cols,
                part.first,
                part.n,
                weight.first_row + part.first,
                weight.row_words,
                self.n_out,
                self.n_tokens,
                self.slice,
                first,
            ];
            let mut numbers: Vec<u32> = numbers.iter().map(|&n| n as u32).collect();
            numbers.extend(table_offsets);
            numbers.extend([n_expert as u32, n_pairs as u32]);
            let slices = if n_expert > 0 { n_expert } else { part.n.div_ceil(self.slice) };
            let grid = [self.n_out.div_ceil(TILE), self.n_tokens.div_ceil(TILE), slices];
            let spans = [
                part.span.clone(),
                weight.tables(out)?,
                tables.clone(),
                self.h.clone(),
                pairs.clone(),
                rows.clone(),
                self.partial.clone(),
            ];
            out.dispatch(&source, &spans, &numbers, grid.map(|n| n as u32))?;
        }
        Ok(())
    }
}

/// Rows `first..first + n` of a plain operand.
pub(super) fn tokens(tensor: &Tensor, first: usize, n: usize) -> Result<Span> {
    plain(&tensor.rows(first..first + n))
}

/// The router's weight of each expert for some tokens; a dummy buffer without experts.
pub(super) fn expert_weights(
    op: &SparseFfn<Tensor>,
    first_token: usize,
    n_tokens: usize,
    out: &Lowering<'_>,
) -> Result<Span> {
    match &op.expert_weights {
        Some(weight) => tokens(weight, first_token, n_tokens),
        None => Ok(out.dummy()),
    }
}
