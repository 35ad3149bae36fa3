//! Fills a chunk: gathers neurons from the file, packs them in the layout of the device, and
//! uploads them.

use std::ops::Range;
use std::sync::Arc;

use hal::op::Down;
use hal::{
    Bytes, Device, HostRows, Ledger, PackDesc, Queue, Reservation, Select, Source, Staging, Tensor,
    Transfer,
};

use placement::Neurons;

use super::slots::TensorIndices;
use crate::error::Result;
use crate::ops::ffn::{select_values, thresholds};
use crate::ops::predict::vector;
use crate::size::Sizing;
use crate::size::stream::{ChunkSize, ChunkTensor};

/// Staging memory of one tensor in a set of slots.
#[derive(Debug)]
pub(crate) struct SlotStaging {
    len: usize,
    /// Whether the tensor is a pack rather than a plain vector.
    is_pack: bool,
    state: Upload,
}

#[derive(Debug)]
enum Upload {
    Idle(Staging),
    InFlight(Transfer),
    /// The staging memory was lost with its device.
    Lost,
}

impl SlotStaging {
    pub(crate) fn new(device: &Device, tensor: &Tensor, is_pack: bool) -> hal::Result<SlotStaging> {
        let desc = tensor.whole();
        let len =
            if is_pack { device.packed_len(&desc).unwrap_or_default() } else { 4 * desc.n_cols };
        let staging = device.staging(Bytes(len as u64))?;
        Ok(SlotStaging { len, is_pack, state: Upload::Idle(staging) })
    }

    /// Waits for the previous upload and returns the staging bytes.
    fn bytes_mut(&mut self, device: &Device) -> hal::Result<&mut [u8]> {
        self.wait()?;
        if !matches!(self.state, Upload::Idle(_)) {
            self.state = Upload::Idle(device.staging(Bytes(self.len as u64))?);
        }
        match &mut self.state {
            Upload::Idle(staging) => Ok(staging.bytes_mut()),
            Upload::InFlight(_) | Upload::Lost => {
                unreachable!("the state was set to idle above")
            }
        }
    }

    /// Uploads the staging bytes to `tensor`.
    pub(crate) fn upload(&mut self, queue: &mut Queue, tensor: &Tensor) -> hal::Result<()> {
        let state = std::mem::replace(&mut self.state, Upload::Lost);
        self.state = match (state, self.is_pack) {
            (Upload::Idle(staging), true) => Upload::InFlight(queue.repack(staging, tensor)?),
            (Upload::Idle(staging), false) => Upload::InFlight(queue.upload(staging, tensor)?),
            (other @ (Upload::InFlight(_) | Upload::Lost), _) => other,
        };
        Ok(())
    }

    pub(crate) fn wait(&mut self) -> hal::Result<()> {
        let state = std::mem::replace(&mut self.state, Upload::Lost);
        self.state = match state {
            Upload::InFlight(transfer) => Upload::Idle(transfer.wait()?),
            Upload::Idle(_) | Upload::Lost => state,
        };
        Ok(())
    }

    /// As [`Self::wait`], after an error of another call; ignores its own error.
    pub(crate) fn wait_ignoring_errors(&mut self) {
        // The next call to a lost device reports the loss.
        let _ = self.wait();
    }
}

/// Host memory for columns gathered from a down matrix, from which a chunk is packed.
#[derive(Debug)]
pub(crate) struct Columns {
    bytes: Arc<Vec<u8>>,
    _booked: Reservation,
}

impl Columns {
    /// Allocates memory for a chunk of any of these layers. Its bytes count as allocated on the
    /// host.
    pub(crate) fn new<'a>(
        host: &Arc<Ledger>,
        layers: impl Iterator<Item = &'a Sources>,
    ) -> hal::Result<Columns> {
        let len = layers.map(|from| from.columns_len()).max().unwrap_or(0);
        let booked = host.reserve("streamed columns", Bytes(len as u64))?;
        Ok(Columns { bytes: Arc::new(Vec::with_capacity(len)), _booked: booked })
    }

    /// Gathers the column blocks `blocks` of these rows of `source`, and pads the rows to `n_cols`
    /// columns with zeros.
    fn gather(
        &mut self,
        source: &HostRows,
        rows: Range<usize>,
        blocks: &[u32],
        n_cols: usize,
    ) -> hal::Result<HostRows> {
        let (desc, n_rows) = (source.desc(), rows.len());
        let block = desc.format.block_bytes();
        let row = desc.format.row_bytes(n_cols).unwrap_or_default();
        let from = source.rows(rows)?;
        // The pack of the previous chunk is complete and no longer shares these bytes.
        let to = Arc::make_mut(&mut self.bytes);
        to.resize(row * n_rows, 0);
        // Adjacent blocks are copied together.
        let runs: Vec<&[u32]> = blocks.chunk_by(|a, b| a + 1 == *b).collect();
        let rows =
            from.chunks_exact(source.row_bytes().max(1)).zip(to.chunks_exact_mut(row.max(1)));
        for (from, to) in rows {
            let mut at = 0;
            for run in &runs {
                let (first, n) = (run[0] as usize * block, run.len() * block);
                to[at..at + n].copy_from_slice(&from[first..first + n]);
                at += n;
            }
            to[at..].fill(0);
        }
        let bytes: Arc<Vec<u8>> = Arc::clone(&self.bytes);
        HostRows::new(Source::Owned(bytes), n_rows, n_cols, desc.format)
    }
}

/// The tensors from which the neurons of a layer are gathered.
#[derive(Debug)]
pub(crate) struct Sources {
    gate: Option<HostRows>,
    up: HostRows,
    down: HostRows,
    transpose: bool,
    orientation: Down,
    /// Rows of a predictor's last matrix, one per neuron.
    scores: Option<HostRows>,
    /// Per-neuron vectors, each with the value of an empty slot.
    vectors: Vec<(ChunkTensor, HostRows, f32)>,
    /// Number of neurons of an expert, or of the layer.
    n_per_expert: usize,
    size: ChunkSize,
}

