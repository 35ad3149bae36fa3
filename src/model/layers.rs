//! Reads the layers of a model one by one, each with its own sizes.

use std::ops::Range;
use std::sync::Arc;

use hal::HostRows;
use hal::op::{Activation, FfnKind};

use super::attention::AttentionSizes;
use super::experts::ExpertKeys;
use super::ffn_reader::JOINT;
use super::heads::{self, Heads, Ropes};
use super::hyper::Keys;
use super::layer::{Frame, LayerWeights};
use super::mixer::Mixer;
use super::reader::{MatrixStack, Reader, f32_matrix};
use super::rope::RopeTable;
use super::rope_scaling::Scaling;
use super::stacks::Stacks;
use super::{
    Affine, ArchSpec, BlockKind, Clamp, DenseBeside, EmbeddingNorm, Error, Experts, Hyper,
    PerLayer, xielu,
};

/// The router, which all layers with experts have.
const ROUTER: &str = "ffn_gate_inp.weight";

/// Everything needed to read the layers of a model.
pub(super) struct Layers<'a> {
    pub(super) reader: &'a Reader<'a>,
    keys: &'a Keys<'a>,
    pub(super) spec: &'a ArchSpec,
    pub(super) hyper: &'a Hyper,
    pub(super) ffn_kind: FfnKind,
    activation: Activation,
    /// Limits of the activation in dense blocks and shared experts, and in experts, of each layer;
    /// 0 for none.
    limits: [Vec<f32>; 2],
    /// The activation of each layer, if they differ.
    activations: Option<Vec<Activation>>,
    pub(super) heads: Heads,
    pub(super) ropes: Ropes,
    /// Number of neurons of the dense block of each layer; 0 in layers without a block.
    n_ff: Vec<usize>,
    experts: Option<ExpertKeys>,
    pub(super) stacks: Option<Stacks>,
}

impl<'a> Layers<'a> {
    pub(super) fn new(
        reader: &'a Reader<'a>,
        keys: &'a Keys<'a>,
        spec: &'a ArchSpec,
        hyper: &'a Hyper,
        (ffn_kind, activation): (FfnKind, Activation),
        scaling: &Scaling,
    ) -> Result<Layers<'a>, Error> {
        const NEURONS: &str = "feed_forward_length";
        let heads = Heads::read(keys, spec, hyper, scaling)?;
        let ropes = Ropes::read(reader, keys, spec, &heads, scaling)?;
        let n_listed = hyper.n_layer + hyper.n_nextn;
        let has_ffn = spec.feed_forward;
        let experts = if has_ffn { ExpertKeys::read(keys, spec, n_listed)? } else { None };
        let n_ff = if has_ffn { keys.per_layer(NEURONS, n_listed)? } else { None };
        let n_ff = match n_ff {
            Some(n_ff) if spec.half_n_ff => n_ff.iter().map(|n_ff| n_ff / 2).collect(),
            Some(n_ff) => n_ff,
            None if has_ffn && experts.is_none() => {
                return Err(keys.missing(NEURONS, "the number of neurons in a layer"));
            }
            None => vec![0; n_listed],
        };
        let limits = match spec.clamp {
            Clamp::None => [vec![0.0; n_listed], vec![0.0; n_listed]],
            Clamp::Gate | Clamp::Activated => {
                const SHARED: &str = "swiglu_clamp_shexp";
                let of_experts = keys.limits("swiglu_clamp_exp", n_listed)?;
                let has_shared = keys.metadata.get(&keys.name(SHARED)).is_some();
                if spec.clamp == Clamp::Gate && !has_shared {
                    [of_experts.clone(), of_experts]
                } else {
                    [keys.limits(SHARED, n_listed)?, of_experts]
                }
            }
        };
        let activations = xielu::read(keys, activation, n_listed)?;
        Ok(Layers {
            reader,
            keys,
            spec,
            hyper,
            ffn_kind,
            activation,
            limits,
            activations,
            heads,
            ropes,
            n_ff,
            experts,
            stacks: Stacks::read(keys, spec, hyper)?,
        })
    }

    pub(super) fn read(&self) -> Result<Vec<LayerWeights>, Error> {
        let layer = |index| {
            let layer = LayerReader { layers: self, index };
            let experts = layer.experts_of_layer()?;
            let experts = experts.as_ref();
            Ok(LayerWeights { frame: layer.frame(experts)?, ffn: layer.ffn(experts)? })
        };
        let layers: Vec<LayerWeights> =
            (0..self.hyper.n_layer).map(layer).collect::<Result<_, Error>>()?;
        for (index, layer) in layers.iter().enumerate() {
            let Some(source) = layer.frame.mixer.kv_source() else { continue };
            if !layers[source].frame.mixer.has_kv() {
                return Err(self.heads.no_source(self.keys, index));
            }
        }
        Ok(layers)
    }
}

