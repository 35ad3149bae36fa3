//! `thermocline run`.

use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::auto_profile::{self, Use};
use super::first_use;
use super::trace::Trace;
use crate::cli::config::RunOptions;
use crate::cli::config::model::ModelOptions;
use crate::cli::config::run::{Keep, Length};
use crate::cli::failure::{Exit, Failure};
use crate::cli::interrupt::Interrupt;
use crate::cli::output::Output;
use crate::cli::terminal::{PROMPT, Terminal};
use crate::engine::{Engine, EngineOptions};
use crate::generate::{Ended, Report, Settings, resume};
use crate::model::Model;
use crate::sample::{Sampler, SamplerConfig};
use crate::tokenizer::Tokenizer;
use runtime::{Opened, Runtime};

/// Prompt of the built-in model when none is given.
const STORY: &str = "Once upon a time";

/// A loaded model.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) model: Arc<Model>,
    pub(super) tokenizer: Tokenizer,
    /// Its context in tokens.
    pub(super) n_ctx: usize,
    pub(super) engine: Engine,
    /// Loading time.
    pub(super) load: Duration,
}

/// Opens and loads a model. With `learning`, a missing predictor or thresholds for `--sparsity` are trained first.
///
/// # Errors
/// The file is invalid or not supported, or memory is too small.
pub(super) fn ready(
    options: &ModelOptions,
    learning: Option<&Interrupt>,
    terminal: &Terminal,
) -> Result<Ready, Failure> {
    let start = Instant::now();
    let runtime = Runtime::new(options.run.clone(), terminal.observer())?;
    let opened = runtime.open(options.path.as_deref())?;
    if let Some(interrupt) = learning {
        first_use::learn(options, &opened, &runtime, interrupt, terminal)?;
    }
    let Opened { model, tokenizer } = opened;
    let placing = runtime.placing(&model);
    let n_ctx = runtime.context(&model, &placing);
    let settings = EngineOptions { placing, ..runtime.settings(n_ctx) };
    let engine = runtime.load(&model, settings)?;
    Ok(Ready { model, tokenizer, n_ctx, engine, load: start.elapsed() })
}

/// Continues a prompt.
///
/// # Errors
/// The model cannot be loaded, the prompt does not fit, or Ctrl-C.
pub(crate) fn run(options: &RunOptions, terminal: &Terminal) -> Result<(), Failure> {
    if options.conversation.once {
        return super::chat::once(options, terminal);
    }
    let trace = Trace::open(options.trace.as_deref())?;
    let done = continued(options, &trace, terminal);
    let written = trace.finish(terminal);
    done.and(written)
}

fn continued(options: &RunOptions, trace: &Trace, terminal: &Terminal) -> Result<(), Failure> {
    let interrupt = Interrupt::install()?;
    let learning = options.auto_profile.then_some(&interrupt);
    let Ready { model: _, tokenizer, n_ctx, mut engine, load } =
        ready(&options.model, learning, terminal)?;
    trace.watch(&mut engine, "run");
    let built_in = options.model.path.is_none();
    let text = options.prompt.as_deref().unwrap_or(if built_in { STORY } else { "" });
    let prompt = prompt_ids(text, &tokenizer, n_ctx)?;
    if options.verbose_prompt {
        list_prompt(&prompt, &tokenizer, terminal)?;
    }
    let mut sampler = sampler(&options.sampler, options.ignore_eos, &tokenizer)?;
    let settings = settings(options, prompt.len());
    let mut shown = Shown::new(options, terminal);
    if options.display_prompt {
        shown.prompt(text)?;
    }
    let mut session = engine.open();
    let report = resume(
        &mut engine,
        &mut session,
        &tokenizer,
        &mut sampler,
        &prompt,
        &settings,
        interrupt.flag(),
        &mut |piece| shown.piece(piece),
    )?;
    let _ = shown.piece(&end_of(&report, options.special, &tokenizer));
    shown.end()?;
    if report.ended == Ended::ContextFull {
        let help = match options.context_shift {
            true => "a smaller --keep leaves --context-shift room",
            false => "--context-shift drops the oldest text and continues",
        };
        terminal
            .note(&format!("the context of {n_ctx} tokens is full; -c sets a larger one, {help}"));
    }
    if options.perf || options.json {
        report_perf(options.json, &report, sampler.seed(), Some(load), terminal);
    }
    let tokens = session.tokens().to_vec();
    engine.close(session);
    if options.auto_profile {
        let used = Use { tokens: &tokens, took: report.prompt + report.generated };
        let computation = &options.model.run.computation;
        auto_profile::after(&used, &mut engine, computation, interrupt.flag(), terminal);
    }
    match report.ended {
        Ended::Interrupted => Err(Failure::interrupted()),
        Ended::EndOfText | Ended::Length | Ended::Stop | Ended::ContextFull | Ended::Closed => {
            Ok(())
        }
    }
}

/// The text of the token that ended a generation, where it is to be shown.
pub(super) fn end_of(report: &Report, special: bool, tokenizer: &Tokenizer) -> String {
    let end = report.end.filter(|_| special).and_then(|id| tokenizer.piece(id, true).ok());
    String::from_utf8_lossy(end.unwrap_or_default()).into_owned()
}

