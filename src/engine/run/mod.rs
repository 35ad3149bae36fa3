//! The engine: places and loads a model, steps its sequences, and continues after the loss of a
//! device.

mod feed;
mod occupancy;
mod place;
mod ready;
mod save;
mod steps;
mod watch;

use std::fmt;
use std::sync::Arc;

use hal::{Bytes, Device, KvCache};

use model::Model;
use placement::{CPU, Forecast, Placement};

use crate::adapt::ExchangeStats;
use crate::error::{Error, Result};
use crate::fired::FiredNeurons;
use crate::ops::ffn::FfnMode;
use crate::options::EngineOptions;
use crate::paging::Tiers;
use crate::replay::arena::{StepArena, StepSizes};
use crate::sequence::pool::{Pool, PoolSizes};
use crate::step::StepStats;
use crate::timeline::Tracer;
use ready::ReadyEngine;

pub use save::{SAVED_HEAD, SavedHead, is_saved_sequence};

/// Callback for messages while the engine works: slow paths, shrunk placements, lost devices.
pub type NoticeCallback = Arc<dyn Fn(&str) + Send + Sync>;

/// A model ready to run.
pub struct Engine {
    model: Arc<Model>,
    /// Entry 0 is the CPU. A lost device stays in the list with no budget.
    devices: Vec<Device>,
    lost: Vec<bool>,
    options: EngineOptions,
    mode: FfnMode,
    /// The latest placement, kept while nothing is loaded.
    placement: Placement,
    /// The forecast of the latest placement, as returned by [`Engine::forecast`].
    forecast: Option<Forecast>,
    /// `None` from the loss of a device or a failed exchange to the next step.
    ready: Option<ReadyEngine>,
    arena: StepArena,
    /// Statistics of all steps whose counters were read.
    totals: StepStats,
    /// The value of `totals` at the last [`Engine::take_stats`].
    taken: StepStats,
    tracer: Option<Tracer>,
    /// Whether the current step is watched.
    watching: bool,
    fired: FiredNeurons,
    /// Cache blocks and state rows of `ready`. Blocks of an older pool are no longer valid.
    pool: Arc<Pool>,
    notice: NoticeCallback,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("devices", &self.devices).finish_non_exhaustive()
    }
}

/// Rejects a split layer whose experts are wider than the residual.
fn check_widths(model: &Model, placement: &Placement) -> Result<()> {
    let n_embd = model.hyper.n_embd;
    let layers = model.layers.iter().zip(&placement.layers).enumerate();
    for (layer, (weights, placed)) in layers {
        let width = weights.ffn.as_ref().map_or(0, model::Ffn::width);
        if placed.is_split() && width > n_embd {
            return Err(Error::WideExperts { layer, width, n_embd });
        }
    }
    Ok(())
}

impl Engine {
    /// Loads `model` onto `devices`. The first device is the CPU, and names must be unique. Places
    /// the model by `placement` or, without one, plans a placement within the budgets of the
    /// devices. `progress` gets the bytes of weights loaded so far and the total.
    ///
    /// # Errors
    /// [`Error::CacheFormat`] if heads are not whole blocks of the format, [`Error::Positions`] for
    /// a context beyond learned positions, [`Error::Placement`] for a placement that does not fit
    /// the model, [`Error::Device`] if the CPU has too little memory or a device of a given
    /// `placement` fails.
    ///
    /// # Panics
    /// If `devices` is empty.
    pub fn load(
        model: Arc<Model>,
        devices: Vec<Device>,
        options: EngineOptions,
        placement: Option<Placement>,
        notice: NoticeCallback,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Engine> {
        assert!(!devices.is_empty(), "the first device is the CPU");
        let options = options.for_model(&model);
        let mode = FfnMode::new(&model, &options);
        if let Some(placement) = &placement {
            let sources = model.layers.iter().map(|layer| layer.frame.mixer.kv_source());
            let sources: Vec<Option<usize>> = sources.collect();
            placement.check(&mode.cuts(&model), &sources, devices.len())?;
            check_widths(&model, placement)?;
        }
        let KvCache { k, v } = options.kv_formats;
        for sizes in model.layers.iter().filter_map(|l| l.attention()).map(|by| by.sizes) {
            let [d_key, d_value] = sizes.cached_heads();
            // Values that are a part of the keys have their format.
            let v = if sizes.cached().v.is_none() { k } else { v };
            for (format, d_head) in [(k, d_key), (v, d_value)] {
                if !d_head.is_multiple_of(format.block_values()) {
                    return Err(Error::CacheFormat { format, d_head });
                }
            }
        }
        let n_ctx = options.n_ctx;
        let n_positions = model.positions.as_ref().map_or(n_ctx, |table| table.n_positions());
        // Several sequences share the context, and the learned positions limit each of them
        // separately.
        if n_ctx > n_positions && options.n_seq == 1 {
            return Err(Error::Positions { n_ctx, n_positions });
        }
        let mut engine = Engine {
            lost: vec![false; devices.len()],
            arena: StepArena::new(StepSizes::new(&model, &options)),
            pool: Pool::new(PoolSizes::new(&model, &options)),
            totals: StepStats::default(),
            taken: StepStats::default(),
            tracer: None,
            watching: false,
            fired: FiredNeurons::default(),
            placement: Placement::all_on(CPU, model.hyper.n_layer),
            forecast: None,
            ready: None,
            model,
            devices,
            options,
            mode,
            notice,
        };
        engine.place(placement, progress)?;
        Ok(engine)
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

    /// The options that the engine was loaded with.
    #[must_use]
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Number of tokens of context, over all sequences.
    #[must_use]
    pub fn n_ctx(&self) -> usize {
        self.options.n_ctx
    }

    /// Maximum number of tokens of one sequence: the context size, but at most the learned
    /// positions.
    #[must_use]
    pub fn max_tokens(&self) -> usize {
        let positions = self.model.positions.as_ref();
        positions.map_or(self.n_ctx(), |table| self.n_ctx().min(table.n_positions()))
    }

    /// The placement; after the loss of a device, the old placement until the next step.
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

    /// Number of neurons exchanged since the model was loaded, or since a device was lost, and
    /// their effect. `None` if exchange is off or no decision was due yet.
    #[must_use]
    pub fn exchange_stats(&self) -> Option<ExchangeStats> {
        self.ready.as_ref()?.adapt.as_ref()?.exchange_stats()
    }

    /// Sizes of the tiers of the CPU's weights; `None` if all of them are in memory.
    #[must_use]
    pub fn tiers(&self) -> Option<Tiers> {
        Some(self.ready.as_ref()?.stepper.paging.as_ref()?.tiers())
    }

    /// Devices, the CPU first.
    #[must_use]
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Whether neurons are skipped.
    #[must_use]
    pub fn is_sparse(&self) -> bool {
        self.mode.is_sparse()
    }

    /// Bytes of the predictor of block `layer` read per token; 0 without a predictor.
    #[must_use]
    pub fn predictor_bytes(&self, layer: usize) -> Bytes {
        let data = self.mode.predictor(&self.model, &self.options, layer);
        data.map_or(Bytes(0), |data| {
            let size = |rows: &hal::HostRows| (rows.desc().n_rows * rows.row_bytes()) as u64;
            let vectors = 4 * data.fc2.desc().n_rows * if data.bias.is_some() { 2 } else { 1 };
            Bytes(data.fc1.map_or(0, size) + size(data.fc2) + vectors as u64)
        })
    }

    /// Whether predictors choose neurons.
    #[must_use]
    pub fn predicts(&self) -> bool {
        self.mode.predicts()
    }
}
