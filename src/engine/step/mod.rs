//! A step: replays the programs of all segments and of the head, and counts active neurons.

mod counters;

pub use counters::{StepStats, UnionStats};

use std::sync::atomic::AtomicBool;

use hal::{Operand, Queue, Run, Tensor};
use placement::DeviceIndex;

use crate::error::{Error, Result};
use crate::load::{Head, LoadedModel, lane_mut};
use crate::ops::scratch::Role;
use crate::paging::Paging;
use crate::record::{BucketPrograms, Programs};
use crate::replay::arena::{NgramRows, StepArena};
use crate::replay::{StepProgram, StepState};
use crate::size::scratch::row_counts;
use crate::stream::Stream;
use crate::timeline::Work;
use counters::DeferredCounters;

/// A loaded model with its programs, ready to step.
#[derive(Debug)]
pub(crate) struct Stepper {
    pub(crate) loaded: LoadedModel,
    programs: Programs,
    /// Programs without a head that also count active rows, for steps of up to
    /// [`hal::op::MAX_COUNTED_TOKENS`] tokens; `None` if no step is watched, or if `programs` count
    /// them.
    pub(crate) counting: Option<Programs>,
    pub(crate) counts_rows: bool,
    /// For each device, the stream of absent weights to it during prefill; `None` if nothing is
    /// streamed to it.
    pub(crate) streams: Vec<Option<Stream>>,
    /// Weights that are partly on disk; `None` if all are in memory.
    pub(crate) paging: Option<Paging>,
    /// For each recorded token count, the steps whose counters are still on the devices.
    deferred: Vec<DeferredCounters>,
}

impl Stepper {
    pub(crate) fn new(
        loaded: LoadedModel,
        programs: Programs,
        streams: Vec<Option<Stream>>,
        paging: Option<Paging>,
        n_rungs: usize,
    ) -> Stepper {
        let deferred = vec![DeferredCounters::default(); n_rungs];
        Stepper { loaded, programs, counting: None, counts_rows: false, streams, paging, deferred }
    }

    /// Whether a step of `n_tokens` streams weights to a device. Such a step does not count active
    /// rows.
    pub(crate) fn streams_weights(&self, n_tokens: usize) -> bool {
        let mut legs = self.programs.segments.iter().flat_map(|segment| &segment.legs);
        legs.any(|(size, _)| *size == n_tokens)
    }

    /// Device of the embedding and of the first layers.
    pub(crate) fn first_device(&self) -> DeviceIndex {
        self.programs.segments[0].device
    }

    /// Whether some layers have neurons on devices other than their home.
    pub(crate) fn is_split(&self) -> bool {
        self.loaded.layers.iter().any(|layer| layer.mailbox.is_some())
    }

    /// Messages about ops without a fast kernel, each once.
    pub(crate) fn slow_ops(&self) -> Vec<String> {
        let chunks = self.streams.iter().flatten().flat_map(Stream::bucket_programs);
        let replayed = self.programs.bucket_programs().chain(chunks);
        let paged = self.programs.paged_legs().map(|leg| &leg.program);
        let legs = self.programs.legs().map(|leg| &leg.program).chain(paged);
        let legs = legs.flat_map(|program| program.slow_reasons());
        let mut slow: Vec<String> = Vec::new();
        for text in replayed.flat_map(BucketPrograms::slow_reasons).chain(legs) {
            if !slow.contains(text) {
                slow.push(text.clone());
            }
        }
        slow
    }

