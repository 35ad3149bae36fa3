//! `/v1/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use scheduler::TokenLogprobs;
use serde_json::{Value, json};

use super::logprobs::TextLogprobs;
use super::{ResponseHead, Usage};
use crate::error::{ApiError, Result};
use crate::fields::{Fields, is_empty};
use crate::job::{Job, Outcome, Task, Update};
use crate::llama::infill;
use crate::params::{MAX_PROBS, Params};
use crate::served::ServedModel;
use crate::state::App;
use crate::stream::{self, Disconnected, Events};
use crate::{json, limits, log, prompts};

struct ParsedRequest {
    params: Params,
    prompts: Vec<Vec<u32>>,
    echo: bool,
    logprobs: bool,
    /// Number of choices to return for each prompt, out of `params.n` candidates.
    n_best: usize,
}

pub(crate) async fn complete(State(app): State<App>, request: Request) -> Result<Response> {
    let fields = limits::fields(&app, request).await?;
    let served = app.served()?;
    let (parsed, tasks) = {
        let (app, served) = (app.clone(), served.clone());
        limits::blocking(move || prepare(fields, &app, &served)).await?
    };
    let head = ResponseHead::new("cmpl-", &app, &served);
    let job = Job::submit(&app, &served, &parsed.params, tasks)?;
    let n = parsed.prompts.len() * parsed.params.n;
    let mut choices: Vec<Choice> = Vec::with_capacity(n);
    for index in 0..n {
        let prompt = &parsed.prompts[index / parsed.params.n];
        choices.push(Choice::new(parsed.echo.then_some(prompt.as_slice()), &parsed, &served));
    }
    if parsed.params.stream {
        let keep_alive = parsed.params.keep_alive;
        let stream = ResponseStream { head, parsed, served, usage: Usage::default() };
        return Ok(stream::response(keep_alive, |events| stream.write(events, job, choices)));
    }
    Ok(json::answer(&whole(&head, &parsed, job, choices, &served).await?))
}

fn prepare(
    mut fields: Fields,
    app: &App,
    served: &ServedModel,
) -> Result<(ParsedRequest, Vec<Task>)> {
    let prompt = fields.take("prompt");
    let suffix = fields.take("suffix").filter(|suffix| !is_empty(suffix));
    let prompts = match suffix {
        None => prompts::read(prompt, served)?.ids,
        Some(suffix) => match (prompt, suffix) {
            (Some(Value::String(prefix)), Value::String(suffix)) => {
                let gap = infill::Gap { prefix, suffix, ..infill::Gap::default() };
                vec![gap.prompt(served).map_err(|error| error.with_param("suffix"))?]
            }
            _ => return Err(ApiError::field("suffix", "must be a string, and so must `prompt`")),
        },
    };
    let echo = fields.bool("echo")?.unwrap_or(false);
    let logprobs = n_logprobs(&mut fields)?;
    let best_of = fields.count("best_of", app.config.limits.n_choices)?;
    let mut params = Params::read(&mut fields, served, &app.config.limits)?;
    log::unknown_fields(&app.config.log, "completions", &fields.unknown());
    let n_best = params.n;
    if let Some(best_of) = best_of.filter(|best_of| *best_of != params.n) {
        if best_of < params.n {
            return Err(ApiError::field("best_of", "must be at least `n`"));
        }
        if params.stream {
            return Err(ApiError::field("best_of", "must equal `n` in a stream"));
        }
        params.n = best_of;
    }
    // The best candidates are chosen by their log-probabilities.
    let needed = logprobs.or((params.n > n_best).then_some(0));
    let task = |prompt: &Vec<u32>| -> Result<Task> {
        Ok(Task {
            prompt: prompt.clone(),
            n_logprobs: needed,
            prompt_logprobs: echo && logprobs.is_some(),
            constraints: served.constraints(params.structure.as_ref(), params.n, None)?,
            ..Task::default()
        })
    };
    let tasks = prompts.iter().map(task).collect::<Result<_>>()?;
    Ok((ParsedRequest { params, prompts, echo, logprobs: logprobs.is_some(), n_best }, tasks))
}

