//! Writes the active rows that a home device posted into the list of another device, and reads the
//! list of a device.

use hal::{HostRowSet, Operand, Queue, RowSet, Tensor};

use crate::error::Result;
use crate::size::lists::MIN_ROWS;

/// A list of rows to send to a device, in buffers that every step reuses.
#[derive(Debug, Default)]
pub(crate) struct SentRows {
    ids: Vec<u32>,
    members: Vec<u32>,
    order: Vec<u32>,
}

impl SentRows {
    /// Copies the posted rows with ids in `rows`: renumbered from 0, sorted, with `words`
    /// membership words each.
    pub(crate) fn fill(&mut self, posted: &HostRowSet, rows: std::ops::Range<u32>, words: usize) {
        self.ids.clear();
        self.members.clear();
        for (i, id) in posted.ids.iter().enumerate().filter(|(_, id)| rows.contains(id)) {
            self.ids.push(id - rows.start);
            let first = self.members.len();
            self.members.extend_from_slice(&posted.members[i * posted.words..][..posted.words]);
            // A padded step has membership bits for its padded tokens too.
            self.members.resize(first + words, 0);
        }
        self.sort(words);
    }

    /// Sorts by row. After an exchange neurons are out of order, and ascending rows are read
    /// faster.
    fn sort(&mut self, words: usize) {
        if self.ids.is_sorted() {
            return;
        }
        self.order.clear();
        self.order.extend(0..self.ids.len() as u32);
        let ids = &self.ids;
        self.order.sort_unstable_by_key(|&i| ids[i as usize]);
        let old = self.members.clone();
        for (to, &from) in self.members.chunks_exact_mut(words.max(1)).zip(&self.order) {
            to.copy_from_slice(&old[from as usize * words..][..words]);
        }
        self.ids.sort_unstable();
    }

    /// The rows, with `words` membership words each.
    pub(crate) fn rows(&self, words: usize) -> HostRowSet {
        HostRowSet { ids: self.ids.clone(), members: self.members.clone(), words }
    }

    /// Writes the rows into the list `set` of a device.
    pub(crate) fn write(&mut self, queue: &mut Queue, set: &RowSet<Tensor>) -> Result<()> {
        let (capacity, words) = (set.ids.desc().n_cols, set.members.desc().n_cols);
        let count = self.ids.len() as u32;
        let n = self.ids.len().max(MIN_ROWS).next_power_of_two().min(capacity);
        self.ids.resize(n, 0);
        self.members.resize(n * words, 0);
        queue.write(&set.count, bytemuck::bytes_of(&count))?;
        queue.write(&set.ids, bytemuck::cast_slice(&self.ids))?;
        queue.write(&set.members, bytemuck::cast_slice(&self.members))?;
        Ok(())
    }
}

/// Reads the list `set` of a device.
pub(crate) fn read_rows(
    queue: &mut Queue,
    set: &RowSet<Tensor>,
    out: &mut HostRowSet,
) -> Result<()> {
    let mut count = 0u32;
    queue.read(&set.count, bytemuck::bytes_of_mut(&mut count))?;
    let n = set.ids.desc().n_cols.min(count as usize);
    out.ids.resize(set.ids.desc().n_cols, 0);
    queue.read(&set.ids, bytemuck::cast_slice_mut(&mut out.ids))?;
    out.ids.truncate(n);
    out.words = set.members.desc().n_cols;
    out.members.resize(n * out.words, 0);
    if n > 0 {
        queue.read(&set.members.rows(0..n), bytemuck::cast_slice_mut(&mut out.members))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_numbered_from_the_start_of_the_range_and_sorted() {
        let mut sent = SentRows::default();
        let posted = HostRowSet { ids: vec![0, 2, 1, 4], members: vec![1, 2, 3, 4], words: 1 };
        sent.fill(&posted, 2..5, 2);
        assert_eq!((&sent.ids, &sent.members), (&vec![0, 2], &vec![2, 0, 4, 0]));
        let posted = HostRowSet { ids: vec![7, 0, 4, 3], members: vec![1, 2, 3, 4], words: 1 };
        sent.fill(&posted, 0..8, 1);
        assert_eq!((sent.ids, sent.members), (vec![0, 3, 4, 7], vec![2, 4, 3, 1]));
    }
}
