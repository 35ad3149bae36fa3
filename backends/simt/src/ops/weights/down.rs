//! The second half of a feed-forward block: the down projection, in partial sums that are added in
//! order.

use hal::format::Code;
use hal::op::{Down, Groups, SparseFfn};
use hal::{Operand, Result, Tensor, TensorDesc};
use layout::has_tables;

use super::matmul::{GroupTokens, Product, quantize};
use super::operand::{Weight, takes_q8};
use super::scratch::{Room, Scratch};
use super::{BLOCK, FEW};
use crate::buffer::{Span, plain};
use crate::driver::Arg;
use crate::facts::Facts;
use crate::lowering::{Lowering, ptr, word};
use crate::units::Unit;

/// Maximum number of slices of rows with separate sums.
const MAX_SLICES: usize = 64;
/// Rows of a slice are a multiple of this: `down_few` splits it in four.
const SLICE_STEP: usize = 64;
/// Slices per used group. The order of additions must not depend on which other groups are used,
/// so this is a multiple of the parallel sums of `ffn_reduce`.
const GROUP_SLICES: usize = 8;
/// Tokens whose groups are processed at once.
const GROUP_TOKENS: usize = 4;
/// Columns per block of `down_few`, and columns and tokens per tile of `down_many`.
const FEW_COLUMNS: usize = 512;
const TILE_COLUMNS: usize = 128;
const TILE_TOKENS: usize = 64;
/// Columns per block of `ffn_reduce`.
const REDUCE_COLUMNS: usize = 32;
/// Threads per block of `across_few`, and rows that a group of lanes processes at once.
const ACROSS_BLOCK: u32 = 128;
const ACROSS_ROWS: usize = 2;

/// Rows of a slice: in decode they depend on the matrix alone; in prefill all slices together fill
/// the device.
fn slice(n_rows: usize, n_out: usize, n_tokens: usize, facts: &Facts) -> usize {
    let n_slices = match n_tokens {
        0..=FEW => MAX_SLICES,
        _ => {
            let tiles = n_out.div_ceil(TILE_COLUMNS) * n_tokens.div_ceil(TILE_TOKENS);
            (2 * facts.n_units as usize / tiles.max(1)).clamp(1, 8)
        }
    };
    n_rows.div_ceil(n_slices).next_multiple_of(SLICE_STEP).max(SLICE_STEP)
}

/// Scratch memory of the second half.
#[derive(Clone, Copy, Debug)]
pub(super) struct DownRooms {
    /// Values of neurons in Q8 blocks, if down takes them so.
    q8: Room,
    partial: Room,
    n_slices: usize,
    slice: usize,
    /// Slices per group, if only used groups are sliced; otherwise 0.
    each: usize,
}

impl DownRooms {
    /// For `n_tokens` at a time.
    pub(super) fn new(
        op: &SparseFfn<TensorDesc>,
        n_tokens: usize,
        facts: &Facts,
        scratch: &mut Scratch,
    ) -> DownRooms {
        let (n_rows, n_out) = (op.up.n_rows, op.y.n_cols);
        let mut slice = slice(n_rows, n_out, n_tokens, facts);
        let (mut n_slices, mut each, mut at_once) = (n_rows.div_ceil(slice), 0, n_tokens);
        let across = op.orientation == Down::AcrossNeurons;
        match &op.groups {
            _ if across => n_slices = 1,
            Some(groups) if n_tokens <= FEW => {
                let most = groups.rows().map(|rows| rows.len()).max().unwrap_or(0);
                at_once = n_tokens.min(GROUP_TOKENS);
                each = GROUP_SLICES;
                slice = most.div_ceil(each).next_multiple_of(SLICE_STEP).max(SLICE_STEP);
                n_slices = each * groups.n_group().min(at_once * groups.n_used);
            }
            None | Some(_) => {}
        }
        let rounded = across && takes_q8(op.down.format);
        let q8 = scratch.q8(if rounded { n_tokens * n_rows } else { 0 });
        DownRooms { q8, partial: scratch.words(n_slices * at_once * n_out), n_slices, slice, each }
    }
}

/// The down projection for some tokens of an op whose neuron values are already computed.
pub(super) struct SecondHalf<'a> {
    pub(super) op: &'a SparseFfn<Tensor>,
    pub(super) rooms: DownRooms,
    pub(super) first_token: usize,
    pub(super) n_tokens: usize,
    /// `[n_tokens, n_rows]`
    pub(super) h: Span,
    /// `[n_tokens]`, number of active neurons.
    pub(super) counts: Span,
    /// Start of each group; null without groups.
    pub(super) starts: Span,
}

