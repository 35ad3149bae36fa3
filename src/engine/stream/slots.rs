//! Sets of slots for streamed chunks: their shapes and sizes.

use std::ops::Range;
use std::sync::Arc;

use hal::format::Format;
use hal::op::{Down, Groups};
use hal::{
    Bytes, Device, HostRows, OpDesc, PackDesc, Plan as Answer, Rows, Select, Source, Tensor,
    TensorDesc,
};

use model::Ffn;
use placement::{DeviceIndex, Neurons, StreamFacts};

use super::super::Result;
use super::super::build::Plan;
use super::super::ffn::{FfnPlace, FfnShare, FfnTensors};
use super::super::options::Streaming;
use super::super::predict::{PieceLists, Predictor, list_desc};

/// Maximum size of a chunk: large enough that the launch overhead is small, small enough that two
/// sets of slots are a small part of a device's memory.
const PIECE: Bytes = Bytes(8 << 20);
/// A layer has at least this many chunks.
const PARTS: usize = 16;
/// A chunk of a transposed matrix takes its neurons out of this many times as many columns, since
/// the scale tables of all of them are uploaded too.
const REACH: usize = 2;

/// Size of chunks, the same for all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct PieceSize {
    /// Maximum number of neurons; whole blocks of every down matrix that is not transposed.
    pub(in super::super) n: usize,
    /// Columns of a transposed matrix in blocks that are uploaded for a chunk.
    pub(super) reach: usize,
}

impl PieceSize {
    /// Divides neurons into chunks. No chunk touches more blocks of `block` neurons than fit, or
    /// has neurons of two experts of `n_each`. Neurons of one expert are ascending.
    pub(super) fn pieces(self, neurons: &[u32], block: usize, n_each: usize) -> Vec<Range<usize>> {
        let mut pieces: Vec<Range<usize>> = Vec::new();
        let (mut n_blocks, mut last) = (0, None);
        for (i, &neuron) in neurons.iter().enumerate() {
            let of = Some((neuron as usize / n_each, neuron as usize % n_each / block));
            let more = usize::from(of != last);
            let same = of.map(|of| of.0) == last.map(|last| last.0);
            last = of;
            match pieces.last_mut() {
                Some(piece)
                    if same
                        && piece.len() < self.n
                        && (n_blocks + more) * block <= self.width(block) =>
                {
                    piece.end = i + 1;
                    n_blocks += more;
                }
                _ => {
                    pieces.push(i..i + 1);
                    n_blocks = 1;
                }
            }
        }
        pieces
    }

    /// Columns of a matrix in blocks of `block` from which a chunk takes its neurons.
    pub(super) fn width(self, block: usize) -> usize {
        if block > 1 { self.reach } else { self.n }
    }
}

/// Which operand of the op a tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Gate,
    Up,
    Down,
    BiasGate,
    BiasUp,
    Threshold,
    /// A predictor's last matrix and its bias.
    Scores,
    Offset,
}

/// The shape of a share whose neurons are streamed: its tensors, and how each is packed.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct Kind {
    parts: Vec<(Part, PackDesc)>,
    orientation: Down,
    /// Number of experts, and how many a token uses; `None` in dense blocks.
    experts: Option<(usize, usize)>,
}

impl Kind {
    /// A group of all rows of a chunk, of expert `number`; `None` in dense blocks.
    pub(super) fn groups(&self, number: usize, n: usize) -> Option<Groups> {
        let (n_expert, n_used) = self.experts?;
        let start = |group: usize| if group > number { n as u32 } else { 0 };
        Some(Groups { starts: (0..=n_expert).map(start).collect(), n_used })
    }
}

/// Indices of a share's tensors in a set of slots.
#[derive(Clone, Debug)]
pub(super) struct Places {
    parts: Vec<Part>,
    places: Vec<usize>,
}

impl Places {
    pub(super) fn of(&self, part: Part) -> Option<usize> {
        self.parts.iter().position(|known| *known == part).map(|at| self.places[at])
    }

    pub(super) fn all(&self) -> &[usize] {
        &self.places
    }
}

