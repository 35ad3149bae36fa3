//! The processor as a device: the reference kernels, the fast ones, and the team that runs them.

mod backend;
mod buffer;
mod kernels;
mod machine;
mod program;
mod queue;
pub mod reference;
pub mod simd;
mod team;

pub use backend::{CpuBackend, CpuOptions};
pub use machine::default_threads;
