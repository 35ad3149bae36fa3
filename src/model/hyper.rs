//! Sizes of a model, from its metadata, checked before anything is computed from them.

use std::fmt::Display;

use crate::gguf::Metadata;

use super::Error;

/// Layers, heads or widths beyond this are a lie: it keeps every product of sizes far from overflow.
const MOST: u32 = 1 << 24;

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
    /// Values per head.
    pub d_head: usize,
    /// Neurons per layer.
    pub n_ff: usize,
    /// Context the model was trained for, tokens.
    pub n_ctx_train: usize,
    /// Added to the mean square in norms.
    pub eps: f32,
    /// Values of a head that turn with the position.
    pub n_rot: usize,
    /// Positions a token sees; `None` for all.
    pub window: Option<usize>,
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

impl Hyper {
    pub(super) fn read(keys: &Keys<'_>) -> Result<Hyper, Error> {
        let n_embd = keys.need("embedding_length", "the width of the residual")?;
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
        if let Some(d_value) = keys.count("attention.value_length")?
            && d_value != d_head
        {
            return Err(keys.wrong("attention.value_length", d_head, d_value));
        }
        let n_rot = keys.count("rope.dimension_count")?.unwrap_or(d_head);
        if n_rot > d_head || n_rot % 2 != 0 {
            let expected = format!("an even number up to {d_head}");
            return Err(keys.wrong("rope.dimension_count", expected, n_rot));
        }
        let eps_key = "attention.layer_norm_rms_epsilon";
        let eps = keys.f32(eps_key)?.ok_or_else(|| Error::MissingKey {
            file: keys.file.to_owned(),
            key: keys.name(eps_key),
            expected: "the epsilon of the norms",
        })?;
        if !(0.0..1.0).contains(&eps) {
            return Err(keys.wrong(eps_key, "a number from 0 to 1", eps));
        }
        let n_layer = keys.need("block_count", "the number of layers")?;
        if n_layer > 10_000 {
            return Err(keys.wrong("block_count", "at most 10000", n_layer));
        }
        Ok(Hyper {
            n_layer,
            n_embd,
            n_head,
            n_head_kv,
            d_head,
            n_ff: keys.need("feed_forward_length", "the number of neurons in a layer")?,
            n_ctx_train: keys.need("context_length", "the trained context")?,
            eps,
            n_rot,
            window: match keys.metadata.u32(&keys.name("attention.sliding_window")) {
                // How some files say that there is none.
                Ok(Some(0)) => None,
                _ => keys.count("attention.sliding_window")?,
            },
        })
    }

    /// Width of the keys of all heads.
    #[must_use]
    pub fn n_kv(&self) -> usize {
        self.n_head_kv * self.d_head
    }

    /// Width of the queries of all heads.
    #[must_use]
    pub fn n_q(&self) -> usize {
        self.n_head * self.d_head
    }
}
