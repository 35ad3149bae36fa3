//! Turns options into an engine: devices, context, side files, loading.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use engine::{DenseFrom, Engine, EngineOptions, PlannerInputs};
use hal::op::{Activation, FfnKind};
use hal::{Bytes, Device};
use model::{Model, ModelOptions};
use placement::{CPU, Forecast, PlacementPolicy, Speed};

use crate::assumed_device::AssumedDevice;
use crate::error::MemoryLimit;
use crate::machine::{self, Machine};
use crate::memory::{MemoryNeed, memory_for};
use crate::notice::{Notice, Observer, SharedObserver, SilentObserver, SparsityNotice, Task};
use crate::open::Opened;
use crate::options::{Computation, ContextSize, Options, Sparsity};
use crate::{Error, Result, overrides, side_file};

/// Limit of the default context in tokens, because the KV cache grows with the context.
const MAX_DEFAULT_CONTEXT: usize = 4096;
/// A larger context is chosen if it keeps at least this fraction of the speed.
const MIN_SPEED: f64 = 0.95;
/// A shorter context is suggested if it is faster by at least this fraction.
const MIN_GAIN: f64 = 0.1;
/// A requested placement that is slower by at least this fraction is reported.
const MIN_LOSS: f64 = 0.005;
/// Placeholder for the error of a quality level, which depends on the model.
const PLACEHOLDER: f32 = 0.0;

/// Options, and the devices that they select. The models passed to its methods are opened, but not
/// loaded.
#[derive(Clone)]
pub struct Runtime {
    options: Options,
    machine: Machine,
    observer: SharedObserver,
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Runtime { options, machine, .. } = self;
        f.debug_struct("Runtime").field("options", options).field("machine", machine).finish()
    }
}

impl Runtime {
    /// The CPU and the devices that `options` select. Devices are opened, but not measured.
    ///
    /// # Errors
    /// [`Error::Device`] for a requested device that cannot be used.
    pub fn new(options: Options, observer: SharedObserver) -> Result<Runtime> {
        let machine = Machine::new(&options, &observer)?;
        Ok(Runtime { options, machine, observer })
    }

    /// Only the CPU, whatever the device options.
    #[must_use]
    pub fn cpu(options: Options, observer: SharedObserver) -> Runtime {
        let machine = Machine::cpu(&options, &observer);
        Runtime { options, machine, observer }
    }

    /// As [`Runtime::cpu`], for a task that never uses devices. A notice names the settings that
    /// expect a device; `what` is its subject and verb, such as `calibration runs`.
    #[must_use]
    pub fn cpu_only(what: &str, options: Options, observer: SharedObserver) -> Runtime {
        let expected_by = options.computation.devices.expected_by.clone();
        if !expected_by.is_empty() {
            observer.notice(&Notice::CpuOnly { what: what.to_owned(), expected_by });
        }
        Runtime::cpu(options, observer)
    }

    /// The CPU and assumed devices, to plan for.
    ///
    /// # Errors
    /// [`Error::Device`] for an invalid description of a device.
    pub fn assume(
        options: Options,
        assumed: &[AssumedDevice],
        observer: SharedObserver,
    ) -> Result<Runtime> {
        let machine = Machine::assume(&options, assumed, &observer)?;
        Ok(Runtime { options, machine, observer })
    }

    /// The options of the run.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The CPU and the other devices.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The receiver of notices and progress.
    #[must_use]
    pub fn observer(&self) -> &SharedObserver {
        &self.observer
    }

    /// Opens the model file, or the built-in model without a path, as [`Opened::open`] does.
    ///
    /// # Errors
    /// As [`Opened::open`] and [`Runtime::check_overrides`].
    pub fn open(&self, path: Option<&Path>) -> Result<Opened> {
        let computation = &self.options.computation;
        let opened = Opened::open(path, computation, &self.machine.cpu, self.observer.as_ref())?;
        self.check_overrides(&opened.model)?;
        self.note_unused_overrides(&opened.model);
        crate::open::check_cache_types(
            &opened.model,
            self.options.kv_formats,
            self.observer.as_ref(),
        );
        Ok(opened)
    }

