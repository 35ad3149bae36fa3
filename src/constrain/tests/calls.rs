//! Tool calls: every text that a grammar allows is parsed as valid calls of the tools.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use text::chat::{CallDelta, CallFormat, CallParser, Reasoning, ReplyPart, Tool};

use super::validate::is_valid;
use super::{VOCABULARY, random_text, vocabulary};
use crate::{Error, Grammar, Limits, ToolCalls, ToolChoice, Vocabulary};

fn tools() -> Vec<Tool> {
    vec![
        Tool {
            name: "weather".into(),
            parameters: json!({
                "type": "object",
                "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
                "required": ["city"],
                "additionalProperties": false,
            }),
        },
        Tool {
            name: "log.note-1".into(),
            parameters: json!({
                "$defs": {"level": {"enum": ["low", "high"]}},
                "type": "object",
                "properties": {"level": {"$ref": "#/$defs/level"}, "urgent": {"type": "boolean"}},
                "required": ["level", "urgent"],
                "additionalProperties": false,
            }),
        },
    ]
}

fn calls(format: CallFormat, text: &str) -> Option<Vec<(String, Value)>> {
    let mut parser = CallParser::new(format, &tools(), 1);
    let mut deltas = Vec::new();
    let mut take = |part: ReplyPart, text: &str| {
        if part == ReplyPart::Answer {
            deltas.extend(parser.push(text));
        }
    };
    let mut reasoning = Reasoning::after("");
    reasoning.push(text, &mut take);
    reasoning.finish(&mut take);
    deltas.extend(parser.finish());
    let mut calls = Vec::new();
    for delta in deltas {
        match delta {
            CallDelta::Content(_) => return None,
            CallDelta::Begin { name, .. } => calls.push((name, String::new())),
            CallDelta::Arguments { index, fragment } => calls[index].1 += &fragment,
            CallDelta::End { .. } => {}
        }
    }
    calls.into_iter().map(|(name, text)| Some((name, serde_json::from_str(&text).ok()?))).collect()
}

/// The format's markers. gpt-oss also needs `<|call|>` and `<|return|>`: with them in the
/// vocabulary, `<|end|>` does not end the text.
fn marks(format: CallFormat) -> Vec<&'static str> {
    let is_harmony = format == CallFormat::Harmony;
    let more: &[&str] = if is_harmony { &["<|call|>", "<|return|>"] } else { &[] };
    [&format.marks(), more].concat()
}

fn wanted(format: CallFormat, choice: ToolChoice, parallel: bool) -> Grammar {
    Grammar::ToolCalls(ToolCalls { format, tools: tools(), choice, parallel })
}

/// Generates random texts and checks all calls in them. Returns the names of the called tools, and
/// the largest number of calls in a text.
fn check_random_texts(
    vocabulary: &Vocabulary,
    format: CallFormat,
    choice: &ToolChoice,
    parallel: bool,
    seeds: u64,
) -> (BTreeSet<String>, usize) {
    let (mut names, mut most) = (BTreeSet::new(), 0);
    for seed in 0..seeds {
        let grammar = wanted(format, choice.clone(), parallel);
        let constraint = vocabulary
            .compile(&grammar, &Limits::default())
            .unwrap_or_else(|e| panic!("{format:?}: {e}"));
        let Some(text) = random_text(vocabulary, constraint, seed, if parallel { 120 } else { 60 })
        else {
            continue;
        };
        let calls = calls(format, &text).unwrap_or_else(|| panic!("{format:?}: {text:?}"));
        most = most.max(calls.len());
        for (name, arguments) in calls {
            let tool = tools().into_iter().find(|tool| tool.name == name).unwrap();
            assert!(is_valid(&tool.parameters, &tool.parameters, &arguments), "{format:?}: {text}");
            names.insert(name);
        }
    }
    (names, most)
}

#[test]
fn every_allowed_text_is_a_call() {
    for format in CallFormat::ALL {
        for vocabulary in [VOCABULARY.clone(), vocabulary(&marks(format))] {
            let (names, most) =
                check_random_texts(&vocabulary, format, &ToolChoice::Required, false, 8);
            assert!(!names.is_empty() && most == 1, "{format:?}: {names:?}, {most}");
            let named = ToolChoice::Named("log.note-1".into());
            let (names, _) = check_random_texts(&vocabulary, format, &named, true, 4);
            assert_eq!(names.into_iter().collect::<Vec<_>>(), ["log.note-1"], "{format:?}");
        }
    }
}

#[test]
fn parallel_calls_must_be_enabled() {
    for format in CallFormat::ALL.into_iter().filter(|format| *format != CallFormat::Harmony) {
        let text = two_calls(format);
        let accepts = |parallel| {
            let grammar = wanted(format, ToolChoice::Required, parallel);
            let constraint = VOCABULARY.compile(&grammar, &Limits::default()).unwrap();
            super::accepts(&VOCABULARY, constraint, &text)
        };
        assert!(accepts(true), "{format:?}: {text}");
        assert!(!accepts(false), "{format:?}: {text}");
        assert_eq!(calls(format, &text).unwrap().len(), 2, "{format:?}");
    }
}

