//! Constraints on the next token: a grammar, a JSON schema, a tool call.

use std::fmt;

/// A set of token ids, one bit per token of the vocabulary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenMask {
    /// Bit `id % 32` of word `id / 32`; bits past the vocabulary are zero.
    words: Vec<u32>,
    n_vocab: usize,
}

impl TokenMask {
    /// The empty set, for a vocabulary of `n_vocab` tokens.
    #[must_use]
    pub fn none(n_vocab: usize) -> TokenMask {
        TokenMask { words: vec![0; n_vocab.div_ceil(32)], n_vocab }
    }

    /// The set of all tokens of a vocabulary of `n_vocab` tokens.
    #[must_use]
    pub fn all(n_vocab: usize) -> TokenMask {
        TokenMask::from_words(&vec![u32::MAX; n_vocab.div_ceil(32)], n_vocab)
    }

    /// A set from words of 32 bits each, lowest bit first. Missing words count as zero, and bits
    /// past the vocabulary are ignored.
    #[must_use]
    pub fn from_words(words: &[u32], n_vocab: usize) -> TokenMask {
        let mut mask = TokenMask::none(n_vocab);
        let n = words.len().min(mask.words.len());
        mask.words[..n].copy_from_slice(&words[..n]);
        if let (Some(last), rest @ 1..) = (mask.words.last_mut(), n_vocab % 32) {
            *last &= (1 << rest) - 1;
        }
        mask
    }

    /// Adds a token. Ids outside of the vocabulary are ignored.
    pub fn insert(&mut self, token: u32) {
        if (token as usize) < self.n_vocab {
            self.words[token as usize / 32] |= 1 << (token % 32);
        }
    }

    /// Removes a token.
    pub fn remove(&mut self, token: u32) {
        if let Some(word) = self.words.get_mut(token as usize / 32) {
            *word &= !(1 << (token % 32));
        }
    }

    /// Adds all tokens of another set over the same vocabulary.
    pub fn extend(&mut self, other: &TokenMask) {
        for (word, more) in self.words.iter_mut().zip(&other.words) {
            *word |= more;
        }
    }

    /// Whether the token is in the set.
    #[must_use]
    pub fn contains(&self, token: u32) -> bool {
        self.words.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// Number of tokens in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether the set has no token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }
}

/// Why a constraint cannot continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the constraint on the output failed: {reason}")]
pub struct ConstraintError {
    /// Description of the cause.
    pub reason: String,
}

/// Restricts which token may come next. Each generated text has its own constraint.
pub trait Constraint: fmt::Debug + Send {
    /// The tokens that may come next. If the text may end here, this includes end-of-generation
    /// tokens. Never empty.
    ///
    /// # Errors
    /// [`ConstraintError`], for example if a grammar exceeds its limits.
    fn allowed(&mut self) -> Result<&TokenMask, ConstraintError>;

    /// Accepts the next token, which must be in [`Constraint::allowed`].
    ///
    /// # Errors
    /// [`ConstraintError`] for a token that is not allowed.
    fn accept(&mut self, token: u32) -> Result<(), ConstraintError>;

    /// Whether the text is complete and cannot continue.
    fn is_finished(&self) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_has_the_tokens_that_were_inserted() {
        let mut mask = TokenMask::none(40);
        assert!(mask.is_empty());
        for token in [0, 31, 32, 39, 40, 4000] {
            mask.insert(token);
        }
        let held: Vec<u32> = (0..5000).filter(|token| mask.contains(*token)).collect();
        assert_eq!((held, mask.len()), (vec![0, 31, 32, 39], 4));
    }

    #[test]
    fn tokens_are_added_and_removed() {
        let mut mask = TokenMask::none(40);
        mask.insert(7);
        let mut all = TokenMask::all(40);
        assert_eq!(all.len(), 40);
        all.remove(7);
        all.remove(4000);
        assert_eq!((all.len(), all.contains(7)), (39, false));
        all.extend(&mask);
        assert_eq!(all, TokenMask::all(40));
    }

    #[test]
    fn words_beyond_the_vocabulary_are_ignored() {
        let mask = TokenMask::from_words(&[u32::MAX; 3], 33);
        assert_eq!((mask.len(), mask.contains(32), mask.contains(33)), (33, true, false));
        assert_eq!(TokenMask::from_words(&[u32::MAX], 64).len(), 32);
    }
}
