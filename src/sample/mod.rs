//! From logits to a token.
//!
//! [`Sampler`] turns one row of logits into one token id by a chain of stages in llama.cpp's order
//! and with its defaults; [`StopStrings`] watches the text that comes of it. Nothing here knows a
//! model, a device or a tokenizer. What llama.cpp has and this floor does not (DRY, XTC, typical,
//! mirostat, grammars) is refused by name where the user asks for it, never ignored.

mod candidates;
mod config;
mod history;
mod sampler;
mod stop;

pub use config::{Error, SamplerConfig, Stage};
pub use sampler::Sampler;
pub use stop::{Pushed, StopStrings};
