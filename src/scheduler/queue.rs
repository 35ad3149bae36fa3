//! State shared by the scheduler's handles and its thread: waiting requests, commands, the status.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use runtime::Settings;
use text::sample::{Constraint, Sampler};
use text::tokenizer::Tokenizer;

use crate::embed::EmbedJob;
use crate::request::{Event, Sink, Update};
use crate::slots::{SlotError, SlotFile};
use crate::status::Status;

/// The sink for the events of a request. Only the scheduler's thread and the queue hold references
/// to it, so the sink is dropped after the last event.
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

    /// Passes an event to the sink; if the sink returns `Break`, the request is cancelled.
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
    /// One per choice, each with the prompt in its history.
    pub(crate) samplers: Vec<Sampler>,
    pub(crate) settings: Settings,
    pub(crate) n_logprobs: Option<usize>,
    pub(crate) post_sampling: bool,
    pub(crate) prompt_logprobs: bool,
    /// Empty, or one per choice.
    pub(crate) constraints: Vec<Box<dyn Constraint>>,
    pub(crate) cache_prompt: bool,
    pub(crate) slot: Option<usize>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) max_time: Option<Duration>,
    pub(crate) caller: Arc<Caller>,
    pub(crate) submitted: Instant,
}

/// A slot action that the thread executes between two steps.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) slot: usize,
    pub(crate) action: SlotAction,
    pub(crate) reply: mpsc::Sender<Result<SlotFile, SlotError>>,
}

#[derive(Debug)]
pub(crate) enum SlotAction {
    /// Save the slot's sequence to this file.
    Save(String),
    /// Replace the slot's sequence by the one in this file.
    Restore(String),
    /// Drop the slot's sequence.
    Erase,
}

/// Input of the scheduler's thread.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pub(crate) jobs: VecDeque<Job>,
    pub(crate) commands: VecDeque<Command>,
    /// Texts to embed that the thread has not received yet.
    pub(crate) embeds: VecDeque<EmbedJob>,
    /// Number of texts to embed that are not finished, including those that the thread holds.
    pub(crate) n_embeds: usize,
    /// Number of requests that have not started: those in `jobs` and those that the thread holds.
    pub(crate) n_queued: usize,
    /// Number of free slots. That many queued requests are about to start, so they do not count
    /// as waiting.
    pub(crate) n_free: usize,
    /// Id of the latest request.
    pub(crate) latest: u64,
    /// Deadline of the shutdown, up to which running generations may continue. Once set, new
    /// requests are refused.
    pub(crate) stop: Option<Instant>,
    /// Whether the thread ended with a panic.
    pub(crate) failed: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) n_parallel: usize,
    pub(crate) max_queued: usize,
    /// Maximum number of tokens of a sequence.
    pub(crate) n_ctx_sequence: usize,
    pub(crate) n_vocab: usize,
    /// Whether the model has a head for ranking.
    pub(crate) ranks: bool,
    /// Whether the model generates text; encoders do not.
    pub(crate) generates: bool,
}

#[derive(Debug)]
pub(crate) struct Shared {
    inbox: Mutex<Inbox>,
    wake: Condvar,
    status: Mutex<Status>,
    /// Number of handles that watch which neurons fire.
    n_watchers: AtomicUsize,
    pub(crate) limits: Limits,
    pub(crate) tokenizer: Arc<Tokenizer>,
}

impl Shared {
    pub(crate) fn new(limits: Limits, tokenizer: Arc<Tokenizer>, status: Status) -> Shared {
        let inbox = Inbox { n_free: limits.n_parallel, ..Inbox::default() };
        let (inbox, wake) = (Mutex::new(inbox), Condvar::new());
        let (status, n_watchers) = (Mutex::new(status), AtomicUsize::new(0));
        Shared { inbox, wake, status, n_watchers, limits, tokenizer }
    }

    /// Adds or removes a watcher.
    pub(crate) fn watch(&self, on: bool) {
        if on {
            self.n_watchers.fetch_add(1, Ordering::Relaxed);
        } else {
            self.n_watchers.fetch_sub(1, Ordering::Relaxed);
            self.wake();
        }
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.n_watchers.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // The inbox is consistent after every single change, so a poisoned lock can be ignored.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wake(&self) {
        // Notify under the lock; otherwise the thread could miss a notification between its check
        // and its wait.
        let _inbox = self.inbox();
        self.wake.notify_all();
    }

    /// Waits for a job, a text to embed, a command or a shutdown.
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
