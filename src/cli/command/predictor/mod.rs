//! `thermocline predictor`: trains a predictor or thresholds on a text's activations, or imports
//! PowerInfer's predictors.

mod import;
mod levels;
mod report;
mod text;

use super::profile::{self, SourceText};
use crate::cli::args::{PredictorArgs, TrainingArgs};
use crate::cli::failure::{Exit, Failure};
use crate::cli::interrupt::Interrupt;
use crate::cli::output::Output;
use crate::cli::progress;
use crate::cli::terminal::{Terminal, counted};
use crate::engine::{Engine, EngineOptions, ObservedBlock, Sparsity};
use crate::learned;
use crate::model::Model;
use crate::predictor::{
    self, Block, Chooser, LayerPredictor, LayerThresholds, Observations, PredictorKind as Kind,
    PredictorRun, Settings, SplitObservations, Stage,
};
use crate::tokenizer::Tokenizer;
use hal::Bytes;
use hal::format::Format;
use indicatif::ProgressBar;
use runtime::{Opened, Runtime};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use text::Windows;

/// Maximum bytes of activations recorded in one pass over the text; limits the layers per pass.
const MAX_RECORDED: usize = 2 << 30;
/// Maximum tokens for computing thresholds, and for the bias and thresholds of a sign predictor:
/// both have few parameters per neuron to fit.
const THRESHOLD_TOKENS: usize = 8192;

/// Steps of the progress bar for each layer.
const STEPS: usize = 1000;

/// Trains a predictor or thresholds, saving each layer, or imports a predictor; prints the result.
///
/// # Errors
/// Errors of loading, training and saving; a model for which [`check`] fails.
pub(crate) fn run(args: &PredictorArgs, terminal: &Terminal) -> Result<(), Failure> {
    let training = &args.training;
    let text = training.text()?;
    let interrupt = Interrupt::install()?;
    let options = args.model.options();
    let runtime = Runtime::cpu_only("`predictor` trains", options, terminal.observer());
    let folder = runtime.options().computation.folder().map(Path::to_owned);
    let opened = runtime.open(args.model.model.as_deref())?.decoder()?;
    let model = &opened.model;
    let text = SourceText { text: text.as_deref(), why: "" };
    let out = make(training, text, &opened, runtime, &interrupt, terminal)?;
    let found = learned::SideFile::open(&out, &model.file).map_err(predictor::Error::from)?;
    let chooser = predictor::read(&found, model)?;
    let mut output = Output::stdout();
    output.write(report::text(model, chooser.as_ref(), training.error))?;
    let balances = |chooser: &Chooser| chooser.levels.is_none_or(|l| l.balanced.is_some());
    let word = match (&training.import, &chooser) {
        (Some(_), _) => "predicted".to_owned(),
        (None, Some(chooser)) if !balances(chooser) => training.error.to_string(),
        (None, _) => "balanced".to_owned(),
    };
    let places = learned::places(&model.file, folder.as_deref());
    terminal.note(&if places.contains(&out) {
        format!("stored in {}; --sparsity {word} uses it", out.display())
    } else {
        format!(
            "stored in {}, but --sparsity {word} looks only in {}",
            out.display(),
            places.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and ")
        )
    });
    output.flush()
}

/// Trains the missing layers, or imports a predictor. Returns the path of the file with the result.
///
/// # Errors
/// As [`run`].
pub(super) fn make(
    args: &TrainingArgs,
    text: SourceText<'_>,
    opened: &Opened,
    runtime: Runtime,
    interrupt: &Interrupt,
    terminal: &Terminal,
) -> Result<PathBuf, Failure> {
    let Opened { model, tokenizer } = opened;
    check(model, args.kind)?;
    let out = output_path(args, model, &runtime)?;
    let interrupt = interrupt.clone();
    let job = TrainingJob { args, text, terminal, model, interrupt, runtime };
    match &args.import {
        Some(folder) => job.import(folder, &out, tokenizer)?,
        None => job.make(&out, tokenizer)?,
    }
    Ok(out)
}

