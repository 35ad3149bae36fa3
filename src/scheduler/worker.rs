//! The scheduler's thread: receives requests, runs steps, and ends generations.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{Engine, FiredNeurons, Sequence};
use hal::Bytes;

use crate::choice::{Choice, End};
use crate::embed::Embedding;
use crate::handle::StartError;
use crate::options::{Notice, Observer, SchedulerOptions};
use crate::prefix::IdleSequences;
use crate::queue::{Command, Shared};
use crate::request::{EndReason, Error};
use crate::spill::DiskCache;
use crate::status::{Counters, DeviceStatus, SlotPhase, SlotStatus, Status};

/// Number of steps between two readings of the neuron counters.
const STEPS_PER_READING: u64 = 64;
/// Maximum time between two readings of the neuron counters, so that the live view is updated even
/// if steps are slow.
const READING_PERIOD: Duration = Duration::from_millis(200);
/// Time between two steps that record the neurons that fire.
const WATCH_PERIOD: Duration = Duration::from_millis(40);
/// Tokens of prefill between two decode steps on a CPU.
const PIECE_ON_CPU: usize = 128;

#[derive(Debug)]
pub(crate) struct Setup {
    engine: Engine,
    options: SchedulerOptions,
    n_parallel: usize,
    disk: Option<DiskCache>,
}

impl Setup {
    pub(crate) fn new(
        engine: Engine,
        options: SchedulerOptions,
        n_parallel: usize,
    ) -> Result<Setup, StartError> {
        let folder_error = |folder: &std::path::Path| {
            let folder = folder.display().to_string();
            move |reason| StartError::Folder { folder, reason }
        };
        if let Some(folder) = &options.slot_folder {
            crate::files::make_folder(folder).map_err(folder_error(folder))?;
        }
        let disk = options.disk_cache.as_ref().map(|(folder, most)| {
            let opened = DiskCache::open(folder, *most, &engine, &options.observer);
            opened.map_err(folder_error(folder))
        });
        Ok(Setup { disk: disk.transpose()?, engine, options, n_parallel })
    }

    /// The status before the first step.
    pub(crate) fn status(&self) -> Status {
        let slot = |id| SlotStatus {
            id,
            phase: SlotPhase::Idle,
            task: 0,
            n_prompt: 0,
            n_cached: 0,
            n_tokens: 0,
            n_generated: 0,
            n_left: None,
        };
        let devices = self.engine.devices().iter().map(|device| DeviceStatus {
            name: device.info().name.clone(),
            used: device.ledger().used().0,
            budget: Some(device.ledger().budget()).filter(|b| *b != Bytes::MAX).map(|b| b.0),
        });
        Status {
            healthy: true,
            shutting_down: false,
            slots: (0..self.n_parallel).map(slot).collect(),
            n_queued: 0,
            n_paused: 0,
            n_idle: 0,
            n_ctx: self.engine.n_ctx(),
            n_ctx_sequence: self.engine.max_tokens(),
            n_blocks: self.engine.n_blocks(),
            n_blocks_used: 0,
            layers: self.engine.layer_activity().to_vec(),
            n_disk_files: self.disk.as_ref().map_or(0, DiskCache::n_files),
            disk_bytes: self.disk.as_ref().map_or(0, |disk| disk.total().0),
            counters: Counters::default(),
            fired: FiredNeurons::default(),
            devices: devices.collect(),
        }
    }
}

/// A choice with a slot and a sequence.
#[derive(Debug)]
pub(crate) struct Running<'t> {
    pub(crate) slot: usize,
    pub(crate) sequence: Sequence,
    pub(crate) choice: Choice<'t>,
    /// Number of the latest step that computed a piece of this prompt.
    pub(crate) latest_piece: u64,
    /// Number of tokens in the sequence before the step.
    pub(crate) start: usize,
    /// Planned number of tokens in the sequence after the step.
    pub(crate) end: usize,
}

