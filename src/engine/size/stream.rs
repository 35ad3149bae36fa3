//! Chunks of streamed weights: which layers are streamed, how their neurons are cut into chunks,
//! the shapes of a chunk's tensors, and the ops over them.

use std::ops::Range;

use hal::format::Format;
use hal::op::{Activation, Down, ExpertRanges, MAX_COUNTED_TOKENS};
use hal::{Bytes, Device, HostRows, OpDesc, PackDesc, Plan as Answer, Rows, Select, TensorDesc};

use model::{Ffn, FfnMatrix};
use placement::{CPU, DeviceIndex, Forecast, LayerPlacement, Neurons, Placement, StreamFacts};

use super::Sizing;
use super::lists::chunk_lists_size;
use crate::ops::ffn::{FfnOperands, FfnShare, PackedMatrix};
use crate::ops::predict::{Predictor, list_desc};
use crate::options::Streaming;

/// Default maximum size of a chunk, in bytes of the file's format: large enough to make the launch
/// overhead small, small enough that two sets of slots are a small part of the memory of a device.
const MAX_CHUNK: Bytes = Bytes(8 << 20);
/// Minimum number of chunks of a layer.
const MIN_CHUNKS: usize = 16;
/// Blocks of a transposed matrix that a chunk may touch, as a multiple of the blocks that its
/// neurons would fill. All scales of these blocks are uploaded too.
const REACH: usize = 2;

/// Size of chunks, the same for all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkSize {
    /// Maximum number of neurons of a chunk: whole blocks of every down matrix that is not
    /// transposed.
    pub(crate) n: usize,
    /// Maximum number of columns of a transposed matrix that are uploaded for a chunk.
    pub(crate) reach: usize,
}

impl ChunkSize {
    /// Divides neurons into chunks. The blocks (of `block` neurons) that a chunk touches must fit
    /// into its columns, and all neurons of a chunk belong to one expert (of `n_per_expert`
    /// neurons). The neurons of an expert must be ascending.
    pub(crate) fn chunks(
        self,
        neurons: &[u32],
        block: usize,
        n_per_expert: usize,
    ) -> Vec<Range<usize>> {
        let mut chunks: Vec<Range<usize>> = Vec::new();
        let (mut n_blocks, mut last) = (0, None);
        for (i, &neuron) in neurons.iter().enumerate() {
            let of = Some((neuron as usize / n_per_expert, neuron as usize % n_per_expert / block));
            let more = usize::from(of != last);
            let same = of.map(|of| of.0) == last.map(|last| last.0);
            last = of;
            match chunks.last_mut() {
                Some(chunk)
                    if same
                        && chunk.len() < self.n
                        && (n_blocks + more) * block <= self.width(block) =>
                {
                    chunk.end = i + 1;
                    n_blocks += more;
                }
                _ => {
                    chunks.push(i..i + 1);
                    n_blocks = 1;
                }
            }
        }
        chunks
    }

    /// Number of columns, of a matrix in blocks of `block`, from which a chunk takes its neurons.
    pub(crate) fn width(self, block: usize) -> usize {
        if block > 1 { self.reach } else { self.n }
    }
}

/// The role of a tensor in a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkTensor {
    Gate,
    Up,
    Down,
    BiasGate,
    BiasUp,
    Threshold,
    /// A predictor's last matrix, which computes the scores.
    Scores,
    ScoresBias,
}

/// The shape of a streamed share: its tensors, and how each of them is packed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChunkShape {
    pub(crate) parts: Vec<(ChunkTensor, PackDesc)>,
    pub(crate) activation: Activation,
    pub(crate) orientation: Down,
    /// Number of experts, and how many a token uses; `None` in dense blocks.
    experts: Option<(usize, usize)>,
}

impl ChunkShape {
    /// The row ranges of the experts in a chunk whose rows all belong to expert `number`; `None` in
    /// dense blocks.
    pub(crate) fn expert_ranges(&self, number: usize, n: usize) -> Option<ExpertRanges> {
        let (n_expert, n_used) = self.experts?;
        let start = |expert: usize| if expert > number { n as u32 } else { 0 };
        Some(ExpertRanges { starts: (0..=n_expert).map(start).collect(), n_used })
    }
}

impl ChunkTensor {
    /// Whether the tensor is a per-neuron vector.
    pub(crate) fn is_vector(self) -> bool {
        match self {
            ChunkTensor::Gate | ChunkTensor::Up | ChunkTensor::Down | ChunkTensor::Scores => false,
            ChunkTensor::BiasGate
            | ChunkTensor::BiasUp
            | ChunkTensor::Threshold
            | ChunkTensor::ScoresBias => true,
        }
    }
}

