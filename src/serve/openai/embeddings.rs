//! Embeddings, in the formats of OpenAI and llama-server.

use axum::extract::{Request, State};
use axum::http::Uri;
use axum::response::Response;
use scheduler::{EmbedError, Pooling};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::served::ServedModel;
use crate::state::App;
use crate::{job, json, limits, log, prompts};

/// Maximum number of values of an answer with a vector for each token.
const MAX_VALUES: usize = 1 << 23;

struct ParsedRequest {
    texts: Vec<Vec<u32>>,
    base64: bool,
}

/// `POST /v1/embeddings` in OpenAI's format, `/embedding` and `/embeddings` in llama-server's.
pub(crate) async fn embed(State(app): State<App>, uri: Uri, request: Request) -> Result<Response> {
    let fields = limits::fields(&app, request).await?;
    let served = app.served()?;
    let pooling = served.pooling();
    if pooling == Pooling::Rank {
        let message = "this model ranks documents (/rerank); for embeddings, start the server with --pooling last";
        return Err(ApiError::not_supported(message));
    }
    let parsed = {
        let (app, served) = (app.clone(), served.clone());
        limits::blocking(move || prepare(fields, &app, &served)).await?
    };
    let is_llama = uri.path() != "/v1/embeddings";
    let is_per_token = pooling == Pooling::None;
    let n_tokens: usize = parsed.texts.iter().map(Vec::len).sum();
    if is_per_token && !is_llama {
        let message = "this server was started with --pooling none: use /embedding, which answers with a vector for each token";
        return Err(ApiError::invalid(message));
    }
    let n_values = n_tokens.saturating_mul(served.facts.n_embd);
    if is_per_token && n_values > MAX_VALUES {
        let problem = format!(
            "has {n_tokens} tokens with {n_values} values in all, expected at most {MAX_VALUES}"
        );
        return Err(ApiError::field("input", problem));
    }
    let mut vectors = Vec::with_capacity(parsed.texts.len());
    let limit = app.config.limits.timeout;
    let task = async {
        // Submit one text at a time, so that the remaining texts are not computed if the client
        // disconnects.
        for tokens in parsed.texts {
            let vector = embed_tokens(&served, tokens, pooling).await?;
            vectors.push(if is_per_token { vector } else { normalise(vector) });
        }
        Ok(())
    };
    let in_time = tokio::time::timeout(limit, task).await;
    in_time.unwrap_or_else(|_| Err(ApiError::timeout(limit.as_secs())))?;
    let data = vectors.iter().enumerate().map(|(index, vector)| {
        let embedding = match (is_llama, parsed.base64) {
            (true, _) => vector.chunks(served.facts.n_embd.max(1)).collect(),
            (false, true) => base64(vector).into(),
            (false, false) => json!(vector),
        };
        json!({ "object": "embedding", "index": index, "embedding": embedding })
    });
    let data: Value = data.collect();
    Ok(json::answer(&if is_llama {
        data
    } else {
        json!({
            "object": "list",
            "model": app.model_id(&served),
            "data": data,
            "usage": { "prompt_tokens": n_tokens, "total_tokens": n_tokens },
        })
    }))
}

fn prepare(mut fields: Fields, app: &App, served: &ServedModel) -> Result<ParsedRequest> {
    let input = fields.take("input").or_else(|| fields.take("content"));
    let input = input.ok_or_else(|| ApiError::field("input", "is missing"))?;
    let base64 = match fields.string("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(format) => {
            let problem = format!("is \"{format}\", expected \"float\" or \"base64\"");
            return Err(ApiError::field("encoding_format", problem));
        }
    };
    let width = |value: &Value| value.as_u64() == Some(served.facts.n_embd as u64);
    fields.refuse("dimensions", "vectors have the width of the model", width)?;
    // llama-server's numbers: 2 is the Euclidean norm; a negative number disables normalisation.
    let (is_pooled, norm) = match served.pooling() {
        Pooling::None => (false, "vectors of tokens are not normalised"),
        Pooling::Mean | Pooling::First | Pooling::Last | Pooling::Rank => {
            (true, "vectors have the Euclidean norm 1")
        }
    };
    let same = |value: &Value| match value.as_i64() {
        Some(kind) if is_pooled => kind == 2,
        Some(kind) => kind < 0,
        None => false,
    };
    fields.refuse("embd_normalize", norm, same)?;
    fields.ignore(&["model", "user"]);
    log::unknown_fields(&app.config.log, "embeddings", &fields.unknown());
    if input.as_array().is_some_and(Vec::is_empty) {
        return Err(ApiError::field("input", "is empty"));
    }
    let texts = prompts::read(Some(input), served).map_err(|error| error.with_param("input"))?.ids;
    Ok(ParsedRequest { texts, base64 })
}

/// The embedding or the ranking scores of a text.
///
/// # Errors
/// 400 for a text that is too long or has no tokens; 429 if the queue is full; 503 while the server
/// shuts down; 500 if the engine fails.
pub(super) async fn embed_tokens(
    served: &ServedModel,
    tokens: Vec<u32>,
    pooling: Pooling,
) -> Result<Vec<f32>> {
    let (sender, receiver) = oneshot::channel();
    // Sending fails if the client has disconnected.
    let sink = Box::new(move |result| drop(sender.send(result)));
    served.scheduler.embed_to(tokens, pooling, sink).map_err(embed_error)?;
    let vector = receiver.await.map_err(|_| {
        ApiError::server("the scheduler has stopped; restart the server").no_retry()
    })?;
    vector.map_err(|error| embed_error(EmbedError::Failed(error)))
}

/// Scales the vector to the Euclidean norm 1.
fn normalise(mut vector: Vec<f32>) -> Vec<f32> {
    let norm = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    if norm > 0.0 {
        #[allow(clippy::cast_possible_truncation)] // embeddings are in single precision
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
    }
    vector
}

fn embed_error(error: EmbedError) -> ApiError {
    match error {
        EmbedError::Refused(refused) => {
            let error = job::submit_error(refused);
            if error.param.as_deref() == Some("prompt") { error.with_param("input") } else { error }
        }
        EmbedError::Failed(error) => job::generation_error(&error),
        error @ (EmbedError::NoHead | _) => ApiError::not_supported(error.to_string()),
    }
}

/// The vector as little-endian F32 in base64 (RFC 4648), which OpenAI's Python client requests.
fn base64(vector: &[f32]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut word = [0; 4];
        word[1..=chunk.len()].copy_from_slice(chunk);
        let word = u32::from_be_bytes(word);
        for i in 0..4 {
            let letter = LETTERS[(word >> (18 - 6 * i)) as usize & 63];
            text.push(if i > chunk.len() { '=' } else { char::from(letter) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_matches_rfc_4648() {
        let of = |bytes: &[u8; 4]| base64(&[f32::from_le_bytes(*bytes)]);
        assert_eq!(of(b"Man "), "TWFuIA==");
        assert_eq!(of(&[0xfb, 0xff, 0xfe, 0x00]), "+//+AA==");
        assert_eq!(
            base64(&[f32::from_le_bytes(*b"many"), f32::from_le_bytes(*b" han")]),
            "bWFueSBoYW4="
        );
        assert_eq!(base64(&[]), "");
    }
}
