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

use hal::Run;

use model::Model;
use placement::{DeviceIndex, LayerPlacement, Neurons};

use crate::error::Result;
use crate::load::lists::ChunkLists;
use crate::load::{lane, lane_mut};
use crate::record::{Ladder, Leg, StreamedLayers, StreamedNeurons};
use crate::replay::arena::StepArena;
use crate::replay::{StepProgram, Stepping};
use crate::size::stream::ChunkSize;
use crate::timeline::Work;
use fill::{Columns, Fill, Sources};
use slots::Slots;

pub(crate) use make::make_streams;

/// Streaming to one device: the absent neurons of layers whose home it is, and all neurons of
/// layers on the CPU.
#[derive(Debug)]
pub(crate) struct Stream {
    device: DeviceIndex,
    /// The smallest rung of the ladder that is cut into legs.
    from: usize,
    size: ChunkSize,
    /// Layers in order; `None` for those that are not streamed.
    layers: Vec<Option<Streamed>>,
    /// Lists for the predictors' selection within a chunk, reused by every chunk.
    _lists: Option<ChunkLists>,
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
    shape: usize,
    /// Index of the program for each chunk; a single entry holds for all chunks.
    programs: Vec<usize>,
    /// Absent neurons, ascending, and the range of each chunk. Whole experts are ordered by
    /// number, whatever expert a number means now.
    absent: Vec<u32>,
    pieces: Vec<Range<usize>>,
    neurons: StreamedNeurons,
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
    /// For each distinct shape and program, a pair: the first adds to y, the second overwrites it.
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

impl Streamed {
    /// Updates the absent neurons to the current placement.
    fn place(&mut self, placed: &LayerPlacement, n_ff: usize, size: ChunkSize) {
        self.absent.clear();
        if self.neurons == StreamedNeurons::Whole {
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
    fn program(&self, piece: usize) -> usize {
        match self.programs[..] {
            [one] => one,
            _ => self.programs[piece],
        }
    }
}

impl Stream {
    /// Where the segments of its layers are cut.
    pub(crate) fn streamed_layers(&self) -> StreamedLayers {
        let layers = self.layers.iter().map(|at| at.as_ref().map(|at| at.neurons)).collect();
        StreamedLayers { device: self.device, from: self.from, layers }
    }

    /// Updates the placement of a layer.
    pub(crate) fn place(&mut self, layer: usize, placed: &LayerPlacement, model: &Model) {
        if let Some(Some(at)) = self.layers.get_mut(layer) {
            at.place(placed, model.layers[layer].n_ff(), self.size);
        }
    }

    /// Starts a step.
    pub(crate) fn begin(&mut self) {
        (self.padded, self.scored) = (0, 0);
    }

    /// Number of neurons that predictors scored in the step; most of them are active for some
    /// token.
    pub(crate) fn scored(&self) -> usize {
        self.scored
    }

    /// Number of empty slots that the step counted.
    pub(crate) fn padded(&self) -> usize {
        self.padded
    }

    pub(crate) fn ladders(&self) -> impl Iterator<Item = &Ladder> {
        self.sides[0].programs.iter().flatten()
    }

    /// Runs the legs of a segment at `home` with the chunks between them. On an error all work in
    /// flight is dropped and waited for.
    pub(crate) fn run(
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
            let Leg { program, handed, works, then } = leg;
            let run =
                StepProgram { device: home, program, handed, works }.replay_and_answer(step)?;
            flights.push_back(Flight { device: home, run, works, side: None });
            let Some(at) = then.and_then(|layer| layers[layer].as_ref()) else { continue };
            let whole = at.neurons == StreamedNeurons::Whole;
            if whole {
                land(&mut flights, usize::MAX, step.arena)?;
                step.bring_input(home, device)?;
            }
            for (number, piece) in at.pieces.iter().enumerate() {
                step.check_interrupt()?;
                let used = std::mem::replace(next, 1 - *next);
                let side = &mut sides[used];
                let neurons = &at.absent[piece.clone()];
                side.fill(at, neurons, columns, step, device)?;
                *padded += if *counts_all { size.n - neurons.len() } else { 0 };
                *scored += if at.from.is_scored() { neurons.len() } else { 0 };
                // Two chunks are in flight: the program that reads these slots must end before
                // they are filled again.
                if let Some(last) = flights.iter().rposition(|flight| flight.side == Some(used)) {
                    land(&mut flights, last + 1, step.arena)?;
                }
                let run = side.start(at, number, step, device)?;
                flights.push_back(Flight { device, run, works: &at.works, side: Some(used) });
            }
            if whole {
                land(&mut flights, usize::MAX, step.arena)?;
                step.bring_output(device, home, at.joins)?;
            }
        }
        land(&mut flights, usize::MAX, step.arena)?;
        sides.iter_mut().flat_map(|side| &mut side.fills).try_for_each(Fill::land)?;
        step.check_interrupt()
    }
}

/// Waits for the first `n` submissions in flight.
fn land(flights: &mut VecDeque<Flight<'_>>, n: usize, arena: &mut StepArena) -> Result<()> {
    let n = n.min(flights.len());
    for Flight { device, run, works, .. } in flights.drain(..n) {
        arena.timeline.wait(device, works, run)?;
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
        columns: &mut Columns,
        step: &mut Stepping<'_>,
        device: DeviceIndex,
    ) -> Result<()> {
        let Side { slots, fills, .. } = self;
        let (places, on) = (&slots.places[at.shape], lane(step.lanes, device));
        places.all().iter().try_for_each(|&place| fills[place].land())?;
        let since = step.arena.timeline.now();
        at.from.fill(&on.device, neurons, columns, places, fills)?;
        step.arena.timeline.host(Work::Copy, since);
        Ok(())
    }

    /// Uploads it to the slots and starts the program over them.
    fn start(
        &mut self,
        at: &Streamed,
        number: usize,
        step: &mut Stepping<'_>,
        device: DeviceIndex,
    ) -> Result<Run> {
        let queue = &mut lane_mut(step.lanes, device).queue;
        let Side { slots, programs, fills } = self;
        for &place in slots.places[at.shape].all() {
            fills[place].launch(queue, &slots.tensors[place])?;
        }
        let ladder = &programs[at.program(number)][usize::from(!at.adds && number == 0)];
        let program =
            ladder.at_least(step.arena.sizes.rungs[step.rung]).expect("recorded for the rung");
        step.arena.timeline.replay(queue, program)
    }
}
