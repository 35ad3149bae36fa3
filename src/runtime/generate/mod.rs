//! Generates text from a prompt: sampling, end of text, stop strings, and context shifts.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use engine::{self, Engine, Exchanged, Feed, Sequence, StepStats, Want};
use text::sample::{self, Pushed, Sampler, StopStrings};
use text::tokenizer::{self, Detokenizer, Start, Tokenizer};

/// Settings of one generation. By default it ends where the model ends its text, or where the
/// context is full.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Maximum number of tokens to generate; `None` for no limit.
    pub n_predict: Option<usize>,
    /// When the context is full: drop half of the tokens after the first `n_keep` and continue;
    /// otherwise end.
    pub context_shift: bool,
    /// Tokens at the start that a shift keeps.
    pub n_keep: usize,
    /// Stop strings: they end the generation and are not shown.
    pub stops: Vec<String>,
    /// End at a token that ends a text.
    pub end_of_text: bool,
    /// Further tokens that end the text, such as a chat template's end of a turn.
    pub ends: Vec<u32>,
    /// Show special tokens, except for the token that ends the text, which is in [`Report::end`].
    pub special: bool,
    /// Control tokens that are part of the text nevertheless, such as marks of reasoning.
    pub written: Vec<u32>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            n_predict: None,
            context_shift: false,
            n_keep: 0,
            stops: Vec::new(),
            end_of_text: true,
            ends: Vec::new(),
            special: false,
            written: Vec::new(),
        }
    }
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The model ended its text.
    EndOfText,
    /// `n_predict` tokens were generated.
    Length,
    /// A stop string was generated.
    Stop,
    /// The context is full.
    ContextFull,
    /// The user stopped it.
    Interrupted,
    /// The consumer stopped it.
    Closed,
}

/// Statistics of a generation.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Why it ended.
    pub ended: Ended,
    /// The token that ended the text and is not part of it.
    pub end: Option<u32>,
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Number of these that the sequence had cached, so that they were not computed.
    pub n_reused: usize,
    /// Time of prefill for the others.
    pub prompt: Duration,
    /// Tokens generated.
    pub n_generated: usize,
    /// Time of the steps after the prompt, context shifts included.
    pub generated: Duration,
    /// Steps after the prompt: one fewer than the tokens, since prefill yields the first.
    pub n_steps: usize,
    /// Neuron statistics of the steps after the prompt.
    pub neurons: StepStats,
    /// Number of context shifts.
    pub n_shifts: usize,
    /// Neurons exchanged since the model was loaded; `None` if exchange is off.
    pub exchanged: Option<Exchanged>,
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
    /// A prompt without tokens.
    #[error("the prompt has no tokens and the model has no start token")]
    EmptyPrompt,
}

/// A generated token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Its id; `None` for text that was held back until the end, because a stop string could have
    /// begun in it.
    pub id: Option<u32>,
    /// Text that is final: may be empty, or of several tokens.
    pub text: String,
}

/// Callback for the text, piece by piece.
pub type Emit<'a> = dyn FnMut(&str) -> ControlFlow<()> + 'a;

/// Engine, tokenizer, sampler and settings of a generation.
#[derive(Debug)]
pub struct Generator<'a> {
    /// The loaded model.
    pub engine: &'a mut Engine,
    /// Its tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// Samples the next token.
    pub sampler: &'a mut Sampler,
    /// Stop conditions and output settings.
    pub settings: &'a Settings,
    /// Ends it when set.
    pub interrupt: &'a AtomicBool,
}

impl<'a> Generator<'a> {
    /// Continues `prompt` in a sequence that may already contain its beginning: the common
    /// beginning is kept, the sequence's other tokens are dropped, and only the rest of the prompt
    /// is computed. Text is passed to `emit` as soon as it is final. Afterwards the sequence has
    /// the prompt and the generated tokens.
    ///
    /// # Errors
    /// [`Error`]. An interrupt is an end, not an error.
    pub fn resume(
        self,
        sequence: &'a mut Sequence,
        prompt: &[u32],
        emit: &mut Emit<'_>,
    ) -> Result<Report, Error> {
        let mut tokens = self.start(sequence, prompt)?;
        while let Some(token) = tokens.next().transpose()? {
            if emit(&token.text).is_break() {
                break;
            }
        }
        tokens.finish()
    }

