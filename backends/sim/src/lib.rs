//! A simulated device for tests: separate memory, an asynchronous in-order queue with random
//! delays, small limits, and injected failures. Its arithmetic is [`cpu::reference`].
//!
//! It tests conditions that a machine with one driver cannot produce (overlap, budgets, loss, two
//! devices). Each queue is one thread with one inbox; a caller that waits for the device waits on
//! a channel whose sender that thread owns, so that no wait outlives the thread.
//!
//! Absent on purpose: `unsafe`, the CPU backend's memory, timeouts (a hang ends by
//! [`SimBackend::resume`], a cancel or a loss, never by the clock).

mod backend;
mod memory;
mod options;
mod queue;
mod shared;
mod worker;

pub use backend::SimBackend;
pub use options::{Failures, SimOptions};
pub use shared::Counters;