/// Rejects models for which no predictor and no thresholds can be trained.
///
/// # Errors
/// [`Exit::BadModel`].
pub(super) fn check(model: &Model, kind: Kind) -> Result<(), Failure> {
    let refused = |why: &str| {
        Err(Failure::new(Exit::BadModel, format!("cannot train a predictor for this model: {why}")))
    };
    if model.experts().is_some() && model.is_exactly_sparse() {
        return refused(
            "its experts' neurons are skipped exactly, and a predictor of them would save less than it reads",
        );
    }
    if model.layers.iter().any(|layer| layer.ffn.is_none()) {
        return refused("some of its layers have no feed-forward block, and every layer needs one");
    }
    let step = match kind {
        Kind::Factors => predictor::RANK_STEP,
        Kind::Signs => Format::Q1_0.block_values(),
    };
    if model.is_exactly_sparse() && !model.hyper.n_embd.is_multiple_of(step) {
        return refused(&format!(
            "its embedding size of {} is not a multiple of {step}",
            model.hyper.n_embd
        ));
    }
    if kind == Kind::Signs && !model.is_exactly_sparse() {
        return refused("--kind sign needs an activation with exact zeros");
    }
    Ok(())
}

/// The output file: the path given with `--out`, else the default.
fn output_path(args: &TrainingArgs, model: &Model, runtime: &Runtime) -> Result<PathBuf, Failure> {
    if let Some(out) = &args.outfile {
        learned::check_writable(out).map_err(predictor::Error::from)?;
        return Ok(out.clone());
    }
    let folder = runtime.options().computation.folder();
    Ok(learned::writable_path(&model.file, folder).map_err(predictor::Error::from)?)
}

/// The inputs of one training run.
struct TrainingJob<'a> {
    args: &'a TrainingArgs,
    text: SourceText<'a>,
    terminal: &'a Terminal,
    model: &'a Arc<Model>,
    interrupt: Interrupt,
    runtime: Runtime,
}

