#![allow(unsafe_code, reason = "threads that outlive the call use a borrowed job")]
//! The thread pool: workers that share the chunks of a job, phase by phase.
//!
//! The pool needs no barrier. Each NUMA node in use has one atomic word, its *ticket*, with the
//! phase, the end of the node's range of chunks, and the node's next chunk. An idle worker takes
//! the next chunks of its own node, then of other nodes. The worker that finishes the last chunk of
//! a phase opens the next phase. Workers take several chunks at a time while many are left
//! (`Ticket::claim_size`). A worker that the system preempts between two chunks does not delay the
//! others. A phase of one chunk runs on the thread that opens the phase.
//!
//! A node's chunks are a range of chunk numbers that depends only on the numbers of chunks and
//! nodes ([`node_range`]). Weights are placed on the nodes by the same rule. A worker may take
//! chunks of another node, because results do not depend on the thread.
//!
//! Idle workers spin for a few microseconds, then yield, then park: when another program uses the
//! core, longer spinning costs far more than waking up.
//!
//! `loom/` compiles this file against loom's [`sync`](crate::sync) and explores its interleavings.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::affinity::BoundThread;
use crate::sync::{
    Arc, AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Condvar, JoinHandle, Mutex, SPINS, fence,
    store_word, thread,
};
use crate::thread_plan::CpuBinding;

#[derive(Clone, Copy, Debug)]
pub(crate) struct IdleTimes {
    /// Idle time after which the thread yields instead of spinning.
    spin: Duration,
    /// Idle time after which the thread parks.
    park: Duration,
}

impl IdleTimes {
    /// Idle times for `poll` percent of the maximum.
    pub(crate) fn from_percent(poll: u8) -> IdleTimes {
        let poll = u64::from(poll.min(100));
        IdleTimes {
            spin: Duration::from_nanos(100 * poll),
            park: Duration::from_nanos(1600 * poll),
        }
    }
}

impl Default for IdleTimes {
    fn default() -> IdleTimes {
        IdleTimes::from_percent(50)
    }
}

/// Work in phases. Phases run one after another, the chunks of one phase in any order and on any
/// thread.
pub(crate) trait Job: Sync {
    /// Number of chunks of a phase, below [`MAX_CHUNKS`]; `None` after the last phase. The pool
    /// calls this once per phase, after the earlier phases are complete.
    fn chunks(&self, phase: usize) -> Option<usize>;

    fn run(&self, phase: usize, chunk: usize, worker: usize);
}

/// The message of a panic in a job.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WorkerPanic(pub(crate) String);

const CHUNK_BITS: u32 = 21;
const CHUNK_MASK: u64 = (1 << CHUNK_BITS) - 1;
const NO_PHASE: usize = (1 << (64 - 2 * CHUNK_BITS)) - 1;

/// A phase has fewer chunks than this.
pub(crate) const MAX_CHUNKS: usize = 1 << 20;
/// Maximum number of threads of a pool.
pub(crate) const MAX_THREADS: usize = 4096;

/// The range of a phase's `n` chunks that belongs to node `node` of `n_nodes`. The first node's
/// range is empty only if `n` is 0.
pub(crate) fn node_range(n: usize, node: usize, n_nodes: usize) -> Range<usize> {
    let first = |node: usize| (n * node).div_ceil(n_nodes);
    first(node)..first(node + 1)
}

/// A node's phase, end of its chunks, and next chunk, packed as `phase | end | next`.
#[derive(Clone, Copy)]
struct Ticket(u64);

impl Ticket {
    const END: Ticket = Ticket::new(NO_PHASE, 0..0);

    const fn new(phase: usize, share: Range<usize>) -> Ticket {
        Ticket(
            (phase as u64) << (2 * CHUNK_BITS)
                | (share.end as u64) << CHUNK_BITS
                | share.start as u64,
        )
    }

    fn phase(self) -> usize {
        (self.0 >> (2 * CHUNK_BITS)) as usize
    }

    fn end(self) -> usize {
        (self.0 >> CHUNK_BITS & CHUNK_MASK) as usize
    }

    fn next(self) -> usize {
        (self.0 & CHUNK_MASK) as usize
    }

    fn has_work(self) -> bool {
        self.next() < self.end()
    }

