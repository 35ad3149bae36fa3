//! Threads that read units from files into regions, urgent reads before look-ahead.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use hal::Bytes;

use crate::region::{HUGE, PAGE, Region};
#[cfg(target_os = "linux")]
use crate::ring::{Ring, SLOT};
use crate::source::ReadAt;
use crate::{Error, Result};

/// Maximum bytes of one read. Larger reads are cut, so that several threads share them.
pub(crate) const BLOCK: u64 = 1 << 20;
/// Number of times that a failed read is repeated: a network file system may lose its server for a
/// moment.
const RETRIES: u32 = 3;
/// Pause before the first repetition; it doubles.
const PAUSE: Duration = Duration::from_millis(10);
/// How often a waiting caller checks the interrupt flag.
const POLL: Duration = Duration::from_millis(20);

/// A file and the addresses for its bytes, and for [`MAX_PLACED`] bytes behind them.
#[derive(Clone, Debug)]
pub(crate) struct Backing {
    pub(crate) file: Arc<dyn ReadAt>,
    pub(crate) region: Arc<Region>,
}

/// Maximum bytes of a row with a place of its own.
pub(crate) const MAX_PLACED: u64 = 64 << 10;

impl Backing {
    pub(crate) fn new(file: Arc<dyn ReadAt>) -> std::io::Result<Backing> {
        let len = file.size().checked_next_multiple_of(PAGE);
        let len = len.and_then(|len| len.checked_add(MAX_PLACED)).ok_or(ErrorKind::OutOfMemory)?;
        Ok(Backing { region: Region::reserve(len)?, file })
    }

    /// The place of rows that are not in memory: behind the bytes of the file, always zeros. A kernel
    /// may read such rows, though it does not use the result.
    pub(crate) fn blank(&self) -> u64 {
        self.file.size().next_multiple_of(PAGE)
    }
}

/// The read of one unit: the number of unfinished jobs, and the first error.
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

/// Bytes of a file, and where they are in the region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) from: Range<u64>,
    pub(crate) to: u64,
}

impl Part {
    /// Bytes with the same place in the region as in the file.
    pub(crate) fn in_order(range: Range<u64>) -> Part {
        Part { to: range.start, from: range }
    }
}

/// Bytes of a file to read: either one part of any length that is in order, or several ascending
/// parts within [`BLOCK`] bytes, which are read at once together with the bytes between them.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) backing: Backing,
    pub(crate) parts: Vec<Part>,
}

impl Read {
    /// The pages from the first byte to the last.
    fn pages(&self) -> Range<u64> {
        let ends = self.parts.first().zip(self.parts.last());
        ends.map_or(0..0, |(first, last)| pages(&(first.from.start..last.from.end)))
    }

    /// Bytes that are read from the disk.
    pub(crate) fn bytes(&self) -> Bytes {
        let pages = self.pages();
        Bytes(pages.end - pages.start)
    }
}

/// A read of at most [`BLOCK`] bytes in whole pages.
#[derive(Debug)]
pub(crate) struct Job {
    backing: Backing,
    pages: Range<u64>,
    /// The bytes of units in `pages`.
    parts: Vec<Part>,
    /// Whether the read goes straight into the region, which has huge pages there. A disk reads
    /// into small pages so much slower that reading into huge ones and copying is faster
    /// (docs/measurements/tiers.md).
    direct: bool,
    ticket: Arc<Ticket>,
}

/// [`BLOCK`] bytes that one thread reads into.
#[derive(Debug)]
struct Buffer {
    memory: Arc<Region>,
    start: u64,
}

#[derive(Debug, Default)]
struct Jobs {
    urgent: VecDeque<Job>,
    ahead: VecDeque<Job>,
    /// Small reads, urgent and ahead, which the ring's thread takes; empty without a ring.
    small: [VecDeque<Job>; 2],
    stop: bool,
}

impl Jobs {
    /// Makes look-ahead jobs of `tickets` urgent.
    fn hurry(ahead: &mut VecDeque<Job>, urgent: &mut VecDeque<Job>, tickets: &[Arc<Ticket>]) {
        for job in std::mem::take(ahead) {
            let wanted = tickets.iter().any(|ticket| Arc::ptr_eq(ticket, &job.ticket));
            if wanted { &mut *urgent } else { &mut *ahead }.push_back(job);
        }
    }

    fn clear(&mut self) {
        let [urgent, ahead] = &mut self.small;
        [&mut self.urgent, &mut self.ahead, urgent, ahead].into_iter().for_each(VecDeque::clear);
    }
}