/// Reads OpenAI's `logprobs`, which is a number in this endpoint, or llama-server's `n_probs`.
fn n_logprobs(fields: &mut Fields) -> Result<Option<usize>> {
    let n_probs = fields.count("n_probs", MAX_PROBS)?.filter(|n| *n > 0);
    match fields.take("logprobs") {
        None | Some(Value::Bool(false)) => Ok(n_probs),
        Some(Value::Bool(true)) => Ok(Some(n_probs.unwrap_or(1))),
        Some(number) => {
            let mut number =
                Fields::from_map([("logprobs".to_owned(), number)].into_iter().collect());
            number.count("logprobs", MAX_PROBS)
        }
    }
}

#[derive(Debug)]
struct Choice {
    text: String,
    logprobs: TextLogprobs,
    /// The tokens of the echoed prompt, until their log-probabilities arrive.
    echoed: Vec<u32>,
    outcome: Option<Outcome>,
}

impl Choice {
    /// An empty choice; if `echo` is given, its text begins with the prompt.
    fn new(echo: Option<&[u32]>, parsed: &ParsedRequest, served: &ServedModel) -> Choice {
        let echoed = echo.unwrap_or_default();
        let bytes: Vec<u8> = prompt_bytes(echoed, served).collect();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let echoed = if parsed.logprobs { echoed.to_vec() } else { Vec::new() };
        Choice { text, logprobs: TextLogprobs::default(), echoed, outcome: None }
    }

    fn add_prompt(&mut self, entries: &[Option<TokenLogprobs>], served: &ServedModel) {
        for (id, logprobs) in std::mem::take(&mut self.echoed).iter().zip(entries) {
            self.logprobs.push(served.bytes(*id), logprobs.as_ref(), served);
        }
    }

    fn json(&self, index: usize, with_logprobs: bool) -> Value {
        json!({
            "index": index,
            "text": self.text,
            "finish_reason": self.outcome.as_ref().map(Outcome::finish_reason),
            "logprobs": with_logprobs.then(|| self.logprobs.json()),
        })
    }
}

/// The bytes of the prompt's tokens as the client sent it: without the BOS token.
fn prompt_bytes<'a>(ids: &'a [u32], served: &'a ServedModel) -> impl Iterator<Item = u8> + 'a {
    let added = served.tokenizer.bos().filter(|_| served.tokenizer.adds_bos());
    let skip = usize::from(added.is_some() && ids.first().copied() == added);
    let bytes = ids[skip..].iter().flat_map(|id| served.bytes(*id)).copied();
    // Also remove the space that some vocabularies prepend to a text.
    let mut first = served.tokenizer.has_space_prefix();
    bytes.filter(move |byte| !std::mem::take(&mut first) || *byte != b' ')
}

/// The indices of all choices with the prompt of choice `index`. The prompt's log-probabilities
/// arrive with the first of them.
fn same_prompt(index: usize, n: usize) -> std::ops::Range<usize> {
    let first = index / n * n;
    first..first + n
}

async fn whole(
    head: &ResponseHead,
    parsed: &ParsedRequest,
    mut job: Job,
    mut choices: Vec<Choice>,
    served: &ServedModel,
) -> Result<Value> {
    let (mut usage, mut timings) = (Usage::default(), None);
    while let Some((index, update)) = job.next().await {
        let group = same_prompt(index, parsed.params.n);
        let choice = &mut choices[index];
        match update {
            Update::PromptLogprobs(entries) => {
                choices[group].iter_mut().for_each(|choice| choice.add_prompt(&entries, served));
            }
            Update::Token(token) => {
                choice.text += &token.text;
                if token.logprobs.is_some() {
                    choice.logprobs.push(&token.bytes, token.logprobs.as_ref(), served);
                }
            }
            Update::Done(outcome) => {
                usage.add(&outcome, index % parsed.params.n == 0);
                timings.get_or_insert(outcome.timings);
                choice.outcome = Some(outcome);
            }
            Update::Failed(error) => return Err(error),
            Update::Started { .. } | Update::Prefill(_) => {}
        }
    }
    let mut body = Vec::new();
    for group in choices.chunks_mut(parsed.params.n) {
        if parsed.n_best < group.len() {
            group.sort_by(|a, b| b.logprobs.mean().total_cmp(&a.logprobs.mean()));
        }
        for choice in &group[..parsed.n_best] {
            body.push(choice.json(body.len(), parsed.logprobs));
        }
    }
    let mut body = head.object("text_completion", body);
    body["usage"] = usage.json();
    body["timings"] = timings.unwrap_or_default().json();
    Ok(body)
}

