//! Structured output: which tokens may come next so that the text follows a JSON schema, a grammar
//! or the call format of tools.
//!
//! A [`Vocabulary`] is built once per tokenizer. [`Vocabulary::compile`] turns a [`Grammar`] into a
//! [`Constraint`](text::sample::Constraint) for one text. The crate `llguidance` parses the text
//! and computes the sets of tokens; GBNF is converted here (`gbnf/`), and the grammars of tool
//! calls are written here (`calls.rs`). Not here: sampling, and parsing of finished calls
//! (`text::chat`).

mod calls;
mod error;
mod free;
mod gbnf;
mod grammar;
mod matched;
mod reasoning;
mod vocabulary;

#[cfg(test)]
mod tests;

pub use calls::{ToolCalls, ToolChoice};
pub use error::Error;
pub use free::{TriggeredConstraint, Triggers};
pub use grammar::{Grammar, Limits};
pub use vocabulary::Vocabulary;
