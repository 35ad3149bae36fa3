//! The engine's data on one device besides weights: queue, batch facts, scratch.

use std::convert::Infallible;

use hal::format::Format;
use hal::op::MOST_COUNTED;
use hal::{Batch, BatchShape, Bytes, Device, Operand, Queue, Tensor, TensorDesc};

use model::Model;

use super::mixer::{scratch_of, shapes};
use super::predict::{ListShape, Lists};
use super::{EngineOptions, Result};

/// Shapes of a lane's scratch, the same on every device.
#[derive(Clone, Debug)]
pub(super) struct ScratchShape {
    pub(super) max_out: usize,
    pub(super) n_layer: usize,
    pub(super) n_embd: usize,
    pub(super) n_vocab: usize,
    /// Number of experts; 0 in dense models.
    pub(super) n_expert: usize,
    /// `[n_ubatch, ...]`.
    pub(super) body: Scratch<TensorDesc>,
    pub(super) batch: BatchShape,
    /// Present if predictors choose neurons.
    pub(super) lists: Option<ListShape>,
    /// Counters of active rows, one row per layer, as wide as the largest block; present if
    /// neurons are exchanged.
    pub(super) hits: Option<TensorDesc>,
    /// Whether blocks have per-neuron vectors.
    vectors: bool,
}

impl ScratchShape {
    /// For `n_devices` devices, used or not. `counts` says whether rows are counted.
    pub(super) fn new(
        model: &Model,
        options: &EngineOptions,
        n_devices: usize,
        counts: bool,
    ) -> ScratchShape {
        let hyper = &model.hyper;
        let (n_ff, n_layer) = (model.max_n_ff(), hyper.n_layer);
        let lists = ListShape { n_ff, n_layer, shared: n_devices > 1 };
        ScratchShape {
            max_out: options.max_out(),
            n_layer: hyper.n_layer,
            n_embd: hyper.n_embd,
            n_vocab: model.n_vocab(),
            n_expert: model.max_experts(),
            body: Scratch::shapes(model, options.n_ubatch),
            batch: BatchShape {
                max_tokens: options.n_ubatch,
                max_seqs: options.n_seq,
                max_blocks: options.n_blocks(),
            },
            lists: options.predicts(model).then_some(lists),
            hits: counts.then(|| TensorDesc::new(n_layer, n_ff, Format::F32)),
            vectors: options.has_thresholds()
                || model.blocks().any(|(_, ffn)| ffn.biases().next().is_some()),
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

    /// Bytes of a lane on `device`, staging included, for the ladder's `rungs`.
    pub(super) fn size(&self, device: &Device, rungs: &[usize]) -> Bytes {
        let size = |desc: &TensorDesc| device.alloc_size(desc);
        let mut body = Bytes(0);
        self.body.map(&mut |desc| body += size(desc));
        let staging = Bytes(rungs.iter().map(|&n| self.staging(n)).sum::<usize>() as u64);
        let active: Bytes = rungs.iter().map(|&n| size(&self.active(n))).sum();
        let lists = self.lists.map_or(Bytes(0), |lists| lists.size(device, rungs));
        let batch = size(&self.words()) + Bytes(4 * self.batch.n_words() as u64);
        // Fetched and written one layer at a time.
        let hits = self.hits.map_or(Bytes(0), |hits| size(&hits) + self.hits_staging());
        body + batch + staging + active + lists + hits
    }

    /// Bytes of the head's scratch and staging (logits are fetched row by row).
    pub(super) fn head_size(&self, device: &Device) -> Bytes {
        let body: Bytes = self.head().iter().map(|(_, desc)| device.alloc_size(desc)).sum();
        body + Bytes(4 * self.n_vocab as u64)
    }

    /// Bytes of staging for a layer's row counters, its table of slots (the same number of words),
    /// and the per-neuron vectors of every layer's share.
    fn hits_staging(&self) -> Bytes {
        let Some(hits) = self.hits else { return Bytes(0) };
        let vectors = if self.vectors { hits.n_rows } else { 0 };
        Bytes(4 * (hits.n_cols * (1 + vectors)) as u64)
    }

    /// Bytes of staging for the residual, the counters and the expert weights of one rung.
    fn staging(&self, n: usize) -> usize {
        4 * n * (self.n_embd + n_counters(self.n_layer) + self.n_expert)
    }
}

/// Rows of counters of active neurons: one per layer, and one for streamed weights of all layers.
pub(super) fn n_counters(n_layer: usize) -> usize {
    n_layer + 1
}

/// One device in use.
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
    /// Counters of active rows, `[n_layer, most neurons]`; present if neurons are exchanged.
    hits: Option<Tensor>,
}

/// Scratch tensors or their shapes, all `[n_ubatch, ...]`; programs use their first rows.
#[derive(Clone, Debug)]
pub(super) struct Scratch<T> {
    pub(super) x: T,
    pub(super) h: T,
    pub(super) y: T,
    /// Input of shares that another device handed off.
    pub(super) handed: T,
    /// Weight of each expert, computed on a layer's home; present if there are experts.
    pub(super) weights: Option<T>,
    /// Weight of the shared expert.
    pub(super) shared_weight: Option<T>,
    /// Scratch of the mixers by use and columns; layers of the same sizes share it.
    mixers: Vec<(Role, usize, T)>,
}

/// The use of a scratch tensor in a mixer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Queries; the input of a short convolution.
    Query,
    /// Queries after their convolution.
    QueryConv,
    /// Queries and gates as the output of one matrix.
    QueryGate,
    /// Gates of attention's output.
    Gate,
    /// Keys.
    Key,
    /// Keys after their convolution.
    KeyConv,
    /// The columns of keys that RoPE is applied to, one for all heads (MLA).
    KeyRope,
    /// Values.
    Value,
    /// The latent vector of keys and values (MLA).
    LatentKv,
    /// The same after its norm.
    LatentKvNormed,
    /// Keys and values expanded from it.
    LatentExpanded,
    /// Output of the mixer before the output matrix.
    Mixed,
    /// Decay of a gated delta rule.
    Decay,
    /// Writing strength of a gated delta rule.
    Beta,
}

