//! `/tokenize`, `/detokenize`, `/apply-template`.

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};
use text::tokenizer::{Detokenizer, Start};

use crate::error::{ApiError, Result};
use crate::fields::integer;
use crate::messages::ChatRequest;
use crate::state::App;
use crate::{json, limits};

pub(crate) async fn tokenize(State(app): State<App>, request: Request) -> Result<Response> {
    let mut fields = limits::fields(&app, request).await?;
    let served = app.served()?;
    let task = move || {
        let content = fields.take("content");
        let add_special = fields.bool("add_special")?.unwrap_or(false);
        let parse_special = fields.bool("parse_special")?.unwrap_or(true);
        let with_pieces = fields.bool("with_pieces")?.unwrap_or(false);
        let tokenizer = &served.tokenizer;
        let encode = |text: &str, add: bool| {
            let ids = tokenizer.encode(text, add, parse_special);
            ids.map_err(|e| ApiError::field("content", format!("cannot be tokenized: {e}")))
        };
        let ids = match content {
            None => Vec::new(),
            Some(Value::String(text)) => encode(&text, add_special)?,
            // A mix of texts and tokens, as in prompts.
            Some(Value::Array(items)) => {
                let mut ids = Vec::new();
                for (i, item) in items.iter().enumerate() {
                    match item.as_str() {
                        Some(text) => ids.extend(encode(text, add_special && i == 0)?),
                        None => ids.push(token(item, tokenizer.n_vocab(), "content")?),
                    }
                }
                ids
            }
            Some(_) => {
                return Err(ApiError::field(
                    "content",
                    "must be a string, or a list of strings and tokens",
                ));
            }
        };
        let piece = |id: &u32| match std::str::from_utf8(served.bytes(*id)) {
            Ok(text) => json!({ "id": id, "piece": text }),
            Err(_) => json!({ "id": id, "piece": served.bytes(*id) }),
        };
        let tokens: Vec<Value> = if with_pieces {
            ids.iter().map(piece).collect()
        } else {
            ids.into_iter().map(Value::from).collect()
        };
        Ok(json::answer(&json!({ "tokens": tokens })))
    };
    limits::blocking(task).await
}

pub(crate) async fn detokenize(State(app): State<App>, request: Request) -> Result<Response> {
    let mut fields = limits::fields(&app, request).await?;
    let served = app.served()?;
    let task = move || {
        let tokens = fields.list("tokens")?.unwrap_or_default();
        // Output the names of special tokens, as llama-server does.
        let mut detokenizer = Detokenizer::new(&served.tokenizer, Start::Continuation, true);
        let mut text = String::new();
        for item in &tokens {
            let id = token(item, served.tokenizer.n_vocab(), "tokens")?;
            let piece = detokenizer.push(id);
            text += piece.map_err(|e| ApiError::field("tokens", format!("is invalid: {e}")))?;
        }
        text += &detokenizer.finish();
        Ok(json::answer(&json!({ "content": text })))
    };
    limits::blocking(task).await
}

fn token(value: &Value, n_vocab: usize, field: &str) -> Result<u32> {
    let id = integer(value).and_then(|id| u32::try_from(id).ok());
    let problem = || format!("must have token ids below {n_vocab}, found {value}");
    id.filter(|id| (*id as usize) < n_vocab).ok_or_else(|| ApiError::field(field, problem()))
}

/// A conversation as the chat template formats it.
pub(crate) async fn apply_template(State(app): State<App>, request: Request) -> Result<Response> {
    let mut fields = limits::fields(&app, request).await?;
    let served = app.served()?;
    let task = move || {
        let chat = ChatRequest::read(&mut fields, served.call_format)?;
        let text = chat.format(&served)?;
        // Remove the BOS token, because tokenizing the prompt adds it.
        let start = served.tokenizer.bos().filter(|_| served.tokenizer.adds_bos());
        let start = start.and_then(|id| std::str::from_utf8(served.bytes(id)).ok());
        let prompt = start.and_then(|start| text.strip_prefix(start)).unwrap_or(&text);
        Ok(json::answer(&json!({ "prompt": prompt })))
    };
    limits::blocking(task).await
}
