//! Checks JSON character by character.

/// Maximum nesting depth, the same as in `serde_json`.
const MAX_DEPTH: usize = 127;

/// The parser's position in one JSON object or array.
#[derive(Clone, Debug)]
pub(super) struct JsonScan {
    /// The open brackets; `true` for an object.
    open: Vec<bool>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Before a value.
    Value,
    /// Before the first item of an array, or its end.
    FirstItem,
    /// Before the first key of an object, or its end.
    FirstKey,
    /// Before a key.
    Key,
    /// Between a key and its value.
    Colon,
    /// After a value.
    After,
    /// Within a string; `key` says whether the string is a key.
    String { key: bool },
    /// After a backslash.
    Escape { key: bool },
    /// Within `\uXXXX`, with this number of digits left.
    Unicode { key: bool, left: u8 },
    /// Within a number.
    Number(Number),
    /// Within `true`, `false` or `null`, with these characters left.
    Word(&'static str),
    /// After the last bracket.
    Done,
}

/// The parser's position in a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    Minus,
    Zero,
    Digits,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

/// The text is not JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotJson;

impl JsonScan {
    /// A scan at the start of an object or array.
    pub(super) fn new() -> JsonScan {
        JsonScan { open: Vec::new(), state: State::Value }
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    /// Number of open brackets.
    pub(super) fn depth(&self) -> usize {
        self.open.len()
    }

    pub(super) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Scans the next character.
    ///
    /// # Errors
    /// [`NotJson`] if no JSON text can continue with `c`.
    pub(super) fn step(&mut self, c: char) -> Result<(), NotJson> {
        let space = matches!(c, ' ' | '\t' | '\n' | '\r');
        self.state = match self.state {
            State::String { key } => return self.string(c, key),
            State::Escape { key } => match c {
                '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => State::String { key },
                'u' => State::Unicode { key, left: 4 },
                _ => return Err(NotJson),
            },
            State::Unicode { key, left } if c.is_ascii_hexdigit() => match left {
                1 => State::String { key },
                left => State::Unicode { key, left: left - 1 },
            },
            State::Unicode { .. } => return Err(NotJson),
            State::Number(number) => match number.step(c) {
                Some(number) => State::Number(number),
                None if number.is_complete() => {
                    self.state = State::After;
                    return self.step(c);
                }
                None => return Err(NotJson),
            },
            State::Word(rest) => match rest.strip_prefix(c) {
                Some("") => State::After,
                Some(rest) => State::Word(rest),
                None => return Err(NotJson),
            },
            state if space => state,
            State::Value => return self.value(c),
            State::FirstItem if c == ']' => return self.close(),
            State::FirstItem => return self.value(c),
            State::FirstKey if c == '}' => return self.close(),
            State::FirstKey | State::Key if c == '"' => State::String { key: true },
            State::Colon if c == ':' => State::Value,
            State::After => return self.after(c),
            State::FirstKey | State::Key | State::Colon | State::Done => return Err(NotJson),
        };
        Ok(())
    }

    fn string(&mut self, c: char, key: bool) -> Result<(), NotJson> {
        self.state = match c {
            '"' if key => State::Colon,
            '"' => State::After,
            '\\' => State::Escape { key },
            c if c < ' ' => return Err(NotJson),
            _ => State::String { key },
        };
        Ok(())
    }

    fn value(&mut self, c: char) -> Result<(), NotJson> {
        self.state = match c {
            '{' | '[' => {
                if self.open.len() == MAX_DEPTH {
                    return Err(NotJson);
                }
                self.open.push(c == '{');
                if c == '{' { State::FirstKey } else { State::FirstItem }
            }
            // At the top level, only objects and arrays are allowed, because their end can be
            // recognised.
            _ if self.open.is_empty() => return Err(NotJson),
            '"' => State::String { key: false },
            't' => State::Word("rue"),
            'f' => State::Word("alse"),
            'n' => State::Word("ull"),
            '-' => State::Number(Number::Minus),
            '0' => State::Number(Number::Zero),
            '1'..='9' => State::Number(Number::Digits),
            _ => return Err(NotJson),
        };
        Ok(())
    }

    fn after(&mut self, c: char) -> Result<(), NotJson> {
        let is_object = self.open.last().copied().ok_or(NotJson)?;
        match (c, is_object) {
            (',', true) => self.state = State::Key,
            (',', false) => self.state = State::Value,
            ('}', true) | (']', false) => return self.close(),
            _ => return Err(NotJson),
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), NotJson> {
        self.open.pop();
        self.state = if self.open.is_empty() { State::Done } else { State::After };
        Ok(())
    }
}

impl Number {
    fn step(self, c: char) -> Option<Number> {
        let digit = c.is_ascii_digit();
        let exponent = matches!(c, 'e' | 'E');
        match self {
            Number::Minus if c == '0' => Some(Number::Zero),
            Number::Minus | Number::Digits if digit => Some(Number::Digits),
            Number::Zero | Number::Digits if c == '.' => Some(Number::Point),
            Number::Zero | Number::Digits | Number::Fraction if exponent => Some(Number::Exponent),
            Number::Point | Number::Fraction if digit => Some(Number::Fraction),
            Number::Exponent if matches!(c, '+' | '-') => Some(Number::ExponentSign),
            Number::Exponent | Number::ExponentSign | Number::ExponentDigits if digit => {
                Some(Number::ExponentDigits)
            }
            Number::Minus
            | Number::Zero
            | Number::Digits
            | Number::Point
            | Number::Fraction
            | Number::Exponent
            | Number::ExponentSign
            | Number::ExponentDigits => None,
        }
    }

    fn is_complete(self) -> bool {
        match self {
            Number::Zero | Number::Digits | Number::Fraction | Number::ExponentDigits => true,
            Number::Minus | Number::Point | Number::Exponent | Number::ExponentSign => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Whether `text` is one complete object or array.
    fn accepts(text: &str) -> bool {
        let mut scan = JsonScan::new();
        text.chars().all(|c| scan.step(c).is_ok()) && scan.is_done()
    }

    #[test]
    fn json_is_distinguished_from_other_text() {
        for text in [
            "{}",
            "[]",
            r#"{"a": [1, -0.5e+3, "\u00e9\n", true, null, {"b": false}], "": {}}"#,
            "[ 0 , 10\n]",
        ] {
            assert!(accepts(text), "{text}");
        }
        for text in [
            "1",
            "{",
            "{]",
            "[1,]",
            "{\"a\"}",
            "{\"a\":1,}",
            "[01]",
            "[1.]",
            "[-]",
            "[\"\n\"]",
            "[\"\\x\"]",
            "[tru]",
            "[1 2]",
            "{1:2}",
            "{}}",
        ] {
            assert!(!accepts(text), "{text}");
        }
        assert!(accepts(&("[".repeat(127) + &"]".repeat(127))));
        assert!(!accepts(&("[".repeat(128) + &"]".repeat(128))));
    }

    proptest! {
        #[test]
        fn the_scan_agrees_with_serde(text in r#"[\[{]([\]\[{}:, \"\\u0e1.+-]|true|nul|"a"){0,12}[\]}]"#) {
            let parsed = serde_json::from_str::<serde_json::Value>(&text);
            // `serde_json` alone rejects unpaired surrogates and numbers out of range.
            if parsed.is_ok() {
                prop_assert!(accepts(&text), "{}", text);
            } else if accepts(&text) {
                let message = parsed.unwrap_err().to_string();
                let known = ["surrogate", "out of range", "hex escape"];
                prop_assert!(known.iter().any(|k| message.contains(k)), "{}: {}", text, message);
            }
        }
    }
}
