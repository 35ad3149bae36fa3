//! How a feed-forward op is split into tiles and slices, and the op's workspace.

use hal::Operand;
use hal::format::Activation;
use hal::op::{self, Down};

use super::super::operand::Q8Span;
use super::super::panels::PanelSpans;
use super::experts::ExpertSpans;
use super::gaussian::TestSpan;
use super::{decode, prefill};
use crate::buffer::{Scratch, Span};
use simd::PANEL_ROWS;

/// Maximum number of tokens of a tile.
pub(super) const TILE: usize = 16;
/// Maximum number of rows of a slice.
pub(super) const SLICE: usize = 256;
/// Target number of slices of the rows that one token uses. Large feed-forward blocks have more
/// slices, because a slice has at most [`SLICE`] rows.
const N_SLICES: usize = 32;
/// Maximum bytes of a tile's partial sums; tiles have fewer tokens if needed to stay within the
/// limit.
const PARTIAL_BYTES: usize = 32 << 20;

/// How an op is split into tiles of tokens and slices of rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) n_tokens: usize,
    pub(super) n_out: usize,
    /// Number of experts; an op without experts counts as one expert with all rows.
    pub(super) n_expert: usize,
    /// Experts per token.
    pub(super) n_used: usize,
    /// Rows of the largest expert.
    pub(super) expert_rows: usize,
    /// Rows of a slice.
    pub(super) slice: usize,
    /// Number of slices of the largest expert, and of all experts.
    pub(super) expert_slices: usize,
    pub(super) n_slices: usize,
    pub(super) tile: usize,
    pub(super) is_prefill: bool,
}

impl Cut {
    pub(super) fn new<T: Operand>(op: &op::SparseFfn<T>) -> Cut {
        let (n_rows, y) = (op.up.desc().n_rows, op.y.desc());
        let (n_expert, n_used, expert_rows) = match &op.experts {
            None => (1, 1, n_rows),
            Some(experts) => {
                let most = experts.rows().map(|rows| rows.len()).max().unwrap_or(0);
                (experts.n_expert(), experts.n_used, most)
            }
        };
        // A multiple of 32, so no two slices share a scale of a transposed matrix.
        let parts = N_SLICES.div_ceil(n_used);
        let slice = expert_rows.div_ceil(parts).next_multiple_of(32).clamp(32, SLICE);
        let n_slices = match &op.experts {
            None => n_rows.div_ceil(slice),
            Some(experts) => experts.rows().map(|rows| rows.len().div_ceil(slice)).sum(),
        };
        let expert_slices = expert_rows.div_ceil(slice);
        let partial = n_used * expert_slices * y.n_cols * size_of::<f32>();
        let tile = match op.orientation {
            Down::ByNeuron => (PARTIAL_BYTES / partial.max(1)).clamp(1, TILE),
            Down::AcrossNeurons => TILE,
        };
        let prefill = prefill::tile_tokens(op, n_used, expert_rows);
        let tile = prefill.unwrap_or(tile.min(y.n_rows));
        Cut {
            n_tokens: y.n_rows,
            n_out: y.n_cols,
            n_expert,
            n_used,
            expert_rows,
            slice,
            expert_slices,
            n_slices,
            tile,
            is_prefill: prefill.is_some(),
        }
    }

    /// Maximum number of (token, expert) pairs of a tile.
    pub(super) fn n_pairs(&self) -> usize {
        self.tile * self.n_used
    }
}

pub(in super::super) struct Workspace {
    pub(super) x: Option<Q8Span>,
    pub(super) experts: ExpertSpans,
    pub(super) tests: TestSpan,
    /// Number of active neurons of each pair and slice: `[n_pairs, expert_slices]`.
    pub(super) n_active: Span<u32>,
    /// [`hal::op::UnionCounts`] of each slice: `[1, n_slices * decode::N_COUNTS]`.
    pub(super) slice_counts: Span<u32>,
    /// Start of each slice in a row list.
    pub(super) starts: Span<u32>,
    /// Partial sums of down: `[n_pairs * expert_slices, n_out]`; in prefill `[n_pairs, n_out]`, and
    /// only for blocks with experts.
    pub(super) partial: Span<f32>,
    /// The neurons' values, unless they are quantised immediately: `[n_pairs, expert_rows]`.
    pub(super) h: Span<f32>,
    pub(super) h_q8: Option<Q8Span>,
    /// Used only in prefill.
    pub(super) panels: PanelSpans,
    /// Active neurons of each panel of an expert, one bit per neuron: `[n_pairs, panels]`.
    pub(super) mask: Span<u32>,
}

impl Workspace {
    pub(in super::super) fn new<T: Operand>(
        op: &op::SparseFfn<T>,
        n_threads: usize,
        scratch: &mut Scratch,
    ) -> Self {
        let cut = Cut::new(op);
        let formats = [op.gate.as_ref().map(|gate| gate.desc().format), Some(op.up.desc().format)];
        let n_pairs = cut.n_pairs();
        let (sliced, prefill) = if cut.is_prefill { (0, n_pairs) } else { (n_pairs, 0) };
        let (partial, h, down) = match op.orientation {
            Down::ByNeuron => {
                let pairs = if op.experts.is_some() { prefill } else { 0 };
                (sliced * cut.expert_slices + pairs, prefill, None)
            }
            Down::AcrossNeurons => (0, n_pairs, Some(op.down.desc().format)),
        };
        // Values that are quantised are not stored as F32.
        let rounded = down.is_some_and(|down| down.activation() == Activation::Q8);
        let plain = if rounded { 0 } else { h };
        let tile = if cut.is_prefill { cut.tile } else { 0 };
        Self {
            x: Q8Span::new(&formats, cut.tile, op.x.desc().n_cols, scratch),
            experts: ExpertSpans::new(&cut, scratch),
            tests: TestSpan::new(op, &cut, scratch),
            n_active: scratch.take(sliced, cut.expert_slices),
            slice_counts: scratch
                .take(usize::from(!cut.is_prefill), cut.n_slices * decode::N_COUNTS),
            starts: scratch.take(1, cut.n_slices + 1),
            partial: scratch.take(partial, cut.n_out),
            h: scratch.take(plain, cut.expert_rows),
            h_q8: Q8Span::new(&[down], h, cut.expert_rows, scratch),
            panels: PanelSpans::new(tile, 2, n_threads, scratch),
            mask: scratch.take(prefill, cut.expert_rows.div_ceil(PANEL_ROWS)),
        }
    }
}
