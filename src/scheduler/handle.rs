//! Handles of a scheduler and of its generations.

use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use engine::Engine;
use runtime::Model;
use text::sample::Sampler;
use text::tokenizer::Tokenizer;

use crate::embed::{EmbedJob, EmbeddingSink, Pooling};
use crate::options::SchedulerOptions;
use crate::queue::{Caller, Command, Job, Limits, Shared, SlotAction};
use crate::request::{Error, MAX_CHOICES, Request, Sink, SubmitError, Update};
use crate::slots::{SlotError, SlotFile};
use crate::status::Status;
use crate::worker::{self, Setup};

/// Why a scheduler cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The folder of the disk cache or of the slot files cannot be used.
    #[error("cannot use the folder '{folder}'")]
    Folder {
        /// The folder.
        folder: String,
        /// The system's error.
        #[source]
        reason: io::Error,
    },
    /// The thread cannot be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

/// Why a text was not embedded.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmbedError {
    /// The text was refused.
    #[error(transparent)]
    Refused(#[from] SubmitError),
    /// [`Pooling::Rank`] with a model that has no head for it.
    #[error("the model has no head for ranking")]
    NoHead,
    /// The computation failed.
    #[error(transparent)]
    Failed(Error),
}

/// A handle of a scheduler. Clones refer to the same scheduler. When the last handle is dropped,
/// running generations end ([`crate::EndReason::Shutdown`]).
#[derive(Clone, Debug)]
pub struct Scheduler {
    shared: Arc<Shared>,
    owner: Arc<Owner>,
}

/// Stops and joins the thread when the last handle is dropped.
#[derive(Debug)]
struct Owner {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Owner {
    fn stop(&self, grace: Duration) {
        let deadline = Instant::now().checked_add(grace);
        // If `grace` overflows the clock, wait a year instead.
        let deadline = deadline.unwrap_or_else(|| Instant::now() + Duration::from_secs(31_536_000));
        {
            let mut inbox = self.shared.inbox();
            inbox.stop = Some(inbox.stop.map_or(deadline, |earlier| earlier.min(deadline)));
        }
        self.shared.wake();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // If a sink held the last handle, this runs on the scheduler's thread, which cannot join
        // itself.
        if let Some(thread) = thread.filter(|it| it.thread().id() != thread::current().id()) {
            // The status has already reported a panic of the thread.
            drop(thread.join());
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

impl Scheduler {
    /// Starts a scheduler for a loaded model.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_model(model: Model, options: SchedulerOptions) -> Result<Scheduler, StartError> {
        let (engine, tokenizer) = model.into_parts();
        Scheduler::start(engine, Arc::new(tokenizer), options)
    }

    /// Starts a scheduler for an engine. The engine's `n_seq` limits how many generations run at
    /// once.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(
        engine: Engine,
        tokenizer: Arc<Tokenizer>,
        options: SchedulerOptions,
    ) -> Result<Scheduler, StartError> {
        let n_seq = engine.options().n_seq.max(1);
        let limits = Limits {
            n_parallel: options.n_parallel.unwrap_or(n_seq).clamp(1, n_seq),
            max_queued: options.max_queued,
            n_ctx_sequence: engine.max_tokens(),
            n_vocab: tokenizer.n_vocab(),
            ranks: engine.model().rank.is_some(),
            generates: engine.model().hyper.causal,
        };
        let setup = Setup::new(engine, options, limits.n_parallel)?;
        let shared = Arc::new(Shared::new(limits, tokenizer, setup.status()));
        let thread = {
            let shared = Arc::clone(&shared);
            let named = thread::Builder::new().name("scheduler".to_owned());
            named.spawn(move || worker::run(&shared, setup)).map_err(StartError::Thread)?
        };
        let owner = Owner { shared: Arc::clone(&shared), thread: Mutex::new(Some(thread)) };
        Ok(Scheduler { shared, owner: Arc::new(owner) })
    }

    /// Submits a request, whose events arrive at the returned [`Generation`].
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn submit(&self, request: Request) -> Result<Generation, SubmitError> {
        let (sender, receiver) = mpsc::channel();
        let sink = move |update| match sender.send(update) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        };
        let ticket = self.submit_to(request, Box::new(sink))?;
        Ok(Generation { receiver, ticket })
    }

