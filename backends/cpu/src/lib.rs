//! The CPU backend: reference kernels, fast kernels, and the thread pool that runs them.

mod affinity;
mod backend;
mod buffer;
mod caches;
mod cgroup;
mod files;
mod kernels;
mod limits;
mod machine;
#[cfg(target_vendor = "apple")]
mod macos;
mod options;
mod pages;
mod prefetch;
mod program;
mod queue;
pub mod reference;
mod sync;
#[cfg(any(windows, target_vendor = "apple", test))]
mod system_topology;
mod thread_plan;
mod thread_pool;
mod topology;
#[cfg(windows)]
mod windows;

pub use backend::CpuBackend;
pub use caches::last_level_cache;
pub use machine::memory_beside;
pub use options::{CpuOptions, Notice, Numa, Priority};
pub use prefetch::PrefetchDistance;
