//! Feed-forward blocks with experts in prefill: tiles over the tokens that use an expert.

use hal::op::{Down, ExpertRanges, SparseFfn};
use hal::{Operand, Result, Rows, Tensor, TensorDesc};
use lower::{ExpertScratch, ExpertSizes, FfnCodes, Scratch, ScratchRange, quantizes_x, takes_q8};

use super::down::{DownMany, expert_weights, tokens};
use super::ffn::op_desc;
use super::matmul::{ExpertTokens, Product, quantize};
use super::operand::{Weight, part_rows};
use crate::buffer::{Span, plain};
use crate::facts::Facts;
use crate::lowering::Lowering;
use crate::shader::Source;

/// Maximum number of experts: the shader's scratch memory has a word per token and expert.
const MAX_EXPERTS: usize = 1024;
/// Rows per invocation of `experts_hidden`.
const ROWS_EACH: usize = 4;
/// If the down projection has one row per neuron, its bindings hold a multiple of this many rows.
const ROW_STEP: usize = 64;

/// Whether these shaders can run an op in prefill.
pub(super) fn supports_op(op: &SparseFfn<TensorDesc>) -> bool {
    let Some(experts) = &op.experts else { return false };
    matches!(op.rows, Rows::All) && experts.n_expert() <= MAX_EXPERTS
}

/// Ranges of rows of the down projection that fit one binding and have partial sums of their own.
pub(super) fn n_parts(op: &SparseFfn<TensorDesc>, facts: &Facts) -> usize {
    match op.orientation {
        Down::AcrossNeurons => 1,
        Down::ByNeuron => {
            op.down.n_rows.div_ceil(part_rows(&op.down, ROW_STEP, facts).max(1)).max(1)
        }
    }
}

/// Word offsets in `pairs`: of one word per pair, of the pairs of each token, of the shader's
/// scratch memory, and of the end.
fn pair_offsets(sizes: &ExpertSizes) -> [usize; 4] {
    let of_pairs = sizes.n_expert + 1;
    let of_tokens = of_pairs + sizes.n_pairs;
    let scratch = of_tokens + sizes.n_pairs;
    [of_pairs, of_tokens, scratch, scratch + sizes.n_tokens * sizes.n_expert]
}

/// Scratch memory for the pairs of a token and an expert.
pub(super) struct ExpertPairs(ScratchRange);

impl ExpertPairs {
    pub(super) fn new(
        op: &SparseFfn<TensorDesc>,
        experts: &ExpertRanges,
        scratch: &mut Scratch,
    ) -> ExpertPairs {
        let sizes = ExpertSizes::new(op.x.n_rows, experts);
        ExpertPairs(scratch.words(pair_offsets(&sizes)[3]))
    }
}

pub(super) fn lower_experts(
    op: &SparseFfn<Tensor>,
    experts: &ExpertRanges,
    (ranges, pairs): (&ExpertScratch, &ExpertPairs),
    starts: &Span,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let n_tokens = op.x.desc().n_rows;
    let rows = experts.rows().flat_map(|rows| [rows.start as u32, rows.end as u32]);
    let rows = out.constants(&rows.collect::<Vec<u32>>())?;
    for first_token in (0..n_tokens).step_by(ExpertSizes::chunk_tokens(experts)) {
        let sizes = ExpertSizes::new(n_tokens - first_token, experts);
        let (starts, rows) = (starts.clone(), rows.clone());
        Experts { op, experts, ranges, pairs, starts, rows, sizes, first_token }.lower(out)?;
    }
    Ok(())
}

struct Experts<'a> {
    op: &'a SparseFfn<Tensor>,
    experts: &'a ExpertRanges,
    ranges: &'a ExpertScratch,
    pairs: &'a ExpertPairs,
    starts: Span,
    /// Begin and end of each expert's rows.
    rows: Span,
    sizes: ExpertSizes,
    first_token: usize,
}

