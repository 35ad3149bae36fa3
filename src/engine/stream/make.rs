//! What streams is made at load: slots, the programs over them, and what of each layer comes.

use std::ops::Range;

use hal::{Operand, Tensor};

use crate::placement::{CPU, DeviceIndex, LayerPlacement, Placement};

use super::super::build::{Layer, Plan};
use super::super::lane::Lane;
use super::super::predict::PieceLists;
use super::super::record::{Ladder, Recording};
use super::super::timeline::Work;
use super::super::{Error, Result};
use super::fill::{Columns, Fill, Sources};
use super::slots::{Kind, PieceSize, Slots};
use super::{Side, Stream, Streamed};

/// What the programs over slots of one shape differ in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// All neurons of a piece are computed.
    All,
    /// For the tokens that use the expert of this number.
    Expert(usize),
    /// Those that the predictor of this layer wants.
    Listed(usize),
}

impl Plan<'_> {
    /// What streams to each device. Where a device has no room for it, that is told, and nothing streams there.
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
        // What is on the CPU goes to the first.
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
                    told.push(format!("prompts leave the CPU's neurons on the CPU: {error}"));
                    None
                }
                made => made?,
            });
        }
        Ok(streams)
    }

    /// What streams to `device`, of the layers at `homes`, from steps of `from` tokens on. `None` where no layer's neurons
    /// would.
    ///
    /// # Errors
    /// Those of the device: no room for the slots.
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

    /// What streams of a layer, its kind and its ways, which are added to the known ones if they are new. `None` where
    /// nothing does: where all is at home on a device, where a third device takes part, or where what down adds is elsewhere.
    fn streamed(
        &self,
        lane: &Lane,
        index: usize,
        (placed, layer): (&LayerPlacement, &Layer),
        size: PieceSize,
        (kinds, ways): (&mut Vec<Kind>, &mut Vec<(usize, Way)>),
    ) -> Option<Streamed> {
        let (weights, afar) = (&self.model.layers[index], placed.home == CPU);
        match &layer.remotes[..] {
            [] if afar && self.streams_afar(index) => {}
            [remote] if !afar && remote.device == CPU => {
                if weights.ffn.down.bias.is_some() && remote.ffn.bias_down.is_some() {
                    return None;
                }
            }
            _ => return None,
        }
        let kind = number(kinds, self.kind(&lane.device, index, size));
        let parallel = self.model.spec.block == crate::model::BlockKind::Parallel;
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
        at.place(placed, self.model.hyper.n_ff, size);
        let way = |neurons: &Range<usize>| match (weights.ffn.n_expert, &layer.predictor) {
            (Some(_), _) => Way::Expert(at.absent[neurons.start] as usize / at.from.n_each()),
            (None, Some(_)) => Way::Listed(index),
            (None, None) => Way::All,
        };
        let all: Vec<Way> = at.pieces.iter().map(way).collect();
        at.ways = all.into_iter().map(|way| number(ways, (kind, way))).collect();
        if weights.ffn.n_expert.is_none() {
            at.ways.dedup();
        }
        Some(at)
    }
}

/// Where `what` is among the known ones; behind them, and known from then on, if it is new.
fn number<T: PartialEq>(known: &mut Vec<T>, what: T) -> usize {
    let at = known.iter().position(|other| *other == what).unwrap_or(known.len());
    if at == known.len() {
        known.push(what);
    }
    at
}

/// What sets of slots are made with.
struct Making<'a> {
    recording: &'a Recording<'a>,
    lane: &'a Lane,
    /// The least rung.
    from: usize,
    layers: &'a [Layer],
    lists: Option<&'a PieceLists>,
    /// Whether some programs write y.
    first: bool,
}

impl Making<'_> {
    /// A set of slots with the programs over them.
    fn side(&self, kinds: &[Kind], ways: &[(usize, Way)]) -> Result<Side> {
        let (plan, lane) = (&self.recording.plan, self.lane);
        let slots = Slots::new(&lane.device, kinds)?;
        let mut programs = Vec::new();
        for &(kind, way) in ways {
            let mut share = slots.shares[kind].clone();
            let mut predictor = None;
            match way {
                Way::All => {}
                Way::Expert(number) => share.groups = plan.groups(number, share.up.desc().n_rows),
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
