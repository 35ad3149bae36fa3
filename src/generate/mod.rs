//! From a prompt to a text: sampling, ends, stop strings, and a context that runs full.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::engine::{self, Engine, Exchanged, Session, StepStats, Want};
use crate::sample::{self, Pushed, Sampler, StopStrings};
use crate::tokenizer::{self, Detokenizer, Start, Tokenizer};

/// Settings of one generation.
#[derive(Clone, Debug)]
pub struct Options {
    /// Most tokens to generate; `None` for no limit.
    pub n_predict: Option<usize>,
    /// When the context is full: drop half of what follows the first `n_keep` tokens and go on; else end.
    pub context_shift: bool,
    /// Tokens at the start that a shift keeps.
    pub n_keep: usize,
    /// Texts that end the generation and are not shown.
    pub stops: Vec<String>,
    /// End at a token that ends a text.
    pub end_of_text: bool,
    /// Further tokens that end the text, such as a chat template's end of a turn.
    pub ends: Vec<u32>,
    /// Show special tokens, but the one that ends the text: [`Report::end`] has it.
    pub special: bool,
    /// Control tokens that are a part of the text all the same, such as marks of reasoning.
    pub written: Vec<u32>,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The model ended its text.
    EndOfText,
    /// `n_predict` tokens were generated.
    Length,
    /// A stop string came up.
    Stop,
    /// The context is full.
    ContextFull,
    /// The user stopped it.
    Interrupted,
    /// Nobody listens any more.
    Closed,
}

/// What a generation did.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Why it ended.
    pub ended: Ended,
    /// The token that ended the text, which is no part of it.
    pub end: Option<u32>,
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// How many of them the session held already, so that they were not computed.
    pub n_reused: usize,
    /// Time the others took.
    pub prompt: Duration,
    /// Tokens generated.
    pub n_generated: usize,
    /// Time the steps after the prompt took, shifts of the context included.
    pub generated: Duration,
    /// Steps after the prompt: one fewer than the tokens, since the prompt gives the first.
    pub n_steps: usize,
    /// Neurons of the steps after the prompt.
    pub neurons: StepStats,
    /// Times the context was shifted.
    pub n_shifts: usize,
    /// What changed sides since the model was loaded; `None` where nothing follows the text.
    pub exchanged: Option<Exchanged>,
}

/// An error that ends a generation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine's.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// The sampler's.
    #[error(transparent)]
    Sample(#[from] sample::Error),
    /// The tokenizer's.
    #[error(transparent)]
    Tokenizer(#[from] tokenizer::Error),
    /// Nothing to start from.
    #[error("the prompt has no tokens and the model has no start token")]
    EmptyPrompt,
}

/// Who takes the text, piece by piece.
pub type Emit<'a> = dyn FnMut(&str) -> ControlFlow<()> + 'a;

/// Continues `prompt` and hands the text to `emit` as soon as it is certain.
///
/// # Errors
/// [`Error`]. An interrupt is an end, not an error.
pub fn generate(
    engine: &mut Engine,
    tokenizer: &Tokenizer,
    sampler: &mut Sampler,
    prompt: &[u32],
    options: &Options,
    interrupt: &AtomicBool,
    emit: &mut Emit<'_>,
) -> Result<Report, Error> {
    let mut session = engine.open();
    let report = resume(engine, &mut session, tokenizer, sampler, prompt, options, interrupt, emit);
    engine.close(session);
    report
}

/// As [`generate`], in a session that may hold the beginning of `prompt` already: what both share is kept, the
/// session's other tokens are forgotten, and only the rest of the prompt is computed. Afterwards the session holds
/// the prompt and what was generated, for the next time.
///
/// # Errors
/// [`Error`]. An interrupt is an end, not an error.
#[allow(clippy::too_many_arguments)] // each is a part of its own, and none belongs to another
pub fn resume(
    engine: &mut Engine,
    session: &mut Session,
    tokenizer: &Tokenizer,
    sampler: &mut Sampler,
    prompt: &[u32],
    options: &Options,
    interrupt: &AtomicBool,
    emit: &mut Emit<'_>,
) -> Result<Report, Error> {
    let Some(last) = prompt.len().checked_sub(1) else {
        return Err(Error::EmptyPrompt);
    };
    let same = session.tokens().iter().zip(prompt).take_while(|(held, wanted)| held == wanted);
    // The last token is computed in any case: its logits are what the first new token is drawn from.
    let n_reused = same.count().min(last);
    engine.truncate(session, n_reused);
    let mut run = Run {
        text: Text {
            detokenizer: Detokenizer::new(tokenizer, Start::Continuation, options.special)
                .writing(&options.written),
            stops: StopStrings::new(options.stops.clone()),
        },
        engine,
        session,
        sampler,
        options,
        interrupt,
        logits: Vec::new(),
        report: Report {
            ended: Ended::Length,
            end: None,
            n_prompt: prompt.len(),
            n_reused,
            prompt: Duration::ZERO,
            n_generated: 0,
            generated: Duration::ZERO,
            n_steps: 0,
            neurons: StepStats::default(),
            n_shifts: 0,
            exchanged: None,
        },
    };
    let ended = match run.run(tokenizer, prompt, emit) {
        Err(Error::Engine(engine::Error::Interrupted)) => Ok(Ended::Interrupted),
        other => other,
    };
    let Run { mut report, text, engine, .. } = run;
    report.ended = ended?;
    report.exchanged = engine.exchanged();
    if !matches!(report.ended, Ended::Closed | Ended::Stop) {
        let _ = emit(&text.rest());
    }
    Ok(report)
}

struct Run<'a> {
    engine: &'a mut Engine,
    session: &'a mut Session,
    sampler: &'a mut Sampler,
    options: &'a Options,
    interrupt: &'a AtomicBool,
    logits: Vec<f32>,
    text: Text<'a>,
    report: Report,
}

