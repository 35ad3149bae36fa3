//! Sizes of a model, from its metadata, checked before anything is computed from them.

use std::fmt::Display;

use hal::op::{NormKind, Scoring};

use crate::gguf::Metadata;

use super::{ArchSpec, Error, GlobalLayers, KvKind};

/// Layers, heads or widths beyond this are a lie: it keeps every product of sizes far from overflow.
const MOST: u32 = 1 << 24;

/// Experts of every layer, and how a token chooses them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Experts to choose from.
    pub n: usize,
    /// Experts that a token uses.
    pub n_used: usize,
    /// Neurons of each.
    pub n_ff: usize,
    /// How the router's products become scores.
    pub scoring: Scoring,
    /// The chosen weights are divided by their sum.
    pub renormalise: bool,
    /// Factor on the weights.
    pub scale: f32,
}

/// Sizes of a model. The names are the field's.
#[derive(Clone, Debug, PartialEq)]
pub struct Hyper {
    /// Layers.
    pub n_layer: usize,
    /// Width of the residual.
    pub n_embd: usize,
    /// Query heads.
    pub n_head: usize,
    /// Key and value heads.
    pub n_head_kv: usize,
    /// Values per head of queries and keys.
    pub d_head: usize,
    /// Values per head of values.
    pub d_value: usize,
    /// Width of the vector that latent keys and values are unfolded from; 0 where they are not.
    pub d_latent: usize,
    /// Neurons per layer, of all experts together where there are some. Those of a shared expert are not among them.
    pub n_ff: usize,
    /// How they fall into experts; `None` if they do not.
    pub experts: Option<Experts>,
    /// Context the model was trained for, tokens.
    pub n_ctx_train: usize,
    /// Added to the mean square in norms.
    pub eps: f32,
    /// Values of a head that turn with the position.
    pub n_rot: usize,
    /// Positions a token sees in layers with a window; `None` if there is none.
    pub window: Option<usize>,
    /// Factor on attention's scores.
    pub attn_scale: f32,
    /// Soft cap of attention's scores; 0 for none.
    pub attn_softcap: f32,
    /// Soft cap of the logits; 0 for none.
    pub logit_softcap: f32,
}

/// Reads keys of one architecture: `<arch>.<key>`.
pub(super) struct Keys<'a> {
    pub(super) metadata: &'a Metadata,
    pub(super) arch: &'a str,
    pub(super) file: &'a str,
}

