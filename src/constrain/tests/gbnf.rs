//! GBNF: the documented syntax, and grammars like those that llama.cpp publishes.

use super::{VOCABULARY, check, compile, random_text};
use crate::{Error, Grammar};

fn gbnf(text: &str) -> Grammar {
    Grammar::Gbnf(text.into())
}

/// JSON, in the style of llama.cpp's own grammar.
const JSON: &str = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# At most one level of white space.
ws ::= | " " | "\n" [ \t]{0,20}
"#;

#[test]
fn documented_syntax_is_accepted() {
    check(
        &gbnf("root ::= \"a\" b? # comment\nb ::= [x-z]+ | \"\\x41\\u00e9\\n\""),
        &["a", "axyz", "aAé\n"],
        &["", "b", "ax "],
    );
    check(&gbnf("root ::= (\"ab\" | \"c\"){2,3}"), &["abc", "ccc", "abab"], &["ab", "abcabc"]);
    check(&gbnf("root ::= [a]{2} [b]{1,} [c]*"), &["aab", "aabbcc"], &["aac", "aaab"]);
    check(
        &gbnf("root ::= [^a-c\\]]{3}"),
        &["]de".replace(']', "x").as_str(), "d\nf"],
        &["dea", "d]e"],
    );
    check(&gbnf("root ::= . .\n"), &["ab", "\n\n", "éß"], &["a", "abc"]);
    check(&gbnf("root ::= \"yes\"\n  | \"no\"\r\n"), &["yes", "no"], &["yesno"]);
    check(&gbnf("root::=[a-]+"), &["a-a"], &["b"]);
}

#[test]
fn recursive_rules_match() {
    check(&gbnf("root ::= \"(\" root \")\" | \"x\""), &["x", "((x))"], &["(x", "()"]);
    let sum = "root ::= term ([-+] term)*\nterm ::= num | \"(\" root \")\"\nnum ::= [0-9]+";
    check(&gbnf(sum), &["1", "12+(3-4)", "((7))"], &["1+", "(1", "1)"]);
    let list = "root ::= item+\nitem ::= \"- \" [^\\n]+ \"\\n\" (\"  \" item)?";
    check(&gbnf(list), &["- a\n", "- a\n  - b\n- c\n"], &["- \n", "a\n"]);
    let json = gbnf(JSON);
    let good = [r#"{"a": [1, -2.5e3, "x\n"], "b": {}}"#, "{}", "{\"k\":\n\ttrue}"];
    check(&json, &good, &[r#"{"a": 01}"#, "[]", r#"{"a": "#, r#"{a: 1}"#]);
}

/// Chess moves, in the style of llama.cpp's example.
const CHESS: &str = r#"
root ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move ::= (pawn | nonpawn | castle) [+#]?
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
castle ::= "O-O" "-O"?
"#;

#[test]
fn chess_moves_match() {
    check(
        &gbnf(CHESS),
        &["1. e4 e5\n2. Nf3 Nc6\n", "1. d4 d5\n2. O-O-O exd8=Q+\n"],
        &["1. e4\n", "1. e9 e5\n2. a1 a1\n"],
    );
}

#[test]
fn random_texts_of_the_json_grammar_are_json() {
    for seed in 0..20 {
        let constraint = compile(&gbnf(JSON)).unwrap();
        let Some(text) = random_text(&VOCABULARY, constraint, seed, 60) else { continue };
        let parsed = serde_json::from_str::<serde_json::Value>(&text);
        // The grammar also allows unpaired surrogates and numbers out of range, which the parser
        // rejects.
        let fine = parsed.as_ref().is_ok_and(serde_json::Value::is_object)
            || parsed.as_ref().is_err_and(|e| {
                !e.is_eof() && text.contains(r"\u") || e.to_string().contains("range")
            });
        assert!(fine, "{text}: {parsed:?}");
    }
}

#[test]
fn grammars_may_name_tokens() {
    let vocabulary = super::vocabulary(&["<think>", "</think>"]);
    let limits = crate::Limits::default();
    let grammar = gbnf("root ::= <think> !</think>* </think> [a-z]+ | <[301]>");
    let accepts =
        |text| super::accepts(&vocabulary, vocabulary.compile(&grammar, &limits).unwrap(), text);
    assert!(accepts("<think>Any 12 text\n</think>abc"));
    assert!(accepts("</think>"));
    assert!(!accepts("<think>abc"));
    assert!(!accepts("<think></think>1"));
}

#[test]
fn errors_name_the_line() {
    for (text, line, says) in [
        ("", 1, "no rule 'root'"),
        ("root ::= \"a\"\nb ::= c", 2, "undefined rule 'c'"),
        ("root ::= \"a", 1, "expected '\"'"),
        ("root ::= [a", 1, "expected ']'"),
        ("root ::= [z-a]", 1, "is empty"),
        ("root ::= []", 1, "matches no character"),
        ("root ::= \"\\q\"", 1, "unknown escape '\\q'"),
        ("root ::= \"\\ud800\"", 1, "not a character"),
        ("\n\nroot := \"a\"", 3, "'::='"),
        ("root ::= (\"a\"", 1, "')'"),
        ("root ::= \"a\"{3,2}", 1, "smaller"),
        ("root ::= \"a\"{9999}", 1, "9999 repetitions"),
        ("root ::= \"a\" %", 1, "expected a line break"),
        ("root ::= \"a\"\nroot ::= \"b\"", 2, "defined twice"),
        ("root ::= <nothing>", 1, "no token <nothing>"),
    ] {
        match compile(&gbnf(text)) {
            Err(Error::Gbnf { line: found, reason }) => {
                assert_eq!(found, line, "{text:?}: {reason}");
                assert!(reason.contains(says), "{text:?}: {reason}");
            }
            other => panic!("{text:?}: {:?}", other.map(|_| ())),
        }
    }
}
