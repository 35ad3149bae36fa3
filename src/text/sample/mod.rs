//! Chooses a token from logits.
//!
//! [`Sampler`] chooses one token id from one row of logits by a chain of stages in llama.cpp's
//! order and with its defaults; [`StopStrings`] watches the resulting text. Nothing here depends on
//! a model, a device or a tokenizer: a [`Constraint`] limits the choice to a set of token ids.
//! Stages that llama.cpp has but disables by default (DRY, XTC, typical) may be named in a chain
//! and are left out; the command line rejects the flags that enable them.

mod candidates;
mod config;
mod constraint;
mod history;
mod sampler;
mod stop;

pub use config::{Error, SamplerConfig, Stage};
pub use constraint::{Constraint, ConstraintError, TokenMask};
pub use sampler::Sampler;
pub use stop::{PushedText, StopStrings};
