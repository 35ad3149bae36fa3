//! Tests of units that are rows.

use super::tests::{NEVER, TestFile, is_right, store};
use super::*;
use proptest::prelude::*;
use std::sync::atomic::Ordering;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Rows of several matrices, any number of them at once, in any order: needed rows have the
    /// file's bytes, the memory stays within the capacity, and reads are joined.
    #[test]
    fn needed_rows_have_the_bytes_of_the_file(
        seed: u64,
        n_rows in 1usize..200,
        row_bytes in prop::collection::vec(1u64..9000, 1..4),
        gap in 0u64..5000,
        share in 0.2f64..1.2,
        steps in prop::collection::vec(prop::collection::vec(any::<usize>(), 0..60), 1..20),
    ) {
        let mut end = 0;
        let matrices: Vec<RowMatrix> = row_bytes.iter().map(|&row_bytes| {
            let start = end + gap;
            end = start + row_bytes * n_rows as u64;
            RowMatrix { piece: Piece { file: 0, range: start..end }, row_bytes, table: None }
        }).collect();
        let file = TestFile::new(end as usize, seed, [0, 10, 10]);
        let mut store = store(&file, 0);
        let rows = store.add_rows(matrices.clone(), n_rows, &|_| 0.0);
        let all: Bytes = rows.clone().map(|row| store.unit_bytes(row)).sum();
        let capacity = (all.0 as f64 * share) as u64;
        store.begin(Bytes(capacity), CachePolicy::default());
        let rows = store.add_rows(matrices, n_rows, &|_| 0.0);
        for step in steps {
            let needed: Vec<UnitId> = step.iter().map(|n| rows.start + n % n_rows).collect();
            needed.iter().for_each(|&row| store.touch(row, 1));
            let misses = store.stats().misses;
            let reads = file.n_reads.load(Ordering::Relaxed);
            match store.ensure(&needed, &NEVER) {
                Ok(()) => {
                    for &row in &needed {
                        prop_assert!(is_right(&store, &file, row), "row {row}");
                    }
                    if store.stats().misses == misses {
                        prop_assert_eq!(file.n_reads.load(Ordering::Relaxed), reads);
                    }
                }
                Err(Error::Capacity { needed, capacity }) => prop_assert!(needed > capacity),
                Err(error) => prop_assert!(false, "{error}"),
            }
            prop_assert!(store.used() <= store.capacity());
            store.advance(1);
        }
        store.begin(Bytes(0), CachePolicy::default());
        let all = store.bytes(&Piece { file: 0, range: 0..end });
        // Windows has no such bytes.
        prop_assert!(cfg!(windows) || (*all).as_ref().iter().all(|&byte| byte == 0), "no memory is left");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Rows that take each other's places, beside units in order, with guesses: needed rows have the
    /// file's bytes, rows that are not in memory are zeros, and all memory of the store, not only that
    /// of its units, stays within the capacity.
    #[test]
    fn rows_with_a_table_take_the_places_of_others(
        seed: u64,
        n_rows in prop::collection::vec(1usize..80, 1..4),
        pages in prop::collection::vec(1u64..4, 3..4),
        share in 0.3f64..1.3,
        steps in prop::collection::vec(
            (prop::collection::vec(any::<usize>(), 0..40), prop::collection::vec(any::<usize>(), 0..20)),
            1..20,
        ),
    ) {
        let mut end = 0;
        let pieces: Vec<Piece> = n_rows.iter().zip(&pages).map(|(&n, &pages)| {
            let start = end;
            end = start + n as u64 * pages * PAGE;
            Piece { file: 0, range: start..end }
        }).collect();
        let chunks = end..end + 40 * PAGE;
        let file = TestFile::new(chunks.end as usize, seed, [0, 10, 10]);
        let mut store = store(&file, 0);
        let tables: Vec<RowTable> = pieces.iter().zip(&n_rows)
            .map(|(piece, &n)| store.row_table(piece, n).expect("rows are pages"))
            .collect();
        let capacity = (chunks.end as f64 * share) as u64;
        store.begin(Bytes(capacity), CachePolicy::default());
        let mut units = Vec::new();
        for ((piece, table), &n) in pieces.iter().zip(&tables).zip(&n_rows) {
            let row_bytes = (piece.range.end - piece.range.start) / n as u64;
            let (piece, table) = (piece.clone(), Some(Arc::clone(table)));
            units.extend(store.add_rows(vec![RowMatrix { piece, row_bytes, table }], n, &|_| 0.0));
        }
        for start in chunks.clone().step_by(8 * PAGE as usize) {
            units.push(store.add(vec![Piece { file: 0, range: start..start + 8 * PAGE }], 0.0));
        }
        let unit = |n: &usize| units[n % units.len()];
        for (needed, guess) in steps {
            let needed: Vec<UnitId> = needed.iter().map(unit).collect();
            let guess: Vec<UnitId> = guess.iter().map(unit).collect();
            needed.iter().for_each(|&unit| store.touch(unit, 1));
            match store.order_needed(&needed) {
                Ok(()) => {
                    store.look_ahead(&guess);
                    store.wait(&needed, &NEVER).unwrap();
                    for &unit in &needed {
                        prop_assert!(is_right(&store, &file, unit), "unit {unit}");
                    }
                }
                Err(Error::Capacity { needed, capacity }) => prop_assert!(needed > capacity),
                Err(error) => prop_assert!(false, "{error}"),
            }
            let held = store.used() + store.places.bytes() + store.spare.bytes();
            prop_assert!(held <= store.capacity(), "{held} of {}", store.capacity());
            // Each place has one row.
            let resident = units.iter().filter(|&&unit| store.cache.is_resident(unit));
            let places = resident.flat_map(|&unit| store.units.parts(unit)).filter_map(|(_, place)| place);
            let mut places: Vec<u64> = places.map(RowPlace::start).collect();
            let n = places.len();
            places.sort_unstable();
            places.dedup();
            prop_assert_eq!(places.len(), n);
            for &unit in units.iter().filter(|&&unit| !store.cache.is_resident(unit)) {
                for place in store.units.parts(unit).filter_map(|(_, place)| place) {
                    prop_assert_eq!(place.start(), store.backings[0].blank());
                }
            }
            store.advance(1);
        }
        store.begin(Bytes(0), CachePolicy::default());
        let memory = store.memory(0);
        prop_assert!(cfg!(windows) || (*memory).as_ref().iter().all(|&byte| byte == 0), "no memory is left");
        for (piece, table) in pieces.iter().zip(&tables) {
            prop_assert_eq!(table[0].start(), piece.range.start, "rows are in order");
        }
    }
}

