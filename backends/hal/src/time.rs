//! When the parts of a program ran.

use std::ops::Range;
use std::time::Instant;

/// The clock that measured a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The host's clock, read on the threads that do the work.
    Host,
    /// The device's clock, converted to host time with the times at which the host submitted work
    /// and saw its end. The error is less than the duration of a hand-off.
    Device,
    /// The host's clock, from the submission until the host noticed the end: each duration is an
    /// upper bound.
    Observed,
}

/// When consecutive parts of a program ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartTime {
    /// Numbers of the parts in the program.
    pub parts: Range<usize>,
    /// When the first part began. A part whose first op is a [`crate::op::Merge`] begins when the
    /// answer arrives.
    pub begin: Instant,
    /// When the last part ended.
    pub end: Instant,
}

/// Times of a timed run. The entries are in the order of the parts and do not overlap. A part
/// without work on the device may be missing.
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
