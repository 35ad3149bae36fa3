//! Runs one test and times its repetitions, without the preparation.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use engine::{Engine, Feed, LogitsRequest, Result, Sequence, StepStats};
use hal::KV_BLOCK;

/// A prefill and a decode of a number of tokens, after a given context, for one or more sequences
/// at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// Tokens of the prompt; 0 for none.
    pub n_prompt: usize,
    /// Tokens to decode; 0 for none.
    pub n_gen: usize,
    /// Tokens in the context before the clock starts.
    pub n_depth: usize,
    /// Number of sequences that advance together, at least 1.
    pub n_seq: usize,
}

impl Test {
    /// Number of timed tokens, of all sequences.
    #[must_use]
    pub fn n_timed(&self) -> usize {
        self.n_seq * (self.n_prompt + self.n_gen)
    }

    /// Number of tokens of a sequence.
    #[must_use]
    pub fn n_tokens(&self) -> usize {
        self.n_depth + self.n_prompt + self.n_gen
    }

    /// Positions of the KV cache that the test needs. With several sequences, each takes whole
    /// blocks.
    #[must_use]
    pub fn n_ctx(&self) -> usize {
        match self.n_seq {
            1 => self.n_tokens(),
            n => n * self.n_tokens().next_multiple_of(KV_BLOCK),
        }
    }

    /// Tokens of text that the test needs: sequences share context and prompt, and decode different
    /// tokens.
    #[must_use]
    pub fn n_text(&self) -> usize {
        self.n_depth + self.n_prompt + self.n_seq * self.n_gen
    }
}

/// llama-bench's name: `pp512`, `tg128`, `pp512+tg128`, `tg128 @ d4096`; with several sequences
/// `tg128 np4`.
impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.n_prompt, self.n_gen) {
            (n_prompt, 0) => write!(f, "pp{n_prompt}")?,
            (0, n_gen) => write!(f, "tg{n_gen}")?,
            (n_prompt, n_gen) => write!(f, "pp{n_prompt}+tg{n_gen}")?,
        }
        if self.n_seq > 1 {
            write!(f, " np{}", self.n_seq)?;
        }
        match self.n_depth {
            0 => Ok(()),
            n_depth => write!(f, " @ d{n_depth}"),
        }
    }
}

/// Settings of a test.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Maximum number of prompt tokens passed to the engine at a time, at least 1.
    pub n_batch: usize,
    /// Number of timed runs.
    pub repetitions: usize,
    /// Whether an untimed run comes first.
    pub warmup: bool,
}

/// Results of the timed runs.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// Time of each run.
    pub runs: Vec<Duration>,
    /// Time of prefill in each run.
    pub prefill_times: Vec<Duration>,
    /// Neuron statistics of all timed steps.
    pub neurons: StepStats,
}

impl Measurement {
    /// Fraction of active neurons, `0..=1`; `None` in a model without neurons.
    #[must_use]
    pub fn density(&self) -> Option<f64> {
        let StepStats { active, neurons, .. } = self.neurons;
        (neurons > 0.0).then(|| active / neurons)
    }
}

/// Runs `test` over `text`, which is fed unchanged: every run does the same work, on consecutive
/// tokens of a real text. Sampling is not included.
///
/// # Errors
/// Errors of [`Engine::feed`].
///
/// # Panics
/// If `text` is shorter than [`Test::n_text`].
pub fn measure(
    engine: &mut Engine,
    text: &[u32],
    test: Test,
    settings: Settings,
    interrupt: &AtomicBool,
) -> Result<Measurement> {
    assert!(text.len() >= test.n_text(), "the text is long enough for the test");
    let (depth, text) = text.split_at(test.n_depth);
    let (prompt, rest) = text.split_at(test.n_prompt);
    let mut run = Run {
        sequences: vec![engine.new_sequence()],
        engine,
        n_batch: settings.n_batch.max(1),
        interrupt,
    };
    let (runs, prompts) = run.time_repetitions(test, [depth, prompt, rest], settings)?;
    let neurons = engine.take_stats()?;
    Ok(Measurement { runs, prefill_times: prompts, neurons })
}

struct Run<'a> {
    engine: &'a mut Engine,
    sequences: Vec<Sequence>,
    n_batch: usize,
    interrupt: &'a AtomicBool,
}

impl Run<'_> {
    fn time_repetitions(
        &mut self,
        test: Test,
        [depth, prompt, rest]: [&[u32]; 3],
        settings: Settings,
    ) -> Result<(Vec<Duration>, Vec<Duration>)> {
        self.prompt(depth)?;
        while self.sequences.len() < test.n_seq {
            let fork = self.engine.fork(&self.sequences[0]);
            self.sequences.push(fork);
        }
        let (mut runs, mut prompts) = (Vec::new(), Vec::new());
        for index in 0..settings.repetitions + usize::from(settings.warmup) {
            if index == usize::from(settings.warmup) {
                self.engine.take_stats()?;
                (runs, prompts) = (Vec::new(), Vec::new());
            }
            for sequence in &mut self.sequences {
                self.engine.truncate(sequence, test.n_depth);
            }
            let begin = Instant::now();
            self.prompt(prompt)?;
            prompts.push(begin.elapsed());
            for at in 0..test.n_gen {
                self.feed(&mut |sequence| {
                    let at = sequence * test.n_gen + at;
                    &rest[at..=at]
                })?;
            }
            runs.push(begin.elapsed());
        }
        Ok((runs, prompts))
    }

    fn prompt(&mut self, tokens: &[u32]) -> Result<()> {
        tokens.chunks(self.n_batch).try_for_each(|batch| self.feed(&mut |_| batch))
    }

    /// Feeds every sequence the tokens that `tokens` returns for its number.
    fn feed<'t>(&mut self, tokens: &mut dyn FnMut(usize) -> &'t [u32]) -> Result<()> {
        let Run { engine, sequences, interrupt, .. } = self;
        let feed = |(number, sequence)| Feed {
            sequence,
            tokens: tokens(number),
            want: LogitsRequest::Last,
        };
        let mut feeds: Vec<_> = sequences.iter_mut().enumerate().map(feed).collect();
        engine.step(&mut feeds, interrupt, &mut |_, _, _| {})
    }
}

/// The mean; 0 for an empty list.
#[must_use]
pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// The standard deviation of a sample; 0 for fewer than two values.
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
    fn names_match_llama_bench() {
        let name =
            |n_prompt, n_gen, n_depth| Test { n_prompt, n_gen, n_depth, n_seq: 1 }.to_string();
        assert_eq!(name(512, 0, 0), "pp512");
        assert_eq!(name(0, 128, 0), "tg128");
        assert_eq!(name(512, 128, 0), "pp512+tg128");
        assert_eq!(name(512, 0, 4096), "pp512 @ d4096");
        let four = Test { n_prompt: 0, n_gen: 128, n_depth: 8, n_seq: 4 };
        assert_eq!(four.to_string(), "tg128 np4 @ d8");
        assert_eq!((four.n_timed(), four.n_ctx(), four.n_text()), (512, 640, 520));
    }

    #[test]
    fn statistics_handle_few_values() {
        assert_eq!((mean(&[]), standard_deviation(&[])), (0.0, 0.0));
        assert_eq!((mean(&[3.0]), standard_deviation(&[3.0])), (3.0, 0.0));
        assert_eq!((mean(&[1.0, 3.0]), standard_deviation(&[1.0, 3.0])), (2.0, 2f64.sqrt()));
    }
}