    /// Number of chunks to take at once: many while many are left, so a thread reads long
    /// consecutive ranges of memory; single chunks at the end, so all threads finish at about the
    /// same time.
    ///
    /// Source: guided self-scheduling (Polychronopoulos and Kuck, 1987).
    fn claim_size(self, n_workers: usize) -> usize {
        (self.end().saturating_sub(self.next()) / (2 * n_workers)).max(1)
    }
}

/// A value on its own cache line, to avoid false sharing.
#[repr(align(128))]
struct CacheAligned<T>(T);

/// Number of parked threads, and the condition variable that wakes them.
///
/// A thread that publishes work stores tickets, then reads `sleepers`. A thread that parks changes
/// `sleepers`, then reads tickets. With a sequentially consistent fence between the two accesses of
/// each, one of the threads sees what the other one wrote.
struct Parking {
    sleepers: AtomicUsize,
    wake: Condvar,
}

impl Parking {
    fn new() -> Parking {
        Parking { sleepers: AtomicUsize::new(0), wake: Condvar::new() }
    }
}

struct PoolState {
    /// One ticket per node. The first ticket also marks the end of a region (a call of `run`).
    tickets: Box<[CacheAligned<AtomicU64>]>,
    /// With several nodes: the phase whose tickets are all published.
    open: AtomicUsize,
    /// Number of unfinished chunks of the phase, plus one until all nodes' tickets are published.
    left: CacheAligned<AtomicUsize>,
    /// Workers with numbers from this value on are inactive.
    n_active: AtomicUsize,
    /// The current job. The pointer is valid for a thread that has claimed a chunk.
    job: AtomicPtr<&'static dyn Job>,
    failed: AtomicBool,
    failure: Mutex<Option<String>>,
    stop: AtomicBool,
    gate: Mutex<()>,
    workers: Parking,
    /// Parks inactive workers.
    spare: Condvar,
    caller: Parking,
    idle_times: IdleTimes,
}

/// Threads that run one job at a time. The caller of [`ThreadPool::run`] works as thread 0.
pub(crate) struct ThreadPool {
    shared: Arc<PoolState>,
    threads: Vec<JoinHandle<()>>,
    binding: CpuBinding,
}

impl std::fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadPool").field("n_threads", &self.n_threads()).finish()
    }
}

impl ThreadPool {
    /// Creates a pool with one thread per binding; the first binding is for the calling thread. The
    /// pool has fewer threads if the system refuses to start some.
    pub(crate) fn new(bindings: &[CpuBinding], idle_times: IdleTimes) -> ThreadPool {
        let n_nodes = bindings.iter().map(|binding| binding.node + 1).max().unwrap_or(1);
        let ticket = |_| CacheAligned(AtomicU64::new(Ticket::END.0));
        let shared = Arc::new(PoolState {
            tickets: (0..n_nodes).map(ticket).collect(),
            open: AtomicUsize::new(NO_PHASE),
            left: CacheAligned(AtomicUsize::new(0)),
            n_active: AtomicUsize::new(bindings.len()),
            job: AtomicPtr::new(null_mut()),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            stop: AtomicBool::new(false),
            gate: Mutex::new(()),
            workers: Parking::new(),
            spare: Condvar::new(),
            caller: Parking::new(),
            idle_times,
        });
        let start = |(worker, binding): (usize, &CpuBinding)| {
            let (shared, binding) = (Arc::clone(&shared), binding.clone());
            let body = move || {
                let _bound = BoundThread::new(&binding.cpus);
                shared.run_worker(worker, binding.node);
            };
            thread::Builder::new().name(format!("cpu worker {worker}")).spawn(body).ok()
        };
        let threads =
            bindings.iter().enumerate().skip(1).take(MAX_THREADS).map_while(start).collect();
        ThreadPool { shared, threads, binding: bindings.first().cloned().unwrap_or_default() }
    }

