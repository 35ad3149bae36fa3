//! Generates text from a prompt: sampling, end of text, stop strings, and context shifts.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use engine::{self, Engine, ExchangeStats, Feed, LogitsRequest, Sequence, StepStats, Tiers};
use text::sample::{self, Constraint, ConstraintError, PushedText, Sampler, StopStrings};
use text::tokenizer::{self, Detokenizer, Start, Tokenizer};

/// Settings of one generation. By default, a generation ends when the model ends the text or the
/// context is full.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Maximum number of tokens to generate; `None` for no limit.
    pub n_predict: Option<usize>,
    /// Whether a full context drops the older half of the tokens after the first `n_keep` and
    /// continues; otherwise the generation ends.
    pub context_shift: bool,
    /// Number of tokens at the start that a context shift keeps.
    pub n_keep: usize,
    /// Stop strings. They end the generation and are not part of the text.
    pub stops: Vec<String>,
    /// Whether an end-of-generation token or one of `end_tokens` ends the generation.
    pub end_of_text: bool,
    /// Further tokens that end the text, such as a chat template's end of a turn.
    pub end_tokens: Vec<u32>,
    /// Whether special tokens are part of the text. The token that ends the text never is; it is in
    /// [`Report::end`].
    pub special: bool,
    /// Control tokens that are part of the text even without `special`, such as marks of reasoning.
    pub written_tokens: Vec<u32>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            n_predict: None,
            context_shift: false,
            n_keep: 0,
            stops: Vec::new(),
            end_of_text: true,
            end_tokens: Vec::new(),
            special: false,
            written_tokens: Vec::new(),
        }
    }
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The model ended its text, or a constraint allows no more tokens.
    EndOfText,
    /// `n_predict` tokens were generated.
    Length,
    /// A stop string was generated.
    Stop,
    /// The context is full.
    ContextFull,
    /// The interrupt flag was set.
    Interrupted,
    /// The consumer stopped reading tokens.
    Closed,
}

/// Statistics of a generation.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Why the generation ended.
    pub ended: EndReason,
    /// The token that ended the text and is not part of it; `None` if the text ended otherwise.
    pub end: Option<u32>,
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Number of prompt tokens that the sequence had cached, so that they were not computed.
    pub n_reused: usize,
    /// Number of prompt tokens that were computed: all others, unless an interrupt ended the
    /// prompt.
    pub n_computed: usize,
    /// Prefill time of the computed prompt tokens.
    pub prompt: Duration,
    /// Tokens generated, including the token that ended the text.
    pub n_generated: usize,
    /// Time of the steps after the prompt, context shifts included.
    pub generated: Duration,
    /// Steps after the prompt: one fewer than the generated tokens, since prefill yields the first;
    /// after an interrupt, the two may be equal.
    pub n_steps: usize,
    /// Neuron statistics of the steps after the prompt.
    pub neurons: StepStats,
    /// Number of context shifts.
    pub n_shifts: usize,
    /// Neurons swapped between CPU and devices since loading; `None` if swapping is off, or if no
    /// decision was due yet.
    pub exchanged: Option<ExchangeStats>,
    /// Bytes of weights on devices, in memory and on disk; `None` if none stay on disk.
    pub tiers: Option<Tiers>,
}

/// An error that ends a generation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of the engine.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// An error of the sampler.
    #[error(transparent)]
    Sample(#[from] sample::Error),
    /// An error of the tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] tokenizer::Error),
    /// The constraint on the text failed.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// A prompt without tokens.
    #[error("the prompt is empty and the model has no BOS token")]
    EmptyPrompt,
}

/// A generated token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The token id; `None` for text held back until the end: an incomplete character, or the
    /// possible start of a stop string.
    pub id: Option<u32>,
    /// The text that became final with this token; may be empty, or the text of several tokens.
    pub text: String,
}

/// Receives the text piece by piece; returning `Break` ends the generation.
pub type Emit<'a> = dyn FnMut(&str) -> ControlFlow<()> + 'a;

