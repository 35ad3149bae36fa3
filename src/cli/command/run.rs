//! `thermocline run`.

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::auto_profile::{self, FinishedRun};
use super::disk;
use super::first_use;
use super::prompt_cache;
use super::structured::Structured;
use super::trace::Trace;
use crate::cli::args::{KeptTokens, Length, ModelArgs, RunArgs};
use crate::cli::failure::{Exit, Failure};
use crate::cli::interrupt::Interrupt;
use crate::cli::output::{Output, stdout_is_stderr};
use crate::cli::progress::{self, PromptBar};
use crate::cli::terminal::{PROMPT, Terminal, counted};
use crate::engine::{Engine, EngineOptions};
use crate::generate::{EndReason, Generator, Report, Settings};
use crate::model::Model;
use crate::sample::{Sampler, SamplerConfig};
use crate::tokenizer::Tokenizer;
use indicatif::ProgressBar;
use runtime::{Opened, Runtime};

/// Prompt of the built-in story model if the user gives none.
const STORY: &str = "Once upon a time";

#[derive(Debug)]
pub(super) struct LoadedModel {
    pub(super) model: Arc<Model>,
    pub(super) tokenizer: Arc<Tokenizer>,
    pub(super) n_ctx: usize,
    pub(super) engine: Engine,
    pub(super) load: Duration,
}

/// Opens and loads a model. If it `learns`, first trains a predictor or thresholds if `--sparsity`
/// needs them and they are missing. Ctrl-C stops each of these.
///
/// # Errors
/// The file is invalid or not supported, or memory is too small.
pub(super) fn load_model(
    args: &ModelArgs,
    learns: bool,
    interrupt: &Interrupt,
    terminal: &Terminal,
) -> Result<LoadedModel, Failure> {
    let start = Instant::now();
    let runtime = Runtime::new(args.options(), terminal.exiting_observer(interrupt))?;
    let opened = runtime.open(args.model.as_deref())?.decoder()?;
    if learns {
        first_use::train_missing(&opened, &runtime, interrupt, terminal)?;
    }
    let Opened { model, tokenizer } = opened;
    let needs_speeds = !runtime.machine().others.is_empty();
    let measures = needs_speeds && runtime.known_speeds(&model).is_none();
    let bar = measures.then(|| progress::timer(terminal, "measuring the devices"));
    // Measures, tests kernels, and plans several times, which takes a while with very many layers.
    let (engine, n_ctx) = interrupt.exit_during_load(|| {
        let placing = runtime.placing(&model);
        bar.inspect(ProgressBar::finish_and_clear);
        let n_ctx = runtime.context(&model, &placing);
        let settings = EngineOptions { placing, ..runtime.settings(&model, n_ctx) };
        Ok::<_, Failure>((runtime.load(&model, settings)?, n_ctx))
    })?;
    let tokenizer = Arc::new(tokenizer);
    Ok(LoadedModel { model, tokenizer, n_ctx, engine, load: start.elapsed() })
}

/// Continues a prompt; with `--chat`, answers it as a message.
///
/// # Errors
/// The model cannot be loaded, the prompt does not fit, or Ctrl-C.
pub(crate) fn run(args: &RunArgs, terminal: &Terminal) -> Result<(), Failure> {
    if args.conversation.chat {
        return super::chat::answer_one_message(args, terminal);
    }
    let trace = Trace::open(args.trace.as_deref())?;
    let done = continue_prompt(args, &trace, terminal);
    let written = trace.finish(terminal);
    done.and(written)
}

