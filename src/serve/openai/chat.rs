//! `/v1/chat/completions`.

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::{ResponseHead, Usage, logprobs};
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::job::{Job, Outcome, Update};
use crate::json;
use crate::limits;
use crate::log;
use crate::messages::ChatRequest;
use crate::params::{MAX_PROBS, Params};
use crate::reply::{self, Call, Content, ReplyParser, ReplyPiece, Turn};
use crate::served::ServedModel;
use crate::state::App;
use crate::stream::{self, Disconnected, Events};

/// OpenAI's limit on `top_logprobs`.
const MAX_TOP_LOGPROBS: i64 = 20;

pub(crate) async fn complete(State(app): State<App>, request: Request) -> Result<Response> {
    let fields = limits::fields(&app, request).await?;
    let served = app.served()?;
    let turn = {
        let (app, served) = (app.clone(), served.clone());
        limits::blocking(move || prepare(fields, &app, &served)).await?
    };
    let head = ResponseHead::new("chatcmpl-", &app, &served);
    let replies = turn.replies();
    let Turn { params, task, .. } = turn;
    let shows_prompt = params.verbose || app.config.log.verbose;
    let prompt = shows_prompt.then(|| served.text(&task.prompt));
    let logprobs = task.n_logprobs.is_some();
    let job = Job::submit(&app, &served, &params, vec![task])?;
    if params.stream {
        let keep_alive = params.keep_alive;
        let chat = ResponseStream { head, params, logprobs, served, usage: Usage::default() };
        return Ok(stream::response(keep_alive, |events| chat.write(events, job, replies)));
    }
    let mut body = whole(&head, job, replies, &served).await?;
    if let Some(prompt) = prompt {
        let settings = params.report(0, &served.tokenizer);
        body["__verbose"] = json!({ "prompt": prompt, "generation_settings": settings });
    }
    Ok(json::answer(&body))
}

pub(crate) async fn count(State(app): State<App>, request: Request) -> Result<Response> {
    let mut fields = limits::fields(&app, request).await?;
    let served = app.served()?;
    let count = move || {
        let text = ChatRequest::read(&mut fields, served.call_format)?.format(&served)?;
        Ok(served.conversation_ids(&text)?.len())
    };
    let n = limits::blocking(count).await?;
    Ok(json::answer(&json!({ "object": "response.input_tokens", "input_tokens": n })))
}

fn prepare(mut fields: Fields, app: &App, served: &ServedModel) -> Result<Turn> {
    let chat = ChatRequest::read(&mut fields, served.call_format)?;
    let wants_logprobs = fields.bool("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", [0, MAX_TOP_LOGPROBS])?;
    if top.is_some() && !wants_logprobs {
        return Err(ApiError::field("top_logprobs", "needs `logprobs`"));
    }
    let n_probs = fields.count("n_probs", MAX_PROBS)?.filter(|n| *n > 0);
    let top = top.and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    let n_logprobs = if wants_logprobs { Some(n_probs.unwrap_or(top)) } else { n_probs };
    let splits_reasoning = reply::splits_reasoning(&mut fields, served)?;
    let params = Params::read(&mut fields, served, &app.config.limits)?;
    log::unknown_fields(&app.config.log, "chat/completions", &fields.unknown());
    Turn::new(&chat, params, splits_reasoning, n_logprobs, served)
}

#[derive(Clone, Debug, Default)]
struct Choice {
    parts: Content,
    logprobs: Vec<Value>,
    finish: &'static str,
}

impl Choice {
    fn json(&self, index: usize) -> Value {
        let Content { answer, reasoning, calls } = &self.parts;
        let mut message = json!({ "role": "assistant", "content": answer });
        if !reasoning.is_empty() {
            message["reasoning_content"] = reasoning.as_str().into();
        }
        if !calls.is_empty() {
            if answer.is_empty() {
                message["content"] = Value::Null;
            }
            message["tool_calls"] = calls.iter().map(call_json).collect();
        }
        let mut choice =
            json!({ "index": index, "message": message, "finish_reason": self.finish });
        if !self.logprobs.is_empty() {
            choice["logprobs"] = json!({ "content": self.logprobs });
        }
        choice
    }
}

fn call_json(call: &Call) -> Value {
    let Call { id, name, arguments } = call;
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
}

/// `finish_reason`, which is `tool_calls` for an answer with tool calls.
fn finish_reason(outcome: &Outcome, has_calls: bool) -> &'static str {
    if has_calls && !outcome.hit_limit() { "tool_calls" } else { outcome.finish_reason() }
}

