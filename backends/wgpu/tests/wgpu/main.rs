//! Tests on the first device of this machine, which may be a software driver.

mod conformance;
mod device;
mod queue;
mod support;
