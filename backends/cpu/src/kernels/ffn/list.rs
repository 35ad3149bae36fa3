//! The rows that a step needs: lists with membership bits.

use std::ops::Range;

use hal::{RowSet, Tensor};

use crate::buffer::{Reads, Writes};
use crate::kernels::Context;

/// Marks a list whose rows are not grouped by slice.
const UNORDERED: u32 = u32::MAX;

/// A row set on this device.
#[derive(Debug)]
pub(super) struct List {
    ids: Reads<u32>,
    count: Reads<u32>,
    members: Reads<u32>,
    /// Start of each slice in the list; the first is [`UNORDERED`] if slots were refilled out of
    /// order.
    starts: Writes<u32>,
}

impl List {
    pub(super) fn new(set: &RowSet<Tensor>, starts: Writes<u32>, context: &Context<'_>) -> List {
        List {
            ids: context.bind.read(&set.ids),
            count: context.bind.read(&set.count),
            members: context.bind.read(&set.members),
            starts,
        }
    }

    fn ids(&self) -> &[u32] {
        let ids = self.ids.all();
        &ids[..ids.len().min(self.count.all()[0] as usize)]
    }

    /// Records where the slices with these first rows begin.
    pub(super) fn index(&self, first_rows: &[u32]) {
        let (ids, starts) = (self.ids(), self.starts.row(0));
        let mut slice = 0;
        for (i, &id) in ids.iter().enumerate() {
            if slice > 0 && id < first_rows[slice - 1] {
                starts[0] = UNORDERED;
                return;
            }
            while slice < starts.len() - 1 && first_rows[slice] <= id {
                starts[slice] = i as u32;
                slice += 1;
            }
        }
        starts[slice..].fill(ids.len() as u32);
    }

    /// Calls `f` with each listed row of `rows`, a range within one slice, and the membership bits
    /// of its tokens.
    pub(super) fn for_rows(
        &self,
        slice: usize,
        rows: &Range<usize>,
        f: &mut dyn FnMut(u32, &[u32]),
    ) {
        let (ids, starts) = (self.ids(), self.starts.reads_row(0));
        let part = match starts[0] {
            UNORDERED => 0..ids.len(),
            _ => starts[slice] as usize..starts[slice + 1] as usize,
        };
        let words = self.members.n_cols();
        let members = self.members.all();
        for i in part {
            let id = ids[i];
            if rows.contains(&(id as usize)) {
                f(id, &members[i * words..(i + 1) * words]);
            }
        }
    }
}

/// Token `t`'s membership bit of a row.
pub(super) fn wants(members: &[u32], t: usize) -> u32 {
    members[t / 32] >> (t % 32) & 1
}