/// Pieces become text once whole characters are there and no stop string can begin in them.
struct Text<'a> {
    detokenizer: Detokenizer<'a>,
    stops: StopStrings,
}

impl Text<'_> {
    fn push(&mut self, token: u32) -> Result<Pushed, Error> {
        Ok(self.stops.push(self.detokenizer.push(token)?))
    }

    /// What was held back, when nothing more will come.
    fn rest(mut self) -> String {
        let pushed = self.stops.push(&self.detokenizer.finish());
        match pushed.stopped_by {
            Some(_) => pushed.text,
            None => pushed.text + &self.stops.finish(),
        }
    }
}

impl Run<'_> {
    fn run(
        &mut self,
        tokenizer: &Tokenizer,
        prompt: &[u32],
        emit: &mut Emit<'_>,
    ) -> Result<Ended, Error> {
        let start = Instant::now();
        self.sampler.forget();
        for &token in prompt {
            self.sampler.accept(token);
        }
        self.feed(&prompt[self.report.n_reused..])?;
        self.report.prompt = start.elapsed();
        self.tokens(tokenizer, emit)
    }

    fn tokens(&mut self, tokenizer: &Tokenizer, emit: &mut Emit<'_>) -> Result<Ended, Error> {
        loop {
            if self.options.n_predict.is_some_and(|n| self.report.n_generated >= n) {
                return Ok(Ended::Length);
            }
            if self.interrupt.load(Ordering::Relaxed) {
                return Ok(Ended::Interrupted);
            }
            let token = self.sampler.sample(&self.logits)?;
            self.sampler.accept(token);
            self.report.n_generated += 1;
            let ends = tokenizer.is_eog(token) || self.options.ends.contains(&token);
            if self.options.end_of_text && ends {
                self.report.end = Some(token);
                return Ok(Ended::EndOfText);
            }
            let pushed = self.text.push(token)?;
            if emit(&pushed.text).is_break() {
                return Ok(Ended::Closed);
            }
            if pushed.stopped_by.is_some() {
                return Ok(Ended::Stop);
            }
            if self.options.n_predict.is_some_and(|n| self.report.n_generated >= n) {
                return Ok(Ended::Length);
            }
            let start = Instant::now();
            if self.session.tokens().len() + 1 > self.engine.n_ctx() && !self.shift()? {
                return Ok(Ended::ContextFull);
            }
            let stats = self.feed(&[token])?;
            self.report.generated += start.elapsed();
            self.report.n_steps += 1;
            self.report.neurons += stats;
        }
    }

    fn feed(&mut self, tokens: &[u32]) -> Result<StepStats, Error> {
        let logits = &mut self.logits;
        let each = &mut |_: usize, row: &[f32]| {
            logits.clear();
            logits.extend_from_slice(row);
        };
        Ok(self.engine.feed(self.session, tokens, Want::Last, self.interrupt, each)?)
    }

    /// Drops the older half of what may be dropped. The rest is evaluated anew at its new positions: keys hold
    /// their position, and turning rounded keys back would not give the same numbers.
    fn shift(&mut self) -> Result<bool, Error> {
        let n = self.session.tokens().len();
        let keep = self.options.n_keep.min(n);
        let discard = (n - keep) / 2;
        if !self.options.context_shift || discard == 0 {
            return Ok(false);
        }
        let rest = self.session.tokens()[keep + discard..].to_vec();
        self.engine.truncate(self.session, keep);
        self.feed(&rest)?;
        self.report.n_shifts += 1;
        Ok(true)
    }
}
