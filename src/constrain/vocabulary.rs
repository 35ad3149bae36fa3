//! A tokenizer's vocabulary as a trie of bytes, and the compilation of grammars for it.

use std::fmt;
use std::sync::Arc;

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Logger, Matcher, ParserFactory};
use serde_json::{Value, json};
use text::sample::Constraint;
use text::tokenizer::{TokenType, Tokenizer};

use crate::matched::Matched;
use crate::{Error, Grammar, Limits, calls, gbnf};

/// The longest token that a trie holds; longer ones are never allowed.
const LONGEST_TOKEN: usize = 1000;
/// Bytes of all tokens: the trie's offsets have 22 bits.
const MOST_BYTES: usize = (1 << 22) - 2;
/// Stack of the thread that compiles: rules that refer to each other are compiled recursively, and
/// [`Limits::n_rules`] limits how deeply.
const STACK: usize = 256 << 20;

/// White space between the tokens of JSON, as llama.cpp allows it: enough to indent, and bounded, so
/// that a model cannot continue with white space forever.
const JSON_SPACE: &str = r" |\n{1,2}[ \t]{0,20}";

/// The largest common multiple of the digits of all `multipleOf`: a regular expression for it has
/// as many states.
const MOST_MULTIPLE: u64 = 10_000;

/// A tokenizer's vocabulary, prepared for constraints. Cheap to clone.
#[derive(Clone)]
pub struct Vocabulary {
    shared: Arc<Shared>,
    /// Tokens that end a text besides the tokenizer's own.
    ends: Arc<[u32]>,
}

