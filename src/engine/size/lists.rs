//! Sizes of the lists of active rows that predictors fill.

use std::collections::BTreeSet;

use hal::{Bytes, Device, PackDesc};

use crate::ops::predict::u32_desc;

/// Minimum number of rows written to the list of a device. Larger numbers are rounded up to powers
/// of two, so that staging memory is needed in a few sizes only.
pub(crate) const MIN_ROWS: usize = 64;

/// Sizes of the lists of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListShape {
    pub(crate) n_ff: usize,
    pub(crate) n_layer: usize,
    /// Whether layers can be split between devices, so that there are lists of absent rows.
    pub(crate) shared: bool,
    /// Whether there is a list of rows that the next layer is likely to select.
    pub(crate) guesses: bool,
}

impl ListShape {
    /// Words of membership bits per row, for each recorded token count.
    pub(crate) fn member_words(buckets: &[usize]) -> impl Iterator<Item = usize> {
        buckets.iter().map(|n| n.div_ceil(32))
    }

    /// Distinct sizes in bytes of the transfers of lists from other devices, and of the counts.
    pub(crate) fn staging(&self, buckets: &[usize]) -> BTreeSet<usize> {
        let mut lens = BTreeSet::from([4 * self.n_layer]);
        if self.shared {
            lens.insert(4);
            let powers = (0..).map(|i| MIN_ROWS << i).take_while(|&n| n < self.n_ff);
            for n in powers.chain([self.n_ff]) {
                lens.insert(4 * n);
                lens.extend(Self::member_words(buckets).map(|words| 4 * n * words));
            }
        }
        lens
    }

    /// Bytes on `device`, staging included.
    pub(crate) fn size(&self, device: &Device, buckets: &[usize]) -> Bytes {
        let resident = list_size(device, self.n_ff, self.n_layer, buckets);
        let others = u64::from(self.shared) + u64::from(self.guesses);
        let others = Bytes(others * list_size(device, self.n_ff, 1, buckets).0);
        resident + others + Bytes(self.staging(buckets).iter().sum::<usize>() as u64)
    }
}

/// Bytes of a list of up to `n` rows, with `n_counts` counts.
fn list_size(device: &Device, n: usize, n_counts: usize, buckets: &[usize]) -> Bytes {
    let size = |rows, cols| device.alloc_size(&u32_desc(rows, cols));
    let members: BTreeSet<usize> = ListShape::member_words(buckets).collect();
    let members: Bytes = members.into_iter().map(|words| size(n, words)).sum();
    size(1, n) + size(n_counts, 1) + members
}

/// Bytes on `device` of the lists over streamed chunks of `n` neurons.
pub(crate) fn chunk_lists_size(device: &Device, n: usize, buckets: &[usize]) -> Bytes {
    let slots = device.pack_size(&PackDesc::whole(u32_desc(1, n)), false);
    slots + list_size(device, n, 1, buckets)
}
