//! Tool calls in a model's output: the formats of the families, and a parser for text that arrives
//! in pieces.
//!
//! [`CallFormat::detect`] finds the format of a chat template, and [`CallParser`] separates content
//! from calls. `format.rs` lists the formats. The bodies of calls are parsed by `envelope.rs` (name
//! and arguments in one JSON object), `named.rs` (a name, then the arguments), `xml.rs` and
//! `python.rs`. The crate `constrain` makes a model follow a format.

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
    /// JSON schema of the arguments; null for any object.
    pub parameters: serde_json::Value,
}
