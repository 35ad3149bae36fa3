//! The report as text.

use super::Facts;
use super::verdict::Verdict;
use crate::cli::terminal::{counted, printable};
use crate::cli::wrap::wrapped;
use crate::embedded;
use crate::gguf::{Array, Value};
use std::fmt::{Display, Write};

/// Maximum number of characters printed of a value.
const SHOWN_CHARS: usize = 72;
/// Maximum number of array elements printed.
const SHOWN_ELEMENTS: usize = 6;

/// The whole report. `lists_tensors` says whether it lists the tensors.
pub(super) fn report(facts: &Facts<'_>, verdict: &Verdict, lists_tensors: bool) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{}", printable(&verdict.sentence(facts.file.name())));
    for (name, value) in verdict.lines() {
        out += &wrapped(&format!("{name:<18} "), &printable(&value));
    }
    out.push('\n');
    general(facts, &mut out);
    profile(facts, &mut out);
    tokenizer(facts, &mut out);
    metadata(facts, &mut out);
    if lists_tensors {
        tensors(facts, &mut out);
    } else {
        let n = facts.file.tensors().len();
        let _ = writeln!(out, "\ntensors: {n}, which --tensors lists");
    }
    if facts.is_built_in {
        let _ = write!(out, "\n{}", embedded::NOTICES);
    }
    out
}

fn fact(out: &mut String, name: &str, value: impl Display) {
    let value = printable(&value.to_string());
    let _ = writeln!(out, "{name:<18} {value}");
}

fn general(facts: &Facts<'_>, out: &mut String) {
    let file = facts.file;
    fact(out, "file", file.name());
    if file.paths().len() > 1 {
        fact(out, "parts", file.paths().len());
    }
    let container = format!("{} version {}", file.container(), file.version());
    fact(out, "container", container);
    fact(out, "size", bytes(file.size_bytes().into()));
    if let Some(name) = file.metadata().get("general.name").and_then(Value::as_str) {
        fact(out, "name", name);
    }
    fact(out, "architecture", facts.architecture.as_deref().unwrap_or("not stated"));
    fact(out, "parameters", parameters(facts.n_params));
    for (name, value) in &facts.hyper {
        fact(out, name, short(value));
    }
    let types = facts.types.iter();
    let types = types.map(|(name, (count, size))| format!("{count} {name} ({})", bytes(*size)));
    let types: Vec<_> = types.collect();
    if !types.is_empty() {
        fact(out, "tensors", types.join(", "));
    }
    if !facts.predictor.is_empty() {
        let layers = facts.predictor.len() / 2;
        let least = facts.predictor_threshold();
        let use_it = "used by default; --sparsity exact ignores it";
        let what =
            format!("in {layers} layers; a score of at least {least} counts as active ({use_it})");
        fact(out, "predictor", what);
    }
}

fn profile(facts: &Facts<'_>, out: &mut String) {
    match &facts.profile {
        None => {}
        Some(Err(why)) => fact(out, "profile", format!("cannot be used: {why}")),
        Some(Ok(known)) => {
            let (profile, summary) = (&known.profile, known.profile.summary());
            let all = if profile.is_finished() {
                String::new()
            } else {
                format!(" of {}", profile.n_wanted())
            };
            let counts = known.counts;
            let what = format!(
                "{}{all} tokens: {}, {:.2} % account for 80 % of the {}, {:.2} % {}",
                profile.n_tokens(),
                counts.for_a_token(&format!("{:.2} %", 100.0 * summary.density)),
                100.0 * summary.hot,
                counts.events(),
                100.0 * summary.never_fired,
                counts.never(),
            );
            fact(out, "profile", what);
            fact(out, "  stored in", &known.file);
        }
    }
}

fn tokenizer(facts: &Facts<'_>, out: &mut String) {
    match &facts.tokenizer {
        None => fact(out, "tokenizer", "none"),
        Some(Err(why)) => fact(out, "tokenizer", format!("cannot be used: {why}")),
        Some(Ok(tokenizer)) => {
            let kind = facts.file.metadata().get("tokenizer.ggml.model");
            let kind = kind.map(short).unwrap_or_default();
            fact(out, "tokenizer", format!("{kind}, {} tokens", tokenizer.n_vocab()));
            for (role, id, text) in Facts::special_tokens(tokenizer) {
                fact(out, &format!("  {role}"), format!("{id} '{text}'"));
            }
            let ends: Vec<_> = tokenizer.eog().iter().map(u32::to_string).collect();
            fact(out, "  end of generation", ends.join(", "));
            for warning in tokenizer.warnings() {
                fact(out, "  note", warning);
            }
        }
    }
}