#[derive(Debug, Default)]
struct Shared {
    jobs: Mutex<Jobs>,
    /// Signals new jobs.
    added: Condvar,
    /// Signals new small jobs.
    added_small: Condvar,
    /// Signals a finished ticket.
    done: Condvar,
}

/// The threads that read.
#[derive(Debug)]
pub(crate) struct Reader {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Whether the last thread has a ring, which does the small reads.
    has_ring: bool,
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
        let failed = |reason: std::io::Error| Error::Setup { reason: reason.to_string() };
        let depth = depth.max(1) as u64;
        let buffers = Region::reserve((depth * BLOCK).next_multiple_of(HUGE)).map_err(failed)?;
        buffers.advise_huge(0..(depth * BLOCK).next_multiple_of(HUGE));
        let mut threads = Vec::new();
        for number in 0..depth {
            let own = Arc::clone(&shared);
            let buffer = Buffer { memory: Arc::clone(&buffers), start: number * BLOCK };
            let builder = Builder::new().name(format!("disk {number}")).stack_size(256 << 10);
            match builder.spawn(move || own.work(&buffer)) {
                Ok(thread) => threads.push(thread),
                Err(reason) if threads.is_empty() => return Err(failed(reason)),
                Err(_) => break,
            }
        }
        let ring = Reader::start_ring(&shared);
        let has_ring = ring.is_some();
        threads.extend(ring);
        Ok(Reader { shared, threads, has_ring })
    }

    #[cfg(target_os = "linux")]
    fn start_ring(shared: &Arc<Shared>) -> Option<JoinHandle<()>> {
        let (ring, own) = (Ring::new()?, Arc::clone(shared));
        let builder = Builder::new().name("disk ring".to_owned()).stack_size(256 << 10);
        builder.spawn(move || own.work_with_ring(ring)).ok()
    }

    /// Only Linux has io_uring.
    #[cfg(not(target_os = "linux"))]
    fn start_ring(_shared: &Arc<Shared>) -> Option<JoinHandle<()>> {
        None
    }

    /// Queues `reads`, in this order. `ahead` reads run only when no urgent read waits.
    pub(crate) fn order(&self, reads: Vec<Read>, ahead: bool) -> Arc<Ticket> {
        let ticket = Arc::new(Ticket::default());
        let mut new = Vec::new();
        for read in reads {
            let all = read.pages();
            let Read { backing, parts } = read;
            let in_order = |part: &&Part| part.from.start == part.to;
            let Some(Part { from: range, .. }) = only(&parts).filter(in_order) else {
                let (direct, ticket) = (false, Arc::clone(&ticket));
                new.push(Job { backing, pages: all, parts, direct, ticket });
                continue;
            };
            let huge = huge_pages(range);
            let whole =
                [(all.start..huge.start, false), (huge.clone(), true), (huge.end..all.end, false)];
            for (part, direct) in whole {
                for block in blocks(part) {
                    let bytes = block.start.max(range.start)..block.end.min(range.end);
                    let (backing, ticket) = (backing.clone(), Arc::clone(&ticket));
                    let parts = vec![Part::in_order(bytes)];
                    new.push(Job { backing, pages: block, parts, direct, ticket });
                }
            }
        }
        ticket.left.store(new.len() as u64, Ordering::Release);
        let (small, new): (Vec<Job>, Vec<Job>) =
            new.into_iter().partition(|job| self.has_ring && job.is_small());
        let (n_small, n) = (small.len(), new.len());
        let mut jobs = lock(&self.shared.jobs);
        jobs.small[usize::from(ahead)].extend(small);
        if ahead {
            jobs.ahead.extend(new)
        } else {
            jobs.urgent.extend(new)
        }
        drop(jobs);
        if n > 0 {
            self.shared.added.notify_all();
        }
        if n_small > 0 {
            self.shared.added_small.notify_all();
        }
        ticket
    }

    /// Makes the look-ahead reads of `tickets` urgent.
    pub(crate) fn hurry(&self, tickets: &[Arc<Ticket>]) {
        let mut jobs = lock(&self.shared.jobs);
        let Jobs { urgent, ahead, small: [small_urgent, small_ahead], .. } = &mut *jobs;
        Jobs::hurry(ahead, urgent, tickets);
        Jobs::hurry(small_ahead, small_urgent, tickets);
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
        jobs.clear();
        drop(jobs);
        self.shared.added.notify_all();
        self.shared.added_small.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self, buffer: &Buffer) {
        while let Some(job) = self.next() {
            let read = job.read(buffer);
            self.finish(&job.ticket, read);
        }
    }

    /// Ends a job with its result.
    fn finish(&self, ticket: &Ticket, read: Result<()>) {
        if let Err(error) = read {
            lock(&ticket.failed).get_or_insert(error);
        }
        if ticket.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Under the lock, so that a caller between its check and its wait is not missed.
            drop(lock(&self.jobs));
            self.done.notify_all();
        }
    }

    #[cfg(target_os = "linux")]
    fn work_with_ring(&self, mut ring: Ring) {
        loop {
            let mut jobs = lock(&self.jobs);
            while !ring.is_full() {
                let [urgent, ahead] = &mut jobs.small;
                let Some(job) = urgent.pop_front().or_else(|| ahead.pop_front()) else { break };
                let file = job.backing.file.descriptor();
                let added = match file {
                    Some(file) => ring.add(job, file),
                    None => Err(job),
                };
                if let Err(job) = added {
                    jobs.urgent.push_back(job);
                    self.added.notify_all();
                }
            }
            if ring.is_idle() {
                if jobs.stop {
                    return;
                }
                drop(self.added_small.wait(jobs).unwrap_or_else(PoisonError::into_inner));
                continue;
            }
            drop(jobs);
            ring.wait(|job, block| match block {
                Some(block) => self.finish(&job.ticket, job.place(block)),
                // A thread repeats the read.
                None => {
                    lock(&self.jobs).urgent.push_back(job);
                    self.added.notify_all();
                }
            });
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
    /// Whether a ring may do the read.
    #[cfg(target_os = "linux")]
    fn is_small(&self) -> bool {
        !self.direct && self.len() <= SLOT && self.backing.file.descriptor().is_some()
    }

    #[cfg(not(target_os = "linux"))]
    fn is_small(&self) -> bool {
        false
    }

    fn read(&self, buffer: &Buffer) -> Result<()> {
        let Job { backing: Backing { file, region }, pages, .. } = self;
        if self.direct {
            return region.fill(pages.clone(), |out| read_pages(file.as_ref(), pages.start, out));
        }
        let Buffer { memory, start } = buffer;
        memory.fill(*start..start + self.len(), |block| {
            read_pages(file.as_ref(), pages.start, block)?;
            self.copy_parts(block);
            Ok(())
        })
    }

    /// Copies the units' bytes from `block`, which has those of all pages, to their places.
    fn copy_parts(&self, block: &[u8]) {
        let Job { backing: Backing { region, .. }, pages, parts, .. } = self;
        let at = |byte: u64| (byte - pages.start) as usize;
        for part in parts {
            let own = &block[at(part.from.start)..at(part.from.end)];
            region.fill(part.to..part.to + own.len() as u64, |out| out.copy_from_slice(own));
        }
    }

    /// Bytes of the pages.
    pub(crate) fn len(&self) -> u64 {
        self.pages.end - self.pages.start
    }
}

/// Reads through a ring.
#[cfg(target_os = "linux")]
impl Job {
    /// Where the read begins in the file.
    pub(crate) fn offset(&self) -> u64 {
        self.pages.start
    }

    /// Bytes of the pages that the file has.
    pub(crate) fn bytes_in_file(&self) -> u64 {
        self.backing.file.size().saturating_sub(self.pages.start).min(self.len())
    }

    /// Copies what a ring has read.
    fn place(&self, block: &[u8]) -> Result<()> {
        let file = &self.backing.file;
        if !file.is_unchanged() {
            return Err(Error::Changed { file: file.name() });
        }
        self.copy_parts(block);
        Ok(())
    }
}

/// The only element of a list.
fn only<T>(list: &[T]) -> Option<&T> {
    list.first().filter(|_| list.len() == 1)
}

/// The whole pages that have bytes of `range`.
pub(crate) fn pages(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE * PAGE..range.end.next_multiple_of(PAGE)
}

/// The huge pages that have only bytes of `range`; empty, at the end, if there are none.
pub(crate) fn huge_pages(range: &Range<u64>) -> Range<u64> {
    let huge = range.start.next_multiple_of(HUGE)..range.end / HUGE * HUGE;
    let end = range.end.next_multiple_of(PAGE);
    if huge.start < huge.end { huge } else { end..end }
}

/// Whole pages in blocks of nearly equal size.
fn blocks(pages: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let len = pages.end - pages.start;
    let block = len.div_ceil(len.div_ceil(BLOCK).max(1)).next_multiple_of(PAGE);
    let starts = (pages.start..pages.end).step_by(block.max(PAGE) as usize);
    starts.map(move |start| start..pages.end.min(start + block))
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
    // Checked after the read, so that bytes changed during it are refused too.
    if file.is_unchanged() { Ok(()) } else { Err(Error::Changed { file: file.name() }) }
}
