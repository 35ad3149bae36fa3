//! Feed-forward blocks that multiply with all rows: in prefill, and for a skip threshold that
//! depends on all test values of a token.

use hal::op::{ExpertRanges, Skip, SparseFfn};
use hal::{Operand, Result, Rows, Tensor};
use lower::{ManyScratch, WordFill, chunk_tokens, quantizes_x, takes_q8};

use super::BLOCK;
use super::down::{DownProjection, DownScratch, expert_weights, tokens};
use super::ffn::rule_args;
use super::matmul::{Product, quantize};
use super::operand::Weight;
use crate::buffer::{Span, plain};
use crate::driver::Arg;
use crate::lowering::{Lowering, ptr, word};
use crate::units::Unit;

/// Rows per thread of `ffn_hidden`.
const ROWS_EACH: usize = 4;

pub(super) fn lower_many(
    op: &SparseFfn<Tensor>,
    ranges: &ManyScratch,
    down: DownScratch,
    starts: Span,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let n_tokens = op.x.desc().n_rows;
    let chunk = chunk_tokens(n_tokens).max(1);
    mask(op, ranges, out)?;
    for first_token in (0..n_tokens).step_by(chunk) {
        let n_tokens = chunk.min(n_tokens - first_token);
        ManyTokens { op, ranges, down, starts, first_token, n_tokens }.lower(out)?;
    }
    Ok(())
}

/// Scatters the row list's membership bits to their rows.
fn mask(op: &SparseFfn<Tensor>, ranges: &ManyScratch, out: &mut Lowering<'_>) -> Result<()> {
    let Rows::Active(set) = &op.rows else { return Ok(()) };
    let (n_rows, words) = (op.up.desc().n_rows, set.members.desc().n_cols);
    let (mask, capacity) = (ranges.mask.span(out)?, set.ids.desc().n_cols);
    let n = n_rows * words;
    let clear = WordFill { span: mask, n, n_zero: n, word: 0 };
    quantize(Span::NONE, 0, Span::NONE, Some(clear), out);
    let args = [
        ptr(plain(&set.ids)?),
        ptr(plain(&set.count)?),
        ptr(plain(&set.members)?),
        ptr(mask),
        word(capacity),
        word(words),
        word(n_rows),
    ];
    let grid = [(capacity * words).div_ceil(BLOCK as usize), 1, 1];
    out.launch(Unit::plain("ffn"), "ffn_mask", grid, BLOCK, &args);
    Ok(())
}

struct ManyTokens<'a> {
    op: &'a SparseFfn<Tensor>,
    ranges: &'a ManyScratch,
    down: DownScratch,
    starts: Span,
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
        let q8 = self.ranges.q8.span(out)?;
        let n_values = if quantized { n_tokens * op.x.desc().n_cols } else { 0 };
        let clear = WordFill { span: counts, n: n_tokens, n_zero: n_tokens, word: 0 };
        quantize(x, n_values, q8, Some(clear), out);

        let tests = self.ranges.tests.span(out)?;
        let ups = match &op.gate {
            Some(gate) => {
                self.product(gate, &op.bias_gate, [x, q8], tests, out)?;
                let ups = self.ranges.ups.span(out)?;
                self.product(&op.up, &op.bias_up, [x, q8], ups, out)?;
                ups
            }
            None => {
                self.product(&op.up, &op.bias_up, [x, q8], tests, out)?;
                tests
            }
        };
        if let Skip::GaussianCut(factor) = op.skip {
            self.lower_cut_off(factor, tests, out)?;
        }
        self.lower_hidden(tests, ups, counts, out)?;
        let (ranges, first_token) = (self.down, self.first_token);
        let (h, quantized, starts) = (tests, None, self.starts);
        DownProjection { op, ranges, first_token, n_tokens, h, quantized, counts, starts }
            .lower(out)
    }

    /// Products with all rows of a weight; `x` is given in F32 and in Q8 blocks.
    fn product(
        &self,
        weight: &Tensor,
        bias: &Option<Tensor>,
        [x, q8]: [Span; 2],
        y: Span,
        out: &mut Lowering<'_>,
    ) -> Result<()> {
        let weight = Weight::new(weight)?;
        let x = if takes_q8(weight.desc.format) { q8 } else { x };
        let (bias, n_tokens) = (out.plain_or_null(bias.as_ref())?, self.n_tokens);
        Product { bias, ..Product::new(&weight, x, n_tokens, y) }.lower(out);
        Ok(())
    }

    fn n_expert(&self) -> Arg {
        word(self.op.experts.as_ref().map_or(0, ExpertRanges::n_expert))
    }

    fn lower_cut_off(&self, factor: f32, tests: Span, out: &mut Lowering<'_>) -> Result<()> {
        let args = [
            ptr(tests),
            ptr(expert_weights(self.op, self.first_token, self.n_tokens)?),
            ptr(self.starts),
            ptr(self.ranges.cuts.span(out)?),
            word(self.op.up.desc().n_rows),
            self.n_expert(),
            Arg::F32(factor),
        ];
        out.launch(Unit::plain("ffn"), "ffn_cut", [self.n_tokens, 1, 1], BLOCK, &args);
        Ok(())
    }

    fn lower_hidden(
        &self,
        tests: Span,
        ups: Span,
        counts: Span,
        out: &mut Lowering<'_>,
    ) -> Result<()> {
        let op = self.op;
        let words = match &op.rows {
            Rows::All => 0,
            Rows::Active(set) => set.members.desc().n_cols,
        };
        let n_rows = op.up.desc().n_rows;
        let mut args = vec![
            ptr(tests),
            ptr(ups),
            ptr(self.ranges.mask.span(out)?),
            ptr(out.plain_or_null(op.threshold.as_ref())?),
            ptr(expert_weights(op, self.first_token, self.n_tokens)?),
            ptr(self.starts),
            ptr(self.ranges.cuts.span(out)?),
            ptr(counts),
            word(n_rows),
            word(words),
            word(self.first_token),
            self.n_expert(),
        ];
        args.extend(rule_args(op));
        let grid = [n_rows.div_ceil(ROWS_EACH * BLOCK as usize), self.n_tokens, 1];
        out.launch(Unit::plain("ffn"), "ffn_hidden", grid, BLOCK, &args);
        Ok(())
    }
}
