//! What an allocation takes of a device's memory. Drivers give large allocations whole pages of
//! 2 MiB: hundreds of weights would exceed a budget by a megabyte each if that were not counted.

use std::sync::Arc;

use hal::{Bytes, Result};

use crate::buffer::Memory;
use crate::driver::Driver;

/// Allocations of all sizes are multiples of this many bytes, to which the drivers align them.
const ALIGN: u64 = 256;
/// The pages that drivers use for allocations of at least [`LARGE`] bytes; smaller ones share pages.
const PAGE: u64 = 2 << 20;
const LARGE: u64 = 1 << 20;
/// Allocations of the measurement, and how often it is tried.
const N: u64 = 4;
const TRIES: usize = 3;

/// Multiples in which a device's memory is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Granule {
    /// That of large allocations.
    large: u64,
}

impl Granule {
    /// Allocates a few blocks of a page and a bit, and looks how much less memory is free. Without a
    /// clear answer, because the driver does not tell or other programs use the device at the same
    /// time, allocations are not taken to be rounded.
    ///
    /// # Errors
    /// A lost device.
    pub(crate) fn measure<D: Driver>(driver: &Arc<D>) -> Result<Granule> {
        for _ in 0..TRIES {
            let before = driver.memory()?.free;
            let blocks = (0..N).map(|_| Memory::new(driver, "probe", PAGE + ALIGN));
            // A device that is too full for this reports it when something is loaded.
            let Ok(_blocks) = blocks.collect::<Result<Vec<Memory<D>>>>() else { break };
            let after = driver.memory()?.free;
            let taken = before.zip(after).and_then(|(before, after)| before.0.checked_sub(after.0));
            if taken == Some(N * 2 * PAGE) {
                return Ok(Granule { large: PAGE });
            }
        }
        Ok(Granule { large: ALIGN })
    }

    /// What an allocation of `bytes` takes.
    pub(crate) fn allocation(self, bytes: u64) -> Bytes {
        let granule = if bytes < LARGE { ALIGN } else { self.large };
        Bytes(bytes.max(1).div_ceil(granule).saturating_mul(granule))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_allocations_take_whole_pages() {
        let plain = Granule { large: ALIGN };
        assert_eq!(
            [0, 1, 257, PAGE + 1].map(|n| plain.allocation(n).0),
            [256, 256, 512, PAGE + 256]
        );
        let paged = Granule { large: PAGE };
        let sizes = [0, LARGE - 1, LARGE, PAGE, PAGE + 1].map(|n| paged.allocation(n).0);
        assert_eq!(sizes, [256, LARGE, PAGE, PAGE, 2 * PAGE]);
        assert_eq!(paged.allocation(u64::MAX), Bytes(u64::MAX));
    }
}
