//! Tests on whatever device this machine has; the software driver will do.

mod conformance;
mod device;
mod queue;
mod support;
