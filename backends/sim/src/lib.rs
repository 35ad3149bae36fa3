//! A simulated device for tests: separate memory, an asynchronous in-order queue with random
//! delays, small limits, and injected failures. Its arithmetic is [`cpu::reference`].
//!
//! It produces conditions that a real device rarely shows (overlap, full memory, loss). Each queue
//! has one thread with one inbox. A caller that waits for the device waits on a channel whose
//! sender the queue's thread owns, so that no wait outlives the thread.
//!
//! The crate deliberately does not use `unsafe`, the CPU backend's memory, or timeouts (a hang ends
//! with [`SimBackend::resume`], cancellation or loss, never by the clock).

mod backend;
mod memory;
mod options;
mod queue;
mod shared;
mod worker;

pub use backend::SimBackend;
pub use options::{Failures, SimOptions};
pub use shared::Counters;
