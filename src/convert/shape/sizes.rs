//! The sizes in `config.json` that shapes depend on.

use gguf::{Array, Value, Writer};

use crate::Error;
use crate::config::Json;

/// The GGUF family whose tensors a model has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `llama`: direct attention and dense blocks.
    Dense,
    /// `opt`: learned positions, blocks without a gate.
    Opt,
    /// `glm4moe`: direct attention and experts, after leading dense layers.
    Experts,
    /// `gpt-oss`: experts and sinks.
    Sinks,
    /// `deepseek2`: latent attention and experts, after leading dense layers; with an indexer
    /// `deepseek32` or `glm-dsa`.
    Latent,
    /// `qwen35` or `qwen35moe`: gated delta nets and, in some layers, gated attention.
    Delta,
}

/// `model_type` of each known model.
const MODEL_TYPES: &[(&str, Form)] = &[
    ("llama", Form::Dense),
    ("mistral", Form::Dense),
    ("qwen2", Form::Dense),
    ("qwen3", Form::Dense),
    ("opt", Form::Opt),
    ("mixtral", Form::Experts),
    ("qwen2_moe", Form::Experts),
    ("qwen3_moe", Form::Experts),
    ("olmoe", Form::Experts),
    ("glm4_moe", Form::Experts),
    ("gpt_oss", Form::Sinks),
    ("deepseek_v2", Form::Latent),
    ("deepseek_v3", Form::Latent),
    ("deepseek_v32", Form::Latent),
    ("kimi_k2", Form::Latent),
    ("glm4_moe_lite", Form::Latent),
    ("glm_moe_dsa", Form::Latent),
    ("qwen3_next", Form::Delta),
    ("qwen3_5", Form::Delta),
    ("qwen3_5_moe", Form::Delta),
];

/// The names in [`MODEL_TYPES`].
pub(super) fn model_types() -> impl Iterator<Item = &'static str> {
    MODEL_TYPES.iter().map(|(name, _)| *name)
}

/// Experts of the layers from `first` on.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpertSizes {
    pub(super) n: u64,
    pub(super) n_used: u64,
    pub(super) n_ff: u64,
    /// Neurons of the shared expert; 0 without one.
    pub(super) n_shared: u64,
    /// Number of leading dense layers.
    pub(super) first: u64,
}

/// Latent attention.
#[derive(Clone, Copy, Debug)]
pub(super) struct LatentSizes {
    /// Rank of the queries; 0 for a whole matrix.
    pub(super) q_rank: u64,
    pub(super) kv_rank: u64,
    /// Values per head without and with RoPE, and of a value head.
    pub(super) n_nope: u64,
    pub(super) n_rope: u64,
    pub(super) n_value: u64,
}

/// The indexer of sparse attention.
#[derive(Clone, Debug)]
pub(super) struct IndexerSizes {
    pub(super) n_head: u64,
    pub(super) d_head: u64,
    pub(super) top_k: u64,
    /// For each layer, whether it has one; `None` in DeepSeek's family, where all have.
    pub(super) layers: Option<Vec<bool>>,
}

/// Gated delta nets.
#[derive(Clone, Debug)]
pub(super) struct DeltaSizes {
    pub(super) n_head_k: u64,
    pub(super) n_head_v: u64,
    pub(super) d_head: u64,
    pub(super) kernel: u64,
    /// For each layer, whether it is one.
    pub(super) layers: Vec<bool>,
}

/// All sizes of a model.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    pub(super) form: Form,
    pub(super) n_embd: u64,
    pub(super) n_layer: u64,
    pub(super) n_vocab: u64,
    pub(super) n_ctx: u64,
    pub(super) tied: bool,
    pub(super) n_head: u64,
    pub(super) n_head_kv: u64,
    pub(super) d_head: u64,
    /// Neurons of a dense layer.
    pub(super) n_ff: u64,
    pub(super) activation: String,
    pub(super) experts: Option<ExpertSizes>,
    pub(super) latent: Option<LatentSizes>,
    pub(super) indexer: Option<IndexerSizes>,
    pub(super) delta: Option<DeltaSizes>,
    /// Sliding window in tokens, and for each layer whether it has it.
    pub(super) window: Option<(u64, Vec<bool>)>,
}

