//! Python's string methods and Jinja's filters that minijinja lacks, implements differently, or
//! does not limit.

use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::meter::{self, CONCAT, REMAINDER, SLICE};
use super::values;

pub(super) fn install(env: &mut Environment<'_>) {
    env.set_unknown_method_callback(method);
    env.set_formatter(|out, state, value| match value.as_str() {
        Some(text) => {
            meter::spend(state, text.len())?;
            out.write_str(text).map_err(Error::from)
        }
        None => {
            let text = values::text(value, state)?;
            out.write_str(&text).map_err(Error::from)
        }
    });
    env.add_filter(CONCAT, |state: &mut State<'_, '_>, left: Value, right: Value| {
        let left = values::text(&left, state)?;
        Ok::<_, Error>(left + &values::text(&right, state)?)
    });
    env.add_filter(REMAINDER, remainder);
    env.add_filter(SLICE, slice);
    env.add_test("divisibleby", |value: Value, by: Value| {
        Ok::<_, Error>(!remainder(value, by)?.is_true())
    });
    env.add_filter(
        "tojson",
        |state: &mut State<'_, '_>, value: Value, ascii: Option<bool>, options: Kwargs| {
            values::to_json(state, &value, ascii, options)
        },
    );
    env.add_filter("string", |state: &mut State<'_, '_>, value: Value| values::text(&value, state));
    env.add_filter("join", join);
    env.add_filter(
        "replace",
        |state: &mut State<'_, '_>, text: Value, old: Value, new: Value, count: Option<i64>| {
            let text = values::text(&text, state)?;
            let (old, new) = (values::text(&old, state)?, values::text(&new, state)?);
            replace(state, &text, &old, &new, count)
        },
    );
    env.add_filter("indent", indent);
    env.add_filter("format", |text: String, args: Rest<Value>| {
        bounded_format(minijinja::formatting::FormatStyle::Printf, &text, &args)
    });
    env.add_filter("default", default);
    env.add_filter("d", default);
    env.add_filter(
        "batch",
        |state: &mut State<'_, '_>, values: Value, n: usize, fill: Option<Value>| {
            minijinja::filters::batch(state, values, check_length(n)?, fill)
        },
    );
    env.add_filter(
        "slice",
        |state: &mut State<'_, '_>, values: Value, n: usize, fill: Option<Value>| {
            minijinja::filters::slice(state, values, check_length(n)?, fill)
        },
    );
    env.add_function("cycler", |items: Rest<Value>| minijinja_contrib::globals::cycler(items.0));
    env.add_function("joiner", minijinja_contrib::globals::joiner);
}

fn invalid_operation(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

fn check_length(n: usize) -> Result<usize, Error> {
    if n > 10_000 { Err(meter::too_much()) } else { Ok(n) }
}

/// Jinja's `default` filter; both arguments may be named.
fn default(
    value: Value,
    other: Option<Value>,
    boolean: Option<bool>,
    options: Kwargs,
) -> Result<Value, Error> {
    let other = options.get::<Option<Value>>("default_value")?.or(other);
    let boolean = options.get::<Option<bool>>("boolean")?.or(boolean).unwrap_or(false);
    options.assert_all_used()?;
    let taken = value.is_undefined() || boolean && !value.is_true();
    Ok(if taken { other.unwrap_or_else(|| Value::from("")) } else { value })
}

/// Python's `%` operator: the remainder of numbers, or string formatting.
fn remainder(left: Value, right: Value) -> Result<Value, Error> {
    if let Some(text) = left.as_str() {
        let args = if right.is_tuple() {
            right.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?
        } else {
            vec![right]
        };
        let style = minijinja::formatting::FormatStyle::Printf;
        return bounded_format(style, text, &args).map(Value::from);
    }
    let invalid = || {
        invalid_operation(format!(
            "`%` needs two numbers and a nonzero divisor, found {} and {}",
            left.kind(),
            right.kind()
        ))
    };
    if left.is_integer() && right.is_integer() {
        let (a, b) = (i128::try_from(left.clone())?, i128::try_from(right.clone())?);
        let rest = a.checked_rem(b).ok_or_else(invalid)?;
        // The result has the divisor's sign.
        let rest = if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest };
        return Ok(i64::try_from(rest).map_or_else(|_| Value::from(rest), Value::from));
    }
    if left.is_number() && right.is_number() {
        let (a, b) = (f64::try_from(left.clone())?, f64::try_from(right.clone())?);
        if b == 0.0 {
            return Err(invalid());
        }
        let rest = a % b;
        return Ok(Value::from(if rest != 0.0 && (rest < 0.0) != (b < 0.0) {
            rest + b
        } else {
            rest
        }));
    }
    Err(invalid())
}

