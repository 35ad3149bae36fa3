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

use crate::matched::GrammarConstraint;
use crate::{Error, Grammar, Limits, calls, gbnf, patterns};

/// Maximum length of a token in the trie, in bytes. Longer tokens are never allowed.
const LONGEST_TOKEN: usize = 1000;
/// Maximum number of bytes of all tokens: offsets in the trie have 22 bits.
const MAX_BYTES: usize = (1 << 22) - 2;
/// Stack size of the compiler's thread, in bytes. Rules that refer to each other are compiled
/// recursively, up to a depth of [`Limits::n_rules`].
const STACK: usize = 256 << 20;

/// White space between JSON tokens, as in llama.cpp: enough for indentation, but bounded, so that a
/// model cannot generate white space forever.
const JSON_SPACE: &str = r" |\n{1,2}[ \t]{0,20}";

/// Limit on the least common multiple of all `multipleOf` values, without their decimal points.
/// The number of states of the regular expression is proportional to this multiple.
const MAX_MULTIPLE: u64 = 10_000;

/// A tokenizer's vocabulary, prepared for constraints. Cheap to clone.
#[derive(Clone)]
pub struct Vocabulary {
    shared: Arc<Shared>,
    /// Tokens that end a text, in addition to the end-of-generation tokens.
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
    /// Builds the trie, which takes about 0.2 seconds for 150 000 tokens. Control tokens are not
    /// text: a grammar allows one only if it names the token.
    ///
    /// # Errors
    /// [`Error::Vocabulary`] for more than 4 MB of tokens.
    pub fn new(tokenizer: &Arc<Tokenizer>) -> Result<Vocabulary, Error> {
        let n_vocab = tokenizer.n_vocab();
        let words: Vec<Vec<u8>> =
            (0u32..).take(n_vocab).map(|id| token_bytes(tokenizer, id)).collect();
        let n_bytes: usize = words.iter().map(Vec::len).sum();
        if n_bytes > MAX_BYTES || n_vocab >= 1 << 24 {
            let reason =
                format!("its {n_vocab} tokens have {n_bytes} bytes; the limit is {MAX_BYTES}");
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

    /// The same vocabulary with additional tokens that end a text, such as a template's end of a
    /// turn.
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

    /// Tokens that end a text, in addition to the end-of-generation tokens.
    pub(crate) fn ends(&self) -> &Arc<[u32]> {
        &self.ends
    }

    pub(crate) fn all_ends(&self) -> Vec<u32> {
        [self.tokenizer().eog(), &self.ends].concat()
    }

    /// Compiles a grammar to a constraint for one text. This takes about a millisecond for most
    /// schemas, and the limits bound it for all others.
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
        let matcher =
            self.compile_matcher(top, limits).map_err(|reason| to_error(grammar, reason))?;
        if let Grammar::JsonSchema(schema) = grammar {
            patterns::check(self, schema, limits)?;
        }
        Ok(Box::new(GrammarConstraint::new(self, matcher)))
    }

    /// Compiles a Lark grammar that this crate wrote.
    pub(crate) fn compile_lark(
        &self,
        lark: String,
        limits: &Limits,
    ) -> Result<GrammarConstraint, String> {
        let matcher = self.compile_matcher(TopLevelGrammar::from_lark(lark), limits)?;
        Ok(GrammarConstraint::new(self, matcher))
    }

    /// Compiles on a thread with a large stack.
    pub(crate) fn compile_matcher(
        &self,
        grammar: TopLevelGrammar,
        limits: &Limits,
    ) -> Result<Matcher, String> {
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
fn token_bytes(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
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

/// Converts an error of the compiler to the variant for this kind of grammar.
fn to_error(grammar: &Grammar, reason: String) -> Error {
    if let Some(reason) = too_complex(&reason) {
        return Error::TooComplex { reason };
    }
    match grammar {
        Grammar::JsonObject | Grammar::JsonSchema(_) => Error::Schema { reason: keyword(&reason) },
        Grammar::Regex(_) => Error::Regex { reason: strip_position(&reason).to_owned() },
        Grammar::Lark(_) => Error::Lark { reason },
        Grammar::Gbnf(_) | Grammar::Choice(_) | Grammar::ToolCalls(_) => {
            Error::TooComplex { reason: strip_position(&reason).to_owned() }
        }
    }
}

/// The message about an exceeded limit; `None` if the compiler failed for another reason.
pub(crate) fn too_complex(reason: &str) -> Option<String> {
    let limits =
        ["too large", "fuel", "too many", "too complex", "size limit", "too deep", "limit"];
    let reason = strip_position(reason);
    limits.iter().any(|limit| reason.contains(limit)).then(|| reason.to_owned())
}

/// Rewords the compiler's message about a schema, so that it names the JSON keyword.
pub(crate) fn keyword(reason: &str) -> String {
    let reason = strip_position(reason);
    let reason = reason.strip_prefix("failed to compile JSON schema: ").unwrap_or(reason);
    if let Some(keys) = reason.strip_prefix("Unimplemented keys: ") {
        let keys = keys.trim_matches(['[', ']']).replace('"', "'");
        return format!("the keyword {keys} is not supported");
    }
    if let Some(format) = reason.strip_prefix("Unknown format: ") {
        return format!("the keyword 'format' does not support '{format}'");
    }
    if reason.starts_with("oneOf constraints") {
        return "the keyword 'oneOf' is supported only for alternatives of which only one can match; \
                use 'anyOf'"
            .into();
    }
    reason.to_owned()
}

/// The message without its position (`at 1(2): `), which refers to a generated grammar.
fn strip_position(reason: &str) -> &str {
    let Some((place, rest)) = reason.split_once(": ") else { return reason };
    let is_place = |c: char| c.is_ascii_digit() || "at ()".contains(c);
    if place.chars().all(is_place) { rest } else { reason }
}

/// The compiler's message for the user. The compiler also reports its own panics as errors.
fn compiler_message(message: &str) -> String {
    if message.starts_with("panic") {
        return "the grammar compiler failed on one of the values".into();
    }
    match message.lines().find_map(|line| line.trim().strip_prefix("error: ")) {
        Some(cause) => format!("{} {cause}", first_line(message)),
        None => first_line(message),
    }
}

/// The first line of a message. Later lines have the parser's state or quote the whole grammar.
pub(crate) fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().chars().take(300).collect()
}

fn check_size(what: &'static str, text: &str, limits: &Limits) -> Result<(), Error> {
    if text.len() > limits.n_bytes {
        let (found, limit) = (text.len(), limits.n_bytes);
        return Err(Error::TooLarge { what, found, limit, unit: "bytes" });
    }
    Ok(())
}

/// Checks a schema against the limits, and adds the compiler's options, which are part of a schema.
pub(crate) fn checked_schema(schema: &Value, limits: &Limits) -> Result<Value, Error> {
    let what = "JSON schema";
    let depth = depth(schema, limits.n_nested + 1);
    if depth > limits.n_nested {
        return Err(Error::TooLarge { what, found: depth, limit: limits.n_nested, unit: "levels" });
    }
    check_size(what, &schema.to_string(), limits)?;
    if lcm_of_multiples(schema, 1).is_none_or(|multiple| multiple > MAX_MULTIPLE) {
        let reason = format!(
            "the keyword 'multipleOf' is supported only if the least common multiple of all its values, without decimal points, is at most {MAX_MULTIPLE}"
        );
        return Err(Error::Schema { reason });
    }
    if let Some((keyword, bound, other)) = clashing_bounds(schema) {
        let reason = format!(
            "the keyword '{keyword}' with the whole number {bound} is not supported together with the bound {other}, which has the same integer part"
        );
        return Err(Error::Schema { reason });
    }
    let widest = max_properties(schema);
    if widest > limits.n_properties {
        let (found, limit) = (widest, limits.n_properties);
        return Err(Error::TooLarge { what, found, limit, unit: "properties in one object" });
    }
    let mut schema = match schema {
        Value::Object(keys) => keys.clone(),
        Value::Bool(true) => serde_json::Map::new(),
        Value::Bool(false) => {
            return Err(Error::Schema { reason: "the schema `false` allows no value".into() });
        }
        Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            return Err(Error::Schema { reason: "the schema must be an object".into() });
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

/// The largest number of keys of an object, or of names in `required`. The caller must have limited
/// the depth of `value`.
fn max_properties(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(max_properties).max().unwrap_or(0),
        Value::Object(keys) => {
            let required = keys.get("required").and_then(Value::as_array).map_or(0, Vec::len);
            let inner = keys.values().map(max_properties).max().unwrap_or(0);
            keys.len().max(required).max(inner)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// The least common multiple of `so_far` and all `multipleOf` values without their decimal points;
/// `None` if it is too large. The caller must have limited the depth of `value`.
fn lcm_of_multiples(value: &Value, so_far: u64) -> Option<u64> {
    match value {
        Value::Array(items) => items.iter().try_fold(so_far, |n, item| lcm_of_multiples(item, n)),
        Value::Object(keys) => keys.iter().try_fold(so_far, |n, (key, value)| {
            let Value::Number(number) = value else { return lcm_of_multiples(value, n) };
            if key != "multipleOf" {
                return Some(n);
            }
            let digits: String = number.to_string().chars().filter(char::is_ascii_digit).collect();
            let digits = digits.parse::<u64>().ok().filter(|digits| *digits <= MAX_MULTIPLE)?;
            let n = if digits == 0 { n } else { n / gcd(n, digits) * digits };
            Some(n).filter(|n| *n <= MAX_MULTIPLE)
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Some(so_far),
    }
}

/// Finds an exclusive bound that is a whole number and an opposite bound with the same integer
/// part. For such a pair, llguidance 1.9 wrongly allows the exclusive bound itself. Bounds anywhere
/// in the schema are compared, because `allOf`, `anyOf` and references can combine them. The caller
/// must have limited the depth of `schema`.
fn clashing_bounds(schema: &Value) -> Option<(&'static str, f64, f64)> {
    const OPPOSITE: [(&str, [&str; 2]); 2] = [
        ("exclusiveMinimum", ["maximum", "exclusiveMaximum"]),
        ("exclusiveMaximum", ["minimum", "exclusiveMinimum"]),
    ];
    OPPOSITE.into_iter().find_map(|(keyword, others)| {
        let mut bounds = Vec::new();
        numbers_of(schema, &[keyword], &mut bounds);
        let mut opposite = Vec::new();
        numbers_of(schema, &others, &mut opposite);
        let whole = bounds.into_iter().filter(|bound| bound.fract() == 0.0);
        let mut pairs = whole.flat_map(|bound| opposite.iter().map(move |other| (bound, *other)));
        let clash = pairs.find(|(bound, other)| bound.trunc() == other.trunc() && bound != other);
        clash.map(|(bound, other)| (keyword, bound, other))
    })
}

/// Adds the numeric values of these keywords, at any depth. The caller must have limited the depth
/// of `value`.
fn numbers_of(value: &Value, keywords: &[&str], found: &mut Vec<f64>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| numbers_of(item, keywords, found)),
        Value::Object(keys) => {
            for (key, value) in keys {
                found.extend(value.as_f64().filter(|_| keywords.contains(&key.as_str())));
                numbers_of(value, keywords, found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Nesting depth of a value, at most `most`; the recursion stops at that depth.
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

/// Limits the nesting of brackets and the number of rules, because the compiler recurses over both.
fn check_lark(text: &str, limits: &Limits) -> Result<(), Error> {
    let what = "Lark grammar";
    // Brackets in strings are counted too, so the depth may be overestimated.
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

/// The text as a Lark string literal.
pub(crate) fn quoted(text: &str) -> String {
    let json = Value::String(text.to_owned()).to_string();
    // Lark's strings exclude DEL, which JSON does not escape.
    json.replace('\u{7f}', "\\u007f")
}