    /// Runs a step over `arena.facts` and leaves `[n_out, n_vocab]` logits in `arena.logits`.
    /// Returns the statistics of the steps whose counters it read, which may be earlier steps.
    pub(crate) fn step(
        &mut self,
        arena: &mut StepArena,
        interrupt: &AtomicBool,
    ) -> Result<StepStats> {
        let n = arena.facts.tokens.len();
        let n_out = arena.facts.n_out();
        let buckets = &arena.sizes.buckets;
        let bucket = buckets.iter().position(|&size| size >= n).unwrap_or(buckets.len() - 1);
        let defers = self.defers(n, bucket, &arena.sizes);
        let mut stats = StepStats::default();
        if !defers || self.deferred[bucket].steps >= arena.sizes.max_deferred() {
            stats += self.flush(bucket, arena)?;
        }
        self.begin(arena)?;
        if self.deferred[bucket].steps == 0 {
            self.clear(bucket, arena)?;
        }
        let replayed = self.replay(arena, interrupt, bucket, n_out);
        // An interrupted step has counted active neurons too.
        if defers && matches!(replayed, Ok(()) | Err(Error::Interrupted)) {
            let step = self.expected_stats(n, &arena.sizes);
            let deferred = &mut self.deferred[bucket];
            deferred.steps += 1;
            deferred.stats += step;
        }
        if let Some(paging) = &mut self.paging {
            stats.disk += paging.take_stats();
        }
        replayed?;
        if !defers {
            stats += self.count(bucket, n, arena)?;
        }
        Ok(stats)
    }

    /// Replays the programs of a step whose facts are on the devices.
    fn replay(
        &mut self,
        arena: &mut StepArena,
        interrupt: &AtomicBool,
        bucket: usize,
        n_out: usize,
    ) -> Result<()> {
        let n = arena.facts.tokens.len();
        let Stepper { loaded, programs, streams, paging, .. } = self;
        let LoadedModel { lanes, layers, head, guess, .. } = loaded;
        let of_layers = self.counting.as_ref().filter(|_| self.counts_rows).unwrap_or(programs);
        let (remotes, guesses) = (&of_layers.remotes[..], &of_layers.guesses[..]);
        if let Some(paging) = paging {
            paging.count_tokens(n);
        }
        let paging = paging.as_mut();
        let guess = guess.as_ref();
        let mut step = StepState {
            lanes,
            layers,
            remotes,
            guesses,
            arena,
            paging,
            guess,
            interrupt,
            n,
            bucket,
        };
        let mut at = of_layers.segments[0].device;
        let mut running = None;
        for (index, segment) in of_layers.segments.iter().enumerate() {
            let device = segment.device;
            step.copy_residual(at, device)?;
            step.copy_per_layer_embeddings(at, device)?;
            at = device;
            let n_padded = step.arena.sizes.buckets[bucket];
            if let Some((_, legs)) = segment.paged.iter().find(|(size, _)| *size == n_padded) {
                step.replay_paged(device, legs)?;
                continue;
            }
            let legs = segment.legs.iter().find(|(size, _)| *size == n_padded);
            if let (Some((_, legs)), Some(stream)) = (legs, &mut streams[segment.via]) {
                stream.run(device, legs, &mut step)?;
                continue;
            }
            let program = segment.programs.at_least(n).expect("programs exist up to n_ubatch");
            let (handed, works) = (&segment.handed[..], &segment.works[..]);
            let program = StepProgram { device, program, handed, works };
            let is_last = index + 1 == of_layers.segments.len();
            let queues_head = is_last && n_out > 0 && device == head.device;
            if queues_head && !step.arena.timeline.is_timed() {
                running = Some(program.replay_and_answer(&mut step)?);
            } else {
                program.replay(&mut step)?;
            }
        }
        if n_out > 0 {
            step.copy_residual(at, head.device)?;
            run_head(head, &programs.head, n_out, running, &mut step)
        } else {
            step.arena.logits.clear();
            Ok(lane_mut(step.lanes, at).queue.finish()?)
        }
    }

