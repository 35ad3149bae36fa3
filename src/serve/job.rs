//! The generations of one request: submits them to the scheduler and receives their events without
//! blocking. Dropping [`Job`] cancels running generations.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use runtime::Settings;
use scheduler::{
    EndReason, Event, Report, Request, SubmitError, Ticket, TokenEvent, TokenLogprobs,
};
use serde_json::{Value, json};
use text::sample::Constraint;
use tokio::sync::mpsc;

use crate::error::{ApiError, Result};
use crate::params::Params;
use crate::served::ServedModel;
use crate::state::App;

/// A prompt to continue, with settings of the endpoint in addition to the shared parameters.
#[derive(Debug, Default)]
pub(crate) struct Task {
    pub(crate) prompt: Vec<u32>,
    /// Stop strings, in addition to those of the request.
    pub(crate) stops: Vec<String>,
    /// Tokens that end the text, in addition to the vocabulary's end-of-generation tokens.
    pub(crate) end_tokens: Vec<u32>,
    /// Control tokens that are kept in the text.
    pub(crate) written_tokens: Vec<u32>,
    /// Number of most likely tokens to report per token; `None` without log-probabilities.
    pub(crate) n_logprobs: Option<usize>,
    /// Report log-probabilities after all samplers.
    pub(crate) post_sampling: bool,
    /// Also report log-probabilities of the prompt.
    pub(crate) prompt_logprobs: bool,
    /// Constraints on the output: empty, or one per choice.
    pub(crate) constraints: Vec<Box<dyn Constraint>>,
}

/// An event of one choice. Choices are numbered consecutively over all prompts.
#[derive(Debug)]
pub(crate) enum Update {
    Started { n_cached: usize },
    Prefill(Progress),
    PromptLogprobs(Vec<Option<TokenLogprobs>>),
    Token(TokenEvent),
    Done(Outcome),
    Failed(ApiError),
}

/// Progress of prefill: numbers of prompt tokens, and the time so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    total: usize,
    cached: usize,
    done: usize,
    time: Duration,
}

impl Progress {
    /// llama.cpp's `prompt_progress`.
    pub(crate) fn json(&self) -> Value {
        let Progress { total, cached, done, time } = self;
        json!({ "total": total, "cache": cached, "processed": done, "time_ms": time.as_millis() })
    }

    /// Timings of the prompt tokens computed so far.
    pub(crate) fn timings(&self) -> Timings {
        let n_prompt = self.done.saturating_sub(self.cached);
        let prompt = if n_prompt == 0 { Duration::ZERO } else { self.time };
        Timings { n_cached: self.cached, n_prompt, prompt, ..Timings::default() }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) ended: EndReason,
    pub(crate) stopped_by: Option<String>,
    pub(crate) n_prompt: usize,
    pub(crate) n_cached: usize,
    pub(crate) n_generated: usize,
    pub(crate) seed: u32,
    pub(crate) timings: Timings,
}

impl Outcome {
    fn from_report(report: Report) -> Outcome {
        let n_prompt = report.n_prompt - report.n_cached;
        Outcome {
            ended: report.ended,
            stopped_by: report.stopped_by,
            n_prompt: report.n_prompt,
            n_cached: report.n_cached,
            n_generated: report.n_generated,
            seed: report.seed,
            timings: Timings {
                n_cached: report.n_cached,
                n_prompt,
                prompt: report.times.prompt,
                n_generated: report.n_generated,
                generated: report.times.generated,
            },
        }
    }

    /// Whether a limit ended the text.
    pub(crate) fn hit_limit(&self) -> bool {
        match self.ended {
            EndReason::Length
            | EndReason::TimeLimit
            | EndReason::ContextFull
            | EndReason::Deadline => true,
            EndReason::EndOfText
            | EndReason::Stop
            | EndReason::Complete
            | EndReason::Cancelled
            | EndReason::Shutdown => false,
        }
    }

