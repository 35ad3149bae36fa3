//! `thermocline predictor`: shows a text to the dense model and learns of it which neurons can be skipped.

mod levels;
mod text;

use super::engine::{self, Opened};
use crate::cli::config::PredictorOptions;
use crate::cli::failure::{Exit, Failure};
use crate::cli::interrupt::Interrupt;
use crate::cli::output::Output;
use crate::cli::terminal::Terminal;
use crate::engine::{Engine, EngineOptions, Sparsity};
use crate::learned;
use crate::model::Model;
use crate::predictor::{self, Block, Chooser, Layers, Levels, Maker, Seen, Stage, Texts};
use hal::Device;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use text::Windows;

/// Memory for what was seen of layers that are learnt in one reading of the text.
const MOST_SEEN: usize = 2 << 30;
/// Tokens that thresholds are learnt from: they are one number for each neuron.
const FOR_THRESHOLDS: usize = 8192;

/// Learns, saves layer by layer, and prints what came of it.
///
/// # Errors
/// What loading, learning and saving report; models that have nothing to learn.
pub(crate) fn run(options: &PredictorOptions, terminal: &Terminal) -> Result<(), Failure> {
    let interrupt = Interrupt::install_with_termination()?;
    let cpu = engine::cpu(&options.model, terminal);
    let path = options.model.path.as_deref();
    let Opened { model, tokenizer } =
        engine::open(path, &options.model.computation, &cpu, terminal)?;
    check(&model)?;
    let out = place(options, &model)?;
    let most = match model.is_exactly_sparse() {
        true => options.n_tokens,
        false => options.n_tokens.min(FOR_THRESHOLDS),
    };
    let windows = Windows::new(&options.text, &tokenizer, model.hyper.n_ctx_train, most)?;
    let settings = &options.settings;
    let recipe = format!(
        "{} target {} steps {} rank {:?} tokens {} of {}",
        windows.n_tokens(),
        settings.target,
        settings.n_steps,
        settings.rank,
        most,
        windows.sum(),
    );
    let maker = Maker::new(&model, &out, &recipe)?;
    if maker.is_finished() {
        terminal.note("everything is there already, made by the same recipe");
    } else {
        if let Some(last) = maker.layers().len().checked_sub(1) {
            terminal.note(&format!("going on after layer {last} of an earlier run"));
        }
        let windows = &windows;
        Learner { options, terminal, model: &model, windows, interrupt, cpu }.run(maker)?;
    }
    let found = learned::Learned::open(&out, &model.file).map_err(predictor::Error::from)?;
    let chooser = Chooser::read(&found, &model)?;
    let mut output = Output::stdout();
    output.write(report(&model, chooser.as_ref(), settings.target))?;
    terminal.note(&format!("kept in {}; --sparsity balanced uses it", out.display()));
    output.flush()
}

/// Refuses models of which nothing is learnt.
fn check(model: &Model) -> Result<(), Failure> {
    let refused = |why: &str| {
        Err(Failure::new(Exit::BadModel, format!("nothing can be learnt of this model: {why}")))
    };
    if model.hyper.experts.is_some() {
        return refused("its neurons fall into experts, for which predictors are not built");
    }
    if !model.hyper.n_embd.is_multiple_of(predictor::RANK_STEP) {
        let why = format!(
            "its width of {} is no multiple of {}",
            model.hyper.n_embd,
            predictor::RANK_STEP
        );
        return refused(&why);
    }
    Ok(())
}

/// Where the result goes: where the user says, where there is one already, or the best place.
fn place(options: &PredictorOptions, model: &Model) -> Result<PathBuf, Failure> {
    if let Some(out) = &options.out {
        return Ok(out.clone());
    }
    let folder = options.model.computation.folder.as_ref().map(|folder| folder.path.as_path());
    let places = learned::places(&model.file, folder);
    let there = places.iter().find(|place| place.exists()).or(places.first()).cloned();
    there.ok_or_else(|| {
        Failure::usage("there is no place for the result").help("name one with --out FILE")
    })
}

struct Learner<'a> {
    options: &'a PredictorOptions,
    terminal: &'a Terminal,
    model: &'a Arc<Model>,
    windows: &'a Windows,
    interrupt: Interrupt,
    cpu: Device,
}

