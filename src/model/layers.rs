//! Reads the layers of a model one by one, each with its own sizes.

use std::ops::Range;
use std::sync::Arc;

use hal::HostRows;
use hal::op::FfnKind;

use super::heads::{Heads, Ropes};
use super::hyper::Keys;
use super::layer::{Ffn, Frame, LayerWeights, Predictor, SharedExpert, SharedNorms};
use super::mixer::{Attention, AttentionSizes, Kv, Latent, Mixer};
use super::reader::{MatrixStack, Reader, f32_matrix};
use super::rope::RopeTable;
use super::rope_scaling::Scaling;
use super::{
    Affine, ArchSpec, BlockKind, Error, Experts, Hyper, KvKind, PerLayer, Positions, RouterInput,
};

/// Everything needed to read the layers of a model.
pub(super) struct Layers<'a> {
    reader: &'a Reader<'a>,
    keys: &'a Keys<'a>,
    spec: &'a ArchSpec,
    hyper: &'a Hyper,
    ffn_kind: FfnKind,
    heads: Heads,
    ropes: Ropes,
    /// Number of neurons of each layer; empty in models with experts or without neurons.
    n_ff: Vec<usize>,
    experts: Option<Experts>,
}

impl<'a> Layers<'a> {
    pub(super) fn new(
        reader: &'a Reader<'a>,
        keys: &'a Keys<'a>,
        spec: &'a ArchSpec,
        hyper: &'a Hyper,
        ffn_kind: FfnKind,
        scaling: &Scaling,
    ) -> Result<Layers<'a>, Error> {
        const NEURONS: &str = "feed_forward_length";
        let heads = Heads::read(keys, spec, hyper)?;
        let ropes = Ropes::read(reader, keys, spec, &heads, scaling)?;
        let experts = if spec.feed_forward { Experts::read(keys, spec)? } else { None };
        let n_ff = match &experts {
            Some(_) => Vec::new(),
            None if !spec.feed_forward => Vec::new(),
            None => keys
                .per_layer(NEURONS, hyper.n_layer + hyper.n_nextn)?
                .ok_or_else(|| keys.missing(NEURONS, "the number of neurons in a layer"))?,
        };
        Ok(Layers { reader, keys, spec, hyper, ffn_kind, heads, ropes, n_ff, experts })
    }

    pub(super) fn read(&self) -> Result<Vec<LayerWeights>, Error> {
        let layer = |index| {
            let layer = LayerReader { layers: self, index };
            Ok(LayerWeights { frame: layer.frame()?, ffn: layer.ffn()? })
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
    layers: &'a Layers<'a>,
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
        self.layers.heads.sizes(self.index)
    }

    fn tensor(&self, part: &str) -> String {
        format!("blk.{}.{part}", self.index)
    }

    fn has(&self, part: &str) -> bool {
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

    /// Reads weight and bias of a norm over `width` values.
    pub(super) fn norm(&self, part: &str, width: usize) -> Result<Affine, Error> {
        self.layers.reader.norm(&self.tensor(part), width)
    }

    /// Reads attention as the family's spec describes it. A layer without heads has no mixer.
    ///
    /// # Errors
    /// [`Error`]: missing or wrong keys and tensors.
    pub fn attention(&self) -> Result<Mixer, Error> {
        let sizes = self.sizes();
        match (sizes.n_head, sizes.n_head_kv) {
            (0, _) => return Ok(Mixer::None),
            (_, 0) => {
                let key = "attention.head_count_kv";
                return Err(self.keys().wrong_key(key, "at least 1 in a layer with heads", 0));
            }
            _ => {}
        }
        let spec = self.layers.spec;
        let head_norm = |part: &str, exists: bool| {
            (exists && spec.qk_norm).then(|| self.norm(part, sizes.d_head)).transpose()
        };
        let source = self.layers.heads.kv_source(self.keys(), self.index)?;
        let (q, kv) = match (source, spec.kv) {
            (Some(layer), _) => (self.shared_kv(&sizes)?, Kv::Shared { layer }),
            (None, KvKind::Direct) => self.direct(&sizes)?,
            (None, KvKind::Latent) => {
                (self.affine("attn_q", sizes.n_q(), self.n_embd())?, self.latent(&sizes)?)
            }
        };
        Ok(Mixer::Attention(Attention {
            rope: self.rope(sizes.window),
            q,
            gated: spec.gated_attention,
            q_norm: head_norm("attn_q_norm", true)?,
            kv,
            k_norm: head_norm("attn_k_norm", source.is_none())?,
            v_normed: spec.v_norm,
            sinks: self
                .layers
                .reader
                .optional_vector(&self.tensor("attn_sinks.weight"), sizes.n_head)?,
            o: self.affine("attn_output", self.n_embd(), sizes.n_out())?,
            sizes,
        }))
    }

    fn rope(&self, window: Option<usize>) -> Option<Arc<RopeTable>> {
        let Layers { spec, heads, ropes, .. } = self.layers;
        match (spec.positions, window) {
            (Positions::Learned { .. } | Positions::None, _) => None,
            (Positions::Rotary(_), Some(_)) => Some(Arc::clone(&ropes.local)),
            (Positions::Rotary(_), None) if spec.global_rotary || heads.window.is_none() => {
                Some(Arc::clone(&ropes.global))
            }
            (Positions::Rotary(_), None) => None,
        }
    }

    /// Reads the query weights of a layer that uses another layer's KV cache. The layer's own K and
    /// V weights, if the file has them, are not used.
    fn shared_kv(&self, sizes: &AttentionSizes) -> Result<Affine, Error> {
        for part in ["attn_k.weight", "attn_k_norm.weight", "attn_v.weight"] {
            self.layers.reader.skip(&self.tensor(part));
        }
        self.affine("attn_q", self.n_queries(sizes), self.n_embd())
    }

    /// Number of rows of the query matrix, including the rows of the gates if attention is gated.
    fn n_queries(&self, sizes: &AttentionSizes) -> usize {
        sizes.n_q() * if self.layers.spec.gated_attention { 2 } else { 1 }
    }

    /// Reads the matrices of queries, keys and values, which are separate or joined (`attn_qkv`).
    fn direct(&self, sizes: &AttentionSizes) -> Result<(Affine, Kv), Error> {
        let n_q = self.n_queries(sizes);
        let (n_k, n_v) = (sizes.n_k(), sizes.n_v());
        let joined = self.has("attn_qkv.weight");
        let one = |part: &str, first: usize, rows: usize| {
            if joined {
                let (all, range) = (n_q + n_k + n_v, first..first + rows);
                self.affine_rows("attn_qkv", all, self.n_embd(), range)
            } else {
                self.affine(part, rows, self.n_embd())
            }
        };
        let k = one("attn_k", n_q, n_k)?;
        let from_keys = self.layers.spec.keys_as_values && !self.has("attn_v.weight");
        let no_v = from_keys && !joined && n_k == n_v;
        let v = if no_v { None } else { Some(one("attn_v", n_q + n_k, n_v)?) };
        Ok((one("attn_q", 0, n_q)?, Kv::Direct { k, v }))
    }

    fn latent(&self, sizes: &AttentionSizes) -> Result<Kv, Error> {
        let AttentionSizes { n_head, n_rot, d_head, d_value, .. } = *sizes;
        let d_latent = self.layers.heads.d_latent;
        let all = d_latent + n_rot;
        let kv_a = |range| self.affine_rows("attn_kv_a_mqa", all, self.n_embd(), range);
        let expanded = n_head * (d_head - n_rot + d_value);
        Ok(Kv::Latent(Latent {
            kv_a_proj: kv_a(0..d_latent)?,
            kv_a_norm: self.norm("attn_kv_a_norm", d_latent)?,
            k_rope: kv_a(d_latent..all)?,
            kv_b_proj: self.affine("attn_kv_b", expanded, d_latent)?,
        }))
    }
}

impl LayerReader<'_> {
    /// Number of neurons of the dense block; 0 without one, and in models with experts.
    pub(super) fn n_ff(&self) -> usize {
        self.layers.n_ff.get(self.index).copied().unwrap_or(0)
    }

    fn has_ffn(&self) -> bool {
        self.layers.experts.is_some() || self.n_ff() > 0
    }

    fn frame(&self) -> Result<Frame, Error> {
        let Layers { spec, experts, .. } = self.layers;
        let n_embd = self.n_embd();
        let norm = |part: &str| self.norm(part, n_embd);
        let ffn_norm = match (experts, spec.dense_beside_experts) {
            (Some(_), true) => "pre_ffw_norm_2",
            _ => spec.ffn_norm,
        };
        let mixer = (spec.mixer)(self)?;
        let (mixes, has_ffn) = (!matches!(mixer, Mixer::None), self.has_ffn());
        let post_norm = |part: &str, exists: bool| {
            (exists && spec.block == BlockKind::Sandwich).then(|| norm(part)).transpose()
        };
        let (attn_norm, ffn_norm) = match spec.block {
            BlockKind::Sequential | BlockKind::Sandwich => (
                mixes.then(|| norm("attn_norm")).transpose()?,
                has_ffn.then(|| norm(ffn_norm)).transpose()?,
            ),
            BlockKind::Parallel if self.has("attn_norm_2.weight") => {
                (Some(norm("attn_norm_2")?), Some(norm("attn_norm")?))
            }
            BlockKind::Parallel => (Some(norm("attn_norm")?), None),
        };
        Ok(Frame {
            attn_norm,
            mixer,
            post_attn_norm: post_norm("post_attention_norm", mixes)?,
            ffn_norm,
            router: match &self.layers.experts {
                Some(experts) => Some(self.affine("ffn_gate_inp", experts.n, n_embd)?),
                None => None,
            },
            router_norm: self.router_norm()?,
            expert_scale: match experts {
                Some(experts) => self
                    .layers
                    .reader
                    .optional_vector(&self.tensor("ffn_down_exps.scale"), experts.n)?,
                None => None,
            },
            shared: self.shared()?,
            post_ffn_norm: post_norm("post_ffw_norm", has_ffn)?,
            per_layer: self.per_layer()?,
            out_scale: self
                .layers
                .reader
                .optional_vector(&self.tensor("layer_output_scale.weight"), 1)?,
        })
    }

    /// Reads the shared expert, or the dense block in parallel with the experts; `None` if the
    /// layer has neither.
    fn shared(&self) -> Result<Option<SharedExpert>, Error> {
        let n_embd = self.n_embd();
        let has_norms = self.layers.spec.dense_beside_experts;
        let suffix = if has_norms { "" } else { "_shexp" };
        let part = |part: &str| format!("ffn_{part}{suffix}");
        let up = format!("{}.weight", part("up"));
        if self.layers.experts.is_none() || !(has_norms || self.has(&up)) {
            return Ok(None);
        }
        let norm = |part: &str| self.norm(part, n_embd);
        let norms = if has_norms {
            Some(SharedNorms {
                before: norm(self.layers.spec.ffn_norm)?,
                after: norm("post_ffw_norm_1")?,
                experts: norm("post_ffw_norm_2")?,
            })
        } else {
            None
        };
        let n_ff = self.layers.reader.n_rows(&self.tensor(&up), n_embd, "neurons")?;
        let weight = "ffn_gate_inp_shexp";
        let weight = self.has(&format!("{weight}.weight")).then_some(weight);
        Ok(Some(SharedExpert {
            norms,
            weight: weight.map(|weight| self.affine(weight, 1, n_embd)).transpose()?,
            gate: self.affine(&part("gate"), n_ff, n_embd)?,
            up: self.affine(&part("up"), n_ff, n_embd)?,
            down: self.affine(&part("down"), n_embd, n_ff)?,
        }))
    }

    /// Reads the norm of the router's input, whose weight includes `1 / sqrt(n_embd)`; `None` if
    /// the router has no norm of its own.
    fn router_norm(&self) -> Result<Option<Affine>, Error> {
        let Layers { spec, experts, reader, .. } = self.layers;
        if experts.is_none() || spec.routing.input != RouterInput::Residual {
            return Ok(None);
        }
        let n_embd = self.n_embd();
        let factors = reader.floats(&self.tensor("ffn_gate_inp.scale"), 1, n_embd)?;
        let root = (n_embd as f32).sqrt();
        let factors: Vec<f32> = factors.iter().map(|factor| factor / root).collect();
        Ok(Some(Affine { w: f32_matrix(1, &factors), bias: None }))
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

    fn ffn(&self) -> Result<Option<Ffn>, Error> {
        match &self.layers.experts {
            Some(experts) => self.experts(experts).map(Some),
            None if self.n_ff() == 0 => Ok(None),
            None => self.dense().map(Some),
        }
    }

    fn experts(&self, experts: &Experts) -> Result<Ffn, Error> {
        let Layers { reader, ffn_kind, .. } = *self.layers;
        let (n_embd, blk) = (self.n_embd(), format!("blk.{}", self.index));
        let stack = |rows, cols| MatrixStack { n: experts.n, rows, cols };
        let joint = self.tensor("ffn_gate_up_exps.weight");
        let joint = Some(joint).filter(|joint| reader.has(joint) && ffn_kind != FfnKind::Plain);
        let part = |part: &str| match (&joint, part) {
            (Some(joint), "ffn_gate") => reader.expert_half(joint, stack(experts.n_ff, n_embd), 0),
            (Some(joint), _) => reader.expert_half(joint, stack(experts.n_ff, n_embd), 1),
            (None, part) => reader.experts(&blk, part, stack(experts.n_ff, n_embd), 1),
        };
        Ok(Ffn {
            gate: match ffn_kind {
                FfnKind::Plain => None,
                FfnKind::Gated | FfnKind::GatedBoth => Some(part("ffn_gate")?),
            },
            up: part("ffn_up")?,
            down: reader.experts(&blk, "ffn_down", stack(n_embd, experts.n_ff), experts.n)?,
            experts: Some(*experts),
            down_by_neuron: false,
            predictor: None,
        })
    }

    fn dense(&self) -> Result<Ffn, Error> {
        let Layers { reader, ffn_kind, .. } = *self.layers;
        let (n_embd, n_ff) = (self.n_embd(), self.n_ff());
        let half = |first: usize| self.affine_rows("ffn_up", 2 * n_ff, n_embd, first..first + n_ff);
        let (gate, up) = match ffn_kind {
            FfnKind::Plain => (None, self.affine("ffn_up", n_ff, n_embd)?),
            FfnKind::Gated | FfnKind::GatedBoth => {
                // Phi 3 stores the gate as the first half of `ffn_up` and has no `ffn_gate`.
                let up = self.tensor("ffn_up.weight");
                let joined = !self.has("ffn_gate.weight")
                    && reader.n_rows(&up, n_embd, "neurons")? == 2 * n_ff;
                if joined {
                    (Some(half(0)?), half(n_ff)?)
                } else {
                    let gate = self.affine("ffn_gate", n_ff, n_embd)?;
                    (Some(gate), self.affine("ffn_up", n_ff, n_embd)?)
                }
            }
        };
        let down_by_neuron = self.has("ffn_down_t.weight");
        let down = if down_by_neuron {
            Affine {
                w: reader.matrix(&self.tensor("ffn_down_t.weight"), n_ff, n_embd)?,
                bias: reader.optional_vector(&self.tensor("ffn_down_t.bias"), n_embd)?,
            }
        } else {
            self.affine("ffn_down", n_embd, n_ff)?
        };
        let predictor = self.predictor(n_ff)?;
        Ok(Ffn { gate, up, down, experts: None, down_by_neuron, predictor })
    }

    /// Reads the layer's predictor, which may have any rank. `None` without a predictor and for an
    /// unsupported format, since the model also runs without it.
    fn predictor(&self, n_ff: usize) -> Result<Option<Predictor>, Error> {
        let Layers { reader, hyper, .. } = *self.layers;
        let [fc1, fc2] = ["fc1", "fc2"].map(|part| self.tensor(&format!("{part}.weight")));
        let found = [&fc1, &fc2].map(|name| reader.has(name));
        let supported = [&fc1, &fc2].map(|name| reader.has_supported(name));
        if found == [false; 2] || found != supported {
            return Ok(None);
        }
        // If only the second matrix exists, the first is reported as missing below.
        let rank = reader.n_rows(&fc1, hyper.n_embd, "any rank")?;
        Ok(Some(Predictor {
            fc1: reader.matrix(&fc1, rank, hyper.n_embd)?,
            fc2: reader.matrix(&fc2, n_ff, rank)?,
        }))
    }
}
