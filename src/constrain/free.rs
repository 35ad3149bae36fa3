//! Free text up to a mark, from which on a constraint applies.

use std::fmt;

use text::sample::{Constraint, ConstraintError, TokenMask};

use crate::Vocabulary;

/// Texts that end the free text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Triggers {
    /// Marks anywhere in the text.
    pub anywhere: Vec<String>,
    /// Marks at the start of the text, after white space.
    pub leading: Vec<String>,
    /// Whether the text may end without a mark.
    pub may_end: bool,
}

/// Any text until a mark appears; the constraint applies from there on. A token that runs past the
/// end of a mark is not allowed, so that the constraint begins at a token.
pub struct TriggeredConstraint {
    vocabulary: Vocabulary,
    may_end: bool,
    marks: Vec<Mark>,
    /// The end of the free text, at most as long as the longest mark.
    tail: Vec<u8>,
    /// The free text from its first character that is not white space, while leading marks are
    /// possible.
    lead: Option<Vec<u8>>,
    inner: Box<dyn Constraint>,
    triggered: bool,
    /// The text ended without a mark.
    ended: bool,
    mask: Option<TokenMask>,
}

/// A mark, and the tokens that contain its end and more.
struct Mark {
    text: Vec<u8>,
    leading: bool,
    /// For each number of bytes of the mark that came before: the tokens that complete it and
    /// continue.
    beyond: Vec<Vec<u32>>,
}

impl fmt::Debug for TriggeredConstraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("TriggeredConstraint");
        out.field("triggered", &self.triggered).field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl TriggeredConstraint {
    /// Applies `inner` to the text after the first mark.
    #[must_use]
    pub fn new(
        vocabulary: &Vocabulary,
        triggers: &Triggers,
        inner: Box<dyn Constraint>,
    ) -> TriggeredConstraint {
        let mark = |text: &String, leading| Mark::new(text.as_bytes(), leading, vocabulary);
        let anywhere = triggers.anywhere.iter().map(|text| mark(text, false));
        let leading = triggers.leading.iter().map(|text| mark(text, true));
        TriggeredConstraint {
            vocabulary: vocabulary.clone(),
            may_end: triggers.may_end,
            marks: anywhere.chain(leading).collect(),
            tail: Vec::new(),
            lead: Some(Vec::new()),
            inner,
            triggered: false,
            ended: false,
            mask: None,
        }
    }

    fn free(&self) -> TokenMask {
        let n_vocab = self.vocabulary.tokenizer().n_vocab();
        let mut mask = TokenMask::all(n_vocab);
        if self.ended || !self.may_end {
            let ends = self.vocabulary.all_ends();
            if self.ended {
                mask = TokenMask::none(n_vocab);
                ends.iter().for_each(|id| mask.insert(*id));
                return mask;
            }
            ends.iter().for_each(|id| mask.remove(*id));
        }
        for mark in &self.marks {
            for (n, beyond) in mark.beyond.iter().enumerate() {
                let begun = if mark.leading {
                    self.lead.as_ref().is_some_and(|lead| lead[..] == mark.text[..n])
                } else {
                    self.tail.ends_with(&mark.text[..n])
                };
                if begun {
                    beyond.iter().for_each(|id| mask.remove(*id));
                }
            }
        }
        mask
    }

    fn take(&mut self, token: u32) {
        let tokenizer = self.vocabulary.tokenizer();
        let bytes = tokenizer.piece(token, true).unwrap_or_default();
        self.tail.extend_from_slice(bytes);
        if let Some(lead) = &mut self.lead {
            lead.extend_from_slice(bytes);
            let n_space = lead.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            lead.drain(..n_space);
        }
        let ends = |mark: &Mark| {
            if mark.leading {
                self.lead.as_ref() == Some(&mark.text)
            } else {
                self.tail.ends_with(&mark.text)
            }
        };
        self.triggered = self.marks.iter().any(ends);
        let may_lead = |lead: &Vec<u8>| {
            self.marks.iter().any(|mark| mark.leading && mark.text.starts_with(lead))
        };
        if !self.lead.as_ref().is_some_and(may_lead) {
            self.lead = None;
        }
        let longest = self.marks.iter().map(|mark| mark.text.len()).max().unwrap_or(0);
        let extra = self.tail.len().saturating_sub(longest);
        self.tail.drain(..extra);
    }
}

impl Mark {
    fn new(text: &[u8], leading: bool, vocabulary: &Vocabulary) -> Mark {
        let tokenizer = vocabulary.tokenizer();
        let mut beyond = vec![Vec::new(); text.len()];
        for id in (0u32..).take(tokenizer.n_vocab()) {
            let bytes = tokenizer.piece(id, true).unwrap_or_default();
            for (n, tokens) in beyond.iter_mut().enumerate() {
                let rest = &text[n..];
                if bytes.len() > rest.len() && bytes.starts_with(rest) {
                    tokens.push(id);
                }
            }
            // A mark within the token, after other text.
            let n = text.len();
            let inside = |at: usize| {
                let before = &bytes[..at];
                bytes[at..].starts_with(text)
                    && (!leading || before.iter().all(u8::is_ascii_whitespace))
            };
            if bytes.len() > n && (1..bytes.len() - n).any(inside) {
                beyond[0].push(id);
            }
        }
        Mark { text: text.to_vec(), leading, beyond }
    }
}

impl Constraint for TriggeredConstraint {
    fn allowed(&mut self) -> Result<&TokenMask, ConstraintError> {
        if self.triggered {
            return self.inner.allowed();
        }
        let mask = match self.mask.take() {
            Some(mask) => mask,
            None => self.free(),
        };
        Ok(self.mask.insert(mask))
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        if self.triggered {
            return self.inner.accept(token);
        }
        if !self.allowed()?.contains(token) {
            return Err(ConstraintError { reason: format!("token {token} is not allowed here") });
        }
        self.mask = None;
        self.ended |= self.vocabulary.all_ends().contains(&token);
        if !self.ended {
            self.take(token);
        }
        Ok(())
    }

    fn is_finished(&self) -> bool {
        self.ended || self.triggered && self.inner.is_finished()
    }
}
