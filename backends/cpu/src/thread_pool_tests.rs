use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use proptest::prelude::*;

use super::*;

fn bindings(n_threads: usize, n_nodes: usize) -> Vec<CpuBinding> {
    (0..n_threads).map(|i| CpuBinding { node: i % n_nodes, cpus: Vec::new() }).collect()
}

fn pool(n_threads: usize) -> ThreadPool {
    ThreadPool::new(&bindings(n_threads, 1), IdleTimes::default())
}

/// A job that counts the runs of each chunk and checks that the previous phase is complete.
struct CountJob {
    sizes: Vec<usize>,
    seen: Vec<Vec<AtomicU32>>,
    early: AtomicUsize,
    panic_at: Option<(usize, usize)>,
}

impl CountJob {
    fn new(sizes: &[usize]) -> CountJob {
        let seen = sizes.iter().map(|&n| (0..n).map(|_| AtomicU32::new(0)).collect()).collect();
        CountJob { sizes: sizes.to_vec(), seen, early: AtomicUsize::new(0), panic_at: None }
    }

    fn check(&self, times: u32) {
        assert_eq!(self.early.load(Ordering::SeqCst), 0, "a phase began too early");
        for phase in &self.seen {
            assert!(phase.iter().all(|n| n.load(Ordering::SeqCst) == times));
        }
    }
}

impl Job for CountJob {
    fn chunks(&self, phase: usize) -> Option<usize> {
        self.sizes.get(phase).copied()
    }

    fn run(&self, phase: usize, chunk: usize, _worker: usize) {
        assert!(self.panic_at != Some((phase, chunk)), "injected panic");
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
        let mut pool = pool(threads);
        assert_eq!(pool.n_threads(), threads);
        let job = CountJob::new(&[1, 7, 0, 1, 64, 2, 3, 1, 100, 0]);
        for round in 1..=200 {
            assert_eq!(pool.run(&job, usize::MAX), Ok(()));
            assert_eq!(job.early.load(Ordering::SeqCst), 0, "round {round}");
        }
        job.check(200);
    }
}

#[test]
fn a_job_without_chunks_ends() {
    let mut pool = pool(2);
    for sizes in [&[][..], &[0], &[0, 1, 0]] {
        let job = CountJob::new(sizes);
        assert_eq!(pool.run(&job, usize::MAX), Ok(()));
        job.check(1);
    }
}

#[test]
fn sleeping_workers_are_woken() {
    let mut pool = pool(4);
    let job = CountJob::new(&[8, 8]);
    for _ in 0..5 {
        thread::sleep(IdleTimes::default().park * 3);
        assert_eq!(pool.run(&job, usize::MAX), Ok(()));
    }
    job.check(5);
}

#[test]
fn a_pool_runs_jobs_after_a_panic() {
    for threads in [1, 2, 16] {
        let mut pool = pool(threads);
        for panic_at in [(0, 0), (1, 5), (2, 0)] {
            let mut job = CountJob::new(&[3, 9, 1, 5]);
            job.panic_at = Some(panic_at);
            assert_eq!(pool.run(&job, usize::MAX), Err(WorkerPanic("injected panic".to_owned())));
            let after = &job.seen[3];
            assert!(
                after.iter().all(|n| n.load(Ordering::SeqCst) == 0),
                "a chunk ran after a panic"
            );
            let job = CountJob::new(&[3, 9, 1, 5]);
            assert_eq!(pool.run(&job, usize::MAX), Ok(()));
            job.check(1);
        }
    }
}

#[test]
fn too_many_chunks_are_an_error() {
    for threads in [1, 2] {
        struct TooManyChunks;
        impl Job for TooManyChunks {
            fn chunks(&self, phase: usize) -> Option<usize> {
                Some(if phase == 0 { 2 } else { MAX_CHUNKS })
            }
            fn run(&self, _phase: usize, _chunk: usize, _worker: usize) {}
        }
        assert!(pool(threads).run(&TooManyChunks, usize::MAX).is_err());
    }
}