    /// Computes `prompt`, as [`Generator::resume`] does, and leaves the tokens to the caller.
    ///
    /// # Errors
    /// [`Error`]. An interrupt is an end, not an error.
    pub fn start(self, sequence: &'a mut Sequence, prompt: &[u32]) -> Result<Tokens<'a>, Error> {
        let Some(last) = prompt.len().checked_sub(1) else {
            return Err(Error::EmptyPrompt);
        };
        let same = sequence.tokens().iter().zip(prompt).take_while(|(held, wanted)| held == wanted);
        // The last token is always computed: the first new token is sampled from its logits.
        let n_same = same.count().min(last);
        let n_reused = self.engine.truncate(sequence, n_same);
        let settings = self.settings;
        let detokenizer = Detokenizer::new(self.tokenizer, Start::Continuation, settings.special);
        let run = Run {
            text: Text {
                detokenizer: detokenizer.writing(&settings.written),
                stops: StopStrings::new(settings.stops.clone()),
            },
            generator: self,
            sequence,
            logits: Vec::new(),
            pending: None,
            stopped: false,
            report: Report {
                ended: Ended::Closed,
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
        let mut tokens = Tokens { run, ended: None, failed: false };
        match tokens.run.begin(prompt) {
            Err(Error::Engine(engine::Error::Interrupted)) => {
                tokens.ended = Some(Ended::Interrupted);
            }
            done => done?,
        }
        Ok(tokens)
    }
}

/// A generation in progress: an iterator over its tokens. It stops at an error or at the end of
/// the text.
pub struct Tokens<'a> {
    run: Run<'a>,
    ended: Option<Ended>,
    failed: bool,
}

impl std::fmt::Debug for Tokens<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Tokens");
        out.field("report", &self.run.report).field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl Tokens<'_> {
    /// Why it ended; `None` while it runs.
    #[must_use]
    pub fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// Ends it, unless it has ended, and returns its statistics.
    ///
    /// # Errors
    /// Device errors.
    pub fn finish(self) -> Result<Report, Error> {
        let Run { mut report, generator, .. } = self.run;
        report.ended = self.ended.unwrap_or(Ended::Closed);
        report.neurons += generator.engine.take_stats()?;
        report.exchanged = generator.engine.exchanged();
        Ok(report)
    }

    /// The text that was held back, unless a stop string ended it.
    fn end(&mut self, ended: Ended) -> Option<Result<Token, Error>> {
        self.ended = Some(ended);
        if ended == Ended::Stop {
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
            Err(Error::Engine(engine::Error::Interrupted)) => self.end(Ended::Interrupted),
            Err(error) => {
                self.failed = true;
                Some(Err(error))
            }
        }
    }
}

/// The next action of a generation.
enum Next {
    Token(Token),
    End(Ended),
}

struct Run<'a> {
    generator: Generator<'a>,
    sequence: &'a mut Sequence,
    logits: Vec<f32>,
    /// The last token, which is not computed yet.
    pending: Option<u32>,
    /// Whether a stop string was generated.
    stopped: bool,
    text: Text<'a>,
    report: Report,
}

/// Pieces become text once characters are complete and no stop string can begin in them.
struct Text<'a> {
    detokenizer: Detokenizer<'a>,
    stops: StopStrings,
}

impl Text<'_> {
    fn push(&mut self, token: u32) -> Result<Pushed, Error> {
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

impl Run<'_> {
    /// Computes the part of the prompt that the sequence does not have.
    fn begin(&mut self, prompt: &[u32]) -> Result<(), Error> {
        let start = Instant::now();
        self.generator.sampler.forget();
        for &token in prompt {
            self.generator.sampler.accept(token);
        }
        let n_held = self.sequence.tokens().len();
        self.feed(&prompt[n_held..])?;
        // The next turn of a conversation begins with the same prompt.
        self.generator.engine.checkpoint(self.sequence)?;
        // The statistics of the prompt are not reported.
        self.generator.engine.take_stats()?;
        self.report.prompt = start.elapsed();
        Ok(())
    }

    fn next(&mut self) -> Result<Next, Error> {
        if self.stopped {
            return Ok(Next::End(Ended::Stop));
        }
        if self.generator.settings.n_predict.is_some_and(|n| self.report.n_generated >= n) {
            return Ok(Next::End(Ended::Length));
        }
        if let Some(token) = self.pending.take() {
            let start = Instant::now();
            if self.sequence.tokens().len() + 1 > self.generator.engine.n_ctx() && !self.shift()? {
                return Ok(Next::End(Ended::ContextFull));
            }
            self.feed(&[token])?;
            self.report.generated += start.elapsed();
            self.report.n_steps += 1;
        }
        if self.generator.interrupt.load(Ordering::Relaxed) {
            return Ok(Next::End(Ended::Interrupted));
        }
        let token = self.generator.sampler.sample(&self.logits)?;
        self.generator.sampler.accept(token);
        self.report.n_generated += 1;
        let ends =
            self.generator.tokenizer.is_eog(token) || self.generator.settings.ends.contains(&token);
        if self.generator.settings.end_of_text && ends {
            self.report.end = Some(token);
            return Ok(Next::End(Ended::EndOfText));
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
        let mut feeds = [Feed { sequence: self.sequence, tokens, want: Want::Last }];
        Ok(self.generator.engine.step(&mut feeds, self.generator.interrupt, each)?)
    }

    /// Drops the older half of the tokens that may be dropped. The rest is computed again at its
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