/// Reads one layer. [`ArchSpec::mixer`] reads the mixer with it.
pub struct LayerReader<'a> {
    pub(super) layers: &'a Layers<'a>,
    index: usize,
}

impl std::fmt::Debug for LayerReader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LayerReader").field("index", &self.index).finish_non_exhaustive()
    }
}

/// Methods for the families' [`ArchSpec::mixer`] functions.
impl LayerReader<'_> {
    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// Width of the residual.
    pub(super) fn n_embd(&self) -> usize {
        self.layers.hyper.n_embd
    }

    pub(super) fn keys(&self) -> &Keys<'_> {
        self.layers.keys
    }

    /// Number of entries of the file's per-layer lists, which include the layers that are not run.
    pub(super) fn n_listed(&self) -> usize {
        self.layers.hyper.n_layer + self.layers.hyper.n_nextn
    }

    pub(super) fn sizes(&self) -> AttentionSizes {
        let Layers { heads, hyper, .. } = self.layers;
        let sizes = heads.sizes(self.index);
        if hyper.causal {
            return sizes;
        }
        AttentionSizes { window: Some(heads::around(sizes.window)), ..sizes }
    }

    /// RoPE of layers without a sliding window.
    pub(super) fn global_rope(&self) -> Arc<RopeTable> {
        Arc::clone(&self.layers.ropes.global)
    }

    pub(super) fn n_layer(&self) -> usize {
        self.layers.hyper.n_layer
    }

    pub(super) fn tensor(&self, part: &str) -> String {
        format!("blk.{}.{part}", self.file_block())
    }

    pub(super) fn has(&self, part: &str) -> bool {
        self.layers.reader.has(&self.tensor(part))
    }

    /// Reads `part.weight` of shape `[rows, cols]` and, if the file has it, `part.bias`.
    pub(super) fn affine(&self, part: &str, rows: usize, cols: usize) -> Result<Affine, Error> {
        self.layers.reader.affine(&self.tensor(part), rows, cols)
    }

    /// As [`LayerReader::affine`], but only the rows in `range`.
    pub(super) fn affine_rows(
        &self,
        part: &str,
        rows: usize,
        cols: usize,
        range: Range<usize>,
    ) -> Result<Affine, Error> {
        self.layers.reader.affine_rows(&self.tensor(part), rows, cols, range)
    }

    /// As [`LayerReader::affine`], but only the rows in `ranges`, one range after the other.
    pub(super) fn affine_parts(
        &self,
        part: &str,
        rows: usize,
        cols: usize,
        ranges: impl Iterator<Item = Range<usize>>,
    ) -> Result<Affine, Error> {
        let parts: Vec<Affine> = ranges
            .map(|range| self.affine_rows(part, rows, cols, range))
            .collect::<Result<_, _>>()?;
        self.layers.reader.joined_rows(&self.tensor(part), parts)
    }

    /// Marks a tensor as used although no op reads it.
    pub(super) fn skip(&self, tensor: &str) {
        self.layers.reader.skip(&self.tensor(tensor));
    }

    /// Reads the rows in `range` of a tensor of shape `[rows, cols]`, as F32.
    pub(super) fn f32_rows(
        &self,
        tensor: &str,
        rows: usize,
        cols: usize,
        range: Range<usize>,
    ) -> Result<HostRows, Error> {
        self.layers.reader.f32_rows(&self.tensor(tensor), rows, cols, range)
    }

    /// As [`LayerReader::affine_rows`], as F32.
    pub(super) fn f32_affine_rows(
        &self,
        part: &str,
        rows: usize,
        cols: usize,
        range: Range<usize>,
    ) -> Result<Affine, Error> {
        self.layers.reader.f32_affine_rows(&self.tensor(part), rows, cols, range)
    }

    /// Reads a tensor of shape `[rows, cols]` as one row of F32.
    pub(super) fn f32_row(
        &self,
        tensor: &str,
        rows: usize,
        cols: usize,
    ) -> Result<HostRows, Error> {
        self.layers.reader.f32_row(&self.tensor(tensor), rows, cols)
    }

    /// An F32 row of `n` copies of `value`.
    pub(super) fn constant(&self, value: f32, n: usize) -> HostRows {
        f32_matrix(1, &vec![value; n])
    }

    /// The `n` values of a tensor of any shape.
    pub(super) fn flat(&self, tensor: &str, n: usize) -> Result<Vec<f32>, Error> {
        self.layers.reader.flat(&self.tensor(tensor), n)
    }

    /// Number of rows of a tensor with `cols` columns, which may be any number.
    pub(super) fn n_rows(&self, tensor: &str, cols: usize) -> Result<usize, Error> {
        self.layers.reader.n_rows(&self.tensor(tensor), cols, "any rank")
    }

    /// Reads a tensor of shape `[rows, cols]`.
    pub(super) fn matrix(&self, tensor: &str, rows: usize, cols: usize) -> Result<HostRows, Error> {
        self.layers.reader.matrix(&self.tensor(tensor), rows, cols)
    }

    /// Reads one of stacked matrices.
    pub(super) fn stacked(
        &self,
        tensor: &str,
        stack: MatrixStack,
        index: usize,
    ) -> Result<HostRows, Error> {
        let rows = index * stack.rows..(index + 1) * stack.rows;
        self.layers.reader.rows_of(&self.tensor(tensor), stack, rows)
    }

    /// Reads weight and bias of a norm over `width` values.
    pub(super) fn norm(&self, part: &str, width: usize) -> Result<Affine, Error> {
        self.layers.reader.norm(&self.tensor(part), width)
    }
}