impl Running<'_> {
    pub(crate) fn n_fed(&self) -> usize {
        self.sequence.tokens().len()
    }

    /// Planned number of tokens that the step still has to compute.
    pub(crate) fn n_take(&self) -> usize {
        self.end.saturating_sub(self.n_fed())
    }

    /// Number of prompt tokens that the step still has to compute.
    pub(crate) fn n_take_of_prompt(&self) -> usize {
        let n_prompt = self.choice.n_prompt;
        self.end.min(n_prompt).saturating_sub(self.n_fed())
    }

    /// Tokens that are not computed yet; the logits after the last one give the next token.
    pub(crate) fn n_rest(&self) -> usize {
        self.choice.tokens.len() - self.n_fed()
    }
}

#[derive(Debug)]
pub(crate) struct Worker<'t> {
    pub(crate) shared: &'t Shared,
    pub(crate) engine: Engine,
    pub(crate) n_parallel: usize,
    pub(crate) piece: usize,
    pub(crate) options: SchedulerOptions,
    pub(crate) running: Vec<Running<'t>>,
    /// Requests that have not started, paused choices, and choices whose prompt the first choice
    /// has computed, in order of arrival.
    pub(crate) waiting: Vec<Choice<'t>>,
    pub(crate) idle: IdleSequences,
    pub(crate) disk: Option<DiskCache>,
    pub(crate) counters: Counters,
    pub(crate) embedding: Embedding,
    /// Number of prefill and decode steps so far.
    pub(crate) n_steps: u64,
    /// For each slot, the number of its latest request, and the number of the step in which that
    /// request started or ended.
    pub(crate) slots: Vec<(u64, u64)>,
    /// Scratch memory of [`Engine::n_distinct_blocks`].
    pub(crate) seen: Vec<bool>,
    /// Number of steps since the neuron counters were read.
    unread: u64,
    /// When the neuron counters were last read.
    read_at: Instant,
    pub(crate) watch: Watch,
}

/// Which steps record the neurons that fire.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Whether the current step records them.
    pub(crate) step: bool,
    /// When the latest such step ended; `None` if none has since watching began.
    pub(crate) at: Option<Instant>,
}

/// Runs the scheduler until it is stopped. A panic fails all generations and all later calls.
pub(crate) fn run(shared: &Arc<Shared>, setup: Setup) {
    let Setup { engine, options, n_parallel, disk } = setup;
    let on_cpu = engine.devices().len() == 1;
    let n_ubatch = engine.options().n_ubatch;
    let default_piece = if on_cpu { n_ubatch.min(PIECE_ON_CPU) } else { n_ubatch };
    let observer: Observer = Arc::clone(&options.observer);
    let mut worker = Worker {
        shared,
        engine,
        n_parallel,
        piece: options.prefill_piece.unwrap_or(default_piece).max(1),
        options,
        running: Vec::new(),
        waiting: Vec::new(),
        idle: IdleSequences::default(),
        disk,
        counters: Counters::default(),
        embedding: Embedding::default(),
        n_steps: 0,
        slots: vec![(0, 0); n_parallel],
        seen: Vec::new(),
        unread: 0,
        read_at: Instant::now(),
        watch: Watch::default(),
    };
    let ended = catch_unwind(AssertUnwindSafe(|| worker.run()));
    let (jobs, commands) = {
        let mut inbox = shared.inbox();
        inbox.failed = ended.is_err();
        // Once `stop` is set, handles refuse all calls.
        inbox.stop.get_or_insert_with(Instant::now);
        worker.embedding.jobs.extend(inbox.embeds.drain(..));
        (std::mem::take(&mut inbox.jobs), std::mem::take(&mut inbox.commands))
    };
    drop(commands);
    let error = if ended.is_err() { Error::Panicked } else { Error::ShuttingDown };
    drop(catch_unwind(AssertUnwindSafe(|| worker.embedding.fail(&error))));
    let running = worker.running.drain(..).map(|running| running.choice);
    let queued = jobs.into_iter().map(|job| Choice::from_job(job, &shared.tokenizer, false));
    for choice in running.chain(worker.waiting.drain(..)).chain(queued) {
        // A sink may have caused the panic, and may panic again.
        drop(catch_unwind(AssertUnwindSafe(|| choice.fail(&error))));
    }
    if ended.is_err() {
        drop(catch_unwind(AssertUnwindSafe(|| observer(&Notice::Panicked))));
    }
}

