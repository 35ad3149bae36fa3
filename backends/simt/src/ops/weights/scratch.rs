//! Splits the workspace, identically when an op is planned and when it is lowered.

use hal::Result;

use crate::buffer::Span;
use crate::lowering::Lowering;

/// Ranges begin at multiples of this: whole cache lines, and more than the alignment of any load.
const STEP: u64 = 256;

/// A range of the workspace, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Room {
    offset: u64,
    size: u64,
}

impl Room {
    pub(super) fn span(self, out: &Lowering<'_>) -> Result<Span> {
        match self.size {
            0 => Ok(Span::NONE),
            size => out.workspace(self.offset, size),
        }
    }
}

/// The layout so far.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) bytes: u64,
}

impl Scratch {
    /// The layout from byte `bytes` on, a multiple of 256.
    pub(super) fn behind(bytes: u64) -> Scratch {
        Scratch { bytes }
    }

    /// Reserves `n` words.
    pub(super) fn words(&mut self, n: usize) -> Room {
        let room = Room { offset: self.bytes, size: 4 * n as u64 };
        self.bytes += room.size.next_multiple_of(STEP);
        room
    }

    /// Reserves `n_values` values in Q8 blocks.
    pub(super) fn q8(&mut self, n_values: usize) -> Room {
        self.words(n_values / 32 * 12)
    }
}
