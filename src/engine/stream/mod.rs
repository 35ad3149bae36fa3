//! Streams weights to a device during prefill. In large steps, the home device computes the absent
//! neurons of a split layer itself. Their weights are uploaded in chunks, into two sets of slots in
//! turn.
//!
//! A hand-off sends x to the device with the weights, which suits decode: each weight is read and
//! multiplied once. With hundreds of tokens, the CPU takes much longer to multiply with the weights
//! than the host takes to upload them. So the prefill programs are cut at streamed layers into
//! legs, and after a leg the layer's chunks run: the host packs a chunk into staging while the
//! device computes the previous one. A single queue keeps uploads and programs in order, so the
//! host waits only for a set of slots that is still in use. For a layer on the CPU, x is uploaded
//! too and y is downloaded.

mod fill;
mod setup;
mod slots;

use std::collections::VecDeque;
use std::ops::Range;

use hal::Run;

use model::Model;
use placement::{DeviceIndex, LayerPlacement, Neurons};

use crate::error::Result;
use crate::load::lists::ChunkLists;
use crate::load::{lane, lane_mut};
use crate::record::{BucketPrograms, Leg, StreamedLayers, StreamedNeurons};
use crate::replay::arena::StepArena;
use crate::replay::{StepProgram, StepState};
use crate::size::stream::ChunkSize;
use crate::timeline::Work;
use fill::{Columns, SlotStaging, Sources};
use slots::Slots;

pub(crate) use setup::make_streams;

/// Streaming to one device: the absent neurons of layers whose home it is, and all neurons of
/// layers on the CPU.
#[derive(Debug)]
pub(crate) struct Stream {
    device: DeviceIndex,
    /// The smallest recorded token count whose segments are cut into legs.
    from: usize,
    size: ChunkSize,
    /// Layers in order; `None` for a layer that is not streamed.
    layers: Vec<Option<StreamedLayer>>,
    /// Lists of the neurons that predictors select in a chunk. All chunks use the same lists; this
    /// field keeps them allocated.
    _lists: Option<ChunkLists>,
    /// Two sets of slots, used in turn.
    slot_sets: [SlotSet; 2],
    next: usize,
    /// Buffer for columns of a down matrix on their way into a pack.
    columns: Columns,
    /// Number of empty slots in the chunks of the current step, if programs count them as active.
    padded: usize,
    counts_all: bool,
    /// Number of neurons that predictors scored in the current step.
    scored: usize,
}

/// A streamed layer: its absent neurons or, if its home is the CPU, all of them.
#[derive(Debug)]
struct StreamedLayer {
    /// Index of the shape of its chunks.
    shape: usize,
    /// Index of the program for each chunk; a single entry is for all chunks.
    programs: Vec<usize>,
    /// Absent neurons, ascending within each expert. Experts keep the order in which programs were
    /// recorded for them, even after an exchange.
    absent: Vec<u32>,
    /// The range of each chunk in `absent`.
    chunks: Vec<Range<usize>>,
    neurons: StreamedNeurons,
    /// Whether y is added to existing output when it is copied back to the CPU.
    joins: bool,
    /// Whether the leg has already written y, so that the first chunk must add to it.
    adds: bool,
    from: Sources,
    works: [Work; 1],
}

/// One of the two sets of slots.
#[derive(Debug)]
struct SlotSet {
    slots: Slots,
    /// For each distinct program, a pair: the first adds to y, the second overwrites y.
    programs: Vec<[BucketPrograms; 2]>,
    /// For each tensor of the slots, its staging memory.
    fills: Vec<SlotStaging>,
}

/// Submitted work that has not been waited for.
struct RunInFlight<'a> {
    device: DeviceIndex,
    run: Run,
    works: &'a [Work],
    /// The set of slots that the run reads; `None` for a leg.
    slot_set: Option<usize>,
}

impl StreamedLayer {
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
        // Sorts the neurons of each expert. The order of the experts stays: programs refer to
        // experts by number.
        let n_per_expert = self.from.n_per_expert();
        let expert = |neuron: u32| neuron as usize / n_per_expert;
        let runs = self.absent.chunk_by_mut(|&a, &b| expert(a) == expert(b));
        runs.for_each(<[u32]>::sort_unstable);
        self.chunks = size.chunks(&self.absent, self.from.block(), n_per_expert);
    }

    fn program(&self, chunk: usize) -> usize {
        match self.programs[..] {
            [one] => one,
            _ => self.programs[chunk],
        }
    }
}

impl Stream {
    /// The layers in which segments are cut into legs.
    pub(crate) fn streamed_layers(&self) -> StreamedLayers {
        let layers = self.layers.iter().map(|at| at.as_ref().map(|at| at.neurons)).collect();
        StreamedLayers { device: self.device, from: self.from, layers }
    }

    pub(crate) fn place(&mut self, layer: usize, placed: &LayerPlacement, model: &Model) {
        if let Some(Some(at)) = self.layers.get_mut(layer) {
            at.place(placed, model.layers[layer].n_ff(), self.size);
        }
    }

    pub(crate) fn begin(&mut self) {
        (self.padded, self.scored) = (0, 0);
    }

