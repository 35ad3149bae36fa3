//! `run` and `chat` within JSON schemas and grammars, on the built-in model.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn thermocline(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
    command
        .env_clear()
        .env("THERMOCLINE_ARG_BACKEND", "cpu")
        .env("THERMOCLINE_ARG_AUTO_PROFILE", "off");
    command.args(args).stdin(Stdio::null()).output().unwrap()
}

#[track_caller]
fn text_of(args: &[&str]) -> String {
    let output = thermocline(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

const CAT: &str = r#"{
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 10},
        "age": {"type": "integer", "minimum": 0, "maximum": 20},
        "toys": {"type": "array", "items": {"enum": ["ball", "bell"]}, "maxItems": 2}
    },
    "required": ["name", "age", "toys"],
    "additionalProperties": false
}"#;

#[track_caller]
fn check_cat(text: &str) {
    let cat: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{text:?}: {e}"));
    assert!(cat["name"].as_str().is_some_and(|name| name.chars().count() <= 10), "{cat}");
    assert!(cat["age"].as_u64().is_some_and(|age| age <= 20), "{cat}");
    let toys = cat["toys"].as_array().unwrap();
    assert!(toys.len() <= 2 && toys.iter().all(|toy| toy == "ball" || toy == "bell"), "{cat}");
    assert_eq!(cat.as_object().unwrap().len(), 3);
}

#[test]
fn the_built_in_model_writes_json_for_a_schema() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), CAT).unwrap();
    let path = file.path().to_str().unwrap();
    let prompt = ["-p", "Tom is a cat.", "--no-display-prompt", "-n", "400"];
    for seed in ["1", "2", "3"] {
        let seeded = [&["run", "-s", seed][..], &prompt].concat();
        check_cat(&text_of(&[&seeded[..], &["-j", CAT]].concat()));
        check_cat(&text_of(&[&seeded[..], &["--temp", "1.5", "-jf", path]].concat()));
    }
    let chat = text_of(&["run", "--chat", "-p", "Who?", "-s", "1", "-n", "400", "-j", CAT]);
    check_cat(chat.trim());
}

#[test]
fn the_built_in_model_follows_a_grammar() {
    let run = |more: &[&str]| {
        text_of(
            &[&["run", "-p", "Is it?", "--no-display-prompt", "-n", "40", "-s", "4"][..], more]
                .concat(),
        )
    };
    let grammar = "root ::= (\"yes\" | \"no\") \", \" [a-c]{3} \".\"";
    let text = run(&["--grammar", grammar]);
    let words = text.trim_end().strip_suffix('.').and_then(|text| text.split_once(", ")).unwrap();
    assert!(["yes", "no"].contains(&words.0), "{text}");
    assert!(words.1.len() == 3 && words.1.chars().all(|c| "abc".contains(c)), "{text}");
    // The last of several constraints applies; here it names a grammar file.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "root ::= \"from a file\"\n").unwrap();
    let path = file.path().to_str().unwrap();
    let last = run(&["-j", "{}", "--grammar", grammar, "--grammar-file", path]);
    assert_eq!(last.trim_end(), "from a file");
    // Without a rule there is no grammar, as in llama.cpp.
    assert_ne!(run(&["--grammar", ""]), "");
}

#[test]
fn bad_grammars_are_named() {
    for (args, says) in [
        (["-j", "{"], "--json-schema is not JSON"),
        (["-j", r#"{"not": {}}"#], "the keyword 'not' is not supported"),
        (["-j", "[1]"], "the schema must be an object"),
        (["--grammar", "root ::= \"a\"\nb ::= c"], "at line 2: undefined rule 'c'"),
    ] {
        let output = thermocline(&[&["run", "-p", "x", "-n", "4"][..], &args].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(says) && !error.contains("panicked"), "{error}");
    }
    let output = thermocline(&["run", "-p", "x", "--grammar-file", "/nowhere/x.gbnf"]);
    assert_eq!(output.status.code(), Some(1), "a file that cannot be read");
}
