//! One request's generations: submitted to the scheduler, and their events received without
//! blocking. Dropping [`Work`] cancels what still runs.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use runtime::Settings;
use scheduler::{Ended, Event, Report, Request, SubmitError, Ticket, TokenEvent, TokenLogprobs};
use serde_json::{Value, json};
use text::sample::Constraint;
use tokio::sync::mpsc;

use crate::error::{ApiError, Result};
use crate::params::Params;
use crate::served::Served;
use crate::state::App;

/// A prompt to continue, with what its endpoint adds to the shared parameters.
#[derive(Debug, Default)]
pub(crate) struct Task {
    pub(crate) prompt: Vec<u32>,
    /// Stop strings besides those of the request.
    pub(crate) stops: Vec<String>,
    /// End tokens besides the vocabulary's.
    pub(crate) ends: Vec<u32>,
    /// Control tokens that belong to the text.
    pub(crate) written: Vec<u32>,
    /// Most likely tokens to report per token, if log-probabilities are needed.
    pub(crate) n_logprobs: Option<usize>,
    /// Also report those of the prompt.
    pub(crate) prompt_logprobs: bool,
    /// Restrict the output: empty, or one per choice.
    pub(crate) constraints: Vec<Box<dyn Constraint>>,
}

/// What happened to one choice. Choices of several prompts are numbered on.
#[derive(Debug)]
pub(crate) enum Update {
    Started { n_cached: usize },
    Prefill(Progress),
    Prompt(Vec<Option<TokenLogprobs>>),
    Token(TokenEvent),
    Done(Outcome),
    Failed(ApiError),
}

/// Progress of a prompt.
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

    /// Timings of the tokens computed so far. Before the first of them no time counts.
    pub(crate) fn timings(&self) -> Timings {
        let n_prompt = self.done.saturating_sub(self.cached);
        let prompt = if n_prompt == 0 { Duration::ZERO } else { self.time };
        Timings { n_cached: self.cached, n_prompt, prompt, ..Timings::default() }
    }
}

/// How a choice ended.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) ended: Ended,
    pub(crate) stopped_by: Option<String>,
    pub(crate) n_prompt: usize,
    pub(crate) n_cached: usize,
    pub(crate) n_generated: usize,
    pub(crate) seed: u32,
    pub(crate) timings: Timings,
}

impl Outcome {
    fn of(report: Report) -> Outcome {
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

    /// Whether a limit ended it, not the text itself.
    pub(crate) fn is_cut(&self) -> bool {
        matches!(self.ended, Ended::Length | Ended::ContextFull | Ended::Deadline)
    }

    /// OpenAI's `finish_reason`, without tool calls.
    pub(crate) fn finish_reason(&self) -> &'static str {
        if self.is_cut() { "length" } else { "stop" }
    }
}

/// Durations of a generation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timings {
    pub(crate) n_cached: usize,
    pub(crate) n_prompt: usize,
    pub(crate) prompt: Duration,
    pub(crate) n_generated: usize,
    pub(crate) generated: Duration,
}

impl Timings {
    /// llama.cpp's `timings`. The first token comes from the prompt, so that rates are of the
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

/// Generations that run for one request.
pub(crate) struct Work {
    receiver: mpsc::UnboundedReceiver<(usize, Update)>,
    /// Dropping them cancels.
    _tickets: Vec<Ticket>,
    n_open: usize,
    clocks: Vec<Clock>,
    app: App,
}

/// When the choice was submitted, when its prompt and its first token were there, and its latest
/// token.
#[derive(Clone, Copy, Debug)]
struct Clock {
    submitted: Instant,
    started: Instant,
    first: Option<Instant>,
    latest: Instant,
    n_cached: usize,
    n_prompt: usize,
    n_generated: usize,
}

impl Work {
    /// Submits the tasks: `params.n` choices of each.
    ///
    /// # Errors
    /// 400 for an invalid request, such as an empty or too long prompt; 429 if the queue is full;
    /// 503 while the server shuts down; 500 if the scheduler has failed.
    pub(crate) fn submit(
        app: &App,
        served: &Served,
        params: &Params,
        tasks: Vec<Task>,
    ) -> Result<Work> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let now = Instant::now();
        let limit = app.config.limits.time;
        let mut tickets = Vec::new();
        let mut clocks = Vec::new();
        for (index, task) in tasks.into_iter().enumerate() {
            let first = index * params.n;
            let sender = sender.clone();
            let clock = Clock {
                submitted: now,
                started: now,
                first: None,
                latest: now,
                n_cached: 0,
                n_prompt: task.prompt.len(),
                n_generated: 0,
            };
            clocks.extend(std::iter::repeat_n(clock, params.n));
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
            tickets.push(ticket.map_err(refused)?);
        }
        let n_open = clocks.len();
        Ok(Work { receiver, _tickets: tickets, n_open, clocks, app: app.clone() })
    }

