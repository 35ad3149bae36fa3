//! Prompts bring the CPU's neurons to the device: from some number of tokens on, a home computes a split layer's absent
//! neurons itself, in pieces that come through two sets of slots, one after the other.
//!
//! A hand-off sends x to where the weights are, which suits few tokens: their weights are read once and multiplied once.
//! With hundreds of tokens the CPU multiplies for much longer than it takes to bring the weights to the device. So the
//! programs for many tokens are cut at split layers into legs, and behind a leg the layer's pieces run: the host packs one
//! into staging while the device computes the one before. One queue keeps them in order, so nothing waits for anything
//! but for a set of slots that is still in use. A layer that is on the CPU sends x along and gets y back.

mod fill;
mod make;
mod slots;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use hal::op::MOST_COUNTED;
use hal::{Bytes, Program, Run};

use crate::model::Model;
use crate::placement::{CPU, DeviceIndex, Forecast, LayerPlacement, Neurons, Placement};

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

/// A part of a segment whose programs are cut at layers that stream.
#[derive(Debug)]
pub(super) struct Leg {
    pub(super) program: Program,
    /// Layer behind each mailbox of the program, in order.
    pub(super) handed: Vec<usize>,
    /// What the parts of the program are.
    pub(super) works: Vec<Work>,
    /// The layer whose pieces run behind it.
    pub(super) then: Option<usize>,
}

/// What lets neurons come to one device in pieces: the absent ones of layers at home there, and all of layers on the CPU.
#[derive(Debug)]
pub(super) struct Stream {
    /// The least rung of the ladder that is cut into legs.
    pub(super) from: usize,
    device: DeviceIndex,
    size: PieceSize,
    /// Layers in order; `None` for those that do not stream.
    layers: Vec<Option<Streamed>>,
    /// What predictors choose among the neurons of a piece through, one piece after the other.
    _lists: Option<PieceLists>,
    /// Two sets of slots, in turn.
    sides: [Side; 2],
    next: usize,
    /// Columns of a down matrix on their way into a pack.
    columns: Columns,
    /// Slots of the step so far that held no neuron, where every slot is counted.
    padded: usize,
    counts_all: bool,
    /// Neurons that came to predictors in the step so far.
    scored: usize,
}

/// A layer whose neurons stream: those that are not at home or, where that is the CPU, all.
#[derive(Debug)]
struct Streamed {
    /// Which of the shares of a side is of its shape.
    kind: usize,
    /// Which of a side's programs runs over each piece; the only one over all.
    ways: Vec<usize>,
    /// Neurons that are not at home, ascending, and which of them each piece has. Whole experts have the order of their
    /// numbers, whatever these mean by now.
    absent: Vec<u32>,
    pieces: Vec<Range<usize>>,
    /// The layer is on the CPU, and all of its neurons come: x is brought here, and y back.
    afar: bool,
    /// Whether the leg leaves something in the y that it is brought back to.
    joins: bool,
    /// Whether the leg leaves something in y that the first piece is added to.
    adds: bool,
    from: Sources,
    works: [Work; 1],
}

/// One set of slots.
#[derive(Debug)]
struct Side {
    slots: Slots,
    /// By kind and way: programs that add to y, and those that write it.
    programs: Vec<[Ladder; 2]>,
    /// Of each slot's tensor, the host memory that it is filled from.
    fills: Vec<Fill>,
}

/// Work that was given to the queue and not waited for.
struct Flight<'a> {
    device: DeviceIndex,
    run: Run,
    works: &'a [Work],
    /// The set of slots that it reads.
    side: Option<usize>,
}

