//! `/v1/chat/completions`.

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::{Head, Usage, logprobs};
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::json;
use crate::limits;
use crate::log;
use crate::messages::ChatRequest;
use crate::params::{MOST_PROBS, Params};
use crate::reply::{self, Call, Parts, Piece, Reply, Turn};
use crate::served::Served;
use crate::state::App;
use crate::stream::{self, Disconnected, Events};
use crate::work::{Outcome, Update, Work};

/// OpenAI's limit on `top_logprobs`.
const MOST_TOP: i64 = 20;

/// Answers a conversation.
pub(crate) async fn complete(State(app): State<App>, request: Request) -> Result<Response> {
    let fields = limits::fields(&app, request).await?;
    let served = app.served()?;
    let turn = {
        let (app, served) = (app.clone(), served.clone());
        limits::blocking(move || prepare(fields, &app, &served)).await?
    };
    let head = Head::new("chatcmpl-", &app, &served);
    let replies = turn.replies();
    let Turn { params, task, .. } = turn;
    let shows_prompt = params.verbose || app.config.log.verbose;
    let prompt = shows_prompt.then(|| served.text(&task.prompt));
    let logprobs = task.n_logprobs.is_some();
    let work = Work::submit(&app, &served, &params, vec![task])?;
    if params.stream {
        let keep_alive = params.keep_alive;
        let chat = Streamed { head, params, logprobs, served, usage: Usage::default() };
        return Ok(stream::response(keep_alive, |events| chat.write(events, work, replies)));
    }
    let mut body = whole(&head, work, replies, &served).await?;
    if let Some(prompt) = prompt {
        let settings = params.report(0, &served.tokenizer);
        body["__verbose"] = json!({ "prompt": prompt, "generation_settings": settings });
    }
    Ok(json::answer(&body))
}

/// Counts the tokens of a conversation.
pub(crate) async fn count(State(app): State<App>, request: Request) -> Result<Response> {
    let mut fields = limits::fields(&app, request).await?;
    let served = app.served()?;
    let count = move || {
        let text = ChatRequest::read(&mut fields, served.calls)?.format(&served)?;
        Ok(served.conversation_ids(&text)?.len())
    };
    let n = limits::blocking(count).await?;
    Ok(json::answer(&json!({ "object": "response.input_tokens", "input_tokens": n })))
}

fn prepare(mut fields: Fields, app: &App, served: &Served) -> Result<Turn> {
    let talk = ChatRequest::read(&mut fields, served.calls)?;
    let wants = fields.bool("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", [0, MOST_TOP])?;
    if top.is_some() && !wants {
        return Err(ApiError::field("top_logprobs", "needs `logprobs`"));
    }
    let n_probs = fields.count("n_probs", MOST_PROBS)?.filter(|n| *n > 0);
    let top = top.and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    let n_logprobs = if wants { Some(n_probs.unwrap_or(top)) } else { n_probs };
    let splits = reply::splits(&mut fields, served)?;
    let params = Params::read(&mut fields, served, &app.config.limits)?;
    log::unknown_fields(&app.config.log, "chat/completions", &fields.unknown());
    Turn::new(&talk, params, splits, n_logprobs, served)
}

/// One choice of a response.
#[derive(Clone, Debug, Default)]
struct Choice {
    parts: Parts,
    logprobs: Vec<Value>,
    finish: &'static str,
}

impl Choice {
    fn json(&self, index: usize) -> Value {
        let Parts { answer, reasoning, calls } = &self.parts;
        let mut message = json!({ "role": "assistant", "content": answer });
        if !reasoning.is_empty() {
            message["reasoning_content"] = reasoning.as_str().into();
        }
        if !calls.is_empty() {
            if answer.is_empty() {
                message["content"] = Value::Null;
            }
            message["tool_calls"] = calls.iter().map(call).collect();
        }
        let mut choice =
            json!({ "index": index, "message": message, "finish_reason": self.finish });
        if !self.logprobs.is_empty() {
            choice["logprobs"] = json!({ "content": self.logprobs });
        }
        choice
    }
}

/// A tool call in a complete response.
fn call(call: &Call) -> Value {
    let Call { id, name, arguments } = call;
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
}

/// `finish_reason`, which is `tool_calls` for an answer with tool calls.
fn finish_reason(outcome: &Outcome, has_calls: bool) -> &'static str {
    if has_calls && !outcome.is_cut() { "tool_calls" } else { outcome.finish_reason() }
}

/// The complete response.
///
/// # Errors
/// Errors that end a generation.
async fn whole(
    head: &Head,
    mut work: Work,
    mut replies: Vec<Reply>,
    served: &Served,
) -> Result<Value> {
    let mut choices = vec![Choice::default(); replies.len()];
    let (mut usage, mut timings) = (Usage::default(), None);
    while let Some((index, update)) = work.next().await {
        let choice = &mut choices[index];
        match update {
            Update::Token(token) => {
                choice.logprobs.extend(logprobs::chat(&token, served));
                choice.parts.add(&replies[index].push(&token.text));
            }
            Update::Done(outcome) => {
                choice.parts.add(&replies[index].finish());
                choice.finish = finish_reason(&outcome, !choice.parts.calls.is_empty());
                usage.add(&outcome, index == 0);
                timings.get_or_insert(outcome.timings);
            }
            Update::Failed(error) => return Err(error),
            Update::Started { .. } | Update::Prefill(_) | Update::Prompt(_) => {}
        }
    }
    let choices = choices.iter().enumerate().map(|(i, choice)| choice.json(i)).collect();
    let mut body = head.object("chat.completion", choices);
    body["usage"] = usage.json();
    body["timings"] = timings.unwrap_or_default().json();
    Ok(body)
}

