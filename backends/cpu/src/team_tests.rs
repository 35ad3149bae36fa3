use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::*;

/// Every chunk counts itself; a phase checks that the one before is complete.
struct Count {
    sizes: Vec<usize>,
    seen: Vec<Vec<AtomicU32>>,
    early: AtomicUsize,
    panic_at: Option<(usize, usize)>,
}

impl Count {
    fn new(sizes: &[usize]) -> Count {
        let seen = sizes.iter().map(|&n| (0..n).map(|_| AtomicU32::new(0)).collect()).collect();
        Count { sizes: sizes.to_vec(), seen, early: AtomicUsize::new(0), panic_at: None }
    }

    fn check(&self, times: u32) {
        assert_eq!(self.early.load(Ordering::SeqCst), 0, "a phase began before the last one ended");
        for phase in &self.seen {
            assert!(phase.iter().all(|n| n.load(Ordering::SeqCst) == times));
        }
    }
}

impl Job for Count {
    fn chunks(&self, phase: usize) -> Option<usize> {
        self.sizes.get(phase).copied()
    }

    fn run(&self, phase: usize, chunk: usize, _worker: usize) {
        assert!(self.panic_at != Some((phase, chunk)), "planted");
        if phase > 0 {
            let mine = self.seen[phase][chunk].load(Ordering::SeqCst);
            let behind = self.seen[phase - 1].iter().any(|n| n.load(Ordering::SeqCst) <= mine);
            self.early.fetch_add(usize::from(behind), Ordering::SeqCst);
        }
        self.seen[phase][chunk].fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn every_chunk_runs_once_and_in_phase_order() {
    for threads in [1, 2, 3, 16] {
        let mut team = Team::new(threads);
        assert_eq!(team.n_threads(), threads);
        let job = Count::new(&[1, 7, 0, 1, 64, 2, 3, 1, 100, 0]);
        for round in 1..=200 {
            assert_eq!(team.run(&job), Ok(()));
            assert_eq!(job.early.load(Ordering::SeqCst), 0, "round {round}");
        }
        job.check(200);
    }
}

#[test]
fn a_job_without_chunks_ends() {
    let mut team = Team::new(2);
    for sizes in [&[][..], &[0], &[0, 1, 0]] {
        let job = Count::new(sizes);
        assert_eq!(team.run(&job), Ok(()));
        job.check(1);
    }
}

#[test]
fn sleeping_workers_are_woken() {
    let mut team = Team::new(4);
    let job = Count::new(&[8, 8]);
    for _ in 0..5 {
        thread::sleep(YIELD * 3);
        assert_eq!(team.run(&job), Ok(()));
    }
    job.check(5);
}

#[test]
fn a_panic_ends_the_region_and_the_next_one_works() {
    for threads in [1, 2, 16] {
        let mut team = Team::new(threads);
        for panic_at in [(0, 0), (1, 5), (2, 0)] {
            let mut job = Count::new(&[3, 9, 1, 5]);
            job.panic_at = Some(panic_at);
            assert_eq!(team.run(&job), Err(Panicked("planted".to_owned())));
            let after = &job.seen[3];
            assert!(after.iter().all(|n| n.load(Ordering::SeqCst) == 0), "work after a panic");
            let job = Count::new(&[3, 9, 1, 5]);
            assert_eq!(team.run(&job), Ok(()));
            job.check(1);
        }
    }
}

#[test]
fn too_many_chunks_end_the_region_too() {
    for threads in [1, 2] {
        struct Endless;
        impl Job for Endless {
            fn chunks(&self, phase: usize) -> Option<usize> {
                Some(if phase == 0 { 2 } else { MAX_CHUNKS })
            }
            fn run(&self, _phase: usize, _chunk: usize, _worker: usize) {}
        }
        assert!(Team::new(threads).run(&Endless).is_err());
    }
}