    /// The next event of any choice; `None` after all have ended.
    pub(crate) async fn next(&mut self) -> Option<(usize, Update)> {
        if self.n_open == 0 {
            return None;
        }
        let Some((choice, update)) = self.receiver.recv().await else {
            self.n_open = 0;
            let error = ApiError::server("the scheduler has ended").final_();
            return Some((0, Update::Failed(error)));
        };
        self.note(choice, &update);
        Some((choice, update))
    }

    fn note(&mut self, choice: usize, update: &Update) {
        let now = Instant::now();
        let clock = &mut self.clocks[choice];
        match update {
            Update::Started { n_cached } => {
                (clock.started, clock.n_cached) = (now, *n_cached);
            }
            Update::Token(token) if token.id.is_some() => {
                let metrics = &self.app.metrics;
                match clock.first {
                    None => metrics.first_token(now - clock.submitted),
                    Some(_) => metrics.between_tokens(now - clock.latest),
                }
                clock.first.get_or_insert(now);
                (clock.latest, clock.n_generated) = (now, clock.n_generated + 1);
            }
            Update::Done(_) | Update::Failed(_) => self.n_open -= 1,
            Update::Prefill(_) | Update::Prompt(_) | Update::Token(_) => {}
        }
    }

    /// The durations of a choice so far.
    pub(crate) fn timings(&self, choice: usize) -> Timings {
        let clock = &self.clocks[choice];
        let first = clock.first.unwrap_or(clock.latest);
        Timings {
            n_cached: clock.n_cached,
            n_prompt: clock.n_prompt - clock.n_cached,
            prompt: first.saturating_duration_since(clock.started),
            n_generated: clock.n_generated,
            generated: clock.latest.saturating_duration_since(first),
        }
    }
}

fn translate(event: Event, total: usize, started: Instant, limit: Duration) -> Update {
    match event {
        // The first progress of a prompt: nothing is computed yet.
        Event::Started { n_cached: cached, .. } => {
            Update::Prefill(Progress { total, cached, done: cached, time: Duration::ZERO })
        }
        Event::Prefill { done, total, cached } => {
            Update::Prefill(Progress { total, cached, done, time: started.elapsed() })
        }
        Event::PromptLogprobs(all) => Update::Prompt(all),
        Event::Token(token) => Update::Token(token),
        Event::Finished(report) => match report.ended {
            Ended::Deadline => Update::Failed(ApiError::timeout(limit.as_secs())),
            Ended::Shutdown => Update::Failed(ApiError::unavailable("the server is shutting down")),
            Ended::EndOfText
            | Ended::Stop
            | Ended::Complete
            | Ended::Length
            | Ended::ContextFull
            | Ended::Cancelled => Update::Done(Outcome::of(report)),
        },
        Event::Failed(error) => Update::Failed(failed(&error)),
    }
}

fn request(served: &Served, params: &Params, task: Task, deadline: Instant) -> Request {
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
            ends: task.ends,
            special: served.defaults.special,
            written: task.written,
            ..Settings::default()
        },
        n_choices: params.n,
        n_logprobs: task.n_logprobs,
        prompt_logprobs: task.prompt_logprobs,
        constraints: task.constraints,
        cache_prompt: params.cache_prompt,
        slot: params.slot,
        deadline: Some(deadline),
    }
}

/// Why the scheduler refused a request.
pub(crate) fn refused(error: SubmitError) -> ApiError {
    match error {
        SubmitError::QueueFull { n_queued } => ApiError::queue_full(n_queued),
        SubmitError::PromptTooLong { n_prompt, n_ctx } => ApiError::too_long(n_prompt, n_ctx),
        SubmitError::Empty => ApiError::field("prompt", "has no tokens"),
        SubmitError::BadToken { .. } => ApiError::field("prompt", format!("is invalid: {error}")),
        SubmitError::NoSuchSlot { .. } => {
            ApiError::field("id_slot", format!("is invalid: {error}"))
        }
        SubmitError::ShuttingDown => ApiError::unavailable("the server is shutting down"),
        SubmitError::Unhealthy => {
            ApiError::server("the scheduler has failed; restart the server").final_()
        }
        // New kinds of refusals are about the request too.
        SubmitError::BadSampler(_) | SubmitError::BadChoices { .. } | _ => {
            ApiError::invalid(error.to_string())
        }
    }
}

/// Why the scheduler ended a generation.
pub(crate) fn failed(error: &scheduler::Error) -> ApiError {
    match error {
        scheduler::Error::ShuttingDown => ApiError::unavailable("the server is shutting down"),
        scheduler::Error::Constraint(_) => ApiError::unprocessable(error.to_string()),
        scheduler::Error::Engine(_)
        | scheduler::Error::Sample(_)
        | scheduler::Error::Tokenizer(_)
        | scheduler::Error::Panicked
        | _ => ApiError::server(format!("the generation failed: {error}")).final_(),
    }
}
