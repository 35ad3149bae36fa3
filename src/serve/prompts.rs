//! Prompts of the completion endpoints: text, tokens, a mix of both, or a list of prompts.

use serde_json::Value;

use crate::error::{ApiError, Result};
use crate::fields::integer;
use crate::served::Served;

/// Maximum number of prompts of a request.
const MOST_PROMPTS: usize = 1024;
const FIELD: &str = "prompt";

/// The prompts of a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Prompts {
    pub(crate) ids: Vec<Vec<u32>>,
    /// Whether the request has a list of prompts; llama-server then answers with a list.
    pub(crate) is_list: bool,
}

/// Reads `prompt`: `"a"`, `["a", "b"]`, `[1, 2]`, `[[1, 2], [3]]`, `[1, "a"]` (one prompt of tokens
/// and texts), `{"prompt_string": "a"}` and `{"content": [{"type": "text", "text": "a"}]}`.
///
/// # Errors
/// 400 for another shape, a token outside of the vocabulary, images or audio.
pub(crate) fn read(value: Option<Value>, served: &Served) -> Result<Prompts> {
    let value = value.ok_or_else(|| ApiError::field(FIELD, "is missing"))?;
    let one = |ids| Prompts { ids: vec![ids], is_list: false };
    let Value::Array(items) = &value else { return Ok(one(single(&value, served)?)) };
    if items.is_empty() {
        return Ok(one(served.encode("")?));
    }
    // A list with numbers is one prompt. A list of texts alone is several prompts.
    if items.iter().any(Value::is_number) {
        return Ok(one(mixed(items, served)?));
    }
    if items.len() > MOST_PROMPTS {
        let problem = format!("has {} prompts, expected at most {MOST_PROMPTS}", items.len());
        return Err(ApiError::field(FIELD, problem));
    }
    let each = items.iter().map(|item| single(item, served));
    Ok(Prompts { ids: each.collect::<Result<_>>()?, is_list: true })
}

fn single(value: &Value, served: &Served) -> Result<Vec<u32>> {
    match value {
        Value::String(text) => served.encode(text),
        Value::Array(items) => mixed(items, served),
        Value::Object(map) => {
            if map.get("multimodal_data").is_some_and(|data| !data.is_null()) {
                let problem = "has `multimodal_data`: image and audio input is not supported";
                return Err(ApiError::field(FIELD, problem));
            }
            if let Some(text) = map.get("prompt_string").and_then(Value::as_str) {
                return served.encode(text);
            }
            let parts = map.get("content").and_then(Value::as_array).ok_or_else(shape)?;
            served.encode(&parts.iter().map(part).collect::<Result<String>>()?)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => Err(shape()),
    }
}

/// The text of one content part.
fn part(value: &Value) -> Result<&str> {
    if value["type"] != "text" {
        let problem = format!("has a part of type {}, expected \"text\"", value["type"]);
        return Err(ApiError::field(FIELD, problem));
    }
    value["text"].as_str().ok_or_else(shape)
}

/// Tokenizes a prompt of tokens and texts. Only a text at the start gets a BOS token.
fn mixed(items: &[Value], served: &Served) -> Result<Vec<u32>> {
    let mut ids = Vec::new();
    for (i, item) in items.iter().enumerate() {
        if let Some(text) = item.as_str() {
            let more = served.tokenizer.encode(text, i == 0, true);
            ids.extend(more.map_err(|e| ApiError::field(FIELD, format!("cannot be used: {e}")))?);
            continue;
        }
        let id = integer(item).ok_or_else(shape)?;
        let known = u32::try_from(id).ok().filter(|id| (*id as usize) < served.tokenizer.n_vocab());
        let outside =
            || ApiError::field(FIELD, format!("has the token {id}, which does not exist"));
        ids.push(known.ok_or_else(outside)?);
    }
    Ok(ids)
}

fn shape() -> ApiError {
    ApiError::field(FIELD, "must be a string, a list of tokens, or a list of these")
}
