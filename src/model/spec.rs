//! An architecture as data: whatever would need an `if` in the engine is a field here.

use hal::op::{Activation, FfnKind, NormKind, Pairing, Scoring};

use super::{Error, LayerReader, Mixer};

/// How the two halves of a layer, attention and feed-forward block, are combined with their norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// `x += attention(norm(x))`, then `x += ffn(norm(x))`.
    Sequential,
    /// As `Sequential`, with another norm after each half, before the addition (Gemma 2).
    Sandwich,
    /// `x += attention(norm(x)) + ffn(norm(x))`, both from the layer's input. A second norm in the
    /// file (`attn_norm_2`) is attention's; otherwise both halves share one (Falcon).
    Parallel,
}

/// How keys and values are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvKind {
    /// A matrix for keys and one for values, or both with the queries in one (`attn_qkv`).
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
    /// None: recurrent layers carry the order of the tokens.
    None,
    /// A learned vector is added to the embedding: that of position `pos` is row `pos + offset` of
    /// the table.
    Learned {
        /// Rows before that of the first position.
        offset: usize,
    },
}

/// The global-attention layers in a file with a sliding window: one in each run of `period`
/// layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalLayers {
    /// Default of the interval between these layers.
    pub period: usize,
    /// Whether it is the first of a run; otherwise it is the last.
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

/// Input of this family's PowerInfer predictor.
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
    /// The residual after attention, normed with factors of its own (Gemma 4).
    Residual,
}

/// How a token selects its experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routing {
    /// Input of the router.
    pub input: RouterInput,
    /// Default of how its products become scores.
    pub scoring: Scoring,
    /// Default of whether the selected weights are divided by their sum.
    pub renormalise: bool,
}

/// A family of models. Not part of a family's data: biases (`.bias`) are used wherever a file has
/// them, joint matrices (`attn_qkv`, gate and up in `ffn_up`) are split, and a file without
/// `output.weight` uses its embedding twice.
#[derive(Clone, Copy, Debug)]
pub struct ArchSpec {
    /// `general.architecture`.
    pub name: &'static str,
    /// Names of models, for the documentation.
    pub models: &'static str,
    /// Norm of the residual.
    pub norm: NormKind,
    /// Default epsilon of the norms; `None` if the file must have it.
    pub eps: Option<f32>,
    /// Order of mixer, feed-forward block and norms.
    pub block: BlockKind,
    /// Reads the mixer of a layer: [`LayerReader::attention`] in families where all layers have
    /// attention.
    pub mixer: fn(&LayerReader<'_>) -> Result<Mixer, Error>,
    /// Whether layers can have attention; otherwise its keys are ignored.
    pub attention: bool,
    /// How keys and values are computed.
    pub kv: KvKind,
    /// Whether each head's queries and keys are normalised.
    pub qk_norm: bool,
    /// Whether each head's values are normalised, without factors.
    pub v_norm: bool,
    /// Whether the product for the keys is also that for the values in layers without `attn_v`.
    pub keys_as_values: bool,
    /// Whether attention's output is multiplied by the sigmoid of gates that are computed with the
    /// queries.
    pub gated_attention: bool,
    /// How positions are encoded.
    pub positions: Positions,
    /// Default sliding window; `None` for global attention.
    pub window: Option<usize>,
    /// Global-attention layers; `None` if all layers use the window.
    pub global_layers: Option<GlobalLayers>,
    /// Whether RoPE is also applied in global-attention layers; otherwise these have no positions.
    pub global_rotary: bool,
    /// Default RoPE base of layers with a sliding window, unscaled; `None` if it is the same in
    /// all layers.
    pub local_base: Option<f32>,
    /// Whether embeddings are multiplied by `sqrt(n_embd)`.
    pub scaled_embedding: bool,
    /// Whether files state factors of embeddings, of what layers add to the residual, and of
    /// logits. Not with learned positions, nor where anything but a norm reads the residual.
    pub scale_keys: bool,
    /// Default factor on attention's scores; `None` for `1 / sqrt(d_head)`.
    pub attn_scale: Option<f32>,
    /// Default soft cap of attention's scores; 0 for none.
    pub attn_softcap: f32,
    /// Default soft cap of the logits; 0 for none.
    pub logit_softcap: f32,
    /// The size of this family, by its number of layers, that divides scores by `sqrt(n_embd /
    /// n_head)` instead of `sqrt(d_head)`. Files have no key for it.
    pub width_scaled: Option<usize>,
    /// Whether layers can have a feed-forward block; otherwise its keys are ignored.
    pub feed_forward: bool,
    /// Shape of the feed-forward block.
    pub ffn: FfnKind,
    /// Default activation in an ordinary file.
    pub activation: Activation,
    /// Activation in PowerInfer's container, which implies a ReLU model.
    pub sparse_activation: Activation,
    /// Input of a predictor.
    pub predictor_input: PredictorInput,
    /// Name of the norm before the feed-forward block in files.
    pub ffn_norm: &'static str,
    /// Name of the norm before the output matrix in files.
    pub output_norm: &'static str,
    /// Whether layers with experts also have a dense block, with norms of its own.
    pub dense_beside_experts: bool,
    /// How experts are selected, in files with experts.
    pub routing: Routing,
}