fn continue_prompt(args: &RunArgs, trace: &Trace, terminal: &Terminal) -> Result<(), Failure> {
    let interrupt = Interrupt::install()?;
    let LoadedModel { model: _, tokenizer, n_ctx, mut engine, load } =
        load_model(&args.model, args.auto_profile, &interrupt, terminal)?;
    trace.watch(&mut engine, "run");
    let built_in = args.model.model.is_none();
    let text = args.prompt.as_deref().unwrap_or(if built_in { STORY } else { "" });
    if args.prompt.is_none() && !built_in && io::stdin().is_terminal() {
        terminal.note("no prompt was given, so the model begins a text of its own; -p TEXT sets a prompt, `thermocline chat` starts a conversation");
    }
    let prompt = prompt_ids(text, &tokenizer, n_ctx)?;
    if args.verbose_prompt {
        list_prompt(&prompt, &tokenizer, terminal)?;
    }
    let structured = Structured::new(&args.constraint, &tokenizer, &[])?;
    let constraint = structured.map(|structured| structured.text()).transpose()?;
    let mut sampler = sampler(&args.sampling.config(), args.sampling.ignore_eos, &tokenizer)?;
    let settings = settings(args, prompt.len());
    let mut shown = TextOutput::new(args, text, terminal);
    let mut sequence = prompt_cache::load(args, &mut engine, terminal)?;
    let generator = Generator {
        engine: &mut engine,
        tokenizer: &tokenizer,
        sampler: &mut sampler,
        settings: &settings,
        interrupt: interrupt.flag(),
    };
    let bar = PromptBar::new(prompt.len(), terminal);
    let progress = &mut |n_read| bar.set_position(n_read);
    let emit = &mut |piece: &str| {
        bar.remove();
        shown.piece(piece)
    };
    let report = generator.resume_with(&mut sequence, &prompt, constraint, progress, emit);
    bar.remove();
    let report = report?;
    // An interrupted prompt is not echoed.
    if report.n_reused + report.n_computed == report.n_prompt {
        let _ = shown.piece(&end_of(&report, args.special, &tokenizer));
    }
    shown.end()?;
    if report.ended == EndReason::ContextFull {
        let help = if args.context_shift {
            "a smaller --keep lets --context-shift drop tokens"
        } else {
            "--context-shift drops the oldest tokens and continues"
        };
        terminal.note(&format!(
            "the context of {n_ctx} tokens is full; -c sets a larger one, and {help}"
        ));
    }
    if args.perf || args.json {
        report_perf(args.json, &report, sampler.seed(), Some(load), terminal);
    }
    let tokens = sequence.tokens().to_vec();
    prompt_cache::save(args, &mut engine, &mut sequence, prompt.len())?;
    drop(sequence);
    if args.auto_profile {
        let used = FinishedRun { tokens: &tokens, took: report.prompt + report.generated };
        let computation = &args.model.placement.computation();
        auto_profile::profile_run(&used, &mut engine, computation, interrupt.flag(), terminal);
    }
    match report.ended {
        EndReason::Interrupted => Err(Failure::interrupted()),
        EndReason::EndOfText
        | EndReason::Length
        | EndReason::Stop
        | EndReason::ContextFull
        | EndReason::Closed => Ok(()),
    }
}

/// The text of the token that ended a generation; empty unless `special` is set.
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
        let message = "the prompt is empty and the model has no BOS token";
        return Err(Failure::usage(message).help("give a prompt with -p"));
    }
    if n >= n_ctx {
        let message = format!(
            "the prompt takes {n} of the context's {n_ctx} tokens, which leaves no room to continue it"
        );
        let help = format!("use a larger context, such as -c {}", (n + 256).next_multiple_of(256));
        return Err(Failure::new(Exit::Failed, message).help(help));
    }
    Ok(ids)
}

/// Prints the prompt's tokens, for `--verbose-prompt`.
///
/// # Errors
/// An id is not in the vocabulary.
pub(super) fn list_prompt(
    ids: &[u32],
    tokenizer: &Tokenizer,
    terminal: &Terminal,
) -> Result<(), Failure> {
    terminal.note(&format!("{} in the prompt", counted(ids.len(), "token")));
    for &id in ids {
        let piece = tokenizer.piece(id, true).map_err(|e| {
            Failure::new(Exit::Failed, "cannot show the prompt's tokens").caused_by(&e)
        })?;
        terminal.note(&format!("{id:6} -> '{}'", String::from_utf8_lossy(piece)));
    }
    Ok(())
}

/// The sampler; with `ignore_eos`, it never samples an end-of-generation token.
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
    Sampler::new(&config, tokenizer).map_err(|e| Failure::usage(e.to_string()))
}

/// The settings of a generation after `n_prompt` tokens, from the flags.
pub(super) fn settings(args: &RunArgs, n_prompt: usize) -> Settings {
    Settings {
        n_predict: args.predict.tokens(),
        context_shift: args.context_shift && args.predict != Length::FillContext,
        n_keep: match args.keep {
            KeptTokens::Prompt => n_prompt,
            // Always keep the BOS token, because models produce nonsense without it.
            KeptTokens::Tokens(n) => (n as usize).clamp(1, n_prompt),
        },
        stops: args.reverse_prompt.clone(),
        end_of_text: !args.sampling.ignore_eos,
        end_tokens: Vec::new(),
        special: args.special,
        written_tokens: Vec::new(),
    }
}

/// Prints the prompt if requested, then the generated text token by token.
struct TextOutput<'a> {
    output: Output,
    color: bool,
    /// The prompt until it is printed: before the first text, so that it does not share a line with
    /// a progress bar.
    prompt: Option<&'a str>,
    newline: bool,
    /// Whether statistics on standard error follow the text.
    is_reported: bool,
    failed: Option<Failure>,
}

