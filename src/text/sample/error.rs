//! Errors of the sampler.

use super::settings::NUMBERS;

/// An error of the sampler's options or of the logits.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An unknown name in the chain.
    #[error("unknown sampler '{name}'")]
    UnknownStage {
        /// The word as written.
        name: String,
    },
    /// A stage of llama.cpp that is not supported.
    #[error("the sampler '{name}' is not supported yet")]
    UnsupportedStage {
        /// The word as written.
        name: String,
    },
    /// A number outside its range.
    #[error("invalid value {value} for {name}: must be {}", expected(.name))]
    BadValue {
        /// The field of [`SamplerConfig`](super::SamplerConfig).
        name: &'static str,
        /// The given value.
        value: f32,
    },
    /// A bias for a token outside the vocabulary.
    #[error("logit bias for token {token}, but the vocabulary has {n_vocab} tokens")]
    BiasOutOfRange {
        /// The token id.
        token: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// The row is not one logit per token of the vocabulary.
    #[error("the row has {given} logits, but the vocabulary has {n_vocab} tokens")]
    WrongLength {
        /// Length of the row.
        given: usize,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// A logit is NaN or plus infinity.
    #[error("the logit of token {token} is {value}")]
    NotANumber {
        /// The token's id.
        token: u32,
        /// NaN or plus infinity.
        value: f32,
    },
    /// Every token is banned.
    #[error("every token is banned, so none can be chosen")]
    AllBanned,
}

/// The valid values of a number, for messages.
fn expected(name: &str) -> String {
    let setting = NUMBERS.iter().find(|setting| setting.name == name);
    setting.map_or_else(|| "a finite number".to_owned(), |setting| setting.expected())
}
