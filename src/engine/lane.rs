//! What the engine holds on one device besides weights: a queue, the step's facts, scratch.

use std::convert::Infallible;

use hal::format::Format;
use hal::op::MOST_COUNTED;
use hal::{Batch, BatchShape, Bytes, Device, Operand, Queue, Tensor, TensorDesc};

use crate::model::{Hyper, Model};

use super::predict::{ListShape, Lists};
use super::{EngineOptions, Result};

/// Shapes of the scratch of a lane, the same on every device.
#[derive(Clone, Debug)]
pub(super) struct ScratchShape {
    pub(super) max_out: usize,
    pub(super) n_layer: usize,
    pub(super) n_embd: usize,
    pub(super) n_vocab: usize,
    /// Experts to choose from; 0 where there are none.
    pub(super) n_expert: usize,
    /// `[n_ubatch, ...]`.
    pub(super) body: Scratch<TensorDesc>,
    pub(super) batch: BatchShape,
    /// Present if predictors choose neurons.
    pub(super) lists: Option<ListShape>,
    /// Counters of rows that were carried through, a row of neurons for each layer; present if neurons change sides.
    pub(super) hits: Option<TensorDesc>,
    /// Whether blocks have vectors over their neurons.
    vectors: bool,
}

impl ScratchShape {
    /// For `n_devices`, used or not. `counts` says whether rows are counted.
    pub(super) fn new(
        model: &Model,
        options: &EngineOptions,
        n_devices: usize,
        counts: bool,
    ) -> ScratchShape {
        let hyper = &model.hyper;
        let (n_ff, n_layer) = (hyper.n_ff, hyper.n_layer);
        let lists = ListShape { n_ff, n_layer, shared: n_devices > 1 };
        ScratchShape {
            max_out: options.max_out(),
            n_layer: hyper.n_layer,
            n_embd: hyper.n_embd,
            n_vocab: model.n_vocab(),
            n_expert: hyper.experts.map_or(0, |experts| experts.n),
            body: Scratch::shapes(hyper, options.n_ubatch),
            batch: BatchShape {
                max_tokens: options.n_ubatch,
                max_seqs: options.n_seq,
                max_blocks: options.n_blocks(),
            },
            lists: options.predicts(model).then_some(lists),
            hits: counts.then(|| TensorDesc::new(n_layer, n_ff, Format::F32)),
            vectors: options.has_thresholds()
                || model.layers.iter().any(|layer| layer.ffn.biases().next().is_some()),
        }
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
        TensorDesc::new(n_counters(self.n_layer), n_tokens, Format::F32)
    }

    /// Bytes that a lane takes on `device`, staging included, for the ladder's `rungs`.
    pub(super) fn size(&self, device: &Device, rungs: &[usize]) -> Bytes {
        let size = |desc: &TensorDesc| device.alloc_size(desc);
        let mut body = Bytes(0);
        self.body.map(&mut |desc| body += size(desc));
        let staging = Bytes(rungs.iter().map(|&n| self.staging(n)).sum::<usize>() as u64);
        let active: Bytes = rungs.iter().map(|&n| size(&self.active(n))).sum();
        let lists = self.lists.map_or(Bytes(0), |lists| lists.size(device, rungs));
        let batch = size(&self.words()) + Bytes(4 * self.batch.n_words() as u64);
        // Fetched and written a layer at a time.
        let hits = self.hits.map_or(Bytes(0), |hits| size(&hits) + self.hits_staging());
        body + batch + staging + active + lists + hits
    }

    /// Bytes of the head's scratch and staging (logits are fetched row by row).
    pub(super) fn head_size(&self, device: &Device) -> Bytes {
        let body: Bytes = self.head().iter().map(|(_, desc)| device.alloc_size(desc)).sum();
        body + Bytes(4 * self.n_vocab as u64)
    }

    /// Staging for a layer's counters of rows and, of as many words, for where its neurons live; and for the vectors over
    /// the neurons of every layer's share.
    fn hits_staging(&self) -> Bytes {
        let Some(hits) = self.hits else { return Bytes(0) };
        let vectors = if self.vectors { hits.n_rows } else { 0 };
        Bytes(4 * (hits.n_cols * (1 + vectors)) as u64)
    }

    /// Staging for the residual, the counters and the experts' weights of one rung.
    fn staging(&self, n: usize) -> usize {
        4 * n * (self.n_embd + n_counters(self.n_layer) + self.n_expert)
    }
}

/// Rows of counters of active neurons: the layers', and one for what streams, of whatever layer.
pub(super) fn n_counters(n_layer: usize) -> usize {
    n_layer + 1
}

/// One device at work.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) device: Device,
    pub(super) queue: Queue,
    pub(super) batch: Batch<Tensor>,
    pub(super) scratch: Scratch<Tensor>,
    /// Counters of active neurons per rung of the ladder, `[n_counters, n_tokens]`.
    pub(super) active: Vec<Tensor>,
    /// Present if predictors choose neurons.
    pub(super) lists: Option<Lists>,
    /// Counters of rows that were carried through, `[n_layer, n_ff]`; present if neurons change sides.
    hits: Option<Tensor>,
}

/// Scratch tensors or their shapes, all `[n_ubatch, ...]`; programs use their first rows.
#[derive(Clone, Debug)]
pub(super) struct Scratch<T> {
    pub(super) x: T,
    pub(super) h: T,
    pub(super) q: T,
    pub(super) k: T,
    pub(super) v: T,
    pub(super) attention: T,
    pub(super) y: T,
    /// Input of shares that another lane handed over.
    pub(super) handed: T,
    /// What each expert weighs, decided at a layer's home; present if there are experts.
    pub(super) weights: Option<T>,
    /// What the shared expert weighs.
    pub(super) shared_weight: Option<T>,
    /// Present if keys and values are latent.
    pub(super) latent: Option<LatentScratch<T>>,
}

