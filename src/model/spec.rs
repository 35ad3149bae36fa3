//! An architecture is a value. What would need an `if` in the engine is a field here.

use hal::op::{Activation, FfnKind, NormKind, Pairing, Scoring};

/// How the two halves of a layer, attention and feed-forward block, hang together with their norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// `x += attention(norm(x))`, then `x += ffn(norm(x))`.
    Sequential,
    /// The same with a norm after each half too, before it is added (Gemma 2).
    Sandwich,
    /// `x += attention(norm(x)) + ffn(norm(x))`, both of the layer's input. A second norm in the file
    /// (`attn_norm_2`) is attention's, else both halves share one (Falcon).
    Parallel,
}

/// Where keys and values come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvKind {
    /// A matrix for keys and one for values, or both with the queries in one (`attn_qkv`).
    Direct,
    /// Keys and values are unfolded from a narrow latent vector; the part of a key that turns is shared by all heads
    /// (DeepSeek's multi-head latent attention).
    Latent,
}

/// How the position of a token enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// Queries and keys turn.
    Rotary(Pairing),
    /// A learned vector is added to the embedding, that of position `pos` in row `pos + offset` of the table.
    Learned {
        /// Rows before the first position's.
        offset: usize,
    },
}

/// The layers that see all positions in a file with a window: one in each run of `period` layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalLayers {
    /// Layers from one to the next; a file may say another number.
    pub period: usize,
    /// The first of a run, else the last.
    pub first: bool,
}

impl GlobalLayers {
    /// Whether `layer` is one of them.
    #[must_use]
    pub fn contains(self, layer: usize) -> bool {
        let at = if self.first { 0 } else { self.period.saturating_sub(1) };
        layer.checked_rem(self.period) == Some(at)
    }
}

/// What PowerInfer's predictor of this family reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PredictorInput {
    /// The residual, before the feed-forward block's norm: with attention added, or, where both halves are parallel,
    /// the layer's input.
    Residual,
}

/// What the router of a layer's experts reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterInput {
    /// What the experts read.
    Ffn,
    /// The residual before attention, unnormed: the choice is known early (SmallThinker).
    Layer,
}

/// How a token chooses its experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routing {
    /// What the router reads.
    pub input: RouterInput,
    /// How its products become scores, in a file that does not say.
    pub scoring: Scoring,
    /// The chosen weights are divided by their sum, in a file that does not say.
    pub renormalise: bool,
}

/// A family of models. Offsets (`.bias`) are used wherever a file has them, matrices that a file joins (`attn_qkv`,
/// gate and up in `ffn_up`) are taken apart, and a file without `output.weight` uses its embedding twice: none of that
/// is a family's matter.
#[derive(Clone, Copy, Debug)]
pub struct ArchSpec {
    /// `general.architecture`.
    pub name: &'static str,
    /// What people know of it.
    pub models: &'static str,
    /// Norm of the residual.
    pub norm: NormKind,
    /// Epsilon of the norms in a file that does not say; `None` where it has to.
    pub eps: Option<f32>,
    /// Order of attention, feed-forward block and norms.
    pub block: BlockKind,
    /// Where keys and values come from.
    pub kv: KvKind,
    /// Each head's queries and keys are normalised, by its own width.
    pub qk_norm: bool,
    /// How positions enter.
    pub positions: Positions,
    /// Positions that a token sees in a file that does not say; `None` for all.
    pub window: Option<usize>,
    /// Layers without the window; `None` if it holds for all.
    pub global_layers: Option<GlobalLayers>,
    /// Queries and keys turn in global layers too. `false`: these have no positions at all.
    pub global_rotary: bool,
    /// Base of the rotary frequencies of layers with a window, unscaled, in a file that does not say; `None` if they
    /// are as in all others.
    pub local_base: Option<f32>,
    /// Embeddings are multiplied by `sqrt(n_embd)`.
    pub scaled_embedding: bool,
    /// Soft cap of attention's scores in a file that does not say; 0 for none.
    pub attn_softcap: f32,
    /// Soft cap of the logits in a file that does not say; 0 for none.
    pub logit_softcap: f32,
    /// The size of this family, by its number of layers, whose scores are divided by `sqrt(n_embd / n_head)` and not by
    /// `sqrt(d_head)`. Files have no key for it.
    pub width_scaled: Option<usize>,
    /// Shape of the feed-forward block.
    pub ffn: FfnKind,
    /// Its activation in an ordinary file that does not say.
    pub activation: Activation,
    /// Its activation in PowerInfer's container, which means a ReLU model by itself.
    pub sparse_activation: Activation,
    /// What a predictor reads.
    pub predictor_input: PredictorInput,
    /// What the norm before the feed-forward block is called in files.
    pub ffn_norm: &'static str,
    /// How experts are chosen, in files that have some.
    pub routing: Routing,
}
