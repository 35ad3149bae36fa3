//! The `gpt2` vocabulary: BPE. The pre-tokenizer splits text into words. In each word, pairs of
//! symbols are merged by rank. A symbol is a byte, spelled as a printable character of GPT-2's
//! alphabet. For Gemma 4 and similar, a symbol is a character, or byte tokens `<0xNN>` if the
//! character has no token.
//!
//! This module does not use the `tokenizers` crate, because that crate's regex engine gives up on
//! long runs of one character and then drops the rest of the text. Source: the GPT-2 release
//! (`encoder.py`) for the alphabet, llama.cpp for the rest.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;

use super::merge::{Merger, NONE};
use super::pieces::{MARK, Spelling};
use super::pre::{Pre, Splitter, WholeWord};
use super::{Error, Ids};

#[derive(Debug)]
pub(super) struct Gpt2 {
    splitter: Splitter,
    whole: WholeWord,
    spelling: Spelling,
    /// Token of each byte; bytes without one are dropped from the text, as in llama.cpp.
    bytes: Box<[u32; 256]>,
    /// `(left, right)` to rank (0 first) and merged token.
    merges: HashMap<(u32, u32), (u32, u32)>,
    alphabet: Box<[char; 256]>,
}

impl Gpt2 {
    /// Builds the rank table from lines `left right`, spelled as the tokens are.
    ///
    /// # Errors
    /// `BadMerge` for a line that is not two tokens whose concatenation is a token.
    pub(super) fn new(pre: &Pre, merges: &[Vec<u8>], ids: &Ids) -> Result<Gpt2, Error> {
        let alphabet = Box::new(alphabet());
        let mut bytes = Box::new([NONE; 256]);
        for (b, slot) in bytes.iter_mut().enumerate() {
            let name = match pre.spelling {
                Spelling::Marks => format!("<0x{b:02X}>"),
                Spelling::Alphabet => alphabet[b].into(),
            };
            *slot = ids.get(name.as_bytes()).copied().unwrap_or(NONE);
        }
        let mut table = HashMap::with_capacity(merges.len());
        let mut joined = Vec::new();
        for (index, line) in merges.iter().enumerate() {
            let bad = || Error::BadMerge { index, merge: String::from_utf8_lossy(line).into() };
            // The left half is never empty, so a leading space belongs to it.
            let cut = line.iter().skip(1).position(|&b| b == b' ').ok_or_else(bad)? + 1;
            let (left, right) = (&line[..cut], &line[cut + 1..]);
            joined.clear();
            joined.extend_from_slice(left);
            joined.extend_from_slice(right);
            let id = |text: &[u8]| ids.get(text).copied().ok_or_else(bad);
            let rank = u32::try_from(index).map_err(|_| bad())?;
            let merged = id(&joined)?;
            // A repeated line keeps its first rank.
            table.entry((id(left)?, id(right)?)).or_insert((rank, merged));
        }
        let Pre { whole, spelling, .. } = *pre;
        Ok(Gpt2 { splitter: Splitter::new(pre), whole, spelling, bytes, merges: table, alphabet })
    }

    /// Appends the ids of `text`, which must be shorter than 1 GiB.
    pub(super) fn encode(
        &self,
        text: &str,
        ids: &Ids,
        merger: &mut Merger<Reverse<u32>>,
        out: &mut Vec<u32>,
    ) {
        let text = match self.spelling {
            Spelling::Marks => Cow::Owned(text.replace(' ', MARK)),
            Spelling::Alphabet => Cow::Borrowed(text),
        };
        let mut spelled = String::new();
        for word in self.splitter.split(&text) {
            let word = &text[word];
            if let Some(id) = self.token_of_word(word, ids, &mut spelled) {
                out.push(id);
                continue;
            }
            merger.clear();
            match self.spelling {
                Spelling::Marks => word.char_indices().for_each(|(at, c)| {
                    let id = ids.get(&word.as_bytes()[at..at + c.len_utf8()]);
                    merger.push(c.len_utf8() as u32, id.copied().unwrap_or(NONE));
                }),
                Spelling::Alphabet => {
                    word.bytes().for_each(|b| merger.push(1, self.bytes[b as usize]));
                }
            }
            let rest = merger.run(|l, r| {
                let &(rank, merged) = self.merges.get(&(l.id, r.id))?;
                Some((Reverse(rank), merged))
            });
            for symbol in rest {
                if symbol.id != NONE {
                    out.push(symbol.id);
                    continue;
                }
                let raw = &word.as_bytes()[symbol.start as usize..symbol.end() as usize];
                let bytes = raw.iter().map(|&b| self.bytes[b as usize]);
                out.extend(bytes.filter(|&id| id != NONE));
            }
        }
    }

    /// The token that equals a whole word, for vocabularies that do not merge such words; `None` if
    /// there is no such token or the word must be merged.
    fn token_of_word(&self, word: &str, ids: &Ids, spelled: &mut String) -> Option<u32> {
        match self.whole {
            WholeWord::None => return None,
            WholeWord::Newlines if word.bytes().any(|b| b != b'\n') => return None,
            WholeWord::Newlines | WholeWord::All => {}
        }
        let word = match self.spelling {
            Spelling::Marks => word,
            Spelling::Alphabet => {
                spelled.clear();
                spelled.extend(word.bytes().map(|b| self.alphabet[b as usize]));
                spelled
            }
        };
        ids.get(word.as_bytes()).copied()
    }
}

/// GPT-2's printable character for each byte: the byte itself if it is printable Latin-1, otherwise
/// the next unused character from U+0100 on.
pub(super) fn alphabet() -> [char; 256] {
    let mut next = 0x100;
    std::array::from_fn(|b| {
        let b = b as u32;
        let code = if matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) {
            b
        } else {
            next += 1;
            next - 1
        };
        char::from_u32(code).expect("code points below U+0144 are characters")
    })
}

/// Decodes `text` from the alphabet; `None` if it has a character outside of it.
pub(super) fn decode_alphabet(text: &[u8], alphabet: &HashMap<char, u8>) -> Option<Vec<u8>> {
    std::str::from_utf8(text).ok()?.chars().map(|c| alphabet.get(&c).copied()).collect()
}