/// Python's `value[start:stop:step]`.
fn slice(value: Value, start: Value, stop: Value, step: Value) -> Result<Value, Error> {
    let number = |value: &Value| match value.as_i64() {
        Some(n) => Ok(Some(n)),
        None if value.is_none() => Ok(None),
        None => {
            Err(invalid_operation(format!("a slice bound is {}, not an integer", value.kind())))
        }
    };
    let (start, stop, step) = (number(&start)?, number(&stop)?, number(&step)?.unwrap_or(1));
    if step == 0 {
        return Err(invalid_operation("the step of a slice cannot be 0"));
    }
    if let Some(text) = value.as_str() {
        let chars: Vec<char> = text.chars().collect();
        let taken = indices(chars.len(), start, stop, step).map(|i| chars[i]);
        return Ok(Value::from(taken.collect::<String>()));
    }
    if value.is_undefined() {
        return Err(invalid_operation("an undefined value cannot be sliced"));
    }
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Ok(Value::UNDEFINED);
    }
    let items = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
    let taken = indices(items.len(), start, stop, step).map(|i| items[i].clone());
    Ok(if value.is_tuple() {
        Value::from(Tuple::from(taken.collect::<Vec<_>>()))
    } else {
        Value::from(taken.collect::<Vec<_>>())
    })
}

/// The indices that a slice selects from `len` items, all below `len`.
fn indices(
    len: usize,
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
) -> impl Iterator<Item = usize> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    // The range of `start` and `stop`. With a negative step, `stop` may be -1, before index 0.
    let (least, most) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let place = |n: i64| if n < 0 { n.saturating_add(len) } else { n }.clamp(least, most);
    let (first, end) = if step > 0 {
        (start.map_or(0, place), stop.map_or(len, place))
    } else {
        (start.map_or(len - 1, place), stop.map_or(-1, place))
    };
    let inside = move |at: &i64| if step > 0 { *at < end } else { *at > end };
    std::iter::successors(Some(first), move |at| at.checked_add(step))
        .take_while(inside)
        .filter_map(|at| usize::try_from(at).ok())
}

/// minijinja's formatting, without huge widths that would exhaust memory.
fn bounded_format(
    style: minijinja::formatting::FormatStyle,
    text: &str,
    args: &[Value],
) -> Result<String, Error> {
    let longest = text.split(|c: char| !c.is_ascii_digit()).map(str::len).max().unwrap_or(0);
    if longest > 4 || text.contains('*') && style == minijinja::formatting::FormatStyle::Printf {
        return Err(meter::too_much());
    }
    minijinja::formatting::format(style, text, args)
}

fn replace(
    state: &mut State<'_, '_>,
    text: &str,
    old: &str,
    new: &str,
    count: Option<i64>,
) -> Result<String, Error> {
    let most = count.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
    let found = match old {
        "" => text.chars().count() + 1,
        _ => text.matches(old).count(),
    };
    meter::spend(state, text.len().saturating_add(found.min(most).saturating_mul(new.len())))?;
    Ok(text.replacen(old, new, most))
}

fn join(
    state: &mut State<'_, '_>,
    values: Value,
    separator: Option<Value>,
    options: Kwargs,
) -> Result<String, Error> {
    let attribute = options.get::<Option<Value>>("attribute")?;
    options.assert_all_used()?;
    let separator = match separator {
        Some(value) => values::text(&value, state)?,
        None => String::new(),
    };
    let mut out = String::new();
    if values.is_undefined() {
        return Ok(out);
    }
    for (i, value) in values.try_iter()?.checked().enumerate() {
        let value = match &attribute {
            Some(name) => value?.get_item(name)?,
            None => value?,
        };
        if i > 0 {
            meter::spend(state, separator.len())?;
            out.push_str(&separator);
        }
        out.push_str(&values::text(&value, state)?);
    }
    Ok(out)
}

fn indent(
    state: &mut State<'_, '_>,
    text: String,
    width: Option<Value>,
    first: Option<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    let width = options.get::<Option<Value>>("width")?.or(width);
    let first = options.get::<Option<bool>>("first")?.or(first).unwrap_or(false);
    let blank = options.get::<Option<bool>>("blank")?.unwrap_or(false);
    options.assert_all_used()?;
    let indent = match width {
        None => "    ".to_owned(),
        Some(value) => match value.as_str() {
            Some(text) => text.to_owned(),
            None => {
                " ".repeat(value.as_usize().filter(|n| *n <= 1000).ok_or_else(meter::too_much)?)
            }
        },
    };
    let n_lines = text.matches('\n').count() + 1;
    meter::spend(state, text.len().saturating_add(n_lines.saturating_mul(indent.len())))?;
    let mut out = String::with_capacity(text.len());
    // As in Jinja, empty lines are indented only with `blank`.
    for (i, line) in text.split('\n').enumerate() {
        if i > 0 {
            out.push('\n');
        }
        let is_indented = if i == 0 { first } else { blank || !line.is_empty() };
        out.push_str(if is_indented { &indent } else { "" });
        out.push_str(line);
    }
    Ok(out)
}

