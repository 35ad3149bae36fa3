//! Splits the workspace, identically when an op is planned and when it is lowered.

use hal::Result;

use crate::Emit;

/// Ranges begin at multiples of this many bytes: the strictest alignment of any driver, and whole
/// cache lines.
pub(crate) const ALIGN: u64 = 256;

/// A range of the workspace, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScratchRange {
    offset: u64,
    size: u64,
}

impl ScratchRange {
    /// The range in the device's memory; the backend's empty span if nothing was reserved.
    ///
    /// # Errors
    /// A workspace that is smaller than planned.
    pub fn span<E: Emit>(self, out: &E) -> Result<E::Span> {
        match self.size {
            0 => Ok(out.no_span()),
            size => out.workspace(self.offset, size),
        }
    }
}

/// Reserves consecutive ranges of the workspace.
#[derive(Debug, Default)]
pub struct Scratch {
    bytes: u64,
    largest: u64,
}

impl Scratch {
    /// Reserves `n` words.
    pub fn words(&mut self, n: usize) -> ScratchRange {
        let range = ScratchRange { offset: self.bytes, size: 4 * n as u64 };
        self.bytes += range.size.next_multiple_of(ALIGN);
        self.largest = self.largest.max(range.size);
        range
    }

    /// Reserves `n_values` values in Q8 blocks.
    pub fn q8(&mut self, n_values: usize) -> ScratchRange {
        self.words(n_values / 32 * 12)
    }

    /// The end of the last range, rounded up to 256.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of the largest range.
    #[must_use]
    pub fn largest(&self) -> u64 {
        self.largest
    }
}
