//! Reranking of documents by relevance to a query, in the format of Jina and llama-server, and in
//! that of text-embeddings-inference (TEI).

use axum::extract::{Request, State};
use axum::response::Response;
use scheduler::Pooling;
use serde_json::{Value, json};

use super::embeddings::embed_tokens;
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::state::App;
use crate::{json, limits, log};

const MAX_DOCUMENTS: usize = 1024;
const UNSUPPORTED: [(&str, &str); 5] = [
    (
        "raw_scores",
        "the model determines the score: a probability with Qwen3 rerankers, otherwise the output of its head",
    ),
    ("truncate", "documents are not truncated"),
    ("max_tokens_per_doc", "documents are not truncated"),
    ("max_chunks_per_doc", "documents are not cut into chunks"),
    ("return_embeddings", "a ranking has no embeddings"),
];

struct ParsedRequest {
    query: String,
    documents: Vec<String>,
    /// The field of the documents: `texts` in TEI's format.
    field: &'static str,
    top_n: usize,
    returns_text: bool,
}

/// A document's place in the request, and its score.
struct RankedDocument {
    index: usize,
    score: f32,
}

/// `POST /rerank` and its aliases.
pub(crate) async fn rerank(State(app): State<App>, request: Request) -> Result<Response> {
    let fields = limits::fields(&app, request).await?;
    let served = app.served()?;
    let mut parsed = prepare(fields, &app)?;
    let Some(prompt) = &served.facts.rank_prompt else {
        let message = "this model has no classification head for reranking; serve a reranker such as Qwen3-Reranker";
        return Err(ApiError::not_supported(message));
    };
    let (mut n_tokens, mut ranked) = (0, Vec::with_capacity(parsed.documents.len()));
    let limit = app.config.limits.timeout;
    let task = async {
        // Submit one document at a time, so that the remaining documents are not computed if the
        // client disconnects.
        for (index, document) in parsed.documents.iter().enumerate() {
            let ids = {
                let (served, prompt) = (served.clone(), prompt.clone());
                let (query, document, field) =
                    (parsed.query.clone(), document.clone(), parsed.field);
                let wrong = move |e| ApiError::field(field, format!("cannot be tokenized: {e}"));
                let encode =
                    move || prompt.ids(&query, &document, &served.tokenizer).map_err(wrong);
                limits::blocking(encode).await?
            };
            n_tokens += ids.len();
            let outputs = embed_tokens(&served, ids, Pooling::Rank).await;
            let outputs = outputs.map_err(|error| error.with_param(parsed.field))?;
            ranked.push(RankedDocument {
                index,
                score: outputs.first().copied().unwrap_or_default(),
            });
        }
        Ok(())
    };
    let in_time = tokio::time::timeout(limit, task).await;
    in_time.unwrap_or_else(|_| Err(ApiError::timeout(limit.as_secs())))?;
    ranked.sort_by(|a, b| b.score.total_cmp(&a.score));
    ranked.truncate(parsed.top_n);
    let is_tei = parsed.field == "texts";
    let result = |RankedDocument { index, score }| {
        let label = if is_tei { "score" } else { "relevance_score" };
        let mut result = json!({ "index": index, label: score });
        if parsed.returns_text {
            let text = std::mem::take(&mut parsed.documents[index]);
            result[if is_tei { "text" } else { "document" }] =
                if is_tei { text.into() } else { json!({ "text": text }) };
        }
        result
    };
    let results: Value = ranked.into_iter().map(result).collect();
    Ok(json::answer(&if is_tei {
        results
    } else {
        json!({
            "object": "list",
            "model": app.model_id(&served),
            "usage": { "prompt_tokens": n_tokens, "total_tokens": n_tokens },
            "results": results,
        })
    }))
}

fn prepare(mut fields: Fields, app: &App) -> Result<ParsedRequest> {
    let query = fields.string("query")?.ok_or_else(|| ApiError::field("query", "is missing"))?;
    let field = if fields.has("texts") { "texts" } else { "documents" };
    if field == "texts" && fields.has("documents") {
        return Err(ApiError::field(
            "texts",
            "and `documents` cannot be combined: send one of them",
        ));
    }
    let list = fields.list(field)?.ok_or_else(|| ApiError::field(field, "is missing"))?;
    if !(1..=MAX_DOCUMENTS).contains(&list.len()) {
        let problem = format!("has {} documents, expected 1 to {MAX_DOCUMENTS}", list.len());
        return Err(ApiError::field(field, problem));
    }
    let text = |item: &Value| item.as_str().or_else(|| item["text"].as_str()).map(str::to_owned);
    let documents = list.iter().map(text).collect::<Option<Vec<_>>>();
    let problem = "must be a list of strings, or of objects with `text`";
    let documents = documents.ok_or_else(|| ApiError::field(field, problem))?;
    let top_n = fields.integer("top_n", [1, i64::MAX])?;
    let [text, document] = [fields.bool("return_text")?, fields.bool("return_documents")?];
    for (name, reason) in UNSUPPORTED {
        fields.refuse(name, reason, crate::fields::is_empty)?;
    }
    fields.ignore(&["model", "user", "truncation_direction"]);
    log::unknown_fields(&app.config.log, "rerank", &fields.unknown());
    Ok(ParsedRequest {
        query,
        documents,
        field,
        top_n: top_n.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX),
        returns_text: text.or(document) == Some(true),
    })
}
