//! Measures the speed ([`mod@bench`]) and quality ([`evaluate`]) of a loaded model, and makes
//! synthetic models for that ([`synthetic`]).

pub mod bench;
pub mod evaluate;
pub mod synthetic;