impl Learner<'_> {
    /// Learns the layers that are missing, as many in one reading as memory allows.
    fn run(&self, mut maker: Maker<'_>) -> Result<(), Failure> {
        let mut engine = self.dense()?;
        let hyper = &self.model.hyper;
        let density = if self.model.is_exactly_sparse() { 0.2 } else { 1.0 };
        let parts = (hyper.n_ff as f64 * density) as usize * size_of::<predictor::Part>();
        let each = self.windows.n_tokens() * (hyper.n_embd * size_of::<f32>() + parts);
        let at_once = (MOST_SEEN / each.max(1)).max(1);
        while maker.layers().len() < hyper.n_layer {
            let first = maker.layers().len();
            let layers = first..hyper.n_layer.min(first + at_once);
            let seen = self.read(&mut engine, layers.clone())?;
            for (layer, [seen, held]) in layers.zip(seen) {
                self.learn(layer, Texts { seen: &seen, held: &held }, &mut maker)?;
            }
        }
        let levels = self.levels(&mut engine, maker.layers())?;
        maker.finish(levels)?;
        Ok(())
    }

    /// An engine that skips nothing that counts.
    fn dense(&self) -> Result<Engine, Failure> {
        let sparsity = match self.model.is_exactly_sparse() {
            true => Sparsity::Exact,
            false => Sparsity::Off,
        };
        let options = EngineOptions { sparsity, ..self.settings() };
        let computation = &self.options.model.computation;
        engine::load(self.model, options, computation, self.cpu.clone(), self.terminal)
    }

    fn settings(&self) -> EngineOptions {
        let n_ctx = self.windows.n_ctx();
        EngineOptions { n_ubatch: n_ctx.min(64), ..engine::settings(&self.options.model, n_ctx) }
    }

    /// What is to be learnt from and what is held out, for each of `layers`.
    fn read(&self, engine: &mut Engine, layers: Range<usize>) -> Result<Vec<[Seen; 2]>, Failure> {
        let hyper = &self.model.hyper;
        let seen =
            || Seen::new(self.model.ffn_kind, self.model.activation, hyper.n_embd, hyper.n_ff);
        let mut all: Vec<[Seen; 2]> = layers.clone().map(|_| [seen(), seen()]).collect();
        let bar = self.bar(&format!("reading, {} layers", layers.len()), self.windows.len());
        for (i, window) in self.windows.iter().enumerate() {
            let mut session = engine.open();
            let held = usize::from(self.windows.is_held(i));
            let each = &mut |layer: usize, o: &crate::engine::Observed<'_>| {
                if layers.contains(&layer) {
                    all[layer - layers.start][held].push(o.x, o.gate, o.up);
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

/// A table of the layers, at the error for which they were made or the next larger one that is kept.
fn report(model: &Model, chooser: Option<&Chooser>, target: f32) -> String {
    let at = predictor::ERRORS.iter().position(|error| *error >= target).unwrap_or_default();
    let mut text = String::new();
    match chooser.map(|chooser| &chooser.layers) {
        None => {}
        Some(Layers::Predictors(layers)) => {
            text +=
                "layer  rank  type   bytes  of ffn  trained  listed  recall  weighted  at error\n";
            for (i, layer) in layers.iter().enumerate() {
                let verdict = &layer.curve.verdicts[at];
                let ffn = &model.layers[i].ffn;
                let size = |rows: &hal::HostRows| (rows.desc().n_rows * rows.row_bytes()) as u64;
                let all: u64 = ffn.matrices().map(|(_, rows)| size(rows)).sum();
                text += &format!(
                    "{i:5}  {:4}  {:5}  {:>6}  {:4.1} %  {:7}  {:4.1} %  {:.4}  {:8.4}  {:8.3}\n",
                    layer.fc1.desc().n_rows,
                    layer.fc1.desc().format.name(),
                    layer.bytes().0,
                    100.0 * layer.bytes().0 as f64 / all.max(1) as f64,
                    if layer.trained { "yes" } else { "no" },
                    100.0 * verdict.listed,
                    verdict.recall,
                    verdict.weighted_recall,
                    verdict.error,
                );
            }
        }
        Some(Layers::Thresholds(layers)) => {
            text += "layer  kept at error\n";
            for (i, layer) in layers.iter().enumerate() {
                let verdict = &layer.curve.verdicts[at];
                text +=
                    &format!("{i:5}  {:4.1} %  {:6.3}\n", 100.0 * verdict.listed, verdict.error);
            }
        }
    }
    if let Some(Levels { balanced, fast }) = chooser.map(|chooser| chooser.levels) {
        text += &format!("balanced is an error of {balanced}, fast of {fast}\n");
    }
    text
}
