//! The `llama` vocabulary: SentencePiece's BPE as implemented by llama.cpp. Pairs are merged by the
//! score of the token that they form. Characters without a token become byte tokens `<0xNN>`.
//!
//! This module does not use the `tokenizers` crate, because that crate needs merges, but the file
//! has only scores. Source: `llama-vocab.cpp`.

use super::Ids;
use super::merge::{Merger, NONE};
use super::pieces::MARK;

#[derive(Debug)]
pub(super) struct Llama {
    /// The score of each token, as an integer with the same order.
    ranks: Vec<i32>,
    /// Token of each byte, for characters without a token.
    bytes: Box<[u32; 256]>,
    /// Whether to prepend a space to the text, and to text that follows a special token.
    pub(super) space_prefix: bool,
}

impl Llama {
    /// `scores` has one number (not NaN) per token; `unk` replaces bytes without a token.
    pub(super) fn new(scores: &[f32], ids: &Ids, unk: u32, space_prefix: bool) -> Llama {
        let mut bytes = Box::new([unk; 256]);
        for (b, slot) in bytes.iter_mut().enumerate() {
            let raw = u8::try_from(b).map(|b| ids.get(&[b][..]));
            let name = format!("<0x{b:02X}>");
            let found = ids.get(name.as_bytes()).or(raw.expect("`b` is at most 255"));
            *slot = found.copied().unwrap_or(unk);
        }
        Llama { ranks: scores.iter().map(|&s| order(s)).collect(), bytes, space_prefix }
    }

    /// Appends the ids of `text`, which must be shorter than 1 GiB.
    pub(super) fn encode(
        &self,
        text: &str,
        after_special: bool,
        ids: &Ids,
        merger: &mut Merger<i32>,
        out: &mut Vec<u32>,
    ) {
        let mut escaped = text.replace(' ', MARK);
        if self.space_prefix && after_special {
            escaped.insert_str(0, MARK);
        }
        let bytes = escaped.as_bytes();
        merger.clear();
        for (start, c) in escaped.char_indices() {
            let id = ids.get(&bytes[start..start + c.len_utf8()]);
            merger.push(c.len_utf8() as u32, id.copied().unwrap_or(NONE));
        }
        let rest = merger.run(|l, r| {
            let id = *ids.get(&bytes[l.start as usize..r.end() as usize])?;
            Some((self.ranks[id as usize], id))
        });
        for symbol in rest {
            if symbol.id != NONE {
                out.push(symbol.id);
                continue;
            }
            for &byte in &bytes[symbol.start as usize..symbol.end() as usize] {
                out.push(self.bytes[byte as usize]);
            }
        }
    }
}

/// An integer with the same order as `score`, which is not NaN; both zeros are equal.
fn order(score: f32) -> i32 {
    let bits = (score + 0.0).to_bits().cast_signed();
    if bits < 0 { bits ^ i32::MAX } else { bits }
}

#[cfg(test)]
mod tests {
    use super::order;

    #[test]
    fn the_order_of_scores_is_kept() {
        let scores = [f32::MIN, -2.0, -1.0, -f32::MIN_POSITIVE, 0.0, 1e-30, 0.5, 1.0, f32::MAX];
        assert!(scores.windows(2).all(|w| order(w[0]) < order(w[1])));
        assert_eq!(order(0.0), order(-0.0));
    }
}
