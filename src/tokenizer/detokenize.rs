//! Ids back to text, one at a time, whole characters only.

use super::{Error, Tokenizer};

/// Where the text begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// At the beginning of an encoded text: the one space that `encode` put in front of it (only
    /// `llama` vocabularies do) is taken away again, also after a leading begin token.
    OfText,
    /// After a prompt: a leading space belongs to the text.
    Continuation,
}

/// Turns ids into text as they come. A character whose bytes are spread over several tokens is
/// held back until it is whole; bytes that can never become one come out as U+FFFD.
///
/// llama.cpp's `detokenize` also removes spaces before punctuation for some vocabularies; that
/// changes what the model wrote and is not done here, nor in llama.cpp's own streaming.
#[derive(Debug)]
pub struct Detokenizer<'a> {
    tokenizer: &'a Tokenizer,
    special: bool,
    written: &'a [u32],
    strip: bool,
    pending: Vec<u8>,
    text: String,
}

impl<'a> Detokenizer<'a> {
    /// `special`: also write the text of control tokens such as `<s>`.
    pub fn new(tokenizer: &'a Tokenizer, start: Start, special: bool) -> Detokenizer<'a> {
        let strip = start == Start::OfText && tokenizer.has_space_prefix();
        let (pending, text) = (Vec::new(), String::new());
        Detokenizer { tokenizer, special, written: &[], strip, pending, text }
    }

    /// Also writes the text of these control tokens.
    #[must_use]
    pub fn writing(self, written: &'a [u32]) -> Detokenizer<'a> {
        Detokenizer { written, ..self }
    }

    /// Adds a token and returns the text that became whole with it, often one word, maybe nothing.
    ///
    /// # Errors
    /// `NoSuchId` if the vocabulary has no such token.
    pub fn push(&mut self, id: u32) -> Result<&str, Error> {
        let mut piece = self.tokenizer.piece(id, self.special || self.written.contains(&id))?;
        if self.strip && Some(id) != self.tokenizer.bos() {
            piece = piece.strip_prefix(b" ").unwrap_or(piece);
            self.strip = false;
        }
        self.pending.extend_from_slice(piece);
        self.text.clear();
        let mut done = 0;
        for chunk in self.pending.utf8_chunks() {
            self.text.push_str(chunk.valid());
            done += chunk.valid().len();
            let bad = chunk.invalid();
            let last = done + bad.len() == self.pending.len();
            let begun = std::str::from_utf8(bad).is_err_and(|e| e.error_len().is_none());
            if bad.is_empty() || last && begun {
                break;
            }
            self.text.push(char::REPLACEMENT_CHARACTER);
            done += bad.len();
        }
        self.pending.drain(..done);
        Ok(&self.text)
    }

    /// Ends the text: U+FFFD if it stopped within a character, else nothing.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }
}
