//! Row lists: the rows that a step needs, with one membership bit per token.

use std::ops::Range;

use hal::{RowSet, Tensor};

use crate::buffer::{ReadView, WriteView};
use crate::kernels::Context;

/// First entry of `starts` for a list whose rows are not in slice order.
const UNORDERED: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct RowList {
    ids: ReadView<u32>,
    count: ReadView<u32>,
    members: ReadView<u32>,
    /// Start of each slice in the list. The first entry is [`UNORDERED`] if rows are not in slice
    /// order, which happens after slots were refilled.
    starts: WriteView<u32>,
}

impl RowList {
    pub(super) fn new(set: &RowSet<Tensor>, starts: WriteView<u32>, context: &Context<'_>) -> Self {
        Self {
            ids: context.bind.read(&set.ids),
            count: context.bind.read(&set.count),
            members: context.bind.read(&set.members),
            starts,
        }
    }

    fn ids(&self) -> &[u32] {
        let ids = self.ids.as_slice();
        &ids[..ids.len().min(self.count.as_slice()[0] as usize)]
    }

    /// Finds where each slice begins in the list; `first_rows` are the first rows of the slices.
    pub(super) fn find_slices(&self, first_rows: &[u32]) {
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

    /// Calls `f(id, members)` for each listed row in `rows`, a range within one slice; `members`
    /// are the row's membership bits.
    pub(super) fn for_rows(
        &self,
        slice: usize,
        rows: &Range<usize>,
        f: &mut dyn FnMut(u32, &[u32]),
    ) {
        let (ids, starts) = (self.ids(), self.starts.read_row(0));
        let part = match starts[0] {
            UNORDERED => 0..ids.len(),
            _ => starts[slice] as usize..starts[slice + 1] as usize,
        };
        let words = self.members.n_cols();
        let members = self.members.as_slice();
        for i in part {
            let id = ids[i];
            if rows.contains(&(id as usize)) {
                f(id, &members[i * words..(i + 1) * words]);
            }
        }
    }
}

/// Token `t`'s membership bit of a row.
pub(super) fn membership_bit(members: &[u32], t: usize) -> u32 {
    members[t / 32] >> (t % 32) & 1
}