/// What a streamed step works with besides its weights.
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
    /// Whether the neurons of layer `index` can stream, wherever they are: a predictor's lists over experts stay with the
    /// hand-off.
    pub(super) fn streams(&self, index: usize) -> bool {
        let listed = self.mode.chosen(self.model, self.options, index).is_some();
        !listed || self.model.layers[index].ffn.n_expert.is_none()
    }

    /// Whether the neurons of layer `index` can go to a device if the layer itself is on the CPU: what a predictor begins
    /// with and what down adds would have to be there.
    pub(super) fn streams_afar(&self, index: usize) -> bool {
        let listed = self.mode.chosen(self.model, self.options, index).is_some();
        self.streams(index) && !listed && self.model.layers[index].ffn.down.bias.is_none()
    }

    /// The least rung of the ladder from which on steps of `from` tokens and more stream; `None` if there is none.
    pub(super) fn first_streamed(&self, from: usize) -> Option<usize> {
        self.streamed_rungs().into_iter().find(|&n| n >= from)
    }

    /// The rungs of the ladder that may stream.
    pub(super) fn streamed_rungs(&self) -> Vec<usize> {
        let ladder = self.options.ladder();
        ladder.into_iter().filter(|&n| n > MOST_COUNTED).collect()
    }

    /// From how many tokens on absent neurons stream to each device, if they do: as it is forced, or as was planned. Says
    /// why not where memory is short.
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
        // Pieces are packed out of the file again and again.
        let absent = |(index, placed): (usize, &LayerPlacement)| {
            let ffn = &self.model.layers[index].ffn;
            let bytes = ffn.matrices().map(|(_, rows)| rows.desc().bytes().unwrap_or_default().0);
            let n_ff = self.model.hyper.n_ff;
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
                told.push(format!("prompts leave the CPU's neurons on the CPU: to stream them, {host} of the model have to be in the host's memory, and {free} are free"));
                vec![None; n_devices]
            }
        }
    }
}

impl Streamed {
    /// Takes the neurons that are not at home, as they are placed now.
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
        // Experts change places by number, and programs know numbers; neurons come in order.
        let n_each = self.from.n_each();
        let expert = |neuron: u32| neuron as usize / n_each;
        let runs = self.absent.chunk_by_mut(|&a, &b| expert(a) == expert(b));
        runs.for_each(<[u32]>::sort_unstable);
        self.pieces = size.pieces(&self.absent, self.from.block(), n_each);
    }

    /// Which of a side's programs runs over a piece.
    fn way(&self, piece: usize) -> usize {
        match self.ways[..] {
            [one] => one,
            _ => self.ways[piece],
        }
    }
}

impl Stream {
    /// The device that neurons come to.
    pub(super) fn device(&self) -> DeviceIndex {
        self.device
    }

    /// Whether the absent neurons of a layer come here.
    pub(super) fn has(&self, layer: usize) -> bool {
        self.layers.get(layer).is_some_and(Option::is_some)
    }

    /// Whether all neurons of a layer that is on the CPU do.
    pub(super) fn is_afar(&self, layer: usize) -> bool {
        self.layers.get(layer).is_some_and(|at| at.as_ref().is_some_and(|at| at.afar))
    }

    /// A layer's neurons live elsewhere from now on.
    pub(super) fn place(&mut self, layer: usize, placed: &LayerPlacement, model: &Model) {
        if let Some(Some(at)) = self.layers.get_mut(layer) {
            at.place(placed, model.hyper.n_ff, self.size);
        }
    }

    /// Begins a step.
    pub(super) fn begin(&mut self) {
        (self.padded, self.scored) = (0, 0);
    }

    /// Neurons that the step brought to predictors; more of them are wanted by some token than not.
    pub(super) fn scored(&self) -> usize {
        self.scored
    }

    /// Slots that the step counted although they held nothing.
    pub(super) fn padded(&self) -> usize {
        self.padded
    }

    pub(super) fn ladders(&self) -> impl Iterator<Item = &Ladder> {
        self.sides[0].programs.iter().flatten()
    }

    /// Runs the legs of a segment at `home` with the pieces between them. On any error what is under way is given up, and nothing
    /// is in flight any more.
    pub(super) fn run(
        &mut self,
        home: DeviceIndex,
        legs: &[Leg],
        step: &mut Stepping<'_>,
    ) -> Result<()> {
        let ran = self.run_legs(home, legs, step);
        if ran.is_err() {
            // The runs are gone by now, so these waits end.
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
                // Two pieces are in flight: what reads these slots is to be over before they are filled again.
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

/// Waits for the first `n` of what is under way, or for all.
fn land(flights: &mut VecDeque<Flight<'_>>, n: usize, buffers: &mut Buffers) -> Result<()> {
    let n = n.min(flights.len());
    for Flight { device, run, works, .. } in flights.drain(..n) {
        buffers.timeline.wait(device, works, run)?;
    }
    Ok(())
}

impl Side {
    /// Packs some neurons of a layer into the host memory of the slots, which what was there before has left.
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

    /// Sends it to the slots and starts the program over them.
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