impl<'a> TextOutput<'a> {
    fn new(args: &RunArgs, prompt: &'a str, terminal: &Terminal) -> TextOutput<'a> {
        let color = terminal.color_stdout() && args.display_prompt;
        let is_reported = args.json || args.perf && !terminal.is_quiet();
        let prompt = args.display_prompt.then_some(prompt);
        let (output, newline) = (Output::of_model(args.raw), true);
        TextOutput { output, color, prompt, newline, is_reported, failed: None }
    }

    fn write_prompt(&mut self, text: &str) -> Result<(), Failure> {
        if self.color {
            self.output.write(format!("{PROMPT}"))?;
            self.output.text(text)?;
            self.output.write(format!("{PROMPT:#}"))?;
        } else {
            self.output.text(text)?;
        }
        self.newline = text.ends_with('\n');
        self.output.flush()
    }

    fn piece(&mut self, piece: &str) -> ControlFlow<()> {
        let written = match self.prompt.take() {
            Some(prompt) => self.write_prompt(prompt),
            None => Ok(()),
        };
        if !piece.is_empty() {
            self.newline = piece.ends_with('\n');
        }
        match written.and_then(|()| self.output.text(piece)).and_then(|()| self.output.flush()) {
            Ok(()) => ControlFlow::Continue(()),
            Err(failure) => {
                self.failed = Some(failure);
                ControlFlow::Break(())
            }
        }
    }

    /// Ends an open line on a terminal; files and pipes get the text unchanged. Where standard error
    /// is the same file or pipe, the statistics begin on a new line.
    fn end(&mut self) -> Result<(), Failure> {
        if let Some(failure) = self.failed.take() {
            return Err(failure);
        }
        let is_terminal = io::stdout().is_terminal();
        if !self.newline && is_terminal {
            self.output.write("\n")?;
        }
        self.output.flush()?;
        if !self.newline && !is_terminal && self.is_reported && stdout_is_stderr() {
            // If standard error is closed, the failure cannot be reported anywhere.
            let _ = writeln!(io::stderr());
        }
        Ok(())
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

/// Token counts, speeds and density of one generation, on one line.
pub(super) fn perf_line(report: &Report) -> String {
    let prompt = rate(report.n_computed, report.prompt);
    let generated = rate(report.n_steps, report.generated);
    let reused = match report.n_reused {
        0 => String::new(),
        n => format!(" ({n} reused from the cache)"),
    };
    let read = match report.n_reused + report.n_computed {
        n if n < report.n_prompt => format!("stopped after {n} of the "),
        _ => String::new(),
    };
    let waits = report.neurons.waits.shares().map_or(String::new(), |[cpu, devices]| {
        let [cpu, devices] = [cpu, devices].map(|share| 100.0 * share);
        format!(" | waiting for each other: the CPU {cpu:.0} %, devices {devices:.0} % of the time")
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
            format!(", {} swapped: {first:.1} % at the start, {last:.1} % at the end", done.neurons)
        });
        format!(" | {:.1} % of the active neurons on devices{exchanged}", 100.0 * share)
    });
    // The first token comes from the prompt's logits, so a single one has no speed.
    let speed =
        |n: usize, rate: f64| if n > 0 { format!(", {rate:.1} t/s") } else { String::new() };
    format!(
        "prompt {read}{}{reused}{} | generated {}{}{density}{devices}{waits}{}",
        counted(report.n_prompt, "token"),
        speed(report.n_computed, prompt),
        counted(report.n_generated, "token"),
        speed(report.n_steps, generated),
        disk::summary(report),
    )
}

/// Fraction of the active neurons that were not on the CPU; `None` if all were on the CPU and no
/// exchange was reported.
fn device_share(report: &Report) -> Option<f64> {
    let neurons = &report.neurons;
    (neurons.off_cpu > 0.0 || report.exchanged.is_some())
        .then(|| neurons.off_cpu / neurons.active.max(1.0))
}

/// The reason of an end, as a word for programs.
fn ended(reason: EndReason) -> &'static str {
    match reason {
        EndReason::EndOfText => "end_of_text",
        EndReason::Length => "length",
        EndReason::Stop => "stop",
        EndReason::ContextFull => "context_full",
        EndReason::Interrupted => "interrupted",
        EndReason::Closed => "closed",
    }
}

/// Prints the statistics on standard error, as JSON if requested. `load` is the loading time, or
/// `None` if the model was already loaded.
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
            "prompt_tokens_computed": report.n_computed,
            "prompt_tokens_per_second": rate(report.n_computed, report.prompt),
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
            "disk": disk::fields(report),
            "context_shifts": report.n_shifts,
            "ended": ended(report.ended),
            "notes": terminal.take_held(),
        });
        eprintln!("{json}");
        return;
    }
    let load = load.map_or(String::new(), |t| format!("load {:.0} ms | ", t.as_secs_f64() * 1e3));
    terminal.note(&format!("{load}{} | seed {seed}", perf_line(report)));
}
