//! Which rows a step wants: lists with membership bits, and groups with weights.

use std::ops::Range;

use hal::op::SparseFfn;
use hal::{RowSet, Tensor};

use crate::buffer::{Reads, Writes};
use crate::kernels::Context;

/// Marks a list whose rows do not come slice by slice.
const UNORDERED: u32 = u32::MAX;

/// A row set on this device.
#[derive(Debug)]
pub(super) struct List {
    ids: Reads<u32>,
    count: Reads<u32>,
    members: Reads<u32>,
    /// Where each slice begins in the list; the first is [`UNORDERED`] if slots were refilled out of order.
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

    /// Notes where the slices of `rows` rows each begin.
    pub(super) fn index(&self, rows: usize) {
        let (ids, starts) = (self.ids(), self.starts.row(0));
        let (mut slice, rows) = (0, rows as u32);
        for (i, &id) in ids.iter().enumerate() {
            if id < (slice as u32).saturating_sub(1) * rows {
                starts[0] = UNORDERED;
                return;
            }
            while slice < starts.len() - 1 && slice as u32 * rows <= id {
                starts[slice] = i as u32;
                slice += 1;
            }
        }
        starts[slice..].fill(ids.len() as u32);
    }

    /// Calls `f` with each listed row of `rows`, which lie in one slice, and its bits of tokens that want it.
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

/// The bits of a tile of up to 16 tokens among a row's bits.
pub(super) fn of_tile(members: &[u32], tile: &Range<usize>) -> u16 {
    let (word, shift) = (tile.start / 32, tile.start % 32);
    let low = u64::from(members[word]);
    let high = members.get(word + 1).map_or(0, |&high| u64::from(high) << 32);
    ((low | high) >> shift) as u16
}

/// Experts: which group a row belongs to and what it weighs for a token.
#[derive(Debug)]
pub(super) struct Groups {
    of: Reads<u32>,
    weight: Reads<f32>,
}

impl Groups {
    pub(super) fn new(op: &SparseFfn<Tensor>, context: &Context<'_>) -> Option<Groups> {
        let (of, weight) = (op.group_of.as_ref()?, op.group_weight.as_ref()?);
        Some(Groups { of: context.bind.read(of), weight: context.bind.read(weight) })
    }

    /// The weight of group `group` for token `t`.
    pub(super) fn of_group(&self, group: usize, t: usize) -> f32 {
        self.weight.row(t)[group]
    }

    /// The weight of a row's group for token `t`.
    pub(super) fn weight(&self, id: u32, t: usize) -> f32 {
        self.of_group(self.of.all()[id as usize] as usize, t)
    }

    /// Tokens of the tile for which the row's group counts, as bits.
    pub(super) fn tokens(&self, id: u32, tile: &Range<usize>) -> u16 {
        let group = self.of.all()[id as usize] as usize;
        let bit = |(slot, t)| u16::from(self.of_group(group, t) != 0.0) << slot;
        tile.clone().enumerate().map(bit).fold(0, |bits, bit| bits | bit)
    }
}