/// A set of slots on a device, with one share for each shape.
#[derive(Debug)]
pub(super) struct Slots {
    pub(super) tensors: Vec<Tensor>,
    /// Whether each of them is a per-neuron vector.
    pub(super) vectors: Vec<bool>,
    pub(super) shares: Vec<FfnTensors>,
    pub(super) places: Vec<Places>,
}

impl Part {
    /// Whether it is a per-neuron vector.
    fn is_vector(self) -> bool {
        match self {
            Part::Gate | Part::Up | Part::Down | Part::Scores => false,
            Part::BiasGate | Part::BiasUp | Part::Threshold | Part::Offset => true,
        }
    }
}

/// The distinct tensors of some shapes.
fn distinct(kinds: &[Kind]) -> Vec<(Part, PackDesc)> {
    let mut all: Vec<(Part, PackDesc)> = Vec::new();
    for part in kinds.iter().flat_map(|kind| &kind.parts) {
        if !all.contains(part) {
            all.push(part.clone());
        }
    }
    all
}

impl Slots {
    pub(super) fn new(device: &Device, kinds: &[Kind]) -> Result<Slots> {
        let all = distinct(kinds);
        let tensors: Vec<Tensor> = all
            .iter()
            .map(|(part, pack)| match part.is_vector() {
                true => device.alloc("streamed vector", pack.source),
                false => device.import("streamed neurons", pack, &zeros(pack.source)?),
            })
            .collect::<hal::Result<_>>()?;
        let places = |kind: &Kind| {
            let at = |part| all.iter().position(|known| known == part).expect("listed above");
            Places {
                parts: kind.parts.iter().map(|(part, _)| *part).collect(),
                places: kind.parts.iter().map(at).collect(),
            }
        };
        let places: Vec<Places> = kinds.iter().map(places).collect();
        let share = |(kind, places): (&Kind, &Places)| {
            let of = |part| places.of(part).map(|at| tensors[at].clone());
            FfnShare {
                gate: of(Part::Gate),
                up: of(Part::Up).expect("every block has one"),
                down: of(Part::Down).expect("every block has one"),
                bias_gate: of(Part::BiasGate),
                bias_up: of(Part::BiasUp),
                bias_down: None,
                threshold: of(Part::Threshold),
                groups: None,
                orientation: kind.orientation,
            }
        };
        let shares = kinds.iter().zip(&places).map(share).collect();
        let vectors = all.iter().map(|(part, _)| part.is_vector()).collect();
        Ok(Slots { tensors, vectors, shares, places })
    }
}

impl Slots {
    /// The predictor of a layer over the neurons in the slots of this shape.
    pub(super) fn predictor(
        &self,
        kind: usize,
        of: &Predictor<Tensor>,
        lists: &PieceLists,
    ) -> Predictor<Tensor> {
        let at = |part| self.places[kind].of(part).expect("listed neurons come with their scores");
        let [scores, offset] =
            [Part::Scores, Part::Offset].map(|part| self.tensors[at(part)].clone());
        of.over(scores, offset, lists.slots())
    }
}

fn zeros(desc: TensorDesc) -> hal::Result<HostRows> {
    let len = desc.bytes().unwrap_or_default().0 as usize;
    HostRows::new(Source::Owned(Arc::new(vec![0u8; len])), desc.n_rows, desc.n_cols, desc.format)
}

