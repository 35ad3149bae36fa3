//! What the engine holds on one device besides weights: a queue, the step's facts, scratch.

use hal::format::Format;
use hal::{Batch, BatchShape, Bytes, Device, Queue, Tensor, TensorDesc};

use crate::model::Model;

use super::predict::{ListShape, Lists};
use super::{EngineOptions, Result};

/// Shapes of the scratch of a lane, the same on every device.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScratchShape {
    pub(super) n_ubatch: usize,
    pub(super) max_out: usize,
    pub(super) n_layer: usize,
    pub(super) n_embd: usize,
    pub(super) n_q: usize,
    pub(super) n_kv: usize,
    pub(super) n_vocab: usize,
    pub(super) batch: BatchShape,
    /// Present if predictors choose neurons.
    pub(super) lists: Option<ListShape>,
}

impl ScratchShape {
    /// For `n_devices`, used or not.
    pub(super) fn new(model: &Model, options: &EngineOptions, n_devices: usize) -> ScratchShape {
        let hyper = &model.hyper;
        let (n_ff, n_layer) = (hyper.n_ff, hyper.n_layer);
        let lists = ListShape { n_ff, n_layer, shared: n_devices > 1 };
        ScratchShape {
            n_ubatch: options.n_ubatch,
            max_out: options.max_out(),
            n_layer: hyper.n_layer,
            n_embd: hyper.n_embd,
            n_q: hyper.n_q(),
            n_kv: hyper.n_kv(),
            n_vocab: model.n_vocab(),
            batch: BatchShape {
                max_tokens: options.n_ubatch,
                max_seqs: options.n_seq,
                max_blocks: options.n_blocks(),
            },
            lists: options.predicts(model).then_some(lists),
        }
    }

    fn body(&self) -> [(&'static str, TensorDesc); 8] {
        let f32 = |cols| TensorDesc::new(self.n_ubatch, cols, Format::F32);
        [
            ("x", f32(self.n_embd)),
            ("h", f32(self.n_embd)),
            ("q", f32(self.n_q)),
            ("k", f32(self.n_kv)),
            ("v", f32(self.n_kv)),
            ("attention", f32(self.n_q)),
            ("y", f32(self.n_embd)),
            ("handed", f32(self.n_embd)),
        ]
    }

    fn head(&self) -> [(&'static str, TensorDesc); 3] {
        let f32 = |cols| TensorDesc::new(self.max_out, cols, Format::F32);
        [("chosen", f32(self.n_embd)), ("normed", f32(self.n_embd)), ("logits", f32(self.n_vocab))]
    }

    fn words(&self) -> TensorDesc {
        TensorDesc::new(1, self.batch.n_words(), Format::U32)
    }

    /// Counters of one rung of the ladder.
    fn active(&self, n_tokens: usize) -> TensorDesc {
        TensorDesc::new(self.n_layer, n_tokens, Format::F32)
    }

    /// Bytes that a lane takes on `device`, staging included, for the ladder's `rungs`.
    pub(super) fn size(&self, device: &Device, rungs: &[usize]) -> Bytes {
        let size = |desc: &TensorDesc| device.alloc_size(desc);
        let body: Bytes = self.body().iter().map(|(_, desc)| size(desc)).sum();
        let staging = Bytes(rungs.iter().map(|&n| self.staging(n)).sum::<usize>() as u64);
        let active: Bytes = rungs.iter().map(|&n| size(&self.active(n))).sum();
        let lists = self.lists.map_or(Bytes(0), |lists| lists.size(device, rungs));
        let batch = size(&self.words()) + Bytes(4 * self.batch.n_words() as u64);
        body + batch + staging + active + lists
    }

    /// Bytes of the head's scratch and staging (logits are fetched row by row).
    pub(super) fn head_size(&self, device: &Device) -> Bytes {
        let body: Bytes = self.head().iter().map(|(_, desc)| device.alloc_size(desc)).sum();
        body + Bytes(4 * self.n_vocab as u64)
    }

    /// Staging for the residual and the counters of one rung.
    fn staging(&self, n: usize) -> usize {
        4 * n * (self.n_embd + self.n_layer)
    }
}

/// One device at work.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) device: Device,
    pub(super) queue: Queue,
    pub(super) batch: Batch<Tensor>,
    pub(super) scratch: Scratch,
    /// Counters of active neurons per rung of the ladder, `[n_layer, n_tokens]`.
    pub(super) active: Vec<Tensor>,
    /// Present if predictors choose neurons.
    pub(super) lists: Option<Lists>,
}

/// Scratch tensors, all `[n_ubatch, ...]`; programs use their first rows.
#[derive(Clone, Debug)]
pub(super) struct Scratch {
    pub(super) x: Tensor,
    pub(super) h: Tensor,
    pub(super) q: Tensor,
    pub(super) k: Tensor,
    pub(super) v: Tensor,
    pub(super) attention: Tensor,
    pub(super) y: Tensor,
    /// Input of shares that another lane handed over.
    pub(super) handed: Tensor,
}

/// Scratch of the output head, `[max_out, ...]`.
#[derive(Clone, Debug)]
pub(super) struct HeadScratch {
    pub(super) chosen: Tensor,
    pub(super) normed: Tensor,
    pub(super) logits: Tensor,
}

impl Lane {
    pub(super) fn new(device: &Device, shape: &ScratchShape, rungs: &[usize]) -> Result<Lane> {
        let mut tensors = Vec::new();
        for (label, desc) in shape.body() {
            tensors.push(device.alloc(label, desc)?);
        }
        let Ok([x, h, q, k, v, attention, y, handed]) = <[Tensor; 8]>::try_from(tensors) else {
            unreachable!("body() lists eight tensors")
        };
        let mut queue = device.queue("engine")?;
        let mut active = Vec::new();
        for &n in rungs {
            active.push(device.alloc("active", shape.active(n))?);
            queue.reserve(4 * n * shape.n_embd)?;
            queue.reserve(4 * n * shape.n_layer)?;
        }
        queue.reserve(4 * shape.batch.n_words())?;
        let lists = shape.lists.as_ref();
        let lists = lists.map(|lists| Lists::new(device, &mut queue, lists, rungs)).transpose()?;
        Ok(Lane {
            batch: device.batch(shape.batch)?,
            device: device.clone(),
            queue,
            scratch: Scratch { x, h, q, k, v, attention, y, handed },
            active,
            lists,
        })
    }

    pub(super) fn head_scratch(&mut self, shape: &ScratchShape) -> Result<HeadScratch> {
        let [chosen, normed, logits] = shape.head();
        self.queue.reserve(4 * shape.n_vocab)?;
        Ok(HeadScratch {
            chosen: self.device.alloc(chosen.0, chosen.1)?,
            normed: self.device.alloc(normed.0, normed.1)?,
            logits: self.device.alloc(logits.0, logits.1)?,
        })
    }
}
