//! What `profile` shall do.

use super::model::ModelOptions;
use super::text::read_file;
use crate::cli::args::ProfileArgs;
use crate::cli::failure::Failure;
use std::path::PathBuf;

/// `thermocline profile`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProfileOptions {
    /// The model.
    pub(crate) model: ModelOptions,
    /// The user's text; `None` for the one that comes with the program.
    pub(crate) text: Option<String>,
    /// Tokens to use, at most.
    pub(crate) tokens: Option<usize>,
    /// Where the profile is kept; `None` chooses.
    pub(crate) out: Option<PathBuf>,
    /// Begin anew.
    pub(crate) restart: bool,
    /// PowerInfer's folder of counts.
    pub(crate) import: Option<PathBuf>,
    /// PowerInfer's file to compare with.
    pub(crate) compare: Option<PathBuf>,
    /// Where the picture goes.
    pub(crate) plot: Option<PathBuf>,
    /// The report as JSON.
    pub(crate) json: bool,
}

impl ProfileOptions {
    /// # Errors
    /// A text that cannot be read; what is not built.
    pub(crate) fn resolve(args: &ProfileArgs) -> Result<Self, Failure> {
        Ok(Self {
            model: ModelOptions::resolve(&args.model)?,
            text: args.file.as_deref().map(read_file).transpose()?,
            tokens: args.tokens.map(|n| n as usize),
            out: args.out.clone(),
            restart: args.restart,
            import: args.import.clone(),
            compare: args.compare.clone(),
            plot: args.plot.clone(),
            json: args.json,
        })
    }

    /// Whether the user says what the profile shall be made of.
    pub(crate) fn names_a_text(&self) -> bool {
        self.restart || self.text.is_some() || self.tokens.is_some()
    }
}
