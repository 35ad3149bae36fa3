//! Any Vulkan, Metal or DX12 device, through wgpu.
//!
//! An op is lowered once, when its program is compiled, to a few dispatches: a shader from
//! `shaders/`, the buffers bound to it and a block of numbers. A replay only encodes and submits
//! them. Data that changes from step to step is read from the [`hal::Batch`] on the device, so
//! grids have the size of the program and workgroups return early.
//!
//! Absent on purpose: GL (its drivers are often software without saying so), allocations per
//! token, sums whose order could change.

mod adapter;
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
mod run;
mod shader;
mod timer;
#[cfg(test)]
mod translate;
mod work;

pub use adapter::{Adapter, Options, adapters};
pub use backend::WgpuBackend;
pub use facts::Tuning;
pub use gpu::Counts;
