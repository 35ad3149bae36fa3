//! [`Store`]: units of files' weights, which of them are resident, and reads on demand.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use hal::{Bytes, SharedBytes};

use crate::cache::{Cache, CachePolicy};
use crate::reader::{Backing, Reader, Ticket};
use crate::region::{PAGE, Region};
use crate::source::ReadAt;
use crate::{Error, Result};

/// Number of a unit.
pub type UnitId = usize;

/// Bytes of one of the store's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Number of the file.
    pub file: usize,
    /// The bytes in the file.
    pub range: Range<u64>,
}

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

#[derive(Debug)]
struct Unit {
    /// Sorted by file and offset.
    pieces: Vec<Piece>,
    probability: f64,
    state: State,
    /// Whether look-ahead ordered the unit and nothing has used it since.
    unused: bool,
    /// The call of [`Store::ensure`] that last needed the unit, or ordered it ahead after that.
    needed_by: u64,
}

#[derive(Debug)]
enum State {
    Absent,
    Reading(Arc<Ticket>),
    Resident,
}

/// Files whose weights are partly in memory.
#[derive(Debug)]
pub struct Store {
    backings: Vec<Backing>,
    units: Vec<Unit>,
    cache: Cache,
    /// For pages that several units share: the number of resident units with bytes in the page.
    shared_pages: HashMap<(usize, u64), u32>,
    reader: Reader,
    stats: StoreStats,
    /// Number of calls of [`Store::ensure`]. Units that the last one needed are not evicted.
    n_ensured: u64,
}

impl Store {
    /// A store of `files` without units, which reads with `depth` threads.
    ///
    /// # Errors
    /// [`Error::Setup`] if addresses or threads cannot be had.
    pub fn new(files: Vec<Arc<dyn ReadAt>>, depth: usize) -> Result<Store> {
        let setup = |reason: std::io::Error| Error::Setup { reason: reason.to_string() };
        let mut backings = Vec::new();
        for file in files {
            let region = Region::reserve(file.size()).map_err(setup)?;
            backings.push(Backing { file, region });
        }
        Ok(Store {
            backings,
            units: Vec::new(),
            cache: Cache::new(0, CachePolicy::default()),
            shared_pages: HashMap::new(),
            reader: Reader::new(depth)?,
            stats: StoreStats::default(),
            n_ensured: 0,
        })
    }

    /// The memory of `piece`. It has the file's bytes while a unit with the piece is resident.
    ///
    /// # Panics
    /// If the piece is outside its file.
    #[must_use]
    pub fn bytes(&self, piece: &Piece) -> SharedBytes {
        self.backings[piece.file].region.slice(piece.range.clone())
    }

    /// Reads `piece` now, so that its memory can be checked before units exist. [`Store::release`]
    /// returns the memory.
    ///
    /// # Errors
    /// Errors of reading.
    pub fn fill(&self, piece: &Piece) -> Result<()> {
        let ranges = [(self.backings[piece.file].clone(), pages(&piece.range))];
        let ticket = self.reader.order(&ranges, false);
        self.reader.wait(&[Arc::clone(&ticket)], &AtomicBool::new(false))?;
        ticket.error().map_or(Ok(()), Err)
    }

    /// Returns the memory of `piece`, which no unit may have.
    pub fn release(&self, piece: &Piece) {
        self.backings[piece.file].region.release(pages(&piece.range));
    }

    /// Starts again with up to `capacity` bytes for units. All units are dropped.
    pub fn begin(&mut self, capacity: Bytes, policy: CachePolicy) {
        (0..self.units.len()).for_each(|unit| self.forget(unit));
        self.units.clear();
        self.shared_pages.clear();
        self.cache = Cache::new(capacity.0, policy);
    }

    /// Adds an absent unit that a token uses with the given probability.
    pub fn add(&mut self, mut pieces: Vec<Piece>, probability: f64) -> UnitId {
        pieces.sort_by_key(|piece| (piece.file, piece.range.start));
        let bytes = pieces.iter().map(|piece| pages(&piece.range)).map(|p| p.end - p.start).sum();
        let state = State::Absent;
        self.units.push(Unit { pieces, probability, state, unused: false, needed_by: 0 });
        self.cache.add(bytes, probability)
    }

    /// The probability with which `unit` was added.
    #[must_use]
    pub fn probability(&self, unit: UnitId) -> f64 {
        self.units[unit].probability
    }

    /// Memory of `unit` when it is resident: whole pages.
    #[must_use]
    pub fn unit_bytes(&self, unit: UnitId) -> Bytes {
        Bytes(self.cache.bytes(unit))
    }

    /// Bytes that units may take.
    #[must_use]
    pub fn capacity(&self) -> Bytes {
        Bytes(self.cache.capacity())
    }

    /// Memory of all resident units.
    #[must_use]
    pub fn used(&self) -> Bytes {
        Bytes(self.cache.used())
    }

