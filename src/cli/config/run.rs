//! Options of `run` and `chat`.

use super::chat::ConversationOptions;
use super::model::ModelOptions;
use super::text::{escaped, read_file};
use crate::cli::args::{RunArgs, SamplingArgs};
use crate::cli::failure::Failure;
use crate::sample::{SamplerConfig, Stage};
use std::path::PathBuf;

/// `thermocline run` and `thermocline chat`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RunOptions {
    /// The model.
    pub(crate) model: ModelOptions,
    /// The prompt, escapes replaced; `None` without a prompt.
    pub(crate) prompt: Option<String>,
    /// When to stop, besides the model's own end of text.
    pub(crate) length: Length,
    /// Sampling parameters.
    pub(crate) sampler: SamplerConfig,
    /// Ban the tokens that end a text.
    pub(crate) ignore_eos: bool,
    /// Texts that end the generation and are not shown.
    pub(crate) stops: Vec<String>,
    /// Drop old text when the context is full; otherwise stop there.
    pub(crate) context_shift: bool,
    /// The tokens that a context shift keeps.
    pub(crate) keep: Keep,
    /// Print the prompt first.
    pub(crate) display_prompt: bool,
    /// List the prompt's tokens on standard error.
    pub(crate) verbose_prompt: bool,
    /// Print special tokens.
    pub(crate) special: bool,
    /// Report timings and density at the end, on standard error.
    pub(crate) perf: bool,
    /// Print the report as JSON.
    pub(crate) json: bool,
    /// Path of the trace.
    pub(crate) trace: Option<PathBuf>,
    /// Collect a short activation profile after the run.
    pub(crate) auto_profile: bool,
    /// Options of the conversation.
    pub(crate) conversation: ConversationOptions,
}

/// `-n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// Until the model ends its text.
    Endless,
    /// Until the context is full.
    FillContext,
    /// At most this number of tokens.
    Tokens(u32),
}

/// `--keep`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// The whole prompt.
    Prompt,
    /// Its first tokens.
    Tokens(u32),
}

impl RunOptions {
    /// # Errors
    /// Values that are invalid or unsupported, files that cannot be read.
    pub(crate) fn resolve(args: &RunArgs) -> Result<Self, Failure> {
        let stops = args.reverse_prompt.iter();
        let stops = stops.map(|s| escaped(s.clone(), args.escape));
        Ok(Self {
            model: ModelOptions::resolve(&args.model)?,
            prompt: prompt(args)?,
            length: match u32::try_from(args.predict) {
                Ok(n) => Length::Tokens(n),
                Err(_) if args.predict == -1 => Length::Endless,
                Err(_) => Length::FillContext,
            },
            sampler: sampler(&args.sampling)?,
            ignore_eos: args.sampling.ignore_eos,
            stops: stops.collect::<Result<_, _>>()?,
            context_shift: args.context_shift,
            keep: u32::try_from(args.keep).map_or(Keep::Prompt, Keep::Tokens),
            display_prompt: args.display_prompt,
            verbose_prompt: args.verbose_prompt,
            special: args.special,
            perf: args.perf,
            json: args.json,
            trace: args.trace.clone(),
            auto_profile: args.auto_profile,
            conversation: ConversationOptions::resolve(&args.conversation, args.escape)?,
        })
    }
}

fn prompt(args: &RunArgs) -> Result<Option<String>, Failure> {
    let text = match (&args.file, &args.binary_file, &args.prompt) {
        (Some(path), _, _) => {
            let mut text = read_file(path)?;
            if text.ends_with('\n') {
                text.pop();
            }
            text
        }
        (None, Some(path), _) => read_file(path)?,
        (None, None, Some(text)) => text.clone(),
        (None, None, None) => return Ok(None),
    };
    escaped(text, args.escape).map(Some)
}

/// # Errors
/// Values that [`crate::sample`] rejects; token ids are checked later, against the vocabulary.
fn sampler(args: &SamplingArgs) -> Result<SamplerConfig, Failure> {
    let refused = |e: crate::sample::Error| {
        let known: Vec<_> = Stage::DEFAULT_CHAIN.iter().map(|s| s.name()).collect();
        Failure::usage(e.to_string()).help(format!("supported samplers: {}", known.join(";")))
    };
    let chain = match (&args.samplers, &args.sampling_seq) {
        (Some(names), _) => Stage::parse_names(names).map_err(refused)?,
        (None, Some(letters)) => Stage::parse_letters(letters).map_err(refused)?,
        (None, None) => Stage::DEFAULT_CHAIN.to_vec(),
    };
    Ok(SamplerConfig {
        temp: finite("--temp", args.temp)?,
        top_k: usize::try_from(args.top_k).unwrap_or(0),
        top_p: finite("--top-p", args.top_p)?,
        min_p: finite("--min-p", args.min_p)?,
        min_keep: 0,
        repeat_penalty: finite("--repeat-penalty", args.repeat_penalty)?,
        repeat_last_n: usize::try_from(args.repeat_last_n).unwrap_or(usize::MAX),
        presence_penalty: finite("--presence-penalty", args.presence_penalty)?,
        frequency_penalty: finite("--frequency-penalty", args.frequency_penalty)?,
        logit_bias: args.logit_bias.clone(),
        // llama.cpp's "random" is the largest 32-bit number as well as -1.
        seed: u32::try_from(args.seed).ok().filter(|s| *s != u32::MAX),
        chain,
    })
}

fn finite(flag: &str, value: f32) -> Result<f32, Failure> {
    let positive = flag != "--repeat-penalty" || value > 0.0;
    if value.is_finite() && positive {
        Ok(value)
    } else {
        Err(Failure::usage(format!("invalid value {value} for {flag}")))
    }
}