#[test]
fn node_ranges_cover_each_chunk_once() {
    for n in 0..200 {
        for n_nodes in 1..9 {
            let ranges = (0..n_nodes).flat_map(|node| node_range(n, node, n_nodes));
            assert_eq!(ranges.collect::<Vec<_>>(), (0..n).collect::<Vec<_>>());
            assert_eq!(node_range(n, 0, n_nodes).is_empty(), n == 0);
            let sizes = (0..n_nodes).map(|node| node_range(n, node, n_nodes).len());
            assert!(sizes.clone().max() <= sizes.min().map(|least| least + 1));
        }
    }
}

/// A job of one phase: the number of chunks, and `f(chunk, worker)`, which runs a chunk.
struct OnePhase<F>(usize, F);

impl<F: Fn(usize, usize) + Sync> Job for OnePhase<F> {
    fn chunks(&self, phase: usize) -> Option<usize> {
        (phase == 0).then_some(self.0)
    }

    fn run(&self, _phase: usize, chunk: usize, worker: usize) {
        (self.1)(chunk, worker);
    }
}

fn wait_until(ready: impl Fn() -> bool) {
    let begin = Instant::now();
    while !ready() {
        assert!(begin.elapsed() < Duration::from_secs(60), "timeout after 60 s");
        thread::yield_now();
    }
}

#[test]
fn threads_take_chunks_of_their_own_node_first() {
    for (n_threads, n_nodes) in [(2, 2), (4, 2), (8, 4), (9, 3)] {
        let mut pool = ThreadPool::new(&bindings(n_threads, n_nodes), IdleTimes::default());
        for _ in 0..50 {
            // Once all workers are parked, no worker still takes chunks of the last region.
            wait_until(|| pool.shared.workers.sleepers.load(Ordering::SeqCst) == n_threads - 1);
            // Each thread waits in its chunk until all threads have one, so no thread can help
            // another node.
            let begun = AtomicUsize::new(0);
            let job = OnePhase(n_threads, |chunk, worker: usize| {
                assert!(node_range(n_threads, worker % n_nodes, n_nodes).contains(&chunk));
                begun.fetch_add(1, Ordering::SeqCst);
                wait_until(|| begun.load(Ordering::SeqCst) == n_threads);
            });
            assert_eq!(pool.run(&job, n_threads), Ok(()));
        }
    }
}

#[test]
fn idle_threads_take_chunks_of_other_nodes() {
    for n_nodes in 2..5 {
        let mut pool = ThreadPool::new(&bindings(n_nodes, n_nodes), IdleTimes::default());
        for _ in 0..20 {
            let (done, caller) = (AtomicUsize::new(0), AtomicUsize::new(0));
            // All threads except the caller hold their first chunks until all other chunks are
            // done.
            let held =
                (n_nodes - 1) * Ticket::new(0, node_range(64, 0, n_nodes)).claim_size(n_nodes);
            let job = OnePhase(64, |_, worker| {
                if worker > 0 {
                    wait_until(|| done.load(Ordering::SeqCst) + held >= 64);
                }
                caller.fetch_add(usize::from(worker == 0), Ordering::SeqCst);
                done.fetch_add(1, Ordering::SeqCst);
            });
            assert_eq!(pool.run(&job, n_nodes), Ok(()));
            assert_eq!(done.load(Ordering::SeqCst), 64);
            assert!(caller.load(Ordering::SeqCst) >= 64 - held);
        }
    }
}

