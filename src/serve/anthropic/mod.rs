//! Anthropic's endpoints: `/v1/messages` and its token count.

mod read;
mod write;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::json;

use crate::clock::id;
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::job::Job;
use crate::reply::Turn;
use crate::served::ServedModel;
use crate::state::App;
use crate::{json, limits, log, reply, stream};
use write::Answer;

pub(crate) async fn message(State(app): State<App>, request: Request) -> Result<Response> {
    let fields = limits::fields(&app, request).await?;
    let served = app.served()?;
    let (turn, stops) = {
        let (app, served) = (app.clone(), served.clone());
        limits::blocking(move || prepare(fields, &app, &served)).await?
    };
    let reply = turn.replies().pop();
    let Turn { params, task, .. } = turn;
    let Some(reply) = reply else {
        return Err(ApiError::server("the request has no choice; please report it"));
    };
    let n_prompt = task.prompt.len();
    let job = Job::submit(&app, &served, &params, vec![task])?;
    let model = app.model_id(&served).to_owned();
    let answer = Answer::new(id("msg_"), model, n_prompt, stops);
    if params.stream {
        let keep_alive = params.keep_alive;
        return Ok(stream::response(keep_alive, |events| answer.stream(events, job, reply)));
    }
    Ok(json::answer(&answer.whole(job, reply).await?))
}

fn prepare(mut fields: Fields, app: &App, served: &ServedModel) -> Result<(Turn, Vec<String>)> {
    if !fields.has("max_tokens") {
        return Err(ApiError::field("max_tokens", "is missing"));
    }
    let chat = read::conversation(&mut fields, served.call_format)?;
    let stops = fields.strings("stop_sequences")?.unwrap_or_default();
    let splits_reasoning = reply::splits_reasoning(&mut fields, served)?;
    let mut params = read::params(fields, app, served, &stops)?;
    let unknown: Vec<&str> = params.unknown.iter().map(String::as_str).collect();
    log::unknown_fields(&app.config.log, "messages", &unknown);
    params.shared.n = 1;
    Ok((Turn::new(&chat, params.shared, splits_reasoning, None, served)?, stops))
}

pub(crate) async fn count(State(app): State<App>, request: Request) -> Result<Response> {
    let mut fields = limits::fields(&app, request).await?;
    let served = app.served()?;
    let count = move || {
        let text = read::conversation(&mut fields, served.call_format)?.format(&served)?;
        Ok(served.conversation_ids(&text)?.len())
    };
    let n = limits::blocking(count).await?;
    Ok(json::answer(&json!({ "input_tokens": n })))
}