    /// The model with the shapes of `file`, whose data is not used and which needs no vocabulary.
    ///
    /// # Errors
    /// [`Error::Model`], and as [`Runtime::check_overrides`].
    pub fn open_shapes(&self, file: gguf::File) -> Result<Arc<Model>> {
        let Computation { activation, rope, .. } = &self.options.computation;
        let options = ModelOptions { activation: activation.clone(), rope: rope.clone() };
        let model = Model::from_file(file, &options)?;
        self.check_overrides(&model)?;
        self.note_unused_overrides(&model);
        Ok(Arc::new(model))
    }

    /// Sends a notice if overrides of tensor buffers match no tensor of `model`.
    pub fn note_unused_overrides(&self, model: &Model) {
        let unused = overrides::unused(model, &self.options.computation.devices);
        unused.into_iter().for_each(|what| self.observer.notice(&Notice::NotPlaced(what)));
    }

    /// Checks that the planner can follow the options' overrides of tensor buffers.
    ///
    /// # Errors
    /// [`Error::Device`] with what can be written instead.
    pub fn check_overrides(&self, model: &Model) -> Result<()> {
        let overrides = self.options.computation.devices.tensor_overrides();
        overrides::rules(model, &overrides, &self.machine)?;
        Ok(())
    }

    /// The planner's input for `model`: user options, speeds, and how often each neuron fires.
    /// Kernels that are not tested yet are tested, and devices without cached speeds are measured. Without devices other than the CPU, only the
    /// user options are set.
    #[must_use]
    pub fn placing(&self, model: &Model) -> PlannerInputs {
        let (computation, observer) = (&self.options.computation, self.observer.as_ref());
        let settings = self.settings(model, model.hyper.n_ctx_train.min(MAX_DEFAULT_CONTEXT));
        // Loading reports errors of the side file later.
        let learned = side_file::add(model, settings.clone(), computation, &SilentObserver);
        let settings = learned.unwrap_or(settings);
        self.machine.test_kernels(model, &settings, computation, observer);
        self.machine.placing(model, computation, observer)
    }

    /// Speeds of all devices with weights of the model's format, even if there is nothing to plan.
    #[must_use]
    pub fn measured_speeds(&self, model: &Model) -> Vec<Speed> {
        self.machine.measured_speeds(model, &self.options.computation, self.observer.as_ref())
    }

    /// As [`Runtime::measured_speeds`], without measuring; `None` if the speed of a device is not
    /// cached.
    #[must_use]
    pub fn known_speeds(&self, model: &Model) -> Option<Vec<Speed>> {
        self.machine.known_speeds(model, &self.options.computation)
    }

    /// How often each neuron fires, `[n_layer][n_ff]`, from the model's activation profile; `None`
    /// without a usable profile, or if every token uses all neurons.
    #[must_use]
    pub fn known_uses(&self, model: &Model) -> Option<Arc<Vec<Vec<f32>>>> {
        machine::known_uses(model, &self.options.computation, self.observer.as_ref())
    }

    /// The context size in tokens: the options' size, else the trained size, at most 4096. With
    /// devices, a larger context is chosen: the trained size, half of it, a quarter and so on,
    /// whichever is the largest that keeps 95 % of the decode speed and all layers on devices.
    #[must_use]
    pub fn context(&self, model: &Model, placing: &PlannerInputs) -> usize {
        let usual = self.fixed_context(self.options.n_ctx, model);
        let trained = model.hyper.n_ctx_train;
        if self.options.n_ctx.is_some() || self.machine.others.is_empty() {
            return usual;
        }
        let devices = self.machine.devices();
        // Loading reports errors of the side file later.
        let computation = &self.options.computation;
        let settings = |n_ctx| self.settings(model, n_ctx);
        let learned = side_file::add(model, settings(usual), computation, &SilentObserver);
        let learned = learned.unwrap_or_else(|_| settings(usual));
        // A plan of many layers takes a while, so none is made twice.
        let known: RefCell<BTreeMap<usize, Rc<Forecast>>> = RefCell::default();
        let forecast = |n_ctx| {
            let plan = || {
                let n_ubatch = settings(n_ctx).n_ubatch;
                let placing = placing.clone();
                let settings = EngineOptions { n_ctx, n_ubatch, placing, ..learned.clone() };
                Rc::new(engine::forecast(model, &devices, &settings))
            };
            Rc::clone(known.borrow_mut().entry(n_ctx).or_insert_with(plan))
        };
        let least = forecast(usual).rate() * MIN_SPEED;
        let mut halves =
            std::iter::successors(Some(trained), |n| Some(n / 2).filter(|n| *n > usual));
        let fits = |n_ctx: &usize| {
            let forecast = forecast(*n_ctx);
            // A context that pushes layers, and so their KV caches, to the CPU is too large.
            let on_cpu = forecast.placement.layers.iter().filter(|layer| layer.home == CPU).count();
            forecast.rate() >= least && on_cpu == 0
        };
        let n_ctx = halves.find(fits).unwrap_or(usual);
        // Compares the sizes only if both forecasts assume the same number of past tokens.
        let past = |n_ctx| engine::assumed_past(&settings(n_ctx));
        let shorter = Some(n_ctx / 2).filter(|&n| past(n) == past(n_ctx));
        let gain = shorter.map(|n| (n, forecast(n).rate() / forecast(n_ctx).rate() - 1.0));
        let shorter = gain.filter(|(_, gain)| *gain > MIN_GAIN);
        if n_ctx != trained || shorter.is_some() {
            self.observer.notice(&Notice::Context { n_ctx, n_ctx_train: trained, shorter });
        }
        n_ctx
    }