impl Role {
    fn label(self) -> &'static str {
        match self {
            Role::Query => "q",
            Role::QueryConv => "q_conv",
            Role::QueryGate => "q_gate",
            Role::Gate => "gate",
            Role::Key => "k",
            Role::KeyConv => "k_conv",
            Role::KeyRope => "k_rope",
            Role::Value => "v",
            Role::LatentKv => "latent",
            Role::LatentKvNormed => "latent_normed",
            Role::LatentExpanded => "latent_expanded",
            Role::Mixed => "mixed",
            Role::Decay => "decay",
            Role::Beta => "beta",
        }
    }
}

impl Scratch<TensorDesc> {
    fn shapes(model: &Model, n_tokens: usize) -> Scratch<TensorDesc> {
        let f32 = |cols| TensorDesc::new(n_tokens, cols, Format::F32);
        let (n_embd, n_expert) = (model.hyper.n_embd, model.max_experts());
        let mut mixers: Vec<(Role, usize, TensorDesc)> = Vec::new();
        for (role, cols) in model.layers.iter().flat_map(|layer| scratch_of(&shapes(layer))) {
            if !mixers.iter().any(|known| (known.0, known.1) == (role, cols)) {
                mixers.push((role, cols, f32(cols)));
            }
        }
        Scratch {
            x: f32(n_embd),
            h: f32(n_embd),
            y: f32(n_embd),
            handed: f32(n_embd),
            weights: (n_expert > 0).then(|| f32(n_expert)),
            shared_weight: (n_expert > 0).then(|| f32(1)),
            mixers,
        }
    }
}

/// Allocates one scratch tensor with this label.
type Alloc<'a, T, U, E> = dyn FnMut(&'static str, &T) -> std::result::Result<U, E> + 'a;

impl<T> Scratch<T> {
    fn try_map<U, E>(&self, f: &mut Alloc<'_, T, U, E>) -> std::result::Result<Scratch<U>, E> {
        let maybe = |label, part: &Option<T>, f: &mut Alloc<'_, T, U, E>| {
            part.as_ref().map(|part| f(label, part)).transpose()
        };
        Ok(Scratch {
            x: f("x", &self.x)?,
            h: f("h", &self.h)?,
            y: f("y", &self.y)?,
            handed: f("handed", &self.handed)?,
            weights: maybe("weights", &self.weights, f)?,
            shared_weight: maybe("shared_weight", &self.shared_weight, f)?,
            mixers: self
                .mixers
                .iter()
                .map(|(role, cols, tensor)| Ok((*role, *cols, f(role.label(), tensor)?)))
                .collect::<std::result::Result<_, E>>()?,
        })
    }

    /// The tensor of `cols` columns that a mixer uses for `role`; [`scratch_of`] lists all of
    /// them.
    pub(super) fn at(&self, role: Role, cols: usize) -> &T {
        let found = self.mixers.iter().find(|known| (known.0, known.1) == (role, cols));
        found.map(|(_, _, tensor)| tensor).expect("scratch was made for all layers")
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

    /// The row counters of a layer for a program of `n_tokens`, if rows are counted.
    pub(super) fn hits(&self, layer: usize, n_tokens: usize) -> Option<Tensor> {
        let hits = self.hits.as_ref().filter(|_| n_tokens <= MOST_COUNTED);
        hits.map(|hits| hits.rows(layer..layer + 1))
    }

    /// Reads the row counters of a layer into `out` and clears them.
    pub(super) fn take_hits(&mut self, layer: usize, out: &mut Vec<f32>) -> Result<()> {
        let Some(hits) = self.hits(layer, 1) else { return Ok(()) };
        out.resize(hits.desc().n_cols, 0.0);
        self.queue.read_f32(&hits, out)?;
        self.clear_hits(layer)
    }

    /// Clears the row counters of a layer.
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
