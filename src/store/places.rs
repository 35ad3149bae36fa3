//! Places for rows that are units of their own.
//!
//! A row that is read takes the place of one that was evicted, wherever that is, and a table says
//! where ([`hal::RowTable`]). Getting memory from the system and returning it takes longer than
//! reading a row, and there are too many rows to move their pages (`spare`).

use std::collections::HashMap;
use std::ops::Range;

use hal::Bytes;

use crate::reader::Backing;

/// The free places in the region of one file, for rows of the same length.
#[derive(Debug, Default)]
struct Free {
    /// Where places without memory begin.
    empty: Vec<u64>,
    /// Where places with memory begin.
    spare: Vec<u64>,
}

/// The free places, by the number of the file and the bytes of a row.
#[derive(Debug, Default)]
pub(crate) struct Places {
    free: HashMap<(usize, u64), Free>,
    /// Memory of all free places.
    spare: u64,
}

impl Places {
    /// Adds places without memory: consecutive ones of `row_bytes` in `range`.
    pub(crate) fn add(&mut self, file: usize, row_bytes: u64, range: Range<u64>) {
        let free = self.free.entry((file, row_bytes)).or_default();
        free.empty.extend(range.step_by(row_bytes as usize));
    }

    /// Takes a place, with memory if there is one. Returns where it begins, and the bytes of its
    /// memory.
    ///
    /// # Panics
    /// If more rows have places than were added.
    pub(crate) fn take(&mut self, file: usize, row_bytes: u64) -> (u64, Bytes) {
        let free = self.free.entry((file, row_bytes)).or_default();
        if let Some(start) = free.spare.pop() {
            self.spare -= row_bytes;
            return (start, Bytes(row_bytes));
        }
        (free.empty.pop().expect("each row has one place at most"), Bytes(0))
    }

    /// Gives a place back, with its memory.
    pub(crate) fn put(&mut self, file: usize, row_bytes: u64, start: u64) {
        self.free.entry((file, row_bytes)).or_default().spare.push(start);
        self.spare += row_bytes;
    }

    /// Memory that no row uses.
    pub(crate) fn bytes(&self) -> Bytes {
        Bytes(self.spare)
    }

    /// Returns memory to the system until at most `room` bytes are left.
    pub(crate) fn shrink(&mut self, backings: &[Backing], room: u64) {
        for (&(file, row_bytes), free) in &mut self.free {
            let n = self.spare.saturating_sub(room).div_ceil(row_bytes);
            let n = free.spare.len().min(n as usize);
            let mut released: Vec<u64> = free.spare.drain(..n).collect();
            self.spare -= row_bytes * n as u64;
            // Neighbours at once: a call takes longer than its pages.
            released.sort_unstable();
            for run in released.chunk_by(|&a, &b| a + row_bytes == b) {
                let (first, last) = (run[0], run[run.len() - 1]);
                backings[file].region.release(first..last + row_bytes);
            }
            free.empty.extend(released);
        }
    }
}
