//! Constrains the output of `run` and `chat` to a schema or grammar.

use std::sync::Arc;

use crate::cli::args::ConstraintArgs;
use crate::cli::failure::Failure;
use crate::sample::Constraint;
use crate::tokenizer::Tokenizer;
use constrain::{Grammar, Limits, Vocabulary};

/// A grammar, and the vocabulary for which it is compiled.
#[derive(Debug)]
pub(super) struct Structured {
    vocabulary: Vocabulary,
    grammar: Grammar,
}

impl Structured {
    /// The grammar that the flags select, if any. `ends` are tokens that end a text, in addition to
    /// the tokenizer's end-of-generation tokens.
    ///
    /// # Errors
    /// A vocabulary or grammar that is not supported.
    pub(super) fn new(
        args: &ConstraintArgs,
        tokenizer: &Arc<Tokenizer>,
        ends: &[u32],
    ) -> Result<Option<Structured>, Failure> {
        let Some(grammar) = args.grammar()? else { return Ok(None) };
        let vocabulary = Vocabulary::new(tokenizer).map_err(failure)?.with_ends(ends);
        let structured = Structured { vocabulary, grammar };
        // Report an invalid grammar before the prompt is computed.
        structured.text()?;
        Ok(Some(structured))
    }

    /// A constraint for one generated text.
    ///
    /// # Errors
    /// A grammar that is not supported.
    pub(super) fn text(&self) -> Result<Box<dyn Constraint>, Failure> {
        self.vocabulary.compile(&self.grammar, &Limits::default()).map_err(failure)
    }

    /// A constraint for the answer that follows `prompt`. It does not apply to the reasoning before
    /// the answer.
    ///
    /// # Errors
    /// A grammar that is not supported.
    pub(super) fn answer(&self, prompt: &str) -> Result<Box<dyn Constraint>, Failure> {
        Ok(self.vocabulary.after_reasoning(prompt, self.text()?))
    }
}

fn failure(error: constrain::Error) -> Failure {
    Failure::usage(error.to_string())
        .help("docs/structured.md lists the keywords of JSON schemas and the syntax of grammars")
}
