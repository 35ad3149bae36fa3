//! The `t5` vocabulary: SentencePiece's unigram model. Viterbi's algorithm finds the segmentation
//! of the normalised text with the greatest sum of scores.
//!
//! Source: SentencePiece (`unigram_model.cc`) and llama.cpp. The ids equal llama.cpp's.

use super::charsmap::Charsmap;
use super::pieces::MARK;
use super::trie::Trie;
use super::{Error, TokenType, Vocab};

/// Maximum length of a token in bytes, which bounds the time per position.
const MAX_TOKEN_BYTES: usize = 1024;
/// The score of an unknown character is lower than the lowest score of a normal token by this.
const UNKNOWN_PENALTY: f32 = 10.0;
/// Maximum factor by which normalisation may lengthen a text. Unicode's longest decomposition
/// turns 3 bytes into 33.
const MAX_GROWTH: usize = 64;
/// Maximum bytes of a text or of all tokens, because positions have 32 bits.
const LIMIT_BYTES: usize = u32::MAX as usize - 1;

#[derive(Debug)]
pub(super) struct Unigram {
    tokens: Trie,
    scores: Vec<f32>,
    unknown: u32,
    unknown_score: f32,
    /// User-defined tokens, which are not normalised.
    user_defined: Trie,
    charsmap: Charsmap,
    /// Whether to prepend a space to the text.
    pub(super) space_prefix: bool,
    /// Whether to write one space before each word and no others.
    merge_spaces: bool,
}

/// The best segmentation of the text up to a position: score, last token, start of that token.
#[derive(Debug, Clone, Copy)]
struct Best {
    score: f64,
    start: u32,
    id: u32,
}

impl Unigram {
    /// `vocab` has a score and a type for each token; `unknown` replaces text without a token.
    ///
    /// # Errors
    /// `TokenText`, `LongToken`, `BadCharsmap`.
    pub(super) fn new(vocab: &Vocab, unknown: u32) -> Result<Unigram, Error> {
        let (mut tokens, mut user_defined) = (Trie::new(), Trie::new());
        let mut scores = vocab.scores.clone();
        let mut lowest = f32::MAX;
        let bytes = vocab.tokens.iter().map(Vec::len).sum();
        if bytes > LIMIT_BYTES {
            return Err(Error::TokenText { bytes, limit: LIMIT_BYTES });
        }
        for (id, (text, kind)) in (0u32..).zip(vocab.tokens.iter().zip(&vocab.types)) {
            if text.len() > MAX_TOKEN_BYTES {
                return Err(Error::LongToken { id, bytes: text.len(), limit: MAX_TOKEN_BYTES });
            }
            match kind {
                TokenType::Normal => lowest = lowest.min(scores[id as usize]),
                TokenType::UserDefined => {
                    scores[id as usize] = 0.0;
                    user_defined.insert(text, id);
                }
                TokenType::Unused => {}
                TokenType::Unknown
                | TokenType::Control
                | TokenType::Byte
                | TokenType::Undefined => continue,
            }
            tokens.insert(text, id);
        }
        Ok(Unigram {
            tokens,
            scores,
            unknown,
            unknown_score: lowest - UNKNOWN_PENALTY,
            user_defined,
            charsmap: Charsmap::new(&vocab.charsmap)?,
            space_prefix: vocab.add_space_prefix.unwrap_or(false),
            merge_spaces: vocab.remove_extra_whitespaces.unwrap_or(false),
        })
    }

    /// Appends the ids of `text`.
    ///
    /// # Errors
    /// `BadCharsmap`; `TooLong` for the normalised text.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<(), Error> {
        let text = self.normalize(text)?;
        let unreached = Best { score: f64::MIN, start: 0, id: self.unknown };
        let mut best = vec![unreached; text.len() + 1];
        best[0].score = 0.0;
        let mut at = 0;
        while at < text.len() {
            let char_len = char_len(text[at]).min(text.len() - at);
            let so_far = best[at].score;
            let mut known = false;
            let mut consider = |len: usize, score: f32, id| {
                let score = so_far + f64::from(score);
                if score > best[at + len].score {
                    best[at + len] = Best { score, start: at as u32, id };
                }
            };
            for (len, id) in self.tokens.prefixes(&text[at..]) {
                known |= len == char_len;
                consider(len, self.scores[id as usize], id);
            }
            if !known {
                consider(char_len, self.unknown_score, self.unknown);
            }
            at += char_len;
        }
        // Backtrack from the end. Consecutive unknown characters become one token.
        let begin = out.len();
        while at > 0 {
            let Best { start, id, .. } = best[at];
            if id != self.unknown || out[begin..].last() != Some(&id) {
                out.push(id);
            }
            at = start as usize;
        }
        out[begin..].reverse();
        Ok(())
    }

    /// The text with sequences replaced, and [`MARK`] for spaces. With an unusual table, the result
    /// may be invalid UTF-8.
    fn normalize(&self, text: &str) -> Result<Vec<u8>, Error> {
        let most =
            text.len().saturating_mul(MAX_GROWTH).saturating_add(MAX_TOKEN_BYTES).min(LIMIT_BYTES);
        let mut out = Vec::with_capacity(text.len() + text.len() / 2);
        let (mut in_word, mut prefixed) = (false, !self.space_prefix);
        let mut at = 0;
        while at < text.len() {
            let (taken, written) = self.next(text, at)?;
            for &byte in written {
                if byte == b' ' {
                    in_word = false;
                    if !self.merge_spaces {
                        out.extend(MARK.bytes());
                    }
                    continue;
                }
                if !in_word && (self.merge_spaces || !prefixed) {
                    out.extend(MARK.bytes());
                    prefixed = true;
                }
                in_word = true;
                out.push(byte);
            }
            if out.len() > most {
                return Err(Error::TooLong { bytes: out.len(), limit: most });
            }
            at += taken;
        }
        Ok(out)
    }

    /// The next piece at `at`: its length in bytes and its replacement.
    fn next<'a>(&'a self, text: &'a str, at: usize) -> Result<(usize, &'a [u8]), Error> {
        let rest = &text.as_bytes()[at..];
        // Like llama.cpp, keep every prefix of a user-defined token, but only whole characters.
        let mut kept = self.user_defined.reach(rest);
        while kept > 0 && !text.is_char_boundary(at + kept) {
            kept -= 1;
        }
        if kept > 0 {
            return Ok((kept, &rest[..kept]));
        }
        if let Some((len, replacement)) = self.charsmap.find(rest)? {
            return Ok((len, replacement));
        }
        Ok(match text.get(at..).and_then(|rest| rest.chars().next()) {
            Some(c) => (c.len_utf8(), &rest[..c.len_utf8()]),
            // Reached only if the table matched a part of a character.
            None => (1, "\u{FFFD}".as_bytes()),
        })
    }
}

/// Length in bytes of the character that begins with `byte`.
fn char_len(byte: u8) -> usize {
    match byte {
        0xC0..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xFF => 4,
        0..=0xBF => 1,
    }
}