impl TrainingJob<'_> {
    /// The first `most` tokens of `text`, cut into windows.
    fn windows(&self, text: &str, tokenizer: &Tokenizer, most: usize) -> Result<Windows, Failure> {
        Windows::new(text, tokenizer, self.model.hyper.n_ctx_train, most)
    }

    /// Trains a predictor or thresholds. An earlier unfinished run is resumed.
    fn make(&self, out: &Path, tokenizer: &Tokenizer) -> Result<(), Failure> {
        let signs = self.args.kind == Kind::Signs;
        let most = if self.model.is_exactly_sparse() && !signs {
            self.args.tokens
        } else {
            self.args.tokens.min(THRESHOLD_TOKENS)
        };
        let text = self.text.text.unwrap_or(profile::TEXT);
        let windows = self.windows(text, tokenizer, most)?;
        let Settings { kind, target, n_steps, rank, max_size } = self.args.settings();
        // Without --max-size, the recipe is the same as in older versions, so that their runs can
        // be resumed.
        let limit = max_size.map_or(String::new(), |most| format!(", at most {most}"));
        let recipe = format!(
            "{}{kind:?}, target {target}, {n_steps} steps, rank {rank:?}{limit}, {} tokens of {}",
            self.text.why,
            windows.n_tokens(),
            windows.hash()
        );
        let maker =
            PredictorRun::new(self.model, out, &recipe, self.args.restart, self.interrupt.flag())?;
        if maker.is_finished() {
            self.terminal
                .note("nothing to do: a run with the same settings and text is already complete");
            return Ok(());
        }
        if let Some(last) = maker.layers().len().checked_sub(1) {
            self.terminal.note(&format!("resuming after layer {last} of an earlier run"));
        }
        self.train_all(&windows, maker)
    }

    /// Trains the missing layers, several per pass over the text, and completes the file with the
    /// errors of the quality levels.
    fn train_all(&self, windows: &Windows, mut maker: PredictorRun<'_>) -> Result<(), Failure> {
        let mut engine = self.dense(windows.n_ctx())?;
        let hyper = &self.model.hyper;
        let density = if self.model.is_exactly_sparse() { 0.2 } else { 1.0 };
        let computed = self.model.blocks().map(|(_, ffn)| ffn.n_ff() as f64 * ffn.share_used());
        let parts = (computed.fold(0.0, f64::max) * density) as usize
            * size_of::<predictor::Contribution>();
        let each = windows.n_tokens() * (hyper.n_embd * size_of::<f32>() + parts);
        let free = self.runtime.machine().cpu.memory().ok().and_then(|memory| memory.free);
        let at_once = layers_at_once(windows.n_tokens(), each, free)?;
        let (start, begun) = (Instant::now(), maker.layers().len());
        while maker.layers().len() < hyper.n_layer {
            let first = maker.layers().len();
            if begun < first && first <= begun + at_once {
                self.note_rest(start.elapsed() / (first - begun) as u32, first);
            }
            let layers = first..hyper.n_layer.min(first + at_once);
            let seen = self.read(&mut engine, windows, layers.clone(), |o| o.x);
            let seen = seen.inspect_err(|failure| self.note_interrupted(failure, first))?;
            let steps = first * STEPS..hyper.n_layer * STEPS;
            let bar = progress::share(self.terminal, "training", steps);
            for (layer, [seen, held]) in layers.zip(seen) {
                let texts = SplitObservations { fit: &seen, held_out: &held };
                self.train(layer, texts, &mut maker, &bar)?;
            }
            bar.finish_and_clear();
        }
        let levels = self.levels(&mut engine, &windows.held_out_windows()?, maker.layers());
        let all = hyper.n_layer;
        maker.finish(levels.inspect_err(|failure| self.note_interrupted(failure, all))?)?;
        Ok(())
    }

    /// An engine that skips no contributing neuron.
    fn dense(&self, n_ctx: usize) -> Result<Engine, Failure> {
        let sparsity = if self.model.is_exactly_sparse() { Sparsity::Exact } else { Sparsity::Off };
        let options = EngineOptions { sparsity, ..self.settings(n_ctx) };
        Ok(self.interrupt.exit_during_load(|| self.runtime.load(self.model, options))?)
    }

    fn settings(&self, n_ctx: usize) -> EngineOptions {
        EngineOptions { n_ubatch: n_ctx.min(64), ..self.runtime.settings(self.model, n_ctx) }
    }

    /// Training and held-out samples of each of `layers`. `input` extracts the predictor's input
    /// from an observation.
    fn read(
        &self,
        engine: &mut Engine,
        windows: &Windows,
        layers: Range<usize>,
        input: for<'a> fn(&ObservedBlock<'a>) -> &'a [f32],
    ) -> Result<Vec<[Observations; 2]>, Failure> {
        let (model, n_ff) = (self.model, self.model.neurons());
        let seen = |i: usize| {
            let ffn = model.layers[i].ffn.as_ref();
            let activation = ffn.map_or(model.activation, |ffn| ffn.activation);
            let width = ffn.map_or(model.hyper.n_embd, |ffn| ffn.up.w.desc().n_cols);
            Observations::new(model.ffn_kind, activation, width, n_ff[i])
        };
        let mut all: Vec<[Observations; 2]> = layers.clone().map(|i| [seen(i), seen(i)]).collect();
        let Range { start, end } = layers;
        let what = format!("reading layers {start} to {} of {}", end - 1, model.hyper.n_layer);
        let n_tokens = windows.n_tokens() + windows.n_bos();
        let bar = progress::counter(self.terminal, &what, 0..n_tokens, "tokens");
        for (i, window) in windows.iter().enumerate() {
            let mut sequence = engine.new_sequence();
            let held = usize::from(windows.is_held(i));
            let each = &mut |layer: usize, o: &ObservedBlock<'_>| {
                if layer == start {
                    bar.inc(o.n_tokens as u64);
                }
                if layers.contains(&layer) {
                    all[layer - layers.start][held].push(input(o), o.gate, o.up, o.weights);
                }
            };
            engine.observe(&mut sequence, &window, self.interrupt.flag(), each)?;
        }
        bar.finish_and_clear();
        Ok(all)
    }

    /// The feed-forward block of a layer. [`check`] has rejected models with a layer without one.
    fn block(&self, layer: usize) -> Result<Block, Failure> {
        let missing = || {
            let text = format!("layer {layer} has no feed-forward block");
            Failure::new(Exit::BadModel, text)
        };
        Ok(Block::of(self.model.layers[layer].ffn.as_ref().ok_or_else(missing)?)?)
    }

    fn train(
        &self,
        layer: usize,
        texts: SplitObservations<'_>,
        maker: &mut PredictorRun<'_>,
        bar: &ProgressBar,
    ) -> Result<(), Failure> {
        let settings = &self.args.settings();
        let mut stage = |stage: Stage| {
            let (text, done) = match stage {
                Stage::Factors => ("factors".to_owned(), 0),
                Stage::Rank(rank) => (format!("rank {rank}"), STEPS / 10),
                Stage::Training(done) => {
                    let share = STEPS * done / settings.n_steps.max(1);
                    ("weights".to_owned(), STEPS / 5 + share * 3 / 5)
                }
                Stage::Thresholds => ("thresholds".to_owned(), STEPS * 4 / 5),
            };
            bar.set_position((layer * STEPS + done) as u64);
            bar.set_message(format!("layer {layer}: {text}"));
            !self.interrupt.is_set()
        };
        let compute = || {
            let block = self.block(layer)?;
            Ok::<_, Failure>(if self.model.is_exactly_sparse() {
                let found = predictor::predictor(layer, &block, texts, settings, &mut stage)?;
                found.map(MadeLayer::Predictor)
            } else {
                stage(Stage::Thresholds)
                    .then(|| MadeLayer::Thresholds(predictor::thresholds(&block, texts)))
            })
        };
        let farewell = || {
            bar.finish_and_clear();
            self.note_saved(layer);
        };
        let Some(made) = self.interrupt.exit_during(farewell, compute)? else {
            farewell();
            return Err(Failure::interrupted());
        };
        let what = match made {
            MadeLayer::Predictor(predictor) => {
                maker.add_predictor(predictor)?;
                "predictor"
            }
            MadeLayer::Thresholds(thresholds) => {
                maker.add_thresholds(thresholds)?;
                "thresholds"
            }
        };
        bar.set_position(((layer + 1) * STEPS) as u64);
        bar.suspend(|| self.terminal.detail(&format!("layer {layer}: {what} ready")));
        Ok(())
    }

    /// Notes how long the layers from `first` on will take, if it is long.
    fn note_rest(&self, per_layer: Duration, first: usize) {
        let n = self.model.hyper.n_layer - first;
        let minutes = (per_layer * n as u32).as_secs().div_ceil(60);
        if minutes > 1 {
            self.terminal.note(&format!(
                "about {minutes} minutes for the remaining {}; Ctrl-C keeps the finished layers, and the same command resumes",
                counted(n, "layer")
            ));
        }
    }

    fn note_interrupted(&self, failure: &Failure, n_layers: usize) {
        if failure.exit == Exit::Interrupted {
            self.note_saved(n_layers);
        }
    }

    /// Notes after Ctrl-C what a later run will not have to do again.
    fn note_saved(&self, n_layers: usize) {
        if n_layers > 0 {
            let all = self.model.hyper.n_layer;
            let note = format!("{n_layers} of {all} layers are saved; the same command resumes");
            self.terminal.note(&note);
        }
    }
}

