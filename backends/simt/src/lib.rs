//! The code that the CUDA and HIP backends share: memory, queues, programs, hand-offs, and the
//! lowering of every op to kernel launches.
//!
//! A backend is this crate with a [`Driver`], which only wraps the vendor's calls. The kernels in
//! `kernels-cuda/` are written once. Macros and functions that differ between vendors are in
//! `dialect.h`; CUDA, HIP and the tests each have their own version of this file.
//!
//! An op is lowered to launches once, when its program is compiled; a program is captured as a
//! graph if that is faster. Kernels read data that changes from step to step from the
//! [`hal::Batch`] on the device. So a grid has the size that the largest step needs, and surplus
//! blocks return early. In a hand-off, a kernel polls a flag in pinned host memory until the CPU
//! has answered; if a device cannot do that, the submission ends at the hand-off.

mod backend;
mod buffer;
mod card;
mod copies;
mod driver;
mod error;
mod facts;
mod found;
mod granule;
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
pub use found::{FoundDevice, normalise_pci_slot, sort_and_name};
pub use lowering::MAX_THREADS;
pub use missing::LibraryError;
pub use native::Outcome;
pub use probe::{Options, SubmissionMode};
