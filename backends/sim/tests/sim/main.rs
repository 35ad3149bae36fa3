//! The simulated device keeps the contract, also when it is made to fail. No test depends on the clock: delays
//! only shuffle the order in which the threads meet, and a watchdog turns a wait without end into a failure.

#![allow(clippy::unwrap_used, reason = "tests may")]

mod conformance;
mod failures;
mod hand_off;
mod limits;
mod order;
mod support;