impl Keys<'_> {
    pub(super) fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    pub(super) fn f32(&self, key: &str) -> Result<Option<f32>, Error> {
        Ok(self.metadata.f32(&self.name(key))?)
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&str>, Error> {
        Ok(self.metadata.str(&self.name(key))?)
    }

    pub(super) fn wrong(&self, key: &str, expected: impl Display, found: impl Display) -> Error {
        Error::Key {
            file: self.file.to_owned(),
            key: self.name(key),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// A number from 0 on, `default` if the file does not say.
    fn positive(&self, key: &str, default: f32) -> Result<f32, Error> {
        match self.f32(key)?.unwrap_or(default) {
            value if value >= 0.0 && value.is_finite() => Ok(value),
            value => Err(self.wrong(key, "a number from 0 on", value)),
        }
    }

    /// A count of at least 1. Some files give one per layer; they run if all layers agree.
    pub(super) fn count(&self, key: &str) -> Result<Option<usize>, Error> {
        let name = self.name(key);
        let is_array = self.metadata.get(&name).is_some_and(|value| value.as_array().is_some());
        let value = if is_array {
            let list = self.metadata.u32_array(&name)?.unwrap_or_default();
            match list.first() {
                Some(first) if list.iter().all(|value| value == first) => Some(*first),
                Some(_) => {
                    return Err(self.wrong(key, "the same for every layer", "a list that differs"));
                }
                None => return Err(self.wrong(key, "one number for all layers", "an empty list")),
            }
        } else {
            self.metadata.u32(&name)?
        };
        match value {
            Some(value) if value == 0 || value > MOST => {
                Err(self.wrong(key, format!("1 to {MOST}"), value))
            }
            value => Ok(value.map(|value| value as usize)),
        }
    }

    fn need(&self, key: &str, expected: &'static str) -> Result<usize, Error> {
        self.count(key)?.ok_or_else(|| Error::MissingKey {
            file: self.file.to_owned(),
            key: self.name(key),
            expected,
        })
    }
}

impl Experts {
    fn read(keys: &Keys<'_>, spec: &ArchSpec) -> Result<Option<Experts>, Error> {
        let n = match keys.metadata.u32(&keys.name("expert_count")) {
            // How some files say that there are none.
            Ok(Some(0)) => None,
            _ => keys.count("expert_count")?,
        };
        let Some(n) = n else { return Ok(None) };
        let n_used = keys.need("expert_used_count", "the experts that a token uses")?;
        if n_used > n {
            return Err(keys.wrong("expert_used_count", format!("at most {n}"), n_used));
        }
        let n_ff = match keys.count("expert_feed_forward_length")? {
            Some(n_ff) => n_ff,
            None => keys.need("feed_forward_length", "the number of neurons in an expert")?,
        };
        if n * n_ff > MOST as usize {
            let expected = format!("at most {MOST} neurons in a layer");
            return Err(keys.wrong("expert_count", expected, format!("{n} times {n_ff}")));
        }
        let scoring = match keys.metadata.u32(&keys.name("expert_gating_func"))? {
            None | Some(0) => spec.routing.scoring,
            Some(1) => Scoring::Softmax,
            Some(2) => Scoring::Sigmoid,
            Some(3) => Scoring::SoftmaxChosen,
            Some(other) => return Err(keys.wrong("expert_gating_func", "0 to 3", other)),
        };
        let norm = keys.metadata.bool(&keys.name("expert_weights_norm"))?;
        Ok(Some(Experts {
            n,
            n_used,
            n_ff,
            scoring,
            renormalise: norm.unwrap_or(spec.routing.renormalise),
            scale: match keys.positive("expert_weights_scale", 1.0)? {
                // How some files say that there is none.
                0.0 => 1.0,
                scale => scale,
            },
        }))
    }
}

impl Hyper {
    pub(super) fn read(keys: &Keys<'_>, spec: &ArchSpec) -> Result<Hyper, Error> {
        let n_embd = keys.need("embedding_length", "the width of the residual")?;
        let n_layer = keys.need("block_count", "the number of layers")?;
        if n_layer > 10_000 {
            return Err(keys.wrong("block_count", "at most 10000", n_layer));
        }
        let n_head = keys.need("attention.head_count", "the number of heads")?;
        let n_head_kv = keys.count("attention.head_count_kv")?.unwrap_or(n_head);
        if n_head % n_head_kv != 0 {
            let expected = format!("a divisor of the {n_head} heads");
            return Err(keys.wrong("attention.head_count_kv", expected, n_head_kv));
        }
        let d_head = match keys.count("attention.key_length")? {
            Some(d_head) => d_head,
            None if n_embd % n_head == 0 => n_embd / n_head,
            None => {
                let expected = format!("a divisor of the width {n_embd}");
                return Err(keys.wrong("attention.head_count", expected, n_head));
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
                return Err(keys.wrong("attention.head_count_kv", n_head, n_head_kv));
            }
            KvKind::Latent if n_rot == d_head => {
                let expected = format!("an even number below {d_head}");
                return Err(keys.wrong("rope.dimension_count", expected, n_rot));
            }
            KvKind::Latent => keys.need("attention.kv_lora_rank", "the width of latent keys")?,
        };
        let d_value = keys.count("attention.value_length")?.unwrap_or(d_head);
        if spec.qk_norm && d_value != d_head {
            return Err(keys.wrong("attention.value_length", d_head, d_value));
        }
        let experts = Experts::read(keys, spec)?;
        Ok(Hyper {
            n_layer,
            n_embd,
            n_head,
            n_head_kv,
            d_head,
            d_value,
            d_latent,
            n_ff: match &experts {
                Some(experts) => experts.n * experts.n_ff,
                None => keys.need("feed_forward_length", "the number of neurons in a layer")?,
            },
            experts,
            n_ctx_train: keys.need("context_length", "the trained context")?,
            eps: epsilon(keys, spec)?,
            n_rot,
            window: match keys.metadata.u32(&keys.name("attention.sliding_window")) {
                // How some files say that there is none.
                Ok(Some(0)) => None,
                _ => keys.count("attention.sliding_window")?.or(spec.window),
            },
            attn_scale: match keys.positive("attention.scale", 0.0)? {
                0.0 if spec.width_scaled == Some(n_layer) => {
                    (n_embd as f32 / n_head as f32).sqrt().recip()
                }
                0.0 => (d_head as f32).sqrt().recip(),
                scale => scale,
            },
            attn_softcap: keys.positive("attn_logit_softcapping", spec.attn_softcap)?,
            logit_softcap: keys.positive("final_logit_softcapping", spec.logit_softcap)?,
        })
    }

    /// Width of the keys of all heads.
    #[must_use]
    pub fn n_kv(&self) -> usize {
        self.n_head_kv * self.d_head
    }

    /// Width of the values of all heads.
    #[must_use]
    pub fn n_value(&self) -> usize {
        self.n_head_kv * self.d_value
    }

    /// Width of the queries of all heads.
    #[must_use]
    pub fn n_q(&self) -> usize {
        self.n_head * self.d_head
    }

    /// Width of what attention gathers for all heads.
    #[must_use]
    pub fn n_gathered(&self) -> usize {
        self.n_head * self.d_value
    }
}

fn epsilon(keys: &Keys<'_>, spec: &ArchSpec) -> Result<f32, Error> {
    let key = match spec.norm {
        NormKind::Rms => "attention.layer_norm_rms_epsilon",
        NormKind::Layer => "attention.layer_norm_epsilon",
    };
    let eps = keys.f32(key)?.or(spec.eps).ok_or_else(|| Error::MissingKey {
        file: keys.file.to_owned(),
        key: keys.name(key),
        expected: "the epsilon of the norms",
    })?;
    match (0.0..1.0).contains(&eps) {
        true => Ok(eps),
        false => Err(keys.wrong(key, "a number from 0 to 1", eps)),
    }
}

/// For each of `n_layer` layers whether it has the file's window.
pub(super) fn windowed(
    keys: &Keys<'_>,
    spec: &ArchSpec,
    n_layer: usize,
) -> Result<Vec<bool>, Error> {
    const KEY: &str = "attention.sliding_window_pattern";
    let name = keys.name(KEY);
    if keys.metadata.get(&name).is_some_and(|value| value.as_array().is_some()) {
        let list = keys.metadata.bool_array(&name)?.unwrap_or_default();
        return match list.len() == n_layer {
            true => Ok(list.to_vec()),
            false => Err(keys.wrong(KEY, format!("{n_layer} layers"), list.len())),
        };
    }
    let first = spec.global_layers.is_some_and(|global| global.first);
    let said = keys.metadata.u32(&name)?;
    let said = said.map(|period| GlobalLayers { period: period as usize, first });
    let global = said.or(spec.global_layers);
    Ok((0..n_layer).map(|i| !global.is_some_and(|global| global.contains(i))).collect())
}