impl SecondHalf<'_> {
    pub(super) fn lower(&self, out: &mut Lowering<'_>) -> Result<()> {
        // The last tokens of a prefill use the same path, since scratch is planned only for
        // it.
        let many = self.n_tokens > FEW || self.op.groups.is_some() && self.rooms.each == 0;
        match (self.op.orientation, &self.op.groups) {
            (Down::ByNeuron, _) if many => self.by_neuron_many(out)?,
            (Down::ByNeuron, Some(_)) if self.n_tokens > GROUP_TOKENS => return self.in_parts(out),
            (Down::ByNeuron, _) => self.by_neuron(out)?,
            (Down::AcrossNeurons, None) => self.across(out)?,
            (Down::AcrossNeurons, Some(groups)) => self.across_groups(groups, out)?,
        }
        self.reduce(out)
    }

    /// A few tokens at a time: together they would use many groups.
    fn in_parts(&self, out: &mut Lowering<'_>) -> Result<()> {
        let row = 4 * self.op.up.desc().n_rows as u64;
        for first in (0..self.n_tokens).step_by(GROUP_TOKENS) {
            let n_tokens = GROUP_TOKENS.min(self.n_tokens - first);
            let (op, rooms, first_token) = (self.op, self.rooms, self.first_token + first);
            let h = self.h.part(row * first as u64, row * n_tokens as u64);
            let counts = self.counts.part(4 * first as u64, 4 * n_tokens as u64);
            SecondHalf { op, rooms, first_token, n_tokens, h, counts, starts: self.starts }
                .lower(out)?;
        }
        Ok(())
    }

    fn by_neuron_many(&self, out: &mut Lowering<'_>) -> Result<()> {
        let weight = &Weight::new(&self.op.down)?;
        let (n_out, slice) = (self.op.y.desc().n_cols, self.rooms.slice);
        let (partial, n_tokens, h) = (self.rooms.partial.span(out)?, self.n_tokens, self.h);
        DownMany { weight, n_out, n_tokens, h, slice, groups: None, partial }.lower(out)
    }

    fn by_neuron(&self, out: &mut Lowering<'_>) -> Result<()> {
        let weight = Weight::new(&self.op.down)?;
        let n_out = self.op.y.desc().n_cols;
        let n_group = self.op.groups.as_ref().map_or(0, Groups::n_group);
        let (side, side_numbers) = side(&weight)?;
        let mut args = vec![ptr(weight.span), ptr(weight.tables(out))];
        args.extend(side);
        args.extend([
            ptr(self.h),
            ptr(self.group_weight()?),
            ptr(self.starts),
            ptr(self.rooms.partial.span(out)?),
            word(weight.desc.n_rows),
            word(weight.first_row),
            word(weight.row_words),
            word(n_out),
            word(self.n_tokens),
            word(self.rooms.slice),
            word(n_group),
            word(self.rooms.each),
        ]);
        args.extend(side_numbers);
        let (kernel, at_once) = if self.n_tokens == 1 { ("down_one", 1) } else { ("down_few", 4) };
        let columns = n_out.div_ceil(FEW_COLUMNS);
        let grid = [columns, self.rooms.n_slices, self.n_tokens.div_ceil(at_once)];
        out.launch(Unit::down("down_few", &weight.desc), kernel, grid, BLOCK, &args);
        Ok(())
    }

    /// The values in the format that down takes.
    fn values(&self, out: &mut Lowering<'_>) -> Result<Span> {
        if !takes_q8(self.op.down.desc().format) {
            return Ok(self.h);
        }
        let q = self.rooms.q8.span(out)?;
        quantize(self.h, self.n_tokens * self.op.up.desc().n_rows, q, None, out);
        Ok(q)
    }

    fn across(&self, out: &mut Lowering<'_>) -> Result<()> {
        let x = self.values(out)?;
        let (weight, bias) = (&Weight::new(&self.op.down)?, Span::NONE);
        let (n_tokens, y) = (self.n_tokens, self.rooms.partial.span(out)?);
        Product { weight, x, n_tokens, bias, relu: false, groups: None, y }.lower(out);
        Ok(())
    }

    /// One matrix for each group that has rows; matrices of unused groups are not read.
    fn across_groups(&self, groups: &Groups, out: &mut Lowering<'_>) -> Result<()> {
        let x = self.values(out)?;
        let weight = Weight::new(&self.op.down)?;
        let (desc, n_out) = (weight.desc, self.op.y.desc().n_cols);
        let filled = groups.rows().enumerate().filter(|(_, rows)| !rows.is_empty());
        let filled: Vec<u32> = filled.map(|(g, _)| g as u32).collect();
        let lanes = weight.lanes();
        let args = [
            ptr(weight.span),
            ptr(weight.tables(out)),
            ptr(x),
            ptr(self.group_weight()?),
            ptr(out.constants(&filled)?),
            ptr(self.rooms.partial.span(out)?),
            word(weight.row_words),
            word(desc.n_cols),
            word(n_out),
            word(filled.len()),
            word(groups.n_group()),
            word(self.n_tokens),
            word(lanes),
        ];
        let kernel = if self.n_tokens == 1 { "across_one" } else { "across_few" };
        let grid = [n_out.div_ceil(ACROSS_ROWS * (ACROSS_BLOCK as usize / lanes)), 1, 1];
        out.launch(Unit::weight("across_few", desc.format), kernel, grid, ACROSS_BLOCK, &args);
        Ok(())
    }

    fn reduce(&self, out: &mut Lowering<'_>) -> Result<()> {
        let (op, n_out) = (self.op, self.op.y.desc().n_cols);
        let active = plain(&op.active)?.part(4 * self.first_token as u64, 4 * self.n_tokens as u64);
        let args = [
            ptr(self.rooms.partial.span(out)?),
            ptr(out.maybe(op.bias_down.as_ref())?),
            ptr(self.group_weight()?),
            ptr(self.counts),
            ptr(self.h),
            ptr(tokens(&op.y, self.first_token, self.n_tokens)?),
            ptr(active),
            ptr(out.maybe(op.hits.as_ref())?),
            word(n_out),
            word(self.n_tokens),
            word(self.rooms.n_slices),
            word(op.groups.as_ref().map_or(0, Groups::n_group)),
            word(op.up.desc().n_rows),
            word(usize::from(op.accumulate)),
        ];
        let grid = [n_out.div_ceil(REDUCE_COLUMNS), self.n_tokens, 1];
        out.launch(Unit::plain("ffn"), "ffn_reduce", grid, BLOCK, &args);
        Ok(())
    }

    fn group_weight(&self) -> Result<Span> {
        group_weight(self.op, self.first_token, self.n_tokens)
    }
}

