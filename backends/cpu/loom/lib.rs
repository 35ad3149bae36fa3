//! The CPU backend's thread pool with loom's shared variables in place of the standard library's: `tests/models.rs` explores
//! interleavings of small jobs, and every value that a weakly ordered processor may read.
#![allow(dead_code)] // the models use a part of the pool

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, fence};
    pub(crate) use loom::sync::{Arc, Condvar, Mutex};
    pub(crate) use loom::thread::{self, JoinHandle};

    pub(crate) const SPINS: u32 = 1;

    /// A swap, because loom has no order between a store and an increment that did not see it: after its own store, a
    /// thread could read such an increment, which the memory model forbids.
    pub(crate) fn store_word(word: &AtomicU64, value: u64) {
        word.swap(value, loom::sync::atomic::Ordering::Release);
    }
}

/// Loom's threads are not threads of the system, so there is nothing to bind.
mod affinity {
    pub(crate) struct BoundThread;

    impl BoundThread {
        pub(crate) fn new(_cpus: &[usize]) -> BoundThread {
            BoundThread
        }
    }
}

mod thread_plan {
    #[derive(Clone, Debug, Default)]
    pub(crate) struct CpuBinding {
        pub(crate) node: usize,
        pub(crate) cpus: Vec<usize>,
    }
}

#[path = "../src/thread_pool.rs"]
mod thread_pool;

use loom::sync::atomic::{AtomicUsize, Ordering};
use thread_plan::CpuBinding;
use thread_pool::{IdleTimes, Job, ThreadPool};

/// A job that counts the runs of each chunk. The counts are not ordered by themselves, so a count is seen only if the pool
/// orders the phases.
struct CountJob(Vec<Vec<AtomicUsize>>);

impl CountJob {
    fn check(&self, n_phases: usize) {
        for phase in &self.0[..n_phases] {
            assert!(
                phase.iter().all(|n| n.load(Ordering::Relaxed) == 1),
                "a chunk did not run once, or is not seen"
            );
        }
    }
}

impl Job for CountJob {
    fn chunks(&self, phase: usize) -> Option<usize> {
        self.check(phase.min(self.0.len()));
        self.0.get(phase).map(Vec::len)
    }

    fn run(&self, phase: usize, chunk: usize, _worker: usize) {
        self.check(phase);
        self.0[phase][chunk].fetch_add(1, Ordering::Relaxed);
    }
}

/// Explores a pool of `n_threads`, which runs a job once for each number of active threads. The job's phases have
/// `sizes` chunks. At most `preemptions` of a thread that could go on are explored. Returns the number of executions.
///
/// # Panics
/// If a chunk does not run once, a phase begins too early, or all threads wait for ever.
pub fn explore(
    n_threads: usize,
    sizes: &'static [usize],
    active: &'static [usize],
    preemptions: usize,
) -> usize {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    let n = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counter = std::sync::Arc::clone(&n);
    model.check(move || {
        counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let bindings = vec![CpuBinding::default(); n_threads];
        let mut pool = ThreadPool::new(&bindings, IdleTimes::from_percent(0));
        for &n_active in active {
            let job = CountJob(
                sizes.iter().map(|&n| (0..n).map(|_| AtomicUsize::new(0)).collect()).collect(),
            );
            assert_eq!(pool.run(&job, n_active), Ok(()));
            job.check(sizes.len());
        }
    });
    n.load(std::sync::atomic::Ordering::Relaxed)
}
