//! `thermocline run`.

use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::engine::{self, Opened};
use crate::cli::config::RunOptions;
use crate::cli::config::run::{Keep, Length};
use crate::cli::failure::{Exit, Failure};
use crate::cli::interrupt::Interrupt;
use crate::cli::output::Output;
use crate::cli::terminal::{PROMPT, Terminal};
use crate::generate::{Ended, Options, Report, generate};
use crate::sample::Sampler;
use crate::tokenizer::Tokenizer;

/// What the built-in model tells a story from when no prompt is given.
const STORY: &str = "Once upon a time";

/// Continues a prompt.
///
/// # Errors
/// A model that cannot be loaded, a prompt that does not fit, Ctrl-C.
pub(crate) fn run(options: &RunOptions, terminal: &Terminal) -> Result<(), Failure> {
    let interrupt = Interrupt::install()?;
    let start = Instant::now();
    let cpu = engine::cpu(&options.model, terminal);
    let model = &options.model;
    let Opened { model, tokenizer } =
        engine::open(model.path.as_deref(), &model.computation, &cpu, terminal)?;
    let n_ctx = engine::context(options.model.n_ctx, &model, terminal);
    let engine_options = engine::settings(&options.model, n_ctx);
    let mut engine =
        engine::load(&model, engine_options, &options.model.computation, cpu, terminal)?;
    let load = start.elapsed();
    let built_in = options.model.path.is_none();
    let text = options.prompt.as_deref().unwrap_or(if built_in { STORY } else { "" });
    let prompt = prompt_ids(text, &tokenizer, n_ctx)?;
    if options.verbose_prompt {
        list_prompt(&prompt, &tokenizer, terminal)?;
    }
    let mut sampler = sampler(options, &tokenizer)?;
    let settings = settings(options, prompt.len());
    let mut shown = Shown::new(options, terminal);
    if options.display_prompt {
        shown.prompt(text)?;
    }
    let report = generate(
        &mut engine,
        &tokenizer,
        &mut sampler,
        &prompt,
        &settings,
        interrupt.flag(),
        &mut |piece| shown.piece(piece),
    )?;
    shown.end()?;
    if report.ended == Ended::ContextFull {
        let help = match options.context_shift {
            true => "a smaller --keep lets --context-shift make room",
            false => "--context-shift goes on in this one",
        };
        terminal
            .note(&format!("the context of {n_ctx} tokens is full; -c gives a larger one, {help}"));
    }
    if options.perf || options.json {
        report_perf(options, &report, sampler.seed(), load, terminal);
    }
    match report.ended {
        Ended::Interrupted => Err(Failure::interrupted()),
        Ended::EndOfText | Ended::Length | Ended::Stop | Ended::ContextFull | Ended::Closed => {
            Ok(())
        }
    }
}

fn prompt_ids(text: &str, tokenizer: &Tokenizer, n_ctx: usize) -> Result<Vec<u32>, Failure> {
    let encoded = tokenizer.encode(text, true, true);
    let mut ids = encoded.map_err(|e| {
        Failure::new(Exit::Failed, "cannot make tokens of the prompt").caused_by(&e)
    })?;
    if ids.is_empty() {
        ids.extend(tokenizer.bos());
    }
    let n = ids.len();
    if n == 0 {
        let message = "the prompt is empty and the model has no start token";
        return Err(Failure::usage(message).help("give a prompt with -p"));
    }
    if n >= n_ctx {
        let message = format!(
            "the prompt takes {n} of the context's {n_ctx} tokens, which leaves no room for an answer"
        );
        let help = format!("use a larger context, such as -c {}", (n + 256).next_multiple_of(256));
        return Err(Failure::new(Exit::Failed, message).help(help));
    }
    Ok(ids)
}

fn list_prompt(ids: &[u32], tokenizer: &Tokenizer, terminal: &Terminal) -> Result<(), Failure> {
    terminal.note(&format!("{} tokens in the prompt", ids.len()));
    for &id in ids {
        let piece = tokenizer.piece(id, true).map_err(|e| {
            Failure::new(Exit::Failed, "cannot show the prompt's tokens").caused_by(&e)
        })?;
        terminal.note(&format!("{id:6} -> '{}'", String::from_utf8_lossy(piece)));
    }
    Ok(())
}

