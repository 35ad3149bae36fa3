//! Feed-forward blocks with experts in prefill: tiles over the tokens that use an expert.

use hal::op::{Down, ExpertRanges, SparseFfn};
use hal::{Operand, Result, Tensor, TensorDesc};
use lower::{ExpertScratch, ExpertSizes, Scratch, ScratchRange, quantizes_x, takes_q8};

use super::BLOCK;
use super::down::{DownMany, expert_weights, tokens};
use super::ffn::rule_args;
use super::matmul::{ExpertTokens, Product, quantize};
use super::operand::Weight;
use crate::buffer::{Span, plain};
use crate::lowering::{Lowering, ptr, word};
use crate::units::Unit;

/// Rows per thread of `experts_hidden`.
const ROWS_EACH: usize = 4;

/// Scratch memory for the pairs of a token and an expert.
pub(super) struct ExpertPairs {
    /// Index of each expert's first pair, then one word per pair (`kernels-cuda/experts.cu`).
    pairs: ScratchRange,
    token_pairs: ScratchRange,
    flags: ScratchRange,
}

impl ExpertPairs {
    pub(super) fn new(
        op: &SparseFfn<TensorDesc>,
        experts: &ExpertRanges,
        scratch: &mut Scratch,
    ) -> ExpertPairs {
        let sizes = ExpertSizes::new(op.x.n_rows, experts);
        ExpertPairs {
            pairs: scratch.words(sizes.n_expert + 1 + sizes.n_pairs),
            token_pairs: scratch.words(sizes.n_pairs),
            flags: scratch.words(sizes.n_tokens * sizes.n_expert),
        }
    }
}

pub(super) fn lower_experts(
    op: &SparseFfn<Tensor>,
    experts: &ExpertRanges,
    (ranges, lists): (&ExpertScratch, &ExpertPairs),
    starts: Span,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let n_tokens = op.x.desc().n_rows;
    let rows = experts.rows().flat_map(|rows| [rows.start as u32, rows.end as u32]);
    let rows = out.constants(&rows.collect::<Vec<u32>>())?;
    let n_out = op.y.desc().n_cols;
    let mut end = 0;
    let outputs = experts.rows().flat_map(|rows| {
        let begin = end;
        end += if rows.is_empty() { 0 } else { n_out as u32 };
        [begin, end]
    });
    let outputs = match op.orientation {
        Down::ByNeuron => Span::NONE,
        Down::AcrossNeurons => out.constants(&outputs.collect::<Vec<u32>>())?,
    };
    for first_token in (0..n_tokens).step_by(ExpertSizes::chunk_tokens(experts)) {
        let sizes = ExpertSizes::new(n_tokens - first_token, experts);
        Experts { op, ranges, lists, starts, rows, outputs, sizes, first_token }.lower(out)?;
    }
    Ok(())
}

struct Experts<'a> {
    op: &'a SparseFfn<Tensor>,
    ranges: &'a ExpertScratch,
    lists: &'a ExpertPairs,
    starts: Span,
    /// Begin and end of each expert's rows.
    rows: Span,
    /// Begin and end of each expert's rows of the down projection, if that has one row per output.
    outputs: Span,
    sizes: ExpertSizes,
    first_token: usize,
}

