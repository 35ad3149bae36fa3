//! Reads the layers of a model one by one, each with its own sizes.

use std::ops::Range;
use std::sync::Arc;

use hal::HostRows;
use hal::op::FfnKind;

use super::hyper::{self, Keys};
use super::layer::{Ffn, Frame, LayerWeights, Predictor, Shared};
use super::mixer::{Attention, AttentionSizes, Kv, Latent, Mixer};
use super::reader::{Reader, owned};
use super::rope::{Factors, RopeSizes, RopeTable, is_positive};
use super::{Affine, ArchSpec, BlockKind, Error, Experts, Hyper, KvKind, Positions};

/// Data for reading layers.
pub(super) struct Layers<'a> {
    reader: &'a Reader<'a>,
    keys: &'a Keys<'a>,
    spec: &'a ArchSpec,
    hyper: &'a Hyper,
    ffn_kind: FfnKind,
    heads: Heads,
    ropes: Ropes,
    /// Neurons of each layer without experts.
    n_ff: Vec<usize>,
    experts: Option<Experts>,
}

/// Sizes of attention; the numbers of heads and the window are per layer.
struct Heads {
    n_head: Vec<usize>,
    n_head_kv: Vec<usize>,
    windowed: Vec<bool>,
    /// Sliding window of the layers that have one.
    window: Option<usize>,
    d_head: usize,
    d_value: usize,
    n_rot: usize,
    /// Width of the latent vector of keys and values; 0 without MLA.
    d_latent: usize,
    scale: f32,
    softcap: f32,
}

/// RoPE of layers without and with a window.
struct Ropes {
    global: Arc<RopeTable>,
    local: Arc<RopeTable>,
}

impl Heads {
    fn read(keys: &Keys<'_>, spec: &ArchSpec, hyper: &Hyper) -> Result<Heads, Error> {
        let Hyper { n_embd, n_layer, n_nextn, .. } = *hyper;
        let lists = n_layer + n_nextn;
        let n_head = keys.per_layer("attention.head_count", lists)?;
        let n_head =
            n_head.ok_or_else(|| keys.missing("attention.head_count", "the number of heads"))?;
        let n_head_kv = keys.per_layer("attention.head_count_kv", lists)?;
        let n_head_kv = n_head_kv.unwrap_or_else(|| n_head.clone());
        for (&heads, &kv) in n_head.iter().zip(&n_head_kv) {
            if kv > 0 && !heads.is_multiple_of(kv) {
                let expected = format!("a divisor of the {heads} heads");
                return Err(keys.wrong("attention.head_count_kv", expected, kv));
            }
        }
        let most = n_head.iter().copied().max().unwrap_or(0);
        let d_head = match keys.count("attention.key_length")? {
            Some(d_head) => d_head,
            None if most > 0 && n_embd.is_multiple_of(most) => n_embd / most,
            None => {
                let expected = format!("a divisor of the width {n_embd}");
                return Err(keys.wrong("attention.head_count", expected, most));
            }
        };
        let n_rot = keys.count("rope.dimension_count")?.unwrap_or(d_head);
        if n_rot > d_head || n_rot % 2 != 0 {
            let expected = format!("an even number up to {d_head}");
            return Err(keys.wrong("rope.dimension_count", expected, n_rot));
        }
        let d_latent = match spec.kv {
            KvKind::Direct => 0,
            KvKind::Latent if n_head_kv != n_head => {
                let expected = "as many as attention.head_count";
                return Err(keys.wrong("attention.head_count_kv", expected, "another number"));
            }
            KvKind::Latent if n_rot == d_head => {
                let expected = format!("an even number below {d_head}");
                return Err(keys.wrong("rope.dimension_count", expected, n_rot));
            }
            KvKind::Latent => keys.need("attention.kv_lora_rank", "the width of latent keys")?,
        };
        let d_value = keys.count("attention.value_length")?.unwrap_or(d_head);
        if (spec.qk_norm || spec.gated_attention) && d_value != d_head {
            return Err(keys.wrong("attention.value_length", d_head, d_value));
        }
        Ok(Heads {
            windowed: hyper::windowed(keys, spec, lists)?,
            window: match keys.metadata.u32(&keys.name("attention.sliding_window")) {
                // Some files state 0 when there is no window.
                Ok(Some(0)) => None,
                _ => keys.count("attention.sliding_window")?.or(spec.window),
            },
            d_head,
            d_value,
            n_rot,
            d_latent,
            scale: match keys.positive("attention.scale", 0.0)? {
                0.0 if spec.width_scaled == Some(n_layer) => {
                    (n_embd as f32 / most as f32).sqrt().recip()
                }
                0.0 => (d_head as f32).sqrt().recip(),
                scale => scale,
            },
            softcap: keys.positive("attn_logit_softcapping", spec.attn_softcap)?,
            n_head,
            n_head_kv,
        })
    }