    /// The context size in tokens, whatever the devices.
    #[must_use]
    pub fn fixed_context(&self, wanted: Option<ContextSize>, model: &Model) -> usize {
        let n_ctx_train = model.hyper.n_ctx_train;
        match wanted {
            None => n_ctx_train.min(MAX_DEFAULT_CONTEXT),
            Some(ContextSize::OfModel) => n_ctx_train,
            Some(ContextSize::Tokens(n)) => {
                let n_ctx = n.get() as usize;
                if n_ctx > n_ctx_train {
                    let notice = Notice::ContextBeyondTraining { n_ctx, n_ctx_train };
                    self.observer.notice(&notice);
                }
                n_ctx
            }
        }
    }

    /// The engine's settings for `model` and `n_ctx` tokens over all sequences, without a plan
    /// ([`Runtime::placing`]) and without the side file ([`Runtime::with_side_file`]).
    #[must_use]
    pub fn settings(&self, model: &Model, n_ctx: usize) -> EngineOptions {
        let Options { n_ubatch, n_parallel, kv_formats, computation, .. } = &self.options;
        let n_seq = n_parallel.get() as usize;
        let settings = EngineOptions {
            n_ctx,
            whole_texts: false,
            n_ubatch: (n_ubatch.get() as usize).min(n_ctx.max(1)),
            n_seq,
            // Recurrent layers need a checkpoint after the prompt, to which the next turn of a
            // conversation returns. With several sequences, each may also have one for an idle
            // conversation.
            n_checkpoint: if n_seq == 1 { 1 } else { 2 * n_seq },
            kv_formats: *kv_formats,
            sparsity: match computation.sparsity {
                Sparsity::Predicted => engine::Sparsity::Predicted,
                Sparsity::Exact => engine::Sparsity::Exact,
                // `side_file::add` replaces the placeholder by the model's own error.
                Sparsity::Balanced | Sparsity::Fast => engine::Sparsity::Within(PLACEHOLDER),
                Sparsity::Within(error) => engine::Sparsity::Within(error),
                Sparsity::Off => engine::Sparsity::Off,
            },
            sparse_threshold: computation.sparse_threshold,
            chooser: None,
            repack: computation.repack,
            converted: None,
            locked: computation.mlock,
            paging: None,
            placing: PlannerInputs {
                constraints: computation.devices.constraints,
                ..PlannerInputs::default()
            },
            adapt: computation.devices.adapt,
            streaming: engine::Streaming::Measured,
            dense_from: DenseFrom::NEVER,
        };
        settings.for_model(model)
    }

    /// Adds the predictor or the thresholds of the side file to the settings, if their sparsity
    /// needs them.
    ///
    /// # Errors
    /// [`Error::NoPredictor`], [`Error::NoLevels`], [`Error::LevelNotReached`] or
    /// [`Error::Predictor`].
    pub fn with_side_file(&self, model: &Model, settings: EngineOptions) -> Result<EngineOptions> {
        side_file::add(model, settings, &self.options.computation, self.observer.as_ref())
    }