    /// Number of threads, including the calling thread. Worker numbers are below this number.
    pub(crate) fn n_threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Runs `job` to its end on the first `n_active` threads. After a panic in one chunk, no
    /// further chunk is started.
    pub(crate) fn run(&mut self, job: &dyn Job, n_active: usize) -> Result<(), WorkerPanic> {
        let shared = &*self.shared;
        // The calling thread is bound only during the region, so threads that it starts later do
        // not inherit the binding.
        let _bound = BoundThread::new(&self.binding.cpus);
        shared.failed.store(false, Ordering::Relaxed);
        shared.set_active(n_active.clamp(1, self.n_threads()));
        // Only a thread that has claimed a chunk dereferences the pointer, and this function
        // returns after all chunks are done.
        let lent = (&raw const job).cast_mut().cast::<&'static dyn Job>();
        shared.job.store(lent, Ordering::Release);
        shared.open_phase(job, 0, 0);
        loop {
            shared.run_chunks(0, self.binding.node);
            if shared.has_ended() {
                break;
            }
            shared.wait(&shared.caller, &|| shared.has_work() || shared.has_ended());
        }
        if shared.failed.load(Ordering::Acquire) {
            let mut failure = shared.failure.lock().unwrap_or_else(PoisonError::into_inner);
            Err(WorkerPanic(failure.take().unwrap_or_default()))
        } else {
            Ok(())
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.wake_all();
        for thread in self.threads.drain(..) {
            // Panics inside chunks are caught, so the result carries no information.
            let _ = thread.join();
        }
    }
}

impl PoolState {
    fn ticket(&self, node: usize) -> Ticket {
        Ticket(self.tickets[node].0.load(Ordering::Acquire))
    }

    fn has_work(&self) -> bool {
        (0..self.tickets.len()).any(|node| self.ticket(node).has_work())
    }

    fn has_ended(&self) -> bool {
        self.ticket(0).phase() == NO_PHASE
    }

    /// Sets the number of active threads; called between regions.
    fn set_active(&self, n_active: usize) {
        if self.n_active.swap(n_active, Ordering::SeqCst) != n_active {
            // Wakes parked workers, so inactive workers move to `spare`: an inactive worker must
            // not consume a wake-up for an active worker.
            self.wake_all();
        }
    }

    fn run_worker(&self, worker: usize, node: usize) {
        let stop = || self.stop.load(Ordering::SeqCst);
        let spare = || worker >= self.n_active.load(Ordering::SeqCst);
        while !stop() {
            if spare() {
                let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
                while spare() && !stop() {
                    gate = self.spare.wait(gate).unwrap_or_else(PoisonError::into_inner);
                }
                continue;
            }
            self.run_chunks(worker, node);
            self.wait(&self.workers, &|| self.has_work() || spare() || stop());
        }
    }

    /// Takes chunks while any are left: first of node `home`, then of the other nodes.
    fn run_chunks(&self, worker: usize, home: usize) {
        let n_nodes = self.tickets.len();
        let active = || worker < self.n_active.load(Ordering::Relaxed);
        'phase: loop {
            // `open` is read before the home ticket, so this thread helps other nodes only after
            // its own node's ticket was published.
            let open = self.open.load(Ordering::Acquire);
            for step in 0..n_nodes {
                let node = (home + step) % n_nodes;
                while active() {
                    let seen = self.ticket(node);
                    if !seen.has_work() || step > 0 && seen.phase() != open {
                        break;
                    }
                    self.take_chunks(node, worker, seen);
                    if step > 0 {
                        continue 'phase;
                    }
                }
            }
            return;
        }
    }

    /// Takes some consecutive chunks of `node`, if any are left; `seen` is an earlier value of the
    /// node's ticket.
    fn take_chunks(&self, node: usize, worker: usize, seen: Ticket) {
        let n = seen.claim_size(self.n_active.load(Ordering::Relaxed));
        // The phase may have changed since `seen` was read, so the code uses only the returned
        // value.
        let claimed = Ticket(self.tickets[node].0.fetch_add(n as u64, Ordering::AcqRel));
        if !claimed.has_work() {
            return;
        }
        let job = self.job.load(Ordering::Acquire);
        // SAFETY: `run` stored the pointer before it opened the phase and returns only after every
        // claimed chunk was counted in `left`; the chunks claimed here are counted below.
        let job = unsafe { *job };
        let chunks = claimed.next()..claimed.end().min(claimed.next() + n);
        let n = chunks.len();
        chunks.for_each(|chunk| self.run_chunk(job, claimed.phase(), chunk, worker));
        if self.left.0.fetch_sub(n, Ordering::AcqRel) == n {
            self.open_phase(job, claimed.phase() + 1, worker);
        }
    }

