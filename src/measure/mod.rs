//! Measures the speed ([`mod@bench`]) and quality ([`evaluate`]) of a loaded model, makes synthetic
//! models for that ([`synthetic`]), and checks a device's kernels ([`self_test`]).

pub mod bench;
pub mod evaluate;
pub mod self_test;
pub mod synthetic;
