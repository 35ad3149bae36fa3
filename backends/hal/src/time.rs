//! When the parts of a program ran.

use std::ops::Range;
use std::time::Instant;

/// The clock that measured a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The host's, read on the threads that do the work.
    Host,
    /// The device's, converted to the host's from what the host observed of the run; the error is
    /// less than the duration of a hand-off.
    Device,
    /// The host's, from the submission until the host noticed the end: parts appear longer than
    /// they were.
    Noticed,
}

/// When consecutive parts of a program ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartTime {
    /// The parts, by their number in the program.
    pub parts: Range<usize>,
    /// Begin of the first. A part that begins with a [`crate::op::Merge`] begins when the answer
    /// arrives.
    pub begin: Instant,
    /// End of the last.
    pub end: Instant,
}

/// Times of a timed run. Entries are in the order of the parts and do not overlap; a part without
/// work on the device may be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Times {
    /// The clock that was used.
    pub clock: Clock,
    /// Measured parts.
    pub parts: Vec<PartTime>,
}

impl Times {
    /// No measurements.
    #[must_use]
    pub fn none() -> Times {
        Times { clock: Clock::Host, parts: Vec::new() }
    }
}