    /// Sizes of attention in layer `index`.
    fn sizes(&self, index: usize) -> AttentionSizes {
        AttentionSizes {
            n_head: self.n_head[index],
            n_head_kv: self.n_head_kv[index],
            d_head: self.d_head,
            d_value: self.d_value,
            n_rot: self.n_rot,
            window: self.window.filter(|_| self.windowed[index]),
            scale: self.scale,
            softcap: self.softcap,
        }
    }
}

impl Ropes {
    fn read(
        reader: &Reader<'_>,
        keys: &Keys<'_>,
        spec: &ArchSpec,
        sizes: RopeSizes,
    ) -> Result<Ropes, Error> {
        let factors = |tensor: &str| {
            let list = reader.optional_floats(tensor, sizes.n_rot / 2)?;
            match list.iter().flatten().find(|&&factor| !is_positive(factor)) {
                Some(wrong) => Err(Error::Values {
                    file: keys.file.to_owned(),
                    tensor: tensor.to_owned(),
                    expected: "positive numbers",
                    found: wrong.to_string(),
                }),
                None => Ok(list),
            }
        };
        let short = match factors("rope_freqs.weight")? {
            Some(factors) => Some(factors),
            None => factors("rope_factors_short.weight")?,
        };
        let factors = Factors { short, long: factors("rope_factors_long.weight")? };
        Ok(Ropes {
            global: Arc::new(RopeTable::global(keys, sizes, &factors)?),
            local: Arc::new(RopeTable::local(keys, sizes, &factors, spec.local_base)?),
        })
    }
}

impl<'a> Layers<'a> {
    pub(super) fn new(
        reader: &'a Reader<'a>,
        keys: &'a Keys<'a>,
        spec: &'a ArchSpec,
        hyper: &'a Hyper,
        ffn_kind: FfnKind,
    ) -> Result<Layers<'a>, Error> {
        const NEURONS: &str = "feed_forward_length";
        let heads = Heads::read(keys, spec, hyper)?;
        let sizes = RopeSizes { n_rot: heads.n_rot, n_ctx_train: hyper.n_ctx_train };
        let ropes = Ropes::read(reader, keys, spec, sizes)?;
        let experts = Experts::read(keys, spec)?;
        let n_ff = match &experts {
            Some(_) => Vec::new(),
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
        (0..self.hyper.n_layer).map(layer).collect()
    }
}

/// Reads one layer; families read their mixers with it.
pub struct LayerReader<'a> {
    layers: &'a Layers<'a>,
    index: usize,
}

impl std::fmt::Debug for LayerReader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LayerReader").field("index", &self.index).finish_non_exhaustive()
    }
}

