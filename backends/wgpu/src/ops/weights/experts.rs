//! Feed-forward blocks with experts in prefill: tiles over the tokens that use an expert.

use hal::op::{Down, Groups, SparseFfn};
use hal::{Operand, Result, Rows, Tensor, TensorDesc};

use super::down::{DownMany, group_weight, tokens};
use super::ffn::{UNUSED_LIMIT, activation_numbers, kind_number, rounds_x, skip_number};
use super::matmul::{GroupTokens, Product, quantize};
use super::operand::{Weight, part_rows, takes_q8};
use super::scratch::{Room, Scratch};
use crate::buffer::{Span, plain};
use crate::facts::Facts;
use crate::lowering::Lowering;
use crate::shader::Source;

/// Maximum number of tokens processed at once, and of (token, group) pairs: they bound the
/// intermediate results between the two halves.
const STRETCH: usize = 256;
const MAX_PAIRS: usize = 4096;
/// Maximum number of groups: a token and a group share a word, and the per-group data stays small.
const MAX_GROUPS: usize = 1024;
/// Rows per invocation of `experts_hidden`.
const ROWS_EACH: usize = 4;
/// Rows of a part are multiples of this if down has one row per neuron.
const STEP: usize = 64;

/// Whether a prefill op takes this path.
pub(super) fn suits(op: &SparseFfn<TensorDesc>) -> bool {
    let Some(groups) = &op.groups else { return false };
    matches!(op.rows, Rows::All) && groups.n_group() <= MAX_GROUPS
}

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
    /// Maximum number of rows of a group, in whole blocks if they are quantised.
    most_rows: usize,
}

impl Sizes {
    fn new(n_tokens: usize, groups: &Groups) -> Sizes {
        let n_tokens = n_tokens.min(stretch(groups));
        let most_rows = groups.rows().map(|rows| rows.len()).max().unwrap_or(0);
        let (n_group, n_used) = (groups.n_group(), groups.n_used);
        Sizes { n_tokens, n_group, n_used, n_pairs: n_tokens * n_used, most_rows }
    }

    /// Offsets in `pairs` of the pairs' words, the tokens' pairs and the scratch memory, and the
    /// end.
    fn places(&self) -> [usize; 4] {
        let of_pairs = self.n_group + 1;
        let of_tokens = of_pairs + self.n_pairs;
        let scratch = of_tokens + self.n_pairs;
        [of_pairs, of_tokens, scratch, scratch + self.n_tokens * self.n_group]
    }
}

/// Scratch memory for a chunk of tokens.
pub(super) struct ExpertRooms {
    q8: Room,
    pairs: Room,
    counts: Room,
    tests: Room,
    ups: Room,
    h_q8: Room,
    partial: Room,
    n_parts: usize,
}

impl ExpertRooms {
    pub(super) fn new(
        op: &SparseFfn<TensorDesc>,
        groups: &Groups,
        facts: &Facts,
        scratch: &mut Scratch,
    ) -> ExpertRooms {
        let sizes = Sizes::new(op.x.n_rows, groups);
        let n_h = sizes.n_pairs * sizes.most_rows;
        let across = op.orientation == Down::AcrossNeurons;
        let rounded = rounds_x(op.gate.as_ref().map(|gate| gate.format), op.up.format);
        let rounded_h = across && takes_q8(op.down.format);
        let n_parts = if across {
            1
        } else {
            op.down.n_rows.div_ceil(part_rows(&op.down, STEP, facts).max(1)).max(1)
        };
        ExpertRooms {
            q8: scratch.q8(if rounded { sizes.n_tokens * op.x.n_cols } else { 0 }),
            pairs: scratch.words(sizes.places()[3]),
            counts: scratch.words(sizes.n_tokens),
            tests: scratch.words(n_h),
            ups: scratch.words(if op.gate.is_some() { n_h } else { 0 }),
            h_q8: scratch.q8(if rounded_h { n_h } else { 0 }),
            partial: scratch.words(n_parts * sizes.n_pairs * op.y.n_cols),
            n_parts,
        }
    }
}