/// The type of the model or, if `config.json` does not state it, of its class.
fn model_type(json: &Json) -> Result<String, Error> {
    let class = json.list("architectures")?.and_then(|list| list.first()?.as_str());
    let of_class = || class.and_then(|class| class.split("For").next()).unwrap_or_default();
    let named = json.text(&["model_type"])?.unwrap_or_else(|| of_class().to_owned());
    // The text half of a model for images.
    Ok(named.strip_suffix("_text").unwrap_or(&named).to_owned())
}

/// A name as types and classes have in common: `glm4_moe` is `Glm4Moe`.
fn plain(name: &str) -> String {
    name.replace('_', "").to_ascii_lowercase()
}

const EXPERTS: &[&str] = &["n_routed_experts", "num_local_experts", "num_experts"];

/// Reads a count up to `most`. Reading a model takes memory for its vectors, so that no setting may
/// be arbitrarily large.
fn count(json: &Json, keys: &[&str], expected: &'static str, most: u64) -> Result<u64, Error> {
    match u64::from(json.count(keys, expected)?) {
        n if n <= most => Ok(n),
        n => Err(json.wrong_value(keys[0], &format!("at most {most}"), n)),
    }
}

/// As [`count`], with a default; 0 is allowed.
fn count_or(json: &Json, keys: &[&str], most: u64, default: u64) -> Result<u64, Error> {
    match json.u32(keys)?.map(u64::from) {
        None => Ok(default),
        Some(n) if n <= most => Ok(n),
        Some(n) => Err(json.wrong_value(keys[0], &format!("at most {most}"), n)),
    }
}

impl Sizes {
    pub(super) fn read(json: &Json) -> Result<Sizes, Error> {
        let named = model_type(json)?;
        let found = MODEL_TYPES.iter().find(|(name, _)| plain(name) == plain(&named));
        let Some(&(_, form)) = found else {
            let (file, known) = (json.file().to_owned(), model_types().collect());
            return Err(Error::Shapes { file, found: named, known });
        };
        let n_embd = count(json, &["hidden_size"], "the embedding size", 1 << 16)?;
        let n_layer = count(json, &["num_hidden_layers"], "the number of layers", 1000)?;
        let n_head = count(json, &["num_attention_heads"], "the number of heads", 1 << 12)?;
        let n_head_kv = count_or(json, &["num_key_value_heads"], n_head, n_head)?;
        if n_head_kv == 0 || !n_head.is_multiple_of(n_head_kv) {
            let expected = format!("a divisor of the {n_head} heads");
            return Err(json.wrong_value("num_key_value_heads", &expected, n_head_kv));
        }
        let n_ff = count_or(json, &["intermediate_size", "ffn_dim"], 1 << 20, 0)?;
        let experts = if json.u32(EXPERTS)?.is_some_and(|n| n > 0) && form != Form::Dense {
            Some(experts(json, n_ff, n_layer)?)
        } else {
            None
        };
        if n_ff == 0 && experts.is_none_or(|experts| experts.first > 0) {
            return Err(json.missing("intermediate_size", "the number of neurons in a layer"));
        }
        let activation = json.text(&["hidden_act", "activation_function"])?;
        Ok(Sizes {
            form,
            n_embd,
            n_layer,
            n_vocab: count(json, &["vocab_size"], "the size of the vocabulary", 1 << 22)?,
            n_ctx: count(json, &["max_position_embeddings"], "the context length", 1 << 24)?,
            // OPT's files do not say it.
            tied: json.bool(&["tie_word_embeddings"])?.unwrap_or(form == Form::Opt),
            n_head,
            n_head_kv,
            d_head: count_or(json, &["head_dim"], 1 << 12, n_embd / n_head)?.max(1),
            n_ff,
            activation: activation.unwrap_or_else(|| "silu".to_owned()),
            experts,
            latent: if form == Form::Latent { Some(latent(json)?) } else { None },
            indexer: if form == Form::Latent { indexer(json, &named, n_layer)? } else { None },
            delta: if form == Form::Delta { Some(delta(json, n_layer)?) } else { None },
            window: window(json, n_layer)?,
        })
    }

