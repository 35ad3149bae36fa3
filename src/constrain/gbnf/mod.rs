//! GBNF, the grammar format of llama.cpp, converted to Lark.
//!
//! GBNF describes a text character by character. Lark separates a lexer, which is fast and takes
//! the longest match, from a parser. So all parts of a grammar that a regular expression can
//! describe, that is, rules that do not refer to themselves, become terminals as large as possible;
//! the parser sees only recursive rules. Where a terminal stands before a recursive rule that could
//! begin with the same characters, the terminal takes them, unlike in llama.cpp.

mod parse;
mod write;

use text::tokenizer::Tokenizer;

use crate::{Error, Limits};

/// A grammar: rule 0 to n, some of them only referred to.
#[derive(Debug)]
struct Rules {
    rules: Vec<Rule>,
    /// Index of the rule `root`.
    root: usize,
}

#[derive(Debug)]
struct Rule {
    name: String,
    /// Line of its first use.
    line: usize,
    expr: Option<Expr>,
}

#[derive(Clone, Debug, PartialEq)]
enum Expr {
    Literal(String),
    /// One character of these ranges, or any other one.
    Class {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
    /// Any character.
    Any,
    /// One of these tokens of the vocabulary, or any other one.
    Token {
        negated: bool,
        ids: Vec<u32>,
    },
    Rule(usize),
    Sequence(Vec<Expr>),
    Alternatives(Vec<Expr>),
    /// At least, and at most if there is a limit.
    Repeat(Box<Expr>, u32, Option<u32>),
}

/// The grammar in Lark.
///
/// # Errors
/// [`Error::Gbnf`] with the line, [`Error::TooLarge`].
pub(crate) fn to_lark(text: &str, tokenizer: &Tokenizer, limits: &Limits) -> Result<String, Error> {
    let rules = parse::parse(text, tokenizer, limits)?;
    write::write(&rules)
}
