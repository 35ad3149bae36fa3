//! Tests many JSON schemas: texts generated at random are valid, and invalid texts are rejected.

use std::time::Instant;

use serde_json::{Value, json};
use text::chat::{CallFormat, Tool};

use super::validate::is_valid;
use super::{VOCABULARY, check, compile, random_text, try_random_text};
use crate::{Error, Grammar, ToolCalls, ToolChoice};

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
        "required": ["name", "age"],
        "additionalProperties": false,
    })
}

fn schemas() -> Vec<Value> {
    vec![
        person(),
        json!({"type": "object"}),
        json!({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 4}),
        json!({"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "null"}], "items": false, "minItems": 2}),
        json!({"type": "array", "prefixItems": [{"const": 1}], "items": {"enum": ["a", "b"]}}),
        json!({"enum": ["red", 3, null, {"a": [1]}]}),
        json!({"const": {"kind": "x", "n": -1.5}}),
        json!({"type": ["string", "null", "boolean"]}),
        json!({"type": "string", "minLength": 2, "maxLength": 5}),
        json!({"type": "string", "pattern": "^[a-z]{2,4}-[0-9]+$"}),
        json!({"type": "string", "pattern": "b+"}),
        json!({"type": "string", "format": "date"}),
        json!({"type": "string", "format": "date-time"}),
        json!({"type": "string", "format": "time"}),
        json!({"type": "string", "format": "uuid"}),
        json!({"type": "string", "format": "ipv4"}),
        json!({"type": "string", "format": "email"}),
        json!({"type": "integer", "minimum": -7, "maximum": 120}),
        json!({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 6}),
        json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
        json!({"type": "number", "exclusiveMinimum": 12.5, "exclusiveMaximum": 13}),
        json!({"type": "integer", "multipleOf": 5}),
        json!({"type": "number", "minimum": 0.5, "maximum": 2.25}),
        json!({"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 100}),
        json!({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 3}]}),
        json!({"oneOf": [{"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"], "additionalProperties": false}, {"type": "object", "properties": {"k": {"const": "b"}, "v": {"type": "null"}}, "required": ["k", "v"], "additionalProperties": false}]}),
        json!({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]}),
        json!({"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 1, "maxProperties": 3}),
        json!({"type": "object", "patternProperties": {"^n_": {"type": "integer"}}, "additionalProperties": false}),
        json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["b"]}),
        json!({
            "$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}}, "required": ["v", "next"], "additionalProperties": false}},
            "$ref": "#/$defs/node",
        }),
        json!({"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}, "required": ["children"], "additionalProperties": false}),
        json!({"type": "object", "properties": {"a b\"é\n": {"const": "x\\"}}, "required": ["a b\"é\n"], "additionalProperties": false}),
        json!({"title": "T", "description": "D", "default": 1, "type": "integer", "minimum": 10, "maximum": 99, "examples": [11]}),
        json!({}),
    ]
}

#[test]
fn random_texts_are_valid() {
    let (mut n_finished, mut n_without) = (0, 0);
    for (i, schema) in schemas().iter().enumerate() {
        let grammar = Grammar::JsonSchema(schema.clone());
        let mut any = false;
        for seed in 0..6 {
            let constraint = compile(&grammar).unwrap_or_else(|e| panic!("{schema}: {e}"));
            let n_free = [4, 16, 40][seed as usize % 3];
            let Some(text) = random_text(&VOCABULARY, constraint, seed + 100 * i as u64, n_free)
            else {
                continue;
            };
            any = true;
            n_finished += 1;
            let value: Value = match serde_json::from_str(&text) {
                Ok(value) => value,
                // JSON allows numbers beyond the range of `f64`; skip these texts.
                Err(e) if e.to_string().contains("out of range") => continue,
                Err(e) => panic!("{schema}: {text}: {e}"),
            };
            assert!(is_valid(schema, schema, &value), "{schema}: {text}");
        }
        n_without += usize::from(!any);
    }
    assert!(n_finished >= 120, "{n_finished}");
    assert!(n_without <= 3, "{n_without} schemas without a finished text");
}

#[test]
fn invalid_texts_are_rejected() {
    let good = [r#"{"name": "Ada", "age": 36}"#, "{\"name\":\"\",\n  \"age\":0}"];
    let bad = [
        r#"{"name": "Ada"}"#,
        r#"{"name": 1, "age": 2}"#,
        r#"{"name": "", "age": -1}"#,
        r#"{"name": "", "age": 1, "x": 1}"#,
        "x",
        "",
    ];
    check(&Grammar::JsonSchema(person()), &good, &bad);
    check(&Grammar::JsonObject, &["{}", r#"{"a": [1, {"b": null}]}"#], &["[]", "1", "{", "{a: 1}"]);
    check(&Grammar::JsonSchema(Value::Bool(true)), &["1", "[null]"], &["x"]);
    check(&Grammar::Regex("[a-c]+x?".into()), &["abc", "ax"], &["x", "abd", ""]);
    check(
        &Grammar::Choice(vec!["yes".into(), "no\u{7f}\"".into()]),
        &["yes", "no\u{7f}\""],
        &["", "ye", "yesno"],
    );
    let lark = "start: greeting \" \" NAME\ngreeting: \"Hi\" | \"Hello\"\nNAME: /[A-Z][a-z]+/";
    check(&Grammar::Lark(lark.into()), &["Hi Bob", "Hello Eve"], &["Hi", "Hi bob"]);
}

#[test]
fn white_space_is_bounded() {
    let constraint = compile(&Grammar::JsonObject).unwrap();
    let long = format!("{{{}}}", " ".repeat(200));
    assert!(!super::accepts(&VOCABULARY, constraint, &long));
}

#[test]
fn unsupported_keywords_are_named() {
    for (schema, says) in [
        (json!({"type": "array", "uniqueItems": true}), "'uniqueItems'"),
        (json!({"not": {"type": "string"}}), "'not'"),
        (json!({"if": {}, "then": {}}), "'if'"),
        (json!({"type": "object", "propertyNames": {"pattern": "a"}}), "'propertyNames'"),
        (json!({"type": "array", "contains": {"const": 1}}), "'contains'"),
        (json!({"type": "string", "format": "klingon"}), "'klingon'"),
        (json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "'oneOf'"),
        (json!({"properties": {"a": {"dependentRequired": {"a": ["b"]}}}}), "'dependentRequired'"),
        (json!({"type": "object", "x-guidance": {"lenient": true}}), "'x-guidance'"),
        (json!({"$ref": "#/$defs/gone"}), "gone"),
        (json!({"$ref": "https://example.com/schema"}), "example.com"),
        (json!({"type": "colour"}), "colour"),
        (json!(false), "no value"),
        (json!([1]), "object"),
        (json!({"type": "integer", "minimum": 3, "maximum": 2}), ""),
        (json!({"type": "number", "exclusiveMinimum": 13, "maximum": 13.31}), "'exclusiveMinimum'"),
        (json!({"allOf": [{"exclusiveMaximum": 0}, {"minimum": -0.5}]}), "'exclusiveMaximum'"),
    ] {
        match compile(&Grammar::JsonSchema(schema.clone())) {
            Err(Error::Schema { reason }) => assert!(reason.contains(says), "{schema}: {reason}"),
            other => panic!("{schema}: {:?}", other.map(|_| ())),
        }
    }
}

/// Patterns whose automaton is too large are refused when the schema is compiled, not in the middle
/// of a text.
#[test]
fn patterns_that_exceed_the_limits_are_refused() {
    let words = r"^$|(^(?:\S+\s+){0,99}\S+$)";
    let long = json!({"type": "string", "pattern": words, "minLength": 1, "maxLength": 5000});
    let schemas = [
        json!({"type": "object", "properties": {"a": long}}),
        json!({"$defs": {"a": long}, "type": "array", "items": {"$ref": "#/$defs/a"}}),
    ];
    for schema in schemas {
        let refused = compile(&Grammar::JsonSchema(schema.clone())).map(|_| ()).unwrap_err();
        assert!(matches!(refused, Error::Schema { .. }), "{refused}");
        let says = refused.to_string();
        assert!(says.contains("'pattern'") && says.contains(words), "{says}");
        let tool = Tool { name: "f".into(), parameters: schema };
        let wanted = ToolCalls {
            format: CallFormat::Hermes,
            tools: vec![tool],
            choice: ToolChoice::Auto,
            parallel: true,
        };
        let refused = compile(&Grammar::ToolCalls(wanted)).map(|_| ()).unwrap_err();
        assert!(matches!(refused, Error::Tool { .. }), "{refused}");
    }
}

#[test]
fn tokens_that_are_not_allowed_are_refused() {
    let mut constraint = compile(&Grammar::Regex("a".into())).unwrap();
    let b = VOCABULARY.tokenizer().encode("b", false, false).unwrap();
    assert!(constraint.accept(*b.last().unwrap()).is_err());
    assert!(constraint.accept(u32::MAX).is_err());
    let a = super::tokenize_bytewise(VOCABULARY.tokenizer(), "a")[0];
    constraint.accept(a).unwrap();
    assert!(constraint.is_finished());
    let ends = constraint.allowed().unwrap();
    assert!(VOCABULARY.tokenizer().eog().iter().all(|id| ends.contains(*id)));
}

#[test]
fn other_end_tokens_are_allowed_at_the_end() {
    let vocabulary = VOCABULARY.with_ends(&[400]);
    let grammar = Grammar::Regex("a+".into());
    let mut constraint = vocabulary.compile(&grammar, &crate::Limits::default()).unwrap();
    assert!(!constraint.allowed().unwrap().contains(400));
    constraint.accept(super::tokenize_bytewise(VOCABULARY.tokenizer(), "a")[0]).unwrap();
    assert!(constraint.allowed().unwrap().contains(400));
    constraint.accept(400).unwrap();
    assert!(constraint.is_finished());
}

/// Prints the median time to compute a mask, for each schema.
#[test]
#[ignore = "prints times"]
fn mask_times() {
    let mut all = Vec::new();
    for schema in schemas() {
        let grammar = Grammar::JsonSchema(schema.clone());
        let start = Instant::now();
        compile(&grammar).unwrap();
        let compiled = start.elapsed();
        let mut times = mask_times_of(&grammar);
        times.sort_unstable();
        println!("{} ns per mask, compiled in {compiled:?}: {schema}", times[times.len() / 2]);
        all.extend(times);
    }
    all.sort_unstable();
    println!(
        "median of all masks: {} ns, 99 %: {} ns",
        all[all.len() / 2],
        all[all.len() * 99 / 100]
    );
}

/// Used by `scripts/check_json_schemas`: compiles the schemas of the JSON list in the file
/// `SCHEMAS`, and prints one line of JSON per schema with randomly generated texts.
#[test]
#[ignore = "reads a file of schemas"]
#[allow(clippy::disallowed_methods, reason = "the script has no other way to name the file")]
fn instances_of_a_file() {
    let schemas = std::fs::read(std::env::var("SCHEMAS").unwrap()).unwrap();
    let schemas: Vec<Value> = serde_json::from_slice(&schemas).unwrap();
    for (index, schema) in schemas.into_iter().enumerate() {
        let grammar = Grammar::JsonSchema(schema);
        let start = Instant::now();
        let compiled = compile(&grammar);
        let compile_us = start.elapsed().as_micros() as u64;
        let mut line = json!({"index": index, "compile_us": compile_us});
        match compiled {
            Err(error) => line["refused"] = error.to_string().into(),
            Ok(_) => {
                let mut texts = Vec::new();
                for seed in 0..4 {
                    let constraint = compile(&grammar).unwrap();
                    let n_free = 16 * (seed as usize + 1);
                    match try_random_text(&VOCABULARY, constraint, seed, n_free) {
                        Ok(text) => texts.extend(text),
                        Err(error) => line["limited"] = error.to_string().into(),
                    }
                }
                line["texts"] = texts.into();
                line["mask_ns"] = mask_times_of(&grammar).into();
            }
        }
        println!("\n@ {line}");
    }
}

/// Time to compute each mask of a random text, in nanoseconds.
fn mask_times_of(grammar: &Grammar) -> Vec<u64> {
    let mut constraint = compile(grammar).unwrap();
    let n_vocab = u32::try_from(VOCABULARY.tokenizer().n_vocab()).unwrap();
    let mut times = Vec::new();
    for n in 0..100usize {
        if constraint.is_finished() {
            break;
        }
        let start = Instant::now();
        let Ok(mask) = constraint.allowed() else { break };
        times.push(start.elapsed().as_nanos() as u64);
        let token = (0..n_vocab).filter(|id| mask.contains(*id)).nth(n * 7 % mask.len()).unwrap();
        constraint.accept(token).unwrap();
    }
    times
}