/// The tensors of all shapes, without duplicates.
pub(crate) fn distinct(shapes: &[ChunkShape]) -> Vec<(ChunkTensor, PackDesc)> {
    let mut all: Vec<(ChunkTensor, PackDesc)> = Vec::new();
    for part in shapes.iter().flat_map(|chunk| &chunk.parts) {
        if !all.contains(part) {
            all.push(part.clone());
        }
    }
    all
}

impl Sizing<'_> {
    /// Whether the neurons of layer `index` can be streamed. If a predictor lists neurons of
    /// experts, they need the hand-off instead.
    pub(crate) fn can_stream(&self, index: usize) -> bool {
        let listed = self.mode.predictor(self.model, self.options, index).is_some();
        let ffn = self.model.layers[index].ffn.as_ref();
        // Chunks have the width of the residual.
        let latent = self.model.layers[index].frame.latent.is_some();
        // A cut-off depends on all neurons, which a chunk does not have.
        let whole = |ffn: &Ffn| ffn.gaussian_cut.is_some() || latent;
        ffn.is_some_and(|ffn| !whole(ffn) && (!listed || ffn.experts.is_none()))
    }

    /// Whether the neurons of layer `index` can be streamed to a device if the home of the layer is
    /// the CPU. A layer with a predictor or `bias_down` cannot: the first matrix of the predictor,
    /// or the bias, would have to be on the device.
    pub(crate) fn can_stream_cpu_layer(&self, index: usize) -> bool {
        let listed = self.mode.predictor(self.model, self.options, index).is_some();
        self.can_stream(index) && !listed && self.block(index).down.bias.is_none()
    }

    /// The smallest recorded token count of at least `from` at which weights can be streamed;
    /// `None` if there is none.
    pub(crate) fn first_streamed(&self, from: usize) -> Option<usize> {
        self.streamed_buckets().into_iter().find(|&n| n >= from)
    }

    /// The recorded token counts at which weights can be streamed.
    pub(crate) fn streamed_buckets(&self) -> Vec<usize> {
        let buckets = self.options.buckets();
        buckets.into_iter().filter(|&n| n > MAX_COUNTED_TOKENS).collect()
    }

    /// For each device, the number of tokens from which absent neurons are streamed to it, as the
    /// options or the plan say; `None` if they are not streamed. Adds a message to `notices` if
    /// host memory is too small.
    pub(crate) fn streams_from(
        &self,
        placement: &Placement,
        forecast: Option<&Forecast>,
        notices: &mut Vec<String>,
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
        // The pages of these weights must stay in host memory, since every prefill packs the chunks
        // from the file again.
        let absent = |(index, placed): (usize, &LayerPlacement)| {
            let Some(ffn) = &self.model.layers[index].ffn else { return 0 };
            let bytes = ffn.matrices().map(|(_, rows)| rows.desc().bytes().unwrap_or_default().0);
            let n_ff = ffn.n_ff();
            let elsewhere = placed.shares.iter().filter(|s| s.device != placed.home);
            let on_cpu =
                placed.home == CPU && !placed.is_split() && self.can_stream_cpu_layer(index);
            let n = if on_cpu {
                n_ff
            } else {
                elsewhere.map(|share| share.neurons.len(n_ff)).sum::<usize>()
            };
            bytes.sum::<u64>() / n_ff.max(1) as u64 * n as u64
        };
        let host = Bytes(placement.layers.iter().enumerate().map(absent).sum());
        if self.options.paging.is_some() {
            let to = from.iter().zip(self.devices).find(|(from, _)| from.is_some());
            let to = to.map_or("a device", |(_, device)| &device.info().name);
            notices.push(format!("{host} of weights on the CPU are not streamed to {to} during prefill, because they may be on disk: the CPU computes with them"));
            return vec![None; n_devices];
        }
        let free = self.devices[CPU].memory().ok().and_then(|memory| memory.free);
        match free.filter(|free| *free < host) {
            None => from,
            Some(free) => {
                notices.push(format!("weights on the CPU are not streamed during prefill: this needs {host} of host memory for weights, but only {free} are free"));
                vec![None; n_devices]
            }
        }
    }

    pub(crate) fn chunk_size(&self) -> ChunkSize {
        let most = match self.options.streaming {
            Streaming::Forced { chunk_bytes, .. } => chunk_bytes,
            Streaming::Measured | Streaming::Off => MAX_CHUNK,
        };
        let blocks = || self.model.blocks().map(|(_, ffn)| ffn);
        let n_ff = self.model.max_n_ff();
        let size = |rows: &HostRows| rows.desc().bytes().unwrap_or_default().0;
        let neuron = |ffn: &Ffn| {
            ffn.matrices().map(|(_, rows)| size(rows)).sum::<u64>() / ffn.n_ff().max(1) as u64
        };
        let neuron = blocks().map(neuron).max().unwrap_or(0).max(1);
        let columns = blocks().map(|ffn| {
            if ffn.down_by_neuron { 1 } else { ffn.down.w.desc().format.block_values() }
        });
        let block = columns.max().unwrap_or(1);
        let n_per_expert = blocks().map(Ffn::n_per_expert).min().unwrap_or(0);
        let most =
            ((most.0 / neuron) as usize).min(n_ff.div_ceil(MIN_CHUNKS)).min(n_per_expert) / block;
        let mut whole = (1..=most).rev().map(|n| n * block);
        let n = match self.model.experts() {
            None => whole.next(),
            // All chunks of an expert have the same size: padding would be computed for all tokens
            // that use the expert.
            Some(_) => {
                let experts: Vec<_> = blocks().filter(|ffn| ffn.experts.is_some()).collect();
                whole.find(|n| experts.iter().all(|ffn| ffn.n_per_expert().is_multiple_of(*n)))
            }
        };
        let n = n.unwrap_or(block).min(n_per_expert);
        ChunkSize { n, reach: (REACH * n).min(n_per_expert) }
    }

    /// The shape of the chunks of layer `index` on `device`.
    pub(crate) fn chunk_shape(&self, device: &Device, index: usize, size: ChunkSize) -> ChunkShape {
        let ffn = self.block(index);
        let n = size.n;
        let mut parts = Vec::new();
        let n_out = ffn.up.w.desc().n_cols;
        for packed in self.mode.packs(device, ffn, &Neurons::All) {
            let TensorDesc { n_cols, format, .. } = packed.rows.desc();
            let whole = |rows, cols| PackDesc::whole(TensorDesc::new(rows, cols, format));
            let orientation = self.mode.orientation(ffn);
            let part = match packed.matrix {
                PackedMatrix::One(FfnMatrix::Down) if packed.pack.transpose => {
                    let first = Select::Rows((0..n as u32).collect());
                    let width = size.width(format.block_values());
                    let pack = PackDesc { select: first, transpose: true, ..whole(n_out, width) };
                    (ChunkTensor::Down, pack)
                }
                PackedMatrix::One(FfnMatrix::Down) if orientation == Down::AcrossNeurons => {
                    (ChunkTensor::Down, whole(n_out, n))
                }
                PackedMatrix::One(FfnMatrix::Down) => (ChunkTensor::Down, whole(n, n_cols)),
                PackedMatrix::One(FfnMatrix::Gate) => (ChunkTensor::Gate, whole(n, n_cols)),
                PackedMatrix::One(FfnMatrix::Up) | PackedMatrix::Bundle => {
                    (ChunkTensor::Up, whole(n, n_cols))
                }
            };
            parts.push(part);
        }
        let shape = self.mode.shape(ffn, n);
        let vectors = [
            (ChunkTensor::BiasGate, shape.bias_gate),
            (ChunkTensor::BiasUp, shape.bias_up),
            (ChunkTensor::Threshold, shape.threshold),
        ];
        let vector = PackDesc::whole(TensorDesc::new(1, n, Format::F32));
        let present = vectors.into_iter().filter(|(_, shape)| shape.is_some());
        parts.extend(present.map(|(part, _)| (part, vector.clone())));
        if let Some(data) = self.mode.predictor(self.model, self.options, index) {
            let TensorDesc { n_cols, format, .. } = data.fc2.desc();
            parts.push((ChunkTensor::Scores, PackDesc::whole(TensorDesc::new(n, n_cols, format))));
            parts.push((ChunkTensor::ScoresBias, vector));
        }
        let experts = ffn.experts.as_ref().map(|experts| (experts.n, experts.n_used));
        let (activation, orientation) = (ffn.activation, self.mode.orientation(ffn));
        ChunkShape { parts, activation, orientation, experts }
    }

    /// Memory for streaming to `device`; `None` if no layer can be streamed, or if the device does
    /// not support the ops of one of these layers.
    pub(crate) fn stream_facts(&self, device: DeviceIndex) -> Option<StreamFacts> {
        let (on, size) = (&self.devices[device], self.chunk_size());
        let mut shapes: Vec<ChunkShape> = Vec::new();
        for index in (0..self.model.layers.len()).filter(|&index| self.can_stream(index)) {
            let chunk = self.chunk_shape(on, index, size);
            if shapes.contains(&chunk) {
                continue;
            }
            if !self.supports_chunk_ops(on, index, &chunk) {
                return None;
            }
            shapes.push(chunk);
        }
        let mut bytes = Bytes(0);
        for (part, pack) in distinct(&shapes) {
            let (len, size) = if part.is_vector() {
                (4 * pack.source.n_cols, on.alloc_size(&pack.source))
            } else {
                (on.packed_len(&pack.packed_desc().ok()?)?, on.pack_size(&pack, false))
            };
            bytes += size + Bytes(len as u64);
        }
        // Two sets of slots, each with staging memory. Both sets use the same lists.
        let lists = if self.mode.predicts() {
            chunk_lists_size(on, size.n, &self.streamed_buckets())
        } else {
            Bytes(0)
        };
        let bytes = Bytes(2 * bytes.0) + lists;
        (!shapes.is_empty()).then_some(StreamFacts { bytes, chunk_neurons: size.n })
    }

    /// Whether a device supports the ops over chunks of a layer in the largest step.
    fn supports_chunk_ops(&self, on: &Device, index: usize, chunk: &ChunkShape) -> bool {
        let ops = self.chunk_ops(index, chunk, self.options.n_ubatch);
        !ops.is_empty() && ops.iter().all(|op| matches!(on.plan(op), Answer::Yes { .. }))
    }

    /// The ops over a chunk of a layer, in a step of `n_tokens`.
    pub(crate) fn chunk_ops(
        &self,
        index: usize,
        chunk: &ChunkShape,
        n_tokens: usize,
    ) -> Vec<OpDesc> {
        let shape = |wanted| {
            let found = chunk.parts.iter().find(|(part, _)| *part == wanted);
            found.and_then(|(_, pack)| pack.packed_desc().ok())
        };
        let (Some(up), Some(down)) = (shape(ChunkTensor::Up), shape(ChunkTensor::Down)) else {
            return Vec::new();
        };
        let f32 = |rows, cols| TensorDesc::new(rows, cols, Format::F32);
        let share = FfnShare {
            gate: shape(ChunkTensor::Gate),
            up,
            down,
            bias_gate: shape(ChunkTensor::BiasGate),
            bias_up: shape(ChunkTensor::BiasUp),
            bias_down: None,
            threshold: shape(ChunkTensor::Threshold),
            experts: chunk.expert_ranges(0, up.n_rows),
            activation: chunk.activation,
            gaussian_cut: None,
            orientation: chunk.orientation,
        };
        let place = FfnOperands {
            x: f32(n_tokens, self.model.hyper.n_embd),
            weights: chunk.experts.map(|(n_expert, _)| f32(n_tokens, n_expert)),
            y: f32(n_tokens, self.model.hyper.n_embd),
            active: f32(1, n_tokens),
            hits: None,
            union: None,
            accumulate: true,
        };
        let mut rows = Rows::All;
        let mut ops: Vec<OpDesc> = Vec::new();
        if let (Some(data), Some(scores)) =
            (self.mode.predictor(self.model, self.options, index), shape(ChunkTensor::Scores))
        {
            let values = |format| TensorDesc::new(1, up.n_rows, format);
            let predictor = Predictor::desc(data);
            let predictor = predictor.for_neurons(scores, values(Format::F32), values(Format::U32));
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
    fn chunks_hold_every_neuron_once_and_touch_few_blocks() {
        let size = ChunkSize { n: 64, reach: 128 };
        for step in [1, 2, 3, 7, 50] {
            let neurons: Vec<u32> = (5..1000).step_by(step).collect();
            for block in [1, 32] {
                let chunks = size.chunks(&neurons, block, 1024);
                let all: Vec<usize> = chunks.iter().cloned().flatten().collect();
                assert_eq!(all, (0..neurons.len()).collect::<Vec<_>>());
                for chunk in chunks {
                    let mut blocks: Vec<usize> =
                        neurons[chunk.clone()].iter().map(|&n| n as usize / block).collect();
                    blocks.dedup();
                    assert!(chunk.len() <= 64 && blocks.len() * block <= size.width(block));
                }
            }
        }
        assert!(size.chunks(&[], 32, 1024).is_empty());
        // Whole experts, in any order.
        let neurons: Vec<u32> = (128..192).chain(0..64).collect();
        let half = ChunkSize { n: 32, reach: 32 };
        assert_eq!(half.chunks(&neurons, 32, 64), [0..32, 32..64, 64..96, 96..128]);
        let some = [1, 2, 65, 66];
        assert_eq!(size.chunks(&some, 1, 64), [0..2, 2..4], "no chunk has two experts");
    }
}
