//! Opens a model on this machine and runs it: the entry point for other programs.
//!
//! This runs the built-in model:
//!
//! ```
//! use thermocline_runtime::{Model, Options, SamplerConfig, Settings};
//!
//! let mut model = Model::built_in(&Options::default())?;
//! let mut sequence = model.sequence();
//! let settings = Settings { n_predict: Some(8), ..Settings::default() };
//! let prompt = model.encode("Once upon a time")?;
//! let greedy = SamplerConfig { temp: 0.0, ..SamplerConfig::default() };
//! let mut text = String::new();
//! for token in model.generate(&mut sequence, &prompt, &greedy, &settings)? {
//!     text += &token?.text;
//! }
//! assert!(!text.is_empty());
//! # Ok::<(), thermocline_runtime::Error>(())
//! ```
//!
//! [`Options`] select devices, their memory budget, the context and the threads; everything has a
//! default. Messages while a model is opened and loaded arrive at an [`Observer`] as typed
//! [`Notice`]s: this crate does not print or read the environment.
//!
//! [`Model`] combines steps that programs can also use one by one: [`Runtime`] chooses devices,
//! [`Opened`] is a model that is not loaded yet, [`Runtime::placing`] and [`Runtime::settings`]
//! plan, [`Runtime::load`] returns the [`engine::Engine`], and [`generate`] turns a prompt into
//! text.

mod adapters;
mod assumed_device;
mod choice;
pub mod devices;
pub mod dialogue;
mod disk_plan;
pub mod embedded;
mod error;
pub mod generate;
mod known_cards;
mod loaded_model;
mod machine;
mod memory;
mod neuron_reads;
mod notice;
mod open;
mod opening;
mod options;
mod overrides;
mod rank;
mod repack;
mod runtime;
mod self_test;
mod side_file;
mod speeds;
mod switches;
mod tiers;

pub use adapters::{AdapterFile, AdapterNotice};
pub use assumed_device::AssumedDevice;
pub use error::{DeviceError, Error, MemoryLimit, Result};
pub use generate::{EndReason, Report, Settings, Token, Tokens};
pub use known_cards::known_cards;
pub use loaded_model::{Model, Sequence};
pub use machine::{Accelerator, Machine};
pub use memory::{MemoryNeed, memory_for};
pub use notice::{
    DeviceFull, DiskNotice, KernelNotice, Notice, Observer, PlacementReport, RepackNotice,
    SharedObserver, SilentObserver, SparsityNotice, Task,
};
pub use open::{Opened, file, tokenizer};
pub use options::{
    Budget, CacheFolder, Computation, ContextSize, DeviceOptions, Options, Processor, Sparsity,
};
pub use overrides::TensorOverride;
pub use rank::RankPrompt;
pub use runtime::{
    Runtime, activation_name, check_total_memory, forecast, load_quietly, slower_placement,
};
pub use self_test::verdict_value;
pub use side_file::has_predictor;
pub use speeds::{known_disks, measure_prefetch, measure_speed};
pub use store::DiskSpeed;
pub use switches::{DeviceSwitches, SWITCHES, Switches};
pub use text::chat::{Conversation, Dialogue};
pub use text::sample::SamplerConfig;
