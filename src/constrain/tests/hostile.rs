//! Grammars that would take unbounded time fail with an error or finish in bounded time. None of
//! them panics.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use text::chat::{CallFormat, Tool};

use super::{VOCABULARY, compile};
use crate::{Grammar, ToolCalls, ToolChoice};

/// Compiles the grammar and computes some masks, and checks that this takes a bounded time.
fn compile_bounded(name: &str, grammar: &Grammar) -> Result<(), String> {
    let start = Instant::now();
    let result = compile(grammar).map_err(|e| e.to_string()).and_then(|mut constraint| {
        for n in 0..20u32 {
            if constraint.is_finished() {
                break;
            }
            let mask = constraint.allowed().map_err(|e| e.to_string())?;
            let mut ids = (0..u32::try_from(VOCABULARY.tokenizer().n_vocab()).unwrap())
                .filter(|id| mask.contains(*id));
            let token = ids.nth(n as usize % mask.len()).unwrap();
            constraint.accept(token).map_err(|e| e.to_string())?;
        }
        Ok(())
    });
    let took = start.elapsed();
    println!("{name}: {took:?}, {result:?}");
    assert!(took < Duration::from_secs(30), "{name}: {took:?}");
    if let Err(reason) = &result {
        assert!(!reason.contains("panic"), "{name}: {reason}");
    }
    result
}

fn nested(open: &str, inner: &str, close: &str, n: usize) -> String {
    open.repeat(n) + inner + &close.repeat(n)
}

