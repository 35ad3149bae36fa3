//! Streams weights to the GPU during prefill: from some number of tokens on, a home device
//! computes a split layer's absent neurons itself, in chunks that are uploaded into two
//! alternating sets of slots.
//!
//! A hand-off sends x to where the weights are, which suits decode: the weights are read once and
//! multiplied once. With hundreds of tokens the CPU takes much longer to multiply than to upload
//! the weights. So the prefill programs are cut at split layers into legs, and after a leg the
//! layer's chunks run: the host packs a chunk into staging while the device computes the previous
//! one. One queue keeps them in order, so the only wait is for a set of slots that is still in
//! use. For a layer on the CPU, x is uploaded too and y is downloaded.

mod fill;
mod make;
mod slots;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use hal::op::MOST_COUNTED;
use hal::{Bytes, Program, Run};

use model::Model;
use placement::{CPU, DeviceIndex, Forecast, LayerPlacement, Neurons, Placement};

use super::build::{Layer, Plan};
use super::lane::Lane;
use super::options::Streaming;
use super::predict::PieceLists;
use super::record::{Ladder, lane};
use super::step::{Buffers, Part, StepSizes};
use super::timeline::Work;
use super::{Error, Result};

use fill::{Columns, Fill, Sources};
use slots::{PieceSize, Slots};

/// A run of layers of a segment whose programs are cut at streamed layers.
#[derive(Debug)]
pub(super) struct Leg {
    pub(super) program: Program,
    /// The layer of each mailbox of the program, in order.
    pub(super) handed: Vec<usize>,
    /// The work of each timed span of the program.
    pub(super) works: Vec<Work>,
    /// The layer whose chunks run after it.
    pub(super) then: Option<usize>,
}

/// Streaming to one device: the absent neurons of layers whose home it is, and all neurons of
/// layers on the CPU.
#[derive(Debug)]
pub(super) struct Stream {
    /// The smallest rung of the ladder that is cut into legs.
    pub(super) from: usize,
    device: DeviceIndex,
    size: PieceSize,
    /// Layers in order; `None` for those that are not streamed.
    layers: Vec<Option<Streamed>>,
    /// Lists for the predictors' selection within a chunk, reused by every chunk.
    _lists: Option<PieceLists>,
    /// Two sets of slots, used alternately.
    sides: [Side; 2],
    next: usize,
    /// Buffer for columns of a down matrix on their way into a pack.
    columns: Columns,
    /// Empty slots of the step so far, where every slot is counted.
    padded: usize,
    counts_all: bool,
    /// Neurons that predictors scored in the step so far.
    scored: usize,
}

/// A streamed layer: its absent neurons or, if its home is the CPU, all of them.
#[derive(Debug)]
struct Streamed {
    /// Index of its shape among the shares of a side.
    kind: usize,
    /// Index of the program for each chunk; a single entry holds for all chunks.
    ways: Vec<usize>,
    /// Absent neurons, ascending, and the range of each chunk. Whole experts are ordered by
    /// number, whatever expert a number means now.
    absent: Vec<u32>,
    pieces: Vec<Range<usize>>,
    /// The layer is on the CPU and all of its neurons are streamed: x is uploaded, and y
    /// downloaded.
    afar: bool,
    /// Whether y is added to existing output when it is copied back.
    joins: bool,
    /// Whether the leg has written y, so that the first chunk is added to it.
    adds: bool,
    from: Sources,
    works: [Work; 1],
}

/// One set of slots.
#[derive(Debug)]
struct Side {
    slots: Slots,
    /// By shape and program: programs that add to y, and programs that overwrite it.
    programs: Vec<[Ladder; 2]>,
    /// For each tensor of the slots, its staging memory.
    fills: Vec<Fill>,
}

/// Submitted work that has not been waited for.
struct Flight<'a> {
    device: DeviceIndex,
    run: Run,
    works: &'a [Work],
    /// The set of slots that it reads.
    side: Option<usize>,
}

/// Context of a streamed step besides its weights.
pub(super) struct Stepping<'a> {
    pub(super) lanes: &'a mut [Option<Lane>],
    pub(super) layers: &'a [Layer],
    pub(super) sizes: &'a StepSizes,
    pub(super) buffers: &'a mut Buffers,
    pub(super) interrupt: &'a AtomicBool,
    /// Real tokens.
    pub(super) n: usize,
    pub(super) rung: usize,
}

