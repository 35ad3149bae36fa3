//! Tests on any device of this machine; the software driver is sufficient.

mod conformance;
mod device;
mod queue;
mod support;
