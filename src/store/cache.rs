//! Which units stay in memory: the policy alone, by counts, without clocks or files.
//!
//! Each unit has a score: how often tokens used it, with older uses counting less. The unit with
//! the lowest score is evicted, and of equal scores the one used last, because layers are used in
//! turn and the last one is needed latest. Scores are kept relative to a growing `gain` instead of
//! decaying all of them, so an unused unit costs nothing.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Parameters of the policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CachePolicy {
    /// Number of tokens after which a use counts half.
    pub half_life: f64,
    /// The weight of the prior (a unit's probability per token) in tokens.
    pub prior: f64,
}

impl Default for CachePolicy {
    /// Chosen by `scripts/simulate_tiers`; see docs/measurements/tiers.md.
    fn default() -> CachePolicy {
        CachePolicy { half_life: 64.0, prior: 32.0 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Residence {
    Absent,
    Resident,
    /// Resident for good.
    Pinned,
}

#[derive(Clone, Copy, Debug)]
struct Unit {
    bytes: u64,
    score: f64,
    /// Number of the last use, counted over all units.
    last: u64,
    residence: Residence,
    /// Whether `heap` has an entry for the unit.
    queued: bool,
}

/// An eviction candidate; the least is evicted first.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    score: f64,
    last: Reverse<u64>,
    unit: usize,
}

impl Eq for Candidate {}

impl Ord for Candidate {
    fn cmp(&self, other: &Candidate) -> Ordering {
        let by_score = self.score.total_cmp(&other.score);
        by_score.then(self.last.cmp(&other.last)).then(self.unit.cmp(&other.unit))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Candidate) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The units and which of them are resident.
#[derive(Clone, Debug)]
pub struct Cache {
    capacity: u64,
    used: u64,
    units: Vec<Unit>,
    /// Resident units, each once at most. A score that has grown since is corrected when its entry
    /// comes up.
    heap: BinaryHeap<Reverse<Candidate>>,
    policy: CachePolicy,
    /// What a use by the current token adds to a score.
    gain: f64,
    n_uses: u64,
}

/// The gain at which all scores are scaled down.
const MAX_GAIN: f64 = 1e100;

impl Cache {
    /// A cache of up to `capacity` bytes without units.
    #[must_use]
    pub fn new(capacity: u64, policy: CachePolicy) -> Cache {
        let (units, heap) = (Vec::new(), BinaryHeap::new());
        Cache { capacity, used: 0, units, heap, policy, gain: 1.0, n_uses: 0 }
    }

    /// Adds an absent unit that a token uses with the given probability. Returns its number.
    pub fn add(&mut self, bytes: u64, probability: f64) -> usize {
        let score = probability * self.policy.prior * self.gain;
        let residence = Residence::Absent;
        self.units.push(Unit { bytes, score, last: 0, residence, queued: false });
        self.units.len() - 1
    }

    /// Bytes of all resident units.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Bytes that units may take.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes of `unit`.
    #[must_use]
    pub fn bytes(&self, unit: usize) -> u64 {
        self.units[unit].bytes
    }

    /// Whether `unit` is resident.
    #[must_use]
    pub fn is_resident(&self, unit: usize) -> bool {
        self.units[unit].residence != Residence::Absent
    }

    /// Counts `n_tokens` more tokens: earlier uses count less from now on.
    pub fn advance(&mut self, n_tokens: usize) {
        self.gain *= (n_tokens as f64 / self.policy.half_life).exp2();
        if self.gain > MAX_GAIN {
            let scale = 1.0 / self.gain;
            self.units.iter_mut().for_each(|unit| unit.score *= scale);
            self.gain = 1.0;
            let candidates = std::mem::take(&mut self.heap);
            for Reverse(old) in candidates {
                self.heap.push(Reverse(self.candidate(old.unit)));
            }
        }
    }

    /// Counts a use of `unit` by `n_tokens` tokens.
    pub fn touch(&mut self, unit: usize, n_tokens: usize) {
        self.n_uses += 1;
        let at = &mut self.units[unit];
        at.score += self.gain * n_tokens as f64;
        at.last = self.n_uses;
    }

    /// Makes `unit` resident for good. Returns whether it fits.
    pub fn pin(&mut self, unit: usize) -> bool {
        let at = &mut self.units[unit];
        if at.residence == Residence::Absent {
            if self.used + at.bytes > self.capacity {
                return false;
            }
            self.used += at.bytes;
        }
        at.residence = Residence::Pinned;
        true
    }

    /// Makes absent `units` resident, and adds the units that this evicts to `evicted`. Units for
    /// which `is_busy` holds stay. Returns false, and changes nothing, if there is too little room.
    pub fn admit(
        &mut self,
        units: &[usize],
        is_busy: impl Fn(usize) -> bool,
        evicted: &mut Vec<usize>,
    ) -> bool {
        let wanted: u64 = units.iter().map(|&unit| self.units[unit].bytes).sum();
        let (mut kept, mut victims, mut freed) = (Vec::new(), Vec::new(), 0);
        while self.used - freed + wanted > self.capacity {
            let Some(Reverse(found)) = self.heap.pop() else { break };
            let now = self.candidate(found.unit);
            self.units[found.unit].queued = false;
            match self.units[found.unit].residence {
                // Its entry is dropped.
                Residence::Absent | Residence::Pinned => {}
                Residence::Resident if is_busy(found.unit) => kept.push(found.unit),
                Residence::Resident if now != found => self.enqueue(found.unit),
                Residence::Resident => {
                    freed += self.units[found.unit].bytes;
                    victims.push(found.unit);
                }
            }
        }
        kept.into_iter().for_each(|unit| self.enqueue(unit));
        if self.used - freed + wanted > self.capacity {
            victims.into_iter().for_each(|unit| self.enqueue(unit));
            return false;
        }
        for &victim in &victims {
            self.units[victim].residence = Residence::Absent;
        }
        self.used = self.used - freed + wanted;
        evicted.extend(victims);
        for &unit in units {
            self.units[unit].residence = Residence::Resident;
            self.enqueue(unit);
        }
        true
    }

    /// Makes a resident unit absent, because it could not be read.
    pub fn remove(&mut self, unit: usize) {
        let at = &mut self.units[unit];
        if at.residence != Residence::Absent {
            at.residence = Residence::Absent;
            self.used -= at.bytes;
        }
    }

    fn candidate(&self, unit: usize) -> Candidate {
        let Unit { score, last, .. } = self.units[unit];
        Candidate { score, last: Reverse(last), unit }
    }

    fn enqueue(&mut self, unit: usize) {
        if !std::mem::replace(&mut self.units[unit].queued, true) {
            self.heap.push(Reverse(self.candidate(unit)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cache(capacity: u64, sizes: &[u64]) -> Cache {
        let mut cache = Cache::new(capacity, CachePolicy { half_life: 8.0, prior: 4.0 });
        sizes.iter().for_each(|&bytes| _ = cache.add(bytes, 0.0));
        cache
    }

    #[test]
    fn the_unit_used_least_is_evicted() {
        let mut cache = cache(3, &[1; 5]);
        let mut evicted = Vec::new();
        for (unit, n) in [(0, 3), (1, 1), (2, 2)] {
            cache.touch(unit, n);
            assert!(cache.admit(&[unit], |_| false, &mut evicted));
        }
        cache.touch(3, 1);
        assert!(evicted.is_empty() && cache.admit(&[3], |_| false, &mut evicted));
        assert_eq!(evicted, [1]);
        // Unit 3 has the lowest score, but is busy.
        cache.touch(4, 1);
        assert!(cache.admit(&[4], |unit| unit == 3, &mut evicted));
        assert_eq!(evicted, [1, 2]);
        assert!(!cache.admit(&[1], |_| true, &mut evicted), "nothing may be evicted");
        assert!(cache.is_resident(0) && cache.used() == 3 && evicted.len() == 2);
    }

    #[test]
    fn old_uses_count_less() {
        let mut cache = cache(2, &[1; 3]);
        cache.touch(0, 3);
        assert!(cache.admit(&[0], |_| false, &mut Vec::new()));
        cache.advance(24);
        cache.touch(1, 1);
        assert!(cache.admit(&[1], |_| false, &mut Vec::new()));
        let mut evicted = Vec::new();
        assert!(cache.admit(&[2], |_| false, &mut evicted));
        assert_eq!(evicted, [0], "3 uses 3 half-lives ago are worth less than one now");
        // Scores are scaled down many times on the way.
        (0..10_000).for_each(|_| cache.advance(5));
        assert!(cache.units.iter().all(|unit| unit.score.is_finite()));
    }

    /// Layers in turn that do not all fit: as many hits as with any other policy.
    #[test]
    fn a_cycle_keeps_a_fixed_part() {
        let mut cache = cache(6, &[1; 10]);
        let mut hits = 0;
        for token in 0..50 {
            for unit in 0..10 {
                cache.touch(unit, 1);
                hits += usize::from(cache.is_resident(unit) && token >= 10);
                if !cache.is_resident(unit) {
                    assert!(cache.admit(&[unit], |busy| busy == unit, &mut Vec::new()));
                }
            }
            cache.advance(1);
        }
        assert!(hits >= 40 * 5, "{hits} of 400");
    }

    proptest! {
        #[test]
        fn the_capacity_is_never_exceeded(
            capacity in 1u64..50,
            sizes in prop::collection::vec(1u64..9, 1..20),
            uses in prop::collection::vec((0usize..20, 0usize..4, any::<bool>()), 0..200),
        ) {
            let mut cache = cache(capacity, &sizes);
            for (unit, n, failed) in uses {
                let unit = unit % sizes.len();
                cache.touch(unit, n);
                let mut evicted = Vec::new();
                if !cache.is_resident(unit) {
                    let fits = cache.admit(&[unit], |_| false, &mut evicted);
                    prop_assert_eq!(fits, sizes[unit] <= capacity);
                    prop_assert!(evicted.iter().all(|&unit| !cache.is_resident(unit)));
                    if failed {
                        cache.remove(unit);
                    }
                }
                let used: u64 =
                    (0..sizes.len()).filter(|&u| cache.is_resident(u)).map(|u| sizes[u]).sum();
                prop_assert_eq!(used, cache.used());
                prop_assert!(used <= capacity);
                cache.advance(n);
            }
        }
    }
}