/// A response as a stream of chunks.
struct Streamed {
    head: Head,
    params: Params,
    /// Whether log-probabilities are requested.
    logprobs: bool,
    served: std::sync::Arc<Served>,
    usage: Usage,
}

/// The state of one choice of a stream.
struct Stream {
    reply: Reply,
    /// Log-probabilities of tokens whose text is held back.
    logprobs: Vec<Value>,
    has_calls: bool,
}

impl Streamed {
    async fn write(
        mut self,
        events: Events,
        mut work: Work,
        replies: Vec<Reply>,
    ) -> std::result::Result<(), Disconnected> {
        let stream = |reply| Stream { reply, logprobs: Vec::new(), has_calls: false };
        let mut streams: Vec<Stream> = replies.into_iter().map(stream).collect();
        for index in 0..streams.len() {
            let delta = json!({ "role": "assistant", "content": null });
            events.data(&self.chunk(index, delta, None)).await?;
        }
        let mut last = None;
        while let Some((index, update)) = events.wait(work.next()).await? {
            match update {
                Update::Token(token) => {
                    let stream = &mut streams[index];
                    stream.logprobs.extend(logprobs::chat(&token, &self.served));
                    let pieces = stream.reply.push(&token.text);
                    self.pieces(&events, &work, index, pieces, stream).await?;
                }
                Update::Prefill(progress) if self.params.return_progress => {
                    let mut chunk = self.chunk(index, json!({}), None);
                    chunk["prompt_progress"] = progress.json();
                    events.data(&chunk).await?;
                }
                Update::Done(outcome) => {
                    let stream = &mut streams[index];
                    let pieces = stream.reply.finish();
                    self.pieces(&events, &work, index, pieces, stream).await?;
                    self.usage.add(&outcome, index == 0);
                    let finish = Some(finish_reason(&outcome, stream.has_calls));
                    let mut chunk = self.chunk(index, json!({}), finish);
                    // Those of tokens without text, such as the part of a stop string.
                    if !stream.logprobs.is_empty() {
                        let rest = std::mem::take(&mut stream.logprobs);
                        chunk["choices"][0]["logprobs"] = json!({ "content": rest });
                    }
                    chunk["timings"] = outcome.timings.json();
                    last = Some(chunk["timings"].clone());
                    events.data(&chunk).await?;
                }
                Update::Failed(error) => return events.error(&error).await,
                Update::Started { .. } | Update::Prefill(_) | Update::Prompt(_) => {}
            }
        }
        if self.params.include_usage {
            let mut chunk = self.head.object("chat.completion.chunk", Vec::new());
            chunk["usage"] = self.usage.json();
            chunk["timings"] = last.unwrap_or_default();
            events.data(&chunk).await?;
        }
        events.done().await
    }

    /// A chunk for each piece. The first has the log-probabilities of all tokens since the chunk
    /// before; each of the others has an empty list.
    async fn pieces(
        &self,
        events: &Events,
        work: &Work,
        index: usize,
        pieces: Vec<Piece>,
        stream: &mut Stream,
    ) -> std::result::Result<(), Disconnected> {
        stream.has_calls |= pieces.iter().any(is_call);
        for piece in pieces {
            let mut chunk = self.chunk(index, delta(piece), None);
            if self.logprobs {
                let logprobs = std::mem::take(&mut stream.logprobs);
                chunk["choices"][0]["logprobs"] = json!({ "content": logprobs });
            }
            if self.params.timings_per_token {
                chunk["timings"] = work.timings(index).json();
            }
            events.data(&chunk).await?;
        }
        Ok(())
    }

    fn chunk(&self, index: usize, delta: Value, finish: Option<&str>) -> Value {
        let choice = json!({ "index": index, "delta": delta, "finish_reason": finish });
        let mut chunk = self.head.object("chat.completion.chunk", vec![choice]);
        if self.params.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }
}

fn is_call(piece: &Piece) -> bool {
    matches!(piece, Piece::Call { .. })
}

fn delta(piece: Piece) -> Value {
    match piece {
        Piece::Answer(text) => json!({ "content": text }),
        Piece::Reasoning(text) => json!({ "reasoning_content": text }),
        Piece::Call { index, id, name } => json!({ "tool_calls": [{
            "index": index, "id": id, "type": "function",
            "function": { "name": name, "arguments": "" },
        }] }),
        Piece::Arguments { index, fragment } => json!({ "tool_calls": [{
            "index": index, "function": { "arguments": fragment },
        }] }),
    }
}