    /// Host memory that `model` needs with the placement of `forecast`.
    #[must_use]
    pub fn need(&self, model: &Model, settings: &EngineOptions, forecast: &Forecast) -> MemoryNeed {
        self.host_need(model, settings, Some(forecast))
    }

    /// Host memory that `model` needs. Integrated devices stay in the need, because they use host
    /// memory.
    pub(crate) fn host_need(
        &self,
        model: &Model,
        settings: &EngineOptions,
        planned: Option<&Forecast>,
    ) -> MemoryNeed {
        let need = MemoryNeed::new(model, settings, &self.machine.cpu);
        planned.map_or(need, |forecast| need.without_devices(forecast, &self.machine))
    }

    /// Loads `model`: repacks weights or takes them from the cache, and rejects a model that
    /// cannot fit. Notices report the sparsity and the placement.
    ///
    /// # Errors
    /// As [`Runtime::with_side_file`]; [`Error::Memory`] with the numbers; errors of the engine;
    /// [`Error::File`] if the file was written to meanwhile.
    pub fn load(&self, model: &Arc<Model>, settings: EngineOptions) -> Result<Engine> {
        let observer = self.observer.as_ref();
        self.machine.tune(model, &self.options.computation, observer);
        let mut settings = self.with_side_file(model, settings)?;
        if settings.n_seq > 1 && settings.dense_from == DenseFrom::NEVER {
            settings.dense_from =
                self.machine.dense_from(model, &self.options.computation, observer);
        }
        let devices = self.machine.devices();
        let (settings, planned, disk) = self.tiers(model, settings, &devices)?;
        report_sparsity(model, &settings, observer);
        let need = self.host_need(model, &settings, planned.as_ref());
        if disk.is_none() {
            let memory = memory_for(model, Bytes(0));
            need.check(memory, settings.n_ctx, &self.options.computation, observer)?;
        }
        if let Some(forecast) = &planned {
            self.machine.report(forecast, model, &settings, observer);
            let slower = slower_placement(forecast, model, &devices, &settings);
            slower.iter().for_each(|notice| observer.notice(notice));
        }
        let total = need.total();
        observer.progress(Task::Load, Bytes(0), total);
        let notice: engine::NoticeCallback = {
            let observer = Arc::clone(&self.observer);
            Arc::new(move |text: &str| observer.notice(&Notice::Engine(text.to_owned())))
        };
        let progress = |done: u64, of: u64| observer.progress(Task::Load, Bytes(done), Bytes(of));
        let engine = Engine::load(Arc::clone(model), devices, settings, None, notice, &progress);
        observer.progress(Task::Load, total, total);
        let engine = engine?;
        model.file.check_unchanged().map_err(Error::File)?;
        if let (Some(disk), Some(tiers)) = (&disk, engine.tiers()) {
            disk.report(&tiers, observer);
        }
        Ok(engine)
    }
}

/// The plan for loading `model`: placement, memory, and decode speed.
///
/// # Errors
/// As [`Runtime::with_side_file`].
pub fn forecast(runtime: &Runtime, model: &Model) -> Result<Forecast> {
    let placing = runtime.placing(model);
    let n_ctx = runtime.context(model, &placing);
    let settings = EngineOptions { placing, ..runtime.settings(model, n_ctx) };
    let settings = runtime.with_side_file(model, settings)?;
    Ok(engine::forecast(model, &runtime.machine.devices(), &settings))
}

/// The notice that the policy of `settings` makes `forecast` slower than the fastest placement;
/// `None` if it does not by at least 0.5 %.
#[must_use]
pub fn slower_placement(
    forecast: &Forecast,
    model: &Model,
    devices: &[Device],
    settings: &EngineOptions,
) -> Option<Notice> {
    let mut settings = settings.clone();
    let constraints = &mut settings.placing.constraints;
    if constraints.policy == PlacementPolicy::Fastest {
        return None;
    }
    (constraints.policy, constraints.whole_layers) = (PlacementPolicy::Fastest, None);
    let (rate, fastest) = (forecast.rate(), engine::forecast(model, devices, &settings).rate());
    (rate < (1.0 - MIN_LOSS) * fastest).then_some(Notice::SlowerPlacement { rate, fastest })
}

