//! [`Store`]: units of files' weights, which of them are resident, and reads on demand.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use hal::{Bytes, RowPlace, RowTable, SharedBytes};

use crate::cache::{Cache, CachePolicy};
use crate::join::join;
use crate::places::Places;
use crate::reader::{Backing, MAX_PLACED, Part, Read, Reader, Ticket, pages};
use crate::region::PAGE;
use crate::source::ReadAt;
use crate::spare::SparePages;
use crate::stats::StoreStats;
use crate::unit::{Piece, Place, RowMatrix, State, Unit, Units, shared_pages, whole_pages};
use crate::{Error, Result};

/// Number of calls of [`Store::order_needed`] during which units that look-ahead requested are not
/// evicted. A layer has up to two such calls, and the second may use units that were requested
/// before the first. An earlier eviction would wait for the read.
const KEPT_AHEAD: u64 = 2;

/// Number of a unit.
pub type UnitId = usize;

/// Files whose weights are partly in memory.
#[derive(Debug)]
pub struct Store {
    backings: Vec<Backing>,
    units: Units,
    cache: Cache,
    /// For pages that several units share: the number of resident units with bytes in the page.
    shared_pages: HashMap<(usize, u64), u32>,
    /// Pages of forgotten units, before [`Store::release_freed`] returns them.
    freed: Vec<(usize, Range<u64>)>,
    /// Memory of evicted units for the next ones. With it, units take no more than the capacity.
    spare: SparePages,
    /// As `spare`, for rows with a table.
    places: Places,
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
            backings.push(Backing::new(file).map_err(setup)?);
        }
        Ok(Store {
            backings,
            units: Units::default(),
            cache: Cache::new(0, CachePolicy::default()),
            shared_pages: HashMap::new(),
            freed: Vec::new(),
            spare: SparePages::new(),
            places: Places::default(),
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
        let backing = self.backings[piece.file].clone();
        let read = Read { backing, parts: vec![Part::in_order(piece.range.clone())] };
        let ticket = self.reader.order(vec![read], false);
        self.reader.wait(&[Arc::clone(&ticket)], &AtomicBool::new(false))?;
        ticket.error().map_or(Ok(()), Err)
    }

    /// Returns the memory of `piece`, which no unit may have.
    pub fn release(&self, piece: &Piece) {
        self.backings[piece.file].region.release(pages(&piece.range));
    }

    /// All memory of a file, for rows with a table.
    ///
    /// # Panics
    /// If there is no such file.
    #[must_use]
    pub fn memory(&self, file: usize) -> SharedBytes {
        let backing = &self.backings[file];
        backing.region.slice(0..backing.blank() + MAX_PLACED)
    }

    /// A table of `n_rows` rows of a matrix, at first in order, for [`RowMatrix::table`]. `None` if
    /// rows are not whole pages, or are long.
    #[must_use]
    pub fn row_table(&self, piece: &Piece, n_rows: usize) -> Option<RowTable> {
        let Piece { file, range } = piece;
        let row_bytes = (range.end - range.start) / n_rows.max(1) as u64;
        let in_pages = range.start.is_multiple_of(PAGE) && row_bytes.is_multiple_of(PAGE);
        if !in_pages || row_bytes == 0 || row_bytes > MAX_PLACED {
            return None;
        }
        let backing = &self.backings[*file];
        RowPlace::new(backing.blank())?;
        let blank = backing.blank()..backing.blank() + row_bytes;
        backing.region.fill(blank, |out| out.fill(0));
        RowPlace::in_order(range.start, row_bytes, n_rows)
    }

    /// Starts again with up to `capacity` bytes for units. All units are dropped.
    pub fn begin(&mut self, capacity: Bytes, policy: CachePolicy) {
        (0..self.units.all.len()).for_each(|unit| self.forget(unit));
        self.release_freed();
        self.units.clear();
        self.shared_pages.clear();
        self.spare.shrink(&self.backings, 0);
        self.places.shrink(&self.backings, 0);
        self.places = Places::default();
        self.cache = Cache::new(capacity.0, policy);
    }

    /// Adds an absent unit that a token uses with the given probability.
    pub fn add(&mut self, mut pieces: Vec<Piece>, probability: f64) -> UnitId {
        pieces.sort_by_key(|piece| (piece.file, piece.range.start));
        self.add_unit(Place::Pieces(pieces.into()), probability)
    }

    /// Adds a unit for each of `n` rows: that row of all `matrices`. A token uses row `i` with
    /// `probability(i)`.
    ///
    /// Reads of rows that are close to each other are joined, since a disk takes longer for two
    /// reads than for one that also has the bytes between them.
    pub fn add_rows(
        &mut self,
        mut matrices: Vec<RowMatrix>,
        n: usize,
        probability: &dyn Fn(usize) -> f64,
    ) -> Range<UnitId> {
        matrices.sort_by_key(|matrix| (matrix.piece.file, matrix.piece.range.start));
        for matrix in &matrices {
            let RowMatrix { piece: Piece { file, range }, row_bytes, table } = matrix;
            if let Some(table) = table {
                self.places.add(*file, *row_bytes, range.clone());
                table.iter().for_each(|row| row.set(self.backings[*file].blank()));
            }
        }
        let (set, first) = (self.units.add_set(&matrices), self.units.all.len());
        for row in 0..n {
            self.add_unit(Place::Row { set, row: row as u32 }, probability(row));
        }
        first..first + n
    }

    fn add_unit(&mut self, place: Place, probability: f64) -> UnitId {
        self.units.all.push(Unit::new(place, probability));
        let bytes = self.units.bytes(self.units.all.len() - 1);
        self.cache.add(bytes.0, probability)
    }

    /// The probability with which `unit` was added.
    #[must_use]
    pub fn probability(&self, unit: UnitId) -> f64 {
        f64::from(self.units.all[unit].probability)
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

    /// Drops `unit` from memory.
    pub fn evict(&mut self, unit: UnitId) {
        self.forget(unit);
        self.release_freed();
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
        self.order_needed(units)?;
        self.wait(units, interrupt)
    }

    /// As [`Store::ensure`], without waiting: [`Store::wait`] must come before the units are used.
    ///
    /// # Errors
    /// [`Error::Capacity`] if the units do not fit at once.
    pub fn order_needed(&mut self, units: &[UnitId]) -> Result<()> {
        self.n_ensured += 1;
        let mut missing = Vec::new();
        for &unit in units {
            self.units.all[unit].needed_by = self.n_ensured;
            self.stats.needed += Bytes(self.cache.bytes(unit));
            self.units.all[unit].unused = false;
            match &self.units.all[unit].state {
                State::Resident => self.stats.hits += 1,
                State::Reading(_) => self.stats.ahead += 1,
                State::Absent => {
                    self.stats.misses += 1;
                    missing.push(unit);
                }
            }
        }
        self.sort_by_place(&mut missing);
        let (rows, others): (Vec<_>, Vec<_>) =
            missing.into_iter().partition(|&unit| self.units.all[unit].is_row());
        for unit in others {
            if !self.admit(&[unit]) {
                return Err(self.too_small_for(units));
            }
            self.order(unit, false);
        }
        if !self.admit(&rows) {
            return Err(self.too_small_for(units));
        }
        self.order_rows(&rows, false);
        Ok(())
    }

    /// Sorts units by their places in files.
    fn sort_by_place(&self, units: &mut Vec<UnitId>) {
        let place = |piece: Piece| (piece.file, piece.range.start);
        units.sort_by_key(|&unit| self.units.pieces(unit).next().map(place));
        units.dedup();
    }

    fn too_small_for(&self, units: &[UnitId]) -> Error {
        let needed = units.iter().map(|&unit| self.unit_bytes(unit)).sum();
        Error::Capacity { needed, capacity: self.capacity() }
    }

    /// Orders reads of the absent ones of `units`, as far as there is room beside the units that
    /// the last [`Store::ensure`] needed, without waiting. A wrong guess costs bandwidth alone.
    pub fn look_ahead(&mut self, units: &[UnitId]) {
        let mut rows = Vec::new();
        for &unit in units {
            self.units.all[unit].needed_by = self.n_ensured;
            if self.cache.is_resident(unit) {
                continue;
            }
            if self.units.all[unit].is_row() {
                rows.push(unit);
                continue;
            }
            if !self.admit(&[unit]) {
                return;
            }
            self.units.all[unit].unused = true;
            self.order(unit, true);
        }
        self.sort_by_place(&mut rows);
        if self.admit(&rows) {
            rows.iter().for_each(|&unit| self.units.all[unit].unused = true);
            self.order_rows(&rows, true);
        }
    }

    /// Waits for the reads of `units`.
    ///
    /// # Errors
    /// As [`Store::ensure`].
    pub fn wait(&mut self, units: &[UnitId], interrupt: &AtomicBool) -> Result<()> {
        let reading = |&unit: &UnitId| match &self.units.all[unit].state {
            State::Reading(ticket) => Some(Arc::clone(ticket)),
            State::Absent | State::Resident => None,
        };
        let mut tickets: Vec<Arc<Ticket>> = units.iter().filter_map(reading).collect();
        // Thousands of rows share a few tickets.
        tickets.sort_unstable_by_key(Arc::as_ptr);
        tickets.dedup_by(|a, b| Arc::ptr_eq(a, b));
        self.wait_for(&tickets, interrupt)?;
        let mut failed = None;
        for &unit in units {
            let State::Reading(ticket) = &self.units.all[unit].state else { continue };
            match ticket.error() {
                None => self.units.all[unit].state = State::Resident,
                Some(error) => {
                    self.forget(unit);
                    failed = Some(error);
                }
            }
        }
        self.release_freed();
        failed.map_or(Ok(()), Err)
    }

    fn wait_for(&mut self, tickets: &[Arc<Ticket>], interrupt: &AtomicBool) -> Result<()> {
        if tickets.iter().all(|ticket| ticket.is_done()) {
            return Ok(());
        }
        let since = Instant::now();
        self.reader.hurry(tickets);
        let waited = self.reader.wait(tickets, interrupt);
        self.stats.waited += since.elapsed();
        waited
    }

    /// Makes room for `units` without evicting units in use or, if there is other room, units that
    /// look-ahead ordered and that the next call may use.
    fn admit(&mut self, units: &[UnitId]) -> bool {
        let (mut evicted, known, now) = (Vec::new(), &self.units, self.n_ensured);
        let is_used = |unit: usize| known.all[unit].needed_by == now;
        let is_next =
            |unit: usize| known.all[unit].unused && known.all[unit].needed_by + KEPT_AHEAD >= now;
        let cache = &mut self.cache;
        let fits = cache.admit(units, |unit| is_used(unit) || is_next(unit), &mut evicted)
            || cache.admit(units, is_used, &mut evicted);
        for unit in evicted {
            if std::mem::take(&mut self.units.all[unit].unused) {
                self.stats.wasted += Bytes(self.cache.bytes(unit));
            }
            self.forget(unit);
        }
        self.release_freed();
        fits
    }

    fn order(&mut self, unit: UnitId, ahead: bool) {
        let mut reads = Vec::new();
        for Piece { file, range } in self.units.pieces(unit) {
            for page in shared_pages(&range) {
                *self.shared_pages.entry((file, page)).or_default() += 1;
            }
            self.stats.reused += self.spare.fill(&self.backings, file, &range);
            let parts = vec![Part::in_order(range)];
            reads.push(Read { backing: self.backings[file].clone(), parts });
        }
        self.shrink_spare();
        self.stats.read += Bytes(self.cache.bytes(unit));
        self.units.all[unit].state = State::Reading(self.reader.order(reads, ahead));
    }

    /// Returns spare memory for which there is no room beside the units.
    fn shrink_spare(&mut self) {
        let room = self.cache.capacity().saturating_sub(self.cache.used());
        self.places.shrink(&self.backings, room.saturating_sub(self.spare.bytes().0));
        self.spare.shrink(&self.backings, room.saturating_sub(self.places.bytes().0));
    }

    /// Orders units that are rows, in joined reads.
    fn order_rows(&mut self, units: &[UnitId], ahead: bool) {
        if units.is_empty() {
            return;
        }
        let mut pieces = Vec::with_capacity(units.len());
        for (Piece { file, range }, place) in units.iter().flat_map(|&unit| self.units.parts(unit))
        {
            if let Some(place) = place {
                let (to, reused) = self.places.take(file, range.end - range.start);
                self.stats.reused += reused;
                place.set(to);
                pieces.push((file, Part { from: range, to }));
                continue;
            }
            for page in shared_pages(&range) {
                *self.shared_pages.entry((file, page)).or_default() += 1;
            }
            pieces.push((file, Part::in_order(range)));
        }
        self.shrink_spare();
        let reads = join(pieces).into_iter();
        let reads = reads.map(|(file, parts)| Read { backing: self.backings[file].clone(), parts });
        let reads: Vec<Read> = reads.collect();
        self.stats.read += reads.iter().map(Read::bytes).sum();
        let ticket = self.reader.order(reads, ahead);
        for &unit in units {
            self.units.all[unit].state = State::Reading(Arc::clone(&ticket));
        }
    }

    /// Makes `unit` absent. Its memory is spare, except pages that other resident units share.
    fn forget(&mut self, unit: UnitId) {
        self.cache.remove(unit);
        match std::mem::replace(&mut self.units.all[unit].state, State::Absent) {
            State::Absent => return,
            State::Resident => {}
            // Decisions do not depend on how fast the disk is, so a unit may be evicted while it is
            // being read.
            State::Reading(ticket) => {
                let _ = self.wait_for(&[ticket], &AtomicBool::new(false));
            }
        }
        let is_row = self.units.all[unit].is_row();
        for (Piece { file, range }, place) in self.units.parts(unit) {
            if let Some(place) = place {
                self.places.put(file, range.end - range.start, place.start());
                place.set(self.backings[file].blank());
                continue;
            }
            for page in shared_pages(&range) {
                let count = self.shared_pages.get_mut(&(file, page));
                let count = count.expect("ordering the unit counted the page");
                *count -= 1;
                if *count == 0 {
                    self.shared_pages.remove(&(file, page));
                    self.freed.push((file, page..page + PAGE));
                }
            }
            if is_row {
                self.freed.push((file, whole_pages(&range)));
            } else {
                self.spare.put(file, &range);
            }
        }
    }

    /// Returns the pages of forgotten units to the system, neighbours at once: a call takes longer
    /// than its pages. Must come before the next order, which may use these pages.
    fn release_freed(&mut self) {
        self.freed.sort_unstable_by_key(|(file, pages)| (*file, pages.start));
        let mut joined: Option<(usize, Range<u64>)> = None;
        for (file, pages) in self.freed.drain(..) {
            match &mut joined {
                Some((same, all)) if *same == file && all.end == pages.start => {
                    all.end = pages.end;
                }
                _ => {
                    if let Some((file, all)) = joined.replace((file, pages)) {
                        self.backings[file].region.release(all);
                    }
                }
            }
        }
        if let Some((file, all)) = joined {
            self.backings[file].region.release(all);
        }
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "row_tests.rs"]
mod row_tests;