/// Engine, tokenizer, sampler and settings of a generation.
#[derive(Debug)]
pub struct Generator<'a> {
    /// The loaded model.
    pub engine: &'a mut Engine,
    /// The model's tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// Samples the next token.
    pub sampler: &'a mut Sampler,
    /// Stop conditions and output settings.
    pub settings: &'a Settings,
    /// Ends the generation when set.
    pub interrupt: &'a AtomicBool,
}

impl<'a> Generator<'a> {
    /// Continues `prompt` in a sequence that may already contain its beginning. The common
    /// beginning is kept, the sequence's other tokens are dropped, and only the rest of the prompt
    /// is computed. `emit` receives text as soon as it is final. Afterwards the sequence contains
    /// the prompt and the generated tokens, usually without the last; context shifts drop older
    /// tokens.
    ///
    /// # Errors
    /// [`Error`]. After an interrupt, the report says [`EndReason::Interrupted`] instead.
    pub fn resume(
        self,
        sequence: &'a mut Sequence,
        prompt: &[u32],
        emit: &mut Emit<'_>,
    ) -> Result<Report, Error> {
        self.resume_with(sequence, prompt, None, &mut |_| {}, emit)
    }

    /// As [`Generator::resume`], but limits the tokens by `constraint`, if given. `progress` receives
    /// the number of prompt tokens that are computed or reused so far.
    ///
    /// # Errors
    /// [`Error`]. After an interrupt, the report says [`EndReason::Interrupted`] instead.
    pub fn resume_with(
        self,
        sequence: &'a mut Sequence,
        prompt: &[u32],
        constraint: Option<Box<dyn Constraint>>,
        progress: &mut dyn FnMut(usize),
        emit: &mut Emit<'_>,
    ) -> Result<Report, Error> {
        let mut tokens = self.start_with(sequence, prompt, progress)?;
        tokens.run.constraint = constraint;
        while let Some(token) = tokens.next().transpose()? {
            if emit(&token.text).is_break() {
                break;
            }
        }
        tokens.finish()
    }

    /// Computes `prompt`, as [`Generator::resume`] does, and returns an iterator over new tokens.
    ///
    /// # Errors
    /// [`Error`]. After an interrupt, the report says [`EndReason::Interrupted`] instead.
    pub fn start(self, sequence: &'a mut Sequence, prompt: &[u32]) -> Result<Tokens<'a>, Error> {
        self.start_with(sequence, prompt, &mut |_| {})
    }

    fn start_with(
        self,
        sequence: &'a mut Sequence,
        prompt: &[u32],
        progress: &mut dyn FnMut(usize),
    ) -> Result<Tokens<'a>, Error> {
        let Some(last) = prompt.len().checked_sub(1) else {
            return Err(Error::EmptyPrompt);
        };
        let same = sequence.tokens().iter().zip(prompt).take_while(|(held, wanted)| held == wanted);
        // Always compute the last prompt token: the first new token is sampled from its logits.
        let n_same = same.count().min(last);
        let n_reused = self.engine.truncate(sequence, n_same);
        let settings = self.settings;
        let detokenizer = Detokenizer::new(self.tokenizer, Start::Continuation, settings.special);
        let run = Generation {
            text: TextBuffer {
                detokenizer: detokenizer.with_written_tokens(&settings.written_tokens),
                stops: StopStrings::new(settings.stops.clone()),
            },
            generator: self,
            sequence,
            constraint: None,
            logits: Vec::new(),
            pending: None,
            stopped: false,
            report: Report {
                ended: EndReason::Closed,
                end: None,
                n_prompt: prompt.len(),
                n_reused,
                n_computed: 0,
                prompt: Duration::ZERO,
                n_generated: 0,
                generated: Duration::ZERO,
                n_steps: 0,
                neurons: StepStats::default(),
                n_shifts: 0,
                exchanged: None,
                tiers: None,
            },
        };
        let mut tokens = Tokens { run, ended: None, failed: false };
        match tokens.run.begin(prompt, progress) {
            Err(Error::Engine(engine::Error::Interrupted)) => {
                tokens.ended = Some(EndReason::Interrupted);
            }
            done => done?,
        }
        Ok(tokens)
    }
}

