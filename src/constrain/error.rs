//! Errors of grammars.

/// A grammar cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The tokens do not fit into a trie.
    #[error("this vocabulary does not support constrained output: {reason}")]
    Vocabulary {
        /// The limit that the vocabulary exceeds.
        reason: String,
    },
    /// The text of a grammar or schema is too long or nested too deeply.
    #[error("the {what} has {found} {unit}; the limit is {limit}")]
    TooLarge {
        /// What it is: `JSON schema`, `GBNF grammar`.
        what: &'static str,
        /// Size of it.
        found: usize,
        /// The limit.
        limit: usize,
        /// Unit of both.
        unit: &'static str,
    },
    /// A JSON schema that is invalid, or has a keyword that is not supported.
    #[error("unsupported JSON schema: {reason}")]
    Schema {
        /// The keyword or the place, and the cause.
        reason: String,
    },
    /// An invalid GBNF grammar.
    #[error("invalid GBNF grammar at line {line}: {reason}")]
    Gbnf {
        /// Line from 1.
        line: usize,
        /// The cause.
        reason: String,
    },
    /// An invalid or too complex Lark grammar.
    #[error("invalid Lark grammar: {reason}")]
    Lark {
        /// Line, column and cause.
        reason: String,
    },
    /// An invalid or too complex regular expression.
    #[error("invalid regular expression: {reason}")]
    Regex {
        /// The cause.
        reason: String,
    },
    /// A grammar that is valid, but beyond the limits on work or memory.
    #[error("the grammar is too complex: {reason}")]
    TooComplex {
        /// The limit.
        reason: String,
    },
    /// The parameters of a tool.
    #[error("the parameters of tool '{name}': {source}")]
    Tool {
        /// Name of the tool.
        name: String,
        /// The cause.
        source: Box<Error>,
    },
    /// A name of a tool that its call format cannot express.
    #[error("invalid tool name {name:?}: use 1 to 128 letters, digits, '_', '-', '.' and ':'")]
    ToolName {
        /// The name.
        name: String,
    },
    /// A choice of tools without a tool.
    #[error("{reason}")]
    NoTool {
        /// The missing tool.
        reason: String,
    },
    /// A choice without alternatives.
    #[error("a choice needs at least one text")]
    NoChoice,
}
