//! Sets up streaming at load: slots, the programs over them, and the neurons of each streamed
//! layer.

use std::ops::Range;

use hal::{Operand, Tensor};

use placement::{CPU, DeviceIndex, LayerPlacement, Placement};

use super::fill::{Columns, SlotStaging, Sources};
use super::slots::Slots;
use super::{SlotSet, Stream, StreamedLayer};
use crate::error::{Error, Result};
use crate::load::lane::Lane;
use crate::load::lists::ChunkLists;
use crate::load::{Layer, LoadedModel};
use crate::record::{BucketPrograms, Recording, StreamedNeurons};
use crate::size::Sizing;
use crate::size::stream::{ChunkShape, ChunkSize};
use crate::timeline::Work;

/// The rows that a program over a chunk computes: the only difference between programs over the
/// same slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkRows {
    /// All neurons of a chunk are computed.
    All,
    /// All rows, for the tokens that use the expert of this number.
    Expert(usize),
    /// The rows that the predictor of this layer selects.
    Listed(usize),
}

/// Sets up streaming to each device, for steps of at least `from[device]` tokens. Nothing is
/// streamed to a device without enough memory, which is reported in `slow`.
///
/// # Errors
/// Device errors except for a lack of memory.
pub(crate) fn make_streams(
    sizing: &Sizing<'_>,
    recording: &Recording<'_>,
    loaded: &LoadedModel,
    placement: &Placement,
    from: &[Option<usize>],
    slow: &mut Vec<String>,
) -> Result<Vec<Option<Stream>>> {
    let setup = StreamSetup { sizing, recording, loaded, placement };
    let mut streams = Vec::new();
    // Layers on the CPU are streamed to the first device with streaming.
    let from_device = |device: DeviceIndex| from[device].filter(|_| device != CPU);
    let first = (0..from.len()).find(|&device| from_device(device).is_some());
    for device in 0..from.len() {
        let made = match from_device(device) {
            Some(from) => setup.stream(device, first == Some(device), from),
            None => Ok(None),
        };
        streams.push(match made {
            Err(Error::Device(error @ hal::Error::OutOfMemory { .. })) => {
                slow.push(format!("weights on the CPU are not streamed during prefill: {error}"));
                None
            }
            made => made?,
        });
    }
    Ok(streams)
}

struct StreamSetup<'a> {
    sizing: &'a Sizing<'a>,
    recording: &'a Recording<'a>,
    loaded: &'a LoadedModel,
    placement: &'a Placement,
}

/// The distinct shapes of chunks found so far, and the distinct programs over each of them, with
/// the index of the shape.
#[derive(Default)]
struct DistinctChunks {
    shapes: Vec<ChunkShape>,
    programs: Vec<(usize, ChunkRows)>,
}

