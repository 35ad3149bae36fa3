//! The `plamo2` vocabulary (PLaMo 2 and 3): the segmentation with the greatest sum of scores, found
//! from the end of the text. Characters without a token become bytes.
//!
//! Source: llama.cpp (`llm_tokenizer_plamo2`). The ids equal llama.cpp's.

use super::merge::NONE;
use super::trie::Trie;
use super::{Error, TokenType, Vocab};

/// Score of a character without a token, in units of 1e-4.
const UNKNOWN: i64 = -10_000_000;
/// Tokens of this score or less are not used.
const INVALID: i64 = -20_000_000;
/// Maximum length of a token in bytes, which bounds the time per position.
const MAX_TOKEN_BYTES: usize = 1024;
/// Maximum bytes of all tokens, because positions in the trie have 32 bits.
const LIMIT_BYTES: usize = u32::MAX as usize - 1;
/// llama.cpp drops this character at the beginning of a text.
const BYTE_ORDER_MARK: char = '\u{feff}';

#[derive(Debug)]
pub(super) struct Plamo2 {
    tokens: Trie,
    /// Score of each token, in units of 1e-4.
    scores: Vec<i64>,
    /// The token of each byte.
    bytes: Vec<u32>,
}

/// The best segmentation of the text from a position on: cost, length in bytes and id of its first
/// token ([`NONE`] for bytes).
#[derive(Debug, Clone, Copy)]
struct Best {
    cost: i64,
    len: u32,
    id: u32,
}

impl Plamo2 {
    /// `vocab` has a score and a type for each token.
    ///
    /// # Errors
    /// `TokenText`, `LongToken`; `MissingByte` if a byte has no token.
    pub(super) fn new(vocab: &Vocab) -> Result<Plamo2, Error> {
        let bytes = vocab.tokens.iter().map(Vec::len).sum();
        if bytes > LIMIT_BYTES {
            return Err(Error::TokenText { bytes, limit: LIMIT_BYTES });
        }
        let mut of_bytes = vec![NONE; 256];
        let mut tokens = Trie::new();
        for (id, (text, kind)) in (0u32..).zip(vocab.tokens.iter().zip(&vocab.types)) {
            if text.len() > MAX_TOKEN_BYTES {
                return Err(Error::LongToken { id, bytes: text.len(), limit: MAX_TOKEN_BYTES });
            }
            match (kind, super::pieces::byte(text)) {
                (TokenType::Byte, Some(byte)) => of_bytes[usize::from(byte)] = id,
                (TokenType::Byte, None) => {}
                _ => tokens.insert(text, id),
            }
        }
        if let Some(byte) = (0..=u8::MAX).find(|&byte| of_bytes[usize::from(byte)] == NONE) {
            return Err(Error::NoByte { byte });
        }
        // A cast of a float to an integer saturates.
        let score = |score: &f32| (f64::from(*score) * 1e4).round() as i64;
        let scores = vocab.scores.iter().map(score).collect();
        Ok(Plamo2 { tokens, scores, bytes: of_bytes })
    }

    pub(super) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
        let none = Best { cost: i64::MAX, len: 0, id: NONE };
        let mut best = vec![none; text.len() + 1];
        best[text.len()].cost = 0;
        for (at, character) in text.char_indices().rev() {
            // Of two segmentations of equal cost, the one with the longer token wins; bytes lose.
            let len = character.len_utf8();
            let bytes = Best { cost: best[at + len].cost - UNKNOWN, len: len as u32, id: NONE };
            let mut chosen = bytes;
            for (len, id) in self.tokens.prefixes(&text.as_bytes()[at..]) {
                let score = self.scores[id as usize];
                let cost = best[at + len].cost.saturating_sub(score);
                if score > INVALID && cost <= chosen.cost {
                    chosen = Best { cost, len: len as u32, id };
                }
            }
            best[at] = chosen;
        }
        let mut at = 0;
        while at < text.len() {
            let Best { len, id, .. } = best[at];
            let range = at..at + len as usize;
            if id == NONE {
                let bytes = text.as_bytes()[range.clone()].iter();
                out.extend(bytes.map(|&byte| self.bytes[usize::from(byte)]));
            } else {
                out.push(id);
            }
            at = range.end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Detokenizer, Start, Tokenizer};
    use super::*;

    /// Four special tokens, all bytes, then some text with scores.
    fn vocab() -> Vocab {
        let special = ["<unk>", "<bos>", "<eos>", "<pad>"].map(str::to_owned);
        let bytes = (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>"));
        let words =
            [("a", -3.0), ("b", -3.0), ("ab", -5.0), ("abc", -7.0), ("c", -2.0), ("海", -4.0)];
        let texts = words.map(|(text, _)| text.to_owned());
        let tokens = special.into_iter().chain(bytes).chain(texts);
        let types = [TokenType::Control; 4].into_iter().chain([TokenType::Byte; 256]);
        Vocab {
            model: "plamo2".into(),
            tokens: tokens.map(String::into_bytes).collect(),
            types: types.chain([TokenType::Normal; 6]).collect(),
            scores: [0.0; 260].into_iter().chain(words.map(|(_, score)| score)).collect(),
            ..Vocab::default()
        }
    }

    fn encode(vocab: Vocab, text: &str) -> Vec<u32> {
        Tokenizer::new(vocab).unwrap().encode(text, true, false).unwrap()
    }

    #[test]
    fn the_best_segmentation_wins() {
        assert_eq!(encode(vocab(), "ab"), [262]);
        // Equal scores: the longer first token wins.
        assert_eq!(encode(vocab(), "abc"), [263]);
        assert_eq!(encode(vocab(), "ba海"), [261, 260, 265]);
        let mut cheaper = vocab();
        cheaper.scores[263] = -7.1;
        assert_eq!(encode(cheaper, "abc"), [262, 264]);
    }

    #[test]
    fn characters_without_a_token_become_bytes() {
        assert_eq!(encode(vocab(), "\u{feff}é"), [4 + 0xc3, 4 + 0xa9]);
        let tokenizer = Tokenizer::new(vocab()).unwrap();
        let text = "abc é\n海\u{1f30a} x";
        let ids = tokenizer.encode(text, true, true).unwrap();
        let mut detokenizer = Detokenizer::new(&tokenizer, Start::BeginningOfText, false);
        let back: String = ids.iter().map(|&id| detokenizer.push(id).unwrap().to_owned()).collect();
        assert_eq!(back + &detokenizer.finish(), text);
    }

    #[test]
    fn every_byte_needs_a_token() {
        let mut vocab = vocab();
        vocab.types[4 + 0x41] = TokenType::Unused;
        let error = Tokenizer::new(vocab).map(drop).unwrap_err().to_string();
        assert!(error.contains("0x41"), "{error}");
    }
}