    /// `general.architecture`.
    pub(super) fn arch(&self) -> &'static str {
        match (self.form, self.experts) {
            (Form::Dense, _) => "llama",
            (Form::Opt, _) => "opt",
            (Form::Experts, _) => "glm4moe",
            (Form::Sinks, _) => "gpt-oss",
            (Form::Latent, _) => match &self.indexer {
                None => "deepseek2",
                Some(IndexerSizes { layers: None, .. }) => "deepseek32",
                Some(IndexerSizes { layers: Some(_), .. }) => "glm-dsa",
            },
            (Form::Delta, None) => "qwen35",
            (Form::Delta, Some(_)) => "qwen35moe",
        }
    }

    /// Sets the keys that readers of the file need.
    pub(super) fn set_keys(&self, writer: &mut Writer) -> Result<(), Error> {
        let arch = self.arch();
        writer.set("general.architecture", arch)?;
        let mut set = |key: &str, value: Value| writer.set(&format!("{arch}.{key}"), value);
        let n = |n: u64| Value::U32(u32::try_from(n).unwrap_or(u32::MAX));
        let (d_head, d_value, n_rot, n_head_kv) = match self.latent {
            // All heads share the latent vector.
            Some(latent) => (latent.kv_rank + latent.n_rope, latent.kv_rank, latent.n_rope, 1),
            None => (self.d_head, self.d_head, self.d_head / 2 * 2, self.n_head_kv),
        };
        for (key, value) in [
            ("context_length", n(self.n_ctx)),
            ("embedding_length", n(self.n_embd)),
            ("block_count", n(self.n_layer)),
            ("attention.head_count", n(self.n_head)),
            ("attention.head_count_kv", n(n_head_kv)),
            ("attention.key_length", n(d_head)),
            ("attention.value_length", n(d_value)),
            ("rope.dimension_count", n(n_rot)),
            ("attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
            ("attention.layer_norm_epsilon", Value::F32(1e-5)),
        ] {
            set(key, value)?;
        }
        if self.n_ff > 0 {
            set("feed_forward_length", n(self.n_ff))?;
        }
        if self.form == Form::Dense && self.activation != "silu" {
            set("hidden_activation", self.activation.as_str().into())?;
        }
        if let Some(experts) = self.experts {
            set("expert_count", n(experts.n))?;
            set("expert_used_count", n(experts.n_used))?;
            set("expert_feed_forward_length", n(experts.n_ff))?;
            if matches!(self.form, Form::Experts | Form::Latent) {
                // Sigmoid.
                set("expert_gating_func", n(2))?;
                set("leading_dense_block_count", n(experts.first))?;
            }
        }
        if let Some(latent) = self.latent {
            set("attention.kv_lora_rank", n(latent.kv_rank))?;
            set("attention.key_length_mla", n(latent.n_nope + latent.n_rope))?;
            set("attention.value_length_mla", n(latent.n_value))?;
            if latent.q_rank > 0 {
                set("attention.q_lora_rank", n(latent.q_rank))?;
            }
        }
        if let Some(indexer) = &self.indexer {
            set("attention.indexer.head_count", n(indexer.n_head))?;
            set("attention.indexer.key_length", n(indexer.d_head))?;
            set("attention.indexer.top_k", n(indexer.top_k))?;
            if let Some(layers) = &indexer.layers {
                set("attention.indexer.types", Value::Array(Array::Bool(layers.clone())))?;
            }
        }
        if let Some(delta) = &self.delta {
            set("ssm.state_size", n(delta.d_head))?;
            set("ssm.group_count", n(delta.n_head_k))?;
            set("ssm.time_step_rank", n(delta.n_head_v))?;
            set("ssm.conv_kernel", n(delta.kernel))?;
            set("ssm.inner_size", n(delta.n_head_v * delta.d_head))?;
            set("attention.recurrent_layers", Value::Array(Array::Bool(delta.layers.clone())))?;
        }
        if let Some((size, layers)) = &self.window {
            set("attention.sliding_window", n(*size))?;
            set("attention.sliding_window_pattern", Value::Array(Array::Bool(layers.clone())))?;
        }
        Ok(())
    }
}

