//! Whole-engine tests: one binary, one file per subject.
#![allow(clippy::unwrap_used)] // clippy's exemption covers test functions but not their helpers

mod gguf;
