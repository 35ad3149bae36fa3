//! The `rwkv` vocabulary (RWKV World): at each position, the longest token that the text begins
//! with. Tokens are byte strings, spelled as in Python.
//!
//! Source: llama.cpp (`llm_tokenizer_rwkv`). The ids equal llama.cpp's.

use super::trie::Trie;
use super::{Error, vocab};

/// Maximum bytes of all tokens, because positions in the trie have 32 bits.
const LIMIT_BYTES: usize = u32::MAX as usize - 1;

#[derive(Debug)]
pub(super) struct World {
    tokens: Trie,
    /// Replaces a byte without a token. `None` if every byte has one.
    unknown: Option<u32>,
}

impl World {
    /// # Errors
    /// `TokenText`; `Missing` if a byte has no token and `unknown` is `None`.
    pub(super) fn new(tokens: &[Vec<u8>], unknown: Option<u32>) -> Result<World, Error> {
        let bytes = tokens.iter().map(Vec::len).sum();
        if bytes > LIMIT_BYTES {
            return Err(Error::TokenText { bytes, limit: LIMIT_BYTES });
        }
        let mut trie = Trie::new();
        for (id, text) in (0u32..).zip(tokens) {
            let bytes = unescape(text);
            if !bytes.is_empty() {
                trie.insert(&bytes, id);
            }
        }
        let has_token = |byte: u8| trie.prefixes(&[byte]).next().is_some();
        let unknown = if (0..=u8::MAX).all(has_token) {
            None
        } else {
            Some(unknown.ok_or(Error::Missing { key: vocab::UNKNOWN })?)
        };
        Ok(World { tokens: trie, unknown })
    }

    pub(super) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let (len, id) = match self.tokens.prefixes(rest).last() {
                Some((len, id)) => (len, Some(id)),
                None => (1, self.unknown),
            };
            out.extend(id);
            rest = &rest[len..];
        }
    }
}

/// The bytes of a token, without the escapes of Python's byte strings.
pub(super) fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let Some((&escaped, after)) = after.split_first().filter(|_| byte == b'\\') else {
            // A backslash at the end is dropped, as in llama.cpp.
            out.extend(Some(byte).filter(|&byte| byte != b'\\'));
            continue;
        };
        rest = after;
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (escaped, code) {
            (b't', _) => out.push(b'\t'),
            (b'n', _) => out.push(b'\n'),
            (b'r', _) => out.push(b'\r'),
            (b'x', Some(code)) => {
                out.push(code);
                rest = &after[2..];
            }
            (other, _) => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::{Detokenizer, Start, Tokenizer, Vocab};
    use super::*;

    /// All bytes as RWKV's vocabulary spells them, then some longer tokens.
    fn tokens() -> Vec<Vec<u8>> {
        let byte = |byte: u8| match byte {
            b'\t' => "\\t".to_owned(),
            b'\n' => "\\n".to_owned(),
            b'\r' => "\\r".to_owned(),
            b'\\' => "\\\\".to_owned(),
            32..=126 => char::from(byte).to_string(),
            _ => format!("\\x{byte:02x}"),
        };
        let longer = ["ab", "abcd", "\\xc3\\xa9", " a", "\\n\\n", "it\\'s"];
        (0..=u8::MAX).map(byte).chain(longer.map(str::to_owned)).map(String::into_bytes).collect()
    }

    #[test]
    fn the_longest_token_wins() {
        let world = World::new(&tokens(), None).unwrap();
        let encode = |text: &str| {
            let mut ids = Vec::new();
            world.encode(text, &mut ids);
            ids
        };
        assert_eq!(encode("abc"), [256, 99]);
        assert_eq!(encode("abcdab"), [257, 256]);
        assert_eq!(encode("é a\n\n\n\\"), [258, 259, 260, 10, 92]);
        assert_eq!(encode("it's è"), [261, 32, 0xc3, 0xa8]);
    }

    #[test]
    fn text_survives_a_round_trip() {
        let vocab = Vocab { model: "rwkv".into(), tokens: tokens(), ..Vocab::default() };
        let tokenizer = Tokenizer::new(vocab).unwrap();
        let text = "abcd\té \\x41 \u{1f30a}\r\n\nit's";
        let ids = tokenizer.encode(text, true, true).unwrap();
        let mut detokenizer = Detokenizer::new(&tokenizer, Start::BeginningOfText, false);
        let back: String = ids.iter().map(|&id| detokenizer.push(id).unwrap().to_owned()).collect();
        assert_eq!(back + &detokenizer.finish(), text);
    }

    #[test]
    fn bytes_without_a_token_need_an_unknown_token() {
        let some = &tokens()[..100];
        assert!(World::new(some, None).is_err());
        let world = World::new(some, Some(7)).unwrap();
        let mut ids = Vec::new();
        world.encode("cz", &mut ids);
        assert_eq!(ids, [99, 7]);
    }

    #[test]
    fn odd_escapes_are_text() {
        assert_eq!(unescape(b"a\\"), b"a");
        assert_eq!(unescape(b"\\x4"), b"x4");
        assert_eq!(unescape(b"\\xzz\\q"), b"xzzq");
    }
}
