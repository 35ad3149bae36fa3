//! An architecture as data: every difference between families that the engine must know is a field
//! here.

use hal::op::{Activation, FfnKind, GateActivation, NormKind, Pairing, Scoring};

use super::scale_rules::ScaleRules;
use super::{Error, LayerReader, Mixer};

/// How the two halves of a layer, attention and feed-forward block, are combined with their norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// `x += attention(norm(x))`, then `x += ffn(norm(x))`.
    Sequential,
    /// As `Sequential`, with another norm after each half, before the addition (Gemma 2).
    Sandwich,
    /// `x += norm(attention(x))`, then `x += norm(ffn(x))` (OLMo 2).
    PostNorm,
    /// `x = norm(x + attention(x))`, then `x = norm(x + ffn(x))` (BERT). The last norm is the
    /// model's output norm.
    SumNorm,
    /// `x += attention(norm(x)) + ffn(norm(x))`, both from the layer's input. If the file has a
    /// second norm (`attn_norm_2` for attention, or `ffn_norm`), the halves have a norm each;
    /// otherwise they share one (Falcon).
    Parallel,
    /// `Parallel` if the file's `use_parallel_residual` is true, otherwise `Sequential` (GPT-NeoX).
    ParallelByKey,
    /// `Parallel` in layers without a norm before the feed-forward block, `Sequential` in the
    /// others (StableLM 2 12B).
    ParallelWithoutNorm,
}

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QkNorm {
    /// Values that are normalised together, and their weights.
    pub over: NormSpan,
    /// Whether the norms follow RoPE instead of preceding it.
    pub after_rope: bool,
    /// Whether files may lack these norms.
    pub optional: bool,
}

/// Values of a query or key that are normalised together, and their weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormSpan {
    /// Each head; all heads have the same weights.
    Head,
    /// Each head, with weights of its own.
    HeadWeights,
    /// Each head. Queries have a weight per head, keys have none (Talkie).
    QueryFactors,
    /// The whole row of all heads.
    Row,
}

impl QkNorm {
    /// A norm of each head before RoPE, with the same weights for all heads.
    pub const HEADS: QkNorm = QkNorm { over: NormSpan::Head, after_rope: false, optional: false };
}

/// Gates of attention's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateKind {
    /// The output is not gated.
    None,
    /// Sigmoid of gates that the query matrix computes: for each head its query, then its gate.
    Joint,
    /// Gates from a matrix of their own (`attn_gate`), one for each value or one for each head.
    Matrix {
        /// Activation of the gates.
        activation: GateActivation,
        /// Whether files may lack the matrix.
        optional: bool,
    },
}

/// Biases of attention's scores that fall with the distance of two tokens (ALiBi).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Alibi {
    /// None.
    None,
    /// Largest bias.
    Fixed(f32),
    /// The file states the largest bias (`attention.max_alibi_bias`).
    Key,
}

/// How the embeddings are normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbeddingNorm {
    /// Not at all.
    None,
    /// By a norm with weights (`token_embd_norm`).
    Weights,
    /// By a norm without weights.
    Plain,
}

/// Limits of SiLU blocks, which the file states for each layer (`swiglu_clamp_exp` for experts,
/// `swiglu_clamp_shexp` for other blocks). Up is clamped in both cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clamp {
    /// The keys are ignored.
    None,
    /// The gate is limited before its activation. In files without `swiglu_clamp_shexp`, the limits of
    /// experts hold for all blocks.
    Gate,
    /// The gate is limited after its activation.
    Activated,
}

/// The first layers skip neurons whose gates are below a token's cut-off (Gemma 3n). The file can
/// state another factor for each layer (`activation_sparsity_scale`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GaussianCut {
    /// Number of layers.
    pub n_layers: usize,
    /// The cut-off is the gates' mean plus this factor times their standard deviation.
    pub factor: f32,
}

/// A dense block beside the experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenseBeside {
    /// None; a layer can have a shared expert.
    None,
    /// A block that reads the experts' input, in layers whose file has one. The norm after both
    /// divides their sum by `sqrt(2)` (Grok).
    Plain,
    /// A block with norms of its own (Gemma 4).
    Normed,
    /// A block after the mixer. The experts read the layer's input through a norm of their own
    /// (Arctic).
    EarlyExperts,
}

/// Activation in the head of a ranking model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankActivation {
    /// Hyperbolic tangent.
    Tanh,
    /// GELU; the head takes the mean over all tokens unless the file says otherwise (ModernBERT).
    Gelu,
}

