//! [`RowTable`]: where the rows of a matrix are, in memory that they share with other rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The place of one row.
#[derive(Debug)]
pub struct RowPlace(AtomicU32);

/// The place of each row of a matrix that is not in order, nor in one piece: rows that are read from
/// disk one by one take the places of others, in memory that the rows of several matrices share.
///
/// Like the memory itself, a table changes only while no program runs that reads these rows.
pub type RowTable = Arc<[RowPlace]>;

impl RowPlace {
    /// Rows begin at multiples of this number of bytes: a page that a disk reads, and the usual page
    /// of memory.
    pub const UNIT: u64 = 4096;

    /// A row that begins `start` bytes after the beginning of the memory; `None` if that is not a
    /// multiple of [`RowPlace::UNIT`], or not below 16 TiB.
    #[must_use]
    pub fn new(start: u64) -> Option<RowPlace> {
        let unit = u32::try_from(start / RowPlace::UNIT).ok();
        unit.filter(|_| start.is_multiple_of(RowPlace::UNIT)).map(|unit| RowPlace(unit.into()))
    }

    /// A table of `n_rows` rows in order, `pitch` bytes apart, the first of them at `start`; `None` as
    /// for [`RowPlace::new`].
    #[must_use]
    pub fn in_order(start: u64, pitch: u64, n_rows: usize) -> Option<RowTable> {
        (0..n_rows as u64)
            .map(|row| RowPlace::new(start.checked_add(row.checked_mul(pitch)?)?))
            .collect()
    }

    /// Bytes from the beginning of the memory to the row.
    #[inline(always)]
    #[must_use]
    pub fn start(&self) -> u64 {
        u64::from(self.0.load(Ordering::Relaxed)) * RowPlace::UNIT
    }

    /// Moves the row to `start`.
    ///
    /// # Panics
    /// If [`RowPlace::new`] does not accept `start`.
    pub fn set(&self, start: u64) {
        let place = RowPlace::new(start).expect("a multiple of the unit, below 16 TiB");
        self.0.store(place.0.into_inner(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_begin_on_pages() {
        let table = RowPlace::in_order(8192, 12288, 3).unwrap();
        assert_eq!(table.iter().map(RowPlace::start).collect::<Vec<_>>(), [8192, 20480, 32768]);
        table[1].set(8192);
        assert_eq!(table[1].start(), 8192);
        let end = u64::from(u32::MAX) * RowPlace::UNIT;
        assert_eq!(RowPlace::new(end).map(|place| place.start()), Some(end));
        assert!(RowPlace::new(end + RowPlace::UNIT).is_none());
        assert!(RowPlace::new(100).is_none() && RowPlace::in_order(0, 100, 2).is_none());
        assert!(RowPlace::in_order(4096, u64::MAX / 4096 * 4096, 3).is_none());
    }
}