    /// Starts a step whose counters the caller reads at its end ([`Stepper::count`]). The counters
    /// of earlier steps must have been read.
    pub(crate) fn begin_counted<'a>(
        &'a mut self,
        arena: &'a mut StepArena,
        interrupt: &'a AtomicBool,
        bucket: usize,
    ) -> Result<StepState<'a>> {
        self.clear(bucket, arena)?;
        self.begin(arena)?;
        let Stepper { loaded: LoadedModel { lanes, layers, .. }, programs, paging, .. } = self;
        let (n, remotes, paging) =
            (arena.facts.tokens.len(), &programs.remotes[..], paging.as_mut());
        let (guesses, guess) = (&[][..], None);
        Ok(StepState {
            lanes,
            layers,
            remotes,
            guesses,
            arena,
            paging,
            guess,
            interrupt,
            n,
            bucket,
        })
    }

    /// Uploads the batch of a step to every device in use, and clears the counts of each device's
    /// lists.
    fn begin(&mut self, arena: &mut StepArena) -> Result<()> {
        let since = arena.timeline.now();
        let shape = self.loaded.lane(self.loaded.head.device).batch.shape;
        let StepArena { facts, sizes, words, counts, inputs, .. } = arena;
        facts.encode_into(&shape, sizes.n_blocks, sizes.n_vocab, words)?;
        self.streams.iter_mut().flatten().for_each(Stream::begin);
        inputs.devices.clear();
        for lane in self.loaded.lanes.iter_mut().flatten() {
            lane.queue.write(&lane.batch.words, bytemuck::cast_slice(words))?;
            if let Some(lists) = &lane.lists {
                counts.clear();
                counts.resize(sizes.n_layer, 0);
                lane.queue.write(lists.counts(), bytemuck::cast_slice(counts))?;
            }
        }
        self.write_ngrams(arena)?;
        arena.timeline.record_host(Work::Copy, since);
        Ok(())
    }

    /// Reads the embeddings of the step's n-grams and uploads them to the device whose layer adds them.
    fn write_ngrams(&mut self, arena: &mut StepArena) -> Result<()> {
        let LoadedModel { ngrams, lanes, .. } = &mut self.loaded;
        let Some((by, device)) = ngrams else { return Ok(()) };
        let (n, width) = (arena.facts.tokens.len(), by.width());
        let NgramRows { rows, values } = &mut arena.ngrams;
        // Padded tokens have zeros.
        values.clear();
        values.resize(arena.sizes.padded(n) * width, 0.0);
        by.values(rows, &mut values[..n * width])?;
        let lane = lane_mut(lanes, *device);
        let to = lane.scratch.at(Role::Ngrams, width);
        Ok(lane.queue.write(to, bytemuck::cast_slice(values))?)
    }
}

/// Copies the first `n` rows of `from`, in as few copies as there is staging memory for.
fn read_all(queue: &mut Queue, from: &Tensor, n: usize, to: &mut [f32]) -> Result<()> {
    let (max_rows, row) = (from.desc().n_rows, to.len() / n.max(1));
    let mut done = 0;
    for n_rows in row_counts(max_rows) {
        while row > 0 && n - done >= n_rows {
            let part = &mut to[row * done..][..row * n_rows];
            queue.read_f32(&from.rows(done..done + n_rows), part)?;
            done += n_rows;
        }
    }
    Ok(())
}

/// Runs the head over `n_out` tokens and reads their logits and, if requested, hidden states. If
/// the last layers are `running` on the same device, the head is queued behind them, and the host
/// waits once: for the logits.
fn run_head(
    head: &Head,
    programs: &BucketPrograms,
    n_out: usize,
    running: Option<Run>,
    step: &mut StepState<'_>,
) -> Result<()> {
    if let (Err(interrupted), Some(_)) = (step.check_interrupt(), &running) {
        running.map_or(Ok(()), Run::wait)?;
        return Err(interrupted);
    }
    let StepState { lanes, arena, .. } = step;
    let lane = lane_mut(lanes, head.device);
    let program = programs.at_least(n_out).expect("programs exist up to max_out");
    let run = arena.timeline.replay(&mut lane.queue, program, step.interrupt)?;
    let mut runs = [running, None];
    if arena.timeline.is_timed() {
        arena.timeline.wait(head.device, &[Work::Head], run)?;
    } else {
        runs[1] = Some(run);
    }
    let since = arena.timeline.now();
    let n_logits = if head.output.is_some() { arena.sizes.n_vocab } else { 0 };
    arena.logits.resize(n_out * n_logits, 0.0);
    read_all(&mut lane.queue, &head.scratch.logits, n_out, &mut arena.logits)?;
    if arena.reads_hidden {
        let n_embd = arena.sizes.n_embd;
        arena.hidden.resize(n_out * n_embd, 0.0);
        read_all(&mut lane.queue, &head.scratch.normed, n_out, &mut arena.hidden)?;
    }
    arena.timeline.record_host(Work::Copy, since);
    // They have ended; this reports their errors.
    runs.into_iter().flatten().try_for_each(Run::wait)?;
    Ok(())
}