impl LayerReader<'_> {
    /// Number of neurons of the dense block; 0 without one.
    pub(super) fn n_ff(&self) -> usize {
        if self.has_experts() { 0 } else { self.layers.n_ff[self.index] }
    }

    /// Whether the layer has experts: it then has a router. Some families have experts in some of
    /// their layers.
    pub(super) fn has_experts(&self) -> bool {
        self.layers.experts.is_some() && self.has(ROUTER)
    }

    /// The experts of the layer; `None` in a dense layer.
    fn experts_of_layer(&self) -> Result<Option<Experts>, Error> {
        let Layers { experts, reader, keys, .. } = self.layers;
        let Some(experts) = experts.as_ref().filter(|_| self.has_experts()) else {
            return Ok(None);
        };
        let n_rows = || {
            let rows = |part: &str| {
                reader.n_rows(&self.tensor(part), self.expert_width()?, "neurons of an expert")
            };
            match self.has(JOINT) {
                true => Ok(rows(JOINT)? / 2),
                false if self.has("ffn_up.0.weight") => rows("ffn_up.0.weight"),
                false => rows("ffn_up_exps.weight"),
            }
        };
        experts.of_layer(keys, self.index, self.has("ffn_up_shexp.weight"), n_rows).map(Some)
    }

    fn frame(&self, experts: Option<&Experts>) -> Result<Frame, Error> {
        let Layers { spec, reader, .. } = self.layers;
        let mixer = (spec.mixer)(self)?;
        let (mixes, has_ffn) = (!matches!(mixer, Mixer::None), self.has_ffn());
        let parallel = self.is_parallel()?;
        let [attn_norm, ffn_norm] = self.norms_before(parallel, mixes, has_ffn)?;
        let sum_norms = spec.block == BlockKind::SumNorm;
        let second = sum_norms && self.has("attn_norm_2.weight");
        // The last norm of the last layer is the model's output norm.
        let is_last = self.index + 1 == self.layers.hyper.n_layer;
        let post_norm = |names: [&str; 2], exists: bool| {
            let has_norm = match spec.block {
                BlockKind::Sandwich | BlockKind::PostNorm | BlockKind::SumNorm => true,
                BlockKind::Sequential
                | BlockKind::Parallel
                | BlockKind::ParallelByKey
                | BlockKind::ParallelWithoutNorm => false,
            };
            // Files of Grok and BERT have other names.
            let other = self.has(&format!("{}.weight", names[1]));
            let part = names[usize::from(other)];
            (exists && has_norm).then(|| self.norm(part, self.n_embd())).transpose()
        };
        let vector = |tensor: &str, n| reader.optional_vector(&self.tensor(tensor), n);
        Ok(Frame {
            parallel,
            sum_norms,
            early_experts: spec.dense_beside == DenseBeside::EarlyExperts && experts.is_some(),
            attn_norm,
            mixer,
            post_attn_norm: post_norm(["post_attention_norm", "attn_output_norm"], mixes)?,
            input_sum_norm: second.then(|| self.norm("attn_norm_2", self.n_embd())).transpose()?,
            post_eps: self.post_eps(),
            ffn_norm,
            router: match experts {
                Some(experts) => Some(self.affine("ffn_gate_inp", experts.n, self.n_embd())?),
                None => None,
            },
            selection: match experts {
                Some(experts) => self.selection(experts.n)?,
                None => None,
            },
            expert_groups: experts.and_then(Experts::groups),
            listed_experts: self.listed_experts(experts)?,
            router_norm: self.router_norm()?,
            input_scale: self.input_scale(experts),
            expert_scale: match experts {
                Some(experts) => vector("ffn_down_exps.scale", experts.n)?,
                None => None,
            },
            shared: self.shared()?,
            chunks: self.chunk_experts(experts)?,
            latent: self.latent_experts(experts.is_some())?,
            post_ffn_norm: post_norm(
                ["post_ffw_norm", "layer_output_norm"],
                has_ffn && !(sum_norms && is_last),
            )?,
            per_layer: self.per_layer()?,
            altup: self.altup()?,
            hyper_connections: self.hyper_connections()?,
            low_rank_hyper: self.low_rank_hyper()?,
            ngrams: self.ngrams()?,
            residual_mix: self.residual_mix()?,
            embedding_skip: self.embedding_skip()?,
            gains: self.gains()?,
            stack: self.stack_run()?,
            out_scale: self.out_scale()?,
        })
    }

    /// Epsilons of the norms of the mixer's and of the feed-forward block's output.
    fn post_eps(&self) -> [f32; 2] {
        let Layers { spec, hyper, .. } = self.layers;
        let eps = spec.post_norm_eps.unwrap_or(hyper.eps);
        let halved = spec.dense_beside == DenseBeside::Plain && self.has("ffn_up.weight");
        // A norm of `x / sqrt(2)` is a norm of `x` with twice the epsilon.
        [eps, if halved { 2.0 * eps } else { eps }]
    }

    /// Reads the biases of the selection of `n_expert` experts; `None` without them.
    fn selection(&self, n_expert: usize) -> Result<Option<HostRows>, Error> {
        if self.lists_experts()? {
            return Ok(None);
        }
        let names = ["exp_probs_b.bias", "exp_probs_b"];
        let found = names.into_iter().find(|name| self.has(name)).unwrap_or(names[0]);
        self.layers.reader.optional_vector(&self.tensor(found), n_expert)
    }

    pub(super) fn has_ffn(&self) -> bool {
        self.has_experts() || self.n_ff() > 0
    }

    /// The activation of the dense block or the shared expert, or of the experts.
    pub(super) fn activation(&self, of_experts: bool) -> Activation {
        let Layers { spec, activation, activations, limits, .. } = self.layers;
        if let Some(activations) = activations {
            return activations[self.index];
        }
        match (spec.clamp, limits[usize::from(of_experts)][self.index]) {
            (Clamp::None, _) | (_, 0.0) => *activation,
            (Clamp::Gate, limit) => Activation::SwigluClamped { limit },
            (Clamp::Activated, limit) => Activation::SiluClamped { limit },
        }
    }

    fn is_parallel(&self) -> Result<bool, Error> {
        const KEY: &str = "use_parallel_residual";
        let Layers { spec, keys, .. } = self.layers;
        Ok(match spec.block {
            BlockKind::Sequential
            | BlockKind::Sandwich
            | BlockKind::PostNorm
            | BlockKind::SumNorm => false,
            BlockKind::Parallel => true,
            BlockKind::ParallelByKey => {
                let stated = keys.metadata.bool(&keys.name(KEY))?;
                stated.ok_or_else(|| keys.missing(KEY, "true or false"))?
            }
            BlockKind::ParallelWithoutNorm => !self.has(&format!("{}.weight", spec.ffn_norm)),
        })
    }

    /// The norms before the mixer and before the feed-forward block.
    fn norms_before(
        &self,
        parallel: bool,
        mixes: bool,
        has_ffn: bool,
    ) -> Result<[Option<Affine>; 2], Error> {
        let spec = self.layers.spec;
        let norm = |part: &str| self.norm(part, self.n_embd()).map(Some);
        let second = match spec.dense_beside {
            DenseBeside::Normed if self.has_experts() => "pre_ffw_norm_2",
            DenseBeside::EarlyExperts if self.has_experts() => "ffn_norm_exps",
            DenseBeside::None
            | DenseBeside::Plain
            | DenseBeside::Normed
            | DenseBeside::EarlyExperts => spec.ffn_norm,
        };
        let no_norms = matches!(spec.block, BlockKind::PostNorm | BlockKind::SumNorm);
        if no_norms || spec.low_rank_hyper {
            return Ok([None, None]);
        }
        if !parallel {
            return Ok([
                if mixes && !self.starts_normed() { norm("attn_norm")? } else { None },
                if has_ffn { norm(second)? } else { None },
            ]);
        }
        if self.has("attn_norm_2.weight") {
            return Ok([norm("attn_norm_2")?, norm("attn_norm")?]);
        }
        let own = self.has(&format!("{second}.weight"));
        Ok([norm("attn_norm")?, if own { norm(second)? } else { None }])
    }

    /// Whether the layer's input is the normed embedding, which ModernBERT does not norm again.
    fn starts_normed(&self) -> bool {
        let Layers { spec, .. } = self.layers;
        let normed = spec.encoder && spec.embedding_norm == EmbeddingNorm::Weights;
        normed && self.index == 0 && !self.has("attn_norm.weight")
    }

    /// Reads the weights that add the token's per-layer embedding; `None` in models without it.
    fn per_layer(&self) -> Result<Option<PerLayer>, Error> {
        let Hyper { n_embd, n_per_layer: width, .. } = *self.layers.hyper;
        if width == 0 {
            return Ok(None);
        }
        Ok(Some(PerLayer {
            gate: self.affine("inp_gate", width, n_embd)?,
            proj: self.affine("proj", n_embd, width)?,
            norm: self.norm("post_norm", n_embd)?,
        }))
    }
}