struct Shared {
    tokenizer: Arc<Tokenizer>,
    factory: ParserFactory,
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n_vocab = self.shared.tokenizer.n_vocab();
        f.debug_struct("Vocabulary").field("n_vocab", &n_vocab).finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// Builds the trie: about 0.2 seconds for 150 000 tokens. Control tokens are not text: only
    /// grammars that name them allow them.
    ///
    /// # Errors
    /// [`Error::Vocabulary`] for more than 4 MB of tokens.
    pub fn new(tokenizer: &Arc<Tokenizer>) -> Result<Vocabulary, Error> {
        let n_vocab = tokenizer.n_vocab();
        let words: Vec<Vec<u8>> = (0u32..).take(n_vocab).map(|id| word(tokenizer, id)).collect();
        let n_bytes: usize = words.iter().map(Vec::len).sum();
        if n_bytes > MOST_BYTES || n_vocab >= 1 << 24 {
            let reason =
                format!("{n_vocab} tokens with {n_bytes} bytes, the limit is {MOST_BYTES}");
            return Err(Error::Vocabulary { reason });
        }
        let eog = tokenizer.eog();
        let first = eog.first().copied().unwrap_or(llguidance::toktrie::INVALID_TOKEN);
        #[allow(clippy::cast_possible_truncation)] // below 1 << 24, as checked
        let info = TokRxInfo::new(n_vocab as u32, first);
        let mut trie = TokTrie::from(&info, &words);
        if eog.len() > 1 {
            trie = trie.with_eos_tokens(eog);
        }
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::general_slices();
        let factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices);
        let factory =
            factory.map_err(|e| Error::Vocabulary { reason: first_line(&e.to_string()) })?;
        let shared = Arc::new(Shared { tokenizer: Arc::clone(tokenizer), factory });
        Ok(Vocabulary { shared, ends: Arc::new([]) })
    }

    /// The same vocabulary with further tokens that end a text, such as a template's end of a turn.
    #[must_use]
    pub fn with_ends(&self, ends: &[u32]) -> Vocabulary {
        let own = self.tokenizer().eog();
        let ends = ends.iter().copied().filter(|id| !own.contains(id)).collect();
        Vocabulary { shared: Arc::clone(&self.shared), ends }
    }

    /// The tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.shared.tokenizer
    }

    /// Tokens that end a text besides the tokenizer's own.
    pub(crate) fn ends(&self) -> &Arc<[u32]> {
        &self.ends
    }

    /// All tokens that end a text.
    pub(crate) fn all_ends(&self) -> Vec<u32> {
        [self.tokenizer().eog(), &self.ends].concat()
    }

    /// The constraint of one text. Compiling takes about a millisecond for a usual schema; the
    /// limits bound it for any other.
    ///
    /// # Errors
    /// [`Error`], with the keyword of a schema or the line of a grammar.
    pub fn compile(
        &self,
        grammar: &Grammar,
        limits: &Limits,
    ) -> Result<Box<dyn Constraint>, Error> {
        let top = match grammar {
            Grammar::JsonObject => json_grammar(&json!({"type": "object"}), limits)?,
            Grammar::JsonSchema(schema) => json_grammar(schema, limits)?,
            Grammar::Regex(regex) => {
                check_size("regular expression", regex, limits)?;
                TopLevelGrammar::from_regex(regex)
            }
            Grammar::Gbnf(text) => {
                check_size("GBNF grammar", text, limits)?;
                TopLevelGrammar::from_lark(gbnf::to_lark(text, self.tokenizer(), limits)?)
            }
            Grammar::Lark(text) => {
                check_size("Lark grammar", text, limits)?;
                check_lark(text, limits)?;
                TopLevelGrammar::from_lark(text.clone())
            }
            Grammar::Choice(texts) => TopLevelGrammar::from_lark(choice(texts, limits)?),
            Grammar::ToolCalls(wanted) => return calls::compile(self, wanted, limits),
        };
        let matcher = self.matcher(top, limits).map_err(|reason| named(grammar, reason))?;
        Ok(Box::new(Matched::new(self, matcher)))
    }

    /// The constraint of a grammar that was written by this crate.
    pub(crate) fn compile_lark(&self, lark: String, limits: &Limits) -> Result<Matched, String> {
        let matcher = self.matcher(TopLevelGrammar::from_lark(lark), limits)?;
        Ok(Matched::new(self, matcher))
    }

    /// Compiles on a thread with a large stack.
    fn matcher(&self, grammar: TopLevelGrammar, limits: &Limits) -> Result<Matcher, String> {
        let limits = ParserLimits {
            initial_lexer_fuel: limits.compile_fuel,
            step_lexer_fuel: limits.mask_fuel,
            step_max_items: limits.mask_items,
            max_lexer_states: limits.n_lexer_states,
            max_grammar_size: limits.n_symbols,
            max_items_in_row: 8_000,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        let compile = || {
            let init = GrammarInit::Serialized(grammar);
            let (logger, able) = (Logger::new(0, 0), InferenceCapabilities::default());
            let parser =
                self.shared.factory.create_parser_from_init_ext(init, logger, able, limits);
            parser.map_err(|e| compiler_message(&e.to_string()))
        };
        let parser = std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().name("grammar".into()).stack_size(STACK);
            let thread = builder.spawn_scoped(scope, compile).map_err(|e| e.to_string())?;
            thread.join().unwrap_or_else(|_| Err("the compiler failed".into()))
        })?;
        Ok(Matcher::new(Ok(parser)))
    }
}

/// The bytes of a token for the trie; empty for a token that no grammar may allow.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.piece(id, true).unwrap_or_default();
    if bytes.len() > LONGEST_TOKEN {
        return Vec::new();
    }
    match tokenizer.kind(id) {
        Ok(TokenType::Control | TokenType::Unknown) => {
            [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat()
        }
        _ => bytes.to_vec(),
    }
}