impl Sources {
    pub(crate) fn new(
        sizing: &Sizing<'_>,
        device: &Device,
        index: usize,
        size: ChunkSize,
    ) -> Sources {
        let ffn = sizing.block(index);
        let packs = sizing.mode.packs(device, ffn, &Neurons::All);
        let transpose = packs.last().is_some_and(|down| down.pack.transpose);
        let bias = |part: &model::Affine| part.bias.clone();
        let n_ff = ffn.n_ff();
        let data = sizing.mode.predictor(sizing.model, sizing.options, index);
        // All layers use the same op, so a predictor without a bias gets zeros as its bias.
        let scores_bias = data.map(|data| match data.bias {
            Some(bias) => vector(bias),
            None => vector(&vec![0.0; n_ff]),
        });
        let vectors = [
            (ChunkTensor::BiasGate, ffn.gate.as_ref().and_then(bias), 0.0),
            (ChunkTensor::BiasUp, bias(&ffn.up), 0.0),
            // No activation reaches this threshold.
            (ChunkTensor::Threshold, thresholds(sizing.options, index, &Neurons::All), f32::MAX),
            // No threshold selects this score.
            (ChunkTensor::ScoresBias, scores_bias, f32::MIN),
        ];
        Sources {
            gate: ffn.gate.as_ref().map(|gate| gate.w.clone()),
            up: ffn.up.w.clone(),
            down: ffn.down.w.clone(),
            transpose,
            orientation: sizing.mode.orientation(ffn),
            scores: data.map(|data| data.fc2.clone()),
            n_per_expert: ffn.n_per_expert(),
            size,
            vectors: vectors
                .into_iter()
                .filter_map(|(part, all, none)| Some((part, all?, none)))
                .collect(),
        }
    }

    pub(crate) fn is_scored(&self) -> bool {
        self.scores.is_some()
    }

    /// Number of neurons of the unit that chunks do not cross: of an expert, or of the layer.
    pub(crate) fn n_per_expert(&self) -> usize {
        self.n_per_expert
    }

    /// Number of neurons whose columns of down are gathered together.
    pub(crate) fn block(&self) -> usize {
        if self.by_columns() { self.down.desc().format.block_values() } else { 1 }
    }

    fn by_columns(&self) -> bool {
        self.transpose || self.orientation == Down::AcrossNeurons
    }

    /// Number of columns of down per chunk.
    fn n_columns(&self) -> usize {
        if self.transpose { self.size.width(self.block()) } else { self.size.n }
    }

    fn columns_len(&self) -> usize {
        let desc = self.down.desc();
        let row = desc.format.row_bytes(self.n_columns()).unwrap_or_default();
        if self.by_columns() { row * self.up.desc().n_cols } else { 0 }
    }

    /// Packs `neurons` into the staging memory of the slots at `indices`.
    pub(crate) fn fill(
        &self,
        device: &Device,
        neurons: &[u32],
        columns: &mut Columns,
        indices: &TensorIndices,
        fills: &mut [SlotStaging],
    ) -> Result<()> {
        let rows: Arc<[u32]> = neurons.into();
        let spare = self.size.n - neurons.len();
        let pack_rows = |source: &HostRows, fill: &mut SlotStaging| {
            let select = Select::Rows(Arc::clone(&rows));
            let pack = PackDesc { select, spare, ..PackDesc::whole(source.desc()) };
            device.pack_into(&pack, source, fill.bytes_mut(device)?)
        };
        let at = |part| indices.find(part).expect("the shape of a layer has its tensors");
        if let Some(gate) = &self.gate {
            pack_rows(gate, &mut fills[at(ChunkTensor::Gate)])?;
        }
        pack_rows(&self.up, &mut fills[at(ChunkTensor::Up)])?;
        if let Some(scores) = &self.scores {
            pack_rows(scores, &mut fills[at(ChunkTensor::Scores)])?;
        }
        let down = &mut fills[at(ChunkTensor::Down)];
        if self.by_columns() {
            let (block, n_per_expert) = (self.block() as u32, self.n_per_expert as u32);
            // The matrices of the experts are stacked, and each has its own columns.
            let (expert, n_out) = (neurons[0] / n_per_expert, self.up.desc().n_cols);
            let matrix = expert as usize * n_out..(expert as usize + 1) * n_out;
            let neurons = || neurons.iter().map(|&n| n % n_per_expert);
            let mut blocks: Vec<u32> = neurons().map(|n| n / block).collect();
            blocks.dedup();
            let taken = columns.gather(&self.down, matrix, &blocks, self.n_columns())?;
            let mut pack = PackDesc::whole(taken.desc());
            if self.transpose {
                let number = |n: u32| blocks.partition_point(|&other| other < n / block) as u32;
                let columns = neurons().map(|n| number(n) * block + n % block);
                let select = Select::Rows(columns.collect());
                pack = PackDesc { select, transpose: true, spare, ..pack };
            }
            device.pack_into(&pack, &taken, down.bytes_mut(device)?)?;
        } else {
            pack_rows(&self.down, down)?
        }
        let list = Neurons::List(rows);
        for (part, all, none) in &self.vectors {
            let values = select_values(all, &list);
            let out = fills[at(*part)].bytes_mut(device)?;
            let (some, rest) = out.split_at_mut(4 * neurons.len());
            some.copy_from_slice(&values.rows(0..1)?);
            rest.chunks_exact_mut(4).for_each(|value| value.copy_from_slice(&none.to_le_bytes()));
        }
        Ok(())
    }
}
