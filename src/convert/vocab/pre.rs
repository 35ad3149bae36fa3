//! Finds the name of a pre-tokenizer from the steps in `tokenizer.json`.
//!
//! A GGUF file stores the name of a pre-tokenizer, `tokenizer.json` its steps. Only the steps
//! identify it, so a known tokenizer is recognised in a new model. Pre-tokenizers with the same
//! steps share one name.
//!
//! Source: `tokenizer.json` of the models with these names; names as in llama.cpp.

use serde_json::Value;

use crate::Error;
use crate::config::Json;

/// GPT-2's own pattern, which is built into the byte-level step.
const BYTES: &str = "bytes";
const DIGIT: &str = "digit";
const DIGITS: &str = "digits";
const PUNCTUATION: &str = "punctuation";

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const BAILING: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const SEED: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const EXAONE_MOE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";
const MINICPM5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const HAN_KANA: &str = "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+";

/// Names of pre-tokenizers and their steps.
const NAMES: &[(&str, &[&str])] = &[
    ("gpt-2", &[BYTES]),
    ("gpt-2", &[GPT2]),
    ("starcoder", &[DIGIT, BYTES]),
    ("falcon", &[PUNCTUATION, BYTES, DIGITS, "[0-9][0-9][0-9]"]),
    ("smaug-bpe", &[LLAMA3]),
    ("qwen2", &[QWEN2]),
    ("qwen35", &[QWEN35]),
    ("tekken", &[TEKKEN]),
    ("gpt-4o", &[GPT4O]),
    ("deepseek-v3", &[r"\p{N}{1,3}", HAN_KANA, DEEPSEEK3]),
    ("bailingmoe2", &[BAILING]),
    ("seed-coder", &[SEED]),
    ("exaone-moe", &[EXAONE_MOE]),
    ("minicpm5", &[r"\p{N}{1,3}", MINICPM5]),
];

/// The name of the pre-tokenizer of `json`; `whole_words` is its model's `ignore_merges`.
pub(super) fn name(json: &Json, whole_words: bool) -> Result<&'static str, Error> {
    let Some(root) = json.object("pre_tokenizer")? else {
        return Err(unknown_step(json, &["nothing".to_owned()]));
    };
    let mut steps = Vec::new();
    flatten(&Value::Object(root.clone()), 0, &mut steps);
    let known = NAMES.iter().find(|(_, known)| steps.iter().eq(known.iter()));
    match known.map(|(name, _)| *name).or_else(|| by_substring(&steps)) {
        // The same pattern has another name if words that equal tokens are not merged.
        Some("smaug-bpe") if whole_words => Ok("llama-bpe"),
        Some(name) => Ok(name),
        None => Err(unknown_step(json, &steps)),
    }
}

/// Identifies pre-tokenizers with long lists of characters by a unique substring of their steps;
/// `None` if no substring matches.
fn by_substring(steps: &[String]) -> Option<&'static str> {
    let has = |mark: &str| steps.iter().any(|step| step.contains(mark));
    let is_last = |name: &str| steps.last().is_some_and(|step| step == name);
    if steps.first().is_some_and(|step| step == r"[\r\n]") && is_last(DIGIT) {
        return if has(r"\s?\p{L}+") && has(r"\s?\p{P}+") {
            Some("deepseek-coder")
        } else if has(r"\s?[A-Za-z\u{b5}") || has("\\s?[A-Za-z\u{b5}") {
            Some("deepseek-llm")
        } else {
            None
        };
    }
    if has(r"\s{512}(?!\S)") {
        return Some("jais-2");
    }
    if has(" ?[^(\\s|[.,!?\u{2026}") {
        return Some(if has(DIGIT) { "viking" } else { "bloom" });
    }
    None
}

/// Appends the steps of `value` in order, each as its pattern or as one of the constants above. A
/// `Sequence` nested deeper than 8 levels counts as an unknown step.
fn flatten(value: &Value, depth: usize, steps: &mut Vec<String>) {
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    let is = |key: &str, default: bool| value.get(key).and_then(Value::as_bool).unwrap_or(default);
    match text("type").unwrap_or_default() {
        "Sequence" if depth < 8 => {
            for inner in value.get("pretokenizers").and_then(Value::as_array).into_iter().flatten()
            {
                flatten(inner, depth + 1, steps);
            }
        }
        "ByteLevel" if is("use_regex", true) => steps.push(BYTES.to_owned()),
        // Without its own pattern, this step changes only the alphabet.
        "ByteLevel" => {}
        "Digits" => {
            steps.push(if is("individual_digits", false) { DIGIT } else { DIGITS }.to_owned())
        }
        "Punctuation" => steps.push(PUNCTUATION.to_owned()),
        "Split" => {
            let pattern = value.get("pattern");
            let part = |key: &str| pattern.and_then(|pattern| pattern.get(key)?.as_str());
            let pattern = part("Regex").or(part("String")).unwrap_or("?");
            // Some files have the characters, others their names.
            steps.push(pattern.replace('\r', r"\r").replace('\n', r"\n"));
        }
        other => steps.push(other.to_owned()),
    }
}

fn unknown_step(json: &Json, steps: &[String]) -> Error {
    let found: String = steps.join(", then ").chars().take(400).collect();
    Error::PreTokenizer { file: json.file().to_owned(), found }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_of(pre: &str, whole_words: bool) -> Result<&'static str, Error> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        std::fs::write(&path, format!(r#"{{"pre_tokenizer": {pre}}}"#)).unwrap();
        name(&Json::open(&path).unwrap(), whole_words)
    }

    fn split(regex: &str) -> String {
        let pattern = serde_json::json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated"});
        let bytes = serde_json::json!({"type": "ByteLevel", "use_regex": false});
        serde_json::json!({"type": "Sequence", "pretokenizers": [pattern, bytes]}).to_string()
    }

    #[test]
    fn pre_tokenizer_steps_give_the_name() {
        assert_eq!(name_of(&split(QWEN2), false).unwrap(), "qwen2");
        assert_eq!(name_of(&split(LLAMA3), true).unwrap(), "llama-bpe");
        assert_eq!(name_of(&split(LLAMA3), false).unwrap(), "smaug-bpe");
        assert_eq!(
            name_of(r#"{"type": "ByteLevel", "add_prefix_space": false}"#, false).unwrap(),
            "gpt-2"
        );
        let falcon = r#"{"type": "Sequence", "pretokenizers": [{"type": "Punctuation", "behavior": "Contiguous"},
            {"type": "ByteLevel"}, {"type": "Digits", "individual_digits": false},
            {"type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"}}]}"#;
        assert_eq!(name_of(falcon, false).unwrap(), "falcon");
    }

    #[test]
    fn line_ends_are_recognised_as_characters_and_by_name() {
        assert_eq!(name_of(&split(SEED), false).unwrap(), "seed-coder");
        let characters = SEED.replace(r"\r", "\r").replace(r"\n", "\n");
        assert_eq!(name_of(&split(&characters), false).unwrap(), "seed-coder");
        for (pattern, name) in [(BAILING, "bailingmoe2"), (EXAONE_MOE, "exaone-moe")] {
            assert_eq!(name_of(&split(pattern), false).unwrap(), name);
        }
    }

    #[test]
    fn unknown_steps_are_in_the_error() {
        let error = name_of(&split("never seen"), false).unwrap_err();
        assert!(error.to_string().contains("never seen"), "{error}");
        assert!(name_of("null", false).is_err());
    }
}
