//! Grammars and the limits on them.

use serde_json::Value;

use crate::ToolCalls;

/// What a text must look like.
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
    /// Calls of tools in the format of a model.
    ToolCalls(ToolCalls),
}

/// Limits on the work and memory of one grammar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a grammar or schema as text.
    pub n_bytes: usize,
    /// Levels of brackets in a grammar, of values in a schema.
    pub n_nested: usize,
    /// Properties of one object of a schema. The work to compile them grows with their square.
    pub n_properties: usize,
    /// Rules or terminals of a grammar.
    pub n_rules: usize,
    /// Symbols in the rules of the compiled grammar.
    pub n_symbols: usize,
    /// Nodes of regular expressions that compiling may create; about 50 000 take a millisecond.
    pub compile_fuel: u64,
    /// Nodes of regular expressions that one mask may create; about 14 000 take a millisecond.
    pub mask_fuel: u64,
    /// Parser items that one mask may create; about 20 000 take a millisecond.
    pub mask_items: usize,
    /// States of the lexer, each of 1 to 2 kB.
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
