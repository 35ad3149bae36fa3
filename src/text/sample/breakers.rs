//! DRY's sequence breakers as tokens.

use std::collections::HashMap;
use std::ops::Range;

use crate::tokenizer::Tokenizer;

/// Limits of llama.cpp: bytes of a breaker's text, and tokens after its first one.
const MAX_BYTES: usize = 40;
const MAX_TAIL: usize = 20;

/// The sequences of tokens that contain a breaker: for each first token, the lists of tokens that
/// follow it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Breakers(HashMap<u32, Vec<Vec<u32>>>);

impl Breakers {
    /// Finds the tokens that contain one of `texts`, and those that end with the beginning of one.
    pub(super) fn new(texts: &[String], tokenizer: &Tokenizer) -> Breakers {
        let mut breakers = Breakers::default();
        for text in texts.iter().filter(|text| !text.is_empty()) {
            let end = (0..=MAX_BYTES).rev().find(|at| text.is_char_boundary(*at));
            let text = &text[..end.unwrap_or(0)];
            for id in (0u32..).take(tokenizer.n_vocab()) {
                let piece = tokenizer.piece(id, true).unwrap_or_default();
                let stripped = piece.strip_prefix(b" ").filter(|_| tokenizer.has_space_prefix());
                for rest in remainders(text, stripped.unwrap_or(piece)) {
                    breakers.add(id, tail(text, rest, tokenizer));
                }
            }
        }
        breakers
    }

    /// Adds the sequence of `first` and `tail`.
    pub(super) fn add(&mut self, first: u32, tail: Vec<u32>) {
        let tails = self.0.entry(first).or_default();
        if !tails.contains(&tail) {
            tails.push(tail);
        }
    }

    /// Whether this token alone is a breaker.
    pub(super) fn is_breaker(&self, token: u32) -> bool {
        self.0.get(&token).is_some_and(|tails| tails.iter().any(Vec::is_empty))
    }

    /// The number of tokens after the last breaker; all if there is none. `recent[0]` is the
    /// latest token.
    pub(super) fn n_since(&self, recent: &[u32]) -> usize {
        let found = recent.iter().enumerate().find_map(|(at, token)| {
            let follows = |tail: &&Vec<u32>| {
                tail.len() <= at && tail.iter().eq(recent[at - tail.len()..at].iter().rev())
            };
            let tails = self.0.get(token)?.iter().filter(follows);
            tails.map(|tail| at - tail.len()).min()
        });
        found.unwrap_or(recent.len())
    }
}

/// The ranges of the breaker `text` that complete it after `piece`; one empty range if `piece`
/// contains it.
fn remainders(text: &str, piece: &[u8]) -> Vec<Range<usize>> {
    let text = text.as_bytes();
    if piece.windows(text.len()).any(|window| window == text) {
        return std::iter::once(text.len()..text.len()).collect();
    }
    let longest = piece.len().min(text.len() - 1);
    let begins = (1..=longest).filter(|n| piece.ends_with(&text[..*n]));
    begins.map(|n| n..text.len()).collect()
}

/// The tokens of the bytes `rest` of a breaker, at most [`MAX_TAIL`]. If `rest` starts inside a
/// character, the bytes of that character become tokens of single bytes.
fn tail(text: &str, rest: Range<usize>, tokenizer: &Tokenizer) -> Vec<u32> {
    let whole = rest.clone().find(|at| text.is_char_boundary(*at)).unwrap_or(rest.end);
    let mut tokens = Vec::new();
    for byte in &text.as_bytes()[rest.start..whole] {
        let is_byte = |id: &u32| tokenizer.piece(*id, true).is_ok_and(|piece| piece == [*byte]);
        tokens.extend((0u32..).take(tokenizer.n_vocab()).find(is_byte));
    }
    if whole < text.len() {
        tokens.extend(tokenizer.encode(&text[whole..], false, false).unwrap_or_default());
    }
    tokens.truncate(MAX_TAIL);
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::Vocab;

    fn tokenizer(tokens: &[&str]) -> Tokenizer {
        let tokens = ["<unk>", "<s>", "</s>"].iter().chain(tokens);
        let tokens: Vec<Vec<u8>> = tokens.map(|t| t.as_bytes().to_vec()).collect();
        let scores = vec![0.0; tokens.len()];
        let vocab = Vocab { model: "llama".into(), tokens, scores, ..Vocab::default() };
        Tokenizer::new(Vocab { add_space_prefix: Some(false), ..vocab }).unwrap()
    }

    #[test]
    fn breakers_are_found_across_tokens() {
        let tokenizer = tokenizer(&["a", "b", "ab", "xa", "abx", "bb"]);
        let breakers = Breakers::new(&["ab".into(), String::new()], &tokenizer);
        let mut expected = Breakers::default();
        for (first, tail) in [(3, vec![4]), (5, vec![]), (6, vec![4]), (7, vec![])] {
            expected.add(first, tail);
        }
        assert_eq!(breakers, expected);
        assert!(breakers.is_breaker(5) && !breakers.is_breaker(3));
        assert_eq!(breakers.n_since(&[8, 4, 3, 8]), 1, "ab|bb");
        assert_eq!(breakers.n_since(&[8, 8, 3, 8]), 4);
        assert_eq!(breakers.n_since(&[5, 8]), 0);
        assert_eq!(breakers.n_since(&[3, 8, 8]), 3, "an incomplete breaker");
    }
}