/// Tables of a transposed matrix, and its other parameters: words of the tables' rows, the offset
/// subtracted from codes, whether scales are wide.
fn side(weight: &Weight) -> Result<([Arg; 3], [Arg; 3])> {
    let side = weight.transposed_tables()?;
    let quants = weight.desc.format.quants().filter(|_| has_tables(&weight.desc));
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
    let mins = if mins { side.mins } else { Span::NONE };
    let pointers = [ptr(side.groups), ptr(side.scales), ptr(mins)];
    let numbers = [word(side.row_words), Arg::U32(offset as u32), Arg::U32(u32::from(wide))];
    Ok((pointers, numbers))
}

/// Values of neurons times rows of down, by tiles: in slices of all rows, or with groups in one
/// slice per group.
pub(super) struct DownMany<'a> {
    pub(super) weight: &'a Weight,
    pub(super) n_out: usize,
    pub(super) n_tokens: usize,
    /// A row per token, or per pair.
    pub(super) h: Span,
    pub(super) slice: usize,
    pub(super) groups: Option<GroupTokens>,
    pub(super) partial: Span,
}

impl DownMany<'_> {
    pub(super) fn lower(&self, out: &mut Lowering<'_>) -> Result<()> {
        let weight = self.weight;
        let n_rows = weight.desc.n_rows;
        let (side, side_numbers) = side(weight)?;
        let (pairs, rows, n_group, h_cols) = match &self.groups {
            None => (Span::NONE, Span::NONE, 0, n_rows),
            Some(g) => (g.pairs, g.rows, g.n_group, g.most_rows),
        };
        let mut args = vec![ptr(weight.span), ptr(weight.tables(out))];
        args.extend(side);
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
            word(n_group),
        ]);
        args.extend(side_numbers);
        let slices = if n_group > 0 { n_group } else { n_rows.div_ceil(self.slice) };
        let tiles =
            [self.n_out.div_ceil(TILE_COLUMNS), self.n_tokens.div_ceil(TILE_TOKENS), slices];
        let file = if out.facts().mma_floats { "down_many" } else { "down_plain" };
        out.launch(Unit::down(file, &weight.desc), "down_many", tiles, BLOCK, &args);
        Ok(())
    }
}

/// Rows of a plain operand.
pub(super) fn tokens(tensor: &Tensor, first: usize, n: usize) -> Result<Span> {
    plain(&tensor.rows(first..first + n))
}

/// The router's weight of each group for some tokens; null without groups.
pub(super) fn group_weight(
    op: &SparseFfn<Tensor>,
    first_token: usize,
    n_tokens: usize,
) -> Result<Span> {
    match &op.group_weight {
        Some(weight) => tokens(weight, first_token, n_tokens),
        None => Ok(Span::NONE),
    }
}
