//! Text processing around a model: token ids ([`tokenizer`]), conversations ([`chat`]), sampling of
//! the next token ([`sample`]).
//!
//! This crate does not depend on the model or on devices.

pub mod chat;
pub mod sample;
pub mod tokenizer;
