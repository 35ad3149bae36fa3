//! The `bert` vocabulary: WordPiece. Words are split at white space, punctuation and Chinese
//! characters, and each is written with the longest tokens that match, from its start. Tokens that
//! begin a word begin with [`MARK`] in the file.
//!
//! Source: BERT's basic tokenizer and llama.cpp, whose ids these equal. As in llama.cpp, a character
//! that loses its accents becomes the first character of its decomposition, also in Hangul.

use regex::Regex;
use unicode_normalization::UnicodeNormalization;

use super::pieces::MARK;
use super::trie::Trie;
use super::{Error, Vocab};

/// Maximum length of a token in bytes, which bounds the time per position.
const MAX_TOKEN_BYTES: usize = 1024;

/// Maximum bytes of all tokens, because positions have 32 bits.
const LIMIT_BYTES: usize = u32::MAX as usize - 1;

/// Characters that are words of their own; of these, `$+<=>^`|~` are not punctuation in Unicode.
const PUNCTUATION: &str = r"^[\p{P}$+<=>^`|~]";
const ACCENT: &str = r"^\p{M}";
const CONTROL: &str = r"^[\p{Cc}\p{Cf}\p{Co}\u{FFFD}]";

/// Blocks of Chinese characters, as in BERT.
const CHINESE: [(char, char); 8] = [
    ('\u{4E00}', '\u{9FFF}'),
    ('\u{3400}', '\u{4DBF}'),
    ('\u{20000}', '\u{2A6DF}'),
    ('\u{2A700}', '\u{2B73F}'),
    ('\u{2B740}', '\u{2B81F}'),
    ('\u{2B920}', '\u{2CEAF}'),
    ('\u{F900}', '\u{FAFF}'),
    ('\u{2F800}', '\u{2FA1F}'),
];

#[derive(Debug)]
pub(super) struct WordPiece {
    tokens: Trie,
    unknown: u32,
    lowercase: bool,
    strip_accents: bool,
    punctuation: Regex,
    accent: Regex,
    control: Regex,
}

impl WordPiece {
    /// `unknown` replaces words that the tokens cannot write.
    ///
    /// # Errors
    /// `TokenText`, `LongToken`.
    pub(super) fn new(vocab: &Vocab, unknown: u32) -> Result<WordPiece, Error> {
        let bytes = vocab.tokens.iter().map(Vec::len).sum();
        if bytes > LIMIT_BYTES {
            return Err(Error::TokenText { bytes, limit: LIMIT_BYTES });
        }
        let mut tokens = Trie::new();
        for (id, text) in (0u32..).zip(&vocab.tokens) {
            if text.len() > MAX_TOKEN_BYTES {
                return Err(Error::LongToken { id, bytes: text.len(), limit: MAX_TOKEN_BYTES });
            }
            tokens.insert(text, id);
        }
        let lowercase = vocab.lowercase.unwrap_or(true);
        let strip_accents = vocab.strip_accents.unwrap_or(lowercase);
        let pattern = |text: &str| Regex::new(text).expect("a test compiles every pattern");
        Ok(WordPiece {
            tokens,
            unknown,
            lowercase,
            strip_accents,
            punctuation: pattern(PUNCTUATION),
            accent: pattern(ACCENT),
            control: pattern(CONTROL),
        })
    }

    /// Appends the ids of `text`.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let mut word = MARK.to_owned();
        let mut end_word = |word: &mut String| {
            if word.len() > MARK.len() {
                self.encode_word(word.as_bytes(), out);
                word.truncate(MARK.len());
            }
        };
        for c in text.chars() {
            let c = if self.strip_accents && !c.is_ascii() {
                std::iter::once(c).nfd().next().unwrap_or(c)
            } else {
                c
            };
            let mut utf8 = [0; 4];
            let encoded: &str = c.encode_utf8(&mut utf8);
            if c.is_whitespace() {
                end_word(&mut word);
            } else if self.control.is_match(encoded)
                || self.strip_accents && !c.is_ascii() && self.accent.is_match(encoded)
            {
            } else {
                let is_alone = !c.is_ascii_alphanumeric()
                    && (self.punctuation.is_match(encoded) || is_chinese(c));
                if is_alone {
                    end_word(&mut word);
                }
                let lower = c.to_lowercase().next().filter(|_| self.lowercase);
                word.push(lower.unwrap_or(c));
                if is_alone {
                    end_word(&mut word);
                }
            }
        }
        end_word(&mut word);
    }

    /// Appends the ids of a word that begins with [`MARK`].
    fn encode_word(&self, word: &[u8], out: &mut Vec<u32>) {
        let begin = out.len();
        let mut at = 0;
        while at < word.len() {
            match self.tokens.prefixes(&word[at..]).last() {
                Some((len, id)) if len > 0 => {
                    out.push(id);
                    at += len;
                }
                _ => {
                    out.truncate(begin);
                    return out.push(self.unknown);
                }
            }
        }
    }
}

fn is_chinese(c: char) -> bool {
    CHINESE.iter().any(|&(first, last)| (first..=last).contains(&c))
}
