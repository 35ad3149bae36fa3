//! When the parts of a program ran.

use std::ops::Range;
use std::time::Instant;

/// Whose clock tells when a part ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The host's, on the threads that do the work.
    Host,
    /// The device's, brought to the host's by what the host saw of the run: off by less than a hand-off takes.
    Device,
    /// The host's, from the submission to when the host noticed the end: parts look longer than they were.
    Noticed,
}

/// When consecutive parts of a program ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartTime {
    /// The parts, by their number in the program.
    pub parts: Range<usize>,
    /// When the first began. One that begins with a [`crate::op::Merge`] begins when the answer is there.
    pub begin: Instant,
    /// When the last was done.
    pub end: Instant,
}

/// What a timed run tells of itself. Entries are in the order of the parts and do not overlap; a part in which a
/// device has nothing to do may be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Times {
    /// Whose clock it is.
    pub clock: Clock,
    /// What ran.
    pub parts: Vec<PartTime>,
}

impl Times {
    /// Nothing is known.
    #[must_use]
    pub fn none() -> Times {
        Times { clock: Clock::Host, parts: Vec::new() }
    }
}
