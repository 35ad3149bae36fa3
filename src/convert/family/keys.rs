//! Keys shared by many families.
//!
//! Source: the key names of llama.cpp's gguf-py.

use std::collections::BTreeMap;

use super::rope;
use super::rule::On;
use crate::Error;
use crate::config::Json;
use crate::output::{Content, Output};
use gguf::{Array, TensorType, Value};

/// The GGUF keys and tensors that follow from `config.json`.
pub(crate) struct Build<'a> {
    pub(crate) config: &'a Json,
    pub(crate) arch: &'static str,
    pub(crate) keys: Vec<(String, Value)>,
    pub(crate) extra: Vec<Output>,
    pub(crate) notes: Vec<String>,
    /// The layers of the family's conditional groups of rules.
    pub(crate) layers: BTreeMap<On, Vec<bool>>,
    /// Layers for multi-token prediction after the last layer, which are not converted.
    pub(crate) n_extra_layer: u32,
    /// Layers in the checkpoint, if `config.json` states another number.
    pub(super) n_block: Option<u32>,
}

/// A setting of `config.json` that becomes a key unchanged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    to: &'static str,
    from: &'static [&'static str],
    kind: SettingKind,
}

#[derive(Clone, Copy, Debug)]
enum SettingKind {
    /// A positive whole number, which must be present.
    Count,
    /// A whole number, if present.
    Whole,
    /// A number, if present.
    Number,
    /// True or false, if present.
    Flag,
}

