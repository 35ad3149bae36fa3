//! A model on devices: loading by a placement, stepping, and going on when a device is lost.
//!
//! Start at [`Engine::feed`]; what a step does on a device is recorded in `record.rs`, how it is replayed
//! and its hand-offs are answered is in `step.rs`.

mod adapt;
mod build;
mod cost;
mod error;
mod ffn;
mod host;
mod import;
mod lane;
mod layer;
mod observe;
mod options;
mod predict;
mod record;
mod refill;
mod refused;
mod session;
mod step;
mod stream;
mod timeline;
mod value;
mod workspace;

pub use adapt::{ExchangeNeeds, Exchanged};
pub use cost::{assumed_past, exchange_needs, forecast, task};
pub use error::{Error, Result};
pub use host::{HostBytes, HostLayer, host_bytes};
pub use import::to_convert;
pub use observe::Observed;
pub use options::{EngineOptions, Placing, Sparsity, Streaming};
pub use session::{Session, Want};
pub use step::StepStats;
pub use timeline::{Event, StepTrace, Tracer, Waits, Work};

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use hal::{BatchFacts, Bytes, Device, KvCache};

use crate::model::{LayerWeights, Model};
use crate::placement::{CPU, Forecast, Placement};

use build::{Loaded, Plan};
use ffn::FfnMode;
use observe::Watch;
use step::{Buffers, StepSizes};

/// What the engine tells while it works: slow paths, shrunk placements, lost devices.
pub type Notice = Arc<dyn Fn(&str) + Send + Sync>;

/// A model ready to run.
pub struct Engine {
    model: Arc<Model>,
    /// Entry 0 is the CPU. A lost device stays in the list, without budget.
    devices: Vec<Device>,
    lost: Vec<bool>,
    options: EngineOptions,
    mode: FfnMode,
    /// The latest, also while nothing is loaded.
    placement: Placement,
    /// What was expected of it, if it was planned here.
    forecast: Option<Forecast>,
    /// `None` between the loss of a device and the next step.
    loaded: Option<Loaded>,
    sizes: StepSizes,
    buffers: Buffers,
    logits: Vec<f32>,
    tracer: Option<Tracer>,
    /// Cache blocks that no session of this generation has.
    free: Vec<u32>,
    /// Counts the losses: what a session of an older generation holds is gone.
    generation: u64,
    notice: Notice,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("devices", &self.devices).finish_non_exhaustive()
    }
}

