//! Errors of grammars.

/// Why a grammar cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The tokens do not fit into a trie.
    #[error("this vocabulary does not support constrained output: {reason}")]
    Vocabulary {
        /// The limit that the vocabulary exceeds.
        reason: String,
    },
    /// A grammar or schema that is too long or nested too deeply.
    #[error("the {what} has {found} {unit}; the limit is {limit}")]
    TooLarge {
        /// Kind of the text: `JSON schema` or `GBNF grammar`.
        what: &'static str,
        /// Size of the text.
        found: usize,
        /// The limit.
        limit: usize,
        /// Unit of `found` and `limit`.
        unit: &'static str,
    },
    /// A JSON schema that is invalid, or has a keyword that is not supported.
    #[error("unsupported JSON schema: {reason}")]
    Schema {
        /// The keyword or its position, and the cause.
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
    /// An invalid Lark grammar.
    #[error("invalid Lark grammar: {reason}")]
    Lark {
        /// Line, column and cause.
        reason: String,
    },
    /// An invalid regular expression.
    #[error("invalid regular expression: {reason}")]
    Regex {
        /// The cause.
        reason: String,
    },
    /// A valid grammar that exceeds the limits on compile time or memory.
    #[error("the grammar is too complex: {reason}")]
    TooComplex {
        /// The exceeded limit.
        reason: String,
    },
    /// The parameter schema of a tool is invalid or not supported.
    #[error("the parameters of tool '{name}': {source}")]
    Tool {
        /// Name of the tool.
        name: String,
        /// The cause.
        source: Box<Error>,
    },
    /// The call format cannot express the name of a tool.
    #[error("invalid tool name {name:?}: use 1 to 128 letters, digits, '_', '-', '.' and ':'")]
    ToolName {
        /// The name.
        name: String,
    },
    /// Tool calls are requested, but no tool matches.
    #[error("{reason}")]
    NoTool {
        /// The missing tool.
        reason: String,
    },
    /// A choice with an empty list of texts.
    #[error("a choice needs at least one text")]
    NoChoice,
}
