//! How a token is chosen.

use super::boolish;
use crate::cli::parse;
use clap::Args;

/// The supported sampling flags of llama.cpp. `llama.rs` rejects the others.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Samplers in order, separated by ';'
    #[arg(long, value_name = "NAMES", env = "THERMOCLINE_ARG_SAMPLERS")]
    #[arg(conflicts_with = "sampling_seq")]
    pub(crate) samplers: Option<String>,
    /// Samplers as single letters; default: ekpmt
    #[arg(
        long,
        value_name = "LETTERS",
        env = "THERMOCLINE_ARG_SAMPLING_SEQ",
        alias = "sampler-seq"
    )]
    pub(crate) sampling_seq: Option<String>,
    /// Random seed; -1 for a random one
    #[arg(short, long, value_name = "N", env = "THERMOCLINE_ARG_SEED", default_value_t = -1)]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..=i64::from(u32::MAX)))]
    pub(crate) seed: i64,
    /// Temperature; 0 always picks the most likely token
    #[arg(
        long,
        value_name = "X",
        env = "THERMOCLINE_ARG_TEMP",
        alias = "temperature",
        default_value_t = 0.8
    )]
    pub(crate) temp: f32,
    /// Keep the N most likely tokens; 0 keeps all
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_TOP_K", default_value_t = 40)]
    pub(crate) top_k: i32,
    /// Keep the most likely tokens up to this total probability; 1 keeps all
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_TOP_P", default_value_t = 0.95)]
    pub(crate) top_p: f32,
    /// Drop tokens below this fraction of the top probability; 0 keeps all
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_MIN_P", default_value_t = 0.05)]
    pub(crate) min_p: f32,
    /// Penalty for repeated tokens; 1 disables it
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_REPEAT_PENALTY", default_value_t = 1.0)]
    pub(crate) repeat_penalty: f32,
    /// Number of recent tokens to penalise; 0 disables, -1 is all
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_REPEAT_LAST_N", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(i32).range(-1..))]
    pub(crate) repeat_last_n: i32,
    /// Penalty for tokens that occurred at all
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_PRESENCE_PENALTY", default_value_t = 0.0)]
    pub(crate) presence_penalty: f32,
    /// Penalty for tokens by how often they occurred
    #[arg(
        long,
        value_name = "X",
        env = "THERMOCLINE_ARG_FREQUENCY_PENALTY",
        default_value_t = 0.0
    )]
    pub(crate) frequency_penalty: f32,
    /// Bias of a token's logit: 15043+1, 15043-1, 2-inf
    #[arg(short, long, value_name = "ID±BIAS", env = "THERMOCLINE_ARG_LOGIT_BIAS", value_parser = parse::logit_bias)]
    #[arg(value_delimiter = ',')]
    pub(crate) logit_bias: Vec<(u32, f32)>,
    /// Ban the end-of-text tokens, so that generation continues
    #[arg(long, env = "THERMOCLINE_ARG_IGNORE_EOS", value_parser = boolish())]
    pub(crate) ignore_eos: bool,
}
