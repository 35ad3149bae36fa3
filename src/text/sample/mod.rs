//! Chooses a token from logits.
//!
//! [`Sampler`] chooses one token id from one row of logits by a chain of stages in llama.cpp's
//! order and with its defaults; [`StopStrings`] watches the resulting text. Nothing here depends on
//! a model or a device: a [`Constraint`] limits the choice to a set of token ids, and the tokenizer
//! only resolves DRY's sequence breakers. `candidates.rs` has top-k, top-p and min-p, `history.rs`
//! the penalties; each other sampler has a file. [`NUMBERS`] and [`INTEGERS`] have the settings by
//! name. Only llama.cpp's `infill` is missing; it is rejected by name.

mod adaptive;
mod breakers;
mod candidates;
mod config;
mod constraint;
mod dry;
mod error;
mod history;
mod mirostat;
mod sampler;
mod settings;
mod stage;
mod stop;
mod temperature;
#[cfg(test)]
mod tests;
mod top_n_sigma;
mod typical;
mod xtc;

pub use config::{Mirostat, SamplerConfig};
pub use constraint::{Constraint, ConstraintError, TokenMask};
pub use error::Error;
pub use sampler::Sampler;
pub use settings::{INTEGERS, IntegerSetting, NUMBERS, NumberSetting};
pub use stage::Stage;
pub use stop::{PushedText, StopStrings};
