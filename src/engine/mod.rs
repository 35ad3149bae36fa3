//! A model on devices: loads by a placement, runs steps, and continues after the loss of a device.
//!
//! Start at [`Engine::feed`]; `record.rs` records a step's programs, `step.rs` replays them and
//! answers their hand-offs.

mod adapt;
mod build;
pub mod converted;
mod cost;
mod counters;
mod error;
mod ffn;
mod host;
mod import;
mod lane;
mod layer;
mod mixer;
mod observe;
mod options;
mod predict;
mod record;
mod refill;
mod refused;
mod sequence;
mod step;
mod stream;
mod timeline;
pub mod trace;
mod value;
mod workspace;

pub use adapt::{ExchangeNeeds, Exchanged};
pub use cost::{assumed_past, exchange_needs, forecast, task};
pub use counters::StepStats;
pub use error::{Error, Result};
pub use host::{HostBytes, HostLayer, host_bytes};
pub use import::to_convert;
pub use mixer::state_bytes;
pub use observe::Observed;
pub use options::{EngineOptions, Placing, Sparsity, Streaming};
pub use sequence::{EachLogits, Feed, NotRestored, Sequence, Want};
pub use timeline::{Event, StepTrace, Tracer, Waits, Work};

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use hal::op::MOST_COUNTED;
use hal::{BatchFacts, Bytes, Device, KvCache};

use model::{LayerWeights, Model};
use placement::{CPU, Forecast, Placement};

use build::{Loaded, Plan};
use ffn::FfnMode;
use observe::Watch;
use sequence::{Pool, PoolSizes, StepArena};
use step::{BlockSizes, Buffers, StepSizes};

/// Callback for messages while the engine works: slow paths, shrunk placements, lost devices.
pub type Notice = Arc<dyn Fn(&str) + Send + Sync>;

/// A model ready to run.
pub struct Engine {
    model: Arc<Model>,
    /// Entry 0 is the CPU. A lost device stays in the list with no budget.
    devices: Vec<Device>,
    lost: Vec<bool>,
    options: EngineOptions,
    mode: FfnMode,
    /// The latest placement, also while nothing is loaded.
    placement: Placement,
    /// Forecast of the placement, if it was planned here.
    forecast: Option<Forecast>,
    /// `None` between the loss of a device and the next step.
    loaded: Option<Loaded>,
    sizes: StepSizes,
    buffers: Buffers,
    logits: Vec<f32>,
    /// Statistics of all steps as far as the counters were read, and the part that
    /// [`Engine::take_stats`] has returned.
    totals: StepStats,
    taken: StepStats,
    tracer: Option<Tracer>,
    arena: StepArena,
    /// Cache blocks and state rows of `loaded`; those of an older pool are no longer valid.
    pool: Arc<Pool>,
    notice: Notice,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("devices", &self.devices).finish_non_exhaustive()
    }
}

