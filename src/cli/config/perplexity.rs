//! Options of `perplexity`.

use super::model::ModelOptions;
use super::text::read_file;
use crate::cli::args::{Against, PerplexityArgs};
use crate::cli::failure::Failure;
use std::path::PathBuf;

/// `thermocline perplexity`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PerplexityOptions {
    /// The model. If `n_ctx` is `None`, llama-perplexity's default of 512 is used.
    pub(crate) model: ModelOptions,
    /// The text, unchanged; `None` if it comes from the file of probabilities.
    pub(crate) text: Option<String>,
    /// Number of chunks; `None` for all.
    pub(crate) chunks: Option<u32>,
    /// The reference to compare with.
    pub(crate) reference: Reference,
    /// Print the report as JSON.
    pub(crate) json: bool,
}

/// The reference of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reference {
    /// Nothing: perplexity only.
    None,
    /// The same model without skipping, run in parallel.
    Dense,
    /// Probabilities read from a file.
    Read(PathBuf),
    /// Nothing; the probabilities are written to a file.
    Write(PathBuf),
}

impl PerplexityOptions {
    /// # Errors
    /// A missing or unreadable text; unsupported values.
    pub(crate) fn resolve(args: &PerplexityArgs) -> Result<Self, Failure> {
        let text = match (&args.prompt, &args.file) {
            (Some(text), _) => Some(text.clone()),
            (None, Some(path)) => {
                // Like llama.cpp reads a prompt file, so that the token counts agree.
                let mut text = read_file(path)?;
                if text.ends_with('\n') {
                    text.pop();
                }
                Some(text)
            }
            (None, None) if args.kl_divergence => None,
            (None, None) => {
                let help = "pass it with -f FILE";
                return Err(Failure::usage("no text to measure on").help(help));
            }
        };
        let chunks = u32::try_from(args.chunks).ok();
        if chunks == Some(0) {
            return Err(Failure::usage("--chunks 0 leaves nothing to measure"));
        }
        Ok(Self {
            model: ModelOptions::resolve(&args.model)?,
            text,
            chunks,
            reference: match (args.against, args.kl_divergence, &args.kl_divergence_base) {
                (Some(Against::Dense), _, _) => Reference::Dense,
                (None, true, Some(path)) => Reference::Read(path.clone()),
                (None, false, Some(path)) => Reference::Write(path.clone()),
                (None, _, None) => Reference::None,
            },
            json: args.json,
        })
    }
}
