//! The `gpt2` vocabulary: byte-level BPE. Text is split into words by the pre-tokenizer, each byte
//! of a word is a printable character of GPT-2's alphabet, and pairs merge by rank.
//!
//! Own code and not the `tokenizers` crate: its regex engine gives up on long runs of one character
//! and then drops the rest of the text, and the merging is the same 100 lines as for `llama`.
//! Source: the GPT-2 release (`encoder.py`) for the alphabet, llama.cpp for the rest.

use std::collections::HashMap;

use super::merge::{Merger, NONE};
use super::pre::Splitter;
use super::{Error, Ids};

/// Merging by rank.
#[derive(Debug)]
pub(super) struct Gpt2 {
    splitter: Splitter,
    /// A word that is a token as it stands is not merged up from its bytes.
    whole_words: bool,
    /// Token of each byte; bytes that have none are dropped from the text, as llama.cpp does.
    bytes: Box<[u32; 256]>,
    /// `(left, right)` to rank (0 first) and token made.
    merges: HashMap<(u32, u32), (u32, u32)>,
    alphabet: Box<[char; 256]>,
}

impl Gpt2 {
    /// Builds the rank table from lines `left right` in the alphabet's characters.
    ///
    /// # Errors
    /// `BadMerge` for a line that is not two tokens whose union is a token.
    pub(super) fn new(
        splitter: Splitter,
        whole_words: bool,
        merges: &[Vec<u8>],
        ids: &Ids,
    ) -> Result<Gpt2, Error> {
        let alphabet = Box::new(alphabet());
        let mut bytes = Box::new([NONE; 256]);
        for (slot, c) in bytes.iter_mut().zip(*alphabet) {
            let mut utf8 = [0; 4];
            if let Some(&id) = ids.get(c.encode_utf8(&mut utf8).as_bytes()) {
                *slot = id;
            }
        }
        let mut table = HashMap::with_capacity(merges.len());
        let mut joined = Vec::new();
        for (index, line) in merges.iter().enumerate() {
            let bad = || Error::BadMerge { index, merge: String::from_utf8_lossy(line).into() };
            // The left half is never empty, so a space in front belongs to it.
            let cut = line.iter().skip(1).position(|&b| b == b' ').ok_or_else(bad)? + 1;
            let (left, right) = (&line[..cut], &line[cut + 1..]);
            joined.clear();
            joined.extend_from_slice(left);
            joined.extend_from_slice(right);
            let id = |text: &[u8]| ids.get(text).copied().ok_or_else(bad);
            let rank = u32::try_from(index).map_err(|_| bad())?;
            let made = id(&joined)?;
            // The first of two equal lines counts.
            table.entry((id(left)?, id(right)?)).or_insert((rank, made));
        }
        Ok(Gpt2 { splitter, whole_words, bytes, merges: table, alphabet })
    }

    /// Appends the ids of `text`, which must be shorter than 1 GiB.
    pub(super) fn encode(
        &self,
        text: &str,
        ids: &Ids,
        merger: &mut Merger<std::cmp::Reverse<u32>>,
        out: &mut Vec<u32>,
    ) {
        let mut spelled = String::new();
        for word in self.splitter.split(text) {
            let word = &text.as_bytes()[word];
            if self.whole_words {
                spelled.clear();
                spelled.extend(word.iter().map(|&b| self.alphabet[b as usize]));
                if let Some(&id) = ids.get(spelled.as_bytes()) {
                    out.push(id);
                    continue;
                }
            }
            merger.clear();
            for &b in word {
                merger.push(1, self.bytes[b as usize]);
            }
            let rest = merger.run(|l, r| {
                let &(rank, made) = self.merges.get(&(l.id, r.id))?;
                Some((std::cmp::Reverse(rank), made))
            });
            out.extend(rest.map(|s| s.id).filter(|&id| id != NONE));
        }
    }
}

/// GPT-2's printable character for each byte: itself where it is printable Latin-1, else the next
/// character from U+0100 on.
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
        char::from_u32(code).expect("below U+0144")
    })
}

/// The bytes that `text` stands for, or `None` if it has a character outside the alphabet.
pub(super) fn unspell(text: &[u8], alphabet: &HashMap<char, u8>) -> Option<Vec<u8>> {
    std::str::from_utf8(text).ok()?.chars().map(|c| alphabet.get(&c).copied()).collect()
}
