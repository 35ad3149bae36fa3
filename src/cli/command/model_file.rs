//! Opens the model a command is about.

use crate::cli::failure::{Exit, Failure};
use crate::tokenizer::{Tokenizer, Vocab};
use crate::{embedded, gguf};
use std::path::Path;

/// Opens the file; without one, the built-in model.
///
/// # Errors
/// [`Exit::BadModel`], naming the file and what is wrong with it.
pub(crate) fn open(path: Option<&Path>) -> Result<gguf::File, Failure> {
    let file = path.map_or_else(embedded::file, gguf::File::open);
    file.map_err(|e| Failure::new(Exit::BadModel, "cannot load the model").caused_by(&e))
}

/// The tokenizer of a file.
///
/// # Errors
/// [`Exit::BadModel`] where the vocabulary is missing, wrong or of a kind that is not built.
pub(crate) fn tokenizer(file: &gguf::File) -> Result<Tokenizer, Failure> {
    let vocab = Vocab::from_metadata(file.metadata());
    vocab.and_then(Tokenizer::new).map_err(|e| {
        let message = format!("cannot use the tokenizer in '{}'", file.name());
        Failure::new(Exit::BadModel, message).caused_by(&e)
    })
}
