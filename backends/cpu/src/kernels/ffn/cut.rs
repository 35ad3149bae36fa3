//! How an op is cut, and the workspace that takes.

use hal::Operand;
use hal::format::Activation;
use hal::op::{self, Down};

use super::super::operand::Q8Span;
use super::super::panels::PanelSpans;
use super::prompt;
use crate::buffer::{Scratch, Span};
use crate::simd::PANEL_ROWS;

/// Most tokens of a tile.
pub(super) const TILE: usize = 16;
/// Most rows of a slice.
pub(super) const SLICE: usize = 256;
/// Slices that an ordinary block is cut into.
const N_SLICES: usize = 32;
/// Bytes of partial sums above which tiles get smaller.
const PARTIAL_BYTES: usize = 32 << 20;

/// How an op is cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) n_tokens: usize,
    pub(super) n_rows: usize,
    pub(super) n_out: usize,
    pub(super) slice: usize,
    pub(super) n_slices: usize,
    pub(super) tile: usize,
    pub(super) is_prompt: bool,
}

impl Cut {
    pub(super) fn new<T: Operand>(op: &op::SparseFfn<T>) -> Cut {
        let (n_rows, y) = (op.up.desc().n_rows, op.y.desc());
        // Whole groups of a transposed matrix: no two slices share a group's scales.
        let slice = n_rows.div_ceil(N_SLICES).next_multiple_of(32).clamp(32, SLICE);
        let n_slices = n_rows.div_ceil(slice);
        let partial = n_slices * y.n_cols * size_of::<f32>();
        let tile = match op.orientation {
            Down::ByNeuron => (PARTIAL_BYTES / partial.max(1)).clamp(1, TILE),
            Down::AcrossNeurons => TILE,
        };
        let prompt = prompt::tile(op);
        let tile = prompt.unwrap_or(tile.min(y.n_rows));
        let is_prompt = prompt.is_some();
        Cut { n_tokens: y.n_rows, n_rows, n_out: y.n_cols, slice, n_slices, tile, is_prompt }
    }
}

/// Workspace of the op.
pub(in super::super) struct Spans {
    pub(super) x: Option<Q8Span>,
    /// Neurons carried through: `[n_slices, tile]`.
    pub(super) carried: Span<u32>,
    /// Where each slice begins in a list.
    pub(super) starts: Span<u32>,
    /// `[n_slices * tile, n_out]`, where down lies by neuron.
    pub(super) partial: Span<f32>,
    /// `[tile, n_rows]`, where it does not.
    pub(super) h: Span<f32>,
    pub(super) h_q8: Option<Q8Span>,
    /// For prompts.
    pub(super) panels: PanelSpans,
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
        let (partial, h, down) = match op.orientation {
            Down::ByNeuron if cut.is_prompt => (0, cut.tile, None),
            Down::ByNeuron => (cut.n_slices * cut.tile, 0, None),
            Down::AcrossNeurons => (0, cut.tile, Some(op.down.desc().format)),
        };
        // Whatever is rounded need not be kept as it was.
        let rounded = down.is_some_and(|down| down.activation() == Activation::Q8);
        let plain = if cut.is_prompt && rounded { 0 } else { h };
        let (sliced, prompt) = if cut.is_prompt { (0, cut.tile) } else { (cut.tile, 0) };
        Spans {
            x: Q8Span::new(&formats, cut.tile, op.x.desc().n_cols, scratch),
            carried: scratch.take(cut.n_slices, sliced),
            starts: scratch.take(1, cut.n_slices + 1),
            partial: scratch.take(partial, cut.n_out),
            h: scratch.take(plain, cut.n_rows),
            h_q8: Q8Span::new(&[down], h, cut.n_rows, scratch),
            panels: PanelSpans::new(prompt, 2, n_threads, scratch),
            kept: scratch.take(prompt, cut.n_rows.div_ceil(PANEL_ROWS)),
        }
    }
}
