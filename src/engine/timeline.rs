//! Records when the work of a step ran and on which device: for traces, and to measure how long
//! each device waited for the others.
//!
//! With a [`Tracer`], every step is timed; without one, only some of the steps with split layers
//! are.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use hal::{Clock, Program, Queue, Run, Times};

use placement::{CPU, DeviceIndex};

use crate::error::{Error, Result};

/// Number of steps at the beginning that are timed without a tracer, so that a short generation has
/// wait times too.
const N_FIRST: usize = 8;
/// Distance between timed steps after the first ones. Most steps are not timed, because some
/// devices split the work of a timed step into several submissions, which takes longer.
const INTERVAL: usize = 64;

/// A kind of work in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Embedding of tokens and positions.
    Embedding,
    /// Attention of a layer, with the norms around it.
    Attention(usize),
    /// Neurons of a layer on one device, with their predictor or router.
    Neurons(usize),
    /// Adding the output of the neurons on other devices.
    Merge(usize),
    /// The output norm and matrix.
    Head,
    /// On the host: waiting for weights of a layer from disk.
    Read(usize),
    /// On the host: moving the input of a layer to other devices, and their results back.
    HandOff(usize),
    /// On the host: copying other data to or from a device.
    Copy,
}

impl Work {
    /// The layer of the work; `None` if the work belongs to no layer.
    #[must_use]
    pub fn layer(self) -> Option<usize> {
        match self {
            Work::Attention(layer)
            | Work::Neurons(layer)
            | Work::Merge(layer)
            | Work::Read(layer)
            | Work::HandOff(layer) => Some(layer),
            Work::Embedding | Work::Head | Work::Copy => None,
        }
    }

    /// Name of the work, without the layer.
    #[must_use]
    pub fn part(self) -> &'static str {
        match self {
            Work::Embedding => "embedding",
            Work::Attention(_) => "attention",
            Work::Neurons(_) => "neurons",
            Work::Merge(_) => "merge",
            Work::Head => "head",
            Work::Read(_) => "read",
            Work::HandOff(_) => "hand-off",
            Work::Copy => "copy",
        }
    }
}

/// Writes, for example, `layer 3 attention` or `head`.
impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layer() {
            Some(layer) => write!(f, "layer {layer} {}", self.part()),
            None => f.write_str(self.part()),
        }
    }
}

/// A span of time in which a device or the host worked. Events of one device never overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Index of the device in the engine's list; work of the host belongs to the CPU.
    pub device: DeviceIndex,
    /// The work.
    pub work: Work,
    /// The last work of the span, if the device timed several together; otherwise equal to `work`.
    pub last: Work,
    /// Start of the span.
    pub begin: Instant,
    /// End of the span.
    pub end: Instant,
    /// The clock that `begin` and `end` were read from.
    pub clock: Clock,
}

/// A complete step.
#[derive(Clone, Copy, Debug)]
pub struct StepTrace<'a> {
    /// Number of tokens of the step.
    pub n_tokens: usize,
    /// Start of the step.
    pub begin: Instant,
    /// End of the step.
    pub end: Instant,
    /// Events of the step, sorted by device and then by time.
    pub events: &'a [Event],
}

/// Callback for every completed step.
pub type Tracer = Box<dyn FnMut(&StepTrace<'_>) + Send>;

/// Records the events of a step.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    timed: bool,
    /// Number of steps with split layers so far.
    n_split: usize,
    began: Option<Instant>,
    events: Vec<Event>,
}

impl Timeline {
    /// Starts a step. It is timed if `traced` is set, or if its layers are `split` and a timed step
    /// is due.
    pub(crate) fn begin(&mut self, traced: bool, split: bool) {
        let due = self.n_split < N_FIRST || self.n_split.is_multiple_of(INTERVAL);
        self.timed = traced || split && due;
        self.n_split += usize::from(split);
        self.events.clear();
        self.began = self.now();
    }

    /// Stops recording until the next step.
    pub(crate) fn stop(&mut self) {
        self.timed = false;
    }

    /// Starts a program on a queue, timed if the step is timed.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if `interrupt` ended the program, and errors of the device.
    pub(crate) fn replay(
        &self,
        queue: &mut Queue,
        program: &Program,
        interrupt: &AtomicBool,
    ) -> Result<Run> {
        let run = if self.timed {
            queue.replay_timed(program)
        } else {
            queue.replay_cancellable(program, interrupt)
        };
        match run {
            Err(hal::Error::Cancelled) => Err(Error::Interrupted),
            run => Ok(run?),
        }
    }

