//! Embeddings, in the forms of OpenAI and llama-server. Ranking needs a model with a head for it;
//! those are not supported yet.

use axum::extract::{Request, State};
use axum::http::Uri;
use axum::response::Response;
use scheduler::{EmbedError, Pooling};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::served::Served;
use crate::state::App;
use crate::{json, limits, log, prompts, work};

/// What a request wants.
struct Wish {
    texts: Vec<Vec<u32>>,
    base64: bool,
}

/// `POST /v1/embeddings` in OpenAI's form, `/embedding` and `/embeddings` in llama-server's.
pub(crate) async fn embed(State(app): State<App>, uri: Uri, request: Request) -> Result<Response> {
    let fields = limits::fields(&app, request).await?;
    let served = app.served()?;
    let wish = {
        let (app, served) = (app.clone(), served.clone());
        limits::blocking(move || prepare(fields, &app, &served)).await?
    };
    let n_tokens: usize = wish.texts.iter().map(Vec::len).sum();
    let mut vectors = Vec::with_capacity(wish.texts.len());
    // One after the other, as they are computed: what a client that left has not asked for yet is
    // not computed.
    for tokens in wish.texts {
        vectors.push(one(&served, tokens).await?);
    }
    let is_llama = uri.path() != "/v1/embeddings";
    let data = vectors.iter().enumerate().map(|(index, vector)| {
        let embedding = match (is_llama, wish.base64) {
            (true, _) => json!([vector]),
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

fn prepare(mut fields: Fields, app: &App, served: &Served) -> Result<Wish> {
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
    let euclidean = |value: &Value| value.as_i64() == Some(2);
    fields.refuse("embd_normalize", "vectors have the Euclidean norm 1", euclidean)?;
    fields.ignore(&["model", "user"]);
    log::unknown_fields(&app.config.log, "embeddings", &fields.unknown());
    if input.as_array().is_some_and(Vec::is_empty) {
        return Err(ApiError::field("input", "is empty"));
    }
    let texts = prompts::read(Some(input), served).map_err(|error| error.of("input"))?.ids;
    Ok(Wish { texts, base64 })
}

/// The normalised embedding of a text.
async fn one(served: &Served, tokens: Vec<u32>) -> Result<Vec<f32>> {
    let (sender, receiver) = oneshot::channel();
    // A receiver that is gone belongs to a client that has left.
    let sink = Box::new(move |result| drop(sender.send(result)));
    let pooling = served.defaults.pooling.unwrap_or(served.facts.pooling);
    served.scheduler.embed_to(tokens, pooling, sink).map_err(failed)?;
    let vector =
        receiver.await.map_err(|_| ApiError::server("the scheduler has ended").final_())?;
    let mut vector = vector.map_err(|error| failed(EmbedError::Failed(error)))?;
    let norm = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    if norm > 0.0 {
        #[allow(clippy::cast_possible_truncation)] // embeddings are in single precision
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
    }
    Ok(vector)
}

fn failed(error: EmbedError) -> ApiError {
    match error {
        EmbedError::Refused(refused) => {
            let error = work::refused(refused);
            if error.param.as_deref() == Some("prompt") { error.of("input") } else { error }
        }
        EmbedError::Failed(error) => work::failed(&error),
        error => ApiError::server(error.to_string()).final_(),
    }
}

/// Little-endian single precision in base64 (RFC 4648), which OpenAI's Python client asks for.
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

/// The pooling that a model file asks for; the mean of all tokens if it does not.
pub(crate) fn pooling(kind: Option<u32>) -> Pooling {
    match kind {
        // llama.cpp's numbers.
        Some(2) => Pooling::First,
        Some(3) => Pooling::Last,
        _ => Pooling::Mean,
    }
}

/// `POST /rerank`: 501, after the request is checked.
pub(crate) async fn rerank(State(app): State<App>, request: Request) -> Result<Response> {
    let mut fields = limits::fields(&app, request).await?;
    app.served()?;
    if fields.string("query")?.is_none() {
        return Err(ApiError::field("query", "is missing"));
    }
    if !["documents", "texts"].iter().any(|name| fields.has(name)) {
        return Err(ApiError::field("documents", "is missing"));
    }
    let message = "this model generates text: ranking needs a reranking model, and those are not supported yet";
    Err(ApiError::not_supported(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_rfc_4648() {
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
