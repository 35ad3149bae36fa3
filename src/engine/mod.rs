//! Runs a model on devices: loads it as a placement says, runs steps, and continues after the loss
//! of a device.
//!
//! Start at [`Engine::feed`]; `record/` records the programs of a step, `step/` replays them,
//! `replay/` answers their hand-offs.
//!
//! The modules, lowest first. Each imports only from modules before it (`tests/tidy.rs`):
//! - `error`: errors of loading and stepping
//! - `converted`: the repack cache
//! - `options`: options of an engine
//! - `timeline`: when the work of a step ran, and on which device
//! - `trace`: Chrome's trace format
//! - `ops`: a layer as ops, over tensors or over shapes
//! - `paging`: weights of the CPU that are partly on disk
//! - `size`: memory and time of a placement on its devices; allocates nothing
//! - `load`: weights, caches and scratch on devices
//! - `record`: records ops over loaded tensors as programs
//! - `replay`: replays programs and answers their hand-offs; has the buffers of a step
//! - `stream`: streams weights on the CPU to a device during prefill
//! - `step`: replays all programs of a step, and reads its counters
//! - `adapt`: exchanges neurons between devices as the text changes
//! - `observe`: steps that pass the values of every feed-forward block, or the inputs of all
//!   matrices, to a callback
//! - `fired`: which neurons fired in a step, for display
//! - `sequence`: tokens, cache blocks and state rows of sequences, and which tokens the next step
//!   takes
//! - `run`: the engine, which ties the other modules together

mod adapt;
pub mod converted;
mod error;
mod fired;
mod load;
mod observe;
mod ops;
mod options;
mod paging;
mod record;
mod replay;
mod run;
mod sequence;
mod size;
mod step;
mod stream;
mod timeline;
pub mod trace;

pub use adapt::ExchangeStats;
pub use error::{Error, NotRestored, Result};
pub use fired::FiredNeurons;
pub use load::to_repack;
pub use observe::{InputObserver, ObservedBlock, ObservedInput};
pub use ops::memory::{index_format, state_bytes};
pub use ops::scratch::scratch_width;
pub use options::{
    DenseFrom, EngineOptions, NeuronReads, PagingOptions, PlannerInputs, ReadRates, Sparsity,
    Streaming,
};
pub use paging::Tiers;
pub use replay::arena::LayerActivity;
pub use run::{Engine, NoticeCallback, SAVED_HEAD, SavedHead, is_saved_sequence};
pub use sequence::{EachLogits, Feed, LogitsRequest, Sequence};
pub use size::cost::{assumed_past, forecast, task};
pub use size::exchange::{ExchangeNeeds, exchange_needs};
pub use size::host::{HostBytes, HostLayer, copied_bytes, host_bytes, least_paged};
pub use size::programs::programs;
pub use size::tiers::planned_tiers;
pub use step::{StepStats, UnionStats};
pub use timeline::{Event, StepTrace, Tracer, Waits, Work};
