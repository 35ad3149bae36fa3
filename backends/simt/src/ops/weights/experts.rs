//! Feed-forward blocks with experts in prefill: tiles over the tokens that use an expert.

use hal::op::{Down, Groups, SparseFfn};
use hal::{Operand, Result, Tensor, TensorDesc};

use super::BLOCK;
use super::down::{DownMany, group_weight, tokens};
use super::ffn::{rounds_x, rule};
use super::matmul::{GroupTokens, Product, quantize};
use super::operand::{Weight, takes_q8};
use super::scratch::{Room, Scratch};
use crate::buffer::{Span, plain};
use crate::lowering::{Lowering, ptr, word};
use crate::units::Unit;

/// Maximum number of tokens processed at once, and of (token, group) pairs: they bound the
/// intermediate results between the two halves.
const STRETCH: usize = 256;
const MAX_PAIRS: usize = 4096;
/// Rows per thread of `experts_hidden`.
const ROWS_EACH: usize = 4;

/// How many tokens are processed at once.
fn stretch(groups: &Groups) -> usize {
    STRETCH.min(MAX_PAIRS / groups.n_used.max(1)).max(1)
}

/// Sizes of an op, for a chunk of its tokens.
struct Sizes {
    n_tokens: usize,
    n_group: usize,
    n_used: usize,
    n_pairs: usize,
    /// Maximum number of rows of a group.
    most_rows: usize,
}

impl Sizes {
    fn new(n_tokens: usize, groups: &Groups) -> Sizes {
        let n_tokens = n_tokens.min(stretch(groups));
        let most_rows = groups.rows().map(|rows| rows.len()).max().unwrap_or(0);
        let (n_group, n_used) = (groups.n_group(), groups.n_used);
        Sizes { n_tokens, n_group, n_used, n_pairs: n_tokens * n_used, most_rows }
    }
}

/// Scratch memory for a chunk of tokens.
pub(super) struct ExpertRooms {
    q8: Room,
    /// Start of each group's pairs, then the words of the pairs.
    pairs: Room,
    of_tokens: Room,
    flags: Room,
    counts: Room,
    tests: Room,
    ups: Room,
    h_q8: Room,
    partial: Room,
}

impl ExpertRooms {
    pub(super) fn new(
        op: &SparseFfn<TensorDesc>,
        groups: &Groups,
        scratch: &mut Scratch,
    ) -> ExpertRooms {
        let sizes = Sizes::new(op.x.n_rows, groups);
        let n_h = sizes.n_pairs * sizes.most_rows;
        let rounded = rounds_x(op.gate.as_ref().map(|gate| gate.format), op.up.format);
        let rounded_h = op.orientation == Down::AcrossNeurons && takes_q8(op.down.format);
        ExpertRooms {
            q8: scratch.q8(if rounded { sizes.n_tokens * op.x.n_cols } else { 0 }),
            pairs: scratch.words(sizes.n_group + 1 + sizes.n_pairs),
            of_tokens: scratch.words(sizes.n_pairs),
            flags: scratch.words(sizes.n_tokens * sizes.n_group),
            counts: scratch.words(sizes.n_tokens),
            tests: scratch.words(n_h),
            ups: scratch.words(if op.gate.is_some() { n_h } else { 0 }),
            h_q8: scratch.q8(if rounded_h { n_h } else { 0 }),
            partial: scratch.words(sizes.n_pairs * op.y.n_cols),
        }
    }
}

pub(super) fn lower_experts(
    op: &SparseFfn<Tensor>,
    groups: &Groups,
    rooms: &ExpertRooms,
    starts: Span,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let n_tokens = op.x.desc().n_rows;
    let rows = groups.rows().flat_map(|rows| [rows.start as u32, rows.end as u32]);
    let rows = out.constants(&rows.collect::<Vec<u32>>())?;
    let n_out = op.y.desc().n_cols;
    let mut end = 0;
    let outputs = groups.rows().flat_map(|rows| {
        let begin = end;
        end += if rows.is_empty() { 0 } else { n_out as u32 };
        [begin, end]
    });
    let outputs = match op.orientation {
        Down::ByNeuron => Span::NONE,
        Down::AcrossNeurons => out.constants(&outputs.collect::<Vec<u32>>())?,
    };
    for first_token in (0..n_tokens).step_by(stretch(groups)) {
        let sizes = Sizes::new(n_tokens - first_token, groups);
        Experts { op, rooms, starts, rows, outputs, sizes, first_token }.lower(out)?;
    }
    Ok(())
}

struct Experts<'a> {
    op: &'a SparseFfn<Tensor>,
    rooms: &'a ExpertRooms,
    starts: Span,
    /// Begin and end of each group's rows.
    rows: Span,
    /// Begin and end of each group's rows of down, if it has one row per output.
    outputs: Span,
    sizes: Sizes,
    first_token: usize,
}