    pub(crate) fn is_timed(&self) -> bool {
        self.timed
    }

    /// The current time, if the step is timed.
    pub(crate) fn now(&self) -> Option<Instant> {
        self.timed.then(Instant::now)
    }

    /// Records `work` of the host from `since` until now.
    pub(crate) fn record_host(&mut self, work: Work, since: Option<Instant>) {
        if let Some(begin) = since.filter(|_| self.timed) {
            let (device, last, end, clock) = (CPU, work, Instant::now(), Clock::Host);
            self.events.push(Event { device, work, last, begin, end, clock });
        }
    }

    /// Waits for the end of a run on `device`, and records when its parts ran. `works` has the work
    /// of each part.
    pub(crate) fn wait(&mut self, device: DeviceIndex, works: &[Work], run: Run) -> Result<()> {
        if !self.timed {
            return Ok(run.wait()?);
        }
        let Times { clock, parts } = run.times()?;
        for time in parts {
            let works = works.get(time.parts).unwrap_or_default();
            if let (Some(&work), Some(&last)) = (works.first(), works.last()) {
                let (begin, end) = (time.begin, time.end);
                self.events.push(Event { device, work, last, begin, end, clock });
            }
        }
        Ok(())
    }

    /// Sorts the events by device and time, and removes overlaps.
    fn sort(&mut self) {
        self.events.sort_by_key(|event| (event.device, event.begin, event.end));
        let mut before: Option<(DeviceIndex, Instant)> = None;
        for event in &mut self.events {
            // The clock of a device is aligned with the host's clock again for each run, which may
            // shift events slightly.
            if let Some((_, end)) = before.filter(|(device, _)| *device == event.device) {
                event.begin = event.begin.max(end);
            }
            event.end = event.end.max(event.begin);
            before = Some((event.device, event.end));
        }
    }

    /// Ends a complete step of `n_tokens`, and passes it to `tracer` if it was timed. `others` are
    /// the devices in use other than the CPU if layers are split with them. For a timed step, the
    /// result then says how long the CPU and these devices waited.
    pub(crate) fn end(
        &mut self,
        n_tokens: usize,
        others: Option<&mut dyn Iterator<Item = DeviceIndex>>,
        tracer: Option<&mut Tracer>,
    ) -> Waits {
        let mut waits = Waits::default();
        let Some(begin) = self.began.filter(|_| self.timed) else { return waits };
        let end = Instant::now();
        self.sort();
        let all = end.duration_since(begin);
        let waited = |device: DeviceIndex| {
            let busy = self.events.iter().filter(|event| event.device == device);
            let busy: Duration = busy.map(|e| e.end.duration_since(e.begin)).sum();
            all.saturating_sub(busy).as_secs_f64()
        };
        if let Some(others) = others {
            let others: Vec<f64> = others.map(waited).collect();
            waits.timed = all.as_secs_f64();
            waits.cpu = waited(CPU);
            waits.devices = others.iter().sum::<f64>() / others.len().max(1) as f64;
        }
        if let Some(tracer) = tracer {
            tracer(&StepTrace { n_tokens, begin, end, events: &self.events });
        }
        waits
    }
}

/// Seconds that the CPU and the other devices were idle, because another device worked or a
/// transfer was in progress. Sums over the timed steps of models with split layers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Waits {
    /// Duration of the timed steps, in seconds.
    pub timed: f64,
    /// Seconds of `timed` in which the CPU was idle.
    pub cpu: f64,
    /// Seconds of `timed` in which the other devices were idle, on average over these devices.
    pub devices: f64,
}

impl Waits {
    /// Shares of the timed duration in which the CPU and the other devices were idle; `None` if no
    /// step with split layers was timed.
    #[must_use]
    pub fn shares(&self) -> Option<[f64; 2]> {
        (self.timed > 0.0).then(|| [self.cpu, self.devices].map(|part| part / self.timed))
    }
}

impl std::ops::Sub for Waits {
    type Output = Waits;

    fn sub(self, before: Waits) -> Waits {
        Waits {
            timed: self.timed - before.timed,
            cpu: self.cpu - before.cpu,
            devices: self.devices - before.devices,
        }
    }
}

impl std::ops::AddAssign for Waits {
    fn add_assign(&mut self, other: Waits) {
        self.timed += other.timed;
        self.cpu += other.cpu;
        self.devices += other.devices;
    }
}
