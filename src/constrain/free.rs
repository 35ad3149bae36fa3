//! Free text up to a marker, after which a constraint applies.

use std::fmt;

use text::sample::{Constraint, ConstraintError, TokenMask};

use crate::Vocabulary;

/// Markers that end the free text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Triggers {
    /// Markers that may occur anywhere in the text.
    pub anywhere: Vec<String>,
    /// Markers recognised only at the start of the text, after optional white space.
    pub leading: Vec<String>,
    /// Whether the text may end without a marker.
    pub may_end: bool,
}

/// Allows any text until a marker appears, and then applies the constraint. A token that extends
/// past the end of a marker is not allowed, because the constraint must begin at a token boundary.
pub struct TriggeredConstraint {
    vocabulary: Vocabulary,
    may_end: bool,
    markers: Vec<Marker>,
    /// The end of the free text, at most as long as the longest marker.
    tail: Vec<u8>,
    /// The free text without leading white space; `None` once no leading marker can match it.
    lead: Option<Vec<u8>>,
    inner: Box<dyn Constraint>,
    triggered: bool,
    /// Whether the text ended without a marker.
    ended: bool,
    mask: Option<TokenMask>,
}

/// A marker, and the tokens that extend past its end.
struct Marker {
    text: Vec<u8>,
    leading: bool,
    /// `beyond[n]` has the tokens that complete the marker after its first `n` bytes and then
    /// continue with other text.
    beyond: Vec<Vec<u32>>,
}

impl fmt::Debug for TriggeredConstraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("TriggeredConstraint");
        out.field("triggered", &self.triggered).field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl TriggeredConstraint {
    /// Applies `inner` to the text after the first marker.
    #[must_use]
    pub fn new(
        vocabulary: &Vocabulary,
        triggers: &Triggers,
        inner: Box<dyn Constraint>,
    ) -> TriggeredConstraint {
        let marker = |text: &String, leading| Marker::new(text.as_bytes(), leading, vocabulary);
        let anywhere = triggers.anywhere.iter().map(|text| marker(text, false));
        let leading = triggers.leading.iter().map(|text| marker(text, true));
        TriggeredConstraint {
            vocabulary: vocabulary.clone(),
            may_end: triggers.may_end,
            markers: anywhere.chain(leading).collect(),
            tail: Vec::new(),
            lead: Some(Vec::new()),
            inner,
            triggered: false,
            ended: false,
            mask: None,
        }
    }

    fn free_mask(&self) -> TokenMask {
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
        for marker in &self.markers {
            for (n, beyond) in marker.beyond.iter().enumerate() {
                let begun = if marker.leading {
                    self.lead.as_ref().is_some_and(|lead| lead[..] == marker.text[..n])
                } else {
                    self.tail.ends_with(&marker.text[..n])
                };
                if begun {
                    beyond.iter().for_each(|id| mask.remove(*id));
                }
            }
        }
        mask
    }

    fn append(&mut self, token: u32) {
        let tokenizer = self.vocabulary.tokenizer();
        let bytes = tokenizer.piece(token, true).unwrap_or_default();
        self.tail.extend_from_slice(bytes);
        if let Some(lead) = &mut self.lead {
            lead.extend_from_slice(bytes);
            let n_space = lead.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            lead.drain(..n_space);
        }
        let ends = |marker: &Marker| {
            if marker.leading {
                self.lead.as_ref() == Some(&marker.text)
            } else {
                self.tail.ends_with(&marker.text)
            }
        };
        self.triggered = self.markers.iter().any(ends);
        let may_lead = |lead: &Vec<u8>| {
            self.markers.iter().any(|marker| marker.leading && marker.text.starts_with(lead))
        };
        if !self.lead.as_ref().is_some_and(may_lead) {
            self.lead = None;
        }
        let longest = self.markers.iter().map(|marker| marker.text.len()).max().unwrap_or(0);
        let extra = self.tail.len().saturating_sub(longest);
        self.tail.drain(..extra);
    }
}

impl Marker {
    fn new(text: &[u8], leading: bool, vocabulary: &Vocabulary) -> Marker {
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
            // The token may also contain the whole marker, with text before and after it.
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
        Marker { text: text.to_vec(), leading, beyond }
    }
}

impl Constraint for TriggeredConstraint {
    fn allowed(&mut self) -> Result<&TokenMask, ConstraintError> {
        if self.triggered {
            return self.inner.allowed();
        }
        let mask = match self.mask.take() {
            Some(mask) => mask,
            None => self.free_mask(),
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
            self.append(token);
        }
        Ok(())
    }

    fn is_finished(&self) -> bool {
        self.ended || self.triggered && self.inner.is_finished()
    }
}
