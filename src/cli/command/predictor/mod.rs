//! `thermocline predictor`: shows a text to the dense model and learns of it which neurons can be skipped.

mod import;
mod levels;
mod report;
mod text;

use super::engine::{self, Machine, Opened};
use super::profile;
use crate::cli::config::PredictorOptions;
use crate::cli::failure::{Exit, Failure};
use crate::cli::interrupt::Interrupt;
use crate::cli::output::Output;
use crate::cli::terminal::Terminal;
use crate::engine::{Engine, EngineOptions, Observed, Sparsity};
use crate::learned;
use crate::model::Model;
use crate::predictor::{self, Block, Chooser, Kind, Maker, Seen, Settings, Stage, Texts};
use crate::tokenizer::Tokenizer;
use hal::format::Format;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use text::Windows;

/// Memory for what was seen of layers that are learnt in one reading of the text.
const MOST_SEEN: usize = 2 << 30;
/// Tokens that thresholds and the lines of signs are learnt from: they are a few numbers for each neuron.
const FOR_THRESHOLDS: usize = 8192;

/// Learns, saves layer by layer, and prints what came of it.
///
/// # Errors
/// What loading, learning and saving report; models that have nothing to learn.
pub(crate) fn run(options: &PredictorOptions, terminal: &Terminal) -> Result<(), Failure> {
    let interrupt = Interrupt::install_with_termination()?;
    let machine = Machine::cpu_only("`predictor` learns", &options.model, terminal);
    let path = options.model.path.as_deref();
    let opened = engine::open(path, &options.model.computation, &machine.cpu, terminal)?;
    let model = &opened.model;
    let out = make(options, "", &opened, machine, &interrupt, terminal)?;
    let found = learned::Learned::open(&out, &model.file).map_err(predictor::Error::from)?;
    let chooser = Chooser::read(&found, model)?;
    let mut output = Output::stdout();
    output.write(report::text(model, chooser.as_ref(), options.settings.target))?;
    let word = if options.import.is_some() { "predicted" } else { "balanced" };
    let folder = options.model.computation.folder.as_ref().map(|folder| folder.path.as_path());
    let places = learned::places(&model.file, folder);
    terminal.note(&match places.contains(&out) {
        true => format!("kept in {}; --sparsity {word} uses it", out.display()),
        false => format!(
            "kept in {}; --sparsity {word} looks for it in {} only",
            out.display(),
            places.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and ")
        ),
    });
    output.flush()
}

/// Makes what is missing of `opened`, and gives the file that holds it. `why` is a part of the recipe.
///
/// # Errors
/// As [`run`].
pub(super) fn make(
    options: &PredictorOptions,
    why: &str,
    opened: &Opened,
    machine: Machine,
    interrupt: &Interrupt,
    terminal: &Terminal,
) -> Result<PathBuf, Failure> {
    let Opened { model, tokenizer } = opened;
    check(model, options.settings.kind)?;
    let out = place(options, model)?;
    let interrupt = interrupt.clone();
    let job = Job { options, why, terminal, model, interrupt, machine };
    match &options.import {
        Some(folder) => job.import(folder, &out, tokenizer)?,
        None => job.make(&out, tokenizer)?,
    }
    Ok(out)
}

/// Refuses models of which nothing is learnt.
///
/// # Errors
/// [`Exit::BadModel`].
pub(super) fn check(model: &Model, kind: Kind) -> Result<(), Failure> {
    let refused = |why: &str| {
        Err(Failure::new(Exit::BadModel, format!("nothing can be learnt of this model: {why}")))
    };
    if model.hyper.experts.is_some() {
        return refused("its neurons fall into experts, for which predictors are not built");
    }
    let step = match kind {
        Kind::Factors => predictor::RANK_STEP,
        Kind::Signs => Format::Q1_0.block_values(),
    };
    if model.is_exactly_sparse() && !model.hyper.n_embd.is_multiple_of(step) {
        return refused(&format!("its width of {} is no multiple of {step}", model.hyper.n_embd));
    }
    if kind == Kind::Signs && !model.is_exactly_sparse() {
        return refused("signs tell neurons that are exactly idle, and it has none");
    }
    Ok(())
}

/// Where the result goes: where the user says, or the best place.
fn place(options: &PredictorOptions, model: &Model) -> Result<PathBuf, Failure> {
    if let Some(out) = &options.out {
        learned::check_place(out).map_err(predictor::Error::from)?;
        return Ok(out.clone());
    }
    let folder = options.model.computation.folder.as_ref().map(|folder| folder.path.as_path());
    Ok(learned::place(&model.file, folder).map_err(predictor::Error::from)?)
}

/// What is to be done, and with what.
struct Job<'a> {
    options: &'a PredictorOptions,
    why: &'a str,
    terminal: &'a Terminal,
    model: &'a Arc<Model>,
    interrupt: Interrupt,
    machine: Machine,
}