impl Plan<'_> {
    pub(in super::super) fn piece_size(&self) -> PieceSize {
        let most = match self.options.streaming {
            Streaming::Forced { piece, .. } => piece,
            Streaming::Measured | Streaming::Off => PIECE,
        };
        let blocks = || self.model.blocks().map(|(_, ffn)| ffn);
        let n_ff = self.model.max_n_ff();
        let size = |rows: &HostRows| rows.desc().bytes().unwrap_or_default().0;
        let neuron = |ffn: &Ffn| {
            ffn.matrices().map(|(_, rows)| size(rows)).sum::<u64>() / ffn.n_ff().max(1) as u64
        };
        let neuron = blocks().map(neuron).max().unwrap_or(0).max(1);
        let columns = blocks().map(|ffn| match ffn.down_by_neuron {
            true => 1,
            false => ffn.down.w.desc().format.block_values(),
        });
        let block = columns.max().unwrap_or(1);
        let n_each = blocks().map(Ffn::n_each).min().unwrap_or(0);
        let most = ((most.0 / neuron) as usize).min(n_ff.div_ceil(PARTS)).min(n_each) / block;
        let mut whole = (1..=most).rev().map(|n| n * block);
        let n = match self.model.experts() {
            None => whole.next(),
            // Chunks of equal size: padding would be computed for all tokens that use the expert.
            Some(_) => whole.find(|&n| n_each.is_multiple_of(n)),
        };
        let n = n.unwrap_or(block).min(n_each);
        PieceSize { n, reach: (REACH * n).min(n_each) }
    }

    /// The shape of layer `index` on `device`.
    pub(in super::super) fn kind(&self, device: &Device, index: usize, size: PieceSize) -> Kind {
        let ffn = self.block(index);
        let n = size.n;
        let mut parts = Vec::new();
        let n_out = ffn.up.w.desc().n_cols;
        for packed in self.mode.packs(device, ffn, &Neurons::All) {
            let TensorDesc { n_cols, format, .. } = packed.rows.desc();
            let whole = |rows, cols| PackDesc::whole(TensorDesc::new(rows, cols, format));
            let part = match (packed.name, packed.pack.transpose, self.mode.orientation(ffn)) {
                ("ffn_down", true, _) => {
                    let first = Select::Rows((0..n as u32).collect());
                    let width = size.width(format.block_values());
                    (Part::Down, PackDesc { select: first, transpose: true, ..whole(n_out, width) })
                }
                ("ffn_down", false, Down::AcrossNeurons) => (Part::Down, whole(n_out, n)),
                ("ffn_down", false, Down::ByNeuron) => (Part::Down, whole(n, n_cols)),
                ("ffn_gate", ..) => (Part::Gate, whole(n, n_cols)),
                _ => (Part::Up, whole(n, n_cols)),
            };
            parts.push(part);
        }
        let shape = self.mode.shape(ffn, n);
        let vectors = [
            (Part::BiasGate, shape.bias_gate),
            (Part::BiasUp, shape.bias_up),
            (Part::Threshold, shape.threshold),
        ];
        let vector = PackDesc::whole(TensorDesc::new(1, n, Format::F32));
        let there = vectors.into_iter().filter(|(_, shape)| shape.is_some());
        parts.extend(there.map(|(part, _)| (part, vector.clone())));
        if let Some(chosen) = self.mode.chosen(self.model, self.options, index) {
            let TensorDesc { n_cols, format, .. } = chosen.fc2.desc();
            parts.push((Part::Scores, PackDesc::whole(TensorDesc::new(n, n_cols, format))));
            parts.push((Part::Offset, vector));
        }
        let experts = ffn.experts.as_ref().map(|experts| (experts.n, experts.n_used));
        Kind { parts, orientation: self.mode.orientation(ffn), experts }
    }

    /// Memory for streaming to `device`; `None` if nothing can be streamed there.
    pub(in super::super) fn stream_facts(&self, device: DeviceIndex) -> Option<StreamFacts> {
        let (on, size) = (&self.devices[device], self.piece_size());
        let mut kinds: Vec<Kind> = Vec::new();
        for index in (0..self.model.layers.len()).filter(|&index| self.streams(index)) {
            let kind = self.kind(on, index, size);
            if kinds.contains(&kind) {
                continue;
            }
            if !self.runs(on, index, &kind) {
                return None;
            }
            kinds.push(kind);
        }
        let mut bytes = Bytes(0);
        for (part, pack) in distinct(&kinds) {
            let (len, size) = match part.is_vector() {
                true => (4 * pack.source.n_cols, on.alloc_size(&pack.source)),
                false => (on.packed_len(&pack.packed().ok()?)?, on.pack_size(&pack, false)),
            };
            bytes += size + Bytes(len as u64);
        }
        // Two sets, with their staging memory; the lists are shared.
        let lists = match self.mode.predicts() {
            true => PieceLists::size(on, size.n, &self.streamed_rungs()),
            false => Bytes(0),
        };
        let bytes = Bytes(2 * bytes.0) + lists;
        (!kinds.is_empty()).then_some(StreamFacts { bytes, piece: size.n })
    }

    /// Whether a device supports chunks of a layer in the largest step.
    fn runs(&self, on: &Device, index: usize, kind: &Kind) -> bool {
        let ops = self.piece_ops(index, kind, self.options.n_ubatch);
        !ops.is_empty() && ops.iter().all(|op| matches!(on.plan(op), Answer::Yes { .. }))
    }

    /// The ops over a chunk of a layer, in a step of `n_tokens`.
    pub(in super::super) fn piece_ops(
        &self,
        index: usize,
        kind: &Kind,
        n_tokens: usize,
    ) -> Vec<OpDesc> {
        let shape = |wanted| {
            let found = kind.parts.iter().find(|(part, _)| *part == wanted);
            found.and_then(|(_, pack)| pack.packed().ok())
        };
        let (Some(up), Some(down)) = (shape(Part::Up), shape(Part::Down)) else {
            return Vec::new();
        };
        let f32 = |rows, cols| TensorDesc::new(rows, cols, Format::F32);
        let share = FfnShare {
            gate: shape(Part::Gate),
            up,
            down,
            bias_gate: shape(Part::BiasGate),
            bias_up: shape(Part::BiasUp),
            bias_down: None,
            threshold: shape(Part::Threshold),
            groups: kind.groups(0, up.n_rows),
            orientation: kind.orientation,
        };
        let place = FfnPlace {
            x: f32(n_tokens, self.model.hyper.n_embd),
            weights: kind.experts.map(|(n_expert, _)| f32(n_tokens, n_expert)),
            y: f32(n_tokens, self.model.hyper.n_embd),
            active: f32(1, n_tokens),
            hits: None,
            accumulate: true,
        };
        let mut rows = Rows::All;
        let mut ops: Vec<OpDesc> = Vec::new();
        if let (Some(chosen), Some(scores)) =
            (self.mode.chosen(self.model, self.options, index), shape(Part::Scores))
        {
            let values = |format| TensorDesc::new(1, up.n_rows, format);
            let predictor = Predictor::desc(chosen);
            let predictor = predictor.over(scores, values(Format::F32), values(Format::U32));
            let set = list_desc(up.n_rows, n_tokens);
            ops.push(predictor.op(place.x, set.clone(), None).into());
            rows = Rows::Active(set);
        }
        ops.push(self.mode.op(&share, rows, place).into());
        ops
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_hold_every_neuron_once_and_touch_few_blocks() {
        let size = PieceSize { n: 64, reach: 128 };
        for step in [1, 2, 3, 7, 50] {
            let neurons: Vec<u32> = (5..1000).step_by(step).collect();
            for block in [1, 32] {
                let pieces = size.pieces(&neurons, block, 1024);
                let all: Vec<usize> = pieces.iter().cloned().flatten().collect();
                assert_eq!(all, (0..neurons.len()).collect::<Vec<_>>());
                for piece in pieces {
                    let mut blocks: Vec<usize> =
                        neurons[piece.clone()].iter().map(|&n| n as usize / block).collect();
                    blocks.dedup();
                    assert!(piece.len() <= 64 && blocks.len() * block <= size.width(block));
                }
            }
        }
        assert!(size.pieces(&[], 32, 1024).is_empty());
        // Whole experts, in any order.
        let neurons: Vec<u32> = (128..192).chain(0..64).collect();
        let half = PieceSize { n: 32, reach: 32 };
        assert_eq!(half.pieces(&neurons, 32, 64), [0..32, 32..64, 64..96, 96..128]);
        let some = [1, 2, 65, 66];
        assert_eq!(size.pieces(&some, 1, 64), [0..2, 2..4], "no piece has neurons of two");
    }
}
