//! From what the user said about a model to an engine that runs it; the same way for `run`, `bench` and
//! `perplexity`: [`open`] the file, choose the [`context`], [`load`].

mod assumed;
mod choice;
mod convert;
mod errors;
mod learned;
mod machine;
mod memory;
mod speeds;
mod trace;

pub(crate) use learned::{add as with_learned, is_learnt};
pub(crate) use machine::{Beside, Machine, NO_PROFILE, known_uses};
pub(crate) use memory::Need;
pub(crate) use trace::Trace;

use super::model_file;
use crate::cli::args::{ColorWhen, FfnActivation};
use crate::cli::config::model::{Computation, ContextSize, ModelOptions, Sparsity};
use crate::cli::failure::{Exit, Failure};
use crate::cli::terminal::Terminal;
use crate::devices::{self, CpuOptions};
use crate::engine::{self, Engine, EngineOptions, Notice, Placing};
use crate::gguf;
use crate::model::{self, Model};
use crate::placement::{CPU, Forecast};
use crate::tokenizer::Tokenizer;
use hal::op::{Activation, FfnKind};
use hal::{Bytes, Device, KvCache};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::Read;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

/// Context where the user said nothing: the model's own, but no more than this, for the cache takes memory.
const DEFAULT_CONTEXT: usize = 4096;
/// A larger context is worth this much of the speed.
const GOOD: f64 = 0.95;
/// So much speed may be worth a shorter one, which the user decides.
const WORTH_A_HINT: f64 = 0.1;
/// Smaller models are loaded before a bar could be read.
const BAR_FROM: Bytes = Bytes(256 << 20);

/// A model that is understood and not loaded yet.
#[derive(Debug)]
pub(crate) struct Opened {
    /// The model.
    pub(crate) model: Arc<Model>,
    /// Its vocabulary, with as many tokens as the model has.
    pub(crate) tokenizer: Tokenizer,
}

/// How the CPU is used; what the system refuses becomes a note.
pub(crate) fn cpu_options(options: &ModelOptions, terminal: &Terminal) -> CpuOptions {
    let terminal = terminal.clone();
    CpuOptions {
        threads: options.threads.map(NonZeroUsize::get),
        threads_batch: options.threads_batch.map(NonZeroUsize::get),
        lock: options.computation.mlock,
        notice: devices::Notice::new(move |text| terminal.note(text)),
        ..options.computation.processor.options()
    }
}

/// Opens the model file (without a path the built-in model) and understands it. Nothing is loaded, but without
/// `--mmap` the file is read.
///
/// # Errors
/// [`Exit::BadModel`] for what cannot be run; [`Exit::Memory`] where the file cannot be held.
pub(crate) fn open(
    path: Option<&Path>,
    computation: &Computation,
    cpu: &Device,
    terminal: &Terminal,
) -> Result<Opened, Failure> {
    let file = model_file::open(path)?;
    let file = match computation.mmap {
        true => file,
        false => read_whole(file, cpu, terminal)?,
    };
    let tokenizer = model_file::tokenizer(&file)?;
    for warning in tokenizer.warnings() {
        terminal.note(&warning.to_string());
    }
    let opened = Opened { model: understand(file, computation)?, tokenizer };
    let (found, expected) = (opened.tokenizer.n_vocab(), opened.model.n_vocab());
    if found != expected {
        let file = opened.model.file.name();
        let message = format!(
            "cannot run the model in '{file}': the vocabulary has {found} tokens, expected {expected}, the rows of `token_embd.weight`"
        );
        return Err(Failure::new(Exit::BadModel, message));
    }
    Ok(opened)
}

/// The model in a file.
///
/// # Errors
/// [`Exit::BadModel`], naming what is missing, wrong or not built.
pub(crate) fn understand(
    file: gguf::File,
    computation: &Computation,
) -> Result<Arc<Model>, Failure> {
    let activation = computation.activation.map(activation_name).map(str::to_owned);
    let model = Model::from_file(file, &model::ModelOptions { activation })?;
    Ok(Arc::new(model))
}

/// The model's name for what the user may say.
fn activation_name(activation: FfnActivation) -> &'static str {
    match activation {
        FfnActivation::Relu => "relu",
        FfnActivation::Silu => "silu",
        FfnActivation::Gelu => "gelu",
        FfnActivation::GeluErf => "gelu_erf",
        FfnActivation::Relu2 => "relu2",
        FfnActivation::Drelu => "drelu",
    }
}

