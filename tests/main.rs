//! Whole-engine tests: one binary, one file per subject.

mod gguf;
