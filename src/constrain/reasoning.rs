//! Constraints that apply to the answer, after reasoning.

use std::fmt;

use text::chat::Reasoning;
use text::sample::{Constraint, ConstraintError, TokenMask};

use crate::{TriggeredConstraint, Triggers, Vocabulary};

/// The beginning of gpt-oss's answers.
const FINAL: &str = "<|channel|>final<|message|>";
/// The end of gpt-oss's prompts.
const ASSISTANT: &str = "<|start|>assistant";
/// Maximum number of tokens of white space between the reasoning and the answer.
const MAX_SPACE: usize = 4;

impl Vocabulary {
    /// Applies a constraint to the answer that follows `prompt`, but not to the reasoning before
    /// the answer. The prompt may have opened the reasoning, or the model opens it with a token of
    /// its vocabulary.
    #[must_use]
    pub fn after_reasoning(&self, prompt: &str, inner: Box<dyn Constraint>) -> Box<dyn Constraint> {
        let prompt = prompt.trim_end();
        let has = |mark: &str| self.tokenizer().id_of(mark).is_some();
        if prompt.ends_with(ASSISTANT) && has("<|channel|>") {
            return self.free_until(FINAL, inner);
        }
        if let Some((_, close)) = Reasoning::pairs().find(|(open, _)| prompt.ends_with(open)) {
            return self.free_until(close, self.after_space(inner));
        }
        let opens: Vec<(u32, &str)> = Reasoning::pairs()
            .filter_map(|(open, close)| Some((self.tokenizer().id_of(open)?, close)))
            .collect();
        if opens.is_empty() {
            return inner;
        }
        let vocabulary = self.clone();
        Box::new(OptionalReasoning {
            vocabulary,
            opens,
            inner: Some(inner),
            begun: None,
            mask: None,
        })
    }

    fn free_until(&self, mark: &str, inner: Box<dyn Constraint>) -> Box<dyn Constraint> {
        let triggers = Triggers { anywhere: vec![mark.to_owned()], ..Triggers::default() };
        Box::new(TriggeredConstraint::new(self, &triggers, inner))
    }

    /// Allows up to [`MAX_SPACE`] tokens of white space before the text of `inner`.
    fn after_space(&self, inner: Box<dyn Constraint>) -> Box<dyn Constraint> {
        let tokenizer = self.tokenizer();
        let mut space = TokenMask::none(tokenizer.n_vocab());
        for id in (0u32..).take(tokenizer.n_vocab()) {
            let bytes = tokenizer.piece(id, false).unwrap_or_default();
            if !bytes.is_empty() && bytes.iter().all(u8::is_ascii_whitespace) {
                space.insert(id);
            }
        }
        Box::new(AfterSpace { space, left: MAX_SPACE, inner, mask: None })
    }
}

/// A constraint whose first token may open reasoning.
struct OptionalReasoning {
    vocabulary: Vocabulary,
    /// Tokens that open reasoning, each with the marker that closes it.
    opens: Vec<(u32, &'static str)>,
    /// The constraint on the answer, until the first token is accepted.
    inner: Option<Box<dyn Constraint>>,
    /// The constraint on all tokens after the first.
    begun: Option<Box<dyn Constraint>>,
    mask: Option<TokenMask>,
}

impl fmt::Debug for OptionalReasoning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OptionalReasoning").field("opens", &self.opens).finish_non_exhaustive()
    }
}

fn unusable() -> ConstraintError {
    ConstraintError { reason: "the constraint has already failed".into() }
}

impl Constraint for OptionalReasoning {
    fn allowed(&mut self) -> Result<&TokenMask, ConstraintError> {
        if let Some(begun) = &mut self.begun {
            return begun.allowed();
        }
        let inner = self.inner.as_mut().ok_or_else(unusable)?;
        let mut mask = inner.allowed()?.clone();
        self.opens.iter().for_each(|(id, _)| mask.insert(*id));
        Ok(self.mask.insert(mask))
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        if let Some(begun) = &mut self.begun {
            return begun.accept(token);
        }
        let mut inner = self.inner.take().ok_or_else(unusable)?;
        let open = self.opens.iter().find(|(id, _)| *id == token);
        self.begun = Some(match open {
            Some((_, close)) if !inner.allowed()?.contains(token) => {
                self.vocabulary.free_until(close, self.vocabulary.after_space(inner))
            }
            _ => {
                inner.accept(token)?;
                inner
            }
        });
        Ok(())
    }

    fn is_finished(&self) -> bool {
        self.begun.as_ref().is_some_and(|begun| begun.is_finished())
    }
}

/// Allows white space before a constrained text.
#[derive(Debug)]
struct AfterSpace {
    space: TokenMask,
    /// Number of white-space tokens that may still follow.
    left: usize,
    inner: Box<dyn Constraint>,
    mask: Option<TokenMask>,
}

impl Constraint for AfterSpace {
    fn allowed(&mut self) -> Result<&TokenMask, ConstraintError> {
        let inner = self.inner.allowed()?;
        if self.left == 0 {
            return Ok(inner);
        }
        let mut mask = inner.clone();
        mask.extend(&self.space);
        Ok(self.mask.insert(mask))
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        if self.left > 0 && self.space.contains(token) {
            self.left -= 1;
            return Ok(());
        }
        self.left = 0;
        self.inner.accept(token)
    }

    fn is_finished(&self) -> bool {
        self.left == 0 && self.inner.is_finished()
    }
}
