//! How a token is chosen.

use super::boolish;
use crate::cli::parse;
use clap::Args;

/// llama.cpp's sampling flags that are built here. The rest is refused in `llama.rs`.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Samplers in order, separated by ';'
    #[arg(long, value_name = "NAMES", env = "THERMOCLINE_ARG_SAMPLERS")]
    #[arg(conflicts_with = "sampling_seq")]
    pub(crate) samplers: Option<String>,
    /// The same in single letters: ekpmt is the default
    #[arg(
        long,
        value_name = "LETTERS",
        env = "THERMOCLINE_ARG_SAMPLING_SEQ",
        alias = "sampler-seq"
    )]
    pub(crate) sampling_seq: Option<String>,
    /// Seed of the random draws; -1 takes a random one
    #[arg(short, long, value_name = "N", env = "THERMOCLINE_ARG_SEED", default_value_t = -1)]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..=i64::from(u32::MAX)))]
    pub(crate) seed: i64,
    /// Temperature; 0 always takes the likeliest token
    #[arg(
        long,
        value_name = "X",
        env = "THERMOCLINE_ARG_TEMP",
        alias = "temperature",
        default_value_t = 0.8
    )]
    pub(crate) temp: f32,
    /// Keep the N likeliest tokens; 0 keeps all
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_TOP_K", default_value_t = 40)]
    pub(crate) top_k: i32,
    /// Keep the likeliest tokens up to this share of probability; 1 keeps all
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_TOP_P", default_value_t = 0.95)]
    pub(crate) top_p: f32,
    /// Drop tokens less than this share as likely as the likeliest; 0 keeps all
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_MIN_P", default_value_t = 0.05)]
    pub(crate) min_p: f32,
    /// Penalise repeated tokens; 1 does not
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_REPEAT_PENALTY", default_value_t = 1.0)]
    pub(crate) repeat_penalty: f32,
    /// How many tokens back the penalties look; 0 none, -1 all
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_REPEAT_LAST_N", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(i32).range(-1..))]
    pub(crate) repeat_last_n: i32,
    /// Penalise tokens that occurred at all
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_PRESENCE_PENALTY", default_value_t = 0.0)]
    pub(crate) presence_penalty: f32,
    /// Penalise tokens by how often they occurred
    #[arg(
        long,
        value_name = "X",
        env = "THERMOCLINE_ARG_FREQUENCY_PENALTY",
        default_value_t = 0.0
    )]
    pub(crate) frequency_penalty: f32,
    /// Make a token likelier or less likely: 15043+1, 15043-1, 2-inf
    #[arg(short, long, value_name = "ID±BIAS", env = "THERMOCLINE_ARG_LOGIT_BIAS", value_parser = parse::logit_bias)]
    #[arg(value_delimiter = ',')]
    pub(crate) logit_bias: Vec<(u32, f32)>,
    /// Never end of its own accord: the end-of-text tokens are banned
    #[arg(long, env = "THERMOCLINE_ARG_IGNORE_EOS", value_parser = boolish())]
    pub(crate) ignore_eos: bool,
}