/// A generation in progress: an iterator over its tokens. It stops after an error or at the end of
/// the generation.
pub struct Tokens<'a> {
    run: Generation<'a>,
    ended: Option<EndReason>,
    failed: bool,
}

impl std::fmt::Debug for Tokens<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Tokens");
        out.field("report", &self.run.report).field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl Tokens<'_> {
    /// Limits all further tokens. The text ends when the constraint allows no more tokens.
    pub fn constrain(&mut self, constraint: Box<dyn Constraint>) {
        self.run.constraint = Some(constraint);
    }

    /// Why the generation ended; `None` while it runs.
    #[must_use]
    pub fn ended(&self) -> Option<EndReason> {
        self.ended
    }

    /// Ends the generation if it still runs, and returns its statistics.
    ///
    /// # Errors
    /// Device errors.
    pub fn finish(self) -> Result<Report, Error> {
        let Generation { mut report, generator, .. } = self.run;
        report.ended = self.ended.unwrap_or(EndReason::Closed);
        report.neurons += generator.engine.take_stats()?;
        report.exchanged = generator.engine.exchange_stats();
        report.tiers = generator.engine.tiers();
        Ok(report)
    }

    /// Records the end. Returns the text held back, if any, unless a stop string ended the
    /// generation.
    fn end(&mut self, ended: EndReason) -> Option<Result<Token, Error>> {
        self.ended = Some(ended);
        if ended == EndReason::Stop {
            return None;
        }
        let text = self.run.text.rest();
        (!text.is_empty()).then_some(Ok(Token { id: None, text }))
    }
}

impl Iterator for Tokens<'_> {
    type Item = Result<Token, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended.is_some() || self.failed {
            return None;
        }
        match self.run.next() {
            Ok(Next::Token(token)) => Some(Ok(token)),
            Ok(Next::End(ended)) => self.end(ended),
            Err(Error::Engine(engine::Error::Interrupted)) => self.end(EndReason::Interrupted),
            Err(error) => {
                self.failed = true;
                Some(Err(error))
            }
        }
    }
}

enum Next {
    Token(Token),
    End(EndReason),
}

struct Generation<'a> {
    generator: Generator<'a>,
    sequence: &'a mut Sequence,
    constraint: Option<Box<dyn Constraint>>,
    logits: Vec<f32>,
    /// The last sampled token, which the engine has not computed yet.
    pending: Option<u32>,
    stopped: bool,
    text: TextBuffer<'a>,
    report: Report,
}

/// Turns tokens into text once characters are complete and cannot belong to a stop string.
struct TextBuffer<'a> {
    detokenizer: Detokenizer<'a>,
    stops: StopStrings,
}

impl TextBuffer<'_> {
    fn push(&mut self, token: u32) -> Result<PushedText, Error> {
        Ok(self.stops.push(self.detokenizer.push(token)?))
    }

    /// The text held back, at the end of the generation.
    fn rest(&mut self) -> String {
        let pushed = self.stops.push(&self.detokenizer.finish());
        match pushed.stopped_by {
            Some(_) => pushed.text,
            None => pushed.text + &self.stops.finish(),
        }
    }
}

