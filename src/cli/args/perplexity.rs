//! `thermocline perplexity`.

use super::serve::parallel;
use super::{CommonArgs, ModelArgs, boolish, whole};
use crate::cli::failure::Failure;
use crate::cli::texts::{piped_text, read_file, read_prompt};
use clap::builder::TypedValueParser;
use clap::{Args, ValueEnum};
use runtime::Options;
use std::num::NonZeroU32;
use std::path::PathBuf;

/// Measure quality on a text. As in llama-perplexity, the second half of each context-sized chunk
/// is evaluated.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Measurement")]
pub(crate) struct PerplexityArgs {
    /// File with the text; - is standard input
    #[arg(short, long, value_name = "FILE", overrides_with_all = ["prompt", "binary_file"])]
    pub(crate) file: Option<PathBuf>,
    /// Read the text from a file unchanged (-bf)
    #[arg(long, value_name = "FILE", overrides_with_all = ["prompt", "file"])]
    pub(crate) binary_file: Option<PathBuf>,
    /// The text
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// Number of chunks to measure; -1 is all
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_CHUNKS", default_value = "-1")]
    #[arg(value_parser = whole::<i32>(-1..).try_map(chunk_limit))]
    pub(crate) chunks: Limit,
    /// Number of chunks to run at once (-np)
    ///
    /// The weights are then read once for the tokens of all of them. With --against, chunks run one
    /// at a time.
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_N_PARALLEL", default_value = "1")]
    #[arg(value_parser = parallel())]
    pub(crate) parallel: NonZeroU32,
    /// Compare with a second run of the same text
    #[arg(long, value_name = "WHAT", env = "THERMOCLINE_ARG_AGAINST")]
    #[arg(conflicts_with_all = ["kl_divergence", "kl_divergence_base"])]
    pub(crate) against: Option<ComparisonTarget>,
    /// Compare with the probabilities in the --kl-divergence-base file
    #[arg(long, env = "THERMOCLINE_ARG_KL_DIVERGENCE", value_parser = boolish(), requires = "kl_divergence_base")]
    pub(crate) kl_divergence: bool,
    /// File of probabilities: read with --kl-divergence, otherwise written
    #[arg(
        long,
        value_name = "FILE",
        env = "THERMOCLINE_ARG_KL_DIVERGENCE_BASE",
        visible_alias = "save-all-logits"
    )]
    pub(crate) kl_divergence_base: Option<PathBuf>,
    /// Print the report as one JSON object
    #[arg(long, env = "THERMOCLINE_ARG_JSON", value_parser = boolish())]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// `--against`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ComparisonTarget {
    /// The same model with every neuron computed.
    Dense,
}

/// A number of chunks; `None` for all.
pub(crate) type Limit = Option<usize>;

pub(super) fn chunk_limit(n: i32) -> Result<Limit, Failure> {
    match usize::try_from(n) {
        Ok(0) => Err(Failure::usage("--chunks 0 leaves no chunk to run")),
        n => Ok(n.ok()),
    }
}

/// The reference of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reference {
    /// No reference: only perplexity is measured.
    None,
    /// The same model with every neuron computed, evaluated in the same run.
    Dense,
    /// Probabilities read from a file.
    Read(PathBuf),
    /// No reference: this run's probabilities are written to a file for later comparisons.
    Write(PathBuf),
}

impl PerplexityArgs {
    pub(crate) fn options(&self) -> Options {
        let n_parallel = match self.against {
            Some(ComparisonTarget::Dense) => NonZeroU32::MIN,
            None => self.parallel,
        };
        Options { n_parallel, ..self.model.options() }
    }

    /// The reference to compare with.
    pub(crate) fn reference(&self) -> Reference {
        match (self.against, &self.kl_divergence_base) {
            (Some(ComparisonTarget::Dense), _) => Reference::Dense,
            (None, Some(path)) if self.kl_divergence => Reference::Read(path.clone()),
            (None, Some(path)) => Reference::Write(path.clone()),
            (None, None) => Reference::None,
        }
    }

    /// The text, read as llama.cpp reads a prompt file, so that the token counts agree; `None` if
    /// the file of probabilities contains the text.
    ///
    /// # Errors
    /// No text was given, or its file cannot be read.
    pub(crate) fn text(&self) -> Result<Option<String>, Failure> {
        if let Some(text) = &self.prompt {
            return Ok(Some(text.clone()));
        }
        match (&self.file, &self.binary_file) {
            (Some(path), _) => read_prompt(path).map(Some),
            (None, Some(path)) => read_file(path).map(Some),
            (None, None) if self.kl_divergence => Ok(None),
            (None, None) => match piped_text()? {
                Some(text) => Ok(Some(text)),
                None => Err(Failure::usage("no text to measure on").help("pass it with -f FILE")),
            },
        }
    }
}