fn sampler(options: &RunOptions, tokenizer: &Tokenizer) -> Result<Sampler, Failure> {
    let mut config = options.sampler.clone();
    if options.ignore_eos {
        let banned = tokenizer.eog().iter();
        config.logit_bias.extend(banned.map(|&id| (id, f32::NEG_INFINITY)));
    }
    Sampler::new(&config, tokenizer.n_vocab()).map_err(|e| Failure::usage(e.to_string()))
}

fn settings(options: &RunOptions, n_prompt: usize) -> Options {
    Options {
        n_predict: match options.length {
            Length::Endless | Length::FillContext => None,
            Length::Tokens(n) => Some(n as usize),
        },
        context_shift: options.context_shift && options.length != Length::FillContext,
        n_keep: match options.keep {
            Keep::Prompt => n_prompt,
            // A start token is always kept: models fall apart without it.
            Keep::Tokens(n) => (n as usize).clamp(1, n_prompt),
        },
        stops: options.stops.clone(),
        end_of_text: !options.ignore_eos,
        special: options.special,
    }
}

/// Standard output: the prompt if wanted, then the text, piece by piece.
struct Shown {
    output: Output,
    color: bool,
    newline: bool,
    failed: Option<Failure>,
}

impl Shown {
    fn new(options: &RunOptions, terminal: &Terminal) -> Shown {
        let color = terminal.color_stdout() && options.display_prompt;
        Shown { output: Output::stdout(), color, newline: true, failed: None }
    }

    fn prompt(&mut self, text: &str) -> Result<(), Failure> {
        match self.color {
            true => self.output.write(format!("{PROMPT}{text}{PROMPT:#}"))?,
            false => self.output.write(text)?,
        }
        self.newline = text.ends_with('\n');
        self.output.flush()
    }

    fn piece(&mut self, piece: &str) -> ControlFlow<()> {
        if piece.is_empty() {
            return ControlFlow::Continue(());
        }
        self.newline = piece.ends_with('\n');
        match self.output.write(piece).and_then(|()| self.output.flush()) {
            Ok(()) => ControlFlow::Continue(()),
            Err(failure) => {
                self.failed = Some(failure);
                ControlFlow::Break(())
            }
        }
    }

    /// Ends the line where a person reads it; a file gets the text as it is.
    fn end(&mut self) -> Result<(), Failure> {
        if let Some(failure) = self.failed.take() {
            return Err(failure);
        }
        if !self.newline && std::io::stdout().is_terminal() {
            self.output.write("\n")?;
        }
        self.output.flush()
    }
}

fn report_perf(
    options: &RunOptions,
    report: &Report,
    seed: u32,
    load: Duration,
    terminal: &Terminal,
) {
    let rate = |n: usize, time: Duration| match time.as_secs_f64() {
        0.0 => 0.0,
        seconds => n as f64 / seconds,
    };
    let prompt = rate(report.n_prompt, report.prompt);
    let generated = rate(report.n_steps, report.generated);
    let neurons = &report.neurons;
    let density = (neurons.neurons > 0.0).then(|| neurons.active / neurons.neurons);
    if options.json {
        let json = serde_json::json!({
            "seed": seed,
            "load_ms": load.as_secs_f64() * 1e3,
            "prompt_tokens": report.n_prompt,
            "prompt_ms": report.prompt.as_secs_f64() * 1e3,
            "prompt_tokens_per_second": prompt,
            "generated_tokens": report.n_generated,
            "generated_ms": report.generated.as_secs_f64() * 1e3,
            "generated_tokens_per_second": generated,
            "density": density,
            "context_shifts": report.n_shifts,
            "ended": format!("{:?}", report.ended),
        });
        eprintln!("{json}");
        return;
    }
    let density = density.map_or(String::new(), |d| {
        let skipped = 100.0 * (1.0 - d);
        format!(
            " | density {:.1} % ({skipped:.1} % of the feed-forward neurons skipped)",
            100.0 * d
        )
    });
    terminal.note(&format!(
        "load {:.0} ms | prompt {} tokens, {prompt:.1} t/s | generated {} tokens, {generated:.1} t/s{density} | seed {seed}",
        load.as_secs_f64() * 1e3,
        report.n_prompt,
        report.n_generated,
    ));
}
