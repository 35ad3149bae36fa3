//! The shared part of CUDA and HIP: memory, queues, programs, hand-offs, and every op as kernel
//! launches.
//!
//! A backend is this crate over a [`Driver`], which wraps the vendor's calls and nothing else.
//! Kernels are written once, in `kernels-cuda/`, against a dialect (`dialect.h`), with an
//! implementation for each vendor and one for tests.
//!
//! An op is lowered to launches once, when its program is compiled; a program is captured as a
//! graph if that is faster. Data that changes from step to step is read from the [`hal::Batch`] on
//! the device, so grids have the size of the program and blocks return early. In a hand-off the
//! device itself waits for the answer, by a flag in memory shared with the host; if it cannot, the
//! submission ends there.

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
pub use probe::{Options, SubmissionMode};
