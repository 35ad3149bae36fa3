//! Feed-forward blocks that multiply with all rows: in prefill, and for a skip threshold that
//! depends on all test values of a token.

use hal::op::{ExpertRanges, Skip, SparseFfn};
use hal::{Operand, Result, Rows, Tensor};
use lower::{FfnCodes, ManyScratch, WordFill, chunk_tokens, quantizes_x, takes_q8};

use super::down::{DownProjection, DownScratch, expert_weights, tokens};
use super::matmul::{Product, quantize};
use super::operand::Weight;
use crate::buffer::{Span, plain};
use crate::lowering::Lowering;
use crate::shader::Source;

/// Rows per invocation of `ffn_hidden`.
const ROWS_EACH: usize = 4;

pub(super) fn lower_many(
    op: &SparseFfn<Tensor>,
    ranges: &ManyScratch,
    down: DownScratch,
    starts: &Span,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let n_tokens = op.x.desc().n_rows;
    let chunk = chunk_tokens(n_tokens).max(1);
    lower_mask(op, ranges, out)?;
    for first_token in (0..n_tokens).step_by(chunk) {
        let n_tokens = chunk.min(n_tokens - first_token);
        ManyTokens { op, ranges, down, starts, first_token, n_tokens }.lower(out)?;
    }
    Ok(())
}

/// Scatters the row list's membership bits to their rows.
fn lower_mask(op: &SparseFfn<Tensor>, ranges: &ManyScratch, out: &mut Lowering<'_>) -> Result<()> {
    let Rows::Active(set) = &op.rows else { return Ok(()) };
    let (n_rows, words) = (op.up.desc().n_rows, set.members.desc().n_cols);
    let (mask, capacity) = (ranges.mask.span(out)?, set.ids.desc().n_cols);
    let n = n_rows * words;
    let clear = WordFill { span: mask.clone(), n, n_zero: n, word: 0 };
    quantize(&plain(&op.x)?, 0, &mask, Some(clear), out)?;
    let flat = out.facts().tuning.flat as usize;
    let source = Source::new("ffn_mask").set("FLAT", flat);
    let numbers = [capacity as u32, words as u32, n_rows as u32];
    let spans = [plain(&set.ids)?, plain(&set.count)?, plain(&set.members)?, mask];
    let grid = out.facts().grid((capacity * words).div_ceil(flat));
    out.dispatch(&source, &spans, &numbers, grid)
}

struct ManyTokens<'a> {
    op: &'a SparseFfn<Tensor>,
    ranges: &'a ManyScratch,
    down: DownScratch,
    starts: &'a Span,
    first_token: usize,
    n_tokens: usize,
}

impl ManyTokens<'_> {
    fn lower(&self, out: &mut Lowering<'_>) -> Result<()> {
        let (op, n_tokens) = (self.op, self.n_tokens);
        let x = tokens(&op.x, self.first_token, n_tokens)?;
        let gate_format = op.gate.as_ref().map(|gate| gate.desc().format);
        let quantized = quantizes_x(gate_format, op.up.desc().format);
        let counts = self.ranges.counts.span(out)?.part(0, 4 * n_tokens as u64);
        let q8 = if quantized { self.ranges.q8.span(out)? } else { counts.clone() };
        let n_values = if quantized { n_tokens * x_cols(op) } else { 0 };
        let clear = WordFill { span: counts.clone(), n: n_tokens, n_zero: n_tokens, word: 0 };
        quantize(&x, n_values, &q8, Some(clear), out)?;

        let tests = self.ranges.tests.span(out)?;
        let ups = match &op.gate {
            Some(gate) => {
                self.lower_product(gate, &op.bias_gate, [&x, &q8], &tests, out)?;
                let ups = self.ranges.ups.span(out)?;
                self.lower_product(&op.up, &op.bias_up, [&x, &q8], &ups, out)?;
                ups
            }
            None => {
                self.lower_product(&op.up, &op.bias_up, [&x, &q8], &tests, out)?;
                tests.clone()
            }
        };
        if let Skip::GaussianCut(factor) = op.skip {
            self.lower_cuts(factor, &tests, out)?;
        }
        self.lower_hidden(&tests, &ups, &counts, out)?;
        let (ranges, first_token) = (self.down, self.first_token);
        DownProjection { op, ranges, first_token, n_tokens, h: tests, counts, is_quantized: false }
            .lower(out)
    }

    /// Products with all rows of a weight; `x` is given in F32 and in Q8 blocks.
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
        let bias = bias.as_ref().map(plain).transpose()?;
        let (n_tokens, y) = (self.n_tokens, y.clone());
        Product { weight: &weight, x, n_tokens, bias, relu: false, experts: None, y, last: None }
            .lower(out)
    }

    fn lower_cuts(&self, factor: f32, tests: &Span, out: &mut Lowering<'_>) -> Result<()> {
        let source = Source::new("ffn_cut").set("FLAT", out.facts().tuning.flat);
        let spans = [
            tests.clone(),
            expert_weights(self.op, 0, self.op.x.desc().n_rows, out)?,
            self.starts.clone(),
            self.ranges.cuts.span(out)?,
        ];
        let n_rows = self.op.up.desc().n_rows as u32;
        let numbers = [n_rows, self.first_token as u32, self.n_expert(), factor.to_bits()];
        out.dispatch(&source, &spans, &numbers, [self.n_tokens as u32, 1, 1])
    }

    fn n_expert(&self) -> u32 {
        self.op.experts.as_ref().map_or(0, ExpertRanges::n_expert) as u32
    }

    fn lower_hidden(
        &self,
        tests: &Span,
        ups: &Span,
        counts: &Span,
        out: &mut Lowering<'_>,
    ) -> Result<()> {
        let op = self.op;
        let flat = out.facts().tuning.flat as usize;
        let source = Source::new("ffn_hidden").set("FLAT", flat);
        let words = match &op.rows {
            Rows::All => 0,
            Rows::Active(set) => set.members.desc().n_cols as u32,
        };
        let n_rows = op.up.desc().n_rows;
        let FfnCodes { kind, activation, parameters: [alpha, slope, cap], skip } = FfnCodes::of(op);
        let spans = [
            tests.clone(),
            ups.clone(),
            self.ranges.mask.span(out)?,
            out.plain_or_dummy(op.threshold.as_ref())?,
            expert_weights(op, 0, op.x.desc().n_rows, out)?,
            self.starts.clone(),
            self.ranges.cuts.span(out)?,
            counts.clone(),
        ];
        let numbers = [
            n_rows as u32,
            words,
            self.first_token as u32,
            self.n_expert(),
            u32::from(op.threshold.is_some()),
            kind,
            activation,
            skip,
            alpha.to_bits(),
            slope.to_bits(),
            cap.to_bits(),
        ];
        let grid = [n_rows.div_ceil(ROWS_EACH * flat) as u32, self.n_tokens as u32, 1];
        out.dispatch(&source, &spans, &numbers, grid)
    }
}

fn x_cols(op: &SparseFfn<Tensor>) -> usize {
    op.x.desc().n_cols
}
