//! The simulated device follows the contract of `hal`, even with injected failures. No test depends
//! on the clock: delays only vary the interleaving of threads, and a watchdog turns an endless wait
//! into a failure.

#![allow(clippy::unwrap_used, reason = "a test may fail this way")]

mod conformance;
mod failures;
mod hand_off;
mod limits;
mod order;
mod support;
