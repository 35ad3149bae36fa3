//! Where a plan adds its units: in the store, which reads what is pinned, or nowhere, for a plan
//! that loads nothing.

use std::ops::Range;

use hal::Bytes;
use store::{Cache, CachePolicy, Piece, RowMatrix, Store, UnitId};

/// The counts that a plan is made of.
pub(crate) trait Units {
    /// Starts again with up to `capacity` bytes. All units are dropped.
    fn begin(&mut self, capacity: Bytes);
    /// Adds an absent unit that a token uses with the given probability.
    fn add(&mut self, pieces: Vec<Piece>, probability: f64) -> UnitId;
    /// Adds an absent unit for each of `n` rows of all `matrices`.
    fn add_rows(
        &mut self,
        matrices: Vec<RowMatrix>,
        n: usize,
        probability: &dyn Fn(usize) -> f64,
    ) -> Range<UnitId>;
    /// Keeps `unit` in memory for good. Returns whether it fits.
    fn pin(&mut self, unit: UnitId) -> bool;
    /// The probability with which `unit` was added.
    fn probability(&self, unit: UnitId) -> f64;
    /// Memory of `unit` when it is resident.
    fn unit_bytes(&self, unit: UnitId) -> Bytes;
    /// Bytes that units may take.
    fn capacity(&self) -> Bytes;
    /// Memory of all resident units.
    fn used(&self) -> Bytes;
}

impl Units for Store {
    fn begin(&mut self, capacity: Bytes) {
        self.begin(capacity, CachePolicy::default());
    }

    fn add(&mut self, pieces: Vec<Piece>, probability: f64) -> UnitId {
        self.add(pieces, probability)
    }

    fn add_rows(
        &mut self,
        matrices: Vec<RowMatrix>,
        n: usize,
        probability: &dyn Fn(usize) -> f64,
    ) -> Range<UnitId> {
        self.add_rows(matrices, n, probability)
    }

    fn pin(&mut self, unit: UnitId) -> bool {
        self.pin(unit)
    }

    fn probability(&self, unit: UnitId) -> f64 {
        self.probability(unit)
    }

    fn unit_bytes(&self, unit: UnitId) -> Bytes {
        self.unit_bytes(unit)
    }

    fn capacity(&self) -> Bytes {
        self.capacity()
    }

    fn used(&self) -> Bytes {
        self.used()
    }
}

/// Units without files: nothing is read.
#[derive(Debug)]
pub(crate) struct CountedUnits {
    cache: Cache,
    probability: Vec<f64>,
}

impl CountedUnits {
    pub(crate) fn new() -> CountedUnits {
        CountedUnits { cache: Cache::new(0, CachePolicy::default()), probability: Vec::new() }
    }
}

impl Units for CountedUnits {
    fn begin(&mut self, capacity: Bytes) {
        self.cache = Cache::new(capacity.0, CachePolicy::default());
        self.probability.clear();
    }

    fn add(&mut self, pieces: Vec<Piece>, probability: f64) -> UnitId {
        self.probability.push(probability);
        let bytes: Bytes = pieces.iter().map(Piece::memory).sum();
        self.cache.add(bytes.0, probability)
    }

    fn add_rows(
        &mut self,
        matrices: Vec<RowMatrix>,
        n: usize,
        probability: &dyn Fn(usize) -> f64,
    ) -> Range<UnitId> {
        let first = self.probability.len();
        for row in 0..n {
            self.add(matrices.iter().map(|matrix| matrix.row(row)).collect(), probability(row));
        }
        first..first + n
    }

    fn pin(&mut self, unit: UnitId) -> bool {
        self.cache.pin(unit)
    }

    fn probability(&self, unit: UnitId) -> f64 {
        self.probability[unit]
    }

    fn unit_bytes(&self, unit: UnitId) -> Bytes {
        Bytes(self.cache.bytes(unit))
    }

    fn capacity(&self) -> Bytes {
        Bytes(self.cache.capacity())
    }

    fn used(&self) -> Bytes {
        Bytes(self.cache.used())
    }
}
