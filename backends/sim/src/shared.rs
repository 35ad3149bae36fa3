//! State that a device, its queues and its buffers share: loss, memory, injected failures, queues.

use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hal::{Bytes, DeviceInfo, Error, Result};

use crate::options::{Failures, Fault, ReplayFault, SimOptions};
use crate::worker::Message;

/// Counters of a simulated device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Ops that were started, in all programs.
    pub ops: u64,
    /// Uploads, downloads, refills, repacks and row copies that were started.
    pub copies: u64,
    /// Programs that were submitted to a queue.
    pub submissions: u64,
    /// Requested allocations: tensors, packs, staging, mailboxes.
    pub allocations: u64,
    /// Physical memory in use.
    pub used: Bytes,
    /// Peak of the physical memory in use.
    pub peak: Bytes,
}

/// Kind of a work item: an op of this name, or a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkItem {
    Op(&'static str),
    Copy,
}

#[derive(Debug)]
pub(crate) struct DeviceState {
    pub(crate) info: DeviceInfo,
    pub(crate) options: SimOptions,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Why the device was lost.
    lost: Option<Error>,
    counters: Counters,
    fail: Failures,
    /// Number of times that the device was resumed. A hang ends when this number changes.
    resumed: u64,
    /// Id and channel sender of each open queue; a message wakes the queue's thread.
    queues: Vec<(u64, Sender<Message>)>,
    n_queues: u64,
}

impl DeviceState {
    pub(crate) fn new(options: SimOptions) -> DeviceState {
        let info = DeviceInfo {
            name: options.name.clone(),
            description: "a simulated device for tests".to_owned(),
            remark: None,
            kind: options.kind,
            max_binding: options.max_binding,
            hand_off: true,
        };
        let state = State { fail: options.fail.clone(), ..State::default() };
        DeviceState { info, options, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the error of a lost device.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.state().lost {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Loses the device, unless it is already lost for an earlier reason. Wakes all threads, which
    /// then end; every wait for them ends, too. Returns the error of the lost device.
    pub(crate) fn mark_lost(&self, reason: &str) -> Error {
        let mut state = self.state();
        let device = || self.info.name.clone();
        let error = state
            .lost
            .get_or_insert_with(|| Error::DeviceLost {
                device: device(),
                reason: reason.to_owned(),
            })
            .clone();
        state.wake();
        error
    }

    pub(crate) fn counters(&self) -> Counters {
        self.state().counters
    }

    pub(crate) fn change_failures(&self, change: impl FnOnce(&mut Failures)) {
        change(&mut self.state().fail);
    }

    pub(crate) fn is_refused(&self, op: &str) -> bool {
        self.state().fail.refuse.contains(&op)
    }

    pub(crate) fn resume(&self) {
        let mut state = self.state();
        state.fail.hang_after = None;
        state.resumed += 1;
        state.wake();
    }

    pub(crate) fn n_resumed(&self) -> u64 {
        self.state().resumed
    }

    /// The failure to inject into the next work item, with [`DeviceState::n_resumed`] at that
    /// moment.
    pub(crate) fn next_work(&self) -> (Option<Fault>, u64) {
        let mut state = self.state();
        (state.fail.next_work(), state.resumed)
    }

    /// The failure to inject into the next start of a program.
    pub(crate) fn next_replay(&self) -> Option<ReplayFault> {
        self.state().fail.next_replay()
    }

    pub(crate) fn count_start(&self, work: WorkItem) {
        let counters = &mut self.state().counters;
        match work {
            WorkItem::Op(_) => counters.ops += 1,
            WorkItem::Copy => counters.copies += 1,
        }
    }

    pub(crate) fn count_submission(&self) {
        self.state().counters.submissions += 1;
    }

    /// Counts an allocation of `bytes`. Fails if they exceed the free memory, or on an injected
    /// failure.
    pub(crate) fn allocate(&self, label: &str, bytes: Bytes) -> Result<()> {
        let mut state = self.state();
        if let Some(error) = &state.lost {
            return Err(error.clone());
        }
        state.counters.allocations += 1;
        let free = self.options.memory - state.counters.used;
        if state.fail.next_allocation() || bytes > free {
            return Err(Error::OutOfMemory {
                device: self.info.name.clone(),
                label: label.to_owned(),
                requested: bytes,
                free,
            });
        }
        let counters = &mut state.counters;
        counters.used += bytes;
        counters.peak = counters.peak.max(counters.used);
        Ok(())
    }

    pub(crate) fn free(&self, bytes: Bytes) {
        let counters = &mut self.state().counters;
        counters.used = counters.used - bytes;
    }

    pub(crate) fn add_queue(&self, inbox: &Sender<Message>) -> Result<u64> {
        let mut state = self.state();
        if let Some(error) = &state.lost {
            return Err(error.clone());
        }
        let number = state.n_queues;
        state.n_queues += 1;
        state.queues.push((number, inbox.clone()));
        Ok(number)
    }

    pub(crate) fn remove_queue(&self, queue: u64) {
        self.state().queues.retain(|(number, _)| *number != queue);
    }
}

impl State {
    fn wake(&self) {
        for (_, inbox) in &self.queues {
            // Sending fails only if the thread has already ended.
            let _ = inbox.send(Message::Wake);
        }
    }
}
