//! One choice of a request: samples tokens from logits and reports them as events.

use std::sync::Arc;
use std::time::{Duration, Instant};

use runtime::Settings;
use text::sample::{Constraint, Sampler, StopStrings};
use text::tokenizer::{Detokenizer, Start, Tokenizer};

use crate::logprobs::{after_sampling, logprobs};
use crate::queue::{Caller, Job};
use crate::request::{EndReason, Error, Event, Report, Times, TokenEvent, TokenLogprobs};

/// Result of sampling from the logits after the last token.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The next token.
    Sampled(u32),
    /// The text is complete.
    Ended(End),
    /// An error of the sampler, the constraint or the tokenizer.
    Failed(Error),
}

#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) ended: EndReason,
    pub(crate) stopped_by: Option<String>,
    /// The token that ended the text.
    pub(crate) token: Option<u32>,
}

impl From<EndReason> for End {
    fn from(ended: EndReason) -> End {
        End { ended, stopped_by: None, token: None }
    }
}

/// Samples tokens from logits, detokenizes them, and sends both to the caller.
#[derive(Debug)]
pub(crate) struct Writer<'t> {
    tokenizer: &'t Tokenizer,
    detokenizer: Detokenizer<'t>,
    stops: StopStrings,
    sampler: Sampler,
    constraint: Option<Box<dyn Constraint>>,
    settings: Arc<Settings>,
    n_logprobs: Option<usize>,
    post_sampling: bool,
    max_time: Option<Duration>,
    /// Of the prompt tokens computed so far; `None` if not requested or already sent.
    prompt_logprobs: Option<Vec<Option<TokenLogprobs>>>,
    caller: Arc<Caller>,
    choice: usize,
    n_generated: usize,
    /// When the first token was sampled.
    first: Option<Instant>,
    /// Result of the latest step, set by [`Writer::take_logits`].
    pub(crate) outcome: Option<Outcome>,
}

impl Writer<'_> {
    /// Samples the next token from the logits after the last token, and reports it.
    pub(crate) fn take_logits(&mut self, logits: &[f32]) {
        if let Some(all) = self.prompt_logprobs.take() {
            self.send(Event::PromptLogprobs(all));
        }
        let outcome = self.sample(logits).unwrap_or_else(Outcome::Failed);
        self.outcome = Some(outcome);
    }

    /// Records the log-probability of `token`, the prompt token that follows these logits.
    pub(crate) fn take_prompt_logits(&mut self, logits: &[f32], token: u32) {
        let n = self.n_logprobs.unwrap_or(0);
        if let Some(all) = &mut self.prompt_logprobs {
            all.push(Some(logprobs(logits, token, n)));
        }
    }

    /// Discards the log-probabilities of the prompt, which will be computed again from its start.
    pub(crate) fn restart(&mut self) {
        if let Some(all) = &mut self.prompt_logprobs {
            all.truncate(1);
        }
    }

    pub(crate) fn wants_prompt_logprobs(&self) -> bool {
        self.prompt_logprobs.is_some()
    }

    fn sample(&mut self, logits: &[f32]) -> Result<Outcome, Error> {
        let is_full = |n: usize| self.settings.n_predict.is_some_and(|most| n >= most);
        if is_full(self.n_generated) {
            return Ok(Outcome::Ended(EndReason::Length.into()));
        }
        let allowed =
            self.constraint.as_mut().map(|constraint| constraint.allowed()).transpose()?;
        let token = self.sampler.sample_from(logits, allowed)?;
        self.sampler.accept(token);
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token)?;
        }
        self.n_generated += 1;
        let first = *self.first.get_or_insert_with(Instant::now);
        let ends = self.tokenizer.is_eog(token) || self.settings.end_tokens.contains(&token);
        if self.settings.end_of_text && ends {
            let end = End { ended: EndReason::EndOfText, stopped_by: None, token: Some(token) };
            return Ok(Outcome::Ended(end));
        }
        let full = is_full(self.n_generated);
        let pushed = self.stops.push(self.detokenizer.push(token)?);
        let is_late = self.max_time.is_some_and(|most| first.elapsed() > most);
        let ends_line = is_late && pushed.text.contains('\n');
        self.send(Event::Token(TokenEvent {
            id: Some(token),
            text: pushed.text,
            bytes: self.tokenizer.piece(token, true)?.to_vec(),
            logprobs: self.n_logprobs.map(|n| {
                if self.post_sampling {
                    after_sampling(&self.sampler, token, n)
                } else {
                    logprobs(logits, token, n)
                }
            }),
        }));
        let complete = self.constraint.as_ref().is_some_and(|constraint| constraint.is_finished());
        Ok(match pushed.stopped_by {
            Some(stop) => {
                let end = End { ended: EndReason::Stop, stopped_by: Some(stop), token: None };
                Outcome::Ended(end)
            }
            None if complete => Outcome::Ended(EndReason::Complete.into()),
            None if full => Outcome::Ended(EndReason::Length.into()),
            None if ends_line => Outcome::Ended(EndReason::TimeLimit.into()),
            None => Outcome::Sampled(token),
        })
    }

    /// The text still held back at the end of the generation, up to the first stop string in it,
    /// and that stop string.
    fn held_back(&mut self) -> (String, Option<String>) {
        let pushed = self.stops.push(&self.detokenizer.finish());
        match pushed.stopped_by {
            Some(stop) => (pushed.text, Some(stop)),
            None => (pushed.text + &self.stops.finish(), None),
        }
    }

    fn send(&self, event: Event) {
        self.caller.send(self.choice, event);
    }
}

