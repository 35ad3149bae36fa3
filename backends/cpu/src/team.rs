#![allow(unsafe_code, reason = "a job is lent to threads that outlive the call")]
//! The thread team: workers that share out the chunks of a job, phase by phase.
//!
//! There is no barrier. One word, the *ticket*, holds the phase, its number of chunks and the next chunk; whoever
//! has nothing to do takes the next one, and whoever finishes the last chunk of a phase opens the following
//! phase. A worker that the system took away between two chunks is not missed by anybody. A phase of one chunk
//! is run by the thread that opens it.
//!
//! Who waits spins for a few microseconds, then gives way to others, then sleeps: beside a busy neighbour,
//! longer spinning costs far more than waking up.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long a waiting thread keeps its core to itself.
const SPIN: Duration = Duration::from_micros(5);
/// How long it then offers the core to others before it sleeps.
const YIELD: Duration = Duration::from_micros(80);

/// Work in phases. Phases run one after another, the chunks of one phase in any order and on any thread.
pub(crate) trait Job: Sync {
    /// Chunks of a phase, below [`MAX_CHUNKS`]; `None` after the last phase. Asked once per phase, after the
    /// phases before it.
    fn chunks(&self, phase: usize) -> Option<usize>;

    /// Runs one chunk on worker number `worker`.
    fn run(&self, phase: usize, chunk: usize, worker: usize);
}

/// A chunk ended in a panic; what it said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Panicked(pub(crate) String);

const BITS: u32 = 21;
const MASK: u64 = (1 << BITS) - 1;
const IDLE: usize = (1 << (64 - 2 * BITS)) - 1;

/// Chunks that one phase may have at most.
pub(crate) const MAX_CHUNKS: usize = 1 << 20;
/// Threads that a team may have at most.
pub(crate) const MAX_THREADS: usize = 4096;

/// `phase | number of chunks | next chunk`.
#[derive(Clone, Copy)]
struct Ticket(u64);

impl Ticket {
    const END: Ticket = Ticket::new(IDLE, 0);

    const fn new(phase: usize, chunks: usize) -> Ticket {
        Ticket((phase as u64) << (2 * BITS) | (chunks as u64) << BITS)
    }

    fn phase(self) -> usize {
        (self.0 >> (2 * BITS)) as usize
    }

    fn chunks(self) -> usize {
        (self.0 >> BITS & MASK) as usize
    }

    fn next(self) -> usize {
        (self.0 & MASK) as usize
    }

    fn has_work(self) -> bool {
        self.next() < self.chunks()
    }
}

/// Keeps what one thread writes off the cache line that others read.
#[derive(Default)]
#[repr(align(128))]
struct Apart<T>(T);

/// A place to sleep.
#[derive(Default)]
struct Bed {
    sleepers: AtomicUsize,
    wake: Condvar,
}

struct Shared {
    ticket: Apart<AtomicU64>,
    done: Apart<AtomicUsize>,
    /// The job under way; valid for whoever holds a claimed chunk.
    job: AtomicPtr<&'static dyn Job>,
    failed: AtomicBool,
    failure: Mutex<Option<String>>,
    stop: AtomicBool,
    gate: Mutex<()>,
    workers: Bed,
    caller: Bed,
}

/// Threads that work on one job at a time. The caller of [`Team::run`] is one of them.
pub(crate) struct Team {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Team").field("n_threads", &self.n_threads()).finish()
    }
}

impl Team {
    /// A team of `n_threads`, at least 1, with the caller; fewer if the system gives no more.
    pub(crate) fn new(n_threads: usize) -> Team {
        let shared = Arc::new(Shared {
            ticket: Apart(AtomicU64::new(Ticket::END.0)),
            done: Apart::default(),
            job: AtomicPtr::new(null_mut()),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            stop: AtomicBool::new(false),
            gate: Mutex::new(()),
            workers: Bed::default(),
            caller: Bed::default(),
        });
        let start = |worker: usize| {
            let shared = Arc::clone(&shared);
            let body = move || shared.serve(worker);
            thread::Builder::new().name(format!("cpu worker {worker}")).spawn(body).ok()
        };
        let threads = (1..n_threads.min(MAX_THREADS)).map_while(start).collect();
        Team { shared, threads }
    }

