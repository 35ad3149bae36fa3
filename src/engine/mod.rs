//! A model on devices: loading by a placement, stepping, and going on when a device is lost.
//!
//! Start at [`Engine::feed`]; what a step does on a device is recorded in `record.rs`, how it is replayed
//! and its hand-offs are answered is in `step.rs`.

mod build;
mod cost;
mod error;
mod ffn;
mod lane;
mod options;
mod record;
mod session;
mod step;

pub use error::{Error, Result};
pub use options::{EngineOptions, Sparsity};
pub use session::{Session, Want};
pub use step::StepStats;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use hal::{BatchFacts, Bytes, Device};

use crate::model::Model;
use crate::placement::{CPU, Placement, plan};

use build::{Loaded, Plan};
use ffn::FfnMode;
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
    loaded: Option<Loaded>,
    sizes: StepSizes,
    buffers: Buffers,
    logits: Vec<f32>,
    free: Vec<u32>,
    generation: u64,
    notice: Notice,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("devices", &self.devices).finish_non_exhaustive()
    }
}

impl Engine {
    /// Loads `model` on `devices` (the CPU first), placed as their budgets allow or as `placement` says.
    ///
    /// # Errors
    /// [`Error::Placement`] for one that does not fit the model, [`Error::Device`] when even the CPU has no room.
    ///
    /// # Panics
    /// If `devices` is empty.
    pub fn load(
        model: Arc<Model>,
        devices: Vec<Device>,
        options: EngineOptions,
        placement: Option<Placement>,
        notice: Notice,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Engine> {
        assert!(!devices.is_empty(), "the CPU is always there");
        let mode = FfnMode::new(&model, options.sparsity);
        let hyper = &model.hyper;
        if let Some(placement) = &placement {
            placement.check(hyper.n_layer, hyper.n_ff, devices.len(), mode.unit(&model))?;
        }
        let sizes = StepSizes {
            rungs: options.ladder(),
            n_blocks: options.n_blocks(),
            n_vocab: model.n_vocab(),
            n_embd: hyper.n_embd,
            n_layer: hyper.n_layer,
            n_ff: hyper.n_ff,
        };
        let mut engine = Engine {
            lost: vec![false; devices.len()],
            free: Vec::new(),
            buffers: Buffers::default(),
            logits: Vec::new(),
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
    fn place(
        &mut self,
        given: Option<Placement>,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<()> {
        self.loaded = None;
        self.free = (0..self.sizes.n_blocks as u32).rev().collect();
        let mut budgets: Vec<Bytes> = self.devices.iter().map(|d| d.ledger().budget()).collect();
        for (budget, lost) in budgets.iter_mut().zip(&self.lost) {
            if *lost {
                *budget = Bytes(0);
            }
        }
        let hyper = &self.model.hyper;
        let planner = Plan {
            model: &self.model,
            devices: &self.devices,
            options: &self.options,
            mode: self.mode,
            progress,
        };
        let unit = self.mode.unit(&self.model);
        let fixed = given.is_some();
        let mut placement = match given {
            Some(placement) => placement,
            None => plan(&planner, &budgets, hyper.n_layer, hyper.n_ff, unit),
        };
        loop {
            match planner.build(placement) {
                Ok(loaded) => {
                    for slow in &loaded.slow {
                        (self.notice)(slow);
                    }
                    self.loaded = Some(loaded);
                    return Ok(());
                }
                Err(Error::Device(error)) if !fixed => {
                    self.shrink(&error, &mut budgets)?;
                    placement = plan(&planner, &budgets, hyper.n_layer, hyper.n_ff, unit);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes what a device could not give off the budget that is planned with.
    fn shrink(&self, error: &hal::Error, budgets: &mut [Bytes]) -> Result<()> {
        let (device, missing) = match error {
            hal::Error::OutOfMemory { device, wanted, free, .. } => {
                (device, (*wanted - *free).0.max(wanted.0 / 16).max(1 << 10))
            }
            hal::Error::DeviceLost { device, .. } => (device, u64::MAX),
            hal::Error::Shape { .. }
            | hal::Error::Unsupported { .. }
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
                let before = budgets[index].min(used + Bytes(missing));
                budgets[index] = before - Bytes(missing);
                (self.notice)(&format!("{error}; placing less on {device} and going on"));
                Ok(())
            }
            _ => Err(error.clone().into()),
        }
    }

    /// Goes on without a device that was lost.
    fn recover(&mut self, device: &str, reason: &str) -> Result<()> {
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
        self.place(None, &|_, _| {})
    }

    fn step(&mut self, facts: &BatchFacts, interrupt: &AtomicBool) -> Result<(StepStats, &[f32])> {
        let loaded = self.loaded.as_mut().ok_or(hal::Error::Cancelled)?;
        let stats =
            loaded.step(facts, &self.sizes, &mut self.buffers, &mut self.logits, interrupt)?;
        Ok((stats, &self.logits))
    }

    fn generation(&self) -> u64 {
        self.generation
    }

    fn take_block(&mut self) -> Option<u32> {
        self.free.pop()
    }

    fn free_blocks(&mut self, blocks: Vec<u32>) {
        self.free.extend(blocks);
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
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

    /// Where everything is now.
    ///
    /// # Panics
    /// Never outside of a failed recovery: an engine that loaded has a placement.
    #[must_use]
    pub fn placement(&self) -> &Placement {
        &self.loaded.as_ref().expect("a loaded engine has a placement").placement
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
}
