//! The text that a model reads during a test. Active neurons depend on the text, so it must be
//! natural language.

use text::tokenizer::{Error, Tokenizer};

/// The default text.
pub const STORY: &str = include_str!("story.txt");

/// A text as tokens, repeated to any length.
#[derive(Clone, Debug)]
pub struct Text {
    bos: Option<u32>,
    body: Vec<u32>,
}

impl Text {
    /// `text` in the vocabulary of a model, after the BOS token if the vocabulary requires one.
    ///
    /// # Errors
    /// A text that is too long.
    pub fn new(text: &str, tokenizer: &Tokenizer) -> Result<Text, Error> {
        let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        Ok(Text { bos, body: tokenizer.encode(text, false, false)? })
    }

    /// `text` for a model without a vocabulary in its file: each byte is a token, modulo
    /// `n_vocab`.
    #[must_use]
    pub fn bytes(text: &str, n_vocab: usize) -> Text {
        let id = |byte: u8| (usize::from(byte) % n_vocab.max(1)) as u32;
        Text { bos: None, body: text.bytes().map(id).collect() }
    }

    /// The first `n` tokens. `None` if the text has no tokens to repeat, or an id that is not below
    /// `n_vocab`.
    #[must_use]
    pub fn first(&self, n: usize, n_vocab: usize) -> Option<Vec<u32>> {
        let tokens: Vec<u32> =
            self.bos.into_iter().chain(self.body.iter().copied().cycle()).take(n).collect();
        let known = tokens.iter().all(|&id| (id as usize) < n_vocab);
        (tokens.len() == n && known).then_some(tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_texts_are_repeated() {
        let text = Text { bos: Some(9), body: vec![1, 2] };
        assert_eq!(text.first(6, 10), Some(vec![9, 1, 2, 1, 2, 1]));
        assert_eq!(text.first(6, 9), None);
        assert_eq!(Text::bytes("", 10).first(1, 10), None);
        assert_eq!(Text::bytes("", 10).first(0, 10), Some(vec![]));
        assert_eq!(Text::bytes("az", 97).first(3, 97), Some(vec![0, 25, 0]));
    }
}
