//! Formats values as Python does: `str`, `repr` and `json.dumps`.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::meter;

/// Maximum nesting of a formatted value.
const MAX_DEPTH: usize = 200;

/// Python's `str`.
///
/// # Errors
/// The budget or the time is exhausted.
pub(super) fn text(value: &Value, state: &mut State<'_, '_>) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        meter::spend(state, text.len())?;
        return Ok(text.to_owned());
    }
    let mut out = String::new();
    if !value.is_undefined() {
        repr(value, 0, &mut out, state)?;
    }
    Ok(out)
}

fn repr(
    value: &Value,
    depth: usize,
    out: &mut String,
    state: &mut State<'_, '_>,
) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(meter::too_much());
    }
    meter::spend(state, 8)?;
    let kind = value.kind();
    if let Some(text) = value.as_str() {
        meter::spend(state, 2 * text.len())?;
        quoted(text, out);
    } else if kind == ValueKind::Number && !value.is_integer() {
        out.push_str(&float_repr(f64::try_from(value.clone())?));
    } else if kind == ValueKind::Map {
        out.push('{');
        for (i, key) in value.try_iter()?.checked().enumerate() {
            let key = key?;
            out.push_str(if i > 0 { ", " } else { "" });
            repr(&key, depth + 1, out, state)?;
            out.push_str(": ");
            repr(&value.get_item(&key)?, depth + 1, out, state)?;
        }
        out.push('}');
    } else if kind == ValueKind::Seq || kind == ValueKind::Iterable && value.len().is_some() {
        let tuple = value.is_tuple();
        out.push(if tuple { '(' } else { '[' });
        let mut n = 0;
        for item in value.try_iter()?.checked() {
            out.push_str(if n > 0 { ", " } else { "" });
            repr(&item?, depth + 1, out, state)?;
            n += 1;
        }
        out.push_str(if tuple && n == 1 { "," } else { "" });
        out.push(if tuple { ')' } else { ']' });
    } else if value.is_undefined() {
        out.push_str("Undefined");
    } else {
        out.push_str(&value.to_string());
    }
    Ok(())
}

/// Python's `repr` of a string: in single quotes, unless the string contains single quotes and no
/// double quotes.
fn quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if c < ' ' || c == '\x7f' => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if ('\u{80}'..='\u{a0}').contains(&c) || c == '\u{ad}' => {
                out.push_str(&format!("\\x{:02x}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// Python's `repr` of a float: the shortest digits that read back exactly, in scientific notation
/// if the exponent is below -4 or at least 16.
pub(super) fn float_repr(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let shortest = format!("{number:e}");
    let (digits, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{number}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// `tojson` with the arguments of `transformers`.
///
/// # Errors
/// A value that JSON cannot represent, or an exhausted budget or time.
pub(super) fn to_json(
    state: &mut State<'_, '_>,
    value: &Value,
    ensure_ascii: Option<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    let ascii = match options.get::<Option<bool>>("ensure_ascii")? {
        Some(given) => given,
        None => ensure_ascii.unwrap_or(false),
    };
    let indent = match options.get::<Option<Value>>("indent")? {
        None => None,
        Some(value) if value.is_none() => None,
        Some(value) => Some(match value.as_str() {
            Some(text) if text.len() <= 64 => text.to_owned(),
            Some(_) => return Err(meter::too_much()),
            None => " ".repeat(value.as_usize().filter(|n| *n <= 64).ok_or_else(meter::too_much)?),
        }),
    };
    let separators = options.get::<Option<Value>>("separators")?.filter(|value| !value.is_none());
    let (comma, colon) = match separators {
        Some(pair) => (separator(&pair, 0)?, separator(&pair, 1)?),
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let mut json = JsonWriter { out: String::new(), ascii, indent, comma, colon, sort_keys };
    json.write(value, 0, state)?;
    Ok(json.out)
}

fn separator(pair: &Value, index: usize) -> Result<String, Error> {
    let item = pair.get_item_by_index(index)?;
    let text = item.as_str().filter(|text| text.len() <= 64);
    text.map(str::to_owned).ok_or_else(|| {
        let detail = "tojson: separators must be two strings of at most 64 bytes";
        Error::new(ErrorKind::InvalidOperation, detail)
    })
}

struct JsonWriter {
    out: String,
    ascii: bool,
    indent: Option<String>,
    comma: String,
    colon: String,
    sort_keys: bool,
}

impl JsonWriter {
    fn write(
        &mut self,
        value: &Value,
        depth: usize,
        state: &mut State<'_, '_>,
    ) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(meter::too_much());
        }
        meter::spend(state, 8 + depth * self.indent.as_ref().map_or(0, String::len))?;
        let kind = value.kind();
        if let Some(text) = value.as_str() {
            meter::spend(state, 2 * text.len())?;
            self.string(text);
        } else if value.is_none() {
            self.out.push_str("null");
        } else if kind == ValueKind::Bool {
            self.out.push_str(if value.is_true() { "true" } else { "false" });
        } else if value.is_integer() {
            self.out.push_str(&value.to_string());
        } else if kind == ValueKind::Number {
            let number = f64::try_from(value.clone())?;
            self.out.push_str(&match number {
                n if n.is_nan() => "NaN".to_owned(),
                n if n.is_infinite() => (if n > 0.0 { "Infinity" } else { "-Infinity" }).to_owned(),
                n => float_repr(n),
            });
        } else if kind == ValueKind::Map {
            self.map(value, depth, state)?;
        } else if kind == ValueKind::Seq {
            self.out.push('[');
            let mut n = 0;
            for item in value.try_iter()?.checked() {
                self.begin_item(n, depth + 1);
                self.write(&item?, depth + 1, state)?;
                n += 1;
            }
            self.close(n, depth, ']');
        } else {
            let message = format!("a value of kind {kind} cannot be written as JSON");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize, state: &mut State<'_, '_>) -> Result<(), Error> {
        let mut keys = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
        if self.sort_keys {
            keys.sort();
        }
        self.out.push('{');
        for (i, key) in keys.iter().enumerate() {
            self.begin_item(i, depth + 1);
            match key.as_str() {
                Some(text) => self.string(text),
                None => {
                    let text = text(key, state)?;
                    self.string(&text);
                }
            }
            self.out.push_str(&self.colon);
            self.write(&value.get_item(key)?, depth + 1, state)?;
        }
        self.close(keys.len(), depth, '}');
        Ok(())
    }

    fn begin_item(&mut self, i: usize, depth: usize) {
        if i > 0 {
            self.out.push_str(&self.comma);
        }
        self.new_line(depth);
    }

    fn close(&mut self, n: usize, depth: usize, bracket: char) {
        if n > 0 {
            self.new_line(depth);
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || self.ascii && !c.is_ascii() => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_match_python() {
        for (number, text) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e-5, "1.5e-05"),
            (0.0001, "0.0001"),
            (1e100, "1e+100"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(float_repr(number), text);
        }
    }

    #[test]
    fn quotes_match_python() {
        for (given, expected) in [
            ("a", "'a'"),
            ("it's", "\"it's\""),
            ("'\"", "'\\'\"'"),
            ("\n\x01é\u{a0}", "'\\n\\x01é\\xa0'"),
        ] {
            let mut out = String::new();
            quoted(given, &mut out);
            assert_eq!(out, expected);
        }
    }
}
