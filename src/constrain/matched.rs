//! The constraint of a compiled grammar.

use std::fmt;
use std::sync::Arc;

use llguidance::Matcher;
use llguidance::api::StopReason;
use text::sample::{Constraint, ConstraintError, TokenMask};

use crate::Vocabulary;

/// A compiled grammar and the parser's state for one text.
pub(crate) struct GrammarConstraint {
    matcher: Matcher,
    /// The tokens that may come next; `None` until they are computed for the current position.
    mask: Option<TokenMask>,
    n_vocab: usize,
    /// The tokenizer's end-of-generation tokens.
    eog: Vec<u32>,
    /// Other tokens that end a text.
    ends: Arc<[u32]>,
    finished: bool,
}

impl fmt::Debug for GrammarConstraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarConstraint")
            .field("finished", &self.finished)
            .finish_non_exhaustive()
    }
}

impl GrammarConstraint {
    pub(crate) fn new(vocabulary: &Vocabulary, matcher: Matcher) -> GrammarConstraint {
        let tokenizer = vocabulary.tokenizer();
        let (eog, ends) = (tokenizer.eog().to_vec(), Arc::clone(vocabulary.ends()));
        let finished = matcher.is_stopped();
        GrammarConstraint { matcher, mask: None, n_vocab: tokenizer.n_vocab(), eog, ends, finished }
    }

    fn compute(&mut self) -> Result<TokenMask, ConstraintError> {
        let mut mask = TokenMask::none(self.n_vocab);
        let may_end = if self.finished {
            self.eog.iter().for_each(|id| mask.insert(*id));
            true
        } else {
            let computed = self.matcher.compute_mask().map_err(|e| self.failure(&e.to_string()))?;
            mask = TokenMask::from_words(computed.as_slice(), self.n_vocab);
            self.eog.iter().any(|id| mask.contains(*id))
                || self.eog.is_empty() && self.matcher.is_accepting().unwrap_or(false)
        };
        if may_end {
            self.ends.iter().for_each(|id| mask.insert(*id));
        }
        if mask.is_empty() {
            let reason = if self.finished {
                "the text is complete, but the vocabulary has no end-of-generation token"
            } else {
                "no token of the vocabulary continues the text"
            };
            return Err(ConstraintError { reason: reason.into() });
        }
        Ok(mask)
    }

    fn failure(&self, message: &str) -> ConstraintError {
        let reason = match self.matcher.stop_reason() {
            // `stop_reason` is then an internal error; only the message names the actual reason.
            _ if message.starts_with("NoExtensionBias") => {
                "no token of the vocabulary continues the text".into()
            }
            StopReason::NoExtensionBias => "no token of the vocabulary continues the text".into(),
            StopReason::LexerTooComplex | StopReason::ParserTooComplex => {
                format!("the grammar is too complex here: {}", first_line(message))
            }
            StopReason::NotStopped
            | StopReason::MaxTokensTotal
            | StopReason::MaxTokensParser
            | StopReason::NoExtension
            | StopReason::EndOfSentence
            | StopReason::InternalError
            | StopReason::Cancelled => first_line(message),
        };
        ConstraintError { reason }
    }
}

fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().to_owned()
}

impl Constraint for GrammarConstraint {
    fn allowed(&mut self) -> Result<&TokenMask, ConstraintError> {
        let mask = match self.mask.take() {
            Some(mask) => mask,
            None => self.compute()?,
        };
        Ok(self.mask.insert(mask))
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        if !self.allowed()?.contains(token) {
            return Err(ConstraintError { reason: format!("token {token} is not allowed here") });
        }
        self.mask = None;
        if self.finished || self.ends.contains(&token) {
            self.finished = true;
            return Ok(());
        }
        self.matcher.consume_token(token).map_err(|e| self.failure(&e.to_string()))?;
        self.finished = self.matcher.is_stopped();
        Ok(())
    }

    fn is_finished(&self) -> bool {
        self.finished
    }
}