    /// Opens the next phase with several chunks, from `phase` on. Runs phases of one chunk on this
    /// thread. Ends the region after the last phase or a panic. Only `run` and the thread that
    /// finished the previous phase call this.
    fn open_phase(&self, job: &dyn Job, mut phase: usize, worker: usize) {
        loop {
            let chunks = if self.failed.load(Ordering::Acquire) {
                None
            } else {
                self.catch_panic(|| checked_chunks(job, phase)).flatten()
            };
            match chunks {
                None => return self.end_region(),
                Some(0) => {}
                Some(1) => self.run_chunk(job, phase, 0, worker),
                Some(chunks) => {
                    if !self.publish(phase, chunks) {
                        return;
                    }
                }
            }
            phase += 1;
        }
    }

    fn run_chunk(&self, job: &dyn Job, phase: usize, chunk: usize, worker: usize) {
        if !self.failed.load(Ordering::Relaxed) {
            self.catch_panic(|| job.run(phase, chunk, worker));
        }
    }

    /// Calls `f`. If `f` panics, stores the message for the caller of the region.
    fn catch_panic<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        match catch_unwind(AssertUnwindSafe(f)) {
            Ok(value) => Some(value),
            Err(payload) => {
                let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                *failure = Some(message(&*payload));
                self.failed.store(true, Ordering::Release);
                None
            }
        }
    }

    /// Publishes a phase. Returns whether this thread must open the next phase.
    fn publish(&self, phase: usize, chunks: usize) -> bool {
        let n_nodes = self.tickets.len();
        // With several tickets, this thread holds the phase open until all tickets are published.
        let hold = usize::from(n_nodes > 1);
        self.left.0.store(chunks + hold, Ordering::Release);
        for (node, ticket) in self.tickets.iter().enumerate() {
            let ours = Ticket::new(phase, node_range(chunks, node, n_nodes));
            store_word(&ticket.0, ours.0);
        }
        if hold > 0 {
            self.open.store(phase, Ordering::Release);
        }
        fence(Ordering::SeqCst);
        self.wake_caller();
        self.wake_workers(chunks - 1);
        hold > 0 && self.left.0.fetch_sub(hold, Ordering::AcqRel) == hold
    }

    fn end_region(&self) {
        self.open.store(NO_PHASE, Ordering::Release);
        store_word(&self.tickets[0].0, Ticket::END.0);
        fence(Ordering::SeqCst);
        self.wake_caller();
    }

    /// Call this after a fence, like `wake_workers`: see [`Parking`].
    fn wake_caller(&self) {
        if self.caller.sleepers.load(Ordering::Relaxed) > 0 {
            drop(self.gate.lock().unwrap_or_else(PoisonError::into_inner));
            self.caller.wake.notify_one();
        }
    }

    fn wake_workers(&self, at_most: usize) {
        let sleepers = self.workers.sleepers.load(Ordering::Relaxed);
        if sleepers == 0 || at_most == 0 {
            return;
        }
        drop(self.gate.lock().unwrap_or_else(PoisonError::into_inner));
        if at_most < sleepers {
            (0..at_most).for_each(|_| self.workers.wake.notify_one())
        } else {
            self.workers.wake.notify_all()
        }
    }

    fn wake_all(&self) {
        drop(self.gate.lock().unwrap_or_else(PoisonError::into_inner));
        self.workers.wake.notify_all();
        self.spare.notify_all();
    }

    fn wait(&self, parking: &Parking, ready: &dyn Fn() -> bool) {
        let start = Instant::now();
        loop {
            for _ in 0..SPINS {
                if ready() {
                    return;
                }
                std::hint::spin_loop();
            }
            let waited = start.elapsed();
            if waited >= self.idle_times.park {
                return self.park(parking, ready);
            }
            if waited >= self.idle_times.spin {
                thread::yield_now();
            }
        }
    }

    fn park(&self, parking: &Parking, ready: &dyn Fn() -> bool) {
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        parking.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while !ready() {
            gate = parking.wake.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
        parking.sleepers.fetch_sub(1, Ordering::Relaxed);
        drop(gate);
    }
}

/// Number of chunks of a phase. Panics if the ticket cannot represent the number.
fn checked_chunks(job: &dyn Job, phase: usize) -> Option<usize> {
    let chunks = job.chunks(phase)?;
    assert!(
        chunks < MAX_CHUNKS && phase < NO_PHASE,
        "phase {phase} with {chunks} chunks exceeds the limits"
    );
    Some(chunks)
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default()
}

#[cfg(test)]
#[path = "thread_pool_tests.rs"]
mod tests;
