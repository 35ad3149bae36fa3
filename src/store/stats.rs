//! [`StoreStats`]: what a store has done.

use std::time::Duration;

use hal::Bytes;

/// What the store has done since it was made. Subtract two of them for an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StoreStats {
    /// Units that were needed and resident.
    pub hits: u64,
    /// Units that were needed and already ordered by look-ahead.
    pub ahead: u64,
    /// Units that were needed and had to be ordered then.
    pub misses: u64,
    /// Bytes of units that were needed.
    pub needed: Bytes,
    /// Bytes read from disk.
    pub read: Bytes,
    /// Bytes that look-ahead read and that were evicted unused.
    pub wasted: Bytes,
    /// Bytes whose memory came from evicted units, not from the system.
    pub reused: Bytes,
    /// Time that steps waited for reads.
    pub waited: Duration,
}

impl StoreStats {
    fn zip(
        self,
        other: StoreStats,
        count: fn(u64, u64) -> u64,
        time: fn(Duration, Duration) -> Duration,
    ) -> StoreStats {
        StoreStats {
            hits: count(self.hits, other.hits),
            ahead: count(self.ahead, other.ahead),
            misses: count(self.misses, other.misses),
            needed: Bytes(count(self.needed.0, other.needed.0)),
            read: Bytes(count(self.read.0, other.read.0)),
            wasted: Bytes(count(self.wasted.0, other.wasted.0)),
            reused: Bytes(count(self.reused.0, other.reused.0)),
            waited: time(self.waited, other.waited),
        }
    }
}

impl std::ops::AddAssign for StoreStats {
    fn add_assign(&mut self, other: StoreStats) {
        *self = self.zip(other, |a, b| a + b, |a, b| a + b);
    }
}

impl std::ops::Sub for StoreStats {
    type Output = StoreStats;

    fn sub(self, before: StoreStats) -> StoreStats {
        self.zip(before, u64::saturating_sub, Duration::saturating_sub)
    }
}