impl<'t> Worker<'t> {
    fn run(&mut self) {
        loop {
            let commands = self.take_input();
            commands.into_iter().for_each(|command| self.run_command(command));
            let stop = self.shared.inbox().stop;
            if let Some(deadline) = stop {
                self.refuse_queued();
                if Instant::now() >= deadline {
                    self.end_all(EndReason::Shutdown);
                }
            }
            self.end_watch();
            self.end_cancelled();
            self.admit();
            let embedded = self.embed();
            if self.running.is_empty() && !embedded {
                self.read_neurons();
                self.publish();
                if stop.is_some() {
                    self.spill_all();
                    return self.publish();
                }
                self.shared.wait();
                continue;
            }
            if !self.running.is_empty() {
                self.step();
            }
            self.unread += 1;
            if self.unread >= STEPS_PER_READING || self.read_at.elapsed() >= READING_PERIOD {
                self.read_neurons();
            }
            self.publish();
        }
    }

    /// Takes jobs, texts to embed and commands from the inbox; returns the commands.
    fn take_input(&mut self) -> Vec<Command> {
        let shared = self.shared;
        let mut inbox = shared.inbox();
        for job in inbox.jobs.drain(..) {
            self.counters.n_requests += 1;
            let choice = Choice::from_job(job, &shared.tokenizer, self.options.cache_reuse);
            self.waiting.push(choice);
        }
        self.embedding.jobs.extend(inbox.embeds.drain(..));
        inbox.n_embeds = self.embedding.jobs.len();
        inbox.commands.drain(..).collect()
    }

    fn run_command(&mut self, command: Command) {
        let Command { slot, action, reply } = command;
        // The caller may have given up.
        drop(reply.send(self.run_slot_action(slot, action)));
    }

    /// Updates the queue's counts after a request left it. If it `starts`, it takes a slot.
    pub(crate) fn leaves_queue(&self, choice: &Choice<'_>, starts: bool) {
        let mut inbox = self.shared.inbox();
        if choice.is_queued() {
            inbox.n_queued = inbox.n_queued.saturating_sub(1);
        }
        inbox.n_free = self.n_free().saturating_sub(usize::from(starts));
    }

    /// Number of slots for queued requests. Paused choices, and waiting choices of running
    /// requests, take precedence.
    fn n_free(&self) -> usize {
        let paused = self.waiting.iter().filter(|choice| !choice.is_queued()).count();
        self.n_parallel.saturating_sub(self.running.len() + paused)
    }