/// Methods for families.
impl LayerReader<'_> {
    /// Number of the layer.
    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// Width of the residual.
    pub(super) fn n_embd(&self) -> usize {
        self.layers.hyper.n_embd
    }

    /// The keys of the file.
    pub(super) fn keys(&self) -> &Keys<'_> {
        self.layers.keys
    }

    /// Number of layers that lists in the file have entries for.
    pub(super) fn n_listed(&self) -> usize {
        self.layers.hyper.n_layer + self.layers.hyper.n_nextn
    }

    /// Sizes of the layer's attention.
    pub(super) fn sizes(&self) -> AttentionSizes {
        self.layers.heads.sizes(self.index)
    }

    fn tensor(&self, part: &str) -> String {
        format!("blk.{}.{part}", self.index)
    }

    fn has(&self, part: &str) -> bool {
        self.layers.reader.has(&self.tensor(part))
    }

    /// `part.weight` of `[rows, cols]` and, if there is one, `part.bias`.
    pub(super) fn affine(&self, part: &str, rows: usize, cols: usize) -> Result<Affine, Error> {
        self.layers.reader.affine(&self.tensor(part), rows, cols)
    }

    /// Some rows of [`LayerReader::affine`].
    pub(super) fn affine_rows(
        &self,
        part: &str,
        rows: usize,
        cols: usize,
        some: Range<usize>,
    ) -> Result<Affine, Error> {
        self.layers.reader.affine_rows(&self.tensor(part), rows, cols, some)
    }

    /// Some rows of a tensor of `[rows, cols]`, as F32.
    pub(super) fn f32_rows(
        &self,
        tensor: &str,
        rows: usize,
        cols: usize,
        some: Range<usize>,
    ) -> Result<HostRows, Error> {
        self.layers.reader.f32_rows(&self.tensor(tensor), rows, cols, some)
    }

    /// `[1, n]` of one value, F32.
    pub(super) fn constant(&self, value: f32, n: usize) -> HostRows {
        owned(1, &vec![value; n])
    }

    /// Factors of a norm over `width` values.
    pub(super) fn norm(&self, part: &str, width: usize) -> Result<Affine, Error> {
        self.layers.reader.norm(&self.tensor(part), width)
    }

    /// Attention as the family's spec describes it; no mixer in a layer without heads.
    ///
    /// # Errors
    /// [`Error`]: missing or wrong keys and tensors.
    pub fn attention(&self) -> Result<Mixer, Error> {
        let sizes = self.sizes();
        match (sizes.n_head, sizes.n_head_kv) {
            (0, _) => return Ok(Mixer::None),
            (_, 0) => {
                let key = "attention.head_count_kv";
                return Err(self.keys().wrong(key, "at least 1 where there are heads", 0));
            }
            _ => {}
        }
        let spec = self.layers.spec;
        let head_norm =
            |part: &str| spec.qk_norm.then(|| self.norm(part, sizes.d_head)).transpose();
        let (q, kv) = match spec.kv {
            KvKind::Direct => self.direct(&sizes)?,
            KvKind::Latent => {
                (self.affine("attn_q", sizes.n_q(), self.n_embd())?, self.latent(&sizes)?)
            }
        };
        Ok(Mixer::Attention(Attention {
            rope: self.rope(sizes.window),
            q,
            gated: spec.gated_attention,
            q_norm: head_norm("attn_q_norm")?,
            kv,
            k_norm: head_norm("attn_k_norm")?,
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
            (Positions::Learned { .. }, _) => None,
            (Positions::Rotary(_), Some(_)) => Some(Arc::clone(&ropes.local)),
            (Positions::Rotary(_), None) if spec.global_rotary || heads.window.is_none() => {
                Some(Arc::clone(&ropes.global))
            }
            (Positions::Rotary(_), None) => None,
        }
    }

    /// Queries, keys and values from one matrix each or from a joint one.
    fn direct(&self, sizes: &AttentionSizes) -> Result<(Affine, Kv), Error> {
        let n_q = sizes.n_q() * if self.layers.spec.gated_attention { 2 } else { 1 };
        let (n_k, n_v) = (sizes.n_k(), sizes.n_v());
        let joined = self.has("attn_qkv.weight");
        let one = |part: &str, first: usize, rows: usize| {
            if joined {
                let (all, some) = (n_q + n_k + n_v, first..first + rows);
                self.affine_rows("attn_qkv", all, self.n_embd(), some)
            } else {
                self.affine(part, rows, self.n_embd())
            }
        };
        let (k, v) = (one("attn_k", n_q, n_k)?, one("attn_v", n_q + n_k, n_v)?);
        Ok((one("attn_q", 0, n_q)?, Kv::Direct { k, v }))
    }

    fn latent(&self, sizes: &AttentionSizes) -> Result<Kv, Error> {
        let AttentionSizes { n_head, n_rot, d_head, d_value, .. } = *sizes;
        let d_latent = self.layers.heads.d_latent;
        let all = d_latent + n_rot;
        let kv_a = |some| self.affine_rows("attn_kv_a_mqa", all, self.n_embd(), some);
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
    /// Neurons of a block without experts.
    fn n_ff(&self) -> usize {
        self.layers.n_ff.get(self.index).copied().unwrap_or(0)
    }

    fn has_ffn(&self) -> bool {
        self.layers.experts.is_some() || self.n_ff() > 0
    }

    fn frame(&self) -> Result<Frame, Error> {
        let Layers { spec, .. } = self.layers;
        let n_embd = self.n_embd();
        let norm = |part: &str| self.norm(part, n_embd);
        let mixer = (spec.mixer)(self)?;
        let (mixes, has_ffn) = (!matches!(mixer, Mixer::None), self.has_ffn());
        let post_norm = |part: &str, there: bool| {
            (there && spec.block == BlockKind::Sandwich).then(|| norm(part)).transpose()
        };
        let (attn_norm, ffn_norm) = match spec.block {
            BlockKind::Sequential | BlockKind::Sandwich => (
                mixes.then(|| norm("attn_norm")).transpose()?,
                has_ffn.then(|| norm(spec.ffn_norm)).transpose()?,
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
            shared: self.shared()?,
            post_ffn_norm: post_norm("post_ffw_norm", has_ffn)?,
        })
    }

    /// The shared expert.
    fn shared(&self) -> Result<Option<Shared>, Error> {
        let n_embd = self.n_embd();
        if self.layers.experts.is_none() || !self.has("ffn_up_shexp.weight") {
            return Ok(None);
        }
        let up = self.tensor("ffn_up_shexp.weight");
        let n_ff = self.layers.reader.n_rows(&up, n_embd, "neurons")?;
        let weight = "ffn_gate_inp_shexp";
        let weight = self.has(&format!("{weight}.weight")).then_some(weight);
        Ok(Some(Shared {
            weight: weight.map(|weight| self.affine(weight, 1, n_embd)).transpose()?,
            gate: self.affine("ffn_gate_shexp", n_ff, n_embd)?,
            up: self.affine("ffn_up_shexp", n_ff, n_embd)?,
            down: self.affine("ffn_down_shexp", n_embd, n_ff)?,
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
        let Experts { n, n_ff, .. } = *experts;
        let part = |part: &str| reader.experts((&blk, part), (n, n_ff, n_embd), 1);
        Ok(Ffn {
            gate: match ffn_kind {
                FfnKind::Plain => None,
                FfnKind::Gated | FfnKind::GatedBoth => Some(part("ffn_gate")?),
            },
            up: part("ffn_up")?,
            down: reader.experts((&blk, "ffn_down"), (n, n_embd, n_ff), n)?,
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
                // In Phi 3 the gate is the first half of up; in other families it is missing.
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

    /// The predictor of a layer, of any rank; `None` in an unsupported format: it is optional.
    fn predictor(&self, n_ff: usize) -> Result<Option<Predictor>, Error> {
        let Layers { reader, hyper, .. } = *self.layers;
        let [fc1, fc2] = ["fc1", "fc2"].map(|part| self.tensor(&format!("{part}.weight")));
        let found = [&fc1, &fc2].map(|name| reader.has(name));
        let built = [&fc1, &fc2].map(|name| reader.has_built(name));
        if found == [false; 2] || found != built {
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
