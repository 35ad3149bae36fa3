//! The factors of an architecture on embeddings, layer outputs and logits.

/// A factor that families multiply values with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Factor {
    /// A number.
    Number(f32),
    /// `sqrt(n_embd)`.
    RootWidth,
    /// A number divided by the square root of the number of layers.
    PerRootLayers(f32),
    /// A number divided by `n_embd`.
    PerWidth(f32),
    /// A number times `n_embd`.
    TimesWidth(f32),
}

/// Factors on embeddings, layer outputs and logits. Learned positions are not supported with a
/// factor on layer outputs, and only norms may read the residual then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScaleRules {
    /// Factor on embeddings.
    pub embedding: Factor,
    /// Factor on the output of each mixer and feed-forward block.
    pub residual: Factor,
    /// Factor on the logits.
    pub logits: Factor,
    /// The factors that the file can replace.
    pub keys: ScaleKeys,
}

/// Keys of factors that files may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleKeys {
    /// None.
    None,
    /// `logit_scale`, a factor (Command R).
    Logits,
    /// `embedding_scale`, a factor (HRM-Text).
    Embedding,
    /// `embedding_scale` and `logit_scale`, both factors (Grok).
    Ends,
    /// `embedding_scale` and `residual_scale`, which are factors, and `logit_scale`, by which the
    /// logits are divided, as by [`ScaleRules::logits`] (Granite, MiniCPM).
    All,
}

impl ScaleRules {
    /// No factors.
    pub const NONE: ScaleRules = ScaleRules {
        embedding: Factor::Number(1.0),
        residual: Factor::Number(1.0),
        logits: Factor::Number(1.0),
        keys: ScaleKeys::None,
    };
}