pub(super) const fn count(to: &'static str, from: &'static [&'static str]) -> Setting {
    Setting { to, from, kind: SettingKind::Count }
}

pub(super) const fn whole(to: &'static str, from: &'static [&'static str]) -> Setting {
    Setting { to, from, kind: SettingKind::Whole }
}

pub(super) const fn number(to: &'static str, from: &'static [&'static str]) -> Setting {
    Setting { to, from, kind: SettingKind::Number }
}

pub(super) const fn flag(to: &'static str, from: &'static [&'static str]) -> Setting {
    Setting { to, from, kind: SettingKind::Flag }
}

pub(super) const HEADS: &[&str] = &["num_attention_heads", "n_head", "n_heads"];
const HEADS_KV: &[&str] = &["num_key_value_heads", "num_kv_heads", "n_head_kv"];
pub(super) const WIDTH: &[&str] = &["hidden_size", "n_embd", "n_embed", "d_model", "dim"];
pub(super) const RMS_EPS: &[&str] = &["rms_norm_eps"];
pub(super) const EPS: &[&str] =
    &["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"];
pub(super) const CONTEXT: &[&str] =
    &["max_position_embeddings", "n_positions", "seq_length", "model_max_length"];

impl<'a> Build<'a> {
    pub(crate) fn new(config: &'a Json, arch: &'static str) -> Build<'a> {
        Build {
            config,
            arch,
            keys: Vec::new(),
            extra: Vec::new(),
            notes: Vec::new(),
            layers: BTreeMap::new(),
            n_extra_layer: 0,
            n_block: None,
        }
    }

    /// Sets `<arch>.<key>`.
    pub(super) fn set(&mut self, key: &str, value: impl Into<Value>) {
        let value = value.into();
        debug_assert!(!matches!(value, Value::I32(_)), "llama.cpp reads {key} as U32");
        self.keys.push((format!("{}.{key}", self.arch), value));
    }

    /// Sets `<arch>.<key>`, which may be set already.
    pub(super) fn replace(&mut self, key: &str, value: impl Into<Value>) {
        self.keys.retain(|(set, _)| *set != format!("{}.{key}", self.arch));
        self.set(key, value);
    }

    /// Sets the keys of `settings`.
    pub(crate) fn copy(&mut self, settings: &[Setting]) -> Result<(), Error> {
        for &Setting { to, from, kind } in settings {
            let value: Option<Value> = match kind {
                SettingKind::Count => Some(self.config.count(from, to)?.into()),
                SettingKind::Whole => self.config.u32(from)?.map(Value::from),
                SettingKind::Number => self.config.f32(from)?.map(Value::from),
                SettingKind::Flag => self.config.bool(from)?.map(Value::from),
            };
            if let Some(value) = value {
                self.replace(to, value);
            }
        }
        Ok(())
    }

    /// Sets the layers that the rules of `on` apply to.
    pub(super) fn layers_on(&mut self, on: On, is_on: impl Fn(u32) -> bool) -> Result<(), Error> {
        let layers = (0..self.n_layer()?).map(is_on).collect();
        self.layers.insert(on, layers);
        Ok(())
    }

    /// Whether the rules of `on` apply to a layer; `None` is for all layers.
    pub(crate) fn applies(&self, on: Option<On>, layer: usize) -> bool {
        let layers = on.and_then(|on| self.layers.get(&on));
        layers.is_none_or(|layers| layers.get(layer).copied().unwrap_or(true))
    }

    /// Row of position 0 in a RoBERTa's table of positions.
    pub(crate) fn first_position(&self) -> Result<u32, Error> {
        Ok(self.config.u32(&["pad_token_id"])?.unwrap_or(1).saturating_add(1))
    }

    /// Whether `<arch>.<key>` is set.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.keys.iter().any(|(set, _)| *set == format!("{}.{key}", self.arch))
    }

    pub(super) fn tensor(&mut self, name: &str, values: Vec<f32>) {
        let shape = vec![values.len() as u64];
        let content = Content::Values(values);
        self.extra.push(Output { name: name.to_owned(), shape, ty: TensorType::F32, content });
    }

    pub(crate) fn n_layer(&self) -> Result<u32, Error> {
        const KEYS: &[&str] = &["num_hidden_layers", "n_layer", "n_layers", "num_layers"];
        // Ten times the largest known number.
        const MOST: u32 = 2000;
        let kinds = self.config.get(&["layers_block_type"]).and_then(|(_, list)| list.as_array());
        let n = match (kinds, self.config.get(KEYS)) {
            (_, _) if self.n_block.is_some() => self.n_block.unwrap_or_default(),
            (Some(kinds), None) => u32::try_from(kinds.len()).unwrap_or(u32::MAX),
            (_, _) => self.config.count(KEYS, "the number of layers")?,
        };
        match n {
            1..=MOST => Ok(n),
            _ => Err(self.config.wrong_value(KEYS[0], &format!("1 to {MOST}"), n)),
        }
    }

    pub(crate) fn n_head(&self) -> Result<u32, Error> {
        self.config.count(HEADS, "the number of heads")
    }

    /// Number of KV heads; the number of query heads if `config.json` does not state it.
    pub(crate) fn n_head_kv(&self) -> Result<u32, Error> {
        let falcon = self.arch == "falcon" && self.config.get(&["n_head_kv"]).is_none();
        // Falcon 7B uses one KV head (`multi_query`) and ignores the number in `config.json`; the
        // newer architecture uses that number.
        let newer = self.config.bool(&["new_decoder_architecture"])?.unwrap_or(false);
        if falcon && !newer && self.config.bool(&["multi_query"])?.unwrap_or(true) {
            return Ok(1);
        }
        let n_head = self.n_head()?;
        let n = match self.config.get(HEADS_KV) {
            Some(_) => self.config.count(HEADS_KV, "the number of key and value heads")?,
            None => n_head,
        };
        match n_head % n {
            0 => Ok(n),
            _ => Err(self.config.wrong_value(
                HEADS_KV[0],
                &format!("a divisor of the {n_head} heads"),
                n,
            )),
        }
    }

    /// Experts per layer; `None` if the key is not set.
    pub(crate) fn n_expert(&self) -> Option<u64> {
        let (_, n) = self.keys.iter().find(|(key, _)| key.ends_with(".expert_count"))?;
        u64::try_from(n.as_integer()?).ok()
    }

    pub(crate) fn n_embd(&self) -> Result<u32, Error> {
        self.config.count(WIDTH, "the embedding size")
    }

    pub(crate) fn d_head(&self) -> Result<u32, Error> {
        match self.config.get(&["head_dim"]) {
            Some(_) => self.config.count(&["head_dim"], "the head size"),
            None => match self.n_embd()? / self.n_head()? {
                0 => {
                    let expected = format!("at most the {} values of the residual", self.n_embd()?);
                    Err(self.config.wrong_value("num_attention_heads", &expected, self.n_head()?))
                }
                n => Ok(n),
            },
        }
    }

    /// Sets the context size and the sizes of [`Build::shape`].
    pub(super) fn sizes(&mut self) -> Result<(), Error> {
        let n_ctx = self.config.count(CONTEXT, "the context length")?;
        self.set("context_length", n_ctx);
        self.shape()
    }

    /// Sets the number of layers, heads and vocabulary entries and the width of the residual.
    pub(super) fn shape(&mut self) -> Result<(), Error> {
        let (n_embd, n_layer) = (self.n_embd()?, self.n_layer()?);
        let (n_head, n_head_kv) = (self.n_head()?, self.n_head_kv()?);
        self.set("embedding_length", n_embd);
        self.set("block_count", n_layer);
        self.set("attention.head_count", n_head);
        self.set("attention.head_count_kv", n_head_kv);
        if let Some(n_vocab) = self.config.u32(&["vocab_size"])? {
            self.set("vocab_size", n_vocab);
        }
        Ok(())
    }

    pub(super) fn feed_forward(&mut self) -> Result<(), Error> {
        let keys = &["intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "hidden_dim"];
        let n_ff = self.config.count(keys, "the number of neurons in a layer")?;
        self.set("feed_forward_length", n_ff);
        Ok(())
    }

    /// Sets a key that has a value for each layer: `value` in the layers of `on`, otherwise 0.
    pub(super) fn per_layer(&mut self, key: &str, on: On, value: u32) {
        let layers = self.layers.get(&on).cloned().unwrap_or_default();
        let values = layers.iter().map(|&is_on| if is_on { value as i32 } else { 0 }).collect();
        self.replace(key, Value::Array(Array::I32(values)));
    }

    /// For each layer, the text in the list `key`; `None` without that setting.
    pub(super) fn kinds(&self, key: &'static str) -> Result<Option<Vec<String>>, Error> {
        let Some(list) = self.config.list(key)? else { return Ok(None) };
        let n_layer = self.n_layer()?;
        let kinds = list.iter().map(|kind| kind.as_str().map(str::to_owned)).collect();
        let kinds: Option<Vec<String>> = kinds;
        match kinds.filter(|kinds| kinds.len() == n_layer as usize) {
            Some(kinds) => Ok(Some(kinds)),
            None => {
                let expected = format!("a name for each of the {n_layer} layers");
                Err(self.config.wrong_value(key, &expected, format!("a list of {}", list.len())))
            }
        }
    }

    pub(super) fn rms(&mut self) -> Result<(), Error> {
        let eps = self.config.need_f32(RMS_EPS, "the epsilon of the norm layers")?;
        self.set("attention.layer_norm_rms_epsilon", eps);
        Ok(())
    }

    pub(super) fn layer_norm(&mut self) -> Result<(), Error> {
        let eps = self.config.need_f32(EPS, "the epsilon of the norm layers")?;
        self.set("attention.layer_norm_epsilon", eps);
        Ok(())
    }

    /// Sets the width of key and value heads if `config.json` states one; readers of the file
    /// default to `n_embd / n_head`.
    pub(super) fn heads(&mut self) -> Result<(), Error> {
        if self.config.get(&["head_dim"]).is_some() {
            let d_head = self.d_head()?;
            self.set("attention.key_length", d_head);
            self.set("attention.value_length", d_head);
        }
        Ok(())
    }

    /// Sets the number of experts and the number of experts used per token.
    pub(super) fn experts(&mut self) -> Result<(), Error> {
        let total = &[
            "num_local_experts",
            "num_experts",
            "n_routed_experts",
            "moe_num_experts",
            "moe_num_primary_experts",
        ];
        let used = &[
            "num_experts_per_tok",
            "num_experts_per_token",
            "moe_num_active_primary_experts",
            "moe_k",
            "moe_topk",
        ];
        let n = self.config.count(total, "the number of experts")?;
        let n_used = self.config.count(used, "the number of experts per token")?;
        self.set("expert_count", n);
        self.set("expert_used_count", n_used);
        Ok(())
    }

    /// Sets the RoPE keys: `n_rot` rotated values per head, base, and scaling.
    pub(super) fn rope(&mut self, n_rot: u32) -> Result<(), Error> {
        self.set("rope.dimension_count", n_rot);
        rope::set(self, n_rot)
    }
}
