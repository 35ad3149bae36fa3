//! Threads that read units from files into regions, urgent reads before look-ahead.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::region::{PAGE, Region};
use crate::source::ReadAt;
use crate::{Error, Result};

/// Maximum bytes of one read. Larger reads are cut, so that several threads share them.
pub(crate) const BLOCK: u64 = 1 << 20;
/// How often a failed read is repeated: a network file system may lose its server for a moment.
const RETRIES: u32 = 3;
/// Pause before the first repetition; it doubles.
const PAUSE: Duration = Duration::from_millis(10);
/// How often a waiting caller looks at the interrupt flag.
const POLL: Duration = Duration::from_millis(20);

/// A file and the addresses for its bytes.
#[derive(Clone, Debug)]
pub(crate) struct Backing {
    pub(crate) file: Arc<dyn ReadAt>,
    pub(crate) region: Arc<Region>,
}

/// The read of one unit: the jobs that are left, and the first error.
#[derive(Debug, Default)]
pub(crate) struct Ticket {
    left: AtomicU64,
    failed: Mutex<Option<Error>>,
}

impl Ticket {
    pub(crate) fn is_done(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }

    pub(crate) fn error(&self) -> Option<Error> {
        lock(&self.failed).clone()
    }
}

/// A read of at most [`BLOCK`] bytes in whole pages.
#[derive(Debug)]
struct Job {
    backing: Backing,
    range: Range<u64>,
    ticket: Arc<Ticket>,
}

#[derive(Debug, Default)]
struct Jobs {
    urgent: VecDeque<Job>,
    ahead: VecDeque<Job>,
    stop: bool,
}

#[derive(Debug, Default)]
struct Shared {
    jobs: Mutex<Jobs>,
    /// Signals new jobs.
    added: Condvar,
    /// Signals a finished ticket.
    done: Condvar,
}

/// The threads that read.
#[derive(Debug)]
pub(crate) struct Reader {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reader {
    /// Starts `depth` threads, or as many as the system allows.
    ///
    /// # Errors
    /// [`Error::Setup`] if no thread can be started.
    pub(crate) fn new(depth: usize) -> Result<Reader> {
        let shared = Arc::new(Shared::default());
        let mut threads = Vec::new();
        for number in 0..depth.max(1) {
            let own = Arc::clone(&shared);
            let builder = Builder::new().name(format!("disk {number}")).stack_size(256 << 10);
            match builder.spawn(move || own.work()) {
                Ok(thread) => threads.push(thread),
                Err(reason) if threads.is_empty() => {
                    return Err(Error::Setup { reason: reason.to_string() });
                }
                Err(_) => break,
            }
        }
        Ok(Reader { shared, threads })
    }

    /// Orders reads of `ranges`, whole pages of files, in this order. `ahead` reads run only when
    /// no urgent one waits.
    pub(crate) fn order(&self, ranges: &[(Backing, Range<u64>)], ahead: bool) -> Arc<Ticket> {
        let ticket = Arc::new(Ticket::default());
        let mut new = Vec::new();
        for (backing, range) in ranges {
            let mut at = range.start;
            while at < range.end {
                let end = range.end.min(at + BLOCK);
                let (backing, ticket) = (backing.clone(), Arc::clone(&ticket));
                new.push(Job { backing, range: at..end, ticket });
                at = end;
            }
        }
        ticket.left.store(new.len() as u64, Ordering::Release);
        let mut jobs = lock(&self.shared.jobs);
        if ahead {
            jobs.ahead.extend(new)
        } else {
            jobs.urgent.extend(new)
        }
        drop(jobs);
        self.shared.added.notify_all();
        ticket
    }

    /// Makes the look-ahead reads of `tickets` urgent.
    pub(crate) fn hurry(&self, tickets: &[Arc<Ticket>]) {
        let mut jobs = lock(&self.shared.jobs);
        if jobs.ahead.is_empty() {
            return;
        }
        let ahead = std::mem::take(&mut jobs.ahead);
        for job in ahead {
            if tickets.iter().any(|ticket| Arc::ptr_eq(ticket, &job.ticket)) {
                jobs.urgent.push_back(job);
            } else {
                jobs.ahead.push_back(job);
            }
        }
    }

    /// Waits until all `tickets` are done.
    ///
    /// # Errors
    /// [`Error::Interrupted`] once `interrupt` is set.
    pub(crate) fn wait(&self, tickets: &[Arc<Ticket>], interrupt: &AtomicBool) -> Result<()> {
        let mut jobs = lock(&self.shared.jobs);
        while !tickets.iter().all(|ticket| ticket.is_done()) {
            if interrupt.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            let waited = self.shared.done.wait_timeout(jobs, POLL);
            jobs = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut jobs = lock(&self.shared.jobs);
        jobs.stop = true;
        jobs.urgent.clear();
        jobs.ahead.clear();
        drop(jobs);
        self.shared.added.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self) {
        while let Some(job) = self.next() {
            let read = job.read();
            if let Err(error) = read {
                lock(&job.ticket.failed).get_or_insert(error);
            }
            if job.ticket.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                // Under the lock, so that a caller between its check and its wait is not missed.
                drop(lock(&self.jobs));
                self.done.notify_all();
            }
        }
    }

    /// The next job; `None` when the reader is dropped.
    fn next(&self) -> Option<Job> {
        let mut jobs = lock(&self.jobs);
        loop {
            if jobs.stop {
                return None;
            }
            let urgent = jobs.urgent.pop_front();
            if let Some(job) = urgent.or_else(|| jobs.ahead.pop_front()) {
                return Some(job);
            }
            jobs = self.added.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Job {
    fn read(&self) -> Result<()> {
        let Job { backing: Backing { file, region }, range, .. } = self;
        region.fill(range.clone(), |out| read_pages(file.as_ref(), range.start, out))
    }
}

/// Reads whole pages from `offset` on into all of `out`, except what lies behind the end of the
/// file. Repeats failed reads.
///
/// # Errors
/// [`Error::Read`], [`Error::Shortened`], [`Error::Changed`].
pub(crate) fn read_pages(file: &dyn ReadAt, offset: u64, out: &mut [u8]) -> Result<()> {
    let wanted = file.size().saturating_sub(offset).min(out.len() as u64) as usize;
    let (mut at, mut failures) = (0, 0);
    while at < wanted {
        let from = offset + at as u64;
        match file.read_at(&mut out[at..], from) {
            Ok(n) if at + n >= wanted => at += n,
            // A short read continues at a whole page. The end of the file can be inside of a page.
            Ok(n) if n >= PAGE as usize => {
                at = (at + n) / PAGE as usize * PAGE as usize;
                failures = 0;
            }
            Ok(n) if failures >= RETRIES => {
                return Err(Error::Shortened { file: file.name(), offset: from + n as u64 });
            }
            Err(reason) if reason.kind() == ErrorKind::Interrupted => {}
            Err(reason) if failures >= RETRIES => {
                let (file, reason) = (file.name(), reason.to_string());
                return Err(Error::Read { file, offset: from, reason });
            }
            Ok(_) | Err(_) => {
                std::thread::sleep(PAUSE * 2u32.pow(failures));
                failures += 1;
            }
        }
    }
    // Only now: bytes of a change during the read are refused too.
    if file.is_unchanged() { Ok(()) } else { Err(Error::Changed { file: file.name() }) }
}