/// An error of the compiler as the error of this grammar.
fn named(grammar: &Grammar, reason: String) -> Error {
    if let Some(reason) = too_complex(&reason) {
        return Error::TooComplex { reason };
    }
    match grammar {
        Grammar::JsonObject | Grammar::JsonSchema(_) => Error::Schema { reason: keyword(&reason) },
        Grammar::Regex(_) => Error::Regex { reason: without_place(&reason).to_owned() },
        Grammar::Lark(_) => Error::Lark { reason },
        Grammar::Gbnf(_) | Grammar::Choice(_) | Grammar::ToolCalls(_) => {
            Error::TooComplex { reason: without_place(&reason).to_owned() }
        }
    }
}

/// The reason, if the compiler gave up because of a limit.
pub(crate) fn too_complex(reason: &str) -> Option<String> {
    let limits =
        ["too large", "fuel", "too many", "too complex", "size limit", "too deep", "limit"];
    let reason = without_place(reason);
    limits.iter().any(|limit| reason.contains(limit)).then(|| reason.to_owned())
}

/// The compiler's message about a schema, in words that name the keyword.
pub(crate) fn keyword(reason: &str) -> String {
    let reason = without_place(reason);
    let reason = reason.strip_prefix("failed to compile JSON schema: ").unwrap_or(reason);
    if let Some(keys) = reason.strip_prefix("Unimplemented keys: ") {
        let keys = keys.trim_matches(['[', ']']).replace('"', "'");
        return format!("the keyword {keys} is not supported");
    }
    if let Some(format) = reason.strip_prefix("Unknown format: ") {
        return format!("the keyword 'format' does not support '{format}'");
    }
    if reason.starts_with("oneOf constraints") {
        return "the keyword 'oneOf' is supported only for alternatives that exclude each other; \
                use 'anyOf'"
            .into();
    }
    reason.to_owned()
}

/// Without the place in a grammar that the user has not written: `at 1(2): `.
fn without_place(reason: &str) -> &str {
    let Some((place, rest)) = reason.split_once(": ") else { return reason };
    let is_place = |c: char| c.is_ascii_digit() || "at ()".contains(c);
    if place.chars().all(is_place) { rest } else { reason }
}

/// A panic of the compiler on a value that it does not expect becomes an error here.
fn compiler_message(message: &str) -> String {
    if message.starts_with("panic") {
        return "the grammar compiler failed on a value in it".into();
    }
    match message.lines().find_map(|line| line.trim().strip_prefix("error: ")) {
        Some(cause) => format!("{} {cause}", first_line(message)),
        None => first_line(message),
    }
}

/// Messages continue with the parser's state or the source, and may quote a whole grammar.
fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().chars().take(300).collect()
}

fn check_size(what: &'static str, text: &str, limits: &Limits) -> Result<(), Error> {
    if text.len() > limits.n_bytes {
        let (found, limit) = (text.len(), limits.n_bytes);
        return Err(Error::TooLarge { what, found, limit, unit: "bytes" });
    }
    Ok(())
}

/// A schema for the compiler, which takes its options from the schema itself.
pub(crate) fn checked_schema(schema: &Value, limits: &Limits) -> Result<Value, Error> {
    let what = "JSON schema";
    let depth = depth(schema, limits.n_nested + 1);
    if depth > limits.n_nested {
        return Err(Error::TooLarge { what, found: depth, limit: limits.n_nested, unit: "levels" });
    }
    check_size(what, &schema.to_string(), limits)?;
    if multiples(schema, 1).is_none_or(|multiple| multiple > MOST_MULTIPLE) {
        let reason = format!(
            "the keyword 'multipleOf' is supported for numbers with a common multiple of digits up to {MOST_MULTIPLE}"
        );
        return Err(Error::Schema { reason });
    }
    let widest = widest(schema);
    if widest > limits.n_properties {
        let (found, limit) = (widest, limits.n_properties);
        return Err(Error::TooLarge { what, found, limit, unit: "properties in one object" });
    }
    let mut schema = match schema {
        Value::Object(keys) => keys.clone(),
        Value::Bool(true) => serde_json::Map::new(),
        Value::Bool(false) => {
            return Err(Error::Schema { reason: "false allows no value".into() });
        }
        Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            return Err(Error::Schema { reason: "it must be an object".into() });
        }
    };
    if schema.contains_key("x-guidance") {
        return Err(Error::Schema { reason: "the keyword 'x-guidance' is not supported".into() });
    }
    schema.insert("x-guidance".into(), json!({"whitespace_pattern": JSON_SPACE}));
    Ok(Value::Object(schema))
}