/// `--no-mmap`: the file in ordinary memory. The parts of a split model stay mapped, and it is said.
fn read_whole(file: gguf::File, cpu: &Device, terminal: &Terminal) -> Result<gguf::File, Failure> {
    let [path] = file.paths() else {
        if file.paths().len() > 1 {
            terminal.note("the parts of a split model are mapped, not read, in spite of --no-mmap");
        }
        return Ok(file);
    };
    let size = file.size_bytes();
    let total = cpu.memory().ok().and_then(|memory| memory.total);
    let mut bytes = Vec::new();
    let room = usize::try_from(size).is_ok_and(|size| bytes.try_reserve_exact(size).is_ok());
    if !room || total.is_some_and(|total| Bytes(size) > total) {
        let message = format!("cannot read {} into memory", Bytes(size));
        return Err(
            Failure::new(Exit::Memory, message).help("without --no-mmap the file is mapped")
        );
    }
    let read = std::fs::File::open(path).and_then(|f| f.take(size).read_to_end(&mut bytes));
    let name = path.display().to_string();
    read.map_err(|e| {
        Failure::new(Exit::BadModel, format!("cannot read the model in '{name}'")).caused_by(&e)
    })?;
    gguf::File::from_vec(bytes, &name)
        .map_err(|e| Failure::new(Exit::BadModel, "cannot load the model").caused_by(&e))
}

/// Refuses to make a model of `size` in memory where the machine has less.
///
/// # Errors
/// [`Exit::Memory`].
pub(crate) fn check_room(size: Bytes) -> Result<(), Failure> {
    let memory = crate::devices::cpu(Some(1)).memory().ok();
    match memory.and_then(|memory| memory.total).filter(|total| size > *total) {
        Some(total) => {
            let message = format!("the model needs {size} of memory, this machine has {total}");
            let help =
                "a smaller shape or fewer bits per weight, or --write FILE to make it on disk";
            Err(Failure::new(Exit::Memory, message).help(help))
        }
        None => Ok(()),
    }
}

/// The context to run with: the user's; or with devices the largest that costs no speed worth mentioning; or the
/// model's own up to 4096.
pub(crate) fn context(
    options: &ModelOptions,
    model: &Model,
    machine: &Machine,
    placing: &Placing,
    terminal: &Terminal,
) -> usize {
    let usual = fixed_context(options.n_ctx, model, terminal);
    let trained = model.hyper.n_ctx_train;
    if options.n_ctx.is_some() || machine.others.is_empty() {
        return usual;
    }
    let devices = machine.devices();
    // What is wrong with what was learnt is said when it is loaded.
    let silent = Terminal::new(ColorWhen::Off, true, 0);
    let learned = learned::add(model, settings(options, usual), &options.computation, &silent);
    let learned = learned.unwrap_or_else(|_| settings(options, usual));
    let forecast = |n_ctx| {
        let n_ubatch = settings(options, n_ctx).n_ubatch;
        let placing = placing.clone();
        let settings = EngineOptions { n_ctx, n_ubatch, placing, ..learned.clone() };
        engine::forecast(model, &devices, &settings)
    };
    let least = forecast(usual).rate() * GOOD;
    let mut halves = std::iter::successors(Some(trained), |n| Some(n / 2).filter(|n| *n > usual));
    let fits = |n_ctx: &usize| {
        let forecast = forecast(*n_ctx);
        // Keys and values on the CPU would take memory from everything else.
        let on_cpu = forecast.placement.layers.iter().filter(|layer| layer.home == CPU).count();
        forecast.rate() >= least && on_cpu == 0
    };
    let n_ctx = halves.find(fits).unwrap_or(usual);
    // Both of so many tokens that the same number of them is taken to be there.
    let past = |n_ctx| engine::assumed_past(&settings(options, n_ctx));
    let shorter = Some(n_ctx / 2).filter(|&n| past(n) == past(n_ctx));
    let gain = shorter.map(|n| (n, forecast(n).rate() / forecast(n_ctx).rate() - 1.0));
    let hint = gain.filter(|(_, gain)| *gain > WORTH_A_HINT).map(|(n, gain)| {
        format!(", with {n} of them {:.0} % more tokens would come a second", 100.0 * gain)
    });
    terminal.note(&format!(
        "the context is {n_ctx} tokens of the model's {trained}{}; -c sets it, and more of it leaves less device memory for neurons",
        hint.unwrap_or_default()
    ));
    n_ctx
}

