//! `/completion`: llama-server's own form of a text completion.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use scheduler::Ended;
use serde_json::{Map, Value, json};

use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::openai::logprobs;
use crate::params::{MOST_PROBS, Params};
use crate::prompts::{self, Prompts};
use crate::served::Served;
use crate::state::App;
use crate::stream::{self, Events, Left};
use crate::work::{Outcome, Task, Update, Work};
use crate::{json, limits, log};

/// What a request wants besides the shared parameters.
struct Wish {
    params: Params,
    prompts: Prompts,
    n_probs: usize,
    return_tokens: bool,
    /// Members to return; empty for all.
    response_fields: Vec<String>,
    model: String,
}

/// Continues one or more texts.
pub(crate) async fn complete(State(app): State<App>, request: Request) -> Result<Response> {
    let fields = limits::fields(&app, request).await?;
    let served = app.served()?;
    respond(app, served, fields, None).await
}

/// Answers with these fields; `prompt` replaces theirs.
///
/// # Errors
/// 400 for an invalid field.
pub(crate) async fn respond(
    app: App,
    served: Arc<Served>,
    fields: Fields,
    prompt: Option<Vec<u32>>,
) -> Result<Response> {
    let (wish, tasks) = {
        let (app, served) = (app.clone(), served.clone());
        limits::blocking(move || prepare(fields, prompt, &app, &served)).await?
    };
    let choices = vec![Choice::default(); tasks.len() * wish.params.n];
    let work = Work::submit(&app, &served, &wish.params, tasks)?;
    if wish.params.stream {
        let keep_alive = wish.params.keep_alive;
        let text = Completion { wish, served };
        return Ok(stream::response(keep_alive, |events| text.stream(events, work, choices)));
    }
    let completion = Completion { wish, served };
    Ok(json::answer(&completion.whole(work, choices).await?))
}

fn prepare(
    mut fields: Fields,
    prompt: Option<Vec<u32>>,
    app: &App,
    served: &Served,
) -> Result<(Wish, Vec<Task>)> {
    let given = fields.take("prompt");
    let prompts = match prompt {
        Some(ids) => Prompts { ids: vec![ids], is_list: false },
        None => prompts::read(given, served)?,
    };
    let n_probs = fields.count("n_probs", MOST_PROBS)?;
    let logprobs = fields.count("logprobs", MOST_PROBS)?;
    let wish = Wish {
        prompts,
        n_probs: n_probs.or(logprobs).unwrap_or(0),
        return_tokens: fields.bool("return_tokens")?.unwrap_or(false),
        response_fields: fields.strings("response_fields")?.unwrap_or_default(),
        params: Params::read(&mut fields, served, &app.config.limits)?,
        model: app.model_id(served).to_owned(),
    };
    log::unknown_fields(&app.config.log, "completion", &fields.unknown());
    if wish.params.stream && wish.prompts.is_list && wish.prompts.ids.len() > 1 {
        return Err(ApiError::field("stream", "takes one prompt"));
    }
    let Params { n, structure, .. } = &wish.params;
    let task = |prompt: &Vec<u32>| -> Result<Task> {
        Ok(Task {
            prompt: prompt.clone(),
            n_logprobs: (wish.n_probs > 0).then_some(wish.n_probs),
            constraints: served.constraints(structure.as_ref(), *n, None)?,
            ..Task::default()
        })
    };
    let tasks = wish.prompts.ids.iter().map(task).collect::<Result<_>>()?;
    Ok((wish, tasks))
}

/// One choice of an answer.
#[derive(Clone, Debug, Default)]
struct Choice {
    content: String,
    tokens: Vec<u32>,
    probabilities: Vec<Value>,
    has_new_line: bool,
}

struct Completion {
    wish: Wish,
    served: Arc<Served>,
}

impl Completion {
    async fn whole(&self, mut work: Work, mut choices: Vec<Choice>) -> Result<Value> {
        let mut bodies = vec![Value::Null; choices.len()];
        while let Some((index, update)) = work.next().await {
            let choice = &mut choices[index];
            match update {
                Update::Token(token) => {
                    choice.content += &token.text;
                    choice.tokens.extend(token.id);
                    choice.probabilities.extend(logprobs::llama(&token, &self.served));
                }
                Update::Done(outcome) => {
                    choice.has_new_line = choice.content.contains('\n');
                    bodies[index] = self.last(index, choice, &outcome, true);
                }
                Update::Failed(error) => return Err(error),
                Update::Started { .. } | Update::Prefill(_) | Update::Prompt(_) => {}
            }
        }
        let is_list = self.wish.prompts.is_list || bodies.len() > 1;
        Ok(if is_list { bodies.into() } else { bodies.pop().unwrap_or_default() })
    }

