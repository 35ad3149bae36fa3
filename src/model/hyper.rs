//! Sizes of a model from its metadata, checked before anything is computed with them.

use std::fmt::Display;
use std::ops::Range;

use hal::op::NormKind;

use gguf::Metadata;

use super::scale_rules::{Factor, ScaleKeys, ScaleRules};
use super::{ArchSpec, Error, GlobalLayers, per_layer};

/// Largest accepted size. Products of two sizes stay far from overflow.
pub(super) const MAX_SIZE: u32 = 1 << 24;

/// Factors on embeddings, layer outputs and logits; all 1 in most families.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scales {
    /// Factor on embeddings.
    pub embedding: f32,
    /// Factor on the output of each mixer and feed-forward block.
    pub residual: f32,
    /// Factor on the logits.
    pub logits: f32,
}

/// Sizes that hold for all layers of a model. Sizes that differ between layers are in
/// [`crate::LayerWeights`].
#[derive(Clone, Debug, PartialEq)]
pub struct Hyper {
    /// Number of layers that are run.
    pub n_layer: usize,
    /// Number of multi-token prediction layers at the end of the file (NextN, MTP), which are not
    /// run.
    pub n_nextn: usize,
    /// Width of the residual.
    pub n_embd: usize,
    /// Whether tokens attend to earlier tokens only. Otherwise the model is an encoder: a text is
    /// computed as a whole, and has hidden states but no logits.
    pub causal: bool,
    /// Width of the per-layer embeddings of a token (Gemma 4); 0 in models without them.
    pub n_per_layer: usize,
    /// Context size of the training, in tokens.
    pub n_ctx_train: usize,
    /// Epsilon of the norms, added to the mean square or variance.
    pub eps: f32,
    /// Soft cap of the logits; 0 for none.
    pub logit_softcap: f32,
    /// Scales of embeddings, layer outputs and logits.
    pub scales: Scales,
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

