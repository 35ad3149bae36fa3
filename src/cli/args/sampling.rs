//! Sampling flags.

use super::boolish;
use crate::cli::failure::Failure;
use crate::cli::parse;
use crate::sample::{self, SamplerConfig, Stage};
use clap::Args;
use clap::builder::TypedValueParser;
use std::error::Error;

/// The supported sampling flags of llama.cpp. `llama.rs` rejects the others.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Samplers in order, separated by ';'
    #[arg(long, value_name = "NAMES", env = "THERMOCLINE_ARG_SAMPLERS")]
    #[arg(conflicts_with = "sampling_seq", value_parser = |names: &str| chain(Stage::parse_names(names)))]
    pub(crate) samplers: Option<Chain>,
    /// Samplers as single letters; default: ekpmt
    #[arg(
        long,
        value_name = "LETTERS",
        env = "THERMOCLINE_ARG_SAMPLING_SEQ",
        alias = "sampler-seq",
        value_parser = |letters: &str| chain(Stage::parse_letters(letters))
    )]
    pub(crate) sampling_seq: Option<Chain>,
    /// Random seed; -1 for a random one
    #[arg(short, long, value_name = "N", env = "THERMOCLINE_ARG_SEED", default_value = "-1")]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..=i64::from(u32::MAX)).map(seed))]
    pub(crate) seed: Seed,
    /// Temperature; 0 always picks the most likely token
    #[arg(
        long,
        value_name = "X",
        env = "THERMOCLINE_ARG_TEMP",
        alias = "temperature",
        default_value_t = 0.8,
        value_parser = finite("--temp")
    )]
    pub(crate) temp: f32,
    /// Keep the N most likely tokens; 0 keeps all
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_TOP_K", default_value = "40")]
    #[arg(value_parser = clap::value_parser!(i32).map(|n| usize::try_from(n).unwrap_or(0)))]
    pub(crate) top_k: usize,
    /// Keep the most likely tokens up to this total probability; 1 keeps all
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_TOP_P", default_value_t = 0.95)]
    #[arg(value_parser = finite("--top-p"))]
    pub(crate) top_p: f32,
    /// Drop tokens below this fraction of the top probability; 0 keeps all
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_MIN_P", default_value_t = 0.05)]
    #[arg(value_parser = finite("--min-p"))]
    pub(crate) min_p: f32,
    /// Penalty for repeated tokens; 1 disables it
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_REPEAT_PENALTY", default_value_t = 1.0)]
    #[arg(value_parser = above_zero("--repeat-penalty"))]
    pub(crate) repeat_penalty: f32,
    /// Number of recent tokens to penalise; 0 disables, -1 is all
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_REPEAT_LAST_N", default_value = "64")]
    #[arg(value_parser = clap::value_parser!(i32).range(-1..).map(window))]
    pub(crate) repeat_last_n: usize,
    /// Penalty for each token that has already occurred
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_PRESENCE_PENALTY", default_value_t = 0.0)]
    #[arg(value_parser = finite("--presence-penalty"))]
    pub(crate) presence_penalty: f32,
    /// Penalty for each earlier occurrence of a token
    #[arg(
        long,
        value_name = "X",
        env = "THERMOCLINE_ARG_FREQUENCY_PENALTY",
        default_value_t = 0.0,
        value_parser = finite("--frequency-penalty")
    )]
    pub(crate) frequency_penalty: f32,
    /// Bias of a token's logit: 15043+1, 15043-1, 2-inf
    #[arg(short, long, value_name = "ID±BIAS", env = "THERMOCLINE_ARG_LOGIT_BIAS", value_parser = parse::logit_bias)]
    #[arg(value_delimiter = ',')]
    pub(crate) logit_bias: Vec<(u32, f32)>,
    /// Ban EOS and the other end-of-generation tokens
    #[arg(long, env = "THERMOCLINE_ARG_IGNORE_EOS", value_parser = boolish())]
    pub(crate) ignore_eos: bool,
}

/// Samplers in order.
pub(crate) type Chain = Vec<Stage>;

/// A seed; `None` for a random one.
pub(crate) type Seed = Option<u32>;

fn chain(parsed: Result<Chain, sample::Error>) -> Result<Chain, Failure> {
    parsed.map_err(|e| {
        let known: Vec<_> = Stage::DEFAULT_CHAIN.iter().map(|s| s.name()).collect();
        Failure::usage(e.to_string()).help(format!("supported samplers: {}", known.join(";")))
    })
}

/// In llama.cpp, both -1 and `u32::MAX` ask for a random seed.
fn seed(n: i64) -> Seed {
    u32::try_from(n).ok().filter(|seed| *seed != u32::MAX)
}

/// A number of recent tokens; -1 is all.
fn window(n: i32) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

fn finite(flag: &'static str) -> impl Fn(&str) -> Result<f32, Invalid> + Clone {
    number_where(flag, f32::is_finite)
}

fn above_zero(flag: &'static str) -> impl Fn(&str) -> Result<f32, Invalid> + Clone {
    number_where(flag, |value| value.is_finite() && value > 0.0)
}

type Invalid = Box<dyn Error + Send + Sync>;

fn number_where(
    flag: &'static str,
    is_valid: fn(f32) -> bool,
) -> impl Fn(&str) -> Result<f32, Invalid> + Clone {
    move |text| {
        let value: f32 = text.parse()?;
        if is_valid(value) {
            return Ok(value);
        }
        Err(Failure::usage(format!("invalid value {value} for {flag}")).into())
    }
}

impl SamplingArgs {
    /// The configuration of the sampler. Token ids are checked later, against the vocabulary.
    pub(crate) fn config(&self) -> SamplerConfig {
        let chain = self.samplers.as_ref().or(self.sampling_seq.as_ref());
        SamplerConfig {
            temp: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            min_keep: 0,
            repeat_penalty: self.repeat_penalty,
            repeat_last_n: self.repeat_last_n,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.clone(),
            seed: self.seed,
            chain: chain.cloned().unwrap_or_else(|| Stage::DEFAULT_CHAIN.to_vec()),
        }
    }
}