impl Experts<'_> {
    fn lower(&self, out: &mut Lowering<'_>) -> Result<()> {
        let (op, n_tokens) = (self.op, self.sizes.n_tokens);
        self.pairs(out)?;
        let x = tokens(&op.x, self.first_token, n_tokens)?;
        let gate_format = op.gate.as_ref().map(|gate| gate.desc().format);
        let q8 = self.rooms.q8.span(out)?;
        if rounds_x(gate_format, op.up.desc().format) {
            quantize(x, n_tokens * op.x.desc().n_cols, q8, None, out);
        }
        let tests = self.rooms.tests.span(out)?;
        let ups = match &op.gate {
            Some(gate) => {
                let ups = self.rooms.ups.span(out)?;
                self.product(gate, &op.bias_gate, [x, q8], tests, out)?;
                self.product(&op.up, &op.bias_up, [x, q8], ups, out)?;
                ups
            }
            None => {
                self.product(&op.up, &op.bias_up, [x, q8], tests, out)?;
                tests
            }
        };
        self.hidden(tests, ups, out)?;
        match op.orientation {
            Down::ByNeuron => self.by_neuron(tests, out)?,
            Down::AcrossNeurons => self.across(tests, out)?,
        }
        self.reduce(out)
    }

    /// The words of the pairs, which follow the group starts.
    fn of_pairs(&self, out: &Lowering<'_>) -> Result<Span> {
        let pairs = self.rooms.pairs.span(out)?;
        let skipped = 4 * (self.sizes.n_group + 1) as u64;
        Ok(pairs.part(skipped, pairs.size - skipped))
    }

    /// Finds the tokens that use each group.
    fn pairs(&self, out: &mut Lowering<'_>) -> Result<()> {
        let args = [
            ptr(self.group_weight()?),
            ptr(self.starts),
            ptr(self.rooms.pairs.span(out)?),
            ptr(self.of_pairs(out)?),
            ptr(self.rooms.of_tokens.span(out)?),
            ptr(self.rooms.flags.span(out)?),
            ptr(self.rooms.counts.span(out)?),
            word(self.sizes.n_group),
            word(self.sizes.n_tokens),
            word(self.sizes.n_used),
        ];
        out.launch(Unit::plain("experts"), "experts_pairs", [1, 1, 1], BLOCK, &args);
        Ok(())
    }

    fn group_tokens(
        &self,
        rows: Span,
        most_rows: usize,
        out: &Lowering<'_>,
    ) -> Result<GroupTokens> {
        let pairs = self.rooms.pairs.span(out)?;
        let n_group = self.sizes.n_group;
        Ok(GroupTokens { pairs, rows, n_group, most_rows, x_by_pair: false })
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
        let groups = Some(self.group_tokens(self.rows, self.sizes.most_rows, out)?);
        let (bias, n_tokens) = (out.maybe(bias.as_ref())?, self.sizes.n_tokens);
        Product { weight, x, n_tokens, bias, relu: false, groups, y }.lower(out);
        Ok(())
    }

    fn hidden(&self, tests: Span, ups: Span, out: &mut Lowering<'_>) -> Result<()> {
        let (op, sizes) = (self.op, &self.sizes);
        let mut args = vec![
            ptr(tests),
            ptr(ups),
            ptr(out.maybe(op.threshold.as_ref())?),
            ptr(self.group_weight()?),
            ptr(self.starts),
            ptr(self.rooms.pairs.span(out)?),
            ptr(self.of_pairs(out)?),
            ptr(self.rooms.counts.span(out)?),
            word(sizes.most_rows),
            word(sizes.n_group),
        ];
        args.extend(rule(op));
        let grid = [sizes.most_rows.div_ceil(ROWS_EACH * BLOCK as usize), sizes.n_pairs, 1];
        out.launch(Unit::plain("experts"), "experts_hidden", grid, BLOCK, &args);
        Ok(())
    }

    fn by_neuron(&self, h: Span, out: &mut Lowering<'_>) -> Result<()> {
        let weight = &Weight::new(&self.op.down)?;
        let groups = Some(self.group_tokens(self.rows, self.sizes.most_rows, out)?);
        let (n_out, n_tokens) = (self.op.y.desc().n_cols, self.sizes.n_tokens);
        let partial = self.rooms.partial.span(out)?;
        // All rows of a group at once.
        let slice = self.sizes.most_rows;
        DownMany { weight, n_out, n_tokens, h, slice, groups, partial }.lower(out)
    }

    /// One matrix for each group that has rows.
    fn across(&self, h: Span, out: &mut Lowering<'_>) -> Result<()> {
        let mut x = h;
        if takes_q8(self.op.down.desc().format) {
            x = self.rooms.h_q8.span(out)?;
            quantize(h, self.sizes.n_pairs * self.sizes.most_rows, x, None, out);
        }
        let weight = &Weight::new(&self.op.down)?;
        let n_out = self.op.y.desc().n_cols;
        let groups =
            GroupTokens { x_by_pair: true, ..self.group_tokens(self.outputs, n_out, out)? };
        let (n_tokens, bias, groups) = (self.sizes.n_tokens, Span::NONE, Some(groups));
        let y = self.rooms.partial.span(out)?;
        Product { weight, x, n_tokens, bias, relu: false, groups, y }.lower(out);
        Ok(())
    }

    fn reduce(&self, out: &mut Lowering<'_>) -> Result<()> {
        let (op, sizes) = (self.op, &self.sizes);
        let n_out = op.y.desc().n_cols;
        let n_active = 4 * sizes.n_tokens as u64;
        let args = [
            ptr(self.rooms.partial.span(out)?),
            ptr(out.maybe(op.bias_down.as_ref())?),
            ptr(self.group_weight()?),
            ptr(self.rooms.of_tokens.span(out)?),
            ptr(self.rooms.counts.span(out)?),
            ptr(tokens(&op.y, self.first_token, sizes.n_tokens)?),
            ptr(plain(&op.active)?.part(4 * self.first_token as u64, n_active)),
            word(n_out),
            word(sizes.n_group),
            word(sizes.n_used),
            word(usize::from(op.accumulate)),
        ];
        let grid = [n_out.div_ceil(BLOCK as usize), sizes.n_tokens, 1];
        out.launch(Unit::plain("experts"), "experts_reduce", grid, BLOCK, &args);
        Ok(())
    }

    fn group_weight(&self) -> Result<Span> {
        group_weight(self.op, self.first_token, self.sizes.n_tokens)
    }
}
