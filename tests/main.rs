//! Whole-engine tests: one binary, one file per subject.
// Clippy exempts test functions from these lints, but not their helpers.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

// The examples use the name that this crate has for programs outside of the workspace.
extern crate runtime as thermocline_runtime;

mod adapted;
mod bad_models;
mod bench;
mod chat;
mod cli;
mod command_lines;
mod convert;
mod converted;
mod disk_and_devices;
mod disk_tier;
mod docs;
mod embedded;
mod evaluate;
mod examples;
mod fake_gpu;
mod families;
mod generation;
mod gguf;
mod hub;
mod importance;
mod neurons_on_disk;
mod placement_is_invisible;
mod plan;
mod plan_tiers;
mod predictor;
mod profile;
mod prompt_cache;
mod self_test;
mod sequences;
mod server;
mod structured;
mod support;
mod synthetic;
mod tidy;
mod tokenizer;
mod trace;