impl Engine {
    /// Loads `model` on `devices` (the CPU first, no name twice), placed as their budgets allow or as `placement` says.
    /// `progress` hears the bytes of weights that are in their place, and of all.
    ///
    /// # Errors
    /// [`Error::CacheFormat`] where heads are no whole blocks of it, [`Error::Positions`] for a context beyond learned
    /// positions, [`Error::Placement`] for a placement that does
    /// not fit the model, [`Error::Device`] when even the CPU has no room.
    ///
    /// # Panics
    /// If `devices` is empty.
    pub fn load(
        model: Arc<Model>,
        devices: Vec<Device>,
        options: EngineOptions,
        placement: Option<Placement>,
        notice: Notice,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Engine> {
        assert!(!devices.is_empty(), "the CPU is always there");
        let mode = FfnMode::new(&model, &options);
        let hyper = &model.hyper;
        if let Some(placement) = &placement {
            placement.check(hyper.n_layer, hyper.n_ff, devices.len(), mode.unit(&model))?;
        }
        let KvCache { k, v } = options.kv_formats;
        for (format, d_head) in [(k, hyper.d_head), (v, hyper.d_value)] {
            if !d_head.is_multiple_of(format.block_values()) {
                return Err(Error::CacheFormat { format, d_head });
            }
        }
        let n_ctx = options.n_ctx;
        let n_positions = model.positions.as_ref().map_or(n_ctx, |table| table.n_positions());
        if n_ctx > n_positions {
            return Err(Error::Positions { n_ctx, n_positions });
        }
        let sizes = StepSizes {
            rungs: options.ladder(),
            n_blocks: options.n_blocks(),
            n_vocab: model.n_vocab(),
            n_embd: hyper.n_embd,
            n_layer: hyper.n_layer,
            n_ff: hyper.n_ff,
            n_shared: model.layers.iter().map(LayerWeights::n_shared).sum(),
            n_expert: hyper.experts.map_or(0, |experts| experts.n),
            n_used: hyper.experts.map_or(0, |experts| experts.n_used),
        };
        let mut engine = Engine {
            lost: vec![false; devices.len()],
            free: Vec::new(),
            buffers: Buffers::default(),
            logits: Vec::new(),
            tracer: None,
            placement: Placement::all_on(CPU, model.hyper.n_layer),
            forecast: None,
            loaded: None,
            generation: 0,
            model,
            devices,
            options,
            mode,
            sizes,
            notice,
        };
        engine.place(placement, progress)?;
        Ok(engine)
    }

    /// Places and builds; shrinks a device's share when it has less room than its budget says.
    fn place(&mut self, given: Option<Placement>, progress: &dyn Fn(u64, u64)) -> Result<()> {
        self.loaded = None;
        self.free = (0..self.sizes.n_blocks as u32).rev().collect();
        let mut budgets: Vec<Bytes> = self.devices.iter().map(cost::left).collect();
        for (budget, lost) in budgets.iter_mut().zip(&self.lost) {
            if *lost {
                *budget = Bytes(0);
            }
        }
        let planner = self.planner(progress);
        let fixed = given.is_some();
        let mut forecast = None;
        let mut placement = match given {
            Some(placement) => placement,
            None => planner.place(&budgets, &mut forecast),
        };
        loop {
            match planner.build(&placement, forecast.as_ref()) {
                Ok(loaded) => {
                    for slow in &loaded.slow {
                        (self.notice)(slow);
                    }
                    self.placement = placement;
                    self.forecast = forecast;
                    self.loaded = Some(loaded);
                    return Ok(());
                }
                Err(Error::Device(error)) if !fixed => {
                    self.shrink(&error, &mut budgets)?;
                    placement = planner.place(&budgets, &mut forecast);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn planner<'a>(&'a self, progress: &'a dyn Fn(u64, u64)) -> Plan<'a> {
        Plan {
            model: &self.model,
            devices: &self.devices,
            options: &self.options,
            mode: self.mode,
            progress,
        }
    }

    /// Takes what a device could not give off the budget that is planned with: each time a fair part of it, so
    /// that a device that keeps refusing is soon left alone.
    fn shrink(&self, error: &hal::Error, budgets: &mut [Bytes]) -> Result<()> {
        let (device, missing) = match error {
            hal::Error::OutOfMemory { device, wanted, free, .. } => {
                (device, (*wanted - *free).max(Bytes(1 << 10)))
            }
            // It was asked about the ops that decide, and refused another one.
            hal::Error::DeviceLost { device, .. } | hal::Error::Unsupported { device, .. } => {
                (device, Bytes::MAX)
            }
            hal::Error::Shape { .. }
            | hal::Error::Aliasing { .. }
            | hal::Error::ForeignBuffer { .. }
            | hal::Error::MissingLibrary { .. }
            | hal::Error::Driver { .. }
            | hal::Error::Cancelled => return Err(error.clone().into()),
        };
        let index = self.devices.iter().position(|d| d.info().name == *device);
        match index {
            Some(index) if index != CPU && budgets[index] > Bytes(0) => {
                // An unlimited budget is brought down to what was really there.
                let used = self.devices[index].ledger().peak();
                let before = budgets[index].min(used + missing);
                budgets[index] = before - missing.max(Bytes(before.0 / 32));
                let less = before - budgets[index];
                (self.notice)(&format!("{error}; placing {less} less on {device} and going on"));
                Ok(())
            }
            _ => Err(error.clone().into()),
        }
    }

    /// Lets go of everything because a device was lost. The next step starts by [`Engine::ensure_placed`].
    fn lose(&mut self, device: &str, reason: &str) -> Result<()> {
        let index = self.devices.iter().position(|d| d.info().name == device);
        match index {
            Some(index) if index != CPU && !self.lost[index] => self.lost[index] = true,
            _ => {
                let (device, reason) = (device.to_owned(), reason.to_owned());
                return Err(hal::Error::DeviceLost { device, reason }.into());
            }
        }
        (self.notice)(&format!("{device} was lost ({reason}); going on without it"));
        self.generation += 1;
        self.loaded = None;
        Ok(())
    }

    /// Places the model on what is left after a loss, if that is still to be done.
    fn ensure_placed(&mut self) -> Result<()> {
        match self.loaded {
            Some(_) => Ok(()),
            // A new cache has nothing of what sessions hold, also where a caller's panic took the old one.
            None => {
                self.generation += 1;
                self.place(None, &|_, _| {})
            }
        }
    }

    fn step(&mut self, facts: &BatchFacts, interrupt: &AtomicBool) -> Result<(StepStats, &[f32])> {
        let loaded = self.loaded.as_mut().ok_or(hal::Error::Cancelled)?;
        let split = loaded.layers.iter().any(|layer| layer.mailbox.is_some());
        self.buffers.timeline.begin(self.tracer.is_some(), split);
        let mut stats =
            loaded.step(facts, &self.sizes, &mut self.buffers, &mut self.logits, interrupt)?;
        let on = (&loaded.lanes[..], split);
        self.buffers.timeline.end(facts.tokens.len(), on, &mut stats, self.tracer.as_mut());
        self.adapt(facts.tokens.len(), &stats)?;
        Ok((stats, &self.logits))
    }

    /// Shows every step from now on to `tracer`, when it is whole. Steps are timed for it, which takes a little time.
    pub fn set_tracer(&mut self, tracer: Option<Tracer>) {
        self.tracer = tracer;
    }

    /// Tokens of a step that is observed, at most.
    fn observed_piece(&self) -> usize {
        self.sizes.rungs[observe::rung(&self.sizes.rungs)]
    }

    /// A step whose feed-forward blocks are shown to `each`. The first one makes the programs for it.
    fn step_observed(
        &mut self,
        facts: &BatchFacts,
        interrupt: &AtomicBool,
        each: &mut Watch<'_>,
    ) -> Result<StepStats> {
        let mut loaded = self.loaded.take().ok_or(hal::Error::Cancelled)?;
        let mut observers = match loaded.observers.take() {
            Some(observers) => observers,
            None => match self.planner(&|_, _| {}).observers(&loaded, &self.placement) {
                Ok(observers) => observers,
                Err(error) => {
                    self.loaded = Some(loaded);
                    return Err(error);
                }
            },
        };
        let (sizes, buffers) = (&self.sizes, &mut self.buffers);
        buffers.timeline.stop();
        let stats = observers.step(&mut loaded, facts, (sizes, buffers), interrupt, each);
        loaded.observers = Some(observers);
        self.loaded = Some(loaded);
        stats
    }

    fn generation(&self) -> u64 {
        self.generation
    }

    fn take_block(&mut self) -> Option<u32> {
        self.free.pop()
    }

    fn n_free_blocks(&self) -> usize {
        self.free.len()
    }

    /// Takes back blocks of a session of `generation`; those of an older one went with its cache, and their
    /// numbers may be somebody else's by now.
    fn free_blocks(&mut self, generation: u64, blocks: Vec<u32>) {
        if generation == self.generation {
            self.free.extend(blocks);
        }
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The model, to be kept beside the engine.
    #[must_use]
    pub fn shared_model(&self) -> Arc<Model> {
        Arc::clone(&self.model)
    }

    /// The settings.
    #[must_use]
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Tokens of context.
    #[must_use]
    pub fn n_ctx(&self) -> usize {
        self.options.n_ctx
    }

    /// Where everything is; after a loss, where it was until the next step.
    #[must_use]
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// What the latest placement was planned to be; `None` if it was given or there was nothing to plan.
    #[must_use]
    pub fn forecast(&self) -> Option<&Forecast> {
        self.forecast.as_ref()
    }

    /// What was exchanged since the model was loaded, or since a device was lost; `None` where nothing follows the text, or
    /// it was too short for that.
    #[must_use]
    pub fn exchanged(&self) -> Option<Exchanged> {
        self.loaded.as_ref()?.adapt.as_ref()?.exchanged()
    }

    /// Devices, the CPU first.
    #[must_use]
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Whether neurons are dropped.
    #[must_use]
    pub fn is_sparse(&self) -> bool {
        self.mode.is_sparse()
    }

    /// Bytes that a token reads to have the neurons of block `layer` chosen ahead; 0 where nothing does.
    #[must_use]
    pub fn predictor_bytes(&self, layer: usize) -> Bytes {
        let chosen = self.mode.chosen(&self.model, &self.options, layer);
        chosen.map_or(Bytes(0), |chosen| {
            let size = |rows: &hal::HostRows| (rows.desc().n_rows * rows.row_bytes()) as u64;
            let vectors = 4 * chosen.fc2.desc().n_rows * if chosen.bias.is_some() { 2 } else { 1 };
            Bytes(chosen.fc1.map_or(0, size) + size(chosen.fc2) + vectors as u64)
        })
    }

    /// Whether predictors choose neurons.
    #[must_use]
    pub fn predicts(&self) -> bool {
        self.mode.predicts()
    }
}