impl Plan<'_> {
    /// Whether the neurons of layer `index` can be streamed at all: a predictor's lists over
    /// experts need the hand-off.
    pub(super) fn streams(&self, index: usize) -> bool {
        let listed = self.mode.chosen(self.model, self.options, index).is_some();
        let ffn = self.model.layers[index].ffn.as_ref();
        ffn.is_some_and(|ffn| !listed || ffn.experts.is_none())
    }

    /// Whether the neurons of layer `index` can be streamed to a device if the layer itself is on
    /// the CPU: the predictor's first matrix or `bias_down` would have to be on the device.
    pub(super) fn streams_afar(&self, index: usize) -> bool {
        let listed = self.mode.chosen(self.model, self.options, index).is_some();
        self.streams(index) && !listed && self.block(index).down.bias.is_none()
    }

    /// The smallest rung of the ladder at which steps of at least `from` tokens are streamed;
    /// `None` if there is none.
    pub(super) fn first_streamed(&self, from: usize) -> Option<usize> {
        self.streamed_rungs().into_iter().find(|&n| n >= from)
    }

    /// The rungs of the ladder that may stream.
    pub(super) fn streamed_rungs(&self) -> Vec<usize> {
        let ladder = self.options.ladder();
        ladder.into_iter().filter(|&n| n > MOST_COUNTED).collect()
    }

    /// Number of tokens from which absent neurons are streamed to each device, if they are: as
    /// forced, or as planned. Reports why not where memory is short.
    pub(super) fn streams_from(
        &self,
        placement: &Placement,
        forecast: Option<&Forecast>,
        told: &mut Vec<String>,
    ) -> Vec<Option<usize>> {
        let n_devices = self.devices.len();
        let from: Vec<Option<usize>> = match (self.options.streaming, forecast) {
            (Streaming::Forced { from, .. }, _) => vec![Some(from); n_devices],
            (Streaming::Measured, Some(forecast)) => forecast.stream_from.clone(),
            (Streaming::Off, _) | (Streaming::Measured, None) => vec![None; n_devices],
        };
        if from.iter().all(Option::is_none) {
            return from;
        }
        // Chunks are packed from the file again and again.
        let absent = |(index, placed): (usize, &LayerPlacement)| {
            let Some(ffn) = &self.model.layers[index].ffn else { return 0 };
            let bytes = ffn.matrices().map(|(_, rows)| rows.desc().bytes().unwrap_or_default().0);
            let n_ff = ffn.n_ff();
            let elsewhere = placed.shares.iter().filter(|s| s.device != placed.home);
            let afar = placed.home == CPU && !placed.is_split() && self.streams_afar(index);
            let n = match afar {
                true => n_ff,
                false => elsewhere.map(|share| share.neurons.len(n_ff)).sum::<usize>(),
            };
            bytes.sum::<u64>() / n_ff.max(1) as u64 * n as u64
        };
        let host = Bytes(placement.layers.iter().enumerate().map(absent).sum());
        let free = self.devices[CPU].memory().ok().and_then(|memory| memory.free);
        match free.filter(|free| *free < host) {
            None => from,
            Some(free) => {
                told.push(format!("weights on the CPU are not streamed during prefill: that needs {host} of the model in host memory, and {free} are free"));
                vec![None; n_devices]
            }
        }
    }
}

impl Streamed {
    /// Updates the absent neurons to the current placement.
    fn place(&mut self, placed: &LayerPlacement, n_ff: usize, size: PieceSize) {
        self.absent.clear();
        if self.afar {
            self.absent.extend(0..n_ff as u32);
        }
        for share in placed.shares.iter().filter(|share| share.device != placed.home) {
            match &share.neurons {
                Neurons::All => self.absent.extend(0..n_ff as u32),
                Neurons::List(list) => self.absent.extend_from_slice(list),
            }
        }
        // Experts are swapped by number, and programs refer to numbers; neurons are in order.
        let n_each = self.from.n_each();
        let expert = |neuron: u32| neuron as usize / n_each;
        let runs = self.absent.chunk_by_mut(|&a, &b| expert(a) == expert(b));
        runs.for_each(<[u32]>::sort_unstable);
        self.pieces = size.pieces(&self.absent, self.from.block(), n_each);
    }

    /// The index of the program that runs over a chunk.
    fn way(&self, piece: usize) -> usize {
        match self.ways[..] {
            [one] => one,
            _ => self.ways[piece],
        }
    }
}

impl Stream {
    /// The device that neurons are streamed to.
    pub(super) fn device(&self) -> DeviceIndex {
        self.device
    }

    /// Whether the absent neurons of a layer are streamed here.
    pub(super) fn has(&self, layer: usize) -> bool {
        self.layers.get(layer).is_some_and(Option::is_some)
    }

    /// Whether all neurons of a layer on the CPU are streamed here.
    pub(super) fn is_afar(&self, layer: usize) -> bool {
        self.layers.get(layer).is_some_and(|at| at.as_ref().is_some_and(|at| at.afar))
    }

    /// Updates the placement of a layer.
    pub(super) fn place(&mut self, layer: usize, placed: &LayerPlacement, model: &Model) {
        if let Some(Some(at)) = self.layers.get_mut(layer) {
            at.place(placed, model.layers[layer].n_ff(), self.size);
        }
    }

    /// Starts a step.
    pub(super) fn begin(&mut self) {
        (self.padded, self.scored) = (0, 0);
    }

    /// Number of neurons that predictors scored in the step; most of them are active for some
    /// token.
    pub(super) fn scored(&self) -> usize {
        self.scored
    }

