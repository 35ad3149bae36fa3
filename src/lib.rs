//! Thermocline: a language-model engine that computes only the neurons a token needs.
//!
//! Start reading at `ARCHITECTURE.md`. This crate is the command ([`cli`]); the engine is the
//! crates below it, which are named here for the tests.

pub use convert;
pub use engine::{self, converted, trace};
pub use gguf;
pub use learn::{learned, predictor, profile};
pub use measure::{bench, evaluate, synthetic};
pub use model;
pub use placement;
pub use runtime::{devices, embedded, generate};
pub use text::{chat, sample, tokenizer};

pub mod cli;