impl RankActivation {
    pub(super) fn apply(self, x: f32) -> f32 {
        match self {
            RankActivation::Tanh => x.tanh(),
            RankActivation::Gelu => {
                const ROOT: f32 = 0.797_884_6;
                0.5 * x * (1.0 + (ROOT * x * (1.0 + 0.044_715 * x * x)).tanh())
            }
        }
    }
}

/// Factor on attention's scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScoreScale {
    /// `1 / sqrt(d_head)`.
    PerRootHeadSize,
    /// `1 / d_head`.
    PerHeadSize,
    /// The file can state the factor (`attention.output_scale`); otherwise this number.
    OutputKey(f32),
    /// A number.
    Number(f32),
}

/// The layers in which RoPE is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotaryLayers {
    /// All layers.
    All,
    /// Layers with a sliding window; all layers if the model has no window.
    Windowed,
    /// All layers but the last of every `period`.
    AllBut {
        /// Distance between the layers without RoPE, in layers.
        period: usize,
    },
}

/// RoPE of layers with a sliding window, in models that also have layers with global attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LocalRope {
    /// As in the other layers, except that the file can state another base.
    Scaled,
    /// Without scaling.
    Unscaled {
        /// Base of a file that does not state one; `None` for the base of the other layers.
        base: Option<f32>,
    },
}

/// Keys of a factor on queries that grows with their position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemperatureKeys {
    /// None.
    None,
    /// `attention.temperature_scale`; the factor grows after each original context.
    Context,
    /// As `Context`, and `attention.temperature_length` instead of the original context.
    Length,
}

/// How a family uses `rope.scaling.yarn_log_multiplier`, from `mscale_all_dim` of the model's
/// configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YarnLog {
    /// Not at all.
    Ignored,
    /// YaRN's factor on the rotated values is divided by the same factor with this multiplier
    /// (Mistral 3).
    Ratio,
    /// YaRN's factor multiplies all scores, not only the rotated values (DeepSeek).
    Scores,
}

/// What the residual after the last layer is made of, in models with several residual streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEndKind {
    /// The mean of the streams.
    Mean,
    /// A sum with weights from the streams.
    Weighted,
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
    /// One key for all heads, which is also the value (DeepSeek-V4).
    Single,
}

/// How positions are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// RoPE is applied to queries and keys.
    Rotary(Pairing),
    /// No encoding of its own: recurrent layers or ALiBi carry the order of the tokens. A file can
    /// have a table of learned positions.
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
    /// Whether the weight of a token's only expert is a factor on the input of that expert, instead
    /// of its output (Llama 4).
    pub scales_input: bool,
    /// Whether the outputs of experts and shared expert are averaged instead of added (Command A
    /// with experts).
    pub averages: bool,
    /// The keys with which a file says otherwise. Files of other families have them with values
    /// that llama.cpp ignores.
    pub keys: RoutingKeys,
}

/// Keys of routing that a family reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutingKeys {
    /// None.
    None,
    /// `expert_gating_func`.
    Scoring,
    /// `expert_weights_norm`.
    Norm,
    /// Both.
    Both,
}

impl RoutingKeys {
    /// Whether `expert_gating_func` is read.
    pub(super) fn scoring(self) -> bool {
        matches!(self, RoutingKeys::Scoring | RoutingKeys::Both)
    }