    /// Submits a request, whose events are passed to `sink`. The sink is dropped after the last
    /// event. Dropping the ticket cancels the request.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn submit_to(&self, request: Request, sink: Sink) -> Result<Ticket, SubmitError> {
        let limits = &self.shared.limits;
        if !limits.generates {
            return Err(SubmitError::Encoder);
        }
        check(&request, limits)?;
        let samplers = samplers(&request, &self.shared.tokenizer)?;
        let cancelled = Arc::new(AtomicBool::new(false));
        let caller = Arc::new(Caller::new(sink, Arc::clone(&cancelled)));
        let mut inbox = self.shared.inbox();
        if inbox.failed {
            return Err(SubmitError::Unhealthy);
        }
        if inbox.stop.is_some() {
            return Err(SubmitError::ShuttingDown);
        }
        let n_waiting = inbox.n_queued.saturating_sub(inbox.n_free);
        if inbox.n_queued >= limits.max_queued.saturating_add(inbox.n_free) {
            return Err(SubmitError::QueueFull { n_queued: n_waiting });
        }
        inbox.n_queued += 1;
        inbox.latest += 1;
        let number = inbox.latest;
        inbox.jobs.push_back(Job {
            number,
            samplers,
            caller,
            prompt: request.prompt,
            settings: request.settings,
            n_logprobs: request.n_logprobs,
            post_sampling: request.post_sampling,
            prompt_logprobs: request.prompt_logprobs,
            constraints: request.constraints,
            cache_prompt: request.cache_prompt,
            slot: request.slot,
            deadline: request.deadline,
            max_time: request.max_time,
            submitted: Instant::now(),
        });
        drop(inbox);
        self.shared.wake();
        Ok(Ticket { number, cancelled, shared: Arc::clone(&self.shared) })
    }

    /// The state after the latest step.
    #[must_use]
    pub fn status(&self) -> Status {
        let mut status = self.shared.status().clone();
        let inbox = self.shared.inbox();
        status.n_queued = inbox.n_queued;
        status.healthy = !inbox.failed;
        status.shutting_down = inbox.stop.is_some();
        status
    }

    /// Records which neurons fire, in [`Status::fired`], until the returned value is dropped.
    #[must_use]
    pub fn watch(&self) -> Watcher {
        self.shared.watch(true);
        Watcher { shared: Arc::clone(&self.shared) }
    }

    /// The tokenizer of the model.
    #[must_use]
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.shared.tokenizer
    }

    /// Maximum number of tokens of one sequence, the prompt included.
    #[must_use]
    pub fn n_ctx_sequence(&self) -> usize {
        self.shared.limits.n_ctx_sequence
    }

    /// Saves the sequence of an idle slot to the file `name` in [`SchedulerOptions::slot_folder`].
    /// Blocks until the file is written.
    ///
    /// # Errors
    /// [`SlotError`].
    pub fn save_slot(&self, slot: usize, name: &str) -> Result<SlotFile, SlotError> {
        self.command(slot, SlotAction::Save(name.to_owned()))
    }

    /// Restores the sequence of a slot from a file. Its former sequence stays cached.
    ///
    /// # Errors
    /// [`SlotError`].
    pub fn restore_slot(&self, slot: usize, name: &str) -> Result<SlotFile, SlotError> {
        self.command(slot, SlotAction::Restore(name.to_owned()))
    }

    /// Drops the sequence of a slot from the KV cache.
    ///
    /// # Errors
    /// [`SlotError`].
    pub fn erase_slot(&self, slot: usize) -> Result<SlotFile, SlotError> {
        self.command(slot, SlotAction::Erase)
    }

    /// The embedding of a text, `[n_embd]` values that are not normalised: the pooled final hidden
    /// states of its tokens; `[n_tokens, n_embd]` with [`Pooling::None`], the outputs of the head
    /// with [`Pooling::Rank`]. Blocks until it is computed.
    ///
    /// # Errors
    /// [`EmbedError`].
    pub fn embed(&self, tokens: Vec<u32>, pooling: Pooling) -> Result<Vec<f32>, EmbedError> {
        let (sender, answer) = mpsc::channel();
        let sink = move |result| drop(sender.send(result));
        self.embed_to(tokens, pooling, Box::new(sink))?;
        let result = answer.recv().unwrap_or(Err(Error::Panicked));
        result.map_err(EmbedError::Failed)
    }

    /// As [`Scheduler::embed`], but passes the result to `sink`. Texts are embedded one after the
    /// other, in chunks between the steps of generations.
    ///
    /// # Errors
    /// [`EmbedError::Refused`], [`EmbedError::NoHead`].
    pub fn embed_to(
        &self,
        tokens: Vec<u32>,
        pooling: Pooling,
        sink: EmbeddingSink,
    ) -> Result<(), EmbedError> {
        let limits = &self.shared.limits;
        let (n_prompt, n_ctx) = (tokens.len(), limits.n_ctx_sequence);
        let n_vocab = limits.n_vocab;
        if pooling == Pooling::Rank && !limits.ranks {
            return Err(EmbedError::NoHead);
        }
        if n_prompt == 0 {
            return Err(SubmitError::Empty.into());
        }
        if n_prompt > n_ctx {
            return Err(SubmitError::PromptTooLong { n_prompt, n_ctx }.into());
        }
        if let Some(&id) = tokens.iter().find(|id| **id as usize >= n_vocab) {
            return Err(SubmitError::BadToken { id, n_vocab }.into());
        }
        let mut inbox = self.shared.inbox();
        if inbox.failed {
            return Err(SubmitError::Unhealthy.into());
        }
        if inbox.stop.is_some() {
            return Err(SubmitError::ShuttingDown.into());
        }
        if inbox.n_embeds >= limits.max_queued.max(1) {
            return Err(SubmitError::QueueFull { n_queued: inbox.n_embeds }.into());
        }
        inbox.n_embeds += 1;
        inbox.embeds.push_back(EmbedJob { tokens, pooling, sink });
        drop(inbox);
        self.shared.wake();
        Ok(())
    }

    fn command(&self, slot: usize, action: SlotAction) -> Result<SlotFile, SlotError> {
        let n_slots = self.shared.limits.n_parallel;
        if slot >= n_slots {
            return Err(SlotError::NoSuchSlot { slot, n_slots });
        }
        let (reply, answer) = mpsc::channel();
        {
            let mut inbox = self.shared.inbox();
            if inbox.failed || inbox.stop.is_some() {
                return Err(SlotError::Stopped);
            }
            inbox.commands.push_back(Command { slot, action, reply });
        }
        self.shared.wake();
        answer.recv().unwrap_or(Err(SlotError::Stopped))
    }

    /// Shuts down and waits for the thread to end. New requests are refused, and requests that have
    /// not started fail. Running generations may continue for up to `grace`. Then idle sequences
    /// are written to the disk cache.
    pub fn shutdown(&self, grace: Duration) {
        self.owner.stop(grace);
    }
}

