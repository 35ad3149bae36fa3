//! Sets up streaming at load: slots, the programs over them, and the streamed neurons of each
//! layer.

use std::ops::Range;

use hal::{Operand, Tensor};

use placement::{CPU, DeviceIndex, LayerPlacement, Placement};

use super::fill::{Columns, Fill, Sources};
use super::slots::Slots;
use super::{Side, Stream, Streamed};
use crate::error::{Error, Result};
use crate::load::lane::Lane;
use crate::load::lists::ChunkLists;
use crate::load::{Layer, Loaded};
use crate::record::{Ladder, Recording, StreamedNeurons};
use crate::size::Sizing;
use crate::size::stream::{ChunkShape, ChunkSize};
use crate::timeline::Work;

/// The differences between programs over slots of the same shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkRows {
    /// All neurons of a chunk are computed.
    All,
    /// For the tokens that use the expert of this number.
    Expert(usize),
    /// For the neurons that the predictor of this layer selects.
    Listed(usize),
}

/// Sets up streaming to each device from the numbers of tokens `from`. A device without enough
/// memory is reported in `slow` and does not stream.
///
/// # Errors
/// A lost device, a driver fault.
pub(crate) fn make_streams(
    sizing: &Sizing<'_>,
    recording: &Recording<'_>,
    loaded: &Loaded,
    placement: &Placement,
    from: &[Option<usize>],
    slow: &mut Vec<String>,
) -> Result<Vec<Option<Stream>>> {
    let setup = Setup { sizing, recording, loaded, placement };
    let mut streams = Vec::new();
    // Layers on the CPU are streamed to the first device with streaming.
    let there = |device: DeviceIndex| from[device].filter(|_| device != CPU);
    let first = (0..from.len()).find(|&device| there(device).is_some());
    for device in 0..from.len() {
        let made = match there(device) {
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

/// A loaded model whose streaming is set up.
struct Setup<'a> {
    sizing: &'a Sizing<'a>,
    recording: &'a Recording<'a>,
    loaded: &'a Loaded,
    placement: &'a Placement,
}

/// The distinct shapes of chunks and the distinct programs over each of them (index of the shape),
/// as far as they are known.
#[derive(Default)]
struct Distinct {
    shapes: Vec<ChunkShape>,
    programs: Vec<(usize, ChunkRows)>,
}

impl Setup<'_> {
    /// Streaming of the layers with home `device`, and of layers on the CPU if `takes_cpu`, from
    /// steps of `from` tokens on. `None` if no layer can be streamed.
    ///
    /// # Errors
    /// Device errors: not enough memory for the slots.
    fn stream(&self, device: DeviceIndex, takes_cpu: bool, from: usize) -> Result<Option<Stream>> {
        let Setup { sizing, recording, loaded, placement } = *self;
        let (Some(from), Some(lane)) = (sizing.first_streamed(from), &loaded.lanes[device]) else {
            return Ok(None);
        };
        let size = sizing.chunk_size();
        let mut distinct = Distinct::default();
        let mut streamed = Vec::new();
        for (index, placed) in placement.layers.iter().enumerate() {
            let homed = placed.home == device || takes_cpu && placed.home == CPU;
            streamed.push(if homed && sizing.streams(index) {
                self.streamed(lane, index, placed, size, &mut distinct)
            } else {
                None
            });
        }
        if distinct.shapes.is_empty() {
            return Ok(None);
        }
        let rungs = recording.rungs_from(from);
        let lists = if sizing.mode.predicts() {
            Some(ChunkLists::new(&lane.device, size.n, rungs)?)
        } else {
            None
        };
        let cpu = sizing.devices[CPU].ledger();
        let columns = Columns::new(cpu, streamed.iter().flatten().map(|at| &at.from))?;
        let first = !streamed.iter().flatten().all(|at| at.adds);
        let layers = &loaded.layers[..];
        let making = Making { recording, lane, from, layers, lists: lists.as_ref(), first };
        let sides = [making.side(&distinct)?, making.side(&distinct)?];
        Ok(Some(Stream {
            device,
            from,
            size,
            layers: streamed,
            _lists: lists,
            sides,
            next: 0,
            columns,
            padded: 0,
            counts_all: !sizing.mode.is_sparse(),
            scored: 0,
        }))
    }

    /// Streaming of a layer, with its shape and programs, which are added to the known ones if
    /// they are new. `None` if it is not streamed: all neurons are resident, a third device has a
    /// share, or `bias_down` is on another device.
    fn streamed(
        &self,
        lane: &Lane,
        index: usize,
        placed: &LayerPlacement,
        size: ChunkSize,
        distinct: &mut Distinct,
    ) -> Option<Streamed> {
        let Setup { sizing, loaded, .. } = self;
        let (weights, afar) = (&sizing.model.layers[index], placed.home == CPU);
        let layer: &Layer = &loaded.layers[index];
        let ffn = weights.ffn.as_ref()?;
        match &layer.remotes[..] {
            [] if afar && sizing.streams_afar(index) => {}
            [remote] if !afar && remote.device == CPU => {
                if ffn.down.bias.is_some() && remote.ffn.bias_down.is_some() {
                    return None;
                }
            }
            _ => return None,
        }
        let shape = number(&mut distinct.shapes, sizing.chunk_shape(&lane.device, index, size));
        let parallel = sizing.model.spec.block == model::BlockKind::Parallel;
        let mut at = Streamed {
            shape,
            programs: Vec::new(),
            absent: Vec::new(),
            pieces: Vec::new(),
            neurons: if afar { StreamedNeurons::Whole } else { StreamedNeurons::Absent },
            joins: parallel || weights.frame.adds_shared(),
            adds: !afar && (parallel || layer.own.is_some() || weights.frame.adds_shared()),
            from: Sources::new(sizing, &lane.device, index, size),
            works: [Work::Neurons(index)],
        };
        at.place(placed, ffn.n_ff(), size);
        let rows = |neurons: &Range<usize>| match (&ffn.experts, &layer.predictor) {
            (Some(_), _) => ChunkRows::Expert(at.absent[neurons.start] as usize / at.from.n_each()),
            (None, Some(_)) => ChunkRows::Listed(index),
            (None, None) => ChunkRows::All,
        };
        let all: Vec<ChunkRows> = at.pieces.iter().map(rows).collect();
        let programs = all.into_iter().map(|rows| number(&mut distinct.programs, (shape, rows)));
        at.programs = programs.collect();
        if ffn.experts.is_none() {
            at.programs.dedup();
        }
        Some(at)
    }
}

/// Index of `what` among the known ones; adds it at the end if it is new.
fn number<T: PartialEq>(known: &mut Vec<T>, what: T) -> usize {
    let at = known.iter().position(|other| *other == what).unwrap_or(known.len());
    if at == known.len() {
        known.push(what);
    }
    at
}

/// Parameters of the sets of slots.
struct Making<'a> {
    recording: &'a Recording<'a>,
    lane: &'a Lane,
    /// The smallest rung.
    from: usize,
    layers: &'a [Layer],
    lists: Option<&'a ChunkLists>,
    /// Whether some programs overwrite y.
    first: bool,
}

