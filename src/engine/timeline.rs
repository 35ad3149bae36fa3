//! When the parts of a step ran and on which device: for traces, and for the time that each side
//! waited for the other.
//!
//! Steps are timed only on demand: all of them with a [`Tracer`], otherwise some steps with split
//! layers.

use std::fmt;
use std::time::{Duration, Instant};

use hal::{Clock, Program, Queue, Run, Times};

use placement::{CPU, DeviceIndex};

use crate::error::Result;

/// Without a tracer, this many steps are timed at first, so that a short text has figures too.
const FIRST: usize = 8;
/// After those, one step in this many: some devices get a timed step's work in several
/// submissions, which takes longer.
const EVERY: usize = 64;

/// The work of a part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Embedding of tokens and positions.
    Embedding,
    /// Attention of a layer, with the norms around it.
    Attention(usize),
    /// Neurons of a layer that are on one device, and their predictor or router.
    Neurons(usize),
    /// Adding what other devices computed of a layer.
    Merge(usize),
    /// The output norm and matrix.
    Head,
    /// The host, moving a layer's input to other devices and their results back.
    HandOff(usize),
    /// The host, copying other data to or from a device.
    Copy,
}

impl Work {
    /// The layer that it belongs to.
    #[must_use]
    pub fn layer(self) -> Option<usize> {
        match self {
            Work::Attention(layer)
            | Work::Neurons(layer)
            | Work::Merge(layer)
            | Work::HandOff(layer) => Some(layer),
            Work::Embedding | Work::Head | Work::Copy => None,
        }
    }

    /// Name of the part, without the layer.
    #[must_use]
    pub fn part(self) -> &'static str {
        match self {
            Work::Embedding => "embedding",
            Work::Attention(_) => "attention",
            Work::Neurons(_) => "neurons",
            Work::Merge(_) => "merge",
            Work::Head => "head",
            Work::HandOff(_) => "hand-off",
            Work::Copy => "copy",
        }
    }
}

/// `layer 3 attention`, `head`.
impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layer() {
            Some(layer) => write!(f, "layer {layer} {}", self.part()),
            None => f.write_str(self.part()),
        }
    }
}

/// A span of time in which something ran. Events of one device never overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Index of the device in the engine's list; work of the host belongs to the CPU.
    pub device: DeviceIndex,
    /// The work.
    pub work: Work,
    /// The last part in the span, where a device cannot time parts separately; otherwise the same.
    pub last: Work,
    /// Its start.
    pub begin: Instant,
    /// Its end.
    pub end: Instant,
    /// The clock of both times.
    pub clock: Clock,
}

/// A complete step.
#[derive(Clone, Copy, Debug)]
pub struct StepTrace<'a> {
    /// Its tokens.
    pub n_tokens: usize,
    /// Its start.
    pub begin: Instant,
    /// Its end.
    pub end: Instant,
    /// Its events, by device and then by time.
    pub events: &'a [Event],
}

/// Callback for every completed step.
pub type Tracer = Box<dyn FnMut(&StepTrace<'_>) + Send>;

/// Records the events of a step.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    on: bool,
    /// Steps with split layers so far.
    n_split: usize,
    began: Option<Instant>,
    events: Vec<Event>,
}

impl Timeline {
    /// Starts a step. It is timed if `traced`, or if its layers are `split` and a timed step is
    /// due.
    pub(crate) fn begin(&mut self, traced: bool, split: bool) {
        let due = self.n_split < FIRST || self.n_split.is_multiple_of(EVERY);
        self.on = traced || split && due;
        self.n_split += usize::from(split);
        self.events.clear();
        self.began = self.now();
    }

    /// Stops recording until the next step.
    pub(crate) fn stop(&mut self) {
        self.on = false;
    }

    /// Starts a program on a queue, timed if the step is timed.
    pub(crate) fn replay(&self, queue: &mut Queue, program: &Program) -> Result<Run> {
        Ok(if self.on { queue.replay_timed(program)? } else { queue.replay(program)? })
    }

    /// The current time, if the step is timed.
    pub(crate) fn now(&self) -> Option<Instant> {
        self.on.then(Instant::now)
    }

    /// Records `work` of the host from `since` until now.
    pub(crate) fn host(&mut self, work: Work, since: Option<Instant>) {
        if let Some(begin) = since.filter(|_| self.on) {
            let (device, last, end, clock) = (CPU, work, Instant::now(), Clock::Host);
            self.events.push(Event { device, work, last, begin, end, clock });
        }
    }

    /// Waits for the end of a run on `device` whose parts are `works`, and records when they ran.
    pub(crate) fn wait(&mut self, device: DeviceIndex, works: &[Work], run: Run) -> Result<()> {
        if !self.on {
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

    /// Sorts the events by device and time.
    fn sort(&mut self) {
        self.events.sort_by_key(|event| (event.device, event.begin, event.end));
        let mut before: Option<(DeviceIndex, Instant)> = None;
        for event in &mut self.events {
            // A device's clock is aligned with the host's for each run, which may shift it
            // slightly.
            if let Some((_, end)) = before.filter(|(device, _)| *device == event.device) {
                event.begin = event.begin.max(end);
            }
            event.end = event.end.max(event.begin);
            before = Some((event.device, event.end));
        }
    }

    /// Ends a complete step of `n_tokens`. If its layers are split with `others`, the devices in
    /// use besides the CPU, it returns how long each side waited in a timed step.
    pub(crate) fn end(
        &mut self,
        n_tokens: usize,
        others: Option<&mut dyn Iterator<Item = DeviceIndex>>,
        tracer: Option<&mut Tracer>,
    ) -> Waits {
        let mut waits = Waits::default();
        let Some(begin) = self.began.filter(|_| self.on) else { return waits };
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

/// How long each side was idle, because the other worked or a transfer was under way, in seconds,
/// over the timed steps of models with split layers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Waits {
    /// Duration of the timed steps.
    pub timed: f64,
    /// Time of it in which the CPU waited.
    pub cpu: f64,
    /// Time of it in which the other devices waited, on average.
    pub devices: f64,
}

impl Waits {
    /// Shares of the time in which the CPU and the other devices waited; `None` if no layer is
    /// split.
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
