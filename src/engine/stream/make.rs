//! Sets up streaming at load: slots, the programs over them, and the streamed neurons of each
//! layer.

use std::ops::Range;

use hal::{Operand, Tensor};

use placement::{CPU, DeviceIndex, LayerPlacement, Placement};

use super::super::build::{Layer, Plan};
use super::super::lane::Lane;
use super::super::predict::PieceLists;
use super::super::record::{Ladder, Recording};
use super::super::timeline::Work;
use super::super::{Error, Result};
use super::fill::{Columns, Fill, Sources};
use super::slots::{Kind, PieceSize, Slots};
use super::{Side, Stream, Streamed};

/// The differences between programs over slots of the same shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// All neurons of a chunk are computed.
    All,
    /// For the tokens that use the expert of this number.
    Expert(usize),
    /// For the neurons that the predictor of this layer selects.
    Listed(usize),
}

impl Plan<'_> {
    /// Sets up streaming to each device. A device without enough memory is reported and does not
    /// stream.
    ///
    /// # Errors
    /// A lost device, a driver fault.
    pub(in super::super) fn streams_by(
        &self,
        recording: &Recording<'_>,
        from: &[Option<usize>],
        placed: (&Placement, &[Layer]),
        lanes: &[Option<Lane>],
        told: &mut Vec<String>,
    ) -> Result<Vec<Option<Stream>>> {
        let mut streams = Vec::new();
        // Layers on the CPU are streamed to the first device with streaming.
        let there = |device: DeviceIndex| from[device].filter(|_| device != CPU);
        let first = (0..from.len()).find(|&device| there(device).is_some());
        for device in 0..from.len() {
            let made = match there(device) {
                Some(from) => {
                    let homes = [Some(device), (first == Some(device)).then_some(CPU)];
                    self.stream(recording, (device, &homes), from, placed, lanes)
                }
                None => Ok(None),
            };
            streams.push(match made {
                Err(Error::Device(error @ hal::Error::OutOfMemory { .. })) => {
                    told.push(format!(
                        "weights on the CPU are not streamed during prefill: {error}"
                    ));
                    None
                }
                made => made?,
            });
        }
        Ok(streams)
    }

    /// Streaming of the layers in `homes` to `device`, from steps of `from` tokens on. `None` if
    /// no layer can be streamed.
    ///
    /// # Errors
    /// Those of the device: not enough memory for the slots.
    pub(super) fn stream(
        &self,
        recording: &Recording<'_>,
        (device, homes): (DeviceIndex, &[Option<DeviceIndex>]),
        from: usize,
        (placement, layers): (&Placement, &[Layer]),
        lanes: &[Option<Lane>],
    ) -> Result<Option<Stream>> {
        let (Some(from), Some(lane)) = (self.first_streamed(from), &lanes[device]) else {
            return Ok(None);
        };
        let size = self.piece_size();
        let (mut kinds, mut ways) = (Vec::new(), Vec::new());
        let mut streamed = Vec::new();
        for (index, (placed, layer)) in placement.layers.iter().zip(layers).enumerate() {
            let at = match homes.contains(&Some(placed.home)) && self.streams(index) {
                true => {
                    let known = (&mut kinds, &mut ways);
                    self.streamed(lane, index, (placed, layer), size, known)
                }
                false => None,
            };
            streamed.push(at);
        }
        if kinds.is_empty() {
            return Ok(None);
        }
        let rungs = recording.rungs_from(from);
        let lists = match self.mode.predicts() {
            true => Some(PieceLists::new(&lane.device, size.n, rungs)?),
            false => None,
        };
        let cpu = self.devices[CPU].ledger();
        let columns = Columns::new(cpu, streamed.iter().flatten().map(|at| &at.from), size)?;
        let first = !streamed.iter().flatten().all(|at| at.adds);
        let making = Making { recording, lane, from, layers, lists: lists.as_ref(), first };
        let sides = [making.side(&kinds, &ways)?, making.side(&kinds, &ways)?];
        Ok(Some(Stream {
            from,
            device,
            size,
            layers: streamed,
            _lists: lists,
            sides,
            next: 0,
            columns,
            padded: 0,
            counts_all: !self.mode.is_sparse(),
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
        (placed, layer): (&LayerPlacement, &Layer),
        size: PieceSize,
        (kinds, ways): (&mut Vec<Kind>, &mut Vec<(usize, Way)>),
    ) -> Option<Streamed> {
        let (weights, afar) = (&self.model.layers[index], placed.home == CPU);
        let ffn = weights.ffn.as_ref()?;
        match &layer.remotes[..] {
            [] if afar && self.streams_afar(index) => {}
            [remote] if !afar && remote.device == CPU => {
                if ffn.down.bias.is_some() && remote.ffn.bias_down.is_some() {
                    return None;
                }
            }
            _ => return None,
        }
        let kind = number(kinds, self.kind(&lane.device, index, size));
        let parallel = self.model.spec.block == model::BlockKind::Parallel;
        let mut at = Streamed {
            kind,
            ways: Vec::new(),
            absent: Vec::new(),
            pieces: Vec::new(),
            afar,
            joins: parallel || weights.frame.shared.is_some(),
            adds: !afar && (parallel || layer.own.is_some() || weights.frame.shared.is_some()),
            from: Sources::new(self, &lane.device, index),
            works: [Work::Neurons(index)],
        };
        at.place(placed, ffn.n_ff(), size);
        let way = |neurons: &Range<usize>| match (&ffn.experts, &layer.predictor) {
            (Some(_), _) => Way::Expert(at.absent[neurons.start] as usize / at.from.n_each()),
            (None, Some(_)) => Way::Listed(index),
            (None, None) => Way::All,
        };
        let all: Vec<Way> = at.pieces.iter().map(way).collect();
        at.ways = all.into_iter().map(|way| number(ways, (kind, way))).collect();
        if ffn.experts.is_none() {
            at.ways.dedup();
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
    lists: Option<&'a PieceLists>,
    /// Whether some programs overwrite y.
    first: bool,
}

impl Making<'_> {
    /// A set of slots with the programs over them.
    fn side(&self, kinds: &[Kind], ways: &[(usize, Way)]) -> Result<Side> {
        let lane = self.lane;
        let slots = Slots::new(&lane.device, kinds)?;
        let mut programs = Vec::new();
        for &(kind, way) in ways {
            let mut share = slots.shares[kind].clone();
            let mut predictor = None;
            match way {
                Way::All => {}
                Way::Expert(number) => {
                    share.groups = kinds[kind].groups(number, share.up.desc().n_rows);
                }
                Way::Listed(layer) => {
                    let lists = self.lists.zip(self.layers[layer].predictor.as_ref());
                    predictor = lists.map(|(lists, of)| slots.predictor(kind, of, lists));
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
