//! Splits the workspace, identically when an op is planned and when it is lowered.

use hal::Result;

use crate::buffer::Span;
use crate::facts::Facts;
use crate::lowering::Lowering;

/// Ranges begin at multiples of this many bytes, the strictest alignment of any driver.
const ALIGN: u64 = 256;

/// A range of the workspace, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ScratchRange {
    offset: u64,
    size: u64,
}

impl ScratchRange {
    pub(super) fn span(self, out: &Lowering<'_>) -> Result<Span> {
        if self.size == 0 {
            return Ok(out.dummy());
        }
        out.workspace(self.offset, self.size)
    }
}

/// Reserves consecutive ranges of the workspace; `bytes` is the end of the last range, rounded
/// up to [`ALIGN`].
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) bytes: u64,
    largest: u64,
}

impl Scratch {
    /// Reserves ranges from byte `bytes` on, a multiple of 256.
    pub(super) fn starting_at(bytes: u64) -> Scratch {
        Scratch { bytes, largest: 0 }
    }

    /// Reserves `n` words.
    pub(super) fn words(&mut self, n: usize) -> ScratchRange {
        let range = ScratchRange { offset: self.bytes, size: 4 * n as u64 };
        self.bytes += range.size.next_multiple_of(ALIGN);
        self.largest = self.largest.max(range.size);
        range
    }

    /// Reserves `n_values` values in Q8 blocks.
    pub(super) fn q8(&mut self, n_values: usize) -> ScratchRange {
        self.words(n_values / 32 * 12)
    }

    /// Why a range cannot be bound; `None` if all ranges can.
    pub(super) fn refusal(&self, facts: &Facts) -> Option<String> {
        let limit = hal::Bytes(facts.max_binding());
        let largest = hal::Bytes(self.largest);
        (largest > limit).then(|| {
            format!("it needs a scratch buffer of {largest}; a binding covers at most {limit}")
        })
    }
}