    /// OpenAI's `finish_reason`, without tool calls.
    pub(crate) fn finish_reason(&self) -> &'static str {
        if self.hit_limit() { "length" } else { "stop" }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timings {
    pub(crate) n_cached: usize,
    pub(crate) n_prompt: usize,
    pub(crate) prompt: Duration,
    pub(crate) n_generated: usize,
    pub(crate) generated: Duration,
}

impl Timings {
    /// llama.cpp's `timings`. Prefill yields the first token, so the decode rate counts only the
    /// tokens after it.
    pub(crate) fn json(&self) -> Value {
        let [prompt, generated] =
            [self.prompt, self.generated].map(|time| time.as_secs_f64() * 1e3);
        let per = |ms: f64, n: usize| if n == 0 { 0.0 } else { ms / n as f64 };
        let rate = |ms: f64, n: usize| if ms == 0.0 { 0.0 } else { 1e3 * n as f64 / ms };
        let n_steps = self.n_generated.saturating_sub(1);
        json!({
            "cache_n": self.n_cached,
            "prompt_n": self.n_prompt,
            "prompt_ms": prompt,
            "prompt_per_token_ms": per(prompt, self.n_prompt),
            "prompt_per_second": rate(prompt, self.n_prompt),
            "predicted_n": self.n_generated,
            "predicted_ms": generated,
            "predicted_per_token_ms": per(generated, n_steps),
            "predicted_per_second": rate(generated, n_steps),
        })
    }
}

pub(crate) struct Job {
    receiver: mpsc::UnboundedReceiver<(usize, Update)>,
    /// Dropping the tickets cancels the generations.
    _tickets: Vec<Ticket>,
    n_open: usize,
    stats: Vec<ChoiceStats>,
    app: App,
}

#[derive(Clone, Copy, Debug)]
struct ChoiceStats {
    submitted: Instant,
    started: Instant,
    /// Time of the first token.
    first: Option<Instant>,
    /// Time of the latest token.
    latest: Instant,
    n_cached: usize,
    n_prompt: usize,
    n_generated: usize,
}

impl Job {
    /// Submits the tasks, each with `params.n` choices.
    ///
    /// # Errors
    /// 400 for an invalid request, such as an empty or too long prompt; 429 if the queue is full;
    /// 503 while the server shuts down; 500 if the scheduler has failed.
    pub(crate) fn submit(
        app: &App,
        served: &ServedModel,
        params: &Params,
        tasks: Vec<Task>,
    ) -> Result<Job> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let now = Instant::now();
        let limit = app.config.limits.timeout;
        let mut tickets = Vec::new();
        let mut stats = Vec::new();
        for (index, task) in tasks.into_iter().enumerate() {
            let first = index * params.n;
            let sender = sender.clone();
            let initial = ChoiceStats {
                submitted: now,
                started: now,
                first: None,
                latest: now,
                n_cached: 0,
                n_prompt: task.prompt.len(),
                n_generated: 0,
            };
            stats.extend(std::iter::repeat_n(initial, params.n));
            let mut started = now;
            let total = task.prompt.len();
            let sink = move |update: scheduler::Update| {
                let choice = first + update.choice;
                let mut sent = Ok(());
                if let Event::Started { n_cached: cached, .. } = update.event {
                    started = Instant::now();
                    sent = sender.send((choice, Update::Started { n_cached: cached }));
                }
                let translated = translate(update.event, total, started, limit);
                match sent.and_then(|()| sender.send((choice, translated))) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(_) => ControlFlow::Break(()),
                }
            };
            let request = request(served, params, task, now + limit);
            let ticket = served.scheduler.submit_to(request, Box::new(sink));
            tickets.push(ticket.map_err(submit_error)?);
        }
        let n_open = stats.len();
        Ok(Job { receiver, _tickets: tickets, n_open, stats, app: app.clone() })
    }

    /// The next event of any choice; `None` once all choices have ended.
    pub(crate) async fn next(&mut self) -> Option<(usize, Update)> {
        if self.n_open == 0 {
            return None;
        }
        let Some((choice, update)) = self.receiver.recv().await else {
            self.n_open = 0;
            let error =
                ApiError::server("the scheduler has stopped; restart the server").no_retry();
            return Some((0, Update::Failed(error)));
        };
        self.record(choice, &update);
        Some((choice, update))
    }

    fn record(&mut self, choice: usize, update: &Update) {
        let now = Instant::now();
        let stats = &mut self.stats[choice];
        match update {
            Update::Started { n_cached } => {
                (stats.started, stats.n_cached) = (now, *n_cached);
            }
            Update::Token(token) if token.id.is_some() => {
                let metrics = &self.app.metrics;
                match stats.first {
                    None => metrics.first_token(now - stats.submitted),
                    Some(_) => metrics.between_tokens(now - stats.latest),
                }
                stats.first.get_or_insert(now);
                (stats.latest, stats.n_generated) = (now, stats.n_generated + 1);
            }
            Update::Done(_) | Update::Failed(_) => self.n_open -= 1,
            Update::Prefill(_) | Update::PromptLogprobs(_) | Update::Token(_) => {}
        }
    }

    pub(crate) fn timings(&self, choice: usize) -> Timings {
        let stats = &self.stats[choice];
        let first = stats.first.unwrap_or(stats.latest);
        Timings {
            n_cached: stats.n_cached,
            n_prompt: stats.n_prompt - stats.n_cached,
            prompt: first.saturating_duration_since(stats.started),
            n_generated: stats.n_generated,
            generated: stats.latest.saturating_duration_since(first),
        }
    }
}

