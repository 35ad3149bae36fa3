//! When the parts of a step ran, and on what: for traces, and for how long each side waited for the other.
//!
//! Steps are timed only where somebody wants to know: all of them while there is a [`Tracer`], else one in a few of those
//! in which a layer is split.

use std::fmt;
use std::time::{Duration, Instant};

use hal::{Clock, Program, Queue, Run, Times};

use crate::placement::{CPU, DeviceIndex};

use super::lane::Lane;
use super::{Result, StepStats};

/// Without a tracer, so many steps are timed: a short text has its figures too.
const FIRST: usize = 8;
/// Then one in so many: some devices are given a step's work piece by piece where it is timed, which takes longer.
const EVERY: usize = 64;

/// A part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Tokens and positions to rows.
    Embedding,
    /// Attention of a layer, with the norms around it.
    Attention(usize),
    /// Neurons of a layer that are on one device, and whatever chooses them.
    Neurons(usize),
    /// What other devices computed of a layer, added to what its home has.
    Merge(usize),
    /// The output norm and matrix.
    Head,
    /// The host, bringing a layer's input to other devices and their results back.
    HandOff(usize),
    /// The host, copying something else to a device or from it.
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

    /// What it is, whatever the layer.
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

/// Something that ran. Events of one device never overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Where, in the engine's list; what the host does is the CPU's.
    pub device: DeviceIndex,
    /// What.
    pub work: Work,
    /// Its last part, where a device cannot tell several parts apart; else the same.
    pub last: Work,
    /// When it began.
    pub begin: Instant,
    /// When it was done.
    pub end: Instant,
    /// Whose clock says so.
    pub clock: Clock,
}

/// A whole step.
#[derive(Clone, Copy, Debug)]
pub struct StepTrace<'a> {
    /// Its tokens.
    pub n_tokens: usize,
    /// When it began.
    pub begin: Instant,
    /// When it was done.
    pub end: Instant,
    /// What ran, device by device in the order of time.
    pub events: &'a [Event],
}

/// Hears of every step when it is whole.
pub type Tracer = Box<dyn FnMut(&StepTrace<'_>) + Send>;

/// What is taken down of a step.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    on: bool,
    /// Steps with split layers so far.
    n_split: usize,
    began: Option<Instant>,
    events: Vec<Event>,
}

impl Timeline {
    /// Begins a step, which is timed if it is `traced`, or if its layers are `split` and it is the turn of one.
    pub(super) fn begin(&mut self, traced: bool, split: bool) {
        let due = self.n_split < FIRST || self.n_split.is_multiple_of(EVERY);
        self.on = traced || split && due;
        self.n_split += usize::from(split);
        self.events.clear();
        self.began = self.now();
    }

    /// Takes nothing down until the next step begins.
    pub(super) fn stop(&mut self) {
        self.on = false;
    }

    /// Starts a program on a queue, timed if anybody wants to know.
    pub(super) fn replay(&self, queue: &mut Queue, program: &Program) -> Result<Run> {
        Ok(if self.on { queue.replay_timed(program)? } else { queue.replay(program)? })
    }

    /// The time, if anybody wants to know.
    pub(super) fn now(&self) -> Option<Instant> {
        self.on.then(Instant::now)
    }

    /// The host did `work` since then.
    pub(super) fn host(&mut self, work: Work, since: Option<Instant>) {
        if let Some(begin) = since.filter(|_| self.on) {
            self.add(CPU, (work, work), (begin, Instant::now()), Clock::Host);
        }
    }

    /// Waits for the end of a run on `device` whose parts are `works`, and takes down when they ran.
    pub(super) fn wait(&mut self, device: DeviceIndex, works: &[Work], run: Run) -> Result<()> {
        if !self.on {
            return Ok(run.wait()?);
        }
        let Times { clock, parts } = run.times()?;
        for time in parts {
            let named =
                works.get(time.parts).and_then(|works| Some((*works.first()?, *works.last()?)));
            if let Some(works) = named {
                self.add(device, works, (time.begin, time.end), clock);
            }
        }
        Ok(())
    }

    fn add(
        &mut self,
        device: DeviceIndex,
        (work, last): (Work, Work),
        (begin, end): (Instant, Instant),
        clock: Clock,
    ) {
        self.events.push(Event { device, work, last, begin, end, clock });
    }

    /// Brings the events of each device into their order.
    fn sort(&mut self) {
        self.events.sort_by_key(|event| (event.device, event.begin, event.end));
        let mut before: Option<(DeviceIndex, Instant)> = None;
        for event in &mut self.events {
            // A device's clock is brought to the host's anew for each run, which may move it a little.
            if let Some((_, end)) = before.filter(|(device, _)| *device == event.device) {
                event.begin = event.begin.max(end);
            }
            event.end = event.end.max(event.begin);
            before = Some((event.device, event.end));
        }
    }

    /// Ends a whole step of `n_tokens` on the devices that have a lane. Who waited counts if its layers are `split`.
    pub(super) fn end(
        &mut self,
        n_tokens: usize,
        (lanes, split): (&[Option<Lane>], bool),
        stats: &mut StepStats,
        tracer: Option<&mut Tracer>,
    ) {
        let Some(begin) = self.began.filter(|_| self.on) else { return };
        let end = Instant::now();
        self.sort();
        let all = end.duration_since(begin);
        let waited = |device: DeviceIndex| {
            let busy = self.events.iter().filter(|event| event.device == device);
            let busy: Duration = busy.map(|e| e.end.duration_since(e.begin)).sum();
            all.saturating_sub(busy).as_secs_f64()
        };
        if split {
            let used = |device: &DeviceIndex| *device != CPU && lanes[*device].is_some();
            let others: Vec<f64> = (0..lanes.len()).filter(used).map(waited).collect();
            stats.waits.timed += all.as_secs_f64();
            stats.waits.cpu += waited(CPU);
            stats.waits.devices += others.iter().sum::<f64>() / others.len().max(1) as f64;
        }
        if let Some(tracer) = tracer {
            tracer(&StepTrace { n_tokens, begin, end, events: &self.events });
        }
    }
}

/// How long each side had nothing to do, because the other worked or was being told to, in seconds, over the steps that
/// were timed: those of models with split layers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Waits {
    /// What those steps took.
    pub timed: f64,
    /// The part of it in which the CPU waited.
    pub cpu: f64,
    /// That in which the other devices waited, on average.
    pub devices: f64,
}

impl Waits {
    /// The shares of the time in which the CPU and the others waited; `None` where no layer is split.
    #[must_use]
    pub fn shares(&self) -> Option<[f64; 2]> {
        (self.timed > 0.0).then(|| [self.cpu, self.devices].map(|part| part / self.timed))
    }
}

impl std::ops::AddAssign for Waits {
    fn add_assign(&mut self, other: Waits) {
        self.timed += other.timed;
        self.cpu += other.cpu;
        self.devices += other.devices;
    }
}