struct ResponseStream {
    head: ResponseHead,
    parsed: ParsedRequest,
    served: Arc<ServedModel>,
    usage: Usage,
}

impl ResponseStream {
    async fn write(
        mut self,
        events: Events,
        mut job: Job,
        mut choices: Vec<Choice>,
    ) -> std::result::Result<(), Disconnected> {
        let mut last = Value::Null;
        while let Some((index, update)) = events.wait(job.next()).await? {
            let choice = &mut choices[index];
            match update {
                Update::PromptLogprobs(entries) => {
                    for index in same_prompt(index, self.parsed.params.n) {
                        let choice = &mut choices[index];
                        choice.add_prompt(&entries, &self.served);
                        let text = std::mem::take(&mut choice.text);
                        let logprobs = Some(choice.logprobs.take());
                        events.send(&self.chunk(index, &text, logprobs, None)).await?;
                    }
                }
                Update::Token(token) => {
                    if token.logprobs.is_some() {
                        let logprobs = token.logprobs.as_ref();
                        choice.logprobs.push(&token.bytes, logprobs, &self.served);
                    }
                    // The first chunk begins with the echoed prompt. Log-probabilities are sent with
                    // the text of their tokens.
                    let text = std::mem::take(&mut choice.text) + &token.text;
                    if text.is_empty() {
                        continue;
                    }
                    let logprobs = self.parsed.logprobs.then(|| choice.logprobs.take());
                    let mut chunk = self.chunk(index, &text, logprobs, None);
                    if self.parsed.params.timings_per_token {
                        chunk["timings"] = job.timings(index).json();
                    }
                    events.send(&chunk).await?;
                }
                Update::Prefill(progress) if self.parsed.params.return_progress => {
                    let mut chunk = self.chunk(index, "", None, None);
                    chunk["prompt_progress"] = progress.json();
                    events.send(&chunk).await?;
                }
                Update::Started { .. } | Update::Prefill(_) => {}
                Update::Done(outcome) => {
                    self.usage.add(&outcome, index % self.parsed.params.n == 0);
                    let text = std::mem::take(&mut choice.text);
                    let finish = Some(outcome.finish_reason());
                    // Send log-probabilities of tokens whose text was never sent.
                    let has_rest = self.parsed.logprobs && !choice.logprobs.is_empty();
                    let rest = has_rest.then(|| choice.logprobs.take());
                    let mut chunk = self.chunk(index, &text, rest, finish);
                    last = outcome.timings.json();
                    chunk["timings"] = last.clone();
                    events.send(&chunk).await?;
                }
                Update::Failed(error) => return events.send_error(&error).await,
            }
        }
        if self.parsed.params.include_usage {
            let mut chunk = self.head.object("text_completion", Vec::new());
            chunk["usage"] = self.usage.json();
            chunk["timings"] = last;
            events.send(&chunk).await?;
        }
        events.send_done().await
    }

    fn chunk(
        &self,
        index: usize,
        text: &str,
        logprobs: Option<Value>,
        finish: Option<&str>,
    ) -> Value {
        let choice = json!({
            "index": index, "text": text, "logprobs": logprobs, "finish_reason": finish,
        });
        let mut chunk = self.head.object("text_completion", vec![choice]);
        if self.parsed.params.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }
}