impl Job<'_> {
    /// A text, of which at most `most` tokens count.
    fn windows(&self, text: &str, tokenizer: &Tokenizer, most: usize) -> Result<Windows, Failure> {
        Windows::new(text, tokenizer, self.model.hyper.n_ctx_train, most)
    }

    /// Makes a predictor or thresholds, or what is missing of them.
    fn make(&self, out: &Path, tokenizer: &Tokenizer) -> Result<(), Failure> {
        let signs = self.options.settings.kind == Kind::Signs;
        let most = match self.model.is_exactly_sparse() && !signs {
            true => self.options.n_tokens,
            false => self.options.n_tokens.min(FOR_THRESHOLDS),
        };
        let text = self.options.text.as_deref().unwrap_or(profile::TEXT);
        let windows = self.windows(text, tokenizer, most)?;
        let Settings { kind, target, n_steps, rank, max_size } = self.options.settings;
        // Recipes of runs before there was a limit go on.
        let limit = max_size.map_or(String::new(), |most| format!(", at most {most}"));
        let recipe = format!(
            "{}{kind:?}, target {target}, {n_steps} steps, rank {rank:?}{limit}, {} tokens of {}",
            self.why,
            windows.n_tokens(),
            windows.sum()
        );
        let maker = Maker::new(self.model, out, &recipe, self.options.restart)?;
        if maker.is_finished() {
            self.terminal.note("everything is there already, made by the same recipe");
            return Ok(());
        }
        if let Some(last) = maker.layers().len().checked_sub(1) {
            self.terminal.note(&format!("going on after layer {last} of an earlier run"));
        }
        self.learn_all(&windows, maker)
    }

    /// Learns the layers that are missing, as many in one reading as memory allows.
    fn learn_all(&self, windows: &Windows, mut maker: Maker<'_>) -> Result<(), Failure> {
        let mut engine = self.dense(windows.n_ctx())?;
        let hyper = &self.model.hyper;
        let density = if self.model.is_exactly_sparse() { 0.2 } else { 1.0 };
        let parts = (hyper.n_ff as f64 * density) as usize * size_of::<predictor::Part>();
        let each = windows.n_tokens() * (hyper.n_embd * size_of::<f32>() + parts);
        let at_once = (MOST_SEEN / each.max(1)).max(1);
        while maker.layers().len() < hyper.n_layer {
            let first = maker.layers().len();
            let layers = first..hyper.n_layer.min(first + at_once);
            let seen = self.read(&mut engine, windows, layers.clone(), |o| o.x)?;
            for (layer, [seen, held]) in layers.zip(seen) {
                self.learn(layer, Texts { seen: &seen, held: &held }, &mut maker)?;
            }
        }
        let levels = self.levels(&mut engine, &windows.held()?, maker.layers())?;
        maker.finish(levels)?;
        Ok(())
    }

    /// An engine that skips nothing that counts.
    fn dense(&self, n_ctx: usize) -> Result<Engine, Failure> {
        let sparsity = match self.model.is_exactly_sparse() {
            true => Sparsity::Exact,
            false => Sparsity::Off,
        };
        let options = EngineOptions { sparsity, ..self.settings(n_ctx) };
        let computation = &self.options.model.computation;
        engine::load(self.model, options, computation, &self.machine, self.terminal)
    }

    fn settings(&self, n_ctx: usize) -> EngineOptions {
        EngineOptions { n_ubatch: n_ctx.min(64), ..engine::settings(&self.options.model, n_ctx) }
    }

    /// What is to be learnt from and what is held out, for each of `layers`.
    /// The predictor reads what `input` takes of what is observed.
    fn read(
        &self,
        engine: &mut Engine,
        windows: &Windows,
        layers: Range<usize>,
        input: for<'a> fn(&Observed<'a>) -> &'a [f32],
    ) -> Result<Vec<[Seen; 2]>, Failure> {
        let hyper = &self.model.hyper;
        let seen =
            || Seen::new(self.model.ffn_kind, self.model.activation, hyper.n_embd, hyper.n_ff);
        let mut all: Vec<[Seen; 2]> = layers.clone().map(|_| [seen(), seen()]).collect();
        let bar = self.bar(&format!("reading, {} layers", layers.len()), windows.len());
        for (i, window) in windows.iter().enumerate() {
            let mut session = engine.open();
            let held = usize::from(windows.is_held(i));
            let each = &mut |layer: usize, o: &Observed<'_>| {
                if layers.contains(&layer) {
                    all[layer - layers.start][held].push(input(o), o.gate, o.up);
                }
            };
            let read = engine.observe(&mut session, &window, self.interrupt.flag(), each);
            engine.close(session);
            read?;
            bar.set_position(i as u64 + 1);
        }
        bar.finish_and_clear();
        Ok(all)
    }

    fn learn(&self, layer: usize, texts: Texts<'_>, maker: &mut Maker<'_>) -> Result<(), Failure> {
        let block = Block::of(&self.model.layers[layer].ffn)?;
        let settings = &self.options.settings;
        let bar =
            self.bar(&format!("layer {layer} of {}", self.model.hyper.n_layer), settings.n_steps);
        let mut stage = |stage: Stage| {
            let text = match stage {
                Stage::Factors => "factors".to_owned(),
                Stage::Rank(rank) => format!("rank {rank}"),
                Stage::Training(done) => {
                    bar.set_position(done as u64);
                    "training".to_owned()
                }
                Stage::Thresholds => "thresholds".to_owned(),
            };
            bar.set_message(text);
            !self.interrupt.is_set()
        };
        if self.model.is_exactly_sparse() {
            let made = predictor::predictor(layer, &block, texts, settings, &mut stage)?;
            let Some(made) = made else { return Err(Failure::interrupted()) };
            maker.predictor(made)?;
        } else {
            if !stage(Stage::Thresholds) {
                return Err(Failure::interrupted());
            }
            maker.thresholds(predictor::thresholds(&block, texts))?;
        }
        bar.finish_and_clear();
        self.terminal.detail(&format!("layer {layer} is learnt"));
        Ok(())
    }

    fn bar(&self, what: &str, n: usize) -> ProgressBar {
        if !self.terminal.shows_progress() {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::with_draw_target(Some(n as u64), ProgressDrawTarget::stderr());
        match ProgressStyle::with_template("{prefix} {bar:40} {pos}/{len} {msg}") {
            Ok(style) => bar.with_style(style).with_prefix(what.to_owned()),
            Err(_) => bar,
        }
    }
}