/// Checks everything about a request except whether the queue is full.
fn check(request: &Request, limits: &Limits) -> Result<(), SubmitError> {
    let (n_prompt, n_ctx, n_vocab) = (request.prompt.len(), limits.n_ctx_sequence, limits.n_vocab);
    if n_prompt == 0 {
        return Err(SubmitError::Empty);
    }
    if n_prompt >= n_ctx {
        return Err(SubmitError::PromptTooLong { n_prompt, n_ctx });
    }
    if let Some(&id) = request.prompt.iter().find(|id| **id as usize >= n_vocab) {
        return Err(SubmitError::BadToken { id, n_vocab });
    }
    let (n_choices, n_constraints) = (request.n_choices, request.constraints.len());
    let fits = n_constraints == 0 || n_constraints == n_choices;
    if n_choices == 0 || n_choices > MAX_CHOICES || !fits {
        return Err(SubmitError::BadChoices { n_choices, n_constraints });
    }
    match request.slot.filter(|slot| *slot >= limits.n_parallel) {
        Some(slot) => Err(SubmitError::NoSuchSlot { slot, n_slots: limits.n_parallel }),
        None => Ok(()),
    }
}

/// One sampler per choice, each with the prompt in its history and the seed of the first plus its
/// index.
fn samplers(request: &Request, tokenizer: &Tokenizer) -> Result<Vec<Sampler>, SubmitError> {
    let mut first = Sampler::new(&request.sampler, tokenizer)?;
    request.prompt.iter().for_each(|&token| first.accept(token));
    let seeds = (0..request.n_choices as u32).map(|i| first.seed().wrapping_add(i));
    Ok(seeds.map(|seed| first.with_seed(seed)).collect())
}

/// While a watcher exists, decode steps record which neurons fire. Dropping the last watcher stops
/// the recording and frees its memory.
#[derive(Debug)]
pub struct Watcher {
    shared: Arc<Shared>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.watch(false);
    }
}

/// Identifies a submitted request. Dropping it cancels the request, unless it has ended.
#[derive(Debug)]
pub struct Ticket {
    number: u64,
    cancelled: Arc<AtomicBool>,
    shared: Arc<Shared>,
}

impl Ticket {
    /// Id of the request, as in [`crate::SlotStatus::task`].
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Cancels the request at the next step.
    pub fn cancel(&self) {
        if !self.cancelled.swap(true, Ordering::Relaxed) {
            self.shared.wake();
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// A submitted request: an iterator over its events. Dropping it cancels the request.
#[derive(Debug)]
pub struct Generation {
    receiver: mpsc::Receiver<Update>,
    ticket: Ticket,
}

impl Generation {
    /// The next event; `None` after the last one of the last choice.
    pub fn recv(&self) -> Option<Update> {
        self.receiver.recv().ok()
    }

    /// As [`Generation::recv`], but gives up after `limit`.
    ///
    /// # Errors
    /// [`mpsc::RecvTimeoutError`].
    pub fn recv_timeout(&self, limit: Duration) -> Result<Update, mpsc::RecvTimeoutError> {
        self.receiver.recv_timeout(limit)
    }

    /// The ticket of the request.
    #[must_use]
    pub fn ticket(&self) -> &Ticket {
        &self.ticket
    }
}

impl Iterator for Generation {
    type Item = Update;

    fn next(&mut self) -> Option<Update> {
        self.recv()
    }
}