pub(super) fn lower_experts(
    op: &SparseFfn<Tensor>,
    groups: &Groups,
    rooms: &ExpertRooms,
    starts: &Span,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let n_tokens = op.x.desc().n_rows;
    let rows = groups.rows().flat_map(|rows| [rows.start as u32, rows.end as u32]);
    let rows = out.constants(&rows.collect::<Vec<u32>>())?;
    for first_token in (0..n_tokens).step_by(stretch(groups)) {
        let sizes = Sizes::new(n_tokens - first_token, groups);
        let (starts, rows) = (starts.clone(), rows.clone());
        Experts { op, groups, rooms, starts, rows, sizes, first_token }.lower(out)?;
    }
    Ok(())
}

struct Experts<'a> {
    op: &'a SparseFfn<Tensor>,
    groups: &'a Groups,
    rooms: &'a ExpertRooms,
    starts: Span,
    /// Begin and end of each group's rows.
    rows: Span,
    sizes: Sizes,
    first_token: usize,
}

impl Experts<'_> {
    fn lower(&self, out: &mut Lowering<'_>) -> Result<()> {
        let (op, n_tokens) = (self.op, self.sizes.n_tokens);
        self.pairs(out)?;
        let x = tokens(&op.x, self.first_token, n_tokens)?;
        let n_values = n_tokens * op.x.desc().n_cols;
        let gate_format = op.gate.as_ref().map(|gate| gate.desc().format);
        let rounded = rounds_x(gate_format, op.up.desc().format);
        let q8 = self.rooms.q8.span(out)?;
        if rounded {
            quantize(&x, n_values, &q8, None, out)?;
        }
        let tests = self.rooms.tests.span(out)?;
        let ups = match &op.gate {
            Some(gate) => {
                let ups = self.rooms.ups.span(out)?;
                self.product(gate, &op.bias_gate, [&x, &q8], &tests, out)?;
                self.product(&op.up, &op.bias_up, [&x, &q8], &ups, out)?;
                ups
            }
            None => {
                self.product(&op.up, &op.bias_up, [&x, &q8], &tests, out)?;
                tests.clone()
            }
        };
        self.hidden(&tests, &ups, out)?;
        match op.orientation {
            Down::ByNeuron => self.by_neuron(&tests, out)?,
            Down::AcrossNeurons => self.across(&tests, out)?,
        }
        self.reduce(out)
    }

    /// Finds the tokens that use each group.
    fn pairs(&self, out: &mut Lowering<'_>) -> Result<()> {
        let [of_pairs, of_tokens, scratch, _] = self.sizes.places();
        let Sizes { n_tokens, n_group, n_used, .. } = self.sizes;
        let numbers = [n_group, n_tokens, n_used, of_pairs, of_tokens, scratch];
        let spans = [
            self.group_weight(out)?,
            self.starts.clone(),
            self.rooms.pairs.span(out)?,
            self.rooms.counts.span(out)?,
        ];
        let source = Source::new("experts_pairs");
        out.dispatch(&source, &spans, &numbers.map(|n| n as u32), [1, 1, 1])
    }

    fn group_tokens(
        &self,
        rows: &Span,
        most_rows: usize,
        out: &Lowering<'_>,
    ) -> Result<GroupTokens> {
        Ok(GroupTokens {
            pairs: self.rooms.pairs.span(out)?,
            rows: rows.clone(),
            n_group: self.sizes.n_group,
            most_rows,
            x_by_pair: false,
        })
    }

    fn product(
        &self,
        weight: &Tensor,
        bias: &Option<Tensor>,
        [x, q8]: [&Span; 2],
        y: &Span,
        out: &mut Lowering<'_>,
    ) -> Result<()> {
        let weight = Weight::new(weight, 1, out)?;
        let x = if takes_q8(weight.desc.format) { q8 } else { x }.clone();
        let groups = Some(self.group_tokens(&self.rows, self.sizes.most_rows, out)?);
        let (weight, n_tokens, y) = (&weight, self.sizes.n_tokens, y.clone());
        let bias = bias.as_ref().map(plain).transpose()?;
        Product { weight, x, n_tokens, bias, relu: false, groups, y }.lower(out)
    }

    fn hidden(&self, tests: &Span, ups: &Span, out: &mut Lowering<'_>) -> Result<()> {
        let (op, sizes) = (self.op, &self.sizes);
        let flat = out.facts().tuning.flat as usize;
        let (activation, alpha, cap) = activation_numbers(op.activation);
        let skip = skip_number(op.skip);
        let spans = [
            tests.clone(),
            ups.clone(),
            out.maybe(op.threshold.as_ref())?,
            self.group_weight(out)?,
            self.starts.clone(),
            self.rooms.pairs.span(out)?,
            self.rooms.counts.span(out)?,
        ];
        let numbers = [
            sizes.most_rows as u32,
            sizes.n_group as u32,
            u32::from(op.threshold.is_some()),
            kind_number(op.kind),
            activation,
            skip,
            alpha.to_bits(),
            UNUSED_LIMIT.to_bits(),
            cap.to_bits(),
        ];
        let grid = [sizes.most_rows.div_ceil(ROWS_EACH * flat) as u32, sizes.n_pairs as u32, 1];
        out.dispatch(&Source::new("experts_hidden").set("FLAT", flat), &spans, &numbers, grid)
    }

    fn by_neuron(&self, h: &Span, out: &mut Lowering<'_>) -> Result<()> {
        let weight = Weight::new(&self.op.down, STEP, out)?;
        let groups = self.group_tokens(&self.rows, self.sizes.most_rows, out)?;
        DownMany {
            weight: &weight,
            n_out: self.op.y.desc().n_cols,
            n_tokens: self.sizes.n_tokens,
            h: h.clone(),
            slice: STEP,
            groups: Some((groups, self.sizes.n_pairs)),
            partial: self.rooms.partial.span(out)?,
        }
        .lower(out)
    }

    /// One matrix for each group that has rows.
    fn across(&self, h: &Span, out: &mut Lowering<'_>) -> Result<()> {
        let n_out = self.op.y.desc().n_cols;
        let mut end = 0;
        let rows = self.groups.rows().flat_map(|rows| {
            let begin = end;
            end += if rows.is_empty() { 0 } else { n_out as u32 };
            [begin, end]
        });
        let rows = out.constants(&rows.collect::<Vec<u32>>())?;
        let mut x = h.clone();
        if takes_q8(self.op.down.desc().format) {
            x = self.rooms.h_q8.span(out)?;
            quantize(h, self.sizes.n_pairs * self.sizes.most_rows, &x, None, out)?;
        }
        let weight = Weight::new(&self.op.down, 1, out)?;
        let groups = GroupTokens { x_by_pair: true, ..self.group_tokens(&rows, n_out, out)? };
        let (weight, n_tokens, groups) = (&weight, self.sizes.n_tokens, Some(groups));
        let y = self.rooms.partial.span(out)?;
        Product { weight, x, n_tokens, bias: None, relu: false, groups, y }.lower(out)
    }

    fn reduce(&self, out: &mut Lowering<'_>) -> Result<()> {
        let (op, sizes) = (self.op, &self.sizes);
        let (n_out, flat) = (op.y.desc().n_cols, out.facts().tuning.flat as usize);
        let numbers = [
            n_out,
            sizes.n_tokens,
            sizes.n_group,
            sizes.n_used,
            sizes.n_pairs,
            sizes.places()[1],
            self.rooms.n_parts,
            usize::from(op.bias_down.is_some()),
            usize::from(op.accumulate),
        ];
        let n_active = 4 * sizes.n_tokens as u64;
        let spans = [
            self.rooms.partial.span(out)?,
            out.maybe(op.bias_down.as_ref())?,
            self.group_weight(out)?,
            self.rooms.pairs.span(out)?,
            self.rooms.counts.span(out)?,
            tokens(&op.y, self.first_token, sizes.n_tokens)?,
            plain(&op.active)?.part(4 * self.first_token as u64, n_active),
        ];
        let source = Source::new("experts_reduce").set("FLAT", flat);
        let grid = out.facts().grid((sizes.n_tokens * n_out.max(1)).div_ceil(flat));
        out.dispatch(&source, &spans, &numbers.map(|n| n as u32), grid)
    }

    fn group_weight(&self, out: &Lowering<'_>) -> Result<Span> {
        group_weight(self.op, self.first_token, self.sizes.n_tokens, out)
    }
}