    /// Whether `expert_weights_norm` is read.
    pub(super) fn norm(self) -> bool {
        matches!(self, RoutingKeys::Norm | RoutingKeys::Both)
    }
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
    /// Whether tokens attend to the whole text, also to later tokens, unless the file says
    /// otherwise (`attention.causal`). Such a model computes hidden states and no logits.
    pub encoder: bool,
    /// Kind of the norms of the residual.
    pub norm: NormKind,
    /// Whether the norms of the residual have weights.
    pub norm_weights: bool,
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
    /// Norms of queries and keys; `None` without them.
    pub qk_norm: Option<QkNorm>,
    /// Whether a norm without weights is applied to each head's value.
    pub v_norm: bool,
    /// Whether values are the keys before their norm and RoPE, in layers without `attn_v`.
    pub keys_as_values: bool,
    /// Gates of attention's output.
    pub gate: GateKind,
    /// How positions are encoded.
    pub positions: Positions,
    /// Whether layers can have a sliding window; otherwise the keys of the window are ignored.
    pub windows: bool,
    /// Biases of attention's scores by distance.
    pub alibi: Alibi,
    /// Default sliding window; `None` for global attention.
    pub window: Option<usize>,
    /// Length of the chunks that layers with a window attend to, instead of a sliding window.
    pub chunk: Option<usize>,
    /// Default global-attention layers; `None` if all layers use the window.
    pub global_layers: Option<GlobalLayers>,
    /// The layers in which RoPE is applied; the others encode no positions.
    pub rotary: RotaryLayers,
    /// Use of `rope.scaling.yarn_log_multiplier`.
    pub yarn_log: YarnLog,
    /// Whether RoPE is applied to half of the values that the file states, in layers without a
    /// window.
    pub half_rotary: bool,
    /// RoPE of layers with a sliding window.
    pub local_rope: LocalRope,
    /// Factors on embeddings, layer outputs and logits.
    pub scales: ScaleRules,
    /// Whether files can halve the residual after every n layers
    /// (`rescale_every_n_layers`).
    pub halves: bool,
    /// Whether the model has several residual streams and low-rank residuals ([`super::AltUp`]).
    pub altup: bool,
    /// Whether the model has several residual streams that all blocks mix
    /// ([`super::HyperConnections`]), and what the residual after the last layer is; `None` without.
    pub hyper_connections: Option<StreamEndKind>,
    /// Whether the first layers can list the experts of each token (`hash_layer_count`).
    pub hash_routing: bool,
    /// Whether sparse attention selects blocks of positions (`attention.indexer.kpool`).
    pub pooled_indexer: bool,
    /// Whether the model has several residual streams that are mixed before each mixer and block,
    /// instead of norms ([`super::LowRankHyper`]).
    pub low_rank_hyper: bool,
    /// Whether a layer can add embeddings of n-grams to the residual ([`super::Ngrams`]).
    pub ngrams: bool,
    /// Whether layers read a mix of earlier residuals ([`super::ResidualMix`]).
    pub residual_mix: bool,
    /// Whether a multiple of the normed embedding is added after each layer.
    pub embedding_skip: bool,
    /// Whether the layers run in alternating stacks ([`super::StackRun`]).
    pub stacks: bool,
    /// Default cut-off of the gates; `None` without one.
    pub gaussian_cut: Option<GaussianCut>,
    /// Whether files can limit the values of queries, keys and values (`attention.clamp_kqv`).
    pub clamps: bool,
    /// Keys of a factor on queries that grows with their position.
    pub temperature: TemperatureKeys,
    /// Default factor on attention's scores.
    pub attn_scale: ScoreScale,
    /// Default soft cap of attention's scores; 0 for none.
    pub attn_softcap: f32,
    /// Default soft cap of the logits; 0 for none.
    pub logit_softcap: f32,
    /// Number of layers of the one model in this family that divides attention scores by
    /// `sqrt(n_embd / n_head)` instead of `sqrt(d_head)`; `None` if the family has no such model.
    /// Files have no key for this.
    pub width_scaled: Option<usize>,
    /// Whether the key of the number of neurons states twice that number (Qwen 1).
    pub half_n_ff: bool,
    /// Whether layers can have a feed-forward block; otherwise the keys of the block are ignored.
    pub feed_forward: bool,
    /// Kind of the feed-forward blocks: gated or not.
    pub ffn: FfnKind,
    /// Activation of a GGUF file that does not state one.
    pub activation: Activation,
    /// Limits of the feed-forward blocks' values.
    pub clamp: Clamp,
    /// Activation of files in PowerInfer's container, which implies a ReLU model.
    pub sparse_activation: Activation,
    /// Input of the family's PowerInfer predictor.
    pub predictor_input: PredictorInput,
    /// Tensor names of up and down in a dense block.
    pub ffn_names: [&'static str; 2],
    /// Tensor name of the norm before the feed-forward block.
    pub ffn_norm: &'static str,
    /// How the embeddings are normalised.
    pub embedding_norm: EmbeddingNorm,
    /// Epsilon of the norms after mixer and feed-forward block; `None` for that of the other norms.
    pub post_norm_eps: Option<f32>,
    /// Tensor name of the norm before the output matrix.
    pub output_norm: &'static str,
    /// Whether chunks of experts share blocks that read the experts' output ([`super::ChunkExperts`]).
    pub chunk_experts: bool,
    /// The dense block in layers with experts.
    pub dense_beside: DenseBeside,
    /// Activation after the first layer of a ranking model's head.
    pub rank_activation: RankActivation,
    /// Whether softmax is applied to a ranking model's outputs; the first output is the score.
    pub rank_softmax: bool,
    /// How experts are selected, in files with experts.
    pub routing: Routing,
}