fn experts(json: &Json, n_ff: u64, n_layer: u64) -> Result<ExpertSizes, Error> {
    let n = count(json, EXPERTS, "the number of experts", 1 << 12)?;
    let n_used = count(json, &["num_experts_per_tok"], "the number of experts per token", n)?;
    let own = count_or(json, &["moe_intermediate_size"], 1 << 20, n_ff)?;
    if own == 0 {
        return Err(json.missing("moe_intermediate_size", "the number of neurons of an expert"));
    }
    let shared = count_or(json, &["n_shared_experts"], 64, 0)? * own;
    let n_shared = count_or(json, &["shared_expert_intermediate_size"], 1 << 20, shared)?;
    let first = count_or(json, &["first_k_dense_replace"], n_layer, 0)?;
    Ok(ExpertSizes { n, n_used, n_ff: own, n_shared, first })
}

fn latent(json: &Json) -> Result<LatentSizes, Error> {
    let head = |key: &'static str| count(json, &[key], "the size of a part of a head", 1 << 12);
    Ok(LatentSizes {
        q_rank: count_or(json, &["q_lora_rank"], 1 << 16, 0)?,
        kv_rank: count(json, &["kv_lora_rank"], "the rank of the latent keys and values", 1 << 16)?,
        n_nope: head("qk_nope_head_dim")?,
        n_rope: head("qk_rope_head_dim")?,
        n_value: head("v_head_dim")?,
    })
}

/// The indexer of a model that has one. Every layer has an indexer unless `indexer_types` says
/// otherwise.
fn indexer(json: &Json, named: &str, n_layer: u64) -> Result<Option<IndexerSizes>, Error> {
    if json.u32(&["index_topk"])?.is_none() {
        return Ok(None);
    }
    let layers = match json.list("indexer_types")? {
        Some(list) if list.len() as u64 == n_layer => {
            Some(list.iter().map(|kind| kind.as_str() == Some("full")).collect())
        }
        Some(list) => {
            let found = format!("a list of {}", list.len());
            let expected = format!("a name for each of the {n_layer} layers");
            return Err(json.wrong_value("indexer_types", &expected, found));
        }
        None => (plain(named) == plain("glm_moe_dsa")).then(|| vec![true; n_layer as usize]),
    };
    Ok(Some(IndexerSizes {
        n_head: count(json, &["index_n_heads"], "the number of the indexer's heads", 1 << 10)?,
        d_head: count(json, &["index_head_dim"], "the size of the indexer's keys", 1 << 12)?,
        top_k: count(json, &["index_topk"], "the number of selected positions", 1 << 24)?,
        layers,
    }))
}

fn delta(json: &Json, n_layer: u64) -> Result<DeltaSizes, Error> {
    let size = |key: &'static str| count(json, &[key], "a size of the gated delta nets", 1 << 12);
    let interval = count_or(json, &["full_attention_interval"], n_layer, 4)?.max(1);
    let by_interval = || (1..=n_layer).map(|layer| !layer.is_multiple_of(interval)).collect();
    let (d_key, d_head) = (size("linear_key_head_dim")?, size("linear_value_head_dim")?);
    if d_key != d_head {
        return Err(json.wrong_value("linear_key_head_dim", &d_head.to_string(), d_key));
    }
    Ok(DeltaSizes {
        n_head_k: size("linear_num_key_heads")?,
        n_head_v: size("linear_num_value_heads")?,
        d_head,
        kernel: count(json, &["linear_conv_kernel_dim"], "the size of the convolution", 64)?,
        layers: layers_of(json, n_layer, "linear_attention")?.unwrap_or_else(by_interval),
    })
}

/// The sliding window, if `layer_types` assigns it to layers.
fn window(json: &Json, n_layer: u64) -> Result<Option<(u64, Vec<bool>)>, Error> {
    let size = count_or(json, &["sliding_window"], u64::from(u32::MAX), 0)?;
    let layers = layers_of(json, n_layer, "sliding_attention")?;
    let layers = layers.filter(|layers| size > 0 && layers.contains(&true));
    Ok(layers.map(|layers| (size, layers)))
}

/// For each layer, whether `layer_types` calls it `kind`; `None` without that list.
fn layers_of(json: &Json, n_layer: u64, kind: &str) -> Result<Option<Vec<bool>>, Error> {
    const KEY: &str = "layer_types";
    let Some(list) = json.list(KEY)? else { return Ok(None) };
    if list.len() as u64 != n_layer {
        return Err(json.wrong_value(KEY, &format!("{n_layer} entries"), list.len()));
    }
    Ok(Some(list.iter().map(|layer| layer.as_str() == Some(kind)).collect()))
}
