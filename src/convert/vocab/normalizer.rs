//! The normaliser of a unigram tokenizer in `tokenizer.json`, as far as GGUF can represent it.

use serde_json::Value;

use super::Vocab;
use crate::Error;
use crate::config::Json;

/// Deepest nesting of `Sequence` steps that is read.
const MAX_DEPTH: usize = 8;
/// Maximum number of notes. No known tokenizer has as many steps.
const MAX_NOTES: usize = 16;

/// Reads the normaliser: the table of characters to replace, and whether runs of spaces are
/// merged. Adds a note for each unsupported step.
pub(super) fn add(json: &Json, vocab: &mut Vocab) -> Result<(), Error> {
    match json.object("normalizer")? {
        Some(normalizer) => step(json, &Value::Object(normalizer.clone()), 0, vocab),
        None => Ok(()),
    }
}

fn step(json: &Json, value: &Value, depth: usize, vocab: &mut Vocab) -> Result<(), Error> {
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    let pattern = value.get("pattern").and_then(|pattern| {
        pattern.get("Regex").or_else(|| pattern.get("String")).and_then(Value::as_str)
    });
    match (text("type").unwrap_or("?"), pattern) {
        ("Sequence", _) if depth < MAX_DEPTH => {
            let steps = value.get("normalizers").and_then(Value::as_array);
            steps.into_iter().flatten().try_for_each(|inner| step(json, inner, depth + 1, vocab))
        }
        ("Precompiled", _) => {
            let map = text("precompiled_charsmap").unwrap_or_default();
            vocab.charsmap = base64(map).ok_or_else(|| Error::Tokenizer {
                file: json.file().to_owned(),
                what: "normalizer.precompiled_charsmap is not valid base64".to_owned(),
            })?;
            Ok(())
        }
        ("Replace", Some(" {2,}")) => {
            vocab.remove_spaces = Some(true);
            Ok(())
        }
        // These steps replace spaces by U+2581 or prepend it, which every reader of the file does
        // anyway.
        ("Prepend", _) | ("Replace", Some(" ")) => Ok(()),
        (other, _) => {
            let other: String = other.chars().take(40).collect();
            let note = format!(
                "skipped: the step `{other}` of the normalizer in tokenizer.json, for which GGUF has no key"
            );
            if vocab.notes.len() < MAX_NOTES && !vocab.notes.contains(&note) {
                vocab.notes.push(note);
            }
            Ok(())
        }
    }
}

/// The bytes of a text in base64, padded or not; `None` if the text is invalid.
pub(super) fn base64(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=').as_bytes();
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for four in text.chunks(4) {
        let mut bits = 0u32;
        for &character in four {
            let six = match character {
                b'A'..=b'Z' => character - b'A',
                b'a'..=b'z' => character - b'a' + 26,
                b'0'..=b'9' => character - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(six);
        }
        let n = match four.len() {
            4 => 3,
            3 => 2,
            2 => 1,
            _ => return None,
        };
        // Moves the characters' bits to the top of 24 bits.
        let bits = bits << (6 * (4 - four.len()));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..=n]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_matches_rfc_4648() {
        let cases =
            [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYmFy", "foobar")];
        for (text, bytes) in cases {
            assert_eq!(base64(text).as_deref(), Some(bytes.as_bytes()), "{text}");
        }
        assert_eq!(base64("+/8A").as_deref(), Some(&[0xfb, 0xff, 0x00][..]));
        assert_eq!(base64("Z"), None);
        assert_eq!(base64("Zm 9"), None);
    }
}