    pub(super) fn wrong_key(
        &self,
        key: &str,
        expected: impl Display,
        found: impl Display,
    ) -> Error {
        Error::Key {
            file: self.file.to_owned(),
            key: self.name(key),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// A finite number of at least 0; `default` if the file does not have the key.
    pub(super) fn non_negative(&self, key: &str, default: f32) -> Result<f32, Error> {
        match self.f32(key)?.unwrap_or(default) {
            value if value >= 0.0 && value.is_finite() => Ok(value),
            value => Err(self.wrong_key(key, "a finite number of at least 0", value)),
        }
    }

    /// A count of at least 1; `None` if the file does not have the key. A list with one count per
    /// layer is accepted if all its entries are equal.
    pub(super) fn count(&self, key: &str) -> Result<Option<usize>, Error> {
        let name = self.name(key);
        let is_array = self.metadata.get(&name).is_some_and(|value| value.as_array().is_some());
        let value = if is_array {
            let list = self.metadata.u32_array(&name)?.unwrap_or_default();
            match list.first() {
                Some(first) if list.iter().all(|value| value == first) => Some(*first),
                Some(_) => {
                    return Err(self.wrong_key(key, "the same for every layer", "a mixed list"));
                }
                None => {
                    return Err(self.wrong_key(key, "one number for all layers", "an empty list"));
                }
            }
        } else {
            self.metadata.u32(&name)?
        };
        match value {
            Some(value) if value == 0 || value > MAX_SIZE => {
                Err(self.wrong_key(key, format!("1 to {MAX_SIZE}"), value))
            }
            value => Ok(value.map(|value| value as usize)),
        }
    }

    /// As [`Keys::count`], for keys that some files state as 0 when they do not apply.
    pub(super) fn positive(&self, key: &str) -> Result<Option<usize>, Error> {
        match self.metadata.u32(&self.name(key)) {
            Ok(Some(0)) => Ok(None),
            _ => self.count(key),
        }
    }

    /// A count for each of `n_layer` layers. The file has a list, whose entries may be 0, or one
    /// number of at least 1 for all layers. `None` if the file does not have the key.
    pub(super) fn per_layer(&self, key: &str, n_layer: usize) -> Result<Option<Vec<usize>>, Error> {
        let name = self.name(key);
        if self.metadata.get(&name).is_none_or(|value| value.as_array().is_none()) {
            return Ok(self.count(key)?.map(|value| vec![value; n_layer]));
        }
        let list = self.metadata.u32_array(&name)?.unwrap_or_default();
        if list.len() != n_layer {
            let expected = format!("a number for each of the {n_layer} layers");
            return Err(self.wrong_key(key, expected, format!("{} numbers", list.len())));
        }
        match list.iter().find(|&&value| value > MAX_SIZE) {
            Some(value) => {
                Err(self.wrong_key(key, format!("0 to {MAX_SIZE} for each layer"), value))
            }
            None => Ok(Some(list.iter().map(|&value| value as usize).collect())),
        }
    }

    /// A limit for each of `n_layer` layers, 0 for none. The file has a list, or one number for all
    /// layers; all are 0 if it does not have the key.
    pub(super) fn limits(&self, key: &str, n_layer: usize) -> Result<Vec<f32>, Error> {
        let name = self.name(key);
        let is_list = self.metadata.get(&name).is_some_and(|value| value.as_array().is_some());
        let limits = if is_list {
            self.metadata.f32_array(&name)?.unwrap_or_default().into_owned()
        } else {
            vec![self.f32(key)?.unwrap_or(0.0); n_layer]
        };
        if limits.len() != n_layer {
            let expected = format!("a number for each of the {n_layer} layers");
            return Err(self.wrong_key(key, expected, format!("{} numbers", limits.len())));
        }
        match limits.iter().find(|limit| !(**limit >= 0.0 && limit.is_finite())) {
            Some(limit) => Err(self.wrong_key(key, "finite numbers of at least 0", limit)),
            None => Ok(limits),
        }
    }

    /// A flag for each of `n_layer` layers, stored as booleans or as numbers; `None` if the file
    /// does not have the list.
    pub(super) fn flags(&self, key: &str, n_layer: usize) -> Result<Option<Vec<bool>>, Error> {
        let name = self.name(key);
        let truths = match self.metadata.bool_array(&name) {
            Ok(truths) => truths.map(<[bool]>::to_vec),
            Err(_) => self
                .metadata
                .u32_array(&name)?
                .map(|numbers| numbers.iter().map(|&number| number != 0).collect()),
        };
        match truths {
            Some(list) if list.len() != n_layer => {
                Err(self.wrong_key(key, format!("{n_layer} entries"), list.len()))
            }
            truths => Ok(truths),
        }
    }

    pub(super) fn need(&self, key: &str, expected: &'static str) -> Result<usize, Error> {
        self.count(key)?.ok_or_else(|| self.missing(key, expected))
    }

    pub(super) fn missing(&self, key: &str, expected: &'static str) -> Error {
        Error::MissingKey { file: self.file.to_owned(), key: self.name(key), expected }
    }
}

impl Scales {
    fn read(
        keys: &Keys<'_>,
        rules: &ScaleRules,
        n_embd: usize,
        n_layer: usize,
    ) -> Result<Scales, Error> {
        // The squares of scales in this range do not overflow or underflow.
        const RANGE: Range<f32> = 1e-6..1e6;
        let value = |factor| match factor {
            Factor::Number(number) => number,
            Factor::RootWidth => (n_embd as f32).sqrt(),
            Factor::PerRootLayers(number) => number / (n_layer as f32).sqrt(),
            Factor::PerWidth(number) => number / n_embd as f32,
            Factor::TimesWidth(number) => number * n_embd as f32,
        };
        let scale = |key: &str, is_read: bool, default: Factor| {
            if !is_read {
                return Ok(value(default));
            }
            match keys.f32(key)? {
                // Some files state 0 when there is no scale.
                None | Some(0.0) => Ok(value(default)),
                Some(scale) if RANGE.contains(&scale) => Ok(scale),
                Some(scale) => Err(keys.wrong_key(key, "a number from 0.000001 to 1000000", scale)),
            }
        };
        let all = rules.keys == ScaleKeys::All;
        let has_embedding = all || matches!(rules.keys, ScaleKeys::Ends | ScaleKeys::Embedding);
        let has_logits = all || matches!(rules.keys, ScaleKeys::Ends | ScaleKeys::Logits);
        let logits = scale("logit_scale", has_logits, rules.logits)?;
        Ok(Scales {
            embedding: scale("embedding_scale", has_embedding, rules.embedding)?,
            residual: scale("residual_scale", all, rules.residual)?,
            logits: if all { logits.recip() } else { logits },
        })
    }
}

impl Hyper {
    /// Factor on embeddings. The engine stores the residual divided by `scales.residual`, so that
    /// layers add their output without a factor. Only norms read the residual, and with
    /// [`Hyper::residual_eps`] their results are the same.
    #[must_use]
    pub fn embedding_factor(&self) -> f32 {
        self.scales.embedding / self.scales.residual
    }

    /// Epsilon for norms of the stored residual, which is divided by `scales.residual`.
    #[must_use]
    pub fn residual_eps(&self) -> f32 {
        self.eps / self.scales.residual.powi(2)
    }

    pub(super) fn read(keys: &Keys<'_>, spec: &ArchSpec) -> Result<Hyper, Error> {
        let n_embd = keys.need("embedding_length", "the embedding size")?;
        let n_layer = keys.need("block_count", "the number of layers")?;
        if n_layer > 10_000 {
            return Err(keys.wrong_key("block_count", "at most 10000", n_layer));
        }
        const NEXTN: &str = "nextn_predict_layers";
        let n_nextn = keys.metadata.u32(&keys.name(NEXTN))?.unwrap_or(0) as usize;
        if n_nextn >= n_layer {
            return Err(keys.wrong_key(NEXTN, format!("fewer than the {n_layer} layers"), n_nextn));
        }
        Ok(Hyper {
            n_layer: n_layer - n_nextn,
            n_nextn,
            n_embd,
            causal: keys.metadata.bool(&keys.name("attention.causal"))?.unwrap_or(!spec.encoder),
            // The key of families with n-grams states the width of a row of their table.
            n_per_layer: if spec.ngrams { 0 } else { per_layer::width(keys)? },
            n_ctx_train: keys.need("context_length", "the context length of the training")?,
            eps: epsilon(keys, spec)?,
            logit_softcap: keys.non_negative("final_logit_softcapping", spec.logit_softcap)?,
            scales: Scales::read(keys, &spec.scales, n_embd, n_layer - n_nextn)?,
        })
    }
}

fn epsilon(keys: &Keys<'_>, spec: &ArchSpec) -> Result<f32, Error> {
    let key = match spec.norm {
        NormKind::Rms | NormKind::L2 => "attention.layer_norm_rms_epsilon",
        NormKind::Layer => "attention.layer_norm_epsilon",
    };
    let stated = match keys.f32(key)? {
        // Some nemotron_h files have only this key.
        None if spec.norm == NormKind::Rms => keys.f32("attention.layer_norm_epsilon")?,
        stated => stated,
    };
    let eps = stated.or(spec.eps).ok_or_else(|| Error::MissingKey {
        file: keys.file.to_owned(),
        key: keys.name(key),
        expected: "the epsilon of the norm layers",
    })?;
    if (0.0..1.0).contains(&eps) {
        Ok(eps)
    } else {
        Err(keys.wrong_key(key, "at least 0 and below 1", eps))
    }
}

/// For each of `n_layer` layers, whether it uses the sliding window.
pub(super) fn windowed_layers(
    keys: &Keys<'_>,
    spec: &ArchSpec,
    n_layer: usize,
) -> Result<Vec<bool>, Error> {
    const KEY: &str = "attention.sliding_window_pattern";
    let name = keys.name(KEY);
    if keys.metadata.get(&name).is_some_and(|value| value.as_array().is_some()) {
        let list = keys.metadata.bool_array(&name)?.unwrap_or_default();
        return if list.len() == n_layer {
            Ok(list.to_vec())
        } else {
            Err(keys.wrong_key(KEY, format!("{n_layer} entries"), list.len()))
        };
    }
    let first = spec.global_layers.is_some_and(|global| global.first);
    let period = keys.metadata.u32(&name)?;
    let stated = period.map(|period| GlobalLayers { period: period as usize, first });
    let global = stated.or(spec.global_layers);
    Ok((0..n_layer).map(|i| !global.is_some_and(|global| global.contains(i))).collect())
}