/// Layers whose activations are recorded in one pass over `n_tokens` tokens: `each` bytes per layer,
/// at most half of the `free` memory.
///
/// # Errors
/// One layer takes more.
fn layers_at_once(n_tokens: usize, each: usize, free: Option<Bytes>) -> Result<usize, Failure> {
    let each = each.max(1);
    let most = free.map_or(usize::MAX, |free| usize::try_from(free.0 / 2).unwrap_or(usize::MAX));
    if each > most {
        let (wanted, half) = (Bytes(each as u64), Bytes(most as u64));
        let message = format!(
            "recording {n_tokens} tokens in one layer takes {wanted} of memory, but only {half}, half of the free memory, may be used"
        );
        let fitting = (most as f64 / each as f64 * n_tokens as f64) as usize;
        let failure = Failure::new(Exit::Memory, message);
        return Err(match fitting {
            0..1024 => failure.help("free some memory, or raise the limit of this process"),
            _ => failure.help(format!("use fewer tokens, such as --tokens {fitting}")),
        });
    }
    Ok((MAX_RECORDED.min(most) / each).max(1))
}

/// The result of training a layer.
enum MadeLayer {
    Predictor(LayerPredictor),
    Thresholds(LayerThresholds),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_layers_fit_into_half_of_the_free_memory() {
        let n = |each, free: Option<u64>| layers_at_once(4096, each, free.map(Bytes));
        assert_eq!(n(1 << 28, None), Ok(8));
        assert_eq!(n(1 << 32, None), Ok(1), "one layer is the least");
        assert_eq!(n(1 << 28, Some(1 << 30)), Ok(2));
        let failure = n(1 << 30, Some(1 << 30)).unwrap_err();
        assert_eq!(failure.exit, Exit::Memory);
        assert!(
            failure.message.contains("takes 1.00 GiB of memory, but only 512.00 MiB"),
            "{failure}"
        );
        assert_eq!(failure.help.unwrap(), "use fewer tokens, such as --tokens 2048");
        let little = n(1 << 30, Some(1 << 20)).unwrap_err();
        assert!(little.help.unwrap().starts_with("free some memory"));
    }
}
