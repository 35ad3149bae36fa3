//! The second half of a feed-forward block: the down projection, as partial sums that a second
//! kernel adds in order.

use hal::format::Code;
use hal::op::{Down, ExpertRanges, SparseFfn};
use hal::{Operand, Result, Tensor, TensorDesc};
use layout::is_transposed_quantised;
use lower::{FEW_TOKENS, Scratch, ScratchRange, quantizes_h, takes_q8};

use super::BLOCK;
use super::matmul::{ExpertTokens, Product, quantize};
use super::operand::Weight;
use crate::buffer::{Span, plain};
use crate::driver::Arg;
use crate::facts::Facts;
use crate::lowering::{Lowering, ptr, word};
use crate::units::Unit;

/// Maximum number of slices of rows with separate sums.
const MAX_SLICES: usize = 64;
/// The number of rows of a slice is a multiple of this, since `down_few` splits a slice in four.
const SLICE_STEP: usize = 64;
/// Slices per used expert: a multiple of the number of parallel sums in `ffn_reduce`, so that the
/// order of additions does not depend on which other experts are used.
const EXPERT_SLICES: usize = 8;
/// Slices of the experts of a down projection with one row per output.
const ACROSS_SLICES: usize = 4;
/// Maximum number of tokens whose experts are processed at once.
const EXPERT_TOKENS: usize = 4;
/// Columns per block of `down_few`, and columns and tokens per tile of `down_many`.
const FEW_COLUMNS: usize = 512;
const TILE_COLUMNS: usize = 128;
const TILE_TOKENS: usize = 64;
/// Columns per block of `ffn_reduce`.
const REDUCE_COLUMNS: usize = 32;
/// Threads per block of `across_few`, and rows that a set of lanes processes at once.
const ACROSS_BLOCK: u32 = 128;
const ACROSS_ROWS: usize = 2;