impl Generation<'_> {
    /// Computes the prompt tokens that the sequence does not have yet, in the steps that the engine
    /// would take.
    fn begin(&mut self, prompt: &[u32], progress: &mut dyn FnMut(usize)) -> Result<(), Error> {
        let start = Instant::now();
        self.generator.sampler.clear_history();
        for &token in prompt {
            self.generator.sampler.accept(token);
        }
        let n_held = self.sequence.tokens().len();
        let n_at_once = self.generator.engine.options().n_ubatch.max(1);
        let mut fed = Ok(());
        for tokens in prompt[n_held..].chunks(n_at_once) {
            fed = self.feed(tokens);
            self.report.n_computed = self.sequence.tokens().len() - n_held;
            if fed.is_err() {
                break;
            }
            progress(self.sequence.tokens().len());
        }
        self.report.prompt = start.elapsed();
        fed?;
        // Keep a checkpoint, because the next turn of a conversation begins with the same prompt.
        self.generator.engine.checkpoint(self.sequence)?;
        // The statistics of the prompt are not reported.
        self.generator.engine.take_stats()?;
        Ok(())
    }

    fn next(&mut self) -> Result<Next, Error> {
        if self.stopped {
            return Ok(Next::End(EndReason::Stop));
        }
        if self.constraint.as_ref().is_some_and(|constraint| constraint.is_finished()) {
            return Ok(Next::End(EndReason::EndOfText));
        }
        if self.generator.settings.n_predict.is_some_and(|n| self.report.n_generated >= n) {
            return Ok(Next::End(EndReason::Length));
        }
        if let Some(token) = self.pending.take() {
            let start = Instant::now();
            if self.sequence.tokens().len() + 1 > self.generator.engine.n_ctx() && !self.shift()? {
                return Ok(Next::End(EndReason::ContextFull));
            }
            self.feed(&[token])?;
            self.report.generated += start.elapsed();
            self.report.n_steps += 1;
        }
        if self.generator.interrupt.load(Ordering::Relaxed) {
            return Ok(Next::End(EndReason::Interrupted));
        }
        let token = match &mut self.constraint {
            Some(constraint) => {
                let allowed = constraint.allowed()?;
                let token = self.generator.sampler.sample_from(&self.logits, Some(allowed))?;
                constraint.accept(token)?;
                token
            }
            None => self.generator.sampler.sample(&self.logits)?,
        };
        self.generator.sampler.accept(token);
        self.report.n_generated += 1;
        let ends = self.generator.tokenizer.is_eog(token)
            || self.generator.settings.end_tokens.contains(&token);
        if self.generator.settings.end_of_text && ends {
            self.report.end = Some(token);
            return Ok(Next::End(EndReason::EndOfText));
        }
        let pushed = self.text.push(token)?;
        self.stopped = pushed.stopped_by.is_some();
        self.pending = Some(token);
        Ok(Next::Token(Token { id: Some(token), text: pushed.text }))
    }

    fn feed(&mut self, tokens: &[u32]) -> Result<(), Error> {
        let logits = &mut self.logits;
        let each = &mut |_: usize, _: usize, row: &[f32]| {
            logits.clear();
            logits.extend_from_slice(row);
        };
        let mut feeds = [Feed { sequence: self.sequence, tokens, want: LogitsRequest::Last }];
        Ok(self.generator.engine.step(&mut feeds, self.generator.interrupt, each)?)
    }

    /// Drops the older half of the tokens that may be dropped. Returns `false` if context shifts
    /// are off or fewer than two tokens may be dropped. Later tokens are computed again at their
    /// new positions: cached keys include RoPE, and rotating the rounded keys back would not give
    /// the same values.
    fn shift(&mut self) -> Result<bool, Error> {
        let n = self.sequence.tokens().len();
        let keep = self.generator.settings.n_keep.min(n);
        let discard = (n - keep) / 2;
        if !self.generator.settings.context_shift || discard == 0 {
            return Ok(false);
        }
        let rest = self.sequence.tokens()[keep + discard..].to_vec();
        self.generator.engine.truncate(self.sequence, keep);
        // Recomputed tokens are not reported.
        self.report.neurons += self.generator.engine.take_stats()?;
        self.feed(&rest)?;
        self.generator.engine.take_stats()?;
        self.report.n_shifts += 1;
        Ok(true)
    }
}