impl Engine {
    /// Loads `model` on `devices` (the CPU first, names unique), placed by `placement` or else
    /// within their budgets. `progress` gets the bytes of weights loaded and the total.
    ///
    /// # Errors
    /// [`Error::CacheFormat`] where heads are not whole blocks of the format, [`Error::Positions`]
    /// for a context beyond learned positions, [`Error::Placement`] for a placement that does not
    /// fit the model, [`Error::Device`] when even the CPU has too little memory.
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
        assert!(!devices.is_empty(), "the first device is the CPU");
        let mode = FfnMode::new(&model, &options);
        let hyper = &model.hyper;
        if let Some(placement) = &placement {
            placement.check(&mode.cuts(&model), devices.len())?;
        }
        let KvCache { k, v } = options.kv_formats;
        for sizes in model.layers.iter().filter_map(|l| l.attention()).map(|by| by.sizes) {
            for (format, d_head) in [(k, sizes.d_head), (v, sizes.d_value)] {
                if !d_head.is_multiple_of(format.block_values()) {
                    return Err(Error::CacheFormat { format, d_head });
                }
            }
        }
        let n_ctx = options.n_ctx;
        let n_positions = model.positions.as_ref().map_or(n_ctx, |table| table.n_positions());
        // Several sequences share the cache, and each is limited by the learned positions
        // separately.
        if n_ctx > n_positions && options.n_seq == 1 {
            return Err(Error::Positions { n_ctx, n_positions });
        }
        let sizes = StepSizes {
            rungs: options.ladder(),
            n_blocks: options.n_blocks(),
            n_vocab: model.n_vocab(),
            n_embd: hyper.n_embd,
            n_layer: hyper.n_layer,
            blocks: model.layers.iter().map(BlockSizes::of).collect(),
            n_shared: model.layers.iter().map(LayerWeights::n_shared).sum(),
            n_expert: model.max_experts(),
        };
        let mut engine = Engine {
            lost: vec![false; devices.len()],
            arena: StepArena::default(),
            pool: Pool::new(PoolSizes::of(&model, &options)),
            buffers: Buffers::default(),
            logits: Vec::new(),
            totals: StepStats::default(),
            taken: StepStats::default(),
            tracer: None,
            placement: Placement::all_on(CPU, model.hyper.n_layer),
            forecast: None,
            loaded: None,
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

    /// Places and loads; shrinks a device's share when it has less memory than its budget says.
    fn place(&mut self, given: Option<Placement>, progress: &dyn Fn(u64, u64)) -> Result<()> {
        self.loaded = None;
        self.pool = Pool::new(PoolSizes::of(&self.model, &self.options));
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

    /// Reduces the budget by what a device could not allocate. Each reduction is a fair part of
    /// the budget, so that a device that keeps failing is soon unused.
    fn shrink(&self, error: &hal::Error, budgets: &mut [Bytes]) -> Result<()> {
        let (device, missing) = match error {
            hal::Error::OutOfMemory { device, wanted, free, .. } => {
                (device, (*wanted - *free).max(Bytes(1 << 10)))
            }
            // The planner asked about the ops that decide the placement; the device rejected
            // another op.
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
                // An unlimited budget is reduced to the peak of what was allocated.
                let used = self.devices[index].ledger().peak();
                let before = budgets[index].min(used + missing);
                budgets[index] = before - missing.max(Bytes(before.0 / 32));
                let less = before - budgets[index];
                (self.notice)(&format!("{error}; continuing with {less} less on {device}"));
                Ok(())
            }
            _ => Err(error.clone().into()),
        }
    }

    /// Unloads the model because a device was lost. The next step begins with
    /// [`Engine::ensure_placed`].
    fn lose(&mut self, device: &str, reason: &str) -> Result<()> {
        let index = self.devices.iter().position(|d| d.info().name == device);
        match index {
            Some(index) if index != CPU && !self.lost[index] => self.lost[index] = true,
            _ => {
                let (device, reason) = (device.to_owned(), reason.to_owned());
                return Err(hal::Error::DeviceLost { device, reason }.into());
            }
        }
        (self.notice)(&format!("{device} was lost ({reason}); continuing without it"));
        self.loaded = None;
        Ok(())
    }

    /// Places the model on the remaining devices after a loss, if that has not happened yet.
    fn ensure_placed(&mut self) -> Result<()> {
        match self.loaded {
            Some(_) => Ok(()),
            // The new pool has none of the sequences' data, also where a caller's panic dropped
            // the old model.
            None => self.place(None, &|_, _| {}),
        }
    }

    /// Runs a device step; the logits are in `self.logits`.
    fn run(&mut self, facts: &BatchFacts, interrupt: &AtomicBool) -> Result<()> {
        let loaded = self.loaded.as_mut().ok_or(hal::Error::Cancelled)?;
        let split = loaded.layers.iter().any(|layer| layer.mailbox.is_some());
        self.buffers.timeline.begin(self.tracer.is_some(), split);
        let mut stats =
            loaded.step(facts, &self.sizes, &mut self.buffers, &mut self.logits, interrupt)?;
        let on = (&loaded.lanes[..], split);
        self.buffers.timeline.end(facts.tokens.len(), on, &mut stats, self.tracer.as_mut());
        self.found(&stats, facts.tokens.len() <= MOST_COUNTED);
        self.adapt(facts.tokens.len())
    }

    /// Adds to the totals. `small` steps also count for the hot set.
    fn found(&mut self, stats: &StepStats, small: bool) {
        self.totals += *stats;
        let adapt = self.loaded.as_mut().and_then(|loaded| loaded.adapt.as_mut());
        if let Some(adapt) = adapt.filter(|_| small) {
            adapt.found(stats);
        }
    }

    /// Reads the counters that steps left on the devices.
    fn read_counters(&mut self) -> Result<()> {
        let Some(loaded) = &mut self.loaded else { return Ok(()) };
        let stats = loaded.flush_all(&self.sizes, &mut self.buffers)?;
        self.found(&stats, true);
        Ok(())
    }

    /// As [`Engine::read_counters`], but a lost device only loses its counters; the next step
    /// reports the loss.
    fn read_counters_unless_lost(&mut self) -> Result<()> {
        match self.read_counters() {
            Err(Error::Device(hal::Error::DeviceLost { .. })) => Ok(()),
            read => read,
        }
    }

    /// Statistics of all steps since the last call. Counters accumulate on the devices and are
    /// read here, so that a step does not wait for them.
    ///
    /// # Errors
    /// Those of the devices, except for a lost device, whose counters are lost with it.
    pub fn take_stats(&mut self) -> Result<StepStats> {
        self.read_counters_unless_lost()?;
        let found = self.totals - self.taken;
        self.taken = self.totals;
        Ok(found)
    }

    /// Passes every completed step from now on to `tracer`. Steps are then timed, which costs a
    /// little time.
    pub fn set_tracer(&mut self, tracer: Option<Tracer>) {
        self.tracer = tracer;
    }

    /// Maximum number of tokens of an observed step.
    fn observed_piece(&self) -> usize {
        self.sizes.rungs[observe::rung(&self.sizes.rungs)]
    }

    /// A step that passes every feed-forward block to `each`. The first call records the programs
    /// for it.
    fn step_observed(
        &mut self,
        facts: &BatchFacts,
        interrupt: &AtomicBool,
        each: &mut Watch<'_>,
    ) -> Result<StepStats> {
        self.read_counters()?;
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

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// A shared handle to the model.
    #[must_use]
    pub fn shared_model(&self) -> Arc<Model> {
        Arc::clone(&self.model)
    }

    /// The settings.
    #[must_use]
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Tokens of context, over all sequences.
    #[must_use]
    pub fn n_ctx(&self) -> usize {
        self.options.n_ctx
    }

    /// Maximum number of tokens of one sequence: the context size or the learned positions.
    #[must_use]
    pub fn most_tokens(&self) -> usize {
        let positions = self.model.positions.as_ref();
        positions.map_or(self.n_ctx(), |table| self.n_ctx().min(table.n_positions()))
    }

    /// The placement; after a loss, the old one until the next step.
    #[must_use]
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Forecast of the latest placement; `None` if the placement was given or nothing had to be
    /// planned.
    #[must_use]
    pub fn forecast(&self) -> Option<&Forecast> {
        self.forecast.as_ref()
    }

    /// Neurons exchanged since the model was loaded, or since a device was lost; `None` if
    /// exchange is off or the text was too short for a decision.
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

    /// Bytes of the predictor of block `layer` read per token; 0 without a predictor.
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
