//! Thermocline: a language-model engine that computes only the neurons a token needs.
//!
//! Start reading at `ARCHITECTURE.md`. Arrows between the modules go down only; `tests/tidy.rs` holds that.

pub mod bench;
pub mod chat;
pub mod cli;
pub mod convert;
pub mod converted;
pub mod devices;
pub mod embedded;
pub mod engine;
pub mod evaluate;
pub mod generate;
pub mod gguf;
pub mod learned;
pub mod model;
pub mod placement;
pub mod predictor;
pub mod profile;
pub mod sample;
pub mod synthetic;
pub mod tokenizer;
pub mod trace;
