//! `/completion`: llama-server's native completion endpoint.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use scheduler::{EndReason, TokenEvent};
use serde_json::{Map, Value, json};

use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::job::{Job, Outcome, Task, Update};
use crate::openai::logprobs;
use crate::params::{MAX_PROBS, Params};
use crate::prompts::{self, Prompts};
use crate::served::ServedModel;
use crate::state::App;
use crate::stream::{self, Disconnected, Events};
use crate::{json, limits, log};

struct ParsedRequest {
    params: Params,
    prompts: Prompts,
    n_probs: usize,
    /// Report probabilities after all samplers.
    post_sampling: bool,
    return_tokens: bool,
    /// Members of the response to return; empty for all.
    response_fields: Vec<String>,
    model: String,
}

pub(crate) async fn complete(State(app): State<App>, request: Request) -> Result<Response> {
    let fields = limits::fields(&app, request).await?;
    let served = app.served()?;
    respond(app, served, fields, None).await
}

/// Answers a request with these fields. If `prompt` is given, it replaces the `prompt` field.
///
/// # Errors
/// 400 for an invalid field.
pub(crate) async fn respond(
    app: App,
    served: Arc<ServedModel>,
    fields: Fields,
    prompt: Option<Vec<u32>>,
) -> Result<Response> {
    let (parsed, tasks) = {
        let (app, served) = (app.clone(), served.clone());
        limits::blocking(move || prepare(fields, prompt, &app, &served)).await?
    };
    let choices = vec![Choice::default(); tasks.len() * parsed.params.n];
    let job = Job::submit(&app, &served, &parsed.params, tasks)?;
    if parsed.params.stream {
        let keep_alive = parsed.params.keep_alive;
        let completion = Completion { parsed, served };
        return Ok(stream::response(keep_alive, |events| completion.stream(events, job, choices)));
    }
    let completion = Completion { parsed, served };
    Ok(json::answer(&completion.whole(job, choices).await?))
}

fn prepare(
    mut fields: Fields,
    prompt: Option<Vec<u32>>,
    app: &App,
    served: &ServedModel,
) -> Result<(ParsedRequest, Vec<Task>)> {
    let given = fields.take("prompt");
    let prompts = match prompt {
        Some(ids) => Prompts { ids: vec![ids], is_list: false },
        None => prompts::read(given, served)?,
    };
    let n_probs = fields.count("n_probs", MAX_PROBS)?;
    let logprobs = fields.count("logprobs", MAX_PROBS)?;
    let parsed = ParsedRequest {
        prompts,
        n_probs: n_probs.or(logprobs).unwrap_or(0),
        post_sampling: fields.bool("post_sampling_probs")?.unwrap_or(false),
        return_tokens: fields.bool("return_tokens")?.unwrap_or(false),
        response_fields: fields.strings("response_fields")?.unwrap_or_default(),
        params: Params::read(&mut fields, served, &app.config.limits)?,
        model: app.model_id(served).to_owned(),
    };
    log::unknown_fields(&app.config.log, "completion", &fields.unknown());
    if parsed.params.stream && parsed.prompts.is_list && parsed.prompts.ids.len() > 1 {
        return Err(ApiError::field("stream", "supports only one prompt"));
    }
    let Params { n, structure, .. } = &parsed.params;
    let task = |prompt: &Vec<u32>| -> Result<Task> {
        Ok(Task {
            prompt: prompt.clone(),
            n_logprobs: (parsed.n_probs > 0).then_some(parsed.n_probs),
            post_sampling: parsed.post_sampling,
            constraints: served.constraints(structure.as_ref(), *n, None)?,
            ..Task::default()
        })
    };
    let tasks = parsed.prompts.ids.iter().map(task).collect::<Result<_>>()?;
    Ok((parsed, tasks))
}

#[derive(Clone, Debug, Default)]
struct Choice {
    content: String,
    tokens: Vec<u32>,
    probabilities: Vec<Value>,
    has_new_line: bool,
}

struct Completion {
    parsed: ParsedRequest,
    served: Arc<ServedModel>,
}

impl Completion {
    async fn whole(&self, mut job: Job, mut choices: Vec<Choice>) -> Result<Value> {
        let mut bodies = vec![Value::Null; choices.len()];
        while let Some((index, update)) = job.next().await {
            let choice = &mut choices[index];
            match update {
                Update::Token(token) => {
                    choice.content += &token.text;
                    choice.tokens.extend(token.id);
                    choice.probabilities.extend(self.probability(&token));
                }
                Update::Done(outcome) => {
                    choice.has_new_line = choice.content.contains('\n');
                    bodies[index] = self.last(index, choice, &outcome, true);
                }
                Update::Failed(error) => return Err(error),
                Update::Started { .. } | Update::Prefill(_) | Update::PromptLogprobs(_) => {}
            }
        }
        let is_list = self.parsed.prompts.is_list || bodies.len() > 1;
        Ok(if is_list { bodies.into() } else { bodies.pop().unwrap_or_default() })
    }

