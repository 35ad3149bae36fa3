//! Tests of the store on files with random contents and injected faults.

use std::collections::HashSet;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

/// A file in memory whose reads may fail.
#[derive(Debug)]
pub(super) struct TestFile {
    bytes: Vec<u8>,
    pub(super) faults: Mutex<Faults>,
    changed: AtomicBool,
    pub(super) n_reads: AtomicU32,
}

#[derive(Debug)]
pub(super) struct Faults {
    random: StdRng,
    /// Percentages of reads that fail, that are short, and that are interrupted.
    pub(super) error: u32,
    short: u32,
    interrupted: u32,
    /// Where the last read was short. The next one there is not: a page that is read in part each
    /// time is the end of a shortened file, and an error.
    cut: HashSet<u64>,
}

impl TestFile {
    pub(super) fn new(
        len: usize,
        seed: u64,
        [error, short, interrupted]: [u32; 3],
    ) -> Arc<TestFile> {
        let mut random = StdRng::seed_from_u64(seed);
        // No zeros, so that bytes without memory differ from the file's.
        let bytes = (0..len).map(|_| random.random_range(1..=255)).collect();
        let cut = HashSet::new();
        let faults = Mutex::new(Faults { random, error, short, interrupted, cut });
        let (changed, n_reads) = (AtomicBool::new(false), AtomicU32::new(0));
        Arc::new(TestFile { bytes, faults, changed, n_reads })
    }
}

