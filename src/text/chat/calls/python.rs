//! Gemma's `tool_code` blocks: a call in Python with literal arguments, or a JSON object.

use serde_json::{Map, Number, Value};

use super::body::{Sink, Step};
use super::envelope;

const FENCE: &str = "```";
/// Maximum nesting depth of literals.
const MAX_DEPTH: usize = 32;

/// Parses a code block; holds its text so far.
#[derive(Debug, Default)]
pub(super) struct CodeBlock {
    text: String,
}

impl CodeBlock {
    pub(super) fn step(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        self.text.push(c);
        let Some(code) = self.text.strip_suffix(FENCE) else { return Step::More };
        let code = code.trim();
        let calls = match serde_json::from_str(code) {
            Ok(value) => envelope::calls(&value, false),
            Err(_) => Python::new(code).calls(),
        };
        let known = calls.filter(|calls| calls.iter().all(|(name, _)| sink.knows(name)));
        let Some(calls) = known else {
            // A failed step must not consume the character.
            self.text.pop();
            return Step::Failed;
        };
        calls.into_iter().for_each(|(name, arguments)| sink.call(name, arguments));
        Step::Done { rest: String::new() }
    }
}

/// Parses Python calls with keyword arguments and literal values.
struct Python<'a> {
    rest: &'a str,
    depth: usize,
}

impl<'a> Python<'a> {
    fn new(code: &'a str) -> Python<'a> {
        Python { rest: code, depth: 0 }
    }

    /// Parses `f(a=1)` or `print(f(a=1))`, or several of these on separate lines or in a list.
    fn calls(mut self) -> Option<Vec<(String, String)>> {
        let in_list = self.take("[");
        let mut calls = Vec::new();
        loop {
            self.space();
            let is_printed = self.rest.starts_with("print(") && self.take("print(");
            calls.push(self.call()?);
            if is_printed && !self.take(")") {
                return None;
            }
            let has_separator = self.take(",") || self.take(";");
            self.space();
            if in_list && self.take("]") {
                self.space();
                return self.rest.is_empty().then_some(calls);
            }
            if self.rest.is_empty() {
                return (!in_list && !has_separator).then_some(calls);
            }
        }
    }

    fn call(&mut self) -> Option<(String, String)> {
        let name = self.word()?;
        if !self.take("(") {
            return None;
        }
        let mut arguments = Map::new();
        while !self.take(")") {
            let key = self.word()?;
            if !self.take("=") {
                return None;
            }
            arguments.insert(key, self.value()?);
            if !self.take(",") && !self.rest.trim_start().starts_with(')') {
                return None;
            }
        }
        Some((name, Value::Object(arguments).to_string()))
    }

    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn take(&mut self, text: &str) -> bool {
        self.space();
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn word(&mut self) -> Option<String> {
        self.space();
        let is_word = |c: char| c.is_alphanumeric() || "_.-".contains(c);
        let end = self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!word.is_empty()).then(|| word.to_owned())
    }

    fn value(&mut self) -> Option<Value> {
        self.space();
        self.depth += 1;
        let value = match self.rest.chars().next()? {
            _ if self.depth > MAX_DEPTH => None,
            '"' | '\'' => self.string().map(Value::from),
            '[' | '(' => self.list(),
            '{' => self.dict(),
            c if c == '-' || c.is_ascii_digit() => self.number(),
            _ => match self.word()?.as_str() {
                "True" | "true" => Some(true.into()),
                "False" | "false" => Some(false.into()),
                "None" | "null" => Some(Value::Null),
                _ => None,
            },
        };
        self.depth -= 1;
        value
    }

    fn number(&mut self) -> Option<Value> {
        let is_number = |c: char| c.is_ascii_digit() || "+-.eE".contains(c);
        let end = self.rest.find(|c| !is_number(c)).unwrap_or(self.rest.len());
        let (number, rest) = self.rest.split_at(end);
        self.rest = rest;
        let number: Number = match serde_json::from_str(number) {
            Ok(number) => number,
            Err(_) => Number::from_f64(number.parse().ok()?)?,
        };
        Some(number.into())
    }

    fn list(&mut self) -> Option<Value> {
        let end = if self.take("[") { "]" } else { ")" };
        if end == ")" {
            self.take("(");
        }
        let mut items = Vec::new();
        while !self.take(end) {
            items.push(self.value()?);
            if !self.take(",") && !self.rest.trim_start().starts_with(end) {
                return None;
            }
        }
        Some(items.into())
    }

    fn dict(&mut self) -> Option<Value> {
        self.take("{");
        let mut object = Map::new();
        while !self.take("}") {
            self.space();
            let key = self.string()?;
            if !self.take(":") {
                return None;
            }
            object.insert(key, self.value()?);
            if !self.take(",") && !self.rest.trim_start().starts_with('}') {
                return None;
            }
        }
        Some(object.into())
    }

    fn string(&mut self) -> Option<String> {
        let quote = self.rest.chars().next().filter(|c| "'\"".contains(*c))?;
        let mut text = String::new();
        let mut chars = self.rest[1..].char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => text.push(match chars.next()?.1 {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    other => other,
                }),
                '\n' => return None,
                c if c == quote => {
                    self.rest = &self.rest[1 + at + 1..];
                    return Some(text);
                }
                c => text.push(c),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(code: &str) -> Option<Vec<(String, Value)>> {
        let calls = Python::new(code).calls()?;
        let parsed =
            |(name, arguments): (String, String)| (name, serde_json::from_str(&arguments).unwrap());
        Some(calls.into_iter().map(parsed).collect())
    }

    #[test]
    fn calls_with_literals_are_parsed() {
        let json = serde_json::json!({
            "a": "it's\n", "b": [1, -2.5, null], "c": {"x": true}, "d": [1], "e": 0.5,
        });
        let code = r#"f(a='it\'s\n', b=[1, -2.5, None], c={"x": True}, d=(1,), e=.5)"#;
        // `.5` is not supported, because models do not write it.
        assert_eq!(calls(code), None);
        let code = code.replace("=.5", "=0.5");
        assert_eq!(calls(&code), Some(vec![("f".into(), json)]));
        let two = Some(vec![
            ("f".into(), serde_json::json!({})),
            ("g".into(), serde_json::json!({"x": 1})),
        ]);
        assert_eq!(calls("print(f())\ng(x=1)"), two);
        assert_eq!(calls("[f(), g(x=1)]"), two);
    }

    #[test]
    fn other_code_is_not_a_call() {
        for code in
            ["", "f", "f(", "f(1)", "f(a=b)", "f(a=1", "f(a=1) + 1", "x = f()", "[f()", "print(f()"]
        {
            assert_eq!(calls(code), None, "{code}");
        }
        let deep = format!("f(a={}1{})", "[".repeat(5000), "]".repeat(5000));
        assert_eq!(calls(&deep), None);
    }
}