#[test]
fn schemas_are_bounded() {
    let mut deep = json!({"type": "integer"});
    for _ in 0..100 {
        deep = json!({"type": "array", "items": deep});
    }
    let exponential: Vec<Value> = (0..40)
        .map(|n| {
            let next = format!("#/$defs/{}", n + 1);
            if n == 39 {
                json!({"type": "null"})
            } else {
                json!({"allOf": [{"$ref": next.clone()}, {"$ref": next}]})
            }
        })
        .collect();
    let exponential: serde_json::Map<String, Value> =
        exponential.into_iter().enumerate().map(|(n, schema)| (n.to_string(), schema)).collect();
    let wide: serde_json::Map<String, Value> =
        (0..500).map(|n| (format!("k{n}"), json!({"type": "string"}))).collect();
    let too_wide: serde_json::Map<String, Value> =
        (0..501).map(|n| (format!("k{n}"), json!(true))).collect();
    let keys: Vec<String> = (0..500).map(|n| format!("key-{n}")).collect();
    let cases = [
        ("deep", deep),
        (
            "references in a circle",
            json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
        ),
        ("a reference to itself in allOf", json!({"allOf": [{"$ref": "#"}]})),
        ("exponential references", json!({"$defs": exponential, "$ref": "#/$defs/0"})),
        (
            "many items",
            json!({"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000}),
        ),
        (
            "many items at most",
            json!({"type": "array", "items": {"type": "integer"}, "maxItems": 1_000_000_000u64}),
        ),
        ("long text", json!({"type": "string", "minLength": 1_000_000_000u64})),
        ("long text at most", json!({"type": "string", "maxLength": 1_000_000_000u64})),
        ("too wide", json!({"type": "object", "properties": too_wide})),
        ("wide", json!({"type": "object", "properties": wide})),
        ("many keys", json!({"type": "object", "required": keys})),
        ("pattern", json!({"type": "string", "pattern": "^(((a{1,100}){1,100}){1,100}){1,100}$"})),
        ("pattern with lookahead", json!({"type": "string", "pattern": "^(?=a)b$"})),
        (
            "patterns that overlap",
            json!({"type": "object", "patternProperties": {"a.*b.*c": true, ".*x.*y.*z.*": true, "(a|b)*c": true}}),
        ),
        ("multiple of a tiny number", json!({"type": "number", "multipleOf": 1e-300})),
        ("multiple of a large number", json!({"type": "integer", "multipleOf": 1_000_003})),
        (
            "coprime multiples",
            json!({"allOf": [{"type": "integer", "multipleOf": 9973}, {"multipleOf": 9967}]}),
        ),
        ("multiples", json!({"type": "integer", "multipleOf": 9973, "minimum": 3})),
        ("wrong types", json!({"type": 3, "properties": [], "items": "x"})),
        (
            "a long name with other characters",
            json!({"type": "integer", "minimum": "é".repeat(100)}),
        ),
    ];
    for (name, schema) in cases {
        let result = compile_bounded(name, &Grammar::JsonSchema(schema));
        let refused = ["multiple of a large number", "coprime multiples"].contains(&name);
        assert!(!refused || result.is_err(), "{name}");
        if ["deep", "too wide", "wrong types", "pattern with lookahead"].contains(&name) {
            assert!(result.is_err(), "{name}");
        }
    }
}

#[test]
fn regular_expressions_are_bounded() {
    for (name, regex) in [
        ("exponential", "(a|b)*a(a|b){60}".to_owned()),
        ("exponential with a bound", "(a|aa){1,1000}$".to_owned()),
        ("nested bounds", "(((a{1,1000}){1,1000}){1,1000}){1,1000}".to_owned()),
        ("deep", nested("(", "a", ")", 100_000)),
        ("deep within the limit of bytes", nested("(?:", "a", ")*", 20_000)),
        ("intersections", "[a-z]{1,500}[a-z]{1,500}[a-z]{1,500}x".to_owned()),
        ("unclosed", "(a".to_owned()),
        ("classes", r"\p{L}*\p{Lu}{50}\p{L}*".to_owned()),
        ("slashes", "a/b\\/c/".to_owned()),
        ("line breaks", "a\nb".to_owned()),
    ] {
        let result = compile_bounded(name, &Grammar::Regex(regex));
        if name.starts_with("deep") || name == "unclosed" {
            assert!(result.is_err(), "{name}");
        }
    }
}

#[test]
fn gbnf_is_bounded() {
    let chain = |n: usize| {
        (0..n).fold(String::from("root ::= r0\n"), |text, i| {
            text + &format!("r{i} ::= \"x\" r{}\n", i + 1)
        }) + &format!("r{n} ::= \"y\"")
    };
    let doubling = |n: usize| {
        (0..n).fold(String::from("root ::= r0\n"), |text, i| {
            text + &format!("r{i} ::= r{0} r{0}\n", i + 1)
        }) + &format!("r{n} ::= \"y\"")
    };
    let recursive = |n: usize| {
        (0..n).fold(String::from("root ::= r0\n"), |text, i| {
            text + &format!("r{i} ::= \"x\" r{} root?\n", i + 1)
        }) + &format!("r{n} ::= \"y\"")
    };
    for (name, text) in [
        ("deep", format!("root ::= {}", nested("(", "\"a\"", ")", 50_000))),
        ("many operators", format!("root ::= \"a\"{}", "*".repeat(50_000))),
        ("nested bounds", format!("root ::= {}", nested("(", "\"a\"", "){1,2000}", 30))),
        (
            "nested bounds of a recursive rule",
            "root ::= ((((\"a\" root? \"b\"){0,2000}){0,2000}){0,2000}){0,2000}".to_owned(),
        ),
        ("a long chain", chain(1_900)),
        ("a long chain of recursive rules", recursive(1_900)),
        ("too many rules", chain(3_000)),
        ("exponential size", doubling(60)),
        ("left recursion", "root ::= root \"a\" | \"b\"".to_owned()),
        ("a rule that is itself", "root ::= root".to_owned()),
        ("rules in a circle", "root ::= a\na ::= b\nb ::= a | root".to_owned()),
        ("nothing", "root ::= \"\"".to_owned()),
        ("nothing, repeated", "root ::= (\"\" | ()*)* x\nx ::= \"\"*".to_owned()),
        ("ambiguous", "root ::= a a a a a a\na ::= \"x\"* a? \"x\"*".to_owned()),
        ("zero repetitions", "root ::= \"a\"{0} \"b\"{0,0}".to_owned()),
    ] {
        let result = compile_bounded(name, &Grammar::Gbnf(text));
        if ["deep", "too many rules", "many operators"].contains(&name) {
            assert!(result.is_err(), "{name}");
        }
    }
}

#[test]
fn lark_is_bounded() {
    for (name, text) in [
        ("deep", format!("start: {}", nested("(", "\"a\"", ")", 50_000))),
        ("deep with line breaks", format!("start: {}", nested("(\n", "\"a\"", "\n)", 5_000))),
        (
            "a chain of terminals",
            (0..1_900).fold(String::from("start: T0\n"), |text, i| {
                text + &format!("T{i}: \"x\" T{}\n", i + 1)
            }) + "T1900: \"y\"",
        ),
        ("a terminal that is itself", "start: A\nA: \"x\" A".to_owned()),
        ("an import", "%import common.INT\nstart: INT".to_owned()),
        ("negation", "start: A\nA: ~(/a.*b.*c.*d/ | /x.*y.*z/) & /[a-z]{1,200}/".to_owned()),
        ("a schema with a keyword", "start: %json {\"not\": {}}".to_owned()),
        ("an unclosed schema", "start: %json {".to_owned()),
        (
            "a substring",
            format!("start: A\nA: %regex {{\"substring_chars\": \"{}\"}}", "ab".repeat(20_000)),
        ),
        ("empty", String::new()),
        ("no rule", "A: \"a\"".to_owned()),
    ] {
        let result = compile_bounded(name, &Grammar::Lark(text));
        if name.starts_with("deep") || ["empty", "no rule", "an unclosed schema"].contains(&name) {
            assert!(result.is_err(), "{name}");
        }
    }
}

#[test]
fn tools_are_checked() {
    let tool = |name: &str, parameters: Value| Tool { name: name.into(), parameters };
    let wanted = |tools: Vec<Tool>| {
        Grammar::ToolCalls(ToolCalls {
            format: CallFormat::Hermes,
            tools,
            choice: ToolChoice::Required,
            parallel: true,
        })
    };
    for name in ["", "a b", "a\"b", "a<b", &"x".repeat(200)] {
        assert!(compile(&wanted(vec![tool(name, Value::Null)])).is_err(), "{name}");
    }
    let bad = compile(&wanted(vec![
        tool("good", Value::Null),
        tool("bad", json!({"type": "object", "not": {}})),
    ]));
    let message = bad.unwrap_err().to_string();
    assert!(message.contains("tool 'bad'"), "{message}");
    let many = (0..400).map(|n| {
        tool(
            &format!("tool_{n}"),
            json!({"type": "object", "properties": {"a": {"type": "string"}}}),
        )
    });
    compile_bounded("many tools", &wanted(many.collect())).unwrap();
    let too_many = (0..4_000).map(|n| tool(&format!("tool_{n}"), Value::Null));
    assert!(compile(&wanted(too_many.collect())).is_err());
    assert!(compile(&wanted(Vec::new())).is_err());
}
