//! Reads tiktoken's lists of tokens by rank (`qwen.tiktoken`, `tiktoken.model`), which have no merges.
//!
//! Source: Qwen's and Kimi's tokenizers; llama.cpp's converter derives merges the same way.

use std::collections::HashMap;
use std::path::Path;

use super::normalizer::base64;
use super::{MAX_TOKENS, Vocab, kind};
use crate::Error;
use crate::config::Json;
use crate::read::text_limited;

/// Largest accepted file, in bytes: ten times the largest known one.
const MAX_LIST: u64 = 64 << 20;
/// Names of the files, and the pre-tokenizer of the models that use them.
const FILES: [(&str, &str); 2] = [("qwen.tiktoken", "qwen2"), ("tiktoken.model", "kimi-k2")];
/// Special tokens of Qwen 1, in order after the others; 205 numbered ones follow.
const QWEN: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// The vocabulary in `folder`; `None` if it has no such file. `pre` is the name of the pre-tokenizer, if
/// the user gave one.
pub(super) fn read_if_present(
    folder: &Path,
    settings: Option<&Json>,
    pre: Option<&str>,
) -> Result<Option<Vocab>, Error> {
    let Some((name, usual)) = FILES.iter().find(|(name, _)| folder.join(name).is_file()) else {
        return Ok(None);
    };
    let path = folder.join(name);
    let wrong = |what: String| Error::Tokenizer { file: path.display().to_string(), what };
    let is_qwen = *usual == "qwen2";
    let class = settings.map(|settings| settings.text(&["tokenizer_class"])).transpose()?.flatten();
    if pre.is_none() && !is_qwen && class.as_deref() != Some("TikTokenTokenizer") {
        // The pattern that splits words is in the tokenizer's code.
        let what = "the pre-tokenizer of this file is unknown: name it with --pre".to_owned();
        return Err(wrong(what));
    }
    let text = text_limited(&path, MAX_LIST)?;
    let mut ranks: HashMap<Vec<u8>, u32> = HashMap::new();
    for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let entry = line.split_once(' ').and_then(|(token, rank)| {
            let rank = rank.trim().parse().ok().filter(|&rank| (rank as usize) < MAX_TOKENS)?;
            Some((base64(token)?, rank))
        });
        let Some((token, rank)) = entry else {
            return Err(wrong(format!("line {} is not a token in base64 and its rank", i + 1)));
        };
        if token.is_empty() || ranks.insert(token, rank).is_some() {
            return Err(wrong(format!("line {} has an empty token or one from before", i + 1)));
        }
    }
    let pre = pre.unwrap_or(usual).to_owned();
    let mut vocab = Vocab { model: "gpt2", pre, ..Vocab::default() };
    let mut ordered: Vec<(&Vec<u8>, u32)> =
        ranks.iter().map(|(token, &rank)| (token, rank)).collect();
    ordered.sort_unstable_by_key(|&(_, rank)| rank);
    vocab.grow(ordered.last().map_or(0, |&(_, rank)| rank as usize + 1));
    for (token, rank) in ordered {
        vocab.set(rank as usize, characters(token), kind::NORMAL, 0.0);
        if token.len() > 1
            && let Some((left, right)) = merge(&ranks, token, rank)
        {
            vocab.merges.push(format!("{} {}", characters(left), characters(right)));
        }
    }
    if is_qwen {
        let numbered = (0..205).map(|i| format!("<|extra_{i}|>"));
        for text in QWEN.into_iter().map(str::to_owned).chain(numbered) {
            let id = vocab.tokens.len();
            vocab.grow(id + 1);
            vocab.set(id, text, kind::CONTROL, 0.0);
        }
    }
    Ok(Some(vocab))
}

/// The last merge that makes `token`: its two parts after all merges of lower rank; `None` if it has another
/// number of parts.
fn merge<'a>(
    ranks: &HashMap<Vec<u8>, u32>,
    token: &'a [u8],
    rank: u32,
) -> Option<(&'a [u8], &'a [u8])> {
    // The first byte of each part.
    let mut starts: Vec<usize> = (0..token.len()).collect();
    let end = |starts: &[usize], i: usize| starts.get(i).copied().unwrap_or(token.len());
    loop {
        let pair = |i: &usize| {
            let both = &token[starts[*i]..end(&starts, i + 2)];
            ranks.get(both).copied().filter(|&of| of < rank)
        };
        let lowest = (0..starts.len() - 1).filter_map(|i| Some((pair(&i)?, i))).min();
        match lowest {
            Some((_, i)) => drop(starts.remove(i + 1)),
            None => break,
        }
    }
    let &[_, second] = starts.as_slice() else { return None };
    Some(token.split_at(second))
}

/// Bytes in GPT-2's alphabet of printable characters.
fn characters(token: &[u8]) -> String {
    let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let character = |byte: u8| {
        if printable(&byte) {
            return char::from(byte);
        }
        // Other bytes are the characters from U+0100 on, in order.
        let before = (0..byte).filter(|other| !printable(other)).count();
        char::from_u32(0x100 + before as u32).unwrap_or('\u{fffd}')
    };
    token.iter().map(|&byte| character(byte)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_printable_characters() {
        assert_eq!(characters(b" a\n"), "\u{120}a\u{10a}");
        assert_eq!(characters(&[0, 0x7f, 0xad, 0xff]), "\u{100}\u{121}\u{143}\u{ff}");
    }

    #[test]
    fn merges_follow_from_the_ranks() {
        let tokens: [&[u8]; 6] = [b"a", b"b", b"c", b"ab", b"bc", b"abc"];
        let ranks: HashMap<Vec<u8>, u32> = tokens.iter().map(|t| t.to_vec()).zip(0..).collect();
        assert_eq!(merge(&ranks, b"ab", 3), Some((&b"a"[..], &b"b"[..])));
        // `ab` has the lower rank, so it is merged first.
        assert_eq!(merge(&ranks, b"abc", 5), Some((&b"ab"[..], &b"c"[..])));
        assert_eq!(merge(&ranks, b"abca", 6), Some((&b"abc"[..], &b"a"[..])));
        assert_eq!(merge(&ranks, b"aa", 0), Some((&b"a"[..], &b"a"[..])));
        assert_eq!(merge(&ranks, b"aaa", 0), None);
    }
}
