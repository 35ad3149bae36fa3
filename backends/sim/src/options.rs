//! What a simulated device is like, and what is to go wrong on it.

use std::ops::Range;
use std::time::Duration;

use hal::{Bytes, DeviceKind};

/// What a simulated device is like. The default has no limits, no delays and no failures.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// Device name.
    pub name: String,
    /// What it passes for.
    pub kind: DeviceKind,
    /// Where the random delays start.
    pub seed: u64,
    /// Physical memory for tensors and packs. Each takes whole [`SimOptions::GRANULE`]s of it.
    pub memory: Bytes,
    /// Largest operand of one op; planning refuses an op with a larger one.
    pub max_binding: Bytes,
    /// Scratch that every op claims when it is planned.
    pub workspace: Bytes,
    /// A random time from this range passes before each op and each copy; an empty range: none.
    pub delay: Range<Duration>,
    /// What is to go wrong.
    pub fail: Failures,
}

impl SimOptions {
    /// Memory is handed out in multiples of this, as drivers do.
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
            fail: Failures::default(),
        }
    }
}

/// What is to go wrong on a simulated device; `None` is never. What counts is work: the ops of programs and the
/// copies of a queue, over all queues of the device. Everything here can also be set while the device runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// So much more work is done, then the device is lost.
    pub lose_after: Option<u64>,
    /// So much more work is done, then the device's thread panics.
    pub panic_after: Option<u64>,
    /// So much more work is done, then the device hangs until it is resumed.
    pub hang_after: Option<u64>,
    /// This allocation (1 is the next; tensors, packs, staging and mailboxes count) finds no memory, once.
    pub out_of_memory_at: Option<u64>,
    /// Names of ops that planning refuses.
    pub refuse: Vec<&'static str>,
}

/// What a piece of work is to suffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Lose,
    Panic,
    Hang,
}

impl Failures {
    /// Counts one piece of work and says what happens to it.
    pub(crate) fn next_work(&mut self) -> Option<Fault> {
        let due = |left: &mut Option<u64>| match left {
            Some(0) => left.take().is_some(),
            Some(n) => {
                *n -= 1;
                false
            }
            None => false,
        };
        // All three are counted, whichever strikes.
        let (lose, panic) = (due(&mut self.lose_after), due(&mut self.panic_after));
        let hang = due(&mut self.hang_after);
        match (lose, panic, hang) {
            (true, _, _) => Some(Fault::Lose),
            (false, true, _) => Some(Fault::Panic),
            (false, false, true) => Some(Fault::Hang),
            (false, false, false) => None,
        }
    }

    /// Counts one allocation and says whether it fails.
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