async fn whole(
    head: &ResponseHead,
    mut job: Job,
    mut replies: Vec<ReplyParser>,
    served: &ServedModel,
) -> Result<Value> {
    let mut choices = vec![Choice::default(); replies.len()];
    let (mut usage, mut timings) = (Usage::default(), None);
    while let Some((index, update)) = job.next().await {
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
            Update::Started { .. } | Update::Prefill(_) | Update::PromptLogprobs(_) => {}
        }
    }
    let choices = choices.iter().enumerate().map(|(i, choice)| choice.json(i)).collect();
    let mut body = head.object("chat.completion", choices);
    body["usage"] = usage.json();
    body["timings"] = timings.unwrap_or_default().json();
    Ok(body)
}

struct ResponseStream {
    head: ResponseHead,
    params: Params,
    /// Whether log-probabilities are requested.
    logprobs: bool,
    served: std::sync::Arc<ServedModel>,
    usage: Usage,
}

/// The state of one choice of a stream.
struct ChoiceStream {
    reply: ReplyParser,
    /// Log-probabilities of tokens whose text is held back.
    logprobs: Vec<Value>,
    has_calls: bool,
}

impl ResponseStream {
    async fn write(
        mut self,
        events: Events,
        mut job: Job,
        replies: Vec<ReplyParser>,
    ) -> std::result::Result<(), Disconnected> {
        let stream = |reply| ChoiceStream { reply, logprobs: Vec::new(), has_calls: false };
        let mut streams: Vec<ChoiceStream> = replies.into_iter().map(stream).collect();
        for index in 0..streams.len() {
            let delta = json!({ "role": "assistant", "content": null });
            events.send(&self.chunk(index, delta, None)).await?;
        }
        let mut last = None;
        while let Some((index, update)) = events.wait(job.next()).await? {
            match update {
                Update::Token(token) => {
                    let stream = &mut streams[index];
                    stream.logprobs.extend(logprobs::chat(&token, &self.served));
                    let pieces = stream.reply.push(&token.text);
                    self.pieces(&events, &job, index, pieces, stream).await?;
                }
                Update::Prefill(progress) if self.params.return_progress => {
                    let mut chunk = self.chunk(index, json!({}), None);
                    chunk["prompt_progress"] = progress.json();
                    events.send(&chunk).await?;
                }
                Update::Done(outcome) => {
                    let stream = &mut streams[index];
                    let pieces = stream.reply.finish();
                    self.pieces(&events, &job, index, pieces, stream).await?;
                    self.usage.add(&outcome, index == 0);
                    let finish = Some(finish_reason(&outcome, stream.has_calls));
                    let mut chunk = self.chunk(index, json!({}), finish);
                    // Send log-probabilities of tokens whose text was never sent.
                    if !stream.logprobs.is_empty() {
                        let rest = std::mem::take(&mut stream.logprobs);
                        chunk["choices"][0]["logprobs"] = json!({ "content": rest });
                    }
                    chunk["timings"] = outcome.timings.json();
                    last = Some(chunk["timings"].clone());
                    events.send(&chunk).await?;
                }
                Update::Failed(error) => return events.send_error(&error).await,
                Update::Started { .. } | Update::Prefill(_) | Update::PromptLogprobs(_) => {}
            }
        }
        if self.params.include_usage {
            let mut chunk = self.head.object("chat.completion.chunk", Vec::new());
            chunk["usage"] = self.usage.json();
            chunk["timings"] = last.unwrap_or_default();
            events.send(&chunk).await?;
        }
        events.send_done().await
    }

    /// Sends a chunk for each piece. If log-probabilities are requested, the first chunk has those
    /// of all tokens since the previous chunk, and the others have an empty list.
    async fn pieces(
        &self,
        events: &Events,
        job: &Job,
        index: usize,
        pieces: Vec<ReplyPiece>,
        stream: &mut ChoiceStream,
    ) -> std::result::Result<(), Disconnected> {
        stream.has_calls |= pieces.iter().any(is_call);
        for piece in pieces {
            let mut chunk = self.chunk(index, delta(piece), None);
            if self.logprobs {
                let logprobs = std::mem::take(&mut stream.logprobs);
                chunk["choices"][0]["logprobs"] = json!({ "content": logprobs });
            }
            if self.params.timings_per_token {
                chunk["timings"] = job.timings(index).json();
            }
            events.send(&chunk).await?;
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

fn is_call(piece: &ReplyPiece) -> bool {
    matches!(piece, ReplyPiece::Call { .. })
}

fn delta(piece: ReplyPiece) -> Value {
    match piece {
        ReplyPiece::Answer(text) => json!({ "content": text }),
        ReplyPiece::Reasoning(text) => json!({ "reasoning_content": text }),
        ReplyPiece::Call { index, id, name } => json!({ "tool_calls": [{
            "index": index, "id": id, "type": "function",
            "function": { "name": name, "arguments": "" },
        }] }),
        ReplyPiece::Arguments { index, fragment } => json!({ "tool_calls": [{
            "index": index, "function": { "arguments": fragment },
        }] }),
    }
}
