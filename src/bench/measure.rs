//! One test: prepared outside the clock, repeated inside it.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::engine::{Engine, Result, Session, StepStats, Want};

/// So many tokens at once, then so many one by one, after a context of so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// Tokens of the prompt; 0 for none.
    pub n_prompt: usize,
    /// Tokens fed one by one, as generation does; 0 for none.
    pub n_gen: usize,
    /// Tokens in the context before the clock starts.
    pub n_depth: usize,
}

impl Test {
    /// Tokens that are timed.
    #[must_use]
    pub fn n_timed(&self) -> usize {
        self.n_prompt + self.n_gen
    }

    /// Tokens of context it needs.
    #[must_use]
    pub fn n_ctx(&self) -> usize {
        self.n_depth + self.n_timed()
    }
}

/// llama-bench's name: `pp512`, `tg128`, `pp512+tg128`, `tg128 @ d4096`.
impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.n_prompt, self.n_gen) {
            (n_prompt, 0) => write!(f, "pp{n_prompt}")?,
            (0, n_gen) => write!(f, "tg{n_gen}")?,
            (n_prompt, n_gen) => write!(f, "pp{n_prompt}+tg{n_gen}")?,
        }
        match self.n_depth {
            0 => Ok(()),
            n_depth => write!(f, " @ d{n_depth}"),
        }
    }
}

/// How a test is done.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Most tokens of a prompt handed to the engine at a time, at least 1.
    pub n_batch: usize,
    /// Timed runs.
    pub repetitions: usize,
    /// A whole run that is not timed comes first.
    pub warmup: bool,
}

/// What the timed runs of a test took.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Time of each run.
    pub runs: Vec<Duration>,
    /// The part of it that the prompt took.
    pub prompts: Vec<Duration>,
    /// Neurons of all timed steps.
    pub neurons: StepStats,
}

impl Measured {
    /// Share of neurons that were carried through to down, `0..=1`.
    #[must_use]
    pub fn density(&self) -> f64 {
        self.neurons.active / self.neurons.neurons
    }
}

/// Runs `test` over `text`, which is fed as it stands: every run does the same work, on tokens that follow one
/// another in a real text. Choosing tokens is no part of it.
///
/// # Errors
/// Those of [`Engine::feed`].
///
/// # Panics
/// If `text` is shorter than [`Test::n_ctx`].
pub fn measure(
    engine: &mut Engine,
    text: &[u32],
    test: Test,
    settings: Settings,
    interrupt: &AtomicBool,
) -> Result<Measured> {
    assert!(text.len() >= test.n_ctx(), "the text is long enough for the test");
    let (depth, text) = text.split_at(test.n_depth);
    let (prompt, rest) = text.split_at(test.n_prompt);
    let mut run = Run {
        session: engine.open(),
        engine,
        n_batch: settings.n_batch.max(1),
        interrupt,
        neurons: StepStats::default(),
    };
    let result = run.all(test.n_depth, [depth, prompt, &rest[..test.n_gen]], settings);
    let Run { engine, session, neurons, .. } = run;
    engine.close(session);
    let (runs, prompts) = result?;
    Ok(Measured { runs, prompts, neurons })
}

struct Run<'a> {
    engine: &'a mut Engine,
    session: Session,
    n_batch: usize,
    interrupt: &'a AtomicBool,
    neurons: StepStats,
}

impl Run<'_> {
    fn all(
        &mut self,
        n_depth: usize,
        [depth, prompt, rest]: [&[u32]; 3],
        settings: Settings,
    ) -> Result<(Vec<Duration>, Vec<Duration>)> {
        self.prompt(depth)?;
        let (mut runs, mut prompts) = (Vec::new(), Vec::new());
        for index in 0..settings.repetitions + usize::from(settings.warmup) {
            if index == usize::from(settings.warmup) {
                self.neurons = StepStats::default();
                (runs, prompts) = (Vec::new(), Vec::new());
            }
            self.engine.truncate(&mut self.session, n_depth);
            let begin = Instant::now();
            self.prompt(prompt)?;
            prompts.push(begin.elapsed());
            for token in rest {
                self.feed(std::slice::from_ref(token))?;
            }
            runs.push(begin.elapsed());
        }
        Ok((runs, prompts))
    }

    fn prompt(&mut self, tokens: &[u32]) -> Result<()> {
        tokens.chunks(self.n_batch).try_for_each(|batch| self.feed(batch))
    }

    fn feed(&mut self, tokens: &[u32]) -> Result<()> {
        let Run { engine, session, interrupt, .. } = self;
        let stats = engine.feed(session, tokens, Want::Last, interrupt, &mut |_, _| {})?;
        self.neurons += stats;
        Ok(())
    }
}

/// The mean; 0 of nothing.
#[must_use]
pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// The standard deviation of a sample; 0 where there are not two values.
#[must_use]
pub fn standard_deviation(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = mean(values);
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    (squares / (values.len() - 1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_llama_benchs() {
        let name = |n_prompt, n_gen, n_depth| Test { n_prompt, n_gen, n_depth }.to_string();
        assert_eq!(name(512, 0, 0), "pp512");
        assert_eq!(name(0, 128, 0), "tg128");
        assert_eq!(name(512, 128, 0), "pp512+tg128");
        assert_eq!(name(512, 0, 4096), "pp512 @ d4096");
    }

    #[test]
    fn statistics_of_few_values() {
        assert_eq!((mean(&[]), standard_deviation(&[])), (0.0, 0.0));
        assert_eq!((mean(&[3.0]), standard_deviation(&[3.0])), (3.0, 0.0));
        assert_eq!((mean(&[1.0, 3.0]), standard_deviation(&[1.0, 3.0])), (2.0, 2f64.sqrt()));
    }
}
