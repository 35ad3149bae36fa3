//! GBNF, the grammar format of llama.cpp, converted to Lark.
//!
//! GBNF describes a text character by character. Lark separates a parser from a lexer, which is
//! fast and takes the longest match. Rules that a regular expression can describe (rules that do
//! not refer to themselves) therefore become terminals, as large as possible, and the parser sees
//! only recursive rules. If a terminal comes before a recursive rule that could begin with the same
//! characters, the terminal takes these characters, unlike in llama.cpp.

mod parse;
mod write;

use text::tokenizer::Tokenizer;

use crate::{Error, Limits};

/// The rules of a grammar. A rule that is used but not defined yet has no `expr`.
#[derive(Debug)]
struct Rules {
    rules: Vec<Rule>,
    /// Index of the rule `root`.
    root: usize,
}

#[derive(Debug)]
struct Rule {
    name: String,
    /// Line of the first use of the rule.
    line: usize,
    expr: Option<Expr>,
}

#[derive(Clone, Debug, PartialEq)]
enum Expr {
    Literal(String),
    /// One character in these ranges; if `negated`, one character outside of them.
    Class {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
    /// Any character.
    Any,
    /// One of these tokens; if `negated`, any other token of the vocabulary.
    Token {
        negated: bool,
        ids: Vec<u32>,
    },
    Rule(usize),
    Sequence(Vec<Expr>),
    Alternatives(Vec<Expr>),
    /// The expression, and how often it is repeated: minimum and maximum; `None` for no maximum.
    Repeat(Box<Expr>, u32, Option<u32>),
}

/// Converts the grammar to Lark.
///
/// # Errors
/// [`Error::Gbnf`] with the line, [`Error::TooLarge`].
pub(crate) fn to_lark(text: &str, tokenizer: &Tokenizer, limits: &Limits) -> Result<String, Error> {
    let rules = parse::parse(text, tokenizer, limits)?;
    write::write(&rules)
}