    /// Number of empty slots that the step counted.
    pub(super) fn padded(&self) -> usize {
        self.padded
    }

    pub(super) fn ladders(&self) -> impl Iterator<Item = &Ladder> {
        self.sides[0].programs.iter().flatten()
    }

    /// Runs the legs of a segment at `home` with the chunks between them. On an error all work in
    /// flight is dropped and waited for.
    pub(super) fn run(
        &mut self,
        home: DeviceIndex,
        legs: &[Leg],
        step: &mut Stepping<'_>,
    ) -> Result<()> {
        let ran = self.run_legs(home, legs, step);
        if ran.is_err() {
            // The runs were dropped, so these waits end.
            self.sides.iter_mut().flat_map(|side| &mut side.fills).for_each(Fill::settle);
        }
        ran
    }

    fn run_legs(&mut self, home: DeviceIndex, legs: &[Leg], step: &mut Stepping<'_>) -> Result<()> {
        let mut flights = VecDeque::new();
        let device = self.device;
        let Stream { layers, sides, next, columns, padded, size, counts_all, scored, .. } = self;
        for leg in legs {
            let part = Part {
                device: home,
                program: &leg.program,
                handed: &leg.handed,
                works: &leg.works,
                n: step.n,
                rung: step.rung,
            };
            let Stepping { lanes, layers: all, sizes, buffers, interrupt, .. } = step;
            let run = part.answered(lanes, all, sizes, buffers, interrupt)?;
            flights.push_back(Flight { device: home, run, works: &leg.works, side: None });
            let Some(at) = leg.then.and_then(|layer| layers[layer].as_ref()) else { continue };
            if at.afar {
                land(&mut flights, usize::MAX, step.buffers)?;
                step.bring_input(home, device)?;
            }
            for (number, piece) in at.pieces.iter().enumerate() {
                if step.interrupt.load(Ordering::Relaxed) {
                    return Err(Error::Interrupted);
                }
                let used = std::mem::replace(next, 1 - *next);
                let side = &mut sides[used];
                let neurons = &at.absent[piece.clone()];
                side.fill(at, neurons, (columns, *size), step, device)?;
                *padded += if *counts_all { size.n - neurons.len() } else { 0 };
                *scored += if at.from.is_scored() { neurons.len() } else { 0 };
                // Two chunks are in flight: the program that reads these slots must end before
                // they are filled again.
                if let Some(last) = flights.iter().rposition(|flight| flight.side == Some(used)) {
                    land(&mut flights, last + 1, step.buffers)?;
                }
                let run = side.start((at, number), step, device)?;
                flights.push_back(Flight { device, run, works: &at.works, side: Some(used) });
            }
            if at.afar {
                land(&mut flights, usize::MAX, step.buffers)?;
                step.bring_output(device, home, at.joins)?;
            }
        }
        land(&mut flights, usize::MAX, step.buffers)?;
        sides.iter_mut().flat_map(|side| &mut side.fills).try_for_each(Fill::land)?;
        match step.interrupt.load(Ordering::Relaxed) {
            true => Err(Error::Interrupted),
            false => Ok(()),
        }
    }
}

/// Waits for the first `n` submissions in flight.
fn land(flights: &mut VecDeque<Flight<'_>>, n: usize, buffers: &mut Buffers) -> Result<()> {
    let n = n.min(flights.len());
    for Flight { device, run, works, .. } in flights.drain(..n) {
        buffers.timeline.wait(device, works, run)?;
    }
    Ok(())
}

impl Side {
    /// Packs some neurons of a layer into the staging memory of the slots, whose previous upload
    /// has ended.
    fn fill(
        &mut self,
        at: &Streamed,
        neurons: &[u32],
        (columns, size): (&mut Columns, PieceSize),
        step: &mut Stepping<'_>,
        device: DeviceIndex,
    ) -> Result<()> {
        let Side { slots, fills, .. } = self;
        let (places, on) = (&slots.places[at.kind], lane(step.lanes, device));
        places.all().iter().try_for_each(|&place| fills[place].land())?;
        let since = step.buffers.timeline.now();
        at.from.fill(&on.device, neurons, (columns, size), places, fills)?;
        step.buffers.timeline.host(Work::Copy, since);
        Ok(())
    }

    /// Uploads it to the slots and starts the program over them.
    fn start(
        &mut self,
        (at, number): (&Streamed, usize),
        step: &mut Stepping<'_>,
        device: DeviceIndex,
    ) -> Result<Run> {
        let queue = &mut step.lanes[device].as_mut().expect("a used device has a lane").queue;
        let Side { slots, programs, fills } = self;
        for &place in slots.places[at.kind].all() {
            fills[place].launch(queue, &slots.tensors[place])?;
        }
        let ladder = &programs[at.way(number)][usize::from(!at.adds && number == 0)];
        let program = ladder.at_least(step.sizes.rungs[step.rung]).expect("recorded for the rung");
        step.buffers.timeline.replay(queue, program)
    }
}
