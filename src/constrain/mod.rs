//! Structured output: restricts the next token, so that the text follows a JSON schema, a grammar
//! or a format of tool calls.
//!
//! A [`Vocabulary`] is built once per tokenizer. [`Vocabulary::compile`] turns a [`Grammar`] into a
//! [`Constraint`](text::sample::Constraint) for one text. The crate `llguidance` parses the text
//! and computes the allowed tokens. This crate converts GBNF (`gbnf/`) and generates the grammars
//! of tool calls (`calls.rs`). The crate `text` samples tokens and parses finished calls.

mod calls;
mod error;
mod free;
mod gbnf;
mod grammar;
mod matched;
mod patterns;
mod reasoning;
mod vocabulary;

#[cfg(test)]
mod tests;

pub use calls::{ToolCalls, ToolChoice};
pub use error::Error;
pub use free::{TriggeredConstraint, Triggers};
pub use grammar::{Grammar, Limits};
pub use vocabulary::Vocabulary;
