//! Thermocline: a language-model engine that computes only the neurons a token needs.
//!
//! Start reading at `ARCHITECTURE.md`. This crate is the command line ([`cli`]); the engine lives
//! in the crates below it, which this crate re-exports for the tests.

pub use convert;
pub use engine::{self, converted, trace};
pub use gguf;
pub use learn::{learned, predictor, profile};
pub use measure::{bench, evaluate, synthetic};
pub use model;
pub use placement;
pub use runtime::{devices, embedded, generate};
pub use scheduler;
pub use text::{chat, sample, tokenizer};

pub mod cli;