fn json_grammar(schema: &Value, limits: &Limits) -> Result<TopLevelGrammar, Error> {
    checked_schema(schema, limits).map(TopLevelGrammar::from_json_schema)
}

/// The largest number of keys in an object, or of names in `required`, of a value whose depth is
/// limited.
fn widest(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(widest).max().unwrap_or(0),
        Value::Object(keys) => {
            let required = keys.get("required").and_then(Value::as_array).map_or(0, Vec::len);
            let inner = keys.values().map(widest).max().unwrap_or(0);
            keys.len().max(required).max(inner)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// The least common multiple of `so_far` and the digits of all `multipleOf` in a value whose depth is
/// limited; `None` if it is too large.
fn multiples(value: &Value, so_far: u64) -> Option<u64> {
    match value {
        Value::Array(items) => items.iter().try_fold(so_far, |n, item| multiples(item, n)),
        Value::Object(keys) => keys.iter().try_fold(so_far, |n, (key, value)| {
            let Value::Number(number) = value else { return multiples(value, n) };
            if key != "multipleOf" {
                return Some(n);
            }
            let digits: String = number.to_string().chars().filter(char::is_ascii_digit).collect();
            let digits = digits.parse::<u64>().ok().filter(|digits| *digits <= MOST_MULTIPLE)?;
            let n = if digits == 0 { n } else { n / gcd(n, digits) * digits };
            Some(n).filter(|n| *n <= MOST_MULTIPLE)
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Some(so_far),
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Levels of a value, at most `most`. Without recursion beyond that.
fn depth(value: &Value, most: usize) -> usize {
    let inner: &mut dyn Iterator<Item = &Value> = match value {
        Value::Array(items) => &mut items.iter(),
        Value::Object(keys) => &mut keys.values(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return 1,
    };
    match most {
        0 | 1 => 1,
        _ => 1 + inner.map(|value| depth(value, most - 1)).max().unwrap_or(0),
    }
}

/// The compiler follows brackets and rules recursively: both are limited before.
fn check_lark(text: &str, limits: &Limits) -> Result<(), Error> {
    let what = "Lark grammar";
    // Brackets in strings count too: the check is about the worst case.
    let (mut open, mut deepest) = (0usize, 0);
    for c in text.chars() {
        match c {
            '(' | '[' | '{' => open += 1,
            ')' | ']' | '}' => open = open.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(open);
    }
    if deepest > limits.n_nested {
        return Err(Error::TooLarge {
            what,
            found: deepest,
            limit: limits.n_nested,
            unit: "levels",
        });
    }
    let n_lines = text.lines().filter(|line| line.contains(':')).count();
    if n_lines > limits.n_rules {
        return Err(Error::TooLarge { what, found: n_lines, limit: limits.n_rules, unit: "rules" });
    }
    Ok(())
}

fn choice(texts: &[String], limits: &Limits) -> Result<String, Error> {
    if texts.is_empty() {
        return Err(Error::NoChoice);
    }
    let alternatives: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
    let lark = format!("start: CHOICE\nCHOICE: {}\n", alternatives.join(" | "));
    check_size("choice", &lark, limits)?;
    Ok(lark)
}

/// A text as a string of Lark.
pub(crate) fn quoted(text: &str) -> String {
    let json = Value::String(text.to_owned()).to_string();
    // Lark's strings exclude DEL, which JSON does not escape.
    json.replace('\u{7f}', "\\u007f")
}