    /// Number of neurons that predictors scored in the step. They count as computed gate rows.
    pub(crate) fn scored(&self) -> usize {
        self.scored
    }

    /// Number of empty slots that the programs of the step counted as active.
    pub(crate) fn padded(&self) -> usize {
        self.padded
    }

    pub(crate) fn bucket_programs(&self) -> impl Iterator<Item = &BucketPrograms> {
        self.slot_sets[0].programs.iter().flatten()
    }

    /// Runs the legs of a segment at `home` with the chunks between them. On an error all work in
    /// flight is dropped and waited for.
    pub(crate) fn run(
        &mut self,
        home: DeviceIndex,
        legs: &[Leg],
        step: &mut StepState<'_>,
    ) -> Result<()> {
        let ran = self.run_legs(home, legs, step);
        if ran.is_err() {
            // The runs were dropped, so these waits end soon.
            self.slot_sets
                .iter_mut()
                .flat_map(|slot_set| &mut slot_set.fills)
                .for_each(SlotStaging::wait_ignoring_errors);
        }
        ran
    }

    fn run_legs(
        &mut self,
        home: DeviceIndex,
        legs: &[Leg],
        step: &mut StepState<'_>,
    ) -> Result<()> {
        let mut flights = VecDeque::new();
        let device = self.device;
        let Stream { layers, slot_sets, next, columns, padded, size, counts_all, scored, .. } =
            self;
        for leg in legs {
            let Leg { program, handed, works, then } = leg;
            let run =
                StepProgram { device: home, program, handed, works }.replay_and_answer(step)?;
            flights.push_back(RunInFlight { device: home, run, works, slot_set: None });
            let Some(at) = then.and_then(|layer| layers[layer].as_ref()) else { continue };
            let whole = at.neurons == StreamedNeurons::Whole;
            if whole {
                wait_for(&mut flights, usize::MAX, step.arena)?;
                step.copy_block_input(home, device)?;
            }
            for (number, chunk) in at.chunks.iter().enumerate() {
                step.check_interrupt()?;
                let used = std::mem::replace(next, 1 - *next);
                let slot_set = &mut slot_sets[used];
                let neurons = &at.absent[chunk.clone()];
                slot_set.fill(at, neurons, columns, step, device)?;
                *padded += if *counts_all { size.n - neurons.len() } else { 0 };
                *scored += if at.from.is_scored() { neurons.len() } else { 0 };
                // The program that reads these slots must end before they are filled again.
                if let Some(last) = flights.iter().rposition(|flight| flight.slot_set == Some(used))
                {
                    wait_for(&mut flights, last + 1, step.arena)?;
                }
                let run = slot_set.start(at, number, step, device)?;
                flights.push_back(RunInFlight {
                    device,
                    run,
                    works: &at.works,
                    slot_set: Some(used),
                });
            }
            if whole {
                wait_for(&mut flights, usize::MAX, step.arena)?;
                step.copy_block_output(device, home, at.joins)?;
            }
        }
        wait_for(&mut flights, usize::MAX, step.arena)?;
        slot_sets
            .iter_mut()
            .flat_map(|slot_set| &mut slot_set.fills)
            .try_for_each(SlotStaging::wait)?;
        step.check_interrupt()
    }
}

/// Waits for the first `n` runs in flight, oldest first.
fn wait_for(
    flights: &mut VecDeque<RunInFlight<'_>>,
    n: usize,
    arena: &mut StepArena,
) -> Result<()> {
    let n = n.min(flights.len());
    for RunInFlight { device, run, works, .. } in flights.drain(..n) {
        arena.timeline.wait(device, works, run)?;
    }
    Ok(())
}

impl SlotSet {
    /// Packs some neurons of a layer into the staging memory of the slots, after their previous
    /// upload has ended.
    fn fill(
        &mut self,
        at: &StreamedLayer,
        neurons: &[u32],
        columns: &mut Columns,
        step: &mut StepState<'_>,
        device: DeviceIndex,
    ) -> Result<()> {
        let SlotSet { slots, fills, .. } = self;
        let (indices, on) = (&slots.indices[at.shape], lane(step.lanes, device));
        indices.as_slice().iter().try_for_each(|&place| fills[place].wait())?;
        let since = step.arena.timeline.now();
        at.from.fill(&on.device, neurons, columns, indices, fills)?;
        step.arena.timeline.record_host(Work::Copy, since);
        Ok(())
    }

    /// Uploads the staging memory to the slots and starts the program over them.
    fn start(
        &mut self,
        at: &StreamedLayer,
        number: usize,
        step: &mut StepState<'_>,
        device: DeviceIndex,
    ) -> Result<Run> {
        let queue = &mut lane_mut(step.lanes, device).queue;
        let SlotSet { slots, programs, fills } = self;
        for &place in slots.indices[at.shape].as_slice() {
            fills[place].upload(queue, &slots.tensors[place])?;
        }
        let programs_by_size = &programs[at.program(number)][usize::from(!at.adds && number == 0)];
        let program = programs_by_size
            .at_least(step.arena.sizes.buckets[step.bucket])
            .expect("streamed steps have a program");
        step.arena.timeline.replay(queue, program, step.interrupt)
    }
}