impl StreamSetup<'_> {
    /// The stream to `device` for layers whose home it is and, if `takes_cpu` is set, for layers on
    /// the CPU, in steps of at least `from` tokens. `None` if no layer can be streamed, or if no
    /// step has `from` tokens.
    ///
    /// # Errors
    /// Device errors, such as too little memory for the slots.
    fn stream(&self, device: DeviceIndex, takes_cpu: bool, from: usize) -> Result<Option<Stream>> {
        let StreamSetup { sizing, recording, loaded, placement } = *self;
        let (Some(from), Some(lane)) = (sizing.first_streamed(from), &loaded.lanes[device]) else {
            return Ok(None);
        };
        let size = sizing.chunk_size();
        let mut distinct = DistinctChunks::default();
        let mut streamed = Vec::new();
        for (index, placed) in placement.layers.iter().enumerate() {
            let homed = placed.home == device || takes_cpu && placed.home == CPU;
            streamed.push(if homed && sizing.can_stream(index) {
                self.streamed_layer(lane, index, placed, size, &mut distinct)
            } else {
                None
            });
        }
        if distinct.shapes.is_empty() {
            return Ok(None);
        }
        let buckets = recording.buckets_from(from);
        let lists = if sizing.mode.predicts() {
            Some(ChunkLists::new(&lane.device, size.n, buckets)?)
        } else {
            None
        };
        let cpu = sizing.devices[CPU].ledger();
        let columns = Columns::new(cpu, streamed.iter().flatten().map(|at| &at.from))?;
        let overwrites = !streamed.iter().flatten().all(|at| at.adds);
        let layers = &loaded.layers[..];
        let builder =
            SlotSetBuilder { recording, lane, from, layers, lists: lists.as_ref(), overwrites };
        let slot_sets = [builder.slot_set(&distinct)?, builder.slot_set(&distinct)?];
        Ok(Some(Stream {
            device,
            from,
            size,
            layers: streamed,
            _lists: lists,
            slot_sets,
            next: 0,
            columns,
            padded: 0,
            counts_all: !sizing.mode.is_sparse(),
            scored: 0,
        }))
    }

    /// The stream of one layer. Adds its shape and programs to `distinct` if they are new. `None`
    /// if the layer is not streamed: all neurons of a layer of `device` are resident, some are on a
    /// third device, the CPU adds `bias_down`, or [`Sizing::can_stream_cpu_layer`] excludes a layer
    /// on the CPU.
    fn streamed_layer(
        &self,
        lane: &Lane,
        index: usize,
        placed: &LayerPlacement,
        size: ChunkSize,
        distinct: &mut DistinctChunks,
    ) -> Option<StreamedLayer> {
        let StreamSetup { sizing, loaded, .. } = self;
        let (weights, on_cpu) = (&sizing.model.layers[index], placed.home == CPU);
        let layer: &Layer = &loaded.layers[index];
        let ffn = weights.ffn.as_ref()?;
        match &layer.remotes[..] {
            [] if on_cpu && sizing.can_stream_cpu_layer(index) => {}
            [remote] if !on_cpu && remote.device == CPU => {
                if ffn.down.bias.is_some() && remote.ffn.bias_down.is_some() {
                    return None;
                }
            }
            _ => return None,
        }
        let shape = index_of(&mut distinct.shapes, sizing.chunk_shape(&lane.device, index, size));
        let parallel = weights.frame.parallel;
        let mut at = StreamedLayer {
            shape,
            programs: Vec::new(),
            absent: Vec::new(),
            chunks: Vec::new(),
            neurons: if on_cpu { StreamedNeurons::Whole } else { StreamedNeurons::Absent },
            joins: parallel || weights.frame.adds_shared(),
            adds: !on_cpu && (parallel || layer.own.is_some() || weights.frame.adds_shared()),
            from: Sources::new(sizing, &lane.device, index, size),
            works: [Work::Neurons(index)],
        };
        at.place(placed, ffn.n_ff(), size);
        let rows = |neurons: &Range<usize>| match (&ffn.experts, &layer.predictor) {
            (Some(_), _) => {
                ChunkRows::Expert(at.absent[neurons.start] as usize / at.from.n_per_expert())
            }
            (None, Some(_)) => ChunkRows::Listed(index),
            (None, None) => ChunkRows::All,
        };
        let all: Vec<ChunkRows> = at.chunks.iter().map(rows).collect();
        let programs = all.into_iter().map(|rows| index_of(&mut distinct.programs, (shape, rows)));
        at.programs = programs.collect();
        if ffn.experts.is_none() {
            at.programs.dedup();
        }
        Some(at)
    }
}

/// Index of `entry` in `known`; appends it if it is new.
fn index_of<T: PartialEq>(known: &mut Vec<T>, entry: T) -> usize {
    let at = known.iter().position(|other| *other == entry).unwrap_or(known.len());
    if at == known.len() {
        known.push(entry);
    }
    at
}

struct SlotSetBuilder<'a> {
    recording: &'a Recording<'a>,
    lane: &'a Lane,
    /// Minimum number of tokens of a streamed step.
    from: usize,
    layers: &'a [Layer],
    lists: Option<&'a ChunkLists>,
    /// Whether some programs overwrite y.
    overwrites: bool,
}

impl SlotSetBuilder<'_> {
    fn slot_set(&self, distinct: &DistinctChunks) -> Result<SlotSet> {
        let (lane, shapes) = (self.lane, &distinct.shapes);
        let slots = Slots::new(&lane.device, shapes)?;
        let mut programs = Vec::new();
        for &(shape, rows) in &distinct.programs {
            let mut share = slots.shares[shape].clone();
            let mut predictor = None;
            match rows {
                ChunkRows::All => {}
                ChunkRows::Expert(expert) => {
                    share.experts = shapes[shape].expert_ranges(expert, share.up.desc().n_rows);
                }
                ChunkRows::Listed(layer) => {
                    let lists = self.lists.zip(self.layers[layer].predictor.as_ref());
                    predictor = lists.map(|(lists, of)| slots.predictor(shape, of, lists));
                }
            }
            let listed = predictor.as_ref().zip(self.lists);
            let record = |adds| self.recording.chunk(lane, self.from, &share, listed, adds);
            let writes = if self.overwrites { record(false)? } else { BucketPrograms::default() };
            programs.push([record(true)?, writes]);
        }
        let tensors = slots.tensors.iter().zip(&slots.vectors);
        let fill = |(tensor, is_vector): (&Tensor, &bool)| {
            SlotStaging::new(&lane.device, tensor, !is_vector)
        };
        let fills = tensors.map(fill).collect::<hal::Result<_>>()?;
        Ok(SlotSet { slots, programs, fills })
    }
}
