//! Options of `profile`.

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
    /// The user's text; `None` for the built-in text.
    pub(crate) text: Option<String>,
    /// Maximum number of tokens.
    pub(crate) tokens: Option<usize>,
    /// Output path; `None` for the default.
    pub(crate) out: Option<PathBuf>,
    /// Start again.
    pub(crate) restart: bool,
    /// PowerInfer's folder of counts to import.
    pub(crate) import: Option<PathBuf>,
    /// PowerInfer's file to compare with.
    pub(crate) compare: Option<PathBuf>,
    /// Path of the plot.
    pub(crate) plot: Option<PathBuf>,
    /// Print the report as JSON.
    pub(crate) json: bool,
}

impl ProfileOptions {
    /// # Errors
    /// A text that cannot be read; unsupported values.
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

    /// Whether the user names a source for the profile.
    pub(crate) fn names_a_text(&self) -> bool {
        self.restart || self.text.is_some() || self.tokens.is_some()
    }
}
