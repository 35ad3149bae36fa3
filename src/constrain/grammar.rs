//! Grammars and the limits on them.

use serde_json::Value;

use crate::ToolCalls;

/// A constraint on the form of a text.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// JSON that is valid for this schema (drafts 4 to 2020-12).
    JsonSchema(Value),
    /// The whole text matches this regular expression, in the syntax of the `regex` crate.
    Regex(String),
    /// llama.cpp's grammar format, starting from the rule `root`.
    Gbnf(String),
    /// Lark with the extensions of llguidance, starting from the rule `start`.
    Lark(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Tool calls in a model's format.
    ToolCalls(ToolCalls),
}

/// Limits on the compile time and memory of one grammar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum size of a grammar or schema as text, in bytes.
    pub n_bytes: usize,
    /// Maximum nesting depth: of brackets in a grammar, of values in a schema.
    pub n_nested: usize,
    /// Maximum number of properties of one object of a schema. Compile time grows with the square
    /// of this number.
    pub n_properties: usize,
    /// Maximum number of rules or terminals of a grammar.
    pub n_rules: usize,
    /// Maximum number of symbols in the rules of the compiled grammar.
    pub n_symbols: usize,
    /// Maximum number of regex nodes that compilation may create; 50 000 take about a millisecond.
    pub compile_fuel: u64,
    /// Maximum number of regex nodes that computing one mask may create; 14 000 take about a
    /// millisecond.
    pub mask_fuel: u64,
    /// Maximum number of parser items that computing one mask may create; 20 000 take about a
    /// millisecond.
    pub mask_items: usize,
    /// Maximum number of lexer states, each of 1 to 2 kB.
    pub n_lexer_states: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            n_bytes: 256 << 10,
            n_nested: 64,
            n_properties: 500,
            n_rules: 2_000,
            n_symbols: 200_000,
            compile_fuel: 1_000_000,
            mask_fuel: 400_000,
            mask_items: 100_000,
            n_lexer_states: 30_000,
        }
    }
}
