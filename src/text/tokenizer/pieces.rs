//! The bytes of each token, decoded from its text in the file.

use super::{Error, TokenType, gpt2};

/// U+2581, which stands for a space inside tokens.
pub(super) const MARK: &str = "\u{2581}";

/// Encoding of the tokens' text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// Plain text, with [`MARK`] for a space.
    Marks,
    /// GPT-2's alphabet, with one character per byte.
    Alphabet,
}

/// The bytes of each token, in one buffer.
#[derive(Debug)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Pieces {
    /// `spelling` is `None` if `tokens` are the bytes.
    pub(super) fn new(
        tokens: &[Vec<u8>],
        kinds: &[TokenType],
        spelling: Option<Spelling>,
    ) -> Result<Pieces, Error> {
        let alphabet = gpt2::alphabet().into_iter().zip(0..=u8::MAX).collect();
        let mut bytes = Vec::new();
        let mut ends = Vec::with_capacity(tokens.len());
        for (id, (text, kind)) in (0u32..).zip(tokens.iter().zip(kinds)) {
            match kind {
                TokenType::Normal if spelling == Some(Spelling::Marks) => {
                    replace_marks(text, &mut bytes)
                }
                TokenType::Normal if spelling.is_none() => bytes.extend(text),
                // A token outside the alphabet is plain text.
                TokenType::Normal => match gpt2::decode_alphabet(text, &alphabet) {
                    Some(raw) => bytes.extend(raw),
                    None => bytes.extend(text),
                },
                TokenType::Control | TokenType::Unknown | TokenType::UserDefined => {
                    bytes.extend(text);
                }
                TokenType::Byte => bytes.push(byte(text).ok_or_else(|| Error::BadByte {
                    id,
                    text: String::from_utf8_lossy(text).into_owned(),
                })?),
                TokenType::Unused | TokenType::Undefined => {}
            }
            ends.push(bytes.len());
        }
        Ok(Pieces { bytes, ends })
    }

    /// The bytes of token `id`, which must exist.
    pub(super) fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[id]]
    }
}

/// Appends `text` with U+2581 replaced by spaces. `text` may be invalid UTF-8.
fn replace_marks(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix(MARK.as_bytes()) {
            out.push(b' ');
            rest = after;
        } else {
            out.push(rest[0]);
            rest = &rest[1..];
        }
    }
}

/// The byte in `<0xNN>`; `None` for any other text.
pub(super) fn byte(text: &[u8]) -> Option<u8> {
    let hex = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let hex =
        std::str::from_utf8(hex).ok().filter(|hex| hex.len() == 2 && !hex.starts_with('+'))?;
    u8::from_str_radix(hex, 16).ok()
}
