//! Text processing around a model: token ids ([`tokenizer`]), conversations ([`chat`]), sampling of
//! the next token ([`sample`]).
//!
//! Not here: the model, devices.

pub mod chat;
pub mod sample;
pub mod tokenizer;