#[test]
fn inactive_threads_stop_taking_chunks() {
    let mut pool = pool(6);
    for (round, n_active) in [6, 2, 1, 6, 3, 0, 5].into_iter().cycle().take(70).enumerate() {
        let (done, times) = (AtomicUsize::new(0), Mutex::new([(0usize, None::<usize>); 6]));
        let job = OnePhase(200, |chunk: usize, worker: usize| {
            let (n, last) = &mut times.lock().unwrap()[worker];
            // A run of adjacent chunks is counted once, because a thread takes several chunks at a
            // time.
            *n += usize::from(last.replace(chunk).is_none_or(|last| last + 1 != chunk));
            done.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!(pool.run(&job, n_active), Ok(()));
        assert_eq!(done.load(Ordering::SeqCst), 200, "round {round}");
        // A thread that looked for work before it was deactivated may still take chunks once.
        let spare = &times.lock().unwrap()[n_active.max(1)..];
        assert!(spare.iter().all(|&(n, _)| n <= 1), "round {round}");
    }
}

/// Maximum number of chunks of a phase of [`SumJob`].
const MAX_SUMS: usize = 64;

/// A job whose result depends on every chunk of every phase: each chunk reads all results of the
/// previous phase.
struct SumJob<'a> {
    values: &'a [f32],
    sizes: &'a [usize],
    /// Results of the even and of the odd phases.
    partial: [[AtomicU32; MAX_SUMS]; 2],
    /// The worker that sleeps in each chunk.
    slow: usize,
    panic_at: Option<(usize, usize)>,
}

impl<'a> SumJob<'a> {
    fn new(values: &'a [f32], sizes: &'a [usize], slow: usize) -> SumJob<'a> {
        let partial = || std::array::from_fn(|_| AtomicU32::new(0));
        SumJob { values, sizes, partial: [partial(), partial()], slow, panic_at: None }
    }

    fn phase_sum(&self, phase: usize) -> f32 {
        let cells = &self.partial[phase % 2][..self.sizes[phase]];
        cells.iter().map(|cell| f32::from_bits(cell.load(Ordering::Relaxed))).sum()
    }

    fn total(&self) -> u32 {
        self.phase_sum(self.sizes.len() - 1).to_bits()
    }
}

impl Job for SumJob<'_> {
    fn chunks(&self, phase: usize) -> Option<usize> {
        self.sizes.get(phase).copied()
    }

    fn run(&self, phase: usize, chunk: usize, worker: usize) {
        assert!(self.panic_at != Some((phase, chunk)), "injected panic");
        if worker == self.slow {
            thread::sleep(Duration::from_micros(200));
        }
        let before = phase.checked_sub(1).map_or(0.0, |phase| self.phase_sum(phase));
        let own = self.values.iter().skip(chunk).step_by(7).fold(before, |sum, v| sum * 0.75 + v);
        self.partial[phase % 2][chunk].store(own.to_bits(), Ordering::Relaxed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Any pool, any job, slow workers and earlier panics give the same bits as one thread.
    #[test]
    fn any_pool_gives_the_bits_of_one_thread(
        values in prop::collection::vec(-1.0f32..1.0, 100..300),
        sizes in prop::collection::vec(0usize..MAX_SUMS, 1..12),
        n_threads in 1usize..17,
        n_nodes in 1usize..5,
        slow in 0usize..32,
        poll in prop::sample::select(vec![0u8, 1, 50, 100]),
        active in prop::collection::vec(1usize..17, 1..6),
        bad in (0usize..12, 0usize..MAX_SUMS),
    ) {
        let job = SumJob::new(&values, &sizes, usize::MAX);
        prop_assert_eq!(pool(1).run(&job, 1), Ok(()));
        let expected = job.total();
        let n_nodes = n_nodes.min(n_threads);
        let bindings = bindings(n_threads, n_nodes);
        let mut pool = ThreadPool::new(&bindings, IdleTimes::from_percent(poll));
        for n_active in active {
            let job = SumJob::new(&values, &sizes, slow);
            prop_assert_eq!(pool.run(&job, n_active), Ok(()));
            prop_assert_eq!(job.total(), expected);
            let mut job = SumJob::new(&values, &sizes, slow);
            job.panic_at = Some(bad);
            let exists = sizes.get(bad.0).is_some_and(|&n| bad.1 < n);
            let outcome = pool.run(&job, n_active);
            prop_assert_eq!(outcome.is_err(), exists);
        }
    }
}