    /// What the store has done so far.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        self.stats
    }

    /// Orders `unit`, resident for good. Returns whether it fits.
    pub fn pin(&mut self, unit: UnitId) -> bool {
        let was_absent = !self.cache.is_resident(unit);
        if !self.cache.pin(unit) {
            return false;
        }
        if was_absent {
            self.order(unit, true);
        }
        true
    }

    /// Counts a use of `unit` by `n_tokens` tokens.
    pub fn touch(&mut self, unit: UnitId, n_tokens: usize) {
        self.cache.touch(unit, n_tokens);
    }

    /// Counts `n_tokens` more tokens.
    pub fn advance(&mut self, n_tokens: usize) {
        self.cache.advance(n_tokens);
    }

    /// Makes all of `units` resident, and waits for their reads. They stay until the next call.
    ///
    /// # Errors
    /// Errors of reading; [`Error::Capacity`] if the units do not fit at once;
    /// [`Error::Interrupted`]. Nothing that was not read counts as resident.
    pub fn ensure(&mut self, units: &[UnitId], interrupt: &AtomicBool) -> Result<()> {
        self.n_ensured += 1;
        let mut missing = Vec::new();
        for &unit in units {
            self.units[unit].needed_by = self.n_ensured;
            self.stats.needed += Bytes(self.cache.bytes(unit));
            self.units[unit].unused = false;
            match &self.units[unit].state {
                State::Resident => self.stats.hits += 1,
                State::Reading(_) => self.stats.ahead += 1,
                State::Absent => {
                    self.stats.misses += 1;
                    missing.push(unit);
                }
            }
        }
        let in_file_order = |&unit: &UnitId| {
            self.units[unit].pieces.first().map(|piece| (piece.file, piece.range.start))
        };
        missing.sort_by_key(in_file_order);
        missing.dedup();
        for unit in missing {
            if !self.admit(unit) {
                let needed = units.iter().map(|&unit| self.unit_bytes(unit)).sum();
                return Err(Error::Capacity { needed, capacity: self.capacity() });
            }
            self.order(unit, false);
        }
        self.wait(units, interrupt)
    }

    /// Orders reads of the absent ones of `units`, as far as there is room beside the units that
    /// the last [`Store::ensure`] needed, without waiting. A wrong guess costs bandwidth alone.
    pub fn look_ahead(&mut self, units: &[UnitId]) {
        for &unit in units {
            self.units[unit].needed_by = self.n_ensured;
            if self.cache.is_resident(unit) {
                continue;
            }
            if !self.admit(unit) {
                return;
            }
            self.units[unit].unused = true;
            self.order(unit, true);
        }
    }

    /// Waits for the reads of `units`.
    ///
    /// # Errors
    /// As [`Store::ensure`].
    pub fn wait(&mut self, units: &[UnitId], interrupt: &AtomicBool) -> Result<()> {
        let reading = |&unit: &UnitId| match &self.units[unit].state {
            State::Reading(ticket) => Some(Arc::clone(ticket)),
            State::Absent | State::Resident => None,
        };
        let tickets: Vec<Arc<Ticket>> = units.iter().filter_map(reading).collect();
        if tickets.iter().any(|ticket| !ticket.is_done()) {
            let since = Instant::now();
            self.reader.hurry(&tickets);
            let waited = self.reader.wait(&tickets, interrupt);
            self.stats.waited += since.elapsed();
            waited?;
        }
        let mut failed = None;
        for &unit in units {
            let State::Reading(ticket) = &self.units[unit].state else { continue };
            match ticket.error() {
                None => self.units[unit].state = State::Resident,
                Some(error) => {
                    self.forget(unit);
                    failed = Some(error);
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Makes room for `unit` without evicting units in use.
    fn admit(&mut self, unit: UnitId) -> bool {
        let (mut evicted, units, now) = (Vec::new(), &self.units, self.n_ensured);
        let fits = self.cache.admit(unit, |unit| units[unit].needed_by == now, &mut evicted);
        for unit in evicted {
            if std::mem::take(&mut self.units[unit].unused) {
                self.stats.wasted += Bytes(self.cache.bytes(unit));
            }
            self.forget(unit);
        }
        fits
    }

    fn order(&mut self, unit: UnitId, ahead: bool) {
        let mut ranges = Vec::new();
        for Piece { file, range } in &self.units[unit].pieces {
            for page in shared_pages(range) {
                *self.shared_pages.entry((*file, page)).or_default() += 1;
            }
            ranges.push((self.backings[*file].clone(), pages(range)));
        }
        self.stats.read += Bytes(self.cache.bytes(unit));
        self.units[unit].state = State::Reading(self.reader.order(&ranges, ahead));
    }

    /// Makes `unit` absent and returns its pages, except those that other resident units share.
    fn forget(&mut self, unit: UnitId) {
        self.cache.remove(unit);
        match std::mem::replace(&mut self.units[unit].state, State::Absent) {
            State::Absent => return,
            State::Resident => {}
            // Decisions do not depend on how fast the disk is, so a unit may be evicted while it is
            // being read.
            State::Reading(ticket) => {
                let tickets = [ticket];
                self.reader.hurry(&tickets);
                let _ = self.reader.wait(&tickets, &AtomicBool::new(false));
            }
        }
        for Piece { file, range } in &self.units[unit].pieces {
            let mut free = pages(range);
            for page in shared_pages(range) {
                let key = (*file, page);
                let count = self.shared_pages.get_mut(&key).expect("`order` counted the page");
                *count -= 1;
                if *count > 0 {
                    // The page is the first or the last one of the range.
                    if page == free.start { free.start += PAGE } else { free.end -= PAGE }
                } else {
                    self.shared_pages.remove(&key);
                }
            }
            if free.start < free.end {
                self.backings[*file].region.release(free);
            }
        }
    }
}

/// The whole pages that have bytes of `range`.
fn pages(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE * PAGE..range.end.next_multiple_of(PAGE)
}

/// The pages of `range` that may have bytes of others: the first and the last, unless they are
/// whole.
fn shared_pages(range: &Range<u64>) -> impl Iterator<Item = u64> {
    let all = pages(range);
    let first = (all.start < range.start).then_some(all.start);
    let last = (all.end > range.end).then(|| all.end - PAGE);
    let one = first == last;
    first.into_iter().chain(last.filter(|_| !one))
}

#[cfg(all(test, unix))]
#[path = "store_tests.rs"]
mod tests;