/// A choice that waits until the first choice of its request has computed their common prompt.
#[derive(Debug)]
pub(crate) struct Sibling {
    index: usize,
    sampler: Sampler,
    constraint: Option<Box<dyn Constraint>>,
}

/// One choice of a request, with its tokens. While it runs, [`Running`](crate::worker::Running)
/// holds its sequence.
#[derive(Debug)]
pub(crate) struct Choice<'t> {
    /// Number of the request: its order of arrival.
    pub(crate) number: u64,
    pub(crate) index: usize,
    /// The prompt and the generated tokens.
    pub(crate) tokens: Vec<u32>,
    pub(crate) n_prompt: usize,
    /// Number of tokens that are prefilled in chunks: the prompt (after a context shift, all
    /// tokens) without its last token. Later tokens are always computed as in decode, even when
    /// they are recomputed after a pause.
    pub(crate) n_prefill: usize,
    /// Tokens that were computed at least once.
    pub(crate) n_computed: usize,
    /// Tokens of the prompt that were cached when the choice started.
    pub(crate) n_cached: usize,
    pub(crate) siblings: Vec<Sibling>,
    pub(crate) writer: Writer<'t>,
    /// Whether the choice reuses cached tokens and leaves its own in the cache.
    pub(crate) reuses_cache: bool,
    pub(crate) slot: Option<usize>,
    pub(crate) deadline: Option<Instant>,
    submitted: Instant,
    /// When the choice first started to run.
    pub(crate) started: Option<Instant>,
    /// Generated tokens that [`Choice::take_uncounted`] has already returned.
    n_counted: usize,
    n_shifts: usize,
    pub(crate) n_paused: usize,
}

impl<'t> Choice<'t> {
    /// The first choice of a request, which holds the other choices as siblings.
    pub(crate) fn from_job(job: Job, tokenizer: &'t Tokenizer, reuses: bool) -> Choice<'t> {
        let settings = Arc::new(job.settings);
        let mut constraints = job.constraints.into_iter();
        let mut siblings: Vec<Sibling> = (0..)
            .zip(job.samplers)
            .map(|(index, sampler)| Sibling { index, sampler, constraint: constraints.next() })
            .collect();
        let Sibling { index, sampler, constraint } = siblings.remove(0);
        let detokenizer = detokenizer(tokenizer, &settings);
        let n_prompt = job.prompt.len();
        Choice {
            number: job.number,
            index,
            tokens: job.prompt,
            n_prompt,
            n_prefill: n_prompt - 1,
            n_computed: 0,
            n_cached: 0,
            siblings,
            writer: Writer {
                tokenizer,
                detokenizer,
                stops: StopStrings::new(settings.stops.clone()),
                sampler,
                constraint,
                settings,
                n_logprobs: job.n_logprobs,
                post_sampling: job.post_sampling,
                max_time: job.max_time,
                prompt_logprobs: job.prompt_logprobs.then(|| vec![None]),
                caller: job.caller,
                choice: index,
                n_generated: 0,
                first: None,
                outcome: None,
            },
            reuses_cache: reuses && job.cache_prompt,
            slot: job.slot,
            deadline: job.deadline,
            submitted: job.submitted,
            started: None,
            n_counted: 0,
            n_shifts: 0,
            n_paused: 0,
        }
    }

    /// Removes and returns the other choices of the request. Call it once the prompt is computed.
    pub(crate) fn take_siblings(&mut self) -> Vec<Choice<'t>> {
        let siblings = std::mem::take(&mut self.siblings);
        let started = self.started;
        let all = siblings.into_iter().map(|Sibling { index, sampler, constraint }| Choice {
            number: self.number,
            index,
            tokens: self.tokens[..self.n_prompt].to_vec(),
            n_prompt: self.n_prompt,
            n_prefill: self.n_prompt - 1,
            n_computed: 0,
            n_cached: 0,
            siblings: Vec::new(),
            writer: Writer {
                tokenizer: self.writer.tokenizer,
                detokenizer: detokenizer(self.writer.tokenizer, &self.writer.settings),
                stops: StopStrings::new(self.writer.settings.stops.clone()),
                sampler,
                constraint,
                settings: Arc::clone(&self.writer.settings),
                n_logprobs: self.writer.n_logprobs,
                post_sampling: self.writer.post_sampling,
                max_time: self.writer.max_time,
                prompt_logprobs: None,
                caller: Arc::clone(&self.writer.caller),
                choice: index,
                n_generated: 0,
                first: None,
                outcome: None,
            },
            reuses_cache: self.reuses_cache,
            slot: None,
            deadline: self.deadline,
            submitted: self.submitted,
            started,
            n_counted: 0,
            n_shifts: 0,
            n_paused: 0,
        });
        all.collect()
    }

