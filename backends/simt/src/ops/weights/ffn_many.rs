//! Feed-forward blocks by products with all rows: in prefill, and for a cut that depends on all
//! test values of a token.

use hal::op::{Groups, Skip, SparseFfn};
use hal::{Operand, Result, Rows, Tensor, TensorDesc};

use super::BLOCK;
use super::down::{DownRooms, SecondHalf, group_weight, tokens};
use super::ffn::{rounds_x, rule};
use super::matmul::{Clear, Product, quantize};
use super::operand::{Weight, takes_q8};
use super::scratch::{Room, Scratch};
use crate::buffer::{Span, plain};
use crate::driver::Arg;
use crate::facts::Facts;
use crate::lowering::{Lowering, ptr, word};
use crate::units::Unit;

/// Tokens processed at once: they bound the intermediate results between the two halves.
const STRETCH: usize = 256;
/// Rows per thread of `ffn_hidden`.
const ROWS_EACH: usize = 4;

/// Scratch memory for a chunk of tokens.
pub(super) struct ManyRooms {
    q8: Room,
    /// The list's membership bits, by row.
    mask: Room,
    counts: Room,
    cuts: Room,
    tests: Room,
    ups: Room,
    down: DownRooms,
}

impl ManyRooms {
    pub(super) fn new(
        op: &SparseFfn<TensorDesc>,
        facts: &Facts,
        scratch: &mut Scratch,
    ) -> ManyRooms {
        let (n, n_rows) = (op.x.n_rows.min(STRETCH), op.up.n_rows);
        let rounded = rounds_x(op.gate.as_ref().map(|gate| gate.format), op.up.format);
        let words = match &op.rows {
            Rows::All => 0,
            Rows::Active(set) => set.members.n_cols,
        };
        ManyRooms {
            q8: scratch.q8(if rounded { n * op.x.n_cols } else { 0 }),
            mask: scratch.words(n_rows * words),
            counts: scratch.words(n),
            cuts: scratch.words(n),
            tests: scratch.words(n * n_rows),
            ups: scratch.words(if op.gate.is_some() { n * n_rows } else { 0 }),
            down: DownRooms::new(op, n, facts, scratch),
        }
    }
}

pub(super) fn lower_many(
    op: &SparseFfn<Tensor>,
    rooms: &ManyRooms,
    starts: Span,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let n_tokens = op.x.desc().n_rows;
    mask(op, rooms, out)?;
    for first_token in (0..n_tokens).step_by(STRETCH) {
        let n_tokens = STRETCH.min(n_tokens - first_token);
        Many { op, rooms, starts, first_token, n_tokens }.lower(out)?;
    }
    Ok(())
}

/// Scatters a list's membership bits to their rows.
fn mask(op: &SparseFfn<Tensor>, rooms: &ManyRooms, out: &mut Lowering<'_>) -> Result<()> {
    let Rows::Active(set) = &op.rows else { return Ok(()) };
    let (n_rows, words) = (op.up.desc().n_rows, set.members.desc().n_cols);
    let (mask, capacity) = (rooms.mask.span(out)?, set.ids.desc().n_cols);
    let n = n_rows * words;
    let clear = Clear { span: mask, n, n_zero: n, word: 0 };
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

struct Many<'a> {
    op: &'a SparseFfn<Tensor>,
    rooms: &'a ManyRooms,
    starts: Span,
    first_token: usize,
    n_tokens: usize,
}

impl Many<'_> {
    fn lower(&self, out: &mut Lowering<'_>) -> Result<()> {
        let (op, n_tokens) = (self.op, self.n_tokens);
        let x = tokens(&op.x, self.first_token, n_tokens)?;
        let gate_format = op.gate.as_ref().map(|gate| gate.desc().format);
        let rounded = rounds_x(gate_format, op.up.desc().format);
        let counts = self.rooms.counts.span(out)?.part(0, 4 * n_tokens as u64);
        let q8 = self.rooms.q8.span(out)?;
        let n_values = if rounded { n_tokens * op.x.desc().n_cols } else { 0 };
        let clear = Clear { span: counts, n: n_tokens, n_zero: n_tokens, word: 0 };
        quantize(x, n_values, q8, Some(clear), out);

        let tests = self.rooms.tests.span(out)?;
        let ups = match &op.gate {
            Some(gate) => {
                self.product(gate, &op.bias_gate, [x, q8], tests, out)?;
                let ups = self.rooms.ups.span(out)?;
                self.product(&op.up, &op.bias_up, [x, q8], ups, out)?;
                ups
            }
            None => {
                self.product(&op.up, &op.bias_up, [x, q8], tests, out)?;
                tests
            }
        };
        if let Skip::GaussianCut(factor) = op.skip {
            self.cut(factor, tests, out)?;
        }
        self.hidden(tests, ups, counts, out)?;
        let (rooms, first_token) = (self.rooms.down, self.first_token);
        SecondHalf { op, rooms, first_token, n_tokens, h: tests, counts, starts: self.starts }
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
        let (bias, n_tokens) = (out.maybe(bias.as_ref())?, self.n_tokens);
        Product { weight: &weight, x, n_tokens, bias, relu: false, groups: None, y }.lower(out);
        Ok(())
    }

    fn n_group(&self) -> Arg {
        word(self.op.groups.as_ref().map_or(0, Groups::n_group))
    }

    fn cut(&self, factor: f32, tests: Span, out: &mut Lowering<'_>) -> Result<()> {
        let args = [
            ptr(tests),
            ptr(group_weight(self.op, self.first_token, self.n_tokens)?),
            ptr(self.starts),
            ptr(self.rooms.cuts.span(out)?),
            word(self.op.up.desc().n_rows),
            self.n_group(),
            Arg::F32(factor),
        ];
        out.launch(Unit::plain("ffn"), "ffn_cut", [self.n_tokens, 1, 1], BLOCK, &args);
        Ok(())
    }

    fn hidden(&self, tests: Span, ups: Span, counts: Span, out: &mut Lowering<'_>) -> Result<()> {
        let op = self.op;
        let words = match &op.rows {
            Rows::All => 0,
            Rows::Active(set) => set.members.desc().n_cols,
        };
        let n_rows = op.up.desc().n_rows;
        let mut args = vec![
            ptr(tests),
            ptr(ups),
            ptr(self.rooms.mask.span(out)?),
            ptr(out.maybe(op.threshold.as_ref())?),
            ptr(group_weight(op, self.first_token, self.n_tokens)?),
            ptr(self.starts),
            ptr(self.rooms.cuts.span(out)?),
            ptr(counts),
            word(n_rows),
            word(words),
            word(self.first_token),
            self.n_group(),
        ];
        args.extend(rule(op));
        let grid = [n_rows.div_ceil(ROWS_EACH * BLOCK as usize), self.n_tokens, 1];
        out.launch(Unit::plain("ffn"), "ffn_hidden", grid, BLOCK, &args);
        Ok(())
    }
}
