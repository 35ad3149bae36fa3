//! Sampling options and their errors.

use std::fmt;

/// One stage of the sampling chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Repeat, presence and frequency penalties over the recent tokens.
    Penalties,
    /// Keep the `top_k` most likely tokens.
    TopK,
    /// Keep the shortest list of most likely tokens that holds `top_p` of the probability.
    TopP,
    /// Keep the tokens at least `min_p` times as likely as the most likely token.
    MinP,
    /// Divide the logits by `temp`; if it is 0 or negative, keep only the best token.
    Temperature,
}

impl Stage {
    /// llama.cpp's default order of the supported stages.
    pub const DEFAULT_CHAIN: [Self; 5] =
        [Self::Penalties, Self::TopK, Self::TopP, Self::MinP, Self::Temperature];

    /// The name in `--samplers`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Penalties => "penalties",
            Self::TopK => "top_k",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::Temperature => "temperature",
        }
    }

    /// Parses a chain such as `penalties;top_k;temperature`, with llama.cpp's names and spellings.
    ///
    /// Unsupported stages that do nothing by default are left out; the flags that enable them are
    /// rejected elsewhere.
    ///
    /// # Errors
    /// [`Error::UnknownStage`] or [`Error::UnsupportedStage`], with the word.
    pub fn parse_names(names: &str) -> Result<Vec<Self>, Error> {
        let words = names.split(';').map(str::trim).filter(|w| !w.is_empty());
        let chain = words.map(|word| {
            let name = word.to_ascii_lowercase().replace('-', "_");
            match name.as_str() {
                "penalties" => Ok(Some(Self::Penalties)),
                "top_k" => Ok(Some(Self::TopK)),
                "top_p" | "nucleus" => Ok(Some(Self::TopP)),
                "min_p" => Ok(Some(Self::MinP)),
                "temperature" | "temp" => Ok(Some(Self::Temperature)),
                "dry" | "top_n_sigma" | "typ_p" | "typical_p" | "typical" | "typ" | "xtc"
                | "adaptive_p" => Ok(None),
                "infill" => Err(Error::UnsupportedStage { name: word.into() }),
                _ => Err(Error::UnknownStage { name: word.into() }),
            }
        });
        chain.filter_map(Result::transpose).collect()
    }

    /// Parses a chain of one-letter names such as `ekpmt`.
    ///
    /// # Errors
    /// As [`Stage::parse_names`].
    pub fn parse_letters(letters: &str) -> Result<Vec<Self>, Error> {
        let chain = letters.chars().map(|letter| match letter {
            'e' => Ok(Some(Self::Penalties)),
            'k' => Ok(Some(Self::TopK)),
            'p' => Ok(Some(Self::TopP)),
            'm' => Ok(Some(Self::MinP)),
            't' => Ok(Some(Self::Temperature)),
            'd' | 's' | 'y' | 'x' | 'a' => Ok(None),
            'i' => Err(Error::UnsupportedStage { name: "infill".into() }),
            other => Err(Error::UnknownStage { name: other.to_string() }),
        });
        chain.filter_map(Result::transpose).collect()
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// All sampling options. The defaults are llama.cpp's.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerConfig {
    /// Divides the logits; 0 or a negative number takes the best token.
    pub temp: f32,
    /// How many tokens [`Stage::TopK`] keeps; 0 keeps all.
    pub top_k: usize,
    /// Probability mass that [`Stage::TopP`] keeps; 1 keeps all.
    pub top_p: f32,
    /// [`Stage::MinP`] drops tokens below this fraction of the best probability; 0 keeps all.
    pub min_p: f32,
    /// Minimum number of tokens that `TopP` and `MinP` keep.
    pub min_keep: usize,
    /// Divides a positive and multiplies a negative logit of a token in the window; 1 is off.
    pub repeat_penalty: f32,
    /// How many of the last tokens the penalties consider; 0 is none, `usize::MAX` all.
    pub repeat_last_n: usize,
    /// Subtracted once from the logit of a token in the window.
    pub presence_penalty: f32,
    /// Subtracted from the logit for each occurrence of the token in the window.
    pub frequency_penalty: f32,
    /// Token ids and the biases added to their logits before the chain. Minus infinity bans the
    /// token.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the random draws; `None` takes a random seed, which [`super::Sampler::seed`]
    /// returns.
    pub seed: Option<u32>,
    /// The stages in order.
    pub chain: Vec<Stage>,
}

impl Default for SamplerConfig {
    fn default() -> Self {
        Self {
            temp: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            min_keep: 0,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: None,
            chain: Stage::DEFAULT_CHAIN.to_vec(),
        }
    }
}

impl SamplerConfig {
    /// Checks every number against its range and every token id against the vocabulary.
    pub(super) fn check(&self, n_vocab: usize) -> Result<(), Error> {
        let finite = [
            ("temp", self.temp),
            ("top_p", self.top_p),
            ("min_p", self.min_p),
            ("repeat_penalty", self.repeat_penalty),
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ];
        for (name, value) in finite {
            let positive = name != "repeat_penalty" || value > 0.0;
            if !value.is_finite() || !positive {
                return Err(Error::BadValue { name, value });
            }
        }
        for &(token, value) in &self.logit_bias {
            if value.is_nan() || value == f32::INFINITY {
                let name = "logit_bias";
                return Err(Error::BadValue { name, value });
            }
            if usize::try_from(token).map_or(true, |id| id >= n_vocab) {
                return Err(Error::BiasOutOfRange { token, n_vocab });
            }
        }
        Ok(())
    }
}

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
    /// An unsupported stage of llama.cpp that would change the text.
    #[error("the sampler '{name}' is not supported yet")]
    UnsupportedStage {
        /// The word as written.
        name: String,
    },
    /// A number outside its range.
    #[error("invalid value {value} for {name}; it must be finite, and repeat_penalty positive")]
    BadValue {
        /// The field of [`SamplerConfig`].
        name: &'static str,
        /// The given value.
        value: f32,
    },
    /// A bias for a token outside of the vocabulary.
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
