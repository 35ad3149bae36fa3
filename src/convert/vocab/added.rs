//! Tokens that were added to a vocabulary after training, and special tokens.

use std::path::Path;

use serde_json::Value;

use super::{ADDED_SCORE, MAX_TOKENS, Vocab, kind};
use crate::Error;
use crate::config::Json;

/// Gemma 4's tokens that are part of the text of thoughts and tool calls, as in llama.cpp.
const VISIBLE: [&str; 7] = [
    "<|channel>",
    "<channel|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    "<|\"|>",
];

/// Adds the tokens in `added_tokens.json`, `tokenizer_config.json` and `tokenizer.json`; later
/// files override earlier ones.
pub(super) fn add(
    folder: &Path,
    json: Option<&Json>,
    settings: Option<&Json>,
    vocab: &mut Vocab,
) -> Result<(), Error> {
    if let Some(list) = Json::open_if_present(&folder.join("added_tokens.json"))? {
        for (text, id) in list.entries() {
            put(vocab, list.file(), id.as_u64(), Some(text), false)?;
        }
    }
    if let Some(settings) = settings {
        let list = settings.inner("added_tokens_decoder")?;
        for (id, token) in list.entries() {
            put_object(vocab, list.file(), id.parse().ok(), token)?;
        }
    }
    if let Some(json) = json {
        for token in json.list("added_tokens")?.into_iter().flatten() {
            put_object(vocab, json.file(), token.get("id").and_then(Value::as_u64), token)?;
        }
    }
    Ok(())
}

fn put_object(vocab: &mut Vocab, file: &str, id: Option<u64>, token: &Value) -> Result<(), Error> {
    let text = token.get("content").and_then(Value::as_str);
    let special = token.get("special").and_then(Value::as_bool).unwrap_or(false);
    put(vocab, file, id, text, special)
}

fn put(
    vocab: &mut Vocab,
    file: &str,
    id: Option<u64>,
    text: Option<&str>,
    special: bool,
) -> Result<(), Error> {
    let id = id.and_then(|id| usize::try_from(id).ok()).filter(|&id| id < MAX_TOKENS);
    let (Some(id), Some(text)) = (id, text) else {
        let what = "an added token has no text or an invalid id".to_owned();
        return Err(Error::Tokenizer { file: file.to_owned(), what });
    };
    if id >= vocab.tokens.len() {
        vocab.grow(id + 1);
    }
    let own_types = [kind::UNKNOWN, kind::CONTROL, kind::BYTE];
    // SentencePiece stores the correct types of its own tokens.
    if own_types.contains(&vocab.types[id]) && vocab.tokens[id] == text {
        return Ok(());
    }
    let is_visible = vocab.model == "gemma4" && VISIBLE.contains(&text);
    let looks_special = |open, close| text.starts_with(open) && text.ends_with(close);
    if is_visible {
        vocab.set(id, text.to_owned(), kind::USER_DEFINED, ADDED_SCORE);
    } else if special || looks_special("<|", "|>") || looks_special("<\u{ff5c}", "\u{ff5c}>") {
        let is_unk = text == "<unk>" && vocab.model != "gpt2";
        vocab.set(
            id,
            text.to_owned(),
            if is_unk { kind::UNKNOWN } else { kind::CONTROL },
            ADDED_SCORE,
        );
    } else {
        // Added tokens are matched in the original text, before spaces become U+2581.
        vocab.set(id, text.replace('\u{2581}', " "), kind::USER_DEFINED, ADDED_SCORE);
    }
    Ok(())
}