#[test]
fn only_rows_of_whole_pages_get_a_table() {
    let file = TestFile::new(40 * PAGE as usize, 3, [0; 3]);
    let store = store(&file, 0);
    let table = |range: Range<u64>, n_rows| store.row_table(&Piece { file: 0, range }, n_rows);
    assert!(table(PAGE..9 * PAGE, 4).is_some_and(|table| table[3].start() == 7 * PAGE));
    assert!(table(PAGE..4 * PAGE, 2).is_none());
    assert!(table(8..PAGE + 8, 1).is_none() && table(0..0, 0).is_none());
    assert!(table(0..20 * PAGE, 1).is_none(), "long rows move by pages");
}

#[test]
fn rows_near_each_other_are_read_at_once() {
    let file = TestFile::new(4 << 20, 6, [0; 3]);
    let mut store = store(&file, 16 << 20);
    let matrix = RowMatrix {
        piece: Piece { file: 0, range: 100..100 + 2000 * 2000 },
        row_bytes: 2000,
        table: None,
    };
    let rows = store.add_rows(vec![matrix], 2000, &|_| 0.0);
    let needed: Vec<UnitId> = [0, 1, 3, 15, 500, 1000, 1010].map(|n| rows.start + n).to_vec();
    store.ensure(&needed, &NEVER).unwrap();
    assert!(needed.iter().all(|&row| is_right(&store, &file, row)));
    assert_eq!(file.n_reads.load(Ordering::Relaxed), 3);
    // All of them, in reads of at most a megabyte.
    let all: Vec<UnitId> = rows.collect();
    store.ensure(&all, &NEVER).unwrap();
    assert!(all.iter().all(|&row| is_right(&store, &file, row)));
    assert!(file.n_reads.load(Ordering::Relaxed) < 3 + 12);
}

#[test]
fn rows_read_ahead_are_counted_and_wrong_guesses_cost_bandwidth_alone() {
    let file = TestFile::new(2000 * PAGE as usize, 8, [0, 5, 5]);
    let mut store = store(&file, 300 * PAGE);
    let piece = Piece { file: 0, range: 0..2000 * PAGE };
    let rows =
        store.add_rows(vec![RowMatrix { piece, row_bytes: PAGE, table: None }], 2000, &|_| 0.0);
    let row = |n: usize| rows.start + n % 2000;
    for step in 0..40 {
        let needed: Vec<UnitId> = (0..100).map(|n| row(step * 170 + n * 7)).collect();
        let guess: Vec<UnitId> = (0..100).map(|n| row((step + 1) * 170 + n * 6)).collect();
        needed.iter().for_each(|&unit| store.touch(unit, 1));
        store.order_needed(&needed).unwrap();
        store.look_ahead(&guess);
        store.wait(&needed, &NEVER).unwrap();
        assert!(needed.iter().all(|&unit| is_right(&store, &file, unit)), "step {step}");
        assert!(store.used() <= store.capacity());
    }
    let StoreStats { ahead, wasted, misses, read, .. } = store.stats();
    assert!(ahead > 100 && misses > 100, "{ahead} ahead, {misses} misses");
    assert!(wasted > Bytes(100 * PAGE) && wasted < read, "{wasted} of {read}");
    // Guesses that do not fit beside the needed rows are not read.
    let needed: Vec<UnitId> = (0..200).map(row).collect();
    store.order_needed(&needed).unwrap();
    let before = store.stats().read;
    store.look_ahead(&(1000..1200).map(row).collect::<Vec<_>>());
    assert_eq!(store.stats().read, before);
    store.wait(&needed, &NEVER).unwrap();
}

#[test]
fn rows_that_cannot_be_read_are_an_error_and_can_be_repeated() {
    let file = TestFile::new(40_000, 7, [100, 0, 0]);
    let mut store = store(&file, 4 << 20);
    let matrix =
        RowMatrix { piece: Piece { file: 0, range: 0..40_000 }, row_bytes: 100, table: None };
    let rows: Vec<UnitId> = store.add_rows(vec![matrix], 400, &|_| 0.0).collect();
    assert!(matches!(store.ensure(&rows, &NEVER), Err(Error::Read { .. })));
    assert_eq!(store.used(), Bytes(0));
    file.faults.lock().unwrap().error = 0;
    store.ensure(&rows, &NEVER).unwrap();
    assert!(rows.iter().all(|&row| is_right(&store, &file, row)));
}