/// The context that does not depend on devices.
pub(crate) fn fixed_context(
    wanted: Option<ContextSize>,
    model: &Model,
    terminal: &Terminal,
) -> usize {
    let trained = model.hyper.n_ctx_train;
    match wanted {
        None => trained.min(DEFAULT_CONTEXT),
        Some(ContextSize::OfModel) => trained,
        Some(ContextSize::Tokens(n)) => {
            let n = n.get() as usize;
            if n > trained {
                terminal.note(&format!(
                    "a context of {n} is more than the {trained} the model was trained with; text beyond that may be poor"
                ));
            }
            n
        }
    }
}

/// The engine's settings for one sequence of `n_ctx` tokens.
pub(crate) fn settings(options: &ModelOptions, n_ctx: usize) -> EngineOptions {
    EngineOptions {
        n_ctx,
        n_ubatch: (options.n_ubatch.get() as usize).min(n_ctx.max(1)),
        n_seq: 1,
        kv_formats: KvCache { k: options.type_k.format(), v: options.type_v.format() },
        sparsity: match options.computation.sparsity {
            Sparsity::Predicted => engine::Sparsity::Predicted,
            Sparsity::Exact => engine::Sparsity::Exact,
            // The model's own error takes its place in `learned::add`.
            Sparsity::Balanced | Sparsity::Fast => engine::Sparsity::Within(learned::UNKNOWN),
            Sparsity::Within(error) => engine::Sparsity::Within(error),
            Sparsity::Off => engine::Sparsity::Off,
        },
        sparse_threshold: options.computation.sparse_threshold,
        chooser: None,
        repack: options.computation.repack,
        converted: None,
        placing: Placing { wishes: options.computation.devices.wishes, ..Placing::default() },
        adapt: options.computation.devices.adapt,
        streaming: engine::Streaming::Measured,
    }
}

/// Loads `model`: says what is skipped and what goes where, lays weights out anew or takes them as kept on disk,
/// refuses what cannot fit, shows a bar while it takes time.
///
/// # Errors
/// [`Exit::Memory`] with the numbers; what the engine reports.
pub(crate) fn load(
    model: &Arc<Model>,
    options: EngineOptions,
    computation: &Computation,
    machine: &Machine,
    terminal: &Terminal,
) -> Result<Engine, Failure> {
    let options = learned::add(model, options, computation, terminal)?;
    let devices = machine.devices();
    let cpu = &machine.cpu;
    let planned = match machine.others.is_empty() {
        true => None,
        false => Some(engine::forecast(model, &devices, &options)),
    };
    let elsewhere = planned.as_ref().is_some_and(uses_devices);
    // What is kept on disk is for models that are wholly on the CPU.
    let options = match elsewhere {
        true => options,
        false => convert::prepare(model, options, computation, cpu, terminal),
    };
    tell_sparsity(model, &options, terminal);
    let need = Need::of(model, &options, cpu);
    // What an integrated device has is memory of this machine, too.
    let need = planned.as_ref().map_or(need, |forecast| need.less(forecast, machine));
    need.check(cpu.memory().unwrap_or_default(), options.n_ctx, terminal)?;
    if let Some(forecast) = &planned {
        machine.tell(forecast, model, &options, terminal);
    }
    let bar = bar("loading", need.total(), terminal);
    let notice: Notice = {
        let (bar, terminal) = (bar.clone(), terminal.clone());
        Arc::new(move |text: &str| bar.suspend(|| terminal.note(text)))
    };
    let progress = |done: u64, of: u64| {
        bar.set_length(of);
        bar.set_position(done);
    };
    let engine = Engine::load(Arc::clone(model), devices, options, None, notice, &progress);
    bar.finish_and_clear();
    Ok(engine?)
}

/// Loads `model` with what `options` say and not a word about it: for one of many runs of the same model.
///
/// # Errors
/// What the engine reports.
pub(crate) fn quietly(
    model: &Arc<Model>,
    options: EngineOptions,
    cpu: Device,
) -> Result<Engine, Failure> {
    let quiet: Notice = Arc::new(|_: &str| {});
    Ok(Engine::load(Arc::clone(model), vec![cpu], options, None, quiet, &|_, _| {})?)
}

/// Whether anything is on a device beside the CPU.
fn uses_devices(forecast: &Forecast) -> bool {
    let placement = &forecast.placement;
    let ends = [placement.embed, placement.head];
    placement.layers.iter().map(|layer| layer.home).chain(ends).any(|home| home != CPU)
}

