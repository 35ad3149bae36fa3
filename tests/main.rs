//! Whole-engine tests: one binary, one file per subject.
// Clippy exempts test functions from these, but not their helpers.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod bad_models;
mod bench;
mod chat;
mod cli;
mod convert;
mod converted;
mod embedded;
mod evaluate;
mod fake_gpu;
mod families;
mod generation;
mod gguf;
mod placement_is_invisible;
mod plan;
mod predictor;
mod profile;
mod support;
mod synthetic;
mod tidy;
mod tokenizer;
mod trace;
