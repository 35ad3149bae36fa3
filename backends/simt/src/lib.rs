//! What CUDA and HIP share: memory, queues, programs, hand-offs, and every op as launches of kernels.
//!
//! A backend is this crate over a [`Driver`], which names the vendor's calls and nothing else. Kernels are written once,
//! in `kernels-cuda/`, against a dialect (`dialect.h`) of which there is one for each vendor and one for tests.
//!
//! An op is lowered once, when its program is compiled, to launches; a program is recorded as a graph where that is
//! faster. What changes from step to step is read from the [`hal::Batch`] on the device, so grids have the size of the
//! program and leave early. The device waits for the answer of a hand-off itself, by a flag in memory that both sides see;
//! where it cannot, a submission ends there.

mod backend;
mod buffer;
mod card;
mod copies;
mod driver;
mod error;
mod facts;
mod found;
mod lowering;
mod mailbox;
mod missing;
pub mod native;
mod ops;
mod pinned;
mod probe;
mod program;
mod queue;
mod run;
mod self_check;
mod stream;
mod timer;
pub mod units;

pub use backend::SimtBackend;
pub use driver::{Arg, DevicePtr, Driver, Geometry, HostBlock};
pub use facts::Facts;
pub use found::{Found, in_order, slot};
pub use lowering::MOST_THREADS;
pub use missing::Missing;
pub use native::Outcome;
pub use probe::{Manners, Options};