/// Rows per slice. In decode the number depends on the matrix alone. In prefill there are up to 8
/// slices, as many as it takes to fill the device.
fn slice(n_rows: usize, n_out: usize, n_tokens: usize, facts: &Facts) -> usize {
    let n_slices = match n_tokens {
        0..=FEW_TOKENS => MAX_SLICES,
        _ => {
            let tiles = n_out.div_ceil(TILE_COLUMNS) * n_tokens.div_ceil(TILE_TOKENS);
            (2 * facts.n_units as usize / tiles.max(1)).clamp(1, 8)
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
    /// Slices per expert, if only used experts are sliced; otherwise 0.
    slices_per_expert: usize,
}

impl DownScratch {
    /// Scratch memory for `n_tokens` at a time.
    pub(super) fn new(
        op: &SparseFfn<TensorDesc>,
        n_tokens: usize,
        facts: &Facts,
        scratch: &mut Scratch,
    ) -> DownScratch {
        let (n_rows, n_out) = (op.up.n_rows, op.y.n_cols);
        let mut slice = slice(n_rows, n_out, n_tokens, facts);
        let (mut n_slices, mut slices_per_expert, mut at_once) =
            (n_rows.div_ceil(slice), 0, n_tokens);
        let across = op.orientation == Down::AcrossNeurons;
        match &op.experts {
            Some(_) if across => n_slices = ACROSS_SLICES,
            None if across => n_slices = 1,
            Some(experts) if n_tokens <= FEW_TOKENS => {
                let most = experts.rows().map(|rows| rows.len()).max().unwrap_or(0);
                at_once = n_tokens.min(EXPERT_TOKENS);
                slices_per_expert = EXPERT_SLICES;
                slice =
                    most.div_ceil(slices_per_expert).next_multiple_of(SLICE_STEP).max(SLICE_STEP);
                n_slices = slices_per_expert * experts.n_expert().min(at_once * experts.n_used);
            }
            None | Some(_) => {}
        }
        let q8 = scratch.q8(if quantizes_h(op) { n_tokens * n_rows } else { 0 });
        DownScratch {
            q8,
            partial: scratch.words(n_slices * at_once * n_out),
            n_slices,
            slice,
            slices_per_expert,
        }
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
    /// The same in Q8 blocks, if the launch that computed them also quantised them.
    pub(super) quantized: Option<Span>,
    /// Number of active neurons per token, `[n_tokens]`.
    pub(super) counts: Span,
    /// First row of each expert; null without experts.
    pub(super) starts: Span,
}

impl DownProjection<'_> {
    pub(super) fn lower(&self, out: &mut Lowering<'_>) -> Result<()> {
        // The last tokens of a prefill step take the prefill path even if they are few, because
        // scratch memory is planned only for that path.
        let many = self.n_tokens > FEW_TOKENS
            || self.op.experts.is_some() && self.ranges.slices_per_expert == 0;
        match (self.op.orientation, &self.op.experts) {
            (Down::ByNeuron, _) if many => self.by_neuron_many(out)?,
            (Down::ByNeuron, Some(_)) if self.n_tokens > EXPERT_TOKENS => {
                return self.in_chunks(out);
            }
            (Down::ByNeuron, _) => self.by_neuron(out)?,
            // A product of a few tokens adds to y itself.
            (Down::AcrossNeurons, None) if !many && self.op.hits.is_none() => {
                return self.across_and_add(out);
            }
            (Down::AcrossNeurons, None) => self.across(out)?,
            (Down::AcrossNeurons, Some(experts)) => self.across_experts(experts, out)?,
        }
        self.reduce(out)
    }

    /// Lowers [`EXPERT_TOKENS`] tokens at a time: more tokens would use more experts, and so more
    /// scratch memory.
    fn in_chunks(&self, out: &mut Lowering<'_>) -> Result<()> {
        let row = 4 * self.op.up.desc().n_rows as u64;
        for first in (0..self.n_tokens).step_by(EXPERT_TOKENS) {
            let n_tokens = EXPERT_TOKENS.min(self.n_tokens - first);
            let (op, ranges, first_token) = (self.op, self.ranges, self.first_token + first);
            let h = self.h.part(row * first as u64, row * n_tokens as u64);
            let counts = self.counts.part(4 * first as u64, 4 * n_tokens as u64);
            let (quantized, starts) = (None, self.starts);
            DownProjection { op, ranges, first_token, n_tokens, h, quantized, counts, starts }
                .lower(out)?;
        }
        Ok(())
    }

    fn by_neuron_many(&self, out: &mut Lowering<'_>) -> Result<()> {
        let weight = &Weight::new(&self.op.down)?;
        let (n_out, slice) = (self.op.y.desc().n_cols, self.ranges.slice);
        let (partial, n_tokens, h) = (self.ranges.partial.span(out)?, self.n_tokens, self.h);
        DownMany { weight, n_out, n_tokens, h, slice, experts: None, partial }.lower(out)
    }

    fn by_neuron(&self, out: &mut Lowering<'_>) -> Result<()> {
        let weight = Weight::new(&self.op.down)?;
        let n_out = self.op.y.desc().n_cols;
        let n_expert = self.op.experts.as_ref().map_or(0, ExpertRanges::n_expert);
        let (tables, table_numbers) = transposed_args(&weight)?;
        let mut args = vec![ptr(weight.span), ptr(weight.tables(out))];
        args.extend(tables);
        args.extend([
            ptr(self.h),
            ptr(self.expert_weights()?),
            ptr(self.starts),
            ptr(self.ranges.partial.span(out)?),
            word(weight.desc.n_rows),
            word(weight.first_row),
            word(weight.row_words),
            word(n_out),
            word(self.n_tokens),
            word(self.ranges.slice),
            word(n_expert),
            word(self.ranges.slices_per_expert),
        ]);
        args.extend(table_numbers);
        let (kernel, at_once) = if self.n_tokens == 1 { ("down_one", 1) } else { ("down_few", 4) };
        let columns = n_out.div_ceil(FEW_COLUMNS);
        let grid = [columns, self.ranges.n_slices, self.n_tokens.div_ceil(at_once)];
        out.launch(Unit::down("down_few", &weight.desc), kernel, grid, BLOCK, &args);
        Ok(())
    }

    /// Returns the neuron values in the format that the down projection reads, after quantising
    /// them if needed.
    fn lower_values(&self, out: &mut Lowering<'_>) -> Result<Span> {
        if !takes_q8(self.op.down.desc().format) {
            return Ok(self.h);
        }
        if let Some(q) = self.quantized {
            return Ok(q);
        }
        let q = self.ranges.q8.span(out)?;
        quantize(self.h, self.n_tokens * self.op.up.desc().n_rows, q, None, out);
        Ok(q)
    }

    fn across(&self, out: &mut Lowering<'_>) -> Result<()> {
        let x = self.lower_values(out)?;
        let (n_tokens, y) = (self.n_tokens, self.ranges.partial.span(out)?);
        Product::new(&Weight::new(&self.op.down)?, x, n_tokens, y).lower(out);
        Ok(())
    }

    /// The product with its bias and, if the op accumulates, what y already has. Also adds the
    /// numbers of active neurons.
    fn across_and_add(&self, out: &mut Lowering<'_>) -> Result<()> {
        let (op, x, n_tokens) = (self.op, self.lower_values(out)?, self.n_tokens);
        let weight = Weight::new(&op.down)?;
        let y = tokens(&op.y, self.first_token, n_tokens)?;
        let product = Product {
            bias: out.plain_or_null(op.bias_down.as_ref())?,
            add: op.accumulate,
            counted: Some([self.counts, self.active()?]),
            ..Product::new(&weight, x, n_tokens, y)
        };
        product.lower(out);
        Ok(())
    }

    /// Where the op adds the number of active neurons of each token.
    fn active(&self) -> Result<Span> {
        let (first, n) = (self.first_token as u64, self.n_tokens as u64);
        Ok(plain(&self.op.active)?.part(4 * first, 4 * n))
    }

    /// Multiplies with a matrix per expert; matrices of unused experts are not read.
    fn across_experts(&self, experts: &ExpertRanges, out: &mut Lowering<'_>) -> Result<()> {
        let x = self.lower_values(out)?;
        let weight = Weight::new(&self.op.down)?;
        let (desc, n_out) = (weight.desc, self.op.y.desc().n_cols);
        let filled = experts.rows().enumerate().filter(|(_, rows)| !rows.is_empty());
        let filled: Vec<u32> = filled.map(|(g, _)| g as u32).collect();
        let lanes = weight.lanes();
        let args = [
            ptr(weight.span),
            ptr(weight.tables(out)),
            ptr(x),
            ptr(self.expert_weights()?),
            ptr(out.constants(&filled)?),
            ptr(self.ranges.partial.span(out)?),
            word(weight.row_words),
            word(desc.n_cols),
            word(n_out),
            word(filled.len()),
            word(experts.n_expert()),
            word(self.n_tokens),
            word(lanes),
        ];
        let kernel = if self.n_tokens == 1 { "across_one" } else { "across_few" };
        let n_blocks = n_out.div_ceil(ACROSS_ROWS * (ACROSS_BLOCK as usize / lanes));
        let grid = [n_blocks, self.ranges.n_slices, 1];
        out.launch(Unit::weight("across_few", desc.format), kernel, grid, ACROSS_BLOCK, &args);
        Ok(())
    }

    fn reduce(&self, out: &mut Lowering<'_>) -> Result<()> {
        let (op, n_out) = (self.op, self.op.y.desc().n_cols);
        let args = [
            ptr(self.ranges.partial.span(out)?),
            ptr(out.plain_or_null(op.bias_down.as_ref())?),
            ptr(self.expert_weights()?),
            ptr(self.counts),
            ptr(self.h),
            ptr(tokens(&op.y, self.first_token, self.n_tokens)?),
            ptr(self.active()?),
            ptr(out.plain_or_null(op.hits.as_ref())?),
            word(n_out),
            word(self.n_tokens),
            word(self.ranges.n_slices),
            word(op.experts.as_ref().map_or(0, ExpertRanges::n_expert)),
            word(op.up.desc().n_rows),
            word(usize::from(op.accumulate)),
        ];
        let grid = [n_out.div_ceil(REDUCE_COLUMNS), self.n_tokens, 1];
        out.launch(Unit::plain("ffn"), "ffn_reduce", grid, BLOCK, &args);
        Ok(())
    }

    fn expert_weights(&self) -> Result<Span> {
        expert_weights(self.op, self.first_token, self.n_tokens)
    }
}

/// Kernel arguments of a transposed matrix: pointers to group numbers, scales and minimums; then
/// words per table row, the offset subtracted from codes, and whether scales are F32 (else F16).
fn transposed_args(weight: &Weight) -> Result<([Arg; 3], [Arg; 3])> {
    let tables = weight.transposed_tables()?;
    let quants = weight.desc.format.quants().filter(|_| is_transposed_quantised(&weight.desc));
    let (mins, offset, wide) = match quants {
        None => (false, 0, false),
        Some(quants) => {
            let offset = match quants.code {
                Code::Nibble { offset } => offset,
                Code::Byte => 0,
            };
            (quants.has_min, offset, quants.wide_scales)
        }
    };
    let mins = if mins { tables.mins } else { Span::NONE };
    let pointers = [ptr(tables.groups), ptr(tables.scales), ptr(mins)];
    let numbers = [word(tables.row_words), Arg::U32(offset as u32), Arg::U32(u32::from(wide))];
    Ok((pointers, numbers))
}

/// The tiled product of neuron values and rows of the down projection. Without experts, the rows
/// are cut into slices; with experts, each expert is one slice.
pub(super) struct DownMany<'a> {
    pub(super) weight: &'a Weight,
    pub(super) n_out: usize,
    pub(super) n_tokens: usize,
    /// Neuron values: a row per token, or with experts a row per (token, expert) pair.
    pub(super) h: Span,
    pub(super) slice: usize,
    pub(super) experts: Option<ExpertTokens>,
    pub(super) partial: Span,
}

impl DownMany<'_> {
    pub(super) fn lower(&self, out: &mut Lowering<'_>) -> Result<()> {
        let weight = self.weight;
        let n_rows = weight.desc.n_rows;
        let (tables, table_numbers) = transposed_args(weight)?;
        let (pairs, rows, n_expert, h_cols) = match &self.experts {
            None => (Span::NONE, Span::NONE, 0, n_rows),
            Some(g) => (g.pairs, g.rows, g.n_expert, g.max_rows),
        };
        let mut args = vec![ptr(weight.span), ptr(weight.tables(out))];
        args.extend(tables);
        args.extend([
            ptr(self.h),
            ptr(pairs),
            ptr(rows),
            ptr(self.partial),
            word(n_rows),
            word(weight.first_row),
            word(weight.row_words),
            word(self.n_out),
            word(self.n_tokens),
            word(self.slice),
            word(h_cols),
            word(n_expert),
        ]);
        args.extend(table_numbers);
        let slices = if n_expert > 0 { n_expert } else { n_rows.div_ceil(self.slice) };
        let tiles =
            [self.n_out.div_ceil(TILE_COLUMNS), self.n_tokens.div_ceil(TILE_TOKENS), slices];
        let file = if out.facts().mma_floats { "down_many" } else { "down_plain" };
        out.launch(Unit::down(file, &weight.desc), "down_many", tiles, BLOCK, &args);
        Ok(())
    }
}

/// Rows `first..first + n` of a plain operand.
pub(super) fn tokens(tensor: &Tensor, first: usize, n: usize) -> Result<Span> {
    plain(&tensor.rows(first..first + n))
}

/// The router's weight of each expert for some tokens; null without experts.
pub(super) fn expert_weights(
    op: &SparseFfn<Tensor>,
    first_token: usize,
    n_tokens: usize,
) -> Result<Span> {
    match &op.expert_weights {
        Some(weight) => tokens(weight, first_token, n_tokens),
        None => Ok(Span::NONE),
    }
}
