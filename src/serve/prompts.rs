//! Prompts of the completion endpoints: text, tokens, a mix of both, or a list of prompts.

use serde_json::Value;

use crate::error::{ApiError, Result};
use crate::fields::integer;
use crate::served::ServedModel;

const MAX_PROMPTS: usize = 1024;
const FIELD: &str = "prompt";

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
pub(crate) fn read(value: Option<Value>, served: &ServedModel) -> Result<Prompts> {
    let value = value.ok_or_else(|| ApiError::field(FIELD, "is missing"))?;
    let one_prompt = |ids| Prompts { ids: vec![ids], is_list: false };
    let Value::Array(items) = &value else { return Ok(one_prompt(prompt_ids(&value, served)?)) };
    if items.is_empty() {
        return Ok(one_prompt(served.encode("")?));
    }
    // A list with numbers is one prompt. A list of texts alone is several prompts.
    if items.iter().any(Value::is_number) {
        return Ok(one_prompt(mixed(items, served)?));
    }
    if items.len() > MAX_PROMPTS {
        let problem = format!("has {} prompts, expected at most {MAX_PROMPTS}", items.len());
        return Err(ApiError::field(FIELD, problem));
    }
    let each = items.iter().map(|item| prompt_ids(item, served));
    Ok(Prompts { ids: each.collect::<Result<_>>()?, is_list: true })
}

fn prompt_ids(value: &Value, served: &ServedModel) -> Result<Vec<u32>> {
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
            let parts = map.get("content").and_then(Value::as_array).ok_or_else(wrong_shape)?;
            served.encode(&parts.iter().map(part).collect::<Result<String>>()?)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => Err(wrong_shape()),
    }
}

fn part(value: &Value) -> Result<&str> {
    if value["type"] != "text" {
        let problem = format!("has a part of type {}, expected \"text\"", value["type"]);
        return Err(ApiError::field(FIELD, problem));
    }
    value["text"].as_str().ok_or_else(wrong_shape)
}

/// Tokenizes a prompt of tokens and texts. Only a text at the start gets a BOS token.
fn mixed(items: &[Value], served: &ServedModel) -> Result<Vec<u32>> {
    let mut ids = Vec::new();
    for (i, item) in items.iter().enumerate() {
        if let Some(text) = item.as_str() {
            let text_ids = served.tokenizer.encode(text, i == 0, true);
            ids.extend(
                text_ids
                    .map_err(|e| ApiError::field(FIELD, format!("cannot be tokenized: {e}")))?,
            );
            continue;
        }
        let id = integer(item).ok_or_else(wrong_shape)?;
        let known = u32::try_from(id).ok().filter(|id| (*id as usize) < served.tokenizer.n_vocab());
        let outside =
            || ApiError::field(FIELD, format!("has the token {id} outside the vocabulary"));
        ids.push(known.ok_or_else(outside)?);
    }
    Ok(ids)
}

fn wrong_shape() -> ApiError {
    ApiError::field(FIELD, "must be a string, a list of tokens, or a list of these")
}