    async fn stream(
        self,
        events: Events,
        mut work: Work,
        mut choices: Vec<Choice>,
    ) -> std::result::Result<(), Left> {
        while let Some((index, update)) = events.wait(work.next()).await? {
            let choice = &mut choices[index];
            match update {
                Update::Token(token) => {
                    choice.has_new_line |= token.text.contains('\n');
                    choice.content += &token.text;
                    choice.tokens.extend(token.id);
                    choice.probabilities.extend(logprobs::llama(&token, &self.served));
                    if !token.text.is_empty() {
                        events.data(&self.part(index, choice, &work)).await?;
                    }
                }
                Update::Prefill(progress) if self.wish.params.return_progress => {
                    let mut part = self.part(index, choice, &work);
                    part["prompt_progress"] = progress.json();
                    if self.wish.params.timings_per_token {
                        part["timings"] = progress.timings().json();
                    }
                    events.data(&part).await?;
                }
                Update::Done(outcome) => {
                    events.data(&self.last(index, choice, &outcome, false)).await?;
                }
                Update::Failed(error) => return events.error(&error).await,
                Update::Started { .. } | Update::Prefill(_) | Update::Prompt(_) => {}
            }
        }
        Ok(())
    }

    /// A part of a stream: what has come since the part before.
    fn part(&self, index: usize, choice: &mut Choice, work: &Work) -> Value {
        let taken = std::mem::take(choice);
        choice.has_new_line = taken.has_new_line;
        let mut part = json!({
            "index": index, "content": taken.content, "tokens": taken.tokens, "stop": false,
        });
        if self.wish.n_probs > 0 {
            part["completion_probabilities"] = taken.probabilities.into();
        }
        if self.wish.params.timings_per_token {
            part["timings"] = work.timings(index).json();
        }
        part
    }

    /// The whole answer, or the last part of a stream.
    fn last(&self, index: usize, choice: &Choice, outcome: &Outcome, whole: bool) -> Value {
        let Completion { wish, served } = self;
        let ids = &wish.prompts.ids[index / wish.params.n];
        let mut settings = wish.params.report(wish.n_probs, &served.tokenizer);
        settings["seed"] = outcome.seed.into();
        settings["n_ctx"] = served.facts.n_ctx.into();
        let all_tokens = whole && wish.return_tokens;
        let stop_type = match outcome.ended {
            Ended::EndOfText | Ended::Complete => "eos",
            Ended::Stop => "word",
            Ended::Length | Ended::ContextFull | Ended::Deadline => "limit",
            Ended::Cancelled | Ended::Shutdown => "none",
        };
        let mut body = json!({
            "index": index,
            "content": if whole { choice.content.as_str() } else { "" },
            "tokens": if all_tokens { choice.tokens.as_slice() } else { &[] },
            "id_slot": wish.params.slot,
            "stop": true,
            "model": wish.model,
            "tokens_predicted": outcome.n_generated,
            "tokens_evaluated": outcome.n_prompt,
            "generation_settings": settings,
            "prompt": served.text(ids),
            "has_new_line": choice.has_new_line,
            "truncated": outcome.ended == Ended::ContextFull,
            "stop_type": stop_type,
            "stopping_word": outcome.stopped_by.as_deref().unwrap_or_default(),
            "tokens_cached": outcome.n_prompt + outcome.n_generated.saturating_sub(1),
            "timings": outcome.timings.json(),
        });
        if wish.n_probs > 0 && !choice.probabilities.is_empty() {
            body["completion_probabilities"] = choice.probabilities.clone().into();
        }
        if wish.response_fields.is_empty() { body } else { only(&body, &wish.response_fields) }
    }
}

/// These members of `body`; `a/b` is the member `b` of `a`, under that name.
fn only(body: &Value, names: &[String]) -> Value {
    let member = |name: &String| {
        let value = body.pointer(&format!("/{name}"))?;
        Some((name.clone(), value.clone()))
    };
    Value::Object(names.iter().filter_map(member).collect::<Map<String, Value>>())
}