/// Between a layer's normed input and its keys and values.
#[derive(Clone, Debug)]
pub(super) struct LatentScratch<T> {
    pub(super) folded: T,
    pub(super) normed: T,
    pub(super) turning: T,
    pub(super) unfolded: T,
}

impl Scratch<TensorDesc> {
    fn shapes(hyper: &Hyper, n_tokens: usize) -> Scratch<TensorDesc> {
        let f32 = |cols| TensorDesc::new(n_tokens, cols, Format::F32);
        let Hyper { n_embd, n_head, n_rot, d_head, d_value, d_latent, experts, .. } = *hyper;
        Scratch {
            x: f32(n_embd),
            h: f32(n_embd),
            q: f32(hyper.n_q()),
            k: f32(hyper.n_kv()),
            v: f32(hyper.n_value()),
            attention: f32(hyper.n_gathered()),
            y: f32(n_embd),
            handed: f32(n_embd),
            weights: experts.map(|experts| f32(experts.n)),
            shared_weight: experts.map(|_| f32(1)),
            latent: (d_latent > 0).then(|| LatentScratch {
                folded: f32(d_latent),
                normed: f32(d_latent),
                turning: f32(n_rot),
                unfolded: f32(n_head * (d_head - n_rot + d_value)),
            }),
        }
    }
}

/// Makes one tensor of a scratch, of this label.
type Alloc<'a, T, U, E> = dyn FnMut(&'static str, &T) -> std::result::Result<U, E> + 'a;

impl<T> Scratch<T> {
    fn try_map<U, E>(&self, f: &mut Alloc<'_, T, U, E>) -> std::result::Result<Scratch<U>, E> {
        let maybe = |label, part: &Option<T>, f: &mut Alloc<'_, T, U, E>| {
            part.as_ref().map(|part| f(label, part)).transpose()
        };
        Ok(Scratch {
            x: f("x", &self.x)?,
            h: f("h", &self.h)?,
            q: f("q", &self.q)?,
            k: f("k", &self.k)?,
            v: f("v", &self.v)?,
            attention: f("attention", &self.attention)?,
            y: f("y", &self.y)?,
            handed: f("handed", &self.handed)?,
            weights: maybe("weights", &self.weights, f)?,
            shared_weight: maybe("shared_weight", &self.shared_weight, f)?,
            latent: match &self.latent {
                Some(latent) => Some(LatentScratch {
                    folded: f("folded", &latent.folded)?,
                    normed: f("normed", &latent.normed)?,
                    turning: f("turning", &latent.turning)?,
                    unfolded: f("unfolded", &latent.unfolded)?,
                }),
                None => None,
            },
        })
    }

    /// The same over another kind of operand.
    pub(super) fn map<U>(&self, f: &mut dyn FnMut(&T) -> U) -> Scratch<U> {
        let mapped: std::result::Result<_, Infallible> =
            self.try_map(&mut |_, tensor| Ok(f(tensor)));
        match mapped {
            Ok(scratch) => scratch,
            Err(never) => match never {},
        }
    }
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
        let scratch: Scratch<Tensor> =
            shape.body.try_map(&mut |label, desc| device.alloc(label, *desc))?;
        let mut queue = device.queue("engine")?;
        let mut active = Vec::new();
        for &n in rungs {
            active.push(device.alloc("active", shape.active(n))?);
            queue.reserve(4 * n * shape.n_embd)?;
            queue.reserve(4 * n * n_counters(shape.n_layer))?;
            queue.reserve(4 * n * shape.n_expert)?;
        }
        queue.reserve(4 * shape.batch.n_words())?;
        let lists = shape.lists.as_ref();
        let lists = lists.map(|lists| Lists::new(device, &mut queue, lists, rungs)).transpose()?;
        let hits = shape.hits.map(|hits| device.alloc("hits", hits)).transpose()?;
        if let Some(desc) = shape.hits {
            queue.reserve(4 * desc.n_cols)?;
        }
        Ok(Lane {
            batch: device.batch(shape.batch)?,
            device: device.clone(),
            queue,
            scratch,
            active,
            lists,
            hits,
        })
    }

    /// The counters of a layer for a program of `n_tokens`, if there are any.
    pub(super) fn hits(&self, layer: usize, n_tokens: usize) -> Option<Tensor> {
        let hits = self.hits.as_ref().filter(|_| n_tokens <= MOST_COUNTED);
        hits.map(|hits| hits.rows(layer..layer + 1))
    }

    /// Fetches the counters of a layer to `out` and sets them to 0.
    pub(super) fn take_hits(&mut self, layer: usize, out: &mut Vec<f32>) -> Result<()> {
        let Some(hits) = self.hits(layer, 1) else { return Ok(()) };
        out.resize(hits.desc().n_cols, 0.0);
        self.queue.read_f32(&hits, out)?;
        self.clear_hits(layer)
    }

    /// Sets the counters of a layer to 0.
    pub(super) fn clear_hits(&mut self, layer: usize) -> Result<()> {
        let Some(hits) = self.hits(layer, 1) else { return Ok(()) };
        Ok(self.queue.write(&hits, &vec![0; 4 * hits.desc().n_cols])?)
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