/// Loads `model` on the CPU without notices: for one of several runs of the same model.
///
/// # Errors
/// Errors of the engine.
pub fn load_quietly(model: &Arc<Model>, settings: EngineOptions, cpu: Device) -> Result<Engine> {
    let quiet: engine::NoticeCallback = Arc::new(|_: &str| {});
    Ok(Engine::load(Arc::clone(model), vec![cpu], settings, None, quiet, &|_, _| {})?)
}

/// Fails if the machine has less memory than `size`.
///
/// # Errors
/// [`Error::Memory`].
pub fn check_total_memory(size: Bytes) -> Result<()> {
    let memory = crate::devices::cpu(Some(1)).memory().ok();
    match memory.and_then(|memory| memory.total).filter(|total| size > *total) {
        Some(total) => {
            let limit = MemoryLimit::Machine;
            let (items, n_ctx, n_ctx_in_memory) = (String::new(), None, None);
            Err(Error::Memory { wanted: size, total, limit, items, n_ctx, n_ctx_in_memory })
        }
        None => Ok(()),
    }
}

/// The name of the activation of the model's feed-forward blocks.
#[must_use]
pub fn activation_name(model: &Model) -> &'static str {
    match (model.activation, model.ffn_kind) {
        (Activation::Relu, FfnKind::GatedBoth) => "dReLU",
        (Activation::Relu, FfnKind::Gated | FfnKind::Plain) => "ReLU",
        (Activation::Relu2, _) => "squared ReLU",
        (Activation::Silu, _) => "SiLU",
        (Activation::Gelu | Activation::GeluErf, _) => "GELU",
        (Activation::SwigluOai { .. }, _) => "SwiGLU",
        (Activation::XIelu { .. }, _) => "xIELU",
        (Activation::Situ { .. }, _) => "SiTU",
        (Activation::SwigluClamped { .. } | Activation::SiluClamped { .. }, _) => "SiLU",
    }
}

/// Sends notices that say which neurons are skipped, or why none are.
fn report_sparsity(model: &Model, options: &EngineOptions, observer: &dyn Observer) {
    let tell = |notice: SparsityNotice| observer.notice(&Notice::Sparsity(notice));
    let activation = activation_name(model);
    if model.blocks().next().is_none() {
        return tell(SparsityNotice::NoNeurons);
    }
    match (options.sparsity, model.is_exactly_sparse()) {
        (engine::Sparsity::Off, _) => tell(SparsityNotice::Off),
        (engine::Sparsity::Within(error), _) => {
            side_file::sparsity_notice(model, options, error).into_iter().for_each(tell);
        }
        (engine::Sparsity::Exact | engine::Sparsity::Predicted, true) => {
            tell(SparsityNotice::Exact { activation });
        }
        (engine::Sparsity::Exact | engine::Sparsity::Predicted, false) => {
            tell(SparsityNotice::Nothing { activation, experts: model.experts().is_some() });
        }
    }
    if options.sparsity != engine::Sparsity::Predicted {
        return;
    }
    let supported = model.blocks().filter(|(_, ffn)| ffn.predictor.is_some()).count();
    let n_layers = options.n_predicting(model);
    if n_layers > 0 {
        let imported = side_file::imported_threshold(options);
        let threshold = options.sparse_threshold.or(imported).unwrap_or(model.predictor_threshold);
        let is_imported = imported.is_some();
        tell(SparsityNotice::Predictor { is_imported, n_layers, threshold });
    } else if options.sparse_threshold.is_some() {
        tell(SparsityNotice::ThresholdIgnored { other_predictor: false });
    }
    let repacked = EngineOptions { repack: true, ..options.clone() }.n_predicting(model);
    if n_layers < repacked {
        tell(SparsityNotice::NeedRepacking { n: repacked - n_layers });
    }
    if supported < model.n_predictors {
        let (n, n_in_file) = (model.n_predictors - supported, model.n_predictors);
        tell(SparsityNotice::PredictorFormat { n, n_in_file });
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    #[test]
    fn the_context_is_the_models_or_the_requested_one() {
        let runtime = Runtime::cpu(Options::default(), Arc::new(SilentObserver));
        let model = runtime.open(None).unwrap().model;
        let n = runtime.fixed_context(None, &model);
        assert_eq!(n, model.hyper.n_ctx_train.min(MAX_DEFAULT_CONTEXT));
        let three = ContextSize::Tokens(NonZeroU32::new(3).unwrap());
        assert_eq!(runtime.fixed_context(Some(three), &model), 3);
    }
}