impl ReadAt for TestFile {
    fn name(&self) -> String {
        "weights".to_owned()
    }

    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize> {
        self.n_reads.fetch_add(1, Ordering::Relaxed);
        assert!(offset.is_multiple_of(PAGE) && out.len().is_multiple_of(PAGE as usize));
        assert!(out.as_ptr().addr().is_multiple_of(PAGE as usize));
        let mut faults = self.faults.lock().expect("no test panics with the lock");
        let dice = faults.random.random_range(0..100);
        if dice < faults.error {
            return Err(io::Error::from_raw_os_error(5));
        }
        if dice < faults.error + faults.interrupted {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let rest = &self.bytes[(offset as usize).min(self.bytes.len())..];
        let mut n = rest.len().min(out.len());
        let short = dice < faults.error + faults.interrupted + faults.short;
        if !faults.cut.remove(&offset) && short && n > 0 {
            n = faults.random.random_range(1..=n);
            faults.cut.insert(offset);
        }
        out[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }

    fn is_unchanged(&self) -> bool {
        !self.changed.load(Ordering::Relaxed)
    }
}

pub(super) static NEVER: AtomicBool = AtomicBool::new(false);

pub(super) fn store(file: &Arc<TestFile>, capacity: u64) -> Store {
    let mut store =
        Store::new(vec![Arc::clone(file) as Arc<dyn ReadAt>], 3).expect("threads start");
    store.begin(Bytes(capacity), CachePolicy::default());
    store
}

/// Whether the memory of a unit has the file's bytes.
pub(super) fn is_right(store: &Store, file: &TestFile, unit: UnitId) -> bool {
    store.units.parts(unit).all(|(piece, place)| {
        let range = piece.range.start as usize..piece.range.end as usize;
        let start = place.map_or(range.start, |place| place.start() as usize);
        let memory = store.memory(piece.file);
        (*memory).as_ref()[start..start + range.len()] == file.bytes[range]
    })
}

/// Units of `n_pieces` pieces each that cover a file of `len` bytes without gaps.
fn cover(store: &mut Store, len: usize, ends: &[usize], n_pieces: usize) -> Vec<UnitId> {
    let mut ends: Vec<usize> = ends.iter().map(|end| end % len).collect();
    ends.extend([0, len]);
    ends.sort_unstable();
    ends.dedup();
    let piece = |pair: &[usize]| Piece { file: 0, range: pair[0] as u64..pair[1] as u64 };
    let pieces: Vec<Piece> = ends.windows(2).map(piece).collect();
    pieces.chunks(n_pieces).map(|pieces| store.add(pieces.to_vec(), 0.0)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Whatever is ordered, evicted and guessed: needed units have the file's bytes, and pages of
    /// units that are not resident have no memory.
    #[test]
    fn needed_units_have_the_bytes_of_the_file(
        seed: u64,
        len in 1usize..90_000,
        ends in prop::collection::vec(any::<usize>(), 0..40),
        n_pieces in 1usize..4,
        pages in 8u64..60,
        max_cuts in 0usize..60,
        steps in prop::collection::vec((any::<usize>(), 1usize..5, any::<usize>()), 1..60),
    ) {
        let file = TestFile::new(len, seed, [0, 10, 10]);
        let mut store = store(&file, pages * PAGE);
        store.spare = SparePages::with_limit(max_cuts);
        let units = cover(&mut store, len, &ends, n_pieces);
        for (first, n, guess) in steps {
            let mut needed: Vec<UnitId> =
                (0..n).map(|i| units[first.wrapping_add(i) % units.len()]).collect();
            needed.dedup();
            needed.iter().for_each(|&unit| store.touch(unit, 1));
            match store.ensure(&needed, &NEVER) {
                Ok(()) => {
                    for &unit in &needed {
                        prop_assert!(is_right(&store, &file, unit), "unit {unit}");
                    }
                }
                Err(Error::Capacity { needed, capacity }) => prop_assert!(needed > capacity),
                Err(error) => prop_assert!(false, "{error}"),
            }
            store.look_ahead(&[units[guess % units.len()]]);
            prop_assert!(store.used() + store.spare.bytes() <= store.capacity());
            store.advance(1);
        }
        store.begin(Bytes(0), CachePolicy::default());
        let all = 0..(len as u64).next_multiple_of(PAGE);
        let is_new = store.backings[0].region.fill(all, |out| out.iter().all(|&byte| byte == 0));
        prop_assert!(is_new, "no memory is left");
    }
}

/// What look-ahead ordered has no score yet, and is needed next.
#[test]
fn units_read_ahead_stay_while_there_is_other_room() {
    let file = TestFile::new(40 * PAGE as usize, 9, [0; 3]);
    let mut store = store(&file, 10 * PAGE);
    let ends: Vec<usize> = (0..40).map(|n| n * PAGE as usize).collect();
    let units = cover(&mut store, 40 * PAGE as usize, &ends, 1);
    let mut need = |some: &[UnitId], ahead: &[UnitId]| {
        some.iter().for_each(|&unit| store.touch(unit, 1));
        store.order_needed(some).unwrap();
        store.look_ahead(ahead);
        store.wait(some, &NEVER).unwrap();
        store.stats()
    };
    need(&units[..6], &units[20..22]);
    // A layer may have two stops before its neurons are needed.
    need(&units[6..9], &[]);
    need(&units[9..11], &[]);
    let stats = need(&units[20..22], &[]);
    assert_eq!((stats.ahead, stats.wasted), (2, Bytes(0)));
    // Without other room they give way.
    need(&units[..1], &units[30..35]);
    let stats = need(&units[10..20], &[]);
    assert_eq!(stats.wasted, Bytes(5 * PAGE));
}

/// Units of several huge pages, and of less than one, in turn.
#[test]
#[cfg(target_os = "linux")]
fn the_memory_of_evicted_units_is_used_again() {
    let len = 40 << 20;
    let file = TestFile::new(len, 5, [0, 1, 1]);
    for max_cuts in [1000, 20, 0] {
        let mut store = store(&file, 18 << 20);
        store.spare = SparePages::with_limit(max_cuts);
        let ends: Vec<usize> = (1..20).map(|n| n * (2 << 20) + n * n * 5000).collect();
        let units = cover(&mut store, len, &ends, 2);
        for _ in 0..3 {
            for &unit in &units {
                store.ensure(&[unit], &NEVER).unwrap();
                assert!(is_right(&store, &file, unit), "unit {unit}, {max_cuts} cuts");
                assert!(store.used() + store.spare.bytes() <= store.capacity());
            }
        }
        let StoreStats { reused, read, .. } = store.stats();
        match max_cuts {
            0 => assert_eq!(reused, Bytes(0)),
            20 => assert!(reused > Bytes(0) && reused < Bytes(read.0 / 2), "{reused} of {read}"),
            _ => assert!(reused > Bytes(read.0 / 2), "{reused} of {read}"),
        }
    }
}

#[test]
fn reads_that_keep_failing_are_an_error_and_can_be_repeated() {
    let file = TestFile::new(40_000, 1, [100, 0, 0]);
    let mut store = store(&file, 1 << 20);
    let unit = cover(&mut store, 40_000, &[], 1)[0];
    let error = store.ensure(&[unit], &NEVER).unwrap_err();
    assert!(error.to_string().starts_with("cannot read weights at byte 0: "), "{error}");
    assert_eq!(store.used(), Bytes(0));
    file.faults.lock().unwrap().error = 0;
    store.ensure(&[unit], &NEVER).unwrap();
    assert!(is_right(&store, &file, unit));
}

#[test]
fn a_file_that_shrinks_or_changes_is_an_error() {
    let mut file = TestFile::new(40_000, 2, [0; 3]);
    // The file reports the length that it had when it was opened.
    struct Shrunk(Arc<TestFile>);
    impl std::fmt::Debug for Shrunk {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "Shrunk")
        }
    }
    impl ReadAt for Shrunk {
        fn name(&self) -> String {
            self.0.name()
        }
        fn size(&self) -> u64 {
            60_000
        }
        fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize> {
            self.0.read_at(out, offset)
        }
        fn is_unchanged(&self) -> bool {
            true
        }
    }
    let shrunk: Arc<dyn ReadAt> = Arc::new(Shrunk(Arc::clone(&file)));
    let mut short = Store::new(vec![shrunk], 2).unwrap();
    short.begin(Bytes(1 << 20), CachePolicy::default());
    let unit = short.add(vec![Piece { file: 0, range: 0..60_000 }], 0.0);
    let error = short.ensure(&[unit], &NEVER).unwrap_err();
    assert!(matches!(error, Error::Shortened { .. }), "{error}");

    let mut changing = store(&file, 1 << 20);
    let units = cover(&mut changing, 40_000, &[20_000], 1);
    changing.ensure(&units[..1], &NEVER).unwrap();
    file.changed.store(true, Ordering::Relaxed);
    let error = changing.ensure(&units, &NEVER).unwrap_err();
    assert!(matches!(error, Error::Changed { .. }), "{error}");
    assert!(Arc::get_mut(&mut file).is_none());
}

#[test]
fn an_interrupt_ends_the_wait_and_reads_go_on() {
    let file = TestFile::new(4 << 20, 3, [0, 0, 99]);
    let mut store = store(&file, 8 << 20);
    let unit = cover(&mut store, 4 << 20, &[], 1)[0];
    file.faults.lock().unwrap().interrupted = 100;
    let error = store.ensure(&[unit], &AtomicBool::new(true)).unwrap_err();
    assert_eq!(error, Error::Interrupted);
    file.faults.lock().unwrap().interrupted = 0;
    store.ensure(&[unit], &NEVER).unwrap();
    assert!(is_right(&store, &file, unit));
}

#[test]
fn pinned_units_stay_and_statistics_add_up() {
    let file = TestFile::new(20 * PAGE as usize, 4, [0; 3]);
    let mut store = store(&file, 12 * PAGE);
    let ends: Vec<usize> = (0..20).map(|n| n * PAGE as usize).collect();
    let units = cover(&mut store, 20 * PAGE as usize, &ends, 1);
    assert!(units[..10].iter().all(|&unit| store.pin(unit)));
    for token in 0..3 {
        for pair in units[10..].chunks(2) {
            pair.iter().for_each(|&unit| store.touch(unit, 1));
            store.ensure(pair, &NEVER).unwrap();
            assert!(pair.iter().all(|&unit| is_right(&store, &file, unit)), "token {token}");
        }
        store.advance(1);
    }
    assert!(!store.pin(units[19]) || !store.pin(units[18]) || !store.pin(units[17]));
    store.ensure(&units[..10], &NEVER).unwrap();
    assert!(units[..10].iter().all(|&unit| is_right(&store, &file, unit)));
    let stats = store.stats();
    assert_eq!(stats.hits + stats.misses + stats.ahead, 3 * 10 + 10);
    assert!(stats.misses >= 24 && stats.read >= Bytes((10 + stats.misses) * PAGE));
}

/// Small reads go through a ring where the system has one: the last page of the file is short.
#[test]
fn rows_of_a_file_on_disk_are_right_up_to_its_end() {
    let path = std::env::temp_dir().join(format!("thermocline-rows-{}", std::process::id()));
    let bytes: Vec<u8> =
        (0..3u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let bytes = &bytes[..bytes.len() - 1000];
    std::fs::write(&path, bytes).unwrap();
    let file = crate::DirectFile::open(&path, None).unwrap();
    let mut store = Store::new(vec![Arc::new(file)], 2).unwrap();
    store.begin(Bytes(1 << 20), CachePolicy::default());
    let n = bytes.len() / 2000;
    let piece = Piece { file: 0, range: (bytes.len() - n * 2000) as u64..bytes.len() as u64 };
    let matrix = RowMatrix { piece, row_bytes: 2000, table: None };
    let rows = store.add_rows(vec![matrix.clone()], n, &|_| 0.0);
    for step in 0..200 {
        let chosen: Vec<usize> =
            (0..40).map(|i| (step * 37 + i * i * 13) % n).chain([n - 1]).collect();
        let units: Vec<UnitId> = chosen.iter().map(|row| rows.start + row).collect();
        store.order_needed(&units).unwrap();
        store.look_ahead(&[rows.start + (step + 1) * 37 % n]);
        store.wait(&units, &NEVER).unwrap();
        for row in chosen {
            let piece = matrix.row(row);
            let expected = &bytes[piece.range.start as usize..piece.range.end as usize];
            assert!((*store.bytes(&piece)).as_ref() == expected, "row {row} at step {step}");
        }
    }
    // A file that shrinks is an error, not a wait.
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
    let all: Vec<UnitId> = (n - 40..n).map(|row| rows.start + row).collect();
    all.iter().for_each(|&unit| store.evict(unit));
    let error = store.ensure(&all, &NEVER).unwrap_err();
    assert!(matches!(error, Error::Shortened { .. } | Error::Changed { .. }), "{error}");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn files_are_read_past_the_page_cache() {
    let path = std::env::temp_dir().join(format!("thermocline-store-{}", std::process::id()));
    let bytes: Vec<u8> =
        (0..9u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(&path, &bytes).unwrap();
    let opened = gguf::FileFacts::of(&std::fs::File::open(&path).unwrap()).unwrap();
    let file = crate::DirectFile::open(&path, Some(&opened)).unwrap();
    let speed = crate::measure(&file).unwrap();
    assert!(speed.bandwidth > 0.0 && speed.latency > 0.0 && speed.depth > 0);
    let mut store = Store::new(vec![Arc::new(file)], 4).unwrap();
    store.begin(Bytes(16 << 20), CachePolicy::default());
    let piece = Piece { file: 0, range: 5..(9 << 20) - 3 };
    let unit = store.add(vec![piece.clone()], 1.0);
    store.ensure(&[unit], &NEVER).unwrap();
    assert!((*store.bytes(&piece)).as_ref() == &bytes[5..bytes.len() - 3]);
    let other = std::env::temp_dir().join(format!("thermocline-store-{}-b", std::process::id()));
    std::fs::write(&other, &bytes).unwrap();
    let error = crate::DirectFile::open(&other, Some(&opened)).unwrap_err();
    assert!(matches!(error, Error::Changed { .. }), "{error}");
    // Written to before it is opened here, after its header was read from a mapping.
    std::fs::write(&path, &bytes).unwrap();
    let error = crate::DirectFile::open(&path, Some(&opened)).unwrap_err();
    assert!(matches!(error, Error::Changed { .. }), "{error}");
    std::fs::remove_file(&path).unwrap();
    std::fs::remove_file(&other).unwrap();
}
