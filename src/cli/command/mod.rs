//! The commands.

mod auto_profile;
pub(super) mod bench;
pub(super) mod cache;
pub(super) mod chat;
pub(super) mod compile_kernel;
pub(super) mod completions;
pub(super) mod convert;
pub(super) mod devices;
mod disk;
pub(super) mod doctor;
pub(super) mod embed;
mod first_use;
pub(super) mod imatrix;
pub(super) mod info;
pub(super) mod man;
pub(super) mod perplexity;
pub(super) mod plan;
pub(super) mod predictor;
pub(super) mod profile;
mod prompt_cache;
pub(super) mod pull;
pub(super) mod run;
pub(super) mod serve;
mod structured;
pub(super) mod tokenize;
mod trace;
