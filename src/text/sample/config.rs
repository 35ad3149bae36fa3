//! Sampling options.

use super::error::Error;
use super::settings::NUMBERS;
use super::stage::Stage;

/// The version of mirostat that chooses the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mirostat {
    /// No mirostat; the stages of the chain apply.
    Off,
    /// Version 1: keeps a number of tokens that it estimates from the 100 most likely ones.
    V1,
    /// Version 2.0: keeps the tokens whose surprise is within a limit.
    V2,
}

/// All sampling options. The defaults are llama.cpp's.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerConfig {
    /// Divides the logits; 0 or a negative number takes the best token.
    pub temp: f32,
    /// Above 0, the temperature is from `temp - dynatemp_range` to `temp + dynatemp_range`,
    /// depending on the entropy.
    pub dynatemp_range: f32,
    /// Exponent of the relative entropy (0 to 1) in the dynamic temperature.
    pub dynatemp_exponent: f32,
    /// How many tokens [`Stage::TopK`] keeps; 0 keeps all.
    pub top_k: usize,
    /// Probability mass that [`Stage::TopP`] keeps; 1 keeps all.
    pub top_p: f32,
    /// [`Stage::MinP`] drops tokens below this fraction of the best probability; 0 keeps all.
    pub min_p: f32,
    /// Probability mass that [`Stage::TypicalP`] keeps; 1 keeps all.
    pub typical_p: f32,
    /// [`Stage::TopNSigma`] bans tokens more than this many standard deviations below the highest
    /// logit. 0 or a negative number keeps all.
    pub top_n_sigma: f32,
    /// Minimum number of tokens that `TopP`, `MinP`, `TypicalP` and `Xtc` keep.
    pub min_keep: usize,
    /// Probability that [`Stage::Xtc`] drops tokens.
    pub xtc_probability: f32,
    /// Probability from which [`Stage::Xtc`] may drop a token; above 0.5 it drops none.
    pub xtc_threshold: f32,
    /// Divides a positive and multiplies a negative logit of a token in the window; 1 is off.
    pub repeat_penalty: f32,
    /// How many of the last tokens the penalties consider; 0 is none, `usize::MAX` all.
    pub repeat_last_n: usize,
    /// Subtracted once from the logit of a token in the window.
    pub presence_penalty: f32,
    /// Subtracted from the logit for each occurrence of the token in the window.
    pub frequency_penalty: f32,
    /// Factor of DRY's penalty; 0 is off.
    pub dry_multiplier: f32,
    /// Base of DRY's penalty; below 1 DRY is off. The exponent is the number of repeated tokens
    /// minus `dry_allowed_length`.
    pub dry_base: f32,
    /// Number of repeated tokens from which DRY penalises the token that would continue them.
    pub dry_allowed_length: usize,
    /// How many of the last tokens DRY considers; 0 is none, `usize::MAX` all.
    pub dry_penalty_last_n: usize,
    /// Texts across which DRY sees no repetition.
    pub dry_sequence_breakers: Vec<String>,
    /// Replaces all stages except the temperature; penalties do not apply either.
    pub mirostat: Mirostat,
    /// Target surprise of mirostat in bits.
    pub mirostat_tau: f32,
    /// Learning rate of mirostat.
    pub mirostat_eta: f32,
    /// Target probability of [`Stage::AdaptiveP`]; negative is off.
    pub adaptive_target: f32,
    /// Decay per token of the moving average of [`Stage::AdaptiveP`], from 0 to 0.99.
    pub adaptive_decay: f32,
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
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            top_n_sigma: -1.0,
            min_keep: 0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last_n: 64,
            dry_sequence_breakers: ["\n", ":", "\"", "*"].map(String::from).to_vec(),
            mirostat: Mirostat::Off,
            mirostat_tau: 5.0,
            mirostat_eta: 0.1,
            adaptive_target: -1.0,
            adaptive_decay: 0.9,
            logit_bias: Vec::new(),
            seed: None,
            chain: Stage::DEFAULT_CHAIN.to_vec(),
        }
    }
}

impl SamplerConfig {
    /// Checks every number of [`NUMBERS`], and the biases and their token ids.
    pub(super) fn check(&self, n_vocab: usize) -> Result<(), Error> {
        for setting in &NUMBERS {
            let (name, value) = (setting.name, (setting.get)(self));
            if !setting.is_usable(value) {
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

    /// Whether DRY can change logits.
    pub(super) fn uses_dry(&self) -> bool {
        self.dry_multiplier != 0.0
            && self.dry_base >= 1.0
            && self.dry_penalty_last_n != 0
            && self.mirostat == Mirostat::Off
            && self.chain.contains(&Stage::Dry)
    }
}
