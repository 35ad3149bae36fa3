//! Options of a simulated device, and its injected failures.

use std::ops::Range;
use std::time::Duration;

use hal::{Bytes, DeviceKind};

/// Options of a simulated device. The default has no limits, no delays and no failures.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// Device name.
    pub name: String,
    /// Class of device that the backend reports.
    pub kind: DeviceKind,
    /// Seed of the random delays.
    pub seed: u64,
    /// Physical memory for tensors and packs, which use whole [`SimOptions::GRANULE`]s.
    pub memory: Bytes,
    /// Largest operand of one op; planning rejects an op with a larger operand.
    pub max_binding: Bytes,
    /// Scratch memory that every op requests when it is planned.
    pub workspace: Bytes,
    /// A random delay from this range precedes each op and each copy. If the range is empty, the
    /// delay is its start.
    pub delay: Range<Duration>,
    /// Whether ops compute. If false, memory and copies work and ops write nothing.
    pub computes: bool,
    /// Injected failures.
    pub fail: Failures,
}

impl SimOptions {
    /// Memory is allocated in multiples of this size, as by real drivers.
    pub const GRANULE: Bytes = Bytes(256);
}

impl Default for SimOptions {
    fn default() -> SimOptions {
        SimOptions {
            name: "SIM0".to_owned(),
            kind: DeviceKind::Simulated,
            seed: 0,
            memory: Bytes::MAX,
            max_binding: Bytes::MAX,
            workspace: Bytes(0),
            delay: Duration::ZERO..Duration::ZERO,
            computes: true,
            fail: Failures::default(),
        }
    }
}

/// Injected failures of a simulated device; `None` means never. Work items are the ops of programs
/// and the copies of a queue, counted over all queues of the device. All fields can also be set
/// while the device runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// The device is lost after this many more work items.
    pub lose_after: Option<u64>,
    /// The device's thread panics after this many more work items.
    pub panic_after: Option<u64>,
    /// The device hangs after this many more work items, until it is resumed or lost, or the run is
    /// cancelled.
    pub hang_after: Option<u64>,
    /// The allocation with this number runs out of memory, once. The next allocation is number 1;
    /// tensors, packs, staging and mailboxes all increase the number.
    pub out_of_memory_at: Option<u64>,
    /// Starting a program fails with a driver error after this many more programs, once.
    pub replay_error_after: Option<u64>,
    /// Starting a program panics on the caller's thread after this many more programs, once.
    pub replay_panic_after: Option<u64>,
    /// Names of ops that planning rejects.
    pub refuse: Vec<&'static str>,
}

/// A failure to inject into a work item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Lose,
    Panic,
    Hang,
}

/// Counts down by one. If the count is already zero, disables it and returns true.
fn count_down(left: &mut Option<u64>) -> bool {
    match left {
        Some(0) => left.take().is_some(),
        Some(n) => {
            *n -= 1;
            false
        }
        None => false,
    }
}

/// A failure to inject into the call that starts a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplayFault {
    Error,
    Panic,
}

impl Failures {
    /// Counts one start of a program and returns the failure to inject.
    pub(crate) fn next_replay(&mut self) -> Option<ReplayFault> {
        // Both counters must advance, even if only one failure is injected.
        let (panic, error) =
            (count_down(&mut self.replay_panic_after), count_down(&mut self.replay_error_after));
        let panic = panic.then_some(ReplayFault::Panic);
        panic.or_else(|| error.then_some(ReplayFault::Error))
    }

    /// Counts one work item and returns the failure to inject.
    pub(crate) fn next_work(&mut self) -> Option<Fault> {
        // All three counters must advance, even if only one failure is injected.
        let (lose, panic) = (count_down(&mut self.lose_after), count_down(&mut self.panic_after));
        let hang = count_down(&mut self.hang_after);
        match (lose, panic, hang) {
            (true, _, _) => Some(Fault::Lose),
            (false, true, _) => Some(Fault::Panic),
            (false, false, true) => Some(Fault::Hang),
            (false, false, false) => None,
        }
    }

    /// Counts one allocation and returns whether it fails.
    pub(crate) fn next_allocation(&mut self) -> bool {
        match &mut self.out_of_memory_at {
            Some(0 | 1) => self.out_of_memory_at.take().is_some(),
            Some(n) => {
                *n -= 1;
                false
            }
            None => false,
        }
    }
}