/// A bar over `size` bytes, hidden where nobody looks or it would be gone at once.
pub(crate) fn bar(what: &'static str, size: Bytes, terminal: &Terminal) -> ProgressBar {
    if !terminal.shows_progress() || size < BAR_FROM {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(size.0), ProgressDrawTarget::stderr());
    match ProgressStyle::with_template("{prefix} {bar:40} {binary_bytes}/{binary_total_bytes}") {
        Ok(style) => bar.with_style(style).with_prefix(what),
        Err(_) => bar,
    }
}

/// One line where the user may expect skipping and there is none; the rest with `-v`.
fn tell_sparsity(model: &Model, options: &EngineOptions, terminal: &Terminal) {
    let name = match (model.activation, model.ffn_kind) {
        (Activation::Relu, FfnKind::GatedBoth) => "dReLU",
        (Activation::Relu, FfnKind::Gated | FfnKind::Plain) => "ReLU",
        (Activation::Relu2, _) => "squared ReLU",
        (Activation::Silu, _) => "SiLU",
        (Activation::Gelu | Activation::GeluErf, _) => "GELU",
        (Activation::SwigluOai { .. }, _) => "SwiGLU",
    };
    match (options.sparsity, model.is_exactly_sparse()) {
        (engine::Sparsity::Off, _) => terminal.detail("every neuron is computed (--sparsity off)"),
        (engine::Sparsity::Within(error), _) => learned::tell(model, options, error, terminal),
        (engine::Sparsity::Exact | engine::Sparsity::Predicted, true) => terminal.detail(&format!(
            "the activation is {name}: neurons whose gate is not positive are skipped, which changes nothing"
        )),
        (engine::Sparsity::Exact | engine::Sparsity::Predicted, false) => terminal.note(&format!(
            "the activation is {name}: no neuron is exactly zero, so none is skipped and every neuron is computed"
        )),
    }
    let built = model.layers.iter().filter(|layer| layer.ffn.predictor.is_some()).count();
    let used = options.n_predicting(model);
    if options.sparsity != engine::Sparsity::Predicted {
        return;
    }
    if used > 0 {
        let (whose, threshold) = learned::predictor_in_use(model, options);
        let threshold = options.sparse_threshold.unwrap_or(threshold);
        terminal.note(&format!(
            "{whose} predictor chooses neurons in {used} layers (score at least {threshold}), as in PowerInfer; what it misses changes the result, --sparsity exact misses nothing"
        ));
    } else if options.sparse_threshold.is_some() {
        terminal.note("--sparse-threshold changes nothing: no predictor chooses neurons here");
    }
    let anew = EngineOptions { repack: true, ..options.clone() }.n_predicting(model);
    if used < anew {
        terminal.note(&format!(
            "{} of the file's predictors are not used: they need ffn_down laid out anew; their layers skip by the gate alone, which is exact",
            anew - used
        ));
    }
    if built < model.n_predictors {
        terminal.note(&format!(
            "{} of the file's {} predictors are in a format that is not built: those layers skip by the gate alone, which is exact",
            model.n_predictors - built,
            model.n_predictors
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::config::processor::Processor;
    use crate::devices::Priority;

    #[test]
    fn the_built_in_model_opens() {
        let terminal = Terminal::new(crate::cli::args::ColorWhen::Off, true, 0);
        let computation = Computation {
            mlock: false,
            mmap: false,
            repack: true,
            folder: None,
            activation: None,
            sparsity: Sparsity::Exact,
            sparse_threshold: None,
            devices: crate::cli::config::device::DeviceOptions::default(),
            processor: Processor {
                cpus: None,
                strict: false,
                priority: Priority::Normal,
                poll: 50,
                numa: None,
            },
        };
        let cpu = crate::devices::cpu(Some(1));
        let opened = open(None, &computation, &cpu, &terminal).unwrap();
        assert!(opened.model.is_exactly_sparse());
        let n = fixed_context(None, &opened.model, &terminal);
        assert_eq!(n, opened.model.hyper.n_ctx_train.min(4096));
        let three = ContextSize::Tokens(std::num::NonZeroU32::new(3).unwrap());
        assert_eq!(fixed_context(Some(three), &opened.model, &terminal), 3);
        let silu = Computation { activation: Some(FfnActivation::Silu), ..computation };
        let opened = open(None, &silu, &cpu, &terminal).unwrap();
        assert!(!opened.model.is_exactly_sparse());
    }
}