    /// Threads, the caller included; worker numbers are below it.
    pub(crate) fn n_threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Runs `job` to its end. After a panic in one chunk, no further chunk is started.
    pub(crate) fn run(&mut self, job: &dyn Job) -> Result<(), Panicked> {
        let shared = &*self.shared;
        shared.failed.store(false, Ordering::Relaxed);
        // Only dereferenced by a thread that has claimed a chunk, and this function returns after all are done.
        let lent = (&raw const job).cast_mut().cast::<&'static dyn Job>();
        shared.job.store(lent, Ordering::Release);
        shared.open(job, 0, 0);
        loop {
            shared.work(0);
            if shared.ticket().phase() == IDLE {
                break;
            }
            shared.wait(&shared.caller, &|ticket| ticket.has_work() || ticket.phase() == IDLE);
        }
        match shared.failed.load(Ordering::Acquire) {
            false => Ok(()),
            true => {
                let mut failure = shared.failure.lock().unwrap_or_else(PoisonError::into_inner);
                Err(Panicked(failure.take().unwrap_or_default()))
            }
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.wake_workers(usize::MAX);
        for thread in self.threads.drain(..) {
            // Panics inside chunks are caught; there is nothing to learn here.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn ticket(&self) -> Ticket {
        Ticket(self.ticket.0.load(Ordering::SeqCst))
    }

    /// The life of a worker thread.
    fn serve(&self, worker: usize) {
        let stop = || self.stop.load(Ordering::SeqCst);
        while !stop() {
            self.work(worker);
            self.wait(&self.workers, &|ticket| ticket.has_work() || stop());
        }
    }

    /// Takes chunks for as long as there are any.
    fn work(&self, worker: usize) {
        while self.ticket().has_work() {
            // The phase may have changed since the look above: what this returns is what counts.
            let claimed = Ticket(self.ticket.0.fetch_add(1, Ordering::AcqRel));
            if !claimed.has_work() {
                continue;
            }
            let job = self.job.load(Ordering::Acquire);
            // SAFETY: `run` stored the pointer before it opened the phase and returns only after every claimed
            // chunk was counted in `done`; this one is counted below.
            let job = unsafe { *job };
            self.run_chunk(job, claimed.phase(), claimed.next(), worker);
            if self.done.0.fetch_add(1, Ordering::AcqRel) + 1 == claimed.chunks() {
                self.open(job, claimed.phase() + 1, worker);
            }
        }
    }

    /// Opens the first phase from `phase` on that has several chunks, running those of one chunk here, or ends
    /// the region. Only the thread that finished the phase before is here.
    fn open(&self, job: &dyn Job, mut phase: usize, worker: usize) {
        self.done.0.store(0, Ordering::Relaxed);
        loop {
            let chunks = match self.failed.load(Ordering::Acquire) {
                true => None,
                false => self.guard(|| limited(job, phase)).flatten(),
            };
            match chunks {
                None => return self.publish(Ticket::END),
                Some(0) => {}
                Some(1) => self.run_chunk(job, phase, 0, worker),
                Some(chunks) => return self.publish(Ticket::new(phase, chunks)),
            }
            phase += 1;
        }
    }

    fn run_chunk(&self, job: &dyn Job, phase: usize, chunk: usize, worker: usize) {
        if !self.failed.load(Ordering::Relaxed) {
            self.guard(|| job.run(phase, chunk, worker));
        }
    }

    /// Calls `f`; a panic is kept for the caller of the region.
    fn guard<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
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

    fn publish(&self, ticket: Ticket) {
        // Sequentially consistent, as the sleeper's counter and look are: either this thread sees the sleeper,
        // or the sleeper sees the ticket.
        self.ticket.0.store(ticket.0, Ordering::SeqCst);
        if self.caller.sleepers.load(Ordering::SeqCst) > 0 {
            drop(self.gate.lock().unwrap_or_else(PoisonError::into_inner));
            self.caller.wake.notify_one();
        }
        self.wake_workers(ticket.chunks().saturating_sub(1));
    }

    fn wake_workers(&self, at_most: usize) {
        let sleepers = self.workers.sleepers.load(Ordering::SeqCst);
        if sleepers == 0 || at_most == 0 {
            return;
        }
        drop(self.gate.lock().unwrap_or_else(PoisonError::into_inner));
        match at_most < sleepers {
            true => (0..at_most).for_each(|_| self.workers.wake.notify_one()),
            false => self.workers.wake.notify_all(),
        }
    }

    fn wait(&self, bed: &Bed, ready: &dyn Fn(Ticket) -> bool) {
        let start = Instant::now();
        loop {
            for _ in 0..16 {
                if ready(self.ticket()) {
                    return;
                }
                std::hint::spin_loop();
            }
            let waited = start.elapsed();
            if waited >= YIELD {
                return self.sleep(bed, ready);
            }
            if waited >= SPIN {
                thread::yield_now();
            }
        }
    }

    fn sleep(&self, bed: &Bed, ready: &dyn Fn(Ticket) -> bool) {
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        bed.sleepers.fetch_add(1, Ordering::SeqCst);
        while !ready(self.ticket()) {
            gate = bed.wake.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
        bed.sleepers.fetch_sub(1, Ordering::SeqCst);
        drop(gate);
    }
}

/// The chunks of a phase, if the ticket can hold them.
fn limited(job: &dyn Job, phase: usize) -> Option<usize> {
    let chunks = job.chunks(phase)?;
    assert!(chunks < MAX_CHUNKS && phase < IDLE, "phase {phase} has {chunks} chunks");
    Some(chunks)
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default()
}

#[cfg(test)]
#[path = "team_tests.rs"]
mod tests;