    async fn stream(
        self,
        events: Events,
        mut job: Job,
        mut choices: Vec<Choice>,
    ) -> std::result::Result<(), Disconnected> {
        while let Some((index, update)) = events.wait(job.next()).await? {
            let choice = &mut choices[index];
            match update {
                Update::Token(token) => {
                    choice.has_new_line |= token.text.contains('\n');
                    choice.content += &token.text;
                    choice.tokens.extend(token.id);
                    choice.probabilities.extend(self.probability(&token));
                    if !token.text.is_empty() {
                        events.send(&self.chunk(index, choice, &job)).await?;
                    }
                }
                Update::Prefill(progress) if self.parsed.params.return_progress => {
                    let mut chunk = self.chunk(index, choice, &job);
                    chunk["prompt_progress"] = progress.json();
                    if self.parsed.params.timings_per_token {
                        chunk["timings"] = progress.timings().json();
                    }
                    events.send(&chunk).await?;
                }
                Update::Done(outcome) => {
                    events.send(&self.last(index, choice, &outcome, false)).await?;
                }
                Update::Failed(error) => return events.send_error(&error).await,
                Update::Started { .. } | Update::Prefill(_) | Update::PromptLogprobs(_) => {}
            }
        }
        Ok(())
    }

    /// The element of `completion_probabilities` for a token, if they are requested.
    fn probability(&self, token: &TokenEvent) -> Option<Value> {
        if self.parsed.post_sampling {
            logprobs::llama_after_sampling(token, &self.served)
        } else {
            logprobs::llama(token, &self.served)
        }
    }

    /// A stream event with the output since the previous event.
    fn chunk(&self, index: usize, choice: &mut Choice, job: &Job) -> Value {
        let taken = std::mem::take(choice);
        choice.has_new_line = taken.has_new_line;
        let mut chunk = json!({
            "index": index, "content": taken.content, "tokens": taken.tokens, "stop": false,
        });
        if self.parsed.n_probs > 0 {
            chunk["completion_probabilities"] = taken.probabilities.into();
        }
        if self.parsed.params.timings_per_token {
            chunk["timings"] = job.timings(index).json();
        }
        chunk
    }

    /// The complete response, or the last chunk of a stream.
    fn last(&self, index: usize, choice: &Choice, outcome: &Outcome, whole: bool) -> Value {
        let Completion { parsed, served } = self;
        let ids = &parsed.prompts.ids[index / parsed.params.n];
        let mut settings = parsed.params.report(parsed.n_probs, &served.tokenizer);
        settings["seed"] = outcome.seed.into();
        settings["n_ctx"] = served.facts.n_ctx.into();
        settings["post_sampling_probs"] = parsed.post_sampling.into();
        let all_tokens = whole && parsed.return_tokens;
        let stop_type = match outcome.ended {
            EndReason::EndOfText | EndReason::Complete => "eos",
            EndReason::Stop => "word",
            EndReason::Length
            | EndReason::TimeLimit
            | EndReason::ContextFull
            | EndReason::Deadline => "limit",
            EndReason::Cancelled | EndReason::Shutdown => "none",
        };
        let mut body = json!({
            "index": index,
            "content": if whole { choice.content.as_str() } else { "" },
            "tokens": if all_tokens { choice.tokens.as_slice() } else { &[] },
            "id_slot": parsed.params.slot,
            "stop": true,
            "model": parsed.model,
            "tokens_predicted": outcome.n_generated,
            "tokens_evaluated": outcome.n_prompt,
            "generation_settings": settings,
            "prompt": served.text(ids),
            "has_new_line": choice.has_new_line,
            "truncated": outcome.ended == EndReason::ContextFull,
            "stop_type": stop_type,
            "stopping_word": outcome.stopped_by.as_deref().unwrap_or_default(),
            "tokens_cached": outcome.n_prompt + outcome.n_generated.saturating_sub(1),
            "timings": outcome.timings.json(),
        });
        if parsed.n_probs > 0 && !choice.probabilities.is_empty() {
            body["completion_probabilities"] = choice.probabilities.clone().into();
        }
        if parsed.response_fields.is_empty() {
            body
        } else {
            select_members(&body, &parsed.response_fields)
        }
    }
}

/// The members of `body` with these names. `a/b` is the member `b` of `a`, and is returned as
/// `a/b`.
fn select_members(body: &Value, names: &[String]) -> Value {
    let member = |name: &String| {
        let value = body.pointer(&format!("/{name}"))?;
        Some((name.clone(), value.clone()))
    };
    Value::Object(names.iter().filter_map(member).collect::<Map<String, Value>>())
}
