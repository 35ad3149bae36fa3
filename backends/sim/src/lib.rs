//! A simulated device for tests: memory of its own, an asynchronous in-order queue with random delays, small
//! limits, and failures on demand. Its arithmetic is [`cpu::reference`].
//!
//! What a machine with one driver cannot show (overlap, budgets, loss, two devices) is shown here. Each queue
//! is one thread with one inbox; whoever waits for the device waits on a channel whose other end that thread
//! owns, so that no wait outlives it.
//!
//! Absent on purpose: `unsafe`, the CPU backend's memory, timeouts (a hang ends by [`SimBackend::resume`], a
//! cancel or a loss, never by the clock).

mod backend;
mod memory;
mod options;
mod queue;
mod shared;
mod worker;

pub use backend::SimBackend;
pub use options::{Failures, SimOptions};
pub use shared::Counters;