fn prompt_ids(text: &str, tokenizer: &Tokenizer, n_ctx: usize) -> Result<Vec<u32>, Failure> {
    let encoded = tokenizer.encode(text, true, true);
    let mut ids = encoded
        .map_err(|e| Failure::new(Exit::Failed, "cannot tokenize the prompt").caused_by(&e))?;
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

/// `--verbose-prompt`.
///
/// # Errors
/// An id is not in the vocabulary.
pub(super) fn list_prompt(
    ids: &[u32],
    tokenizer: &Tokenizer,
    terminal: &Terminal,
) -> Result<(), Failure> {
    terminal.note(&format!("{} tokens in the prompt", ids.len()));
    for &id in ids {
        let piece = tokenizer.piece(id, true).map_err(|e| {
            Failure::new(Exit::Failed, "cannot show the prompt's tokens").caused_by(&e)
        })?;
        terminal.note(&format!("{id:6} -> '{}'", String::from_utf8_lossy(piece)));
    }
    Ok(())
}

/// The sampler, with the tokens that end a text banned if `ignore_eos`.
///
/// # Errors
/// Invalid values and token ids.
pub(super) fn sampler(
    config: &SamplerConfig,
    ignore_eos: bool,
    tokenizer: &Tokenizer,
) -> Result<Sampler, Failure> {
    let mut config = config.clone();
    if ignore_eos {
        let banned = tokenizer.eog().iter();
        config.logit_bias.extend(banned.map(|&id| (id, f32::NEG_INFINITY)));
    }
    Sampler::new(&config, tokenizer.n_vocab()).map_err(|e| Failure::usage(e.to_string()))
}

/// The settings of a generation after `n_prompt` tokens, from the flags.
pub(super) fn settings(options: &RunOptions, n_prompt: usize) -> Settings {
    Settings {
        n_predict: match options.length {
            Length::Endless | Length::FillContext => None,
            Length::Tokens(n) => Some(n as usize),
        },
        context_shift: options.context_shift && options.length != Length::FillContext,
        n_keep: match options.keep {
            Keep::Prompt => n_prompt,
            // The start token is always kept: models produce nonsense without it.
            Keep::Tokens(n) => (n as usize).clamp(1, n_prompt),
        },
        stops: options.stops.clone(),
        end_of_text: !options.ignore_eos,
        ends: Vec::new(),
        special: options.special,
        written: Vec::new(),
    }
}

/// Standard output: the prompt if requested, then the text token by token.
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

    /// Ends the line on a terminal; a file gets the text unchanged.
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

fn rate(n: usize, time: Duration) -> f64 {
    match time.as_secs_f64() {
        0.0 => 0.0,
        seconds => n as f64 / seconds,
    }
}

fn density(report: &Report) -> Option<f64> {
    let neurons = &report.neurons;
    (neurons.neurons > 0.0).then(|| neurons.active / neurons.neurons)
}

/// Counts, speeds and density of one generation, in words.
pub(super) fn perf_line(report: &Report) -> String {
    let prompt = rate(report.n_prompt - report.n_reused, report.prompt);
    let generated = rate(report.n_steps, report.generated);
    let reused = match report.n_reused {
        0 => String::new(),
        n => format!(" ({n} of them known)"),
    };
    let waits = report.neurons.waits.shares().map_or(String::new(), |[cpu, devices]| {
        let [cpu, devices] = [cpu, devices].map(|share| 100.0 * share);
        format!(
            " | waited for the other side: the CPU {cpu:.0} %, devices {devices:.0} % of the time"
        )
    });
    let density = density(report).map_or(String::new(), |d| {
        let skipped = 100.0 * (1.0 - d);
        format!(
            " | density {:.1} % ({skipped:.1} % of the feed-forward neurons skipped)",
            100.0 * d
        )
    });
    let devices = device_share(report).map_or(String::new(), |share| {
        let exchanged = report.exchanged.map_or(String::new(), |done| {
            let [first, last] = [done.first, done.last].map(|share| 100.0 * share);
            format!(", {} exchanged: {first:.1} % at first, {last:.1} % at last", done.neurons)
        });
        format!(" | {:.1} % of these on devices{exchanged}", 100.0 * share)
    });
    format!(
        "prompt {} tokens{reused}, {prompt:.1} t/s | generated {} tokens, {generated:.1} t/s{density}{devices}{waits}",
        report.n_prompt, report.n_generated,
    )
}

/// Share of the active neurons that were not on the CPU.
fn device_share(report: &Report) -> Option<f64> {
    let neurons = &report.neurons;
    (neurons.off_cpu > 0.0 || report.exchanged.is_some())
        .then(|| neurons.off_cpu / neurons.active.max(1.0))
}

/// The same on standard error, as JSON if requested. `load` is given if this generation loaded the model.
pub(super) fn report_perf(
    json: bool,
    report: &Report,
    seed: u32,
    load: Option<Duration>,
    terminal: &Terminal,
) {
    if json {
        let waits = report.neurons.waits.shares();
        let json = serde_json::json!({
            "seed": seed,
            "load_ms": load.map(|load| load.as_secs_f64() * 1e3),
            "prompt_tokens": report.n_prompt,
            "prompt_tokens_reused": report.n_reused,
            "prompt_ms": report.prompt.as_secs_f64() * 1e3,
            "prompt_tokens_per_second": rate(report.n_prompt - report.n_reused, report.prompt),
            "generated_tokens": report.n_generated,
            "generated_ms": report.generated.as_secs_f64() * 1e3,
            "generated_tokens_per_second": rate(report.n_steps, report.generated),
            "density": density(report),
            "cpu_waited": waits.map(|[cpu, _]| cpu),
            "devices_waited": waits.map(|[_, devices]| devices),
            "device_share": device_share(report),
            "exchanged_neurons": report.exchanged.map(|done| done.neurons),
            "device_share_first": report.exchanged.map(|done| done.first),
            "device_share_last": report.exchanged.map(|done| done.last),
            "context_shifts": report.n_shifts,
            "ended": format!("{:?}", report.ended),
        });
        eprintln!("{json}");
        return;
    }
    let load = load.map_or(String::new(), |t| format!("load {:.0} ms | ", t.as_secs_f64() * 1e3));
    terminal.note(&format!("{load}{} | seed {seed}", perf_line(report)));
}