impl Experts<'_> {
    fn lower(&self, out: &mut Lowering<'_>) -> Result<()> {
        let (op, n_tokens) = (self.op, self.sizes.n_tokens);
        self.lower_pairs(out)?;
        let x = tokens(&op.x, self.first_token, n_tokens)?;
        let n_values = n_tokens * op.x.desc().n_cols;
        let gate_format = op.gate.as_ref().map(|gate| gate.desc().format);
        let quantized = quantizes_x(gate_format, op.up.desc().format);
        let q8 = self.ranges.q8.span(out)?;
        if quantized {
            quantize(&x, n_values, &q8, None, out)?;
        }
        let tests = self.ranges.tests.span(out)?;
        let ups = match &op.gate {
            Some(gate) => {
                let ups = self.ranges.ups.span(out)?;
                self.lower_product(gate, &op.bias_gate, [&x, &q8], &tests, out)?;
                self.lower_product(&op.up, &op.bias_up, [&x, &q8], &ups, out)?;
                ups
            }
            None => {
                self.lower_product(&op.up, &op.bias_up, [&x, &q8], &tests, out)?;
                tests.clone()
            }
        };
        self.lower_hidden(&tests, &ups, out)?;
        match op.orientation {
            Down::ByNeuron => self.lower_by_neuron(&tests, out)?,
            Down::AcrossNeurons => self.lower_across(&tests, out)?,
        }
        self.lower_reduce(out)
    }

    /// Finds the tokens that use each expert.
    fn lower_pairs(&self, out: &mut Lowering<'_>) -> Result<()> {
        let [of_pairs, of_tokens, scratch, _] = pair_offsets(&self.sizes);
        let ExpertSizes { n_tokens, n_expert, n_used, .. } = self.sizes;
        let numbers = [n_expert, n_tokens, n_used, of_pairs, of_tokens, scratch];
        let spans = [
            self.expert_weights(out)?,
            self.starts.clone(),
            self.pairs.0.span(out)?,
            self.ranges.counts.span(out)?,
        ];
        let source = Source::new("experts_pairs");
        out.dispatch(&source, &spans, &numbers.map(|n| n as u32), [1, 1, 1])
    }

    fn expert_tokens(
        &self,
        rows: &Span,
        max_rows: usize,
        out: &Lowering<'_>,
    ) -> Result<ExpertTokens> {
        Ok(ExpertTokens {
            pairs: self.pairs.0.span(out)?,
            rows: rows.clone(),
            n_expert: self.sizes.n_expert,
            max_rows,
            x_by_pair: false,
        })
    }

    fn lower_product(
        &self,
        weight: &Tensor,
        bias: &Option<Tensor>,
        [x, q8]: [&Span; 2],
        y: &Span,
        out: &mut Lowering<'_>,
    ) -> Result<()> {
        let weight = Weight::new(weight, 1, out)?;
        let x = if takes_q8(weight.desc.format) { q8 } else { x }.clone();
        let experts = Some(self.expert_tokens(&self.rows, self.sizes.max_rows, out)?);
        let (weight, n_tokens, y) = (&weight, self.sizes.n_tokens, y.clone());
        let bias = bias.as_ref().map(plain).transpose()?;
        Product { weight, x, n_tokens, bias, relu: false, experts, y, last: None }.lower(out)
    }

    fn lower_hidden(&self, tests: &Span, ups: &Span, out: &mut Lowering<'_>) -> Result<()> {
        let (op, sizes) = (self.op, &self.sizes);
        let flat = out.facts().tuning.flat as usize;
        let FfnCodes { kind, activation, parameters: [alpha, slope, cap], skip } = FfnCodes::of(op);
        let spans = [
            tests.clone(),
            ups.clone(),
            out.plain_or_dummy(op.threshold.as_ref())?,
            self.expert_weights(out)?,
            self.starts.clone(),
            self.pairs.0.span(out)?,
            self.ranges.counts.span(out)?,
        ];
        let numbers = [
            sizes.max_rows as u32,
            sizes.n_expert as u32,
            u32::from(op.threshold.is_some()),
            kind,
            activation,
            skip,
            alpha.to_bits(),
            slope.to_bits(),
            cap.to_bits(),
        ];
        let grid = [sizes.max_rows.div_ceil(ROWS_EACH * flat) as u32, sizes.n_pairs as u32, 1];
        out.dispatch(&Source::new("experts_hidden").set("FLAT", flat), &spans, &numbers, grid)
    }

    fn lower_by_neuron(&self, h: &Span, out: &mut Lowering<'_>) -> Result<()> {
        let weight = Weight::new(&self.op.down, ROW_STEP, out)?;
        let experts = self.expert_tokens(&self.rows, self.sizes.max_rows, out)?;
        DownMany {
            weight: &weight,
            n_out: self.op.y.desc().n_cols,
            n_tokens: self.sizes.n_tokens,
            h: h.clone(),
            slice: ROW_STEP,
            experts: Some((experts, self.sizes.n_pairs)),
            partial: self.ranges.partial.span(out)?,
        }
        .lower(out)
    }

    /// `down` has one matrix for each expert that has rows.
    fn lower_across(&self, h: &Span, out: &mut Lowering<'_>) -> Result<()> {
        let n_out = self.op.y.desc().n_cols;
        let mut end = 0;
        let rows = self.experts.rows().flat_map(|rows| {
            let begin = end;
            end += if rows.is_empty() { 0 } else { n_out as u32 };
            [begin, end]
        });
        let rows = out.constants(&rows.collect::<Vec<u32>>())?;
        let mut x = h.clone();
        if takes_q8(self.op.down.desc().format) {
            x = self.ranges.h_q8.span(out)?;
            quantize(h, self.sizes.n_pairs * self.sizes.max_rows, &x, None, out)?;
        }
        let weight = Weight::new(&self.op.down, 1, out)?;
        let experts = ExpertTokens { x_by_pair: true, ..self.expert_tokens(&rows, n_out, out)? };
        let (weight, n_tokens, experts) = (&weight, self.sizes.n_tokens, Some(experts));
        let y = self.ranges.partial.span(out)?;
        Product { weight, x, n_tokens, bias: None, relu: false, experts, y, last: None }.lower(out)
    }

    fn lower_reduce(&self, out: &mut Lowering<'_>) -> Result<()> {
        let (op, sizes) = (self.op, &self.sizes);
        let (n_out, flat) = (op.y.desc().n_cols, out.facts().tuning.flat as usize);
        let numbers = [
            n_out,
            sizes.n_tokens,
            sizes.n_expert,
            sizes.n_used,
            sizes.n_pairs,
            pair_offsets(sizes)[1],
            n_parts(&op_desc(op), out.facts()),
            usize::from(op.bias_down.is_some()),
            usize::from(op.accumulate),
        ];
        let n_active = 4 * sizes.n_tokens as u64;
        let spans = [
            self.ranges.partial.span(out)?,
            out.plain_or_dummy(op.bias_down.as_ref())?,
            self.expert_weights(out)?,
            self.pairs.0.span(out)?,
            self.ranges.counts.span(out)?,
            tokens(&op.y, self.first_token, sizes.n_tokens)?,
            plain(&op.active)?.part(4 * self.first_token as u64, n_active),
        ];
        let source = Source::new("experts_reduce").set("FLAT", flat);
        let grid = out.facts().grid((sizes.n_tokens * n_out.max(1)).div_ceil(flat));
        out.dispatch(&source, &spans, &numbers.map(|n| n as u32), grid)
    }

    fn expert_weights(&self, out: &Lowering<'_>) -> Result<Span> {
        expert_weights(self.op, self.first_token, self.sizes.n_tokens, out)
    }
}
