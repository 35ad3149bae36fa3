//! Splits the workspace, identically when an op is planned and when it is lowered.

use hal::Result;

use crate::buffer::Span;
use crate::lowering::Lowering;

/// Ranges begin at multiples of this many bytes: whole cache lines, and enough for any load.
const ALIGN: u64 = 256;

/// A range of the workspace, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ScratchRange {
    offset: u64,
    size: u64,
}

impl ScratchRange {
    pub(super) fn span(self, out: &Lowering<'_>) -> Result<Span> {
        match self.size {
            0 => Ok(Span::NONE),
            size => out.workspace(self.offset, size),
        }
    }
}

/// Reserves consecutive ranges of the workspace; `bytes` is the end of the last range, rounded up
/// to [`ALIGN`].
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) bytes: u64,
}

impl Scratch {
    /// Reserves ranges from byte `bytes` on, a multiple of 256.
    pub(super) fn starting_at(bytes: u64) -> Scratch {
        Scratch { bytes }
    }

    /// Reserves `n` words.
    pub(super) fn words(&mut self, n: usize) -> ScratchRange {
        let range = ScratchRange { offset: self.bytes, size: 4 * n as u64 };
        self.bytes += range.size.next_multiple_of(ALIGN);
        range
    }

    /// Reserves `n_values` values in Q8 blocks.
    pub(super) fn q8(&mut self, n_values: usize) -> ScratchRange {
        self.words(n_values / 32 * 12)
    }
}
