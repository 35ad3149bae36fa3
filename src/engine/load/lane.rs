//! The engine's data on one device except its weights: queue, batch, scratch and counters.

use hal::op::{MAX_COUNTED_TOKENS, UnionCounts};
use hal::{Batch, Device, Operand, Queue, Tensor, TensorDesc};

use super::lists::RowLists;
use crate::error::Result;
use crate::ops::scratch::Scratch;
use crate::size::scratch::{ScratchShape, counts_union, row_counts, union_bytes};

/// The data of one device in use.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) device: Device,
    pub(crate) queue: Queue,
    pub(crate) batch: Batch<Tensor>,
    pub(crate) scratch: Scratch<Tensor>,
    /// Counters of active neurons for each recorded token count, `[n_counters, n_tokens]`.
    pub(crate) active: Vec<Tensor>,
    /// Lists of active rows; present if predictors choose neurons.
    pub(crate) lists: Option<RowLists>,
    /// Counters of active rows; present if neurons are exchanged, or while they are watched.
    hits: Option<RowCounters>,
    /// Union counts, `[n_layer, UnionCounts::N]`; present with several sequences.
    union: Option<Tensor>,
}

#[derive(Debug)]
struct RowCounters {
    /// `[n_layer, max n_ff]`.
    tensor: Tensor,
    /// The bytes of a cleared row.
    zeros: Vec<u8>,
}

/// Scratch of the output head, `[max_out, ...]`.
#[derive(Clone, Debug)]
pub(crate) struct HeadScratch {
    pub(crate) chosen: Tensor,
    pub(crate) normed: Tensor,
    pub(crate) logits: Tensor,
}

impl Lane {
    /// `counts` says whether the active rows of neurons are counted, if `shape` has counters.
    pub(crate) fn new(
        device: &Device,
        shape: &ScratchShape,
        counts: bool,
        buckets: &[usize],
    ) -> Result<Lane> {
        let scratch: Scratch<Tensor> =
            shape.body.try_map(&mut |label, desc| device.alloc(label, *desc))?;
        let mut queue = device.queue("engine")?;
        let mut active = Vec::new();
        for &n in buckets {
            active.push(device.alloc("active", shape.active(n))?);
            shape.copied().try_for_each(|n_values| queue.reserve(4 * n * n_values))?;
        }
        queue.reserve(4 * shape.batch.n_words())?;
        let lists = shape.lists.as_ref();
        let lists =
            lists.map(|lists| RowLists::new(device, &mut queue, lists, buckets)).transpose()?;
        let union = shape.union.map(|union| device.alloc("union", union)).transpose()?;
        if let (Some(desc), Some(union)) = (&shape.union, &union) {
            queue.reserve(union_bytes(desc))?;
            queue.write(union, &vec![0; union_bytes(desc)])?;
        }
        let mut lane = Lane {
            batch: device.batch(shape.batch)?,
            device: device.clone(),
            queue,
            scratch,
            active,
            lists,
            hits: None,
            union,
        };
        shape.hits.filter(|_| counts).map_or(Ok(()), |hits| lane.make_hits(hits))?;
        Ok(lane)
    }

    pub(crate) fn has_hits(&self) -> bool {
        self.hits.is_some()
    }

    /// Allocates row counters, `[n_layer, max n_ff]`. Their contents are undefined.
    pub(crate) fn make_hits(&mut self, desc: TensorDesc) -> Result<()> {
        let tensor = self.device.alloc("hits", desc)?;
        self.queue.reserve(4 * desc.n_cols)?;
        self.hits = Some(RowCounters { tensor, zeros: vec![0; 4 * desc.n_cols] });
        Ok(())
    }

    pub(crate) fn drop_hits(&mut self) {
        self.hits = None;
    }

    /// The row counters of a layer for a program of `n_tokens`, if rows are counted.
    pub(crate) fn hits(&self, layer: usize, n_tokens: usize) -> Option<Tensor> {
        let hits = self.hits.as_ref().filter(|_| n_tokens <= MAX_COUNTED_TOKENS);
        hits.map(|hits| hits.tensor.rows(layer..layer + 1))
    }

    /// Union counts of a layer for a program of `n_tokens`, if they are counted.
    pub(crate) fn union(&self, layer: usize, n_tokens: usize) -> Option<Tensor> {
        let union = self.union.as_ref().filter(|_| counts_union(n_tokens));
        union.map(|union| union.rows(layer..layer + 1))
    }

    /// Sums the union counts over all layers and clears them.
    pub(crate) fn take_union(&mut self) -> Result<[f64; UnionCounts::N]> {
        let Some(union) = self.union.clone() else { return Ok([0.0; UnionCounts::N]) };
        let mut all = vec![0.0; union.desc().n_rows * UnionCounts::N];
        self.queue.read_f32(&union, &mut all)?;
        self.queue.write(&union, &vec![0; 4 * all.len()])?;
        let mut sums = [0.0; UnionCounts::N];
        for layer in all.chunks_exact(UnionCounts::N) {
            sums.iter_mut().zip(layer).for_each(|(sum, n)| *sum += f64::from(*n));
        }
        Ok(sums)
    }

    /// Reads the row counters of a layer into `out` and clears them.
    pub(crate) fn take_hits(&mut self, layer: usize, out: &mut Vec<f32>) -> Result<()> {
        self.read_hits(layer, out)?;
        self.clear_hits(layer)
    }

    pub(crate) fn read_hits(&mut self, layer: usize, out: &mut Vec<f32>) -> Result<()> {
        let Some(hits) = self.hits(layer, 1) else { return Ok(()) };
        out.resize(hits.desc().n_cols, 0.0);
        Ok(self.queue.read_f32(&hits, out)?)
    }

    pub(crate) fn clear_hits(&mut self, layer: usize) -> Result<()> {
        let Some(RowCounters { tensor, zeros }) = &self.hits else { return Ok(()) };
        Ok(self.queue.write(&tensor.rows(layer..layer + 1), zeros)?)
    }

    pub(crate) fn head_scratch(&mut self, shape: &ScratchShape) -> Result<HeadScratch> {
        let [chosen, normed, logits] = shape.head();
        for n_rows in row_counts(shape.max_out) {
            self.queue.reserve(4 * n_rows * shape.n_logits.max(shape.n_embd))?;
        }
        Ok(HeadScratch {
            chosen: self.device.alloc(chosen.0, chosen.1)?,
            normed: self.device.alloc(normed.0, normed.1)?,
            logits: self.device.alloc(logits.0, logits.1)?,
        })
    }
}