impl Experts<'_> {
    fn lower(&self, out: &mut Lowering<'_>) -> Result<()> {
        let (op, n_tokens) = (self.op, self.sizes.n_tokens);
        self.pairs(out)?;
        let x = tokens(&op.x, self.first_token, n_tokens)?;
        let gate_format = op.gate.as_ref().map(|gate| gate.desc().format);
        let q8 = self.ranges.q8.span(out)?;
        if quantizes_x(gate_format, op.up.desc().format) {
            quantize(x, n_tokens * op.x.desc().n_cols, q8, None, out);
        }
        let tests = self.ranges.tests.span(out)?;
        let ups = match &op.gate {
            Some(gate) => {
                let ups = self.ranges.ups.span(out)?;
                self.product(gate, &op.bias_gate, [x, q8], tests, out)?;
                self.product(&op.up, &op.bias_up, [x, q8], ups, out)?;
                ups
            }
            None => {
                self.product(&op.up, &op.bias_up, [x, q8], tests, out)?;
                tests
            }
        };
        self.lower_hidden(tests, ups, out)?;
        match op.orientation {
            Down::ByNeuron => self.by_neuron(tests, out)?,
            Down::AcrossNeurons => self.lower_across(tests, out)?,
        }
        self.reduce(out)
    }

    /// One word per pair, after the indices of the experts' first pairs.
    fn pair_words(&self, out: &Lowering<'_>) -> Result<Span> {
        let pairs = self.lists.pairs.span(out)?;
        let skipped = 4 * (self.sizes.n_expert + 1) as u64;
        Ok(pairs.part(skipped, pairs.size - skipped))
    }

    /// Finds the tokens that use each expert.
    fn pairs(&self, out: &mut Lowering<'_>) -> Result<()> {
        let args = [
            ptr(self.expert_weights()?),
            ptr(self.starts),
            ptr(self.lists.pairs.span(out)?),
            ptr(self.pair_words(out)?),
            ptr(self.lists.token_pairs.span(out)?),
            ptr(self.lists.flags.span(out)?),
            ptr(self.ranges.counts.span(out)?),
            word(self.sizes.n_expert),
            word(self.sizes.n_tokens),
            word(self.sizes.n_used),
        ];
        out.launch(Unit::plain("experts"), "experts_pairs", [1, 1, 1], BLOCK, &args);
        Ok(())
    }

    fn expert_tokens(
        &self,
        rows: Span,
        max_rows: usize,
        out: &Lowering<'_>,
    ) -> Result<ExpertTokens> {
        let pairs = self.lists.pairs.span(out)?;
        let n_expert = self.sizes.n_expert;
        Ok(ExpertTokens { pairs, rows, n_expert, max_rows, x_by_pair: false })
    }

    fn product(
        &self,
        weight: &Tensor,
        bias: &Option<Tensor>,
        [x, q8]: [Span; 2],
        y: Span,
        out: &mut Lowering<'_>,
    ) -> Result<()> {
        let weight = &Weight::new(weight)?;
        let x = if takes_q8(weight.desc.format) { q8 } else { x };
        let experts = Some(self.expert_tokens(self.rows, self.sizes.max_rows, out)?);
        let (bias, n_tokens) = (out.plain_or_null(bias.as_ref())?, self.sizes.n_tokens);
        Product { bias, experts, ..Product::new(weight, x, n_tokens, y) }.lower(out);
        Ok(())
    }

    fn lower_hidden(&self, tests: Span, ups: Span, out: &mut Lowering<'_>) -> Result<()> {
        let (op, sizes) = (self.op, &self.sizes);
        let mut args = vec![
            ptr(tests),
            ptr(ups),
            ptr(out.plain_or_null(op.threshold.as_ref())?),
            ptr(self.expert_weights()?),
            ptr(self.starts),
            ptr(self.lists.pairs.span(out)?),
            ptr(self.pair_words(out)?),
            ptr(self.ranges.counts.span(out)?),
            word(sizes.max_rows),
            word(sizes.n_expert),
        ];
        args.extend(rule_args(op));
        let grid = [sizes.max_rows.div_ceil(ROWS_EACH * BLOCK as usize), sizes.n_pairs, 1];
        out.launch(Unit::plain("experts"), "experts_hidden", grid, BLOCK, &args);
        Ok(())
    }

    fn by_neuron(&self, h: Span, out: &mut Lowering<'_>) -> Result<()> {
        let weight = &Weight::new(&self.op.down)?;
        let experts = Some(self.expert_tokens(self.rows, self.sizes.max_rows, out)?);
        let (n_out, n_tokens) = (self.op.y.desc().n_cols, self.sizes.n_tokens);
        let partial = self.ranges.partial.span(out)?;
        // A slice holds all rows of an expert.
        let slice = self.sizes.max_rows;
        DownMany { weight, n_out, n_tokens, h, slice, experts, partial }.lower(out)
    }

    /// The down projection with one matrix for each expert that has rows.
    fn lower_across(&self, h: Span, out: &mut Lowering<'_>) -> Result<()> {
        let mut x = h;
        if takes_q8(self.op.down.desc().format) {
            x = self.ranges.h_q8.span(out)?;
            quantize(h, self.sizes.n_pairs * self.sizes.max_rows, x, None, out);
        }
        let weight = &Weight::new(&self.op.down)?;
        let n_out = self.op.y.desc().n_cols;
        let experts =
            ExpertTokens { x_by_pair: true, ..self.expert_tokens(self.outputs, n_out, out)? };
        let (n_tokens, experts) = (self.sizes.n_tokens, Some(experts));
        let y = self.ranges.partial.span(out)?;
        Product { experts, ..Product::new(weight, x, n_tokens, y) }.lower(out);
        Ok(())
    }

    fn reduce(&self, out: &mut Lowering<'_>) -> Result<()> {
        let (op, sizes) = (self.op, &self.sizes);
        let n_out = op.y.desc().n_cols;
        let n_active = 4 * sizes.n_tokens as u64;
        let args = [
            ptr(self.ranges.partial.span(out)?),
            ptr(out.plain_or_null(op.bias_down.as_ref())?),
            ptr(self.expert_weights()?),
            ptr(self.lists.token_pairs.span(out)?),
            ptr(self.ranges.counts.span(out)?),
            ptr(tokens(&op.y, self.first_token, sizes.n_tokens)?),
            ptr(plain(&op.active)?.part(4 * self.first_token as u64, n_active)),
            word(n_out),
            word(sizes.n_expert),
            word(sizes.n_used),
            word(usize::from(op.accumulate)),
        ];
        let grid = [n_out.div_ceil(BLOCK as usize), sizes.n_tokens, 1];
        out.launch(Unit::plain("experts"), "experts_reduce", grid, BLOCK, &args);
        Ok(())
    }

    fn expert_weights(&self) -> Result<Span> {
        expert_weights(self.op, self.first_token, self.sizes.n_tokens)
    }
}
