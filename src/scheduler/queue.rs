//! What the handles of a scheduler and its thread share: waiting requests, commands, the status.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Instant;

use runtime::Settings;
use text::sample::{Constraint, Sampler};
use text::tokenizer::Tokenizer;

use crate::embed::EmbedJob;
use crate::request::{Event, Sink, Update};
use crate::slots::{SlotError, SlotFile};
use crate::status::Status;

/// Receives the events of a request. Only the scheduler's thread and the queue hold it: when it is
/// dropped, the receiver sees the end.
pub(crate) struct Caller {
    sink: Mutex<Sink>,
    cancelled: Arc<AtomicBool>,
}

impl std::fmt::Debug for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Caller").field("cancelled", &self.cancelled).finish_non_exhaustive()
    }
}

impl Caller {
    pub(crate) fn new(sink: Sink, cancelled: Arc<AtomicBool>) -> Caller {
        Caller { sink: Mutex::new(sink), cancelled }
    }

    /// Passes an event on; if the sink refuses it, the request is cancelled.
    pub(crate) fn send(&self, choice: usize, event: Event) {
        let mut sink = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
        if sink(Update { choice, event }).is_break() {
            self.cancelled.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// An accepted request.
#[derive(Debug)]
pub(crate) struct Job {
    /// Order of arrival, from 1.
    pub(crate) number: u64,
    pub(crate) prompt: Vec<u32>,
    /// One per choice; each has accepted the prompt.
    pub(crate) samplers: Vec<Sampler>,
    pub(crate) settings: Settings,
    pub(crate) n_logprobs: Option<usize>,
    pub(crate) prompt_logprobs: bool,
    /// Empty, or one per choice.
    pub(crate) constraints: Vec<Box<dyn Constraint>>,
    pub(crate) cache_prompt: bool,
    pub(crate) slot: Option<usize>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) caller: Arc<Caller>,
    pub(crate) submitted: Instant,
}

/// A call that the thread answers between two steps.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) slot: usize,
    pub(crate) action: SlotAction,
    pub(crate) reply: mpsc::Sender<Result<SlotFile, SlotError>>,
}

/// An action on a slot.
#[derive(Debug)]
pub(crate) enum SlotAction {
    /// Save its sequence in the named file.
    Save(String),
    /// Replace its sequence by that of the named file.
    Restore(String),
    /// Drop its sequence.
    Erase,
}

/// Input of the thread.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pub(crate) jobs: VecDeque<Job>,
    pub(crate) commands: VecDeque<Command>,
    /// Texts to embed that the thread has not taken.
    pub(crate) embeds: VecDeque<EmbedJob>,
    /// Texts to embed that are not done.
    pub(crate) n_embeds: usize,
    /// Requests that have not started: those in `jobs`, and those that the thread holds.
    pub(crate) n_queued: usize,
    /// Number of the latest request.
    pub(crate) latest: u64,
    /// Running generations may continue until then; nothing is accepted any more.
    pub(crate) stop: Option<Instant>,
    /// The thread has ended after a panic.
    pub(crate) failed: bool,
}

/// Sizes against which requests are checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) n_parallel: usize,
    pub(crate) max_queued: usize,
    /// Maximum number of tokens of a sequence.
    pub(crate) n_ctx_sequence: usize,
    pub(crate) n_vocab: usize,
}

/// State that handles and thread share.
#[derive(Debug)]
pub(crate) struct Shared {
    inbox: Mutex<Inbox>,
    wake: Condvar,
    status: Mutex<Status>,
    pub(crate) limits: Limits,
    pub(crate) tokenizer: Arc<Tokenizer>,
}

impl Shared {
    pub(crate) fn new(limits: Limits, tokenizer: Arc<Tokenizer>, status: Status) -> Shared {
        let (inbox, wake) = (Mutex::default(), Condvar::new());
        Shared { inbox, wake, status: Mutex::new(status), limits, tokenizer }
    }

    pub(crate) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // Every change leaves it consistent.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wake(&self) {
        // Under the lock, so that the thread is not between its check and its wait.
        let _inbox = self.inbox();
        self.wake.notify_all();
    }

    /// Waits for a job, a text, a command or the stop.
    pub(crate) fn wait(&self) {
        let inbox = self.inbox();
        let is_empty =
            inbox.jobs.is_empty() && inbox.commands.is_empty() && inbox.embeds.is_empty();
        if !is_empty || inbox.stop.is_some() {
            return;
        }
        drop(self.wake.wait(inbox));
    }
}
