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
    strip: bool,
    pending: Vec<u8>,
    text: String,
}

impl<'a> Detokenizer<'a> {
    /// `special`: also write the text of control tokens such as `<s>`.
    pub fn new(tokenizer: &'a Tokenizer, start: Start, special: bool) -> Detokenizer<'a> {
        let strip = start == Start::OfText && tokenizer.has_space_prefix();
        Detokenizer {
            tokenizer,
            special,
            strip,
            pending: Vec::new(),
            text: String::new(),
        }
    }

    /// Adds a token and returns the text that became whole with it, often one word, maybe nothing.
    ///
    /// # Errors
    /// `NoSuchId` if the vocabulary has no such token.
    pub fn push(&mut self, id: u32) -> Result<&str, Error> {
        let mut piece = self.tokenizer.piece(id, self.special)?;
        if self.strip && Some(id) != self.tokenizer.bos() {
            piece = piece.strip_prefix(b" ").unwrap_or(piece);
            self.strip = false;
        }
        self.pending.extend_from_slice(piece);
        self.text.clear();
        let mut rest = &self.pending[..];
        loop {
            match std::str::from_utf8(rest) {
                Ok(whole) => {
                    self.text.push_str(whole);
                    rest = &[];
                    break;
                }
                Err(e) => {
                    let (whole, bad) = rest.split_at(e.valid_up_to());
                    self.text
                        .push_str(std::str::from_utf8(whole).expect("checked just now"));
                    rest = bad;
                    let Some(n) = e.error_len() else { break };
                    self.text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[n..];
                }
            }
        }
        let done = self.pending.len() - rest.len();
        self.pending.drain(..done);
        Ok(&self.text)
    }

    /// Ends the text: U+FFFD if it stopped within a character, else nothing.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }
}