/// Methods of values: first those that minijinja's helper lacks or does not limit, then the
/// helper's.
fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return unknown_method_callback(state, value, name, args);
    };
    Ok(match name {
        "replace" => {
            let (old, new, count): (&str, &str, Option<i64>) = from_args(args)?;
            Value::from(replace(state, text, old, new, count)?)
        }
        "join" => {
            let (values,): (Value,) = from_args(args)?;
            let options = Kwargs::from_iter(std::iter::empty::<(&str, Value)>());
            Value::from(join(state, values, Some(value.clone()), options)?)
        }
        "format" => {
            Value::from(bounded_format(minijinja::formatting::FormatStyle::StrFormat, text, args)?)
        }
        "removeprefix" => {
            let (part,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(part).unwrap_or(text))
        }
        "removesuffix" => {
            let (part,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(part).unwrap_or(text))
        }
        "partition" => {
            let (sep,): (&str,) = from_args(args)?;
            partition(text.split_once(sep).map(|(a, b)| [a, sep, b]), [text, "", ""], sep)?
        }
        "rpartition" => {
            let (sep,): (&str,) = from_args(args)?;
            partition(text.rsplit_once(sep).map(|(a, b)| [a, sep, b]), ["", "", text], sep)?
        }
        "rsplit" => rsplit(text, args)?,
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            zfill(text, width)?
        }
        "index" | "rindex" => {
            let found = unknown_method_callback(
                state,
                value,
                if name == "index" { "find" } else { "rfind" },
                args,
            )?;
            match found.as_i64() {
                Some(-1) => return Err(invalid_operation("substring not found")),
                _ => found,
            }
        }
        _ => return unknown_method_callback(state, value, name, args),
    })
}

fn partition(found: Option<[&str; 3]>, whole: [&str; 3], sep: &str) -> Result<Value, Error> {
    if sep.is_empty() {
        return Err(invalid_operation("empty separator"));
    }
    Ok(Value::from(Tuple::from(found.unwrap_or(whole).map(Value::from))))
}

fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (at, most): (Option<&str>, Option<i64>) = from_args(args)?;
    let most = most.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX).saturating_add(1);
    let mut parts: Vec<Value> = match at {
        Some("") => return Err(invalid_operation("empty separator")),
        Some(at) => text.rsplitn(most, at).map(Value::from).collect(),
        None => {
            let mut parts = Vec::new();
            let mut rest = text.trim_end();
            while !rest.is_empty() {
                let cut = rest.rfind(char::is_whitespace).filter(|_| parts.len() + 1 < most);
                let (before, word) = match cut {
                    Some(at) => {
                        let end = at + rest[at..].chars().next().map_or(0, char::len_utf8);
                        (rest[..at].trim_end(), &rest[end..])
                    }
                    None => ("", rest),
                };
                parts.push(Value::from(word));
                rest = before;
            }
            parts
        }
    };
    parts.reverse();
    Ok(Value::from(parts))
}

fn zfill(text: &str, width: usize) -> Result<Value, Error> {
    if width > 1000 {
        return Err(meter::too_much());
    }
    let missing = width.saturating_sub(text.chars().count());
    let (sign, digits) = match text.strip_prefix(['+', '-']) {
        Some(digits) => text.split_at(text.len() - digits.len()),
        None => ("", text),
    };
    Ok(Value::from(format!("{sign}{}{digits}", "0".repeat(missing))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_match_python() {
        let taken = |len, start, stop, step| indices(len, start, stop, step).collect::<Vec<_>>();
        assert_eq!(taken(4, None, None, 1), [0, 1, 2, 3]);
        assert_eq!(taken(4, None, None, -1), [3, 2, 1, 0]);
        assert_eq!(taken(0, None, None, -1), [0; 0]);
        assert_eq!(taken(4, Some(1), Some(-1), 1), [1, 2]);
        assert_eq!(taken(4, Some(-1), Some(-9), -3), [3, 0]);
        assert_eq!(taken(4, Some(1), Some(3), -1), [0; 0]);
        assert_eq!(taken(4, Some(3), Some(1), -1), [3, 2]);
        assert_eq!(taken(4, Some(9), None, -2), [3, 1]);
        assert_eq!(taken(4, Some(i64::MIN), Some(i64::MAX), i64::MAX), [0]);
        assert_eq!(taken(4, None, None, i64::MIN), [3]);
    }
}
