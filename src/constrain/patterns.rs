//! Checks that generating texts for the patterns in a JSON schema takes bounded work.

use std::collections::BTreeSet;

use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value};
use text::sample::Constraint;

use crate::matched::GrammarConstraint;
use crate::vocabulary::{first_line, too_complex};
use crate::{Error, Limits, Vocabulary};

/// Number of tokens of the text that is generated for each pattern.
const N_TOKENS: usize = 8;
/// Maximum number of patterns of one schema that are checked. A check takes about a millisecond,
/// that of a hostile pattern a quarter of a second.
const MAX_PATTERNS: usize = 32;
/// Multiplier of Knuth's linear congruential generator (MMIX).
const MULTIPLIER: u64 = 6_364_136_223_846_793_005;

/// Checks up to [`MAX_PATTERNS`] patterns of the schema. The compiler builds the automaton of a
/// pattern while a text is generated, so some patterns exceed [`Limits::mask_fuel`] at the first
/// characters of every text.
///
/// # Errors
/// [`Error::Schema`] with the first pattern that exceeds the limits.
pub(crate) fn check(vocabulary: &Vocabulary, schema: &Value, limits: &Limits) -> Result<(), Error> {
    let mut found = BTreeSet::new();
    collect(schema, &mut found);
    for text in found.into_iter().take(MAX_PATTERNS) {
        // The caller has compiled the whole schema, so an error here is not about a limit.
        let Ok(schema) = serde_json::from_str(&text) else { continue };
        let Ok(mut constraint) = compile(vocabulary, &schema, limits) else { continue };
        if let Err(reason) = generate(vocabulary, &mut constraint) {
            let Some(reason) = too_complex(&reason) else { continue };
            let pattern = schema.get("pattern").and_then(Value::as_str).unwrap_or_default();
            let pattern: String = pattern.chars().take(200).collect();
            let reason = format!(
                "the keyword 'pattern' with the value '{pattern}' is not supported, because a token would need more work than the limit ({}); use smaller repetition counts or no 'maxLength'",
                first_line(&reason)
            );
            return Err(Error::Schema { reason });
        }
    }
    Ok(())
}

/// Adds a schema for each `pattern` and each key of `patternProperties`. The caller must have
/// limited the depth of `value`.
fn collect(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
        Value::Object(keys) => {
            if keys.get("pattern").is_some_and(Value::is_string) {
                let of_string = ["pattern", "minLength", "maxLength", "format"];
                let copied = of_string.iter().filter_map(|key| keys.get_key_value(*key));
                let copied = copied.map(|(key, value)| (key.clone(), value.clone()));
                found.insert(string_schema(copied.collect()));
            }
            if let Some(Value::Object(patterns)) = keys.get("patternProperties") {
                for pattern in patterns.keys() {
                    let pattern = Value::String(pattern.clone());
                    found.insert(string_schema(
                        [("pattern".to_owned(), pattern)].into_iter().collect(),
                    ));
                }
            }
            keys.values().for_each(|value| collect(value, found));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn string_schema(mut keys: Map<String, Value>) -> String {
    keys.insert("type".into(), "string".into());
    Value::Object(keys).to_string()
}

fn compile(
    vocabulary: &Vocabulary,
    schema: &Value,
    limits: &Limits,
) -> Result<GrammarConstraint, String> {
    let grammar = TopLevelGrammar::from_json_schema(schema.clone());
    Ok(GrammarConstraint::new(vocabulary, vocabulary.compile_matcher(grammar, limits)?))
}

/// Generates the start of a text from pseudorandom tokens, which are always the same.
fn generate(vocabulary: &Vocabulary, constraint: &mut GrammarConstraint) -> Result<(), String> {
    let n_vocab = vocabulary.tokenizer().n_vocab();
    let mut state = 1u64;
    for _ in 0..N_TOKENS {
        if constraint.is_finished() {
            break;
        }
        let mask = constraint.allowed().map_err(|e| e.reason)?;
        state = state.wrapping_mul(MULTIPLIER).wrapping_add(1);
        #[allow(clippy::cast_possible_truncation)] // any index below the length will do
        let index = (state >> 33) as usize % mask.len();
        let token = (0u32..).take(n_vocab).filter(|id| mask.contains(*id)).nth(index);
        let Some(token) = token else { break };
        constraint.accept(token).map_err(|e| e.reason)?;
    }
    Ok(())
}