fn translate(event: Event, total: usize, started: Instant, limit: Duration) -> Update {
    match event {
        // The first progress report, before any token is computed.
        Event::Started { n_cached: cached, .. } => {
            Update::Prefill(Progress { total, cached, done: cached, time: Duration::ZERO })
        }
        Event::Prefill { done, total, cached } => {
            Update::Prefill(Progress { total, cached, done, time: started.elapsed() })
        }
        Event::PromptLogprobs(logprobs) => Update::PromptLogprobs(logprobs),
        Event::Token(token) => Update::Token(token),
        Event::Finished(report) => match report.ended {
            EndReason::Deadline => Update::Failed(ApiError::timeout(limit.as_secs())),
            EndReason::Shutdown => {
                Update::Failed(ApiError::unavailable("the server is shutting down"))
            }
            EndReason::EndOfText
            | EndReason::Stop
            | EndReason::Complete
            | EndReason::Length
            | EndReason::TimeLimit
            | EndReason::ContextFull
            | EndReason::Cancelled => Update::Done(Outcome::from_report(report)),
        },
        Event::Failed(error) => Update::Failed(generation_error(&error)),
    }
}

fn request(served: &ServedModel, params: &Params, task: Task, deadline: Instant) -> Request {
    let mut sampler = params.sampler.clone();
    if params.ignore_eos {
        let banned = served.tokenizer.eog().iter();
        sampler.logit_bias.extend(banned.map(|id| (*id, f32::NEG_INFINITY)));
    }
    let mut stops = params.stops.clone();
    stops.extend(task.stops);
    Request {
        prompt: task.prompt,
        sampler,
        settings: Settings {
            n_predict: params.n_predict,
            stops,
            end_of_text: !params.ignore_eos,
            end_tokens: task.end_tokens,
            special: served.defaults.special,
            written_tokens: task.written_tokens,
            ..Settings::default()
        },
        n_choices: params.n,
        n_logprobs: task.n_logprobs,
        post_sampling: task.post_sampling,
        prompt_logprobs: task.prompt_logprobs,
        constraints: task.constraints,
        cache_prompt: params.cache_prompt,
        slot: params.slot,
        deadline: Some(deadline),
        max_time: params.max_time,
    }
}

pub(crate) fn submit_error(error: SubmitError) -> ApiError {
    match error {
        SubmitError::QueueFull { n_queued } => ApiError::queue_full(n_queued),
        SubmitError::PromptTooLong { n_prompt, n_ctx } => ApiError::too_long(n_prompt, n_ctx),
        SubmitError::Encoder => ApiError::not_supported(error.to_string()),
        SubmitError::Empty => ApiError::field("prompt", "has no tokens"),
        SubmitError::BadToken { .. } => ApiError::field("prompt", format!("is invalid: {error}")),
        SubmitError::NoSuchSlot { .. } => {
            ApiError::field("id_slot", format!("is invalid: {error}"))
        }
        SubmitError::ShuttingDown => ApiError::unavailable("the server is shutting down"),
        SubmitError::Unhealthy => {
            ApiError::server("the scheduler has failed; restart the server").no_retry()
        }
        // The enum is non-exhaustive; treat new variants as errors of the request.
        SubmitError::BadSampler(_) | SubmitError::BadChoices { .. } | _ => {
            ApiError::invalid(error.to_string())
        }
    }
}

pub(crate) fn generation_error(error: &scheduler::Error) -> ApiError {
    match error {
        scheduler::Error::ShuttingDown => ApiError::unavailable("the server is shutting down"),
        scheduler::Error::Constraint(_) => ApiError::unprocessable(error.to_string()),
        scheduler::Error::Engine(engine) if lacks_memory(engine) => {
            ApiError::unavailable(format!("not enough memory for this request: {error}"))
        }
        scheduler::Error::Engine(_)
        | scheduler::Error::Sample(_)
        | scheduler::Error::Tokenizer(_)
        | scheduler::Error::Panicked
        | _ => ApiError::server(format!("the generation failed: {error}")).no_retry(),
    }
}

/// Whether the memory of a device or of this machine is full, which other requests may free.
pub(crate) fn lacks_memory(error: &engine::Error) -> bool {
    matches!(error, engine::Error::Device(hal::Error::OutOfMemory { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_without_memory_may_be_tried_again() {
        let full = hal::Error::OutOfMemory {
            device: "CPU".into(),
            label: "KV cache".into(),
            requested: hal::Bytes(10),
            free: hal::Bytes(5),
        };
        let status = |error: hal::Error| {
            let error = scheduler::Error::Engine(std::sync::Arc::new(error.into()));
            generation_error(&error).status.as_u16()
        };
        assert_eq!((status(full), status(hal::Error::Cancelled)), (503, 500));
    }
}
