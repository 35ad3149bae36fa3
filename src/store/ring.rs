//! Small reads through io_uring: one thread keeps many of them in flight.
//!
//! A thread of the pool takes 13 us of CPU time for a read of 8 KiB, the ring 5 us, and the disk
//! does more reads per second (docs/measurements/tiers.md). Large reads gain nothing, so the pool
//! does them. A read that fails or is short goes to the pool too, which repeats it.
//!
//! All unsafe code of this file relies on one promise: a slot of `memory` is used by one read, from
//! its submission until its completion was seen, and the ring is only dropped without reads (or
//! after a panic: the kernel holds the pages of a read past the page cache until it ends).
#![allow(unsafe_code)]

use std::io::ErrorKind;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use io_uring::{IoUring, opcode, types};

use crate::reader::Job;
use crate::region::Region;

/// Reads in flight.
const DEPTH: u64 = 128;
/// Maximum bytes of a read.
pub(crate) const SLOT: u64 = 64 << 10;
/// Pause before the system is asked again after an error.
const PAUSE: Duration = Duration::from_millis(1);

/// A ring, and memory to read into.
pub(crate) struct Ring {
    ring: IoUring,
    memory: Arc<Region>,
    free: Vec<u64>,
    /// The read of each slot.
    jobs: Vec<Option<Job>>,
}

impl Ring {
    /// `None` if the system has no io_uring or does not allow it.
    pub(crate) fn new() -> Option<Ring> {
        let ring = IoUring::new(DEPTH as u32).ok()?;
        let memory = Region::reserve(DEPTH * SLOT).ok()?;
        // A disk reads faster into huge pages.
        memory.advise_huge(0..DEPTH * SLOT);
        let mut ring = Ring {
            ring,
            memory,
            free: (0..DEPTH).collect(),
            jobs: (0..DEPTH).map(|_| None).collect(),
        };
        ring.works().then_some(ring)
    }

    /// Whether a request that does nothing completes: a filter of system calls may allow a program
    /// to make a ring but not to use it.
    fn works(&mut self) -> bool {
        // SAFETY: the request has no memory.
        let pushed = unsafe { self.ring.submission().push(&opcode::Nop::new().build()) };
        let done = pushed.is_ok() && self.ring.submit_and_wait(1).is_ok();
        done && self.ring.completion().count() == 1
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.free.len() as u64 == DEPTH
    }

    /// Adds the read of `job`, of at most [`SLOT`] bytes, from the open file `file`. The ring must
    /// not be full; a read that it does not take is returned.
    pub(crate) fn add(&mut self, job: Job, file: RawFd) -> Result<(), Job> {
        let len = job.len();
        let Some(slot) = self.free.pop_if(|_| len <= SLOT) else { return Err(job) };
        let start = slot * SLOT;
        let memory = self.memory.fill(start..start + len, |block| block.as_mut_ptr());
        let read = opcode::Read::new(types::Fd(file), memory, len as u32);
        let read = read.offset(job.offset()).build().user_data(slot);
        // SAFETY: the memory is the slot's, see the promise above; the job keeps the file open.
        if unsafe { self.ring.submission().push(&read) }.is_err() {
            self.free.push(slot);
            return Err(job);
        }
        self.jobs[slot as usize] = Some(job);
        Ok(())
    }

    /// Waits until a read is done, and calls `done` for each that is, with its bytes; `None` if it
    /// failed or was short.
    pub(crate) fn wait(&mut self, mut done: impl FnMut(Job, Option<&[u8]>)) {
        if let Err(error) = self.ring.submit_and_wait(1) {
            // The reads stay in flight: their memory is the kernel's until they complete.
            if error.kind() != ErrorKind::Interrupted {
                std::thread::sleep(PAUSE);
            }
        }
        for completion in self.ring.completion() {
            let slot = completion.user_data();
            let Some(job) = self.jobs.get_mut(slot as usize).and_then(Option::take) else {
                continue;
            };
            let (start, wanted) = (slot * SLOT, job.bytes_in_file());
            let n = u64::try_from(completion.result()).unwrap_or_default();
            self.memory.fill(start..start + job.len(), |block| {
                done(job, Some(&*block).filter(|_| n >= wanted));
            });
            self.free.push(slot);
        }
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ring with {} of {DEPTH} slots free", self.free.len())
    }
}