impl Making<'_> {
    /// A set of slots with the programs over them.
    fn side(&self, distinct: &Distinct) -> Result<Side> {
        let (lane, shapes) = (self.lane, &distinct.shapes);
        let slots = Slots::new(&lane.device, shapes)?;
        let mut programs = Vec::new();
        for &(shape, rows) in &distinct.programs {
            let mut share = slots.shares[shape].clone();
            let mut predictor = None;
            match rows {
                ChunkRows::All => {}
                ChunkRows::Expert(number) => {
                    share.groups = shapes[shape].groups(number, share.up.desc().n_rows);
                }
                ChunkRows::Listed(layer) => {
                    let lists = self.lists.zip(self.layers[layer].predictor.as_ref());
                    predictor = lists.map(|(lists, of)| slots.predictor(shape, of, lists));
                }
            }
            let listed = predictor.as_ref().zip(self.lists);
            let ladder = |adds| self.recording.piece(lane, self.from, &share, listed, adds);
            let writes = if self.first { ladder(false)? } else { Ladder::default() };
            programs.push([ladder(true)?, writes]);
        }
        let tensors = slots.tensors.iter().zip(&slots.vectors);
        let fill =
            |(tensor, is_vector): (&Tensor, &bool)| Fill::new(&lane.device, tensor, !is_vector);
        let fills = tensors.map(fill).collect::<hal::Result<_>>()?;
        Ok(Side { slots, programs, fills })
    }
}
