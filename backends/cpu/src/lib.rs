//! The CPU backend: reference kernels, fast kernels, and the thread pool that runs them.

mod affinity;
mod backend;
mod buffer;
mod cgroup;
mod files;
mod kernels;
mod machine;
mod options;
mod pages;
mod prefetch;
mod program;
mod queue;
pub mod reference;
mod sync;
mod thread_plan;
mod thread_pool;
mod topology;

pub use backend::CpuBackend;
pub use options::{CpuOptions, Notice, Numa, Priority};
pub use prefetch::PrefetchDistance;