    /// Sort key: order of arrival of the request, then index of the choice.
    pub(crate) fn order(&self) -> (u64, usize) {
        (self.number, self.index)
    }

    /// Whether the choice has never run, so that its request is still queued.
    pub(crate) fn is_queued(&self) -> bool {
        self.started.is_none()
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.writer.caller.is_cancelled()
    }

    /// Number of tokens generated since the last call.
    pub(crate) fn take_uncounted(&mut self) -> u64 {
        let new = self.writer.n_generated - self.n_counted;
        self.n_counted = self.writer.n_generated;
        new as u64
    }

    pub(crate) fn n_generated(&self) -> usize {
        self.writer.n_generated
    }

    /// Number of tokens that may still be generated; `None` for no limit.
    pub(crate) fn n_left(&self) -> Option<usize> {
        let most = self.writer.settings.n_predict;
        most.map(|most| most.saturating_sub(self.writer.n_generated))
    }

    /// Context shift: drops the older half of the tokens after the first `n_keep`. Returns the
    /// number of tokens at the start that stay; `None` if the settings forbid a shift or no token
    /// can be dropped.
    pub(crate) fn shift(&mut self) -> Option<usize> {
        let n = self.tokens.len() - 1;
        let keep = self.writer.settings.n_keep.min(n);
        let discard = (n - keep) / 2;
        if !self.writer.settings.context_shift || discard == 0 {
            return None;
        }
        self.tokens.drain(keep..keep + discard);
        self.n_prefill = self.tokens.len() - 1;
        self.n_shifts += 1;
        Some(keep)
    }

    pub(crate) fn send(&self, event: Event) {
        self.writer.send(event);
    }

    /// Reports the end of this choice and of its siblings that never started.
    pub(crate) fn finish(mut self, end: End) {
        let mut end = end;
        if end.ended != EndReason::Stop {
            let (text, stopped_by) = self.writer.held_back();
            if let Some(stop) = stopped_by {
                end = End { ended: EndReason::Stop, stopped_by: Some(stop), token: None };
            }
            if !text.is_empty() {
                let (id, bytes, logprobs) = (None, Vec::new(), None);
                self.send(Event::Token(TokenEvent { id, text, bytes, logprobs }));
            }
        }
        let now = Instant::now();
        let report = Report {
            ended: end.ended,
            stopped_by: end.stopped_by,
            end: end.token,
            n_prompt: self.n_prompt,
            n_cached: self.n_cached,
            n_generated: self.writer.n_generated,
            n_shifts: self.n_shifts,
            n_paused: self.n_paused,
            seed: self.writer.sampler.seed(),
            times: self.times(now),
        };
        for sibling in &self.siblings {
            let (n_cached, n_generated, seed) = (0, 0, sibling.sampler.seed());
            let report = Report { n_cached, n_generated, seed, ..report.clone() };
            self.writer.caller.send(sibling.index, Event::Finished(report));
        }
        self.send(Event::Finished(report));
    }

    fn times(&self, now: Instant) -> Times {
        let Some(started) = self.started else {
            return Times { queued: now - self.submitted, ..Times::default() };
        };
        let first = self.writer.first;
        Times {
            queued: started.saturating_duration_since(self.submitted),
            prompt: first.unwrap_or(now).saturating_duration_since(started),
            generated: first.map_or(Duration::ZERO, |first| now.saturating_duration_since(first)),
        }
    }

    /// Reports an error for this choice and for its siblings that never started.
    pub(crate) fn fail(self, error: &Error) {
        for sibling in &self.siblings {
            self.writer.caller.send(sibling.index, Event::Failed(error.clone()));
        }
        self.send(Event::Failed(error.clone()));
    }
}

fn detokenizer<'t>(tokenizer: &'t Tokenizer, settings: &Settings) -> Detokenizer<'t> {
    let detokenizer = Detokenizer::new(tokenizer, Start::Continuation, settings.special);
    detokenizer.with_written_tokens(settings.written_tokens.clone())
}
