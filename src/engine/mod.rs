//! A model on devices: loads by a placement, runs steps, and continues after the loss of a device.
//!
//! Start at [`Engine::feed`]; `record/` records a step's programs, `step/` replays them, `replay/`
//! answers their hand-offs.
//!
//! The modules, lowest first. Each imports only from those before it (`tests/tidy.rs`):
//! - `error`: errors of loading and stepping
//! - `converted`: the repack cache
//! - `options`: options of an engine
//! - `timeline`: when the work of a step ran, and where
//! - `trace`: Chrome's trace format
//! - `ops`: a layer as ops, over tensors or over their shapes
//! - `size`: sizes of a placement on its devices; allocates nothing
//! - `load`: weights, caches and scratch on devices
//! - `record`: ops over loaded tensors become programs
//! - `replay`: programs are replayed and their hand-offs answered, in the arena of a step
//! - `stream`: weights on the CPU streamed through a device during prefill
//! - `step`: a step as replays of all its programs, and its counters
//! - `adapt`: neurons exchanged between devices as the text changes
//! - `observe`: steps that show every feed-forward block
//! - `sequence`: tokens, cache blocks and state rows of sequences, and what the next step takes
//! - `run`: the engine

mod adapt;
pub mod converted;
mod error;
mod load;
mod observe;
mod ops;
mod options;
mod record;
mod replay;
mod run;
mod sequence;
mod size;
mod step;
mod stream;
mod timeline;
pub mod trace;

pub use adapt::Exchanged;
pub use error::{Error, NotRestored, Result};
pub use load::to_convert;
pub use observe::Observed;
pub use ops::mixer::state_bytes;
pub use ops::scratch::scratch_width;
pub use options::{DenseFrom, EngineOptions, Placing, Sparsity, Streaming};
pub use run::{Engine, Notice};
pub use sequence::{EachLogits, Feed, Sequence, Want};
pub use size::cost::{assumed_past, forecast, task};
pub use size::exchange::{ExchangeNeeds, exchange_needs};
pub use size::host::{HostBytes, HostLayer, host_bytes};
pub use step::{StepStats, UnionStats};
pub use timeline::{Event, StepTrace, Tracer, Waits, Work};
