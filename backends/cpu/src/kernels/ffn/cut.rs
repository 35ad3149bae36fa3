//! How an op is split, and its workspace.

use hal::Operand;
use hal::format::Activation;
use hal::op::{self, Down};

use super::super::operand::Q8Span;
use super::super::panels::PanelSpans;
use super::groups::GroupSpans;
use super::{few, prompt};
use crate::buffer::{Scratch, Span};
use crate::simd::PANEL_ROWS;

/// Maximum number of tokens of a tile.
pub(super) const TILE: usize = 16;
/// Maximum number of rows of a slice.
pub(super) const SLICE: usize = 256;
/// Slices of the rows that one token uses; large blocks have more, because of [`SLICE`].
const N_SLICES: usize = 32;
/// Tiles are made smaller above this many bytes of partial sums.
const PARTIAL_BYTES: usize = 32 << 20;

/// How an op is split.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) n_tokens: usize,
    pub(super) n_out: usize,
    /// Number of groups; one, with all rows, if the op has none.
    pub(super) n_group: usize,
    /// Groups per token.
    pub(super) n_used: usize,
    /// Rows of the largest group.
    pub(super) group_rows: usize,
    /// Rows of a slice.
    pub(super) slice: usize,
    /// Slices of the largest group, and of all.
    pub(super) group_slices: usize,
    pub(super) n_slices: usize,
    pub(super) tile: usize,
    pub(super) is_prompt: bool,
}

impl Cut {
    pub(super) fn new<T: Operand>(op: &op::SparseFfn<T>) -> Cut {
        let (n_rows, y) = (op.up.desc().n_rows, op.y.desc());
        let (n_group, n_used, group_rows) = match &op.groups {
            None => (1, 1, n_rows),
            Some(groups) => {
                let most = groups.rows().map(|rows| rows.len()).max().unwrap_or(0);
                (groups.n_group(), groups.n_used, most)
            }
        };
        // Whole groups of a transposed matrix: no two slices share a group's scales.
        let parts = N_SLICES.div_ceil(n_used);
        let slice = group_rows.div_ceil(parts).next_multiple_of(32).clamp(32, SLICE);
        let n_slices = match &op.groups {
            None => n_rows.div_ceil(slice),
            Some(groups) => groups.rows().map(|rows| rows.len().div_ceil(slice)).sum(),
        };
        let group_slices = group_rows.div_ceil(slice);
        let partial = n_used * group_slices * y.n_cols * size_of::<f32>();
        let tile = match op.orientation {
            Down::ByNeuron => (PARTIAL_BYTES / partial.max(1)).clamp(1, TILE),
            Down::AcrossNeurons => TILE,
        };
        let prompt = prompt::tile(op, n_used, group_rows);
        let tile = prompt.unwrap_or(tile.min(y.n_rows));
        Cut {
            n_tokens: y.n_rows,
            n_out: y.n_cols,
            n_group,
            n_used,
            group_rows,
            slice,
            group_slices,
            n_slices,
            tile,
            is_prompt: prompt.is_some(),
        }
    }

    /// Maximum number of (token, group) pairs of a tile.
    pub(super) fn n_pairs(&self) -> usize {
        self.tile * self.n_used
    }
}

/// Workspace of the op.
pub(in super::super) struct Spans {
    pub(super) x: Option<Q8Span>,
    pub(super) groups: GroupSpans,
    /// Active neurons: `[n_pairs, group_slices]`.
    pub(super) carried: Span<u32>,
    /// Counts of each slice: `[1, n_slices * few::N_COUNTS]`.
    pub(super) slice_counts: Span<u32>,
    /// Start of each slice in a row list.
    pub(super) starts: Span<u32>,
    /// Sums of some rows of down: `[n_pairs * group_slices, n_out]`; in prefill one for each pair
    /// of a block with groups.
    pub(super) partial: Span<f32>,
    /// The neurons' values, unless they are quantised at once: `[n_pairs, group_rows]`.
    pub(super) h: Span<f32>,
    pub(super) h_q8: Option<Q8Span>,
    /// For prefill.
    pub(super) panels: PanelSpans,
    /// Active neurons of each panel of a group, a bit each: `[n_pairs, panels]`.
    pub(super) kept: Span<u32>,
}

impl Spans {
    pub(in super::super) fn new<T: Operand>(
        op: &op::SparseFfn<T>,
        n_threads: usize,
        scratch: &mut Scratch,
    ) -> Spans {
        let cut = Cut::new(op);
        let formats = [op.gate.as_ref().map(|gate| gate.desc().format), Some(op.up.desc().format)];
        let n_pairs = cut.n_pairs();
        let (sliced, prompt) = if cut.is_prompt { (0, n_pairs) } else { (n_pairs, 0) };
        let (partial, h, down) = match op.orientation {
            Down::ByNeuron => {
                let pairs = if op.groups.is_some() { prompt } else { 0 };
                (sliced * cut.group_slices + pairs, prompt, None)
            }
            Down::AcrossNeurons => (0, n_pairs, Some(op.down.desc().format)),
        };
        // Values that are quantised are not stored as F32.
        let rounded = down.is_some_and(|down| down.activation() == Activation::Q8);
        let plain = if rounded { 0 } else { h };
        let tile = if cut.is_prompt { cut.tile } else { 0 };
        Spans {
            x: Q8Span::new(&formats, cut.tile, op.x.desc().n_cols, scratch),
            groups: GroupSpans::new(&cut, scratch),
            carried: scratch.take(sliced, cut.group_slices),
            slice_counts: scratch.take(usize::from(!cut.is_prompt), cut.n_slices * few::N_COUNTS),
            starts: scratch.take(1, cut.n_slices + 1),
            partial: scratch.take(partial, cut.n_out),
            h: scratch.take(plain, cut.group_rows),
            h_q8: Q8Span::new(&[down], h, cut.group_rows, scratch),
            panels: PanelSpans::new(tile, 2, n_threads, scratch),
            kept: scratch.take(prompt, cut.group_rows.div_ceil(PANEL_ROWS)),
        }
    }
}
