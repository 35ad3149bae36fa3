//! Reads `tokenizer.model`, SentencePiece's protocol buffer: only the few fields that a vocabulary
//! needs.
//!
//! Source: `sentencepiece_model.proto` and the wire format of protocol buffers.

use std::path::Path;

use super::{MAX_TOKENS, Vocab};
use crate::Error;
use crate::read::read_limited;

/// Largest accepted file, in bytes. The largest known ones have a few megabytes.
const MAX_BYTES: u64 = 64 << 20;

/// The value of a field, by its wire type.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Float(f32),
}

pub(super) fn read(path: &Path) -> Result<Vocab, Error> {
    let file = path.display().to_string();
    let bytes = read_limited(path, MAX_BYTES)?;
    parse(&bytes).map_err(|what| Error::Tokenizer { file, what: what.to_owned() })
}

fn parse(bytes: &[u8]) -> Result<Vocab, &'static str> {
    let mut vocab = Vocab { model: "llama", pre: "default".to_owned(), ..Vocab::default() };
    // The model type comes after the pieces; the default is unigram.
    let mut is_unigram = true;
    fields(bytes, |number, field| {
        match (number, field) {
            (1, Field::Bytes(piece)) => {
                let (text, score, kind) = piece_of(piece)?;
                if vocab.tokens.len() >= MAX_TOKENS {
                    return Err("the vocabulary has more than 1048576 tokens");
                }
                vocab.tokens.push(text);
                vocab.scores.push(score);
                vocab.types.push(kind);
            }
            (2, Field::Bytes(trainer)) => fields(trainer, |number, field| {
                match (number, field) {
                    (3, Field::Number(kind @ 1..=2)) => is_unigram = kind == 1,
                    (3, Field::Number(_)) => {
                        return Err(
                            "the file has SentencePiece's model type `word` or `char`, expected bpe or unigram",
                        );
                    }
                    (_, _) => {}
                }
                Ok(())
            })?,
            (3, Field::Bytes(normalizer)) => fields(normalizer, |number, field| {
                match (number, field) {
                    (2, Field::Bytes(map)) => vocab.charsmap = map.to_vec(),
                    (3, Field::Number(add)) => vocab.space_prefix = Some(add != 0),
                    (4, Field::Number(remove)) => vocab.remove_spaces = Some(remove != 0),
                    (_, _) => {}
                }
                Ok(())
            })?,
            (_, _) => {}
        }
        Ok(())
    })?;
    if vocab.tokens.is_empty() {
        return Err("the vocabulary has no tokens");
    }
    if is_unigram {
        vocab.model = "t5";
    } else {
        // GGUF readers apply this table only to unigram vocabularies.
        if !vocab.charsmap.is_empty() {
            let n = vocab.charsmap.len();
            vocab.notes.push(format!("skipped: the normalisation table of tokenizer.model (precompiled_charsmap, {n} bytes): GGUF readers use it only with unigram tokenizers"));
        }
        vocab.charsmap.clear();
        vocab.remove_spaces = None;
    }
    // SentencePiece prepends a space by default.
    vocab.space_prefix.get_or_insert(true);
    Ok(vocab)
}

fn piece_of(bytes: &[u8]) -> Result<(String, f32, i32), &'static str> {
    let (mut text, mut score, mut kind) = (String::new(), 0.0, super::kind::NORMAL);
    fields(bytes, |number, field| {
        match (number, field) {
            (1, Field::Bytes(bytes)) => {
                text = String::from_utf8(bytes.to_vec()).map_err(|_| "a piece is not UTF-8")?;
            }
            (2, Field::Float(value)) => score = value,
            // SentencePiece's type numbers are the same as GGUF's.
            (3, Field::Number(value @ 1..=6)) => kind = value as i32,
            (_, _) => {}
        }
        Ok(())
    })?;
    Ok((text, score, kind))
}

/// Calls `on_field` with every field of a message.
fn fields<'a>(
    mut bytes: &'a [u8],
    mut on_field: impl FnMut(u64, Field<'a>) -> Result<(), &'static str>,
) -> Result<(), &'static str> {
    const TRUNCATED: &str = "this is not a SentencePiece model: it ends inside a field";
    while !bytes.is_empty() {
        let tag = varint(&mut bytes).ok_or(TRUNCATED)?;
        let field = match tag & 7 {
            0 => Field::Number(varint(&mut bytes).ok_or(TRUNCATED)?),
            1 => {
                bytes.split_off(..8).ok_or(TRUNCATED)?;
                continue;
            }
            2 => {
                let len =
                    usize::try_from(varint(&mut bytes).ok_or(TRUNCATED)?).map_err(|_| TRUNCATED)?;
                Field::Bytes(bytes.split_off(..len).ok_or(TRUNCATED)?)
            }
            5 => {
                let value = bytes.split_off(..4).and_then(|value| value.first_chunk::<4>());
                Field::Float(f32::from_le_bytes(*value.ok_or(TRUNCATED)?))
            }
            _ => {
                return Err("this is not a SentencePiece model: it has a field of an unknown type");
            }
        };
        on_field(tag >> 3, field)?;
    }
    Ok(())
}

/// Decodes a varint: seven bits per byte, lowest bits first.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.split_off_first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }

    #[test]
    fn a_small_model_is_read() {
        // One piece `a`, score -1, type 1; trainer of type 2; a normaliser without a leading
        // space.
        let bytes = [10, 10, 10, 1, b'a', 21, 0, 0, 128, 191, 24, 1, 18, 2, 24, 2, 26, 2, 24, 0];
        let vocab = parse(&bytes).unwrap();
        assert_eq!((vocab.model, vocab.tokens.as_slice()), ("llama", ["a".to_owned()].as_slice()));
        assert_eq!((vocab.scores[0], vocab.types[0], vocab.space_prefix), (-1.0, 1, Some(false)));
    }
}
