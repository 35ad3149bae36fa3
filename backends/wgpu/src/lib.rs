//! The backend for all Vulkan, Metal and DX12 devices, through wgpu.
//!
//! An op is lowered once, when its program is compiled, to a few dispatches: a shader from
//! `shaders/`, the buffers bound to it and a block of numbers. A replay only encodes and submits
//! the dispatches. Shaders read data that changes from step to step from the [`hal::Batch`] on the
//! device. A grid therefore has the size of the largest step, and surplus workgroups return early.
//!
//! By design, the crate does not use OpenGL (many of its drivers compute in software but do not
//! report that), does not allocate per token, and does not add numbers in an order that can change.

mod adapter;
mod avoided;
mod backend;
mod buffer;
mod copies;
mod error;
mod facts;
mod gpu;
mod layout;
mod lowering;
mod mailbox;
mod native;
mod ops;
mod probe;
mod program;
mod queue;
#[cfg(all(test, target_os = "linux"))]
mod radv;
mod run;
mod shader;
mod timer;
#[cfg(test)]
mod translate;
mod work;

pub use adapter::{Adapter, Options, adapters};
pub use avoided::PlantedFault;
pub use backend::WgpuBackend;
pub use facts::Tuning;
pub use gpu::Counts;
