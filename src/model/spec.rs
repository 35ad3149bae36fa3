//! An architecture as data: every difference between families that the engine must know is a field
//! here.

use hal::op::{Activation, FfnKind, NormKind, Pairing, Scoring};

use super::{Error, LayerReader, Mixer};

/// How the two halves of a layer, attention and feed-forward block, are combined with their norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// `x += attention(norm(x))`, then `x += ffn(norm(x))`.
    Sequential,
    /// As `Sequential`, with another norm after each half, before the addition (Gemma 2).
    Sandwich,
    /// `x += attention(norm(x)) + ffn(norm(x))`, both from the layer's input. If the file has a
    /// second norm (`attn_norm_2`), attention uses it; otherwise both halves share one norm
    /// (Falcon).
    Parallel,
}

/// How keys and values are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvKind {
    /// A matrix for keys and a matrix for values, or one matrix for queries, keys and values
    /// (`attn_qkv`).
    Direct,
    /// Keys and values are expanded from a narrow latent vector; the columns of a key that RoPE is
    /// applied to are the same for all heads (DeepSeek's multi-head latent attention, MLA).
    Latent,
}

/// How positions are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// RoPE is applied to queries and keys.
    Rotary(Pairing),
    /// No encoding: recurrent layers carry the order of the tokens.
    None,
    /// A learned vector is added to the embedding. Row `pos + offset` of the table is the vector of
    /// position `pos`.
    Learned {
        /// Number of rows before the row of position 0.
        offset: usize,
    },
}

/// The global-attention layers of a model with a sliding window: one of every `period` layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalLayers {
    /// Distance between global-attention layers, in layers.
    pub period: usize,
    /// Whether the first of every `period` layers is global; otherwise the last one is.
    pub first: bool,
}

impl GlobalLayers {
    /// Whether `layer` uses global attention.
    #[must_use]
    pub fn contains(self, layer: usize) -> bool {
        let at = if self.first { 0 } else { self.period.saturating_sub(1) };
        layer.checked_rem(self.period) == Some(at)
    }
}

/// Input of a family's PowerInfer predictor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PredictorInput {
    /// The residual before the feed-forward block's norm: after attention was added, or the
    /// layer's input if both halves are parallel.
    Residual,
}

/// Input of a layer's router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterInput {
    /// The input of the experts.
    Ffn,
    /// The residual before attention, unnormed, so that the experts are known early
    /// (SmallThinker).
    Layer,
    /// The residual after attention, through a norm of its own (Gemma 4).
    Residual,
}

/// How a token selects its experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routing {
    /// Input of the router.
    pub input: RouterInput,
    /// How the router's logits become scores, unless the file says otherwise.
    pub scoring: Scoring,
    /// Whether the weights of the selected experts are divided by their sum, unless the file says
    /// otherwise.
    pub renormalise: bool,
}

/// A family of models. Three differences need no field, because the reader handles them in every
/// family: biases (`.bias`), joint matrices (`attn_qkv`, or gate and up in `ffn_up`), and tied
/// embeddings (no `output.weight`).
#[derive(Clone, Copy, Debug)]
pub struct ArchSpec {
    /// Value of `general.architecture`.
    pub name: &'static str,
    /// Names of models, for the documentation.
    pub models: &'static str,
    /// Kind of the norms of the residual.
    pub norm: NormKind,
    /// Default epsilon of the norms; `None` if files must state it.
    pub eps: Option<f32>,
    /// Order of mixer, feed-forward block and norms.
    pub block: BlockKind,
    /// Reads the mixer of a layer: [`LayerReader::attention`] in families where all layers have
    /// attention.
    pub mixer: fn(&LayerReader<'_>) -> Result<Mixer, Error>,
    /// Whether layers can have attention; otherwise the keys of attention are ignored.
    pub attention: bool,
    /// How keys and values are computed.
    pub kv: KvKind,
    /// Whether each head's queries and keys are normalised.
    pub qk_norm: bool,
    /// Whether a norm without weights is applied to each head's value.
    pub v_norm: bool,
    /// Whether values are the keys before their norm and RoPE, in layers without `attn_v`.
    pub keys_as_values: bool,
    /// Whether attention's output is multiplied by the sigmoid of gates that are computed with the
    /// queries.
    pub gated_attention: bool,
    /// How positions are encoded.
    pub positions: Positions,
    /// Default sliding window; `None` for global attention.
    pub window: Option<usize>,
    /// Default global-attention layers; `None` if all layers use the window.
    pub global_layers: Option<GlobalLayers>,
    /// Whether RoPE is also applied in global-attention layers; otherwise these layers encode no
    /// positions.
    pub global_rotary: bool,
    /// Default RoPE base of layers with a sliding window, unscaled; `None` if it is the same in
    /// all layers.
    pub local_base: Option<f32>,
    /// Whether embeddings are multiplied by `sqrt(n_embd)`.
    pub scaled_embedding: bool,
    /// Whether files have scales for embeddings, layer outputs and logits (Granite). Learned
    /// positions are not supported with these scales, and only norms may read the residual.
    pub scale_keys: bool,
    /// Default factor on attention's scores; `None` for `1 / sqrt(d_head)`.
    pub attn_scale: Option<f32>,
    /// Default soft cap of attention's scores; 0 for none.
    pub attn_softcap: f32,
    /// Default soft cap of the logits; 0 for none.
    pub logit_softcap: f32,
    /// Number of layers of the one model in this family that divides attention scores by
    /// `sqrt(n_embd / n_head)` instead of `sqrt(d_head)`; `None` if the family has no such model.
    /// Files have no key for this.
    pub width_scaled: Option<usize>,
    /// Whether layers can have a feed-forward block; otherwise the keys of the block are ignored.
    pub feed_forward: bool,
    /// Kind of the feed-forward blocks: gated or not.
    pub ffn: FfnKind,
    /// Activation of a GGUF file that does not state one.
    pub activation: Activation,
    /// Activation of files in PowerInfer's container, which implies a ReLU model.
    pub sparse_activation: Activation,
    /// Input of the family's PowerInfer predictor.
    pub predictor_input: PredictorInput,
    /// Tensor name of the norm before the feed-forward block.
    pub ffn_norm: &'static str,
    /// Tensor name of the norm before the output matrix.
    pub output_norm: &'static str,
    /// Whether layers with experts also have a dense block, with norms of its own.
    pub dense_beside_experts: bool,
    /// Whether softmax is applied to a ranking model's outputs; the first output is the score.
    pub rank_softmax: bool,
    /// How experts are selected, in files with experts.
    pub routing: Routing,
}
