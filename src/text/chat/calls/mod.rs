//! Tool calls in a model's output: the formats of the families, and a parser for text that arrives
//! in pieces.
//!
//! [`CallFormat::detect`] finds the format that a chat template writes, [`CallParser`] separates
//! content from calls. Formats: `format.rs`; bodies of calls: `envelope.rs` (name and arguments in
//! one JSON object), `named.rs` (a name, then the arguments), `xml.rs`, `python.rs`. Not here: the
//! constraint that makes a model follow a format.

mod body;
mod envelope;
mod format;
mod json;
mod named;
mod parser;
mod python;
#[cfg(test)]
mod tests;
mod xml;

pub use format::CallFormat;
pub use parser::{CallDelta, CallParser, Delivery};

/// A tool that a model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// JSON schema of its arguments; null for any object.
    pub parameters: serde_json::Value,
}
