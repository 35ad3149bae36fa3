//! Converts ids to text, one at a time, in whole characters.

use std::borrow::Cow;

use super::{Error, Tokenizer};

/// Where the text begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// At the beginning of an encoded text. The space that `encode` prepends (`llama` and `t5`
    /// vocabularies) is removed, even after a leading BOS token.
    BeginningOfText,
    /// After a prompt: a leading space belongs to the text.
    Continuation,
}

/// Converts ids to text as they arrive. A character whose bytes are spread over several tokens is
/// held back until it is complete; bytes that cannot become a character are replaced by U+FFFD.
///
/// llama.cpp's `detokenize` also removes spaces before punctuation for some vocabularies. This
/// would change the model's output, so neither this type nor llama.cpp's streaming does it.
#[derive(Debug)]
pub struct Detokenizer<'a> {
    tokenizer: &'a Tokenizer,
    special: bool,
    written: Cow<'a, [u32]>,
    strip: bool,
    pending: Vec<u8>,
    text: String,
}

impl<'a> Detokenizer<'a> {
    /// With `special`, also outputs the text of control tokens such as `<s>`.
    pub fn new(tokenizer: &'a Tokenizer, start: Start, special: bool) -> Detokenizer<'a> {
        let strip = start == Start::BeginningOfText && tokenizer.has_space_prefix();
        let (pending, text) = (Vec::new(), String::new());
        Detokenizer { tokenizer, special, written: Cow::Borrowed(&[]), strip, pending, text }
    }

    /// Also outputs the text of the control tokens in `written`.
    #[must_use]
    pub fn with_written_tokens(self, written: impl Into<Cow<'a, [u32]>>) -> Detokenizer<'a> {
        Detokenizer { written: written.into(), ..self }
    }

    /// Adds a token and returns the text that is now complete, often one word, possibly nothing.
    ///
    /// # Errors
    /// `NoSuchId` if the id is not in the vocabulary.
    pub fn push(&mut self, id: u32) -> Result<&str, Error> {
        let mut piece = self.tokenizer.piece(id, self.special || self.written.contains(&id))?;
        if self.strip && Some(id) != self.tokenizer.bos() {
            piece = piece.strip_prefix(b" ").unwrap_or(piece);
            self.strip = false;
        }
        self.pending.extend_from_slice(piece);
        self.text.clear();
        let mut decoded = 0;
        for chunk in self.pending.utf8_chunks() {
            self.text.push_str(chunk.valid());
            decoded += chunk.valid().len();
            let invalid = chunk.invalid();
            let is_last = decoded + invalid.len() == self.pending.len();
            let is_begun = std::str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none());
            if invalid.is_empty() || is_last && is_begun {
                break;
            }
            self.text.push(char::REPLACEMENT_CHARACTER);
            decoded += invalid.len();
        }
        self.pending.drain(..decoded);
        Ok(&self.text)
    }

    /// Ends the text. Returns U+FFFD if the text ends within a character, else nothing.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }
}
