//! Chooses a token from logits.
//!
//! [`Sampler`] chooses one token id from one row of logits by a chain of stages in llama.cpp's
//! order and with its defaults; [`StopStrings`] watches the resulting text. Nothing here depends
//! on a model, a device or a tokenizer. Stages of llama.cpp that are not supported (DRY, XTC,
//! typical, mirostat, grammars) are rejected by name, never ignored.

mod candidates;
mod config;
mod history;
mod sampler;
mod stop;

pub use config::{Error, SamplerConfig, Stage};
pub use sampler::Sampler;
pub use stop::{Pushed, StopStrings};
