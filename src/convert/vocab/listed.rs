//! Reads vocabularies in lists of their own form: RWKV's `rwkv_vocab_v20230424.txt` and PLaMo's
//! `tokenizer.jsonl`.
//!
//! Source: the tokenizers of both models, as llama.cpp's converter reads them.

use std::path::Path;

use serde_json::Value;

use super::{MAX_TOKENS, Vocab, kind};
use crate::Error;
use crate::read::text_limited;

/// Largest accepted file, in bytes: ten times the largest known one.
const MAX_LIST: u64 = 64 << 20;
const RWKV: &str = "rwkv_vocab_v20230424.txt";
const PLAMO: &str = "tokenizer.jsonl";

/// The vocabulary in `folder`; `None` if it has none of these files.
pub(super) fn read_if_present(folder: &Path) -> Result<Option<Vocab>, Error> {
    if folder.join(RWKV).is_file() {
        return rwkv(&folder.join(RWKV)).map(Some);
    }
    if folder.join(PLAMO).is_file() {
        return plamo(&folder.join(PLAMO)).map(Some);
    }
    Ok(None)
}

/// Each line has an id, a Python literal of text or bytes, and its length in bytes.
fn rwkv(path: &Path) -> Result<Vocab, Error> {
    let wrong = |what: String| Error::Tokenizer { file: path.display().to_string(), what };
    let text = text_limited(path, MAX_LIST)?;
    let mut vocab = Vocab { model: "rwkv", ..Vocab::default() };
    vocab.grow(1);
    vocab.set(0, "<s>".to_owned(), kind::CONTROL, 0.0);
    for (i, line) in text.split('\n').enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let entry = line.split_once(' ').and_then(|(id, rest)| {
            let (token, length) = rest.trim_end().rsplit_once(' ')?;
            let token = literal(token)?;
            let is_whole = length.parse() == Ok(token.len());
            let id = id.parse::<usize>().ok().filter(|&id| id > 0 && id < MAX_TOKENS)?;
            is_whole.then_some((id, token))
        });
        let Some((id, token)) = entry else {
            let what = "an id, a Python literal, and its length in bytes";
            return Err(wrong(format!("line {} is not {what}", i + 1)));
        };
        if id >= vocab.tokens.len() {
            vocab.grow(id + 1);
        }
        vocab.set(id, escaped(&token), kind::NORMAL, 0.0);
    }
    Ok(vocab)
}

/// The bytes of a Python literal of text or bytes; `None` if it is neither.
fn literal(text: &str) -> Option<Vec<u8>> {
    let (is_bytes, text) = match text.strip_prefix('b') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let quote = text.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    let inner = text.strip_prefix(quote)?.strip_suffix(quote)?;
    let mut bytes = Vec::new();
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        let code = match character {
            '\\' => match characters.next()? {
                'n' => u32::from(b'\n'),
                'r' => u32::from(b'\r'),
                't' => u32::from(b'\t'),
                'x' => hexadecimal(&mut characters, 2)?,
                'u' if !is_bytes => hexadecimal(&mut characters, 4)?,
                'U' if !is_bytes => hexadecimal(&mut characters, 8)?,
                same @ ('\\' | '\'' | '"') => u32::from(same),
                _ => return None,
            },
            other => u32::from(other),
        };
        if is_bytes {
            bytes.push(u8::try_from(code).ok()?);
        } else {
            let mut buffer = [0; 4];
            bytes.extend(char::from_u32(code)?.encode_utf8(&mut buffer).as_bytes());
        }
    }
    Some(bytes)
}

fn hexadecimal(characters: &mut std::str::Chars<'_>, digits: usize) -> Option<u32> {
    let hex: String = characters.take(digits).collect();
    u32::from_str_radix(&hex, 16).ok().filter(|_| hex.len() == digits)
}

/// Bytes as Python prints them, without quotes: the form of such tokens in a file.
fn escaped(bytes: &[u8]) -> String {
    // Python quotes by `"` only if that needs no escape and `'` does.
    let is_double = bytes.contains(&b'\'') && !bytes.contains(&b'"');
    let mut text = String::new();
    for &byte in bytes {
        match byte {
            b'\\' => text.push_str(r"\\"),
            b'\n' => text.push_str(r"\n"),
            b'\r' => text.push_str(r"\r"),
            b'\t' => text.push_str(r"\t"),
            b'\'' if !is_double => text.push_str(r"\'"),
            b' '..=b'~' => text.push(char::from(byte)),
            other => text.push_str(&format!(r"\x{other:02x}")),
        }
    }
    text
}

/// Each line is a list that begins with a token, its score and its type.
fn plamo(path: &Path) -> Result<Vocab, Error> {
    let text = text_limited(path, MAX_LIST)?;
    let mut vocab = Vocab {
        model: "plamo2",
        pre: "default".to_owned(),
        space_prefix: Some(false),
        ..Vocab::default()
    };
    for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let entry = serde_json::from_str::<Value>(line).ok().and_then(|entry| {
            let token = entry.get(0)?.as_str()?.to_owned();
            let kind = entry.get(2).and_then(Value::as_str).unwrap_or("NORMAL").to_owned();
            Some((token, entry.get(1)?.as_f64()? as f32, kind))
        });
        let id = vocab.tokens.len();
        let Some((token, score, named)) = entry.filter(|_| id < MAX_TOKENS) else {
            let file = path.display().to_string();
            let what = format!("line {} is not a list of token, score and type", i + 1);
            return Err(Error::Tokenizer { file, what });
        };
        let is_special = token.starts_with("<|plamo:") && token.ends_with("|>");
        let kind = match named.as_str() {
            "UNKNOWN" => kind::UNKNOWN,
            "CONTROL" => kind::CONTROL,
            "BYTE" => kind::BYTE,
            _ if is_special => kind::CONTROL,
            _ => kind::NORMAL,
        };
        vocab.grow(id + 1);
        vocab.set(id, token, kind, score);
    }
    Ok(vocab)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_read_and_printed_as_in_python() {
        for (text, bytes, printed) in [
            (r"'a b'", &b"a b"[..], "a b"),
            (r"'\x00'", &[0], r"\x00"),
            (r"b'\xff\xc3'", &[0xff, 0xc3], r"\xff\xc3"),
            (r"'\x85'", &[0xc2, 0x85], r"\xc2\x85"),
            (r"'\u4e00'", &[0xe4, 0xb8, 0x80], r"\xe4\xb8\x80"),
            (r#""don't""#, b"don't", "don't"),
            (r#"'\'"'"#, b"'\"", r#"\'""#),
            (r"'\n\\'", b"\n\\", r"\n\\"),
        ] {
            assert_eq!(literal(text).as_deref(), Some(bytes), "{text}");
            assert_eq!(escaped(bytes), printed, "{text}");
        }
        for text in ["a", "'a", "'\\q'", r"b'\u4e00'", "'\\x0'", "b"] {
            assert_eq!(literal(text), None, "{text}");
        }
    }
}