    /// Fails the requests that have not started, because the scheduler stops.
    fn refuse_queued(&mut self) {
        self.embedding.fail(&Error::ShuttingDown);
        let waiting = std::mem::take(&mut self.waiting);
        let (queued, paused) = waiting.into_iter().partition(Choice::is_queued);
        self.waiting = paused;
        for choice in Vec::from_iter::<Vec<Choice<'_>>>(queued) {
            self.leaves_queue(&choice, false);
            choice.fail(&Error::ShuttingDown);
        }
    }

    fn end_all(&mut self, ended: EndReason) {
        while let Some(running) = self.running.pop() {
            self.finish(running, ended.into());
        }
        for choice in std::mem::take(&mut self.waiting) {
            self.finish_waiting(choice, ended);
        }
    }

    /// Ends cancelled generations and those whose deadline has passed.
    fn end_cancelled(&mut self) {
        let now = Instant::now();
        let ended = |choice: &Choice<'_>| {
            let late = choice.deadline.is_some_and(|deadline| now >= deadline);
            let late = late.then_some(EndReason::Deadline);
            if choice.is_cancelled() { Some(EndReason::Cancelled) } else { late }
        };
        while let Some((index, how)) =
            self.running.iter().enumerate().find_map(|(i, r)| Some((i, ended(&r.choice)?)))
        {
            let running = self.running.remove(index);
            self.finish(running, how.into());
        }
        while let Some((index, how)) =
            self.waiting.iter().enumerate().find_map(|(i, choice)| Some((i, ended(choice)?)))
        {
            let choice = self.waiting.remove(index);
            self.finish_waiting(choice, how);
        }
    }

    fn finish_waiting(&mut self, choice: Choice<'_>, how: EndReason) {
        self.leaves_queue(&choice, false);
        self.counters.n_finished += 1;
        self.publish();
        choice.finish(how.into());
    }

    /// Ends a generation. Keeps its sequence in the cache if later requests may reuse it.
    pub(crate) fn finish(&mut self, running: Running<'t>, end: End) {
        let Running { slot, sequence, choice, .. } = running;
        self.counters.n_finished += 1;
        self.slots[slot].1 = self.n_steps;
        if choice.reuses_cache {
            self.keep(sequence, Some(slot));
        }
        // Update the status first, so that a caller who receives the end also sees it there.
        self.publish();
        choice.finish(end);
    }

    /// Ends a generation with an error, and drops its sequence.
    pub(crate) fn fail(&mut self, index: usize, error: Error) {
        let running = self.running.remove(index);
        self.counters.n_failed += 1;
        self.slots[running.slot].1 = self.n_steps;
        (self.options.observer)(&Notice::StepFailed { reason: error.to_string() });
        self.publish();
        running.choice.fail(&error);
    }

    fn read_neurons(&mut self) {
        if self.unread == 0 {
            return;
        }
        (self.unread, self.read_at) = (0, Instant::now());
        match self.engine.take_stats() {
            Ok(stats) => {
                self.counters.neurons += stats;
                let mut status = self.shared.status();
                status.layers.clear();
                status.layers.extend_from_slice(self.engine.layer_activity());
            }
            // The next step reports the same error to the generations.
            Err(error) => {
                (self.options.observer)(&Notice::StepFailed { reason: error.to_string() });
            }
        }
    }

    /// Whether a decode step records the neurons that fire: if a handle watches, and the latest
    /// recording ended at least [`WATCH_PERIOD`] ago.
    pub(crate) fn watches(&self) -> bool {
        let is_due = self.watch.at.is_none_or(|at| at.elapsed() >= WATCH_PERIOD);
        is_due && self.shared.is_watched()
    }

    /// Publishes the neurons that a watched step recorded.
    pub(crate) fn publish_fired(&mut self) {
        self.watch = Watch { step: false, at: Some(Instant::now()) };
        self.shared.status().fired.clone_from(self.engine.fired());
    }

    /// Releases the engine's memory for watched steps after the last watcher has left.
    fn end_watch(&mut self) {
        if self.watch.at.is_some() && !self.shared.is_watched() {
            self.watch = Watch::default();
            self.engine.stop_watching();
            self.shared.status().fired.clone_from(self.engine.fired());
        }
    }

    /// Updates the status that handles read.
    pub(crate) fn publish(&mut self) {
        let n_free = self.n_free();
        self.shared.inbox().n_free = n_free;
        let mut status = self.shared.status();
        status.n_paused = self.waiting.iter().filter(|choice| !choice.is_queued()).count();
        status.n_idle = self.idle.len();
        status.n_blocks_used = self.engine.n_blocks() - self.engine.n_free_blocks();
        if let Some(disk) = &self.disk {
            (status.n_disk_files, status.disk_bytes) = (disk.n_files(), disk.total().0);
        }
        status.counters = self.counters;
        for (shown, device) in status.devices.iter_mut().zip(self.engine.devices()) {
            shown.used = device.ledger().used().0;
        }
        for slot in &mut status.slots {
            slot.task = self.slots[slot.id].0;
            let running = self.running.iter().find(|running| running.slot == slot.id);
            let Some(Running { sequence, choice, .. }) = running else {
                slot.phase = SlotPhase::Idle;
                slot.n_tokens = self.idle.of_slot(slot.id).map_or(0, |s| s.tokens().len());
                continue;
            };
            let prefills = sequence.tokens().len() < choice.n_prefill;
            slot.phase = if prefills { SlotPhase::Prefill } else { SlotPhase::Decode };
            (slot.n_prompt, slot.n_cached) = (choice.n_prompt, choice.n_cached);
            (slot.n_tokens, slot.n_generated) = (sequence.tokens().len(), choice.n_generated());
            slot.n_left = choice.n_left();
        }
    }
}