fn two_calls(format: CallFormat) -> String {
    let one = r#"{"name": "weather", "arguments": {"city": "Rome"}}"#;
    match format {
        CallFormat::Hermes => {
            format!("<tool_call>\n{one}\n</tool_call>\n<tool_call>\n{one}\n</tool_call>")
        }
        CallFormat::QwenXml => {
            let call = "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>";
            format!("{call}\n{call}")
        }
        CallFormat::Llama3 => {
            let one = one.replace("arguments", "parameters");
            format!("{one}; {one}")
        }
        CallFormat::Mistral => format!("[TOOL_CALLS] [{one}, {one}]"),
        CallFormat::MistralArgs => r#"[TOOL_CALLS]weather[ARGS]{"city": "Rome"}"#.repeat(2),
        CallFormat::Harmony => String::new(),
        CallFormat::DeepSeek => {
            let call = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Rome\"}\n```<｜tool▁call▁end｜>";
            format!("<｜tool▁calls▁begin｜>{call}\n{call}<｜tool▁calls▁end｜>")
        }
        CallFormat::DeepSeekPlain => {
            let call =
                "<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Rome\"}<｜tool▁call▁end｜>";
            format!("<｜tool▁calls▁begin｜>{call}{call}<｜tool▁calls▁end｜>")
        }
        CallFormat::Gemma => {
            let call = format!("```tool_code\n{one}\n```");
            format!("{call}\n{call}")
        }
        CallFormat::Generic => format!("{{\"tool_calls\": [{one}, {one}]}}"),
    }
}

#[test]
fn text_is_unconstrained_until_a_call() {
    for format in CallFormat::ALL {
        let grammar = wanted(format, ToolChoice::Auto, true);
        let compile = || VOCABULARY.compile(&grammar, &Limits::default()).unwrap();
        let accepts = |text: &str| {
            let mut constraint = compile();
            for id in super::tokenize_bytewise(VOCABULARY.tokenizer(), text) {
                if constraint.is_finished() || !constraint.allowed().unwrap().contains(id) {
                    return false;
                }
                constraint.accept(id).unwrap();
            }
            constraint.is_finished()
                || VOCABULARY
                    .tokenizer()
                    .eog()
                    .iter()
                    .any(|id| constraint.allowed().unwrap().contains(*id))
        };
        assert!(accepts("It rains. <tool {\"a\": 1} [TOOL ```tool to=func"), "{format:?}");
        assert!(accepts(""), "{format:?}");
        let call = if format == CallFormat::Harmony {
            "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Rome\"}".into()
        } else {
            two_calls(format)
        };
        assert!(accepts(&call), "{format:?}: {call}");
        assert!(!accepts(&call.replace("Rome", "Paris")), "{format:?}");
        if ![CallFormat::Llama3, CallFormat::Generic].contains(&format) {
            assert!(accepts(&format!("I look: {call}")), "{format:?}");
            assert!(
                !accepts(&format!("I look: {}", call.replace("weather", "nothing"))),
                "{format:?}"
            );
        }
    }
}

/// The values of string parameters in XML have no quotes, but obey their schemas.
#[test]
fn strings_in_xml_obey_their_schema() {
    let call = |schema: Value, text: &str| {
        let parameters = json!({"type": "object", "properties": {"a": schema}, "required": ["a"]});
        let tool = Tool { name: "f".into(), parameters };
        let grammar = Grammar::ToolCalls(ToolCalls {
            format: CallFormat::QwenXml,
            tools: vec![tool],
            choice: ToolChoice::Required,
            parallel: false,
        });
        let constraint = VOCABULARY.compile(&grammar, &Limits::default())?;
        let text = format!(
            "<tool_call>\n<function=f>\n<parameter=a>\n{text}\n</parameter>\n</function>\n</tool_call>"
        );
        Ok::<bool, Error>(super::accepts(&VOCABULARY, constraint, &text))
    };
    let word = json!({"type": "string", "minLength": 2, "maxLength": 4});
    let path = json!({"type": "string", "pattern": "^[a-z/]+$", "maxLength": 9});
    let inside = json!({"type": "string", "pattern": "b[^a]"});
    for (schema, text, expected) in [
        (&word, "ab", true),
        (&word, "abcd", true),
        (&word, "a", false),
        (&word, "abcde", false),
        (&path, "a/b", true),
        (&path, "A", false),
        (&path, "a/b/c/d/e/f", false),
        (&inside, "xx\nbc<", true),
        (&inside, "ba", false),
    ] {
        assert_eq!(call(schema.clone(), text).unwrap(), expected, "{schema}: {text}");
    }
    for pattern in ["^a|b$", "a^b", "(^a)"] {
        let refused = call(json!({"type": "string", "pattern": pattern}), "a").unwrap_err();
        assert!(refused.to_string().contains(pattern), "{refused}");
    }
}