fn metadata(facts: &Facts<'_>, out: &mut String) {
    let all = facts.file.metadata();
    let _ = writeln!(out, "\nmetadata: {} keys", all.len());
    let width = all.iter().map(|(key, _)| printable(key).chars().count()).max().unwrap_or(0);
    let width = width.min(48);
    for (key, value) in all.iter() {
        let kind = match value.as_array() {
            Some(array) => format!("{}[{}]", array.type_name(), array.len()),
            None => value.type_name().to_owned(),
        };
        let _ = writeln!(out, "  {:<width$}  {kind:<14} {}", printable(key), short(value));
    }
}

fn tensors(facts: &Facts<'_>, out: &mut String) {
    let all = facts.file.tensors();
    let _ = writeln!(out, "\ntensors: {}", all.len());
    let width = all.iter().map(|t| printable(&t.name).chars().count()).max().unwrap_or(0);
    let width = width.min(48);
    for tensor in all {
        let shape: Vec<_> = tensor.shape.iter().map(u64::to_string).collect();
        let _ = writeln!(
            out,
            "  {:<width$}  {:<8} {:<24} {:>12}",
            printable(&tensor.name),
            tensor.ty.to_string(),
            shape.join(" x "),
            bytes(tensor.n_bytes().into()),
        );
    }
    if !facts.predictor.is_empty() {
        let _ = writeln!(out, "\npredictor: {}", counted(facts.predictor.len(), "tensor"));
        for tensor in &facts.predictor {
            let shape: Vec<_> = tensor.shape.iter().map(u64::to_string).collect();
            let _ = writeln!(out, "  {:<width$}  {}", printable(&tensor.name), shape.join(" x "));
        }
    }
}

/// A value on one line, shortened to [`SHOWN_CHARS`] characters.
fn short(value: &Value) -> String {
    let text = match value.as_array() {
        Some(array) => elements(array),
        None => value.to_string(),
    };
    let text = printable(&text);
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

fn elements(array: &Array) -> String {
    let shown = first_elements(array, SHOWN_ELEMENTS);
    let more = if array.len() > shown.len() { ", ..." } else { "" };
    format!("[{}{more}]", shown.join(", "))
}

/// The first elements as text.
fn first_elements(array: &Array, n: usize) -> Vec<String> {
    fn numbers<T: Display>(values: &[T], n: usize) -> Vec<String> {
        values.iter().take(n).map(T::to_string).collect()
    }
    match array {
        Array::U8(v) => numbers(v, n),
        Array::I8(v) => numbers(v, n),
        Array::U16(v) => numbers(v, n),
        Array::I16(v) => numbers(v, n),
        Array::U32(v) => numbers(v, n),
        Array::I32(v) => numbers(v, n),
        Array::U64(v) => numbers(v, n),
        Array::I64(v) => numbers(v, n),
        Array::F32(v) => numbers(v, n),
        Array::F64(v) => numbers(v, n),
        Array::Bool(v) => numbers(v, n),
        Array::String(v) => {
            v.iter().take(n).map(|s| String::from_utf8_lossy(s).into_owned()).collect()
        }
        Array::Array(v) => {
            v.iter().take(n).map(|a| format!("{} {}", a.len(), a.type_name())).collect()
        }
    }
}

/// A size in bytes, such as `1.25 GiB`.
pub(super) fn bytes(n: u128) -> String {
    scaled(n, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"])
}

/// A number of parameters in llama-bench's form, such as `6.74 B`.
pub(super) fn parameters(n: u128) -> String {
    scaled(n, 1000.0, &["", "K", "M", "B", "T", "P", "E"]).trim_end().to_owned()
}

fn scaled(n: u128, step: f64, units: &[&str]) -> String {
    #[allow(clippy::cast_precision_loss)] // two decimals are shown
    let mut value = n as f64;
    let mut unit = 0;
    while value >= step && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    match unit {
        0 => format!("{n} {}", units[0]),
        _ => format!("{value:.2} {}", units[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_counts_are_formatted() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1536), "1.50 KiB");
        assert_eq!(bytes(7 << 30), "7.00 GiB");
        assert_eq!(parameters(6_740_000_000), "6.74 B");
        assert_eq!(parameters(12), "12");
        assert!(bytes(u128::MAX).ends_with("EiB"));
    }

    #[test]
    fn control_characters_are_not_printed() {
        let shown = short(&Value::from("\u{1b}]0;title\u{7}\n"));
        assert!(!shown.chars().any(char::is_control), "{shown}");
    }

    #[test]
    fn long_values_are_shortened() {
        assert_eq!(short(&Value::from("a".repeat(500))).len(), SHOWN_CHARS + 3);
        let array = Value::from(Array::U32((0..100).collect()));
        assert_eq!(short(&array), "[0, 1, 2, 3, 4, 5, ...]");
        assert_eq!(short(&Value::from(Array::Bool(vec![true]))), "[true]");
    }
}
