//! A unit: its kernels, decoded, and its variables in global memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::code::{Instruction, Special};
use crate::decode::Decoder;
use crate::registers::{Counts, Register};
use crate::syntax::{Statement, number, statements};

/// Where the shared memory of a block begins. Not 0, so that a null pointer is not a valid address.
pub(crate) const SHARED_BASE: u64 = 0x0100_0000;

/// A parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parameter {
    pub(crate) bytes: u32,
}

/// A kernel.
#[derive(Debug)]
pub struct Entry {
    pub(crate) name: String,
    pub(crate) parameters: Vec<Parameter>,
    /// Maximum number of threads of a block, by `.maxntid`.
    pub(crate) max_threads: Option<u32>,
    /// Bytes of shared memory that it declares.
    pub(crate) shared: u64,
    pub(crate) counts: Counts,
    /// Values of the registers that follow the declared ones, in words, doubles and predicates.
    pub(crate) words: Vec<u32>,
    pub(crate) doubles: Vec<u64>,
    pub(crate) predicates: Vec<u32>,
    /// Constants that depend on the launch, the block or the lane.
    pub(crate) specials: Vec<(Special, Register)>,
    pub(crate) code: Vec<Instruction>,
    /// Which instructions some thread has executed.
    pub(crate) executed: Vec<AtomicBool>,
}

impl Entry {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of instructions that some thread has executed, and of all.
    #[must_use]
    pub fn coverage(&self) -> (usize, usize) {
        let executed = self.executed.iter().filter(|flag| flag.load(Ordering::Relaxed)).count();
        (executed, self.code.len())
    }

    /// Lines of the instructions that no thread has executed.
    #[must_use]
    pub fn lines_not_executed(&self) -> Vec<u32> {
        let pairs = self.code.iter().zip(&self.executed);
        pairs.filter(|(_, flag)| !flag.load(Ordering::Relaxed)).map(|(code, _)| code.line).collect()
    }
}

/// A unit of the archive, ready to run.
#[derive(Debug)]
pub struct Module {
    pub(crate) unit: String,
    pub(crate) text: String,
    pub(crate) entries: Vec<Entry>,
    /// Variables in global memory; their addresses are in the code.
    pub(crate) variables: Vec<Box<[AtomicU64]>>,
}

/// Symbols that the code of a kernel may name, with their addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Symbols<'a> {
    pub(crate) addresses: HashMap<&'a str, u64>,
    /// Arrays in shared memory outside of kernels, with alignment and size: each kernel that names one
    /// has its own.
    shared: Vec<(&'a str, u64, u64)>,
    /// Names of arrays of dynamic shared memory, which begin behind the declared shared memory.
    pub(crate) dynamic: Vec<&'a str>,
}

impl Module {
    /// Parses a unit: text whose first line is `// unit NAME`.
    ///
    /// # Errors
    /// The line and what is wrong with it. An unknown instruction is an error.
    pub fn parse(text: &str) -> Result<Module, String> {
        let name = text.lines().next().and_then(|line| line.strip_prefix("// unit "));
        let name = name.ok_or("no `// unit NAME` in the first line")?;
        let mut module = Module {
            unit: name.to_owned(),
            text: text.to_owned(),
            entries: vec![],
            variables: vec![],
        };
        let (mut symbols, mut target) = (Symbols::default(), "");
        let statements = statements(text);
        let mut at = 0;
        while let Some(&Statement { line, text }) = statements.get(at) {
            let fail = |why: String| format!("{name}:{line}: {why}");
            at += 1;
            let word = text.split_whitespace().next().unwrap_or("");
            match word {
                ".version" | ".address_size" => {}
                ".target" => target = text.trim_start_matches(".target").trim(),
                ".global" => {
                    let variable = variable(text).map_err(fail)?;
                    symbols.addresses.insert(variable.name, variable.words.as_ptr() as u64);
                    module.variables.push(variable.words);
                }
                ".shared" => {
                    let found =
                        array(text).ok_or_else(|| fail(format!("unknown declaration `{text}`")));
                    let (name, align, _, size) = found?;
                    symbols.shared.push((name, align, size as u64));
                }
                ".extern" => {
                    let array = text.split_whitespace().last().unwrap_or("");
                    if !text.starts_with(".extern .shared") || !array.ends_with("[]") {
                        return Err(fail(format!("unknown declaration `{text}`")));
                    }
                    symbols.dynamic.push(array.trim_end_matches("[]"));
                }
                ".visible" => {
                    let from = at;
                    let is_end = |statement: &Statement<'_>| statement.text == "}";
                    at += statements[at..]
                        .iter()
                        .position(is_end)
                        .ok_or_else(|| fail("no `}`".to_owned()))?
                        + 1;
                    let entry = entry(text, &statements[from..at], &symbols);
                    module
                        .entries
                        .push(entry.map_err(|(line, why)| format!("{name}:{line}: {why}"))?);
                }
                _ => return Err(fail(format!("unknown statement `{text}`"))),
            }
        }
        module.unit = format!("{name} ({target})");
        Ok(module)
    }

    /// Its kernels.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Its name, with its target.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.unit
    }

    pub(crate) fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }
}

/// Bytes of a type.
fn bytes_of(kind: &str) -> Option<usize> {
    match kind {
        ".b8" | ".u8" | ".s8" => Some(1),
        ".b16" | ".u16" | ".s16" => Some(2),
        ".b32" | ".u32" | ".s32" | ".f32" => Some(4),
        ".b64" | ".u64" | ".s64" | ".f64" => Some(8),
        _ => None,
    }
}

struct Variable<'a> {
    name: &'a str,
    words: Box<[AtomicU64]>,
}

/// An array: `.align A .type NAME[N]`, or without `[N]`. Returns name, alignment, and size in bytes.
fn array(text: &str) -> Option<(&str, u64, usize, usize)> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [_, ".align", align, kind, name] = words[..] else { return None };
    let element = bytes_of(kind)?;
    let (name, n) = match name.strip_suffix(']').and_then(|name| name.split_once('[')) {
        Some((name, n)) => (name, n.parse().ok()?),
        None => (name, 1),
    };
    Some((name, align.parse().ok()?, element, element.checked_mul(n)?))
}

/// `.global .align A .type NAME[N] = {values}`; without values, zeros.
fn variable(text: &str) -> Result<Variable<'_>, String> {
    let unknown = || format!("unknown declaration `{}`", text.get(..80).unwrap_or(text));
    let (declared, values) = text.split_once('=').unwrap_or((text, ""));
    let (name, _, element, size) = array(declared).ok_or_else(unknown)?;
    let mut bytes = Vec::with_capacity(size);
    let values = values.trim().trim_start_matches('{').trim_end_matches('}');
    for value in values.split(',').map(str::trim).filter(|value| !value.is_empty()) {
        let value = number(value).ok_or_else(unknown)?;
        bytes.extend_from_slice(&value.to_le_bytes()[..element]);
    }
    if bytes.len() > size {
        return Err(unknown());
    }
    bytes.resize(size.next_multiple_of(8), 0);
    let (words, _) = bytes.as_chunks::<8>();
    Ok(Variable {
        name,
        words: words.iter().map(|word| AtomicU64::new(u64::from_le_bytes(*word))).collect(),
    })
}

/// A kernel, from the statement before its body and those of the body.
fn entry<'a>(
    head: &'a str,
    body: &[Statement<'a>],
    symbols: &Symbols<'a>,
) -> Result<Entry, (u32, String)> {
    let first = body.first().map_or(0, |statement| statement.line);
    let fail = |why: &str| (first, format!("{why} in `{head}`"));
    let rest = head.strip_prefix(".visible .entry ").ok_or_else(|| fail("unknown words"))?;
    let (name, rest) = rest.split_once('(').ok_or_else(|| fail("no parameters"))?;
    let (list, directives) = rest.split_once(')').ok_or_else(|| fail("no end of parameters"))?;
    let mut decoder = Decoder::new(symbols.clone());
    let mut parameters = Vec::new();
    for parameter in list.split(',').map(str::trim).filter(|text| !text.is_empty()) {
        let words: Vec<&str> = parameter.split_whitespace().collect();
        let [".param", kind, name] = words[..] else { return Err(fail("unknown parameter")) };
        let bytes = bytes_of(kind).ok_or_else(|| fail("unknown type"))? as u32;
        decoder.parameter(name, parameters.len(), bytes);
        parameters.push(Parameter { bytes });
    }
    let mut max_threads = None;
    for line in directives.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match line.split_once(' ') {
            Some((".maxntid", sizes)) => {
                let sizes: Option<Vec<u32>> =
                    sizes.split(',').map(|n| n.trim().parse().ok()).collect();
                max_threads = Some(sizes.ok_or_else(|| fail("invalid .maxntid"))?.iter().product());
            }
            // A hint for the compiler.
            Some((".minnctapersm", _)) => {}
            _ => return Err(fail("unknown directive")),
        }
    }
    let (begin, inside) = body.split_first().ok_or_else(|| fail("no body"))?;
    let (_, inside) = inside.split_last().ok_or_else(|| fail("no body"))?;
    if begin.text != "{" {
        return Err(fail("no `{`"));
    }
    for &(name, align, size) in &symbols.shared {
        if inside.iter().any(|statement| statement.text.contains(name)) {
            decoder.shared(name, align, size);
        }
    }
    declare(&mut decoder, inside)?;
    decoder.decode(inside)?;
    let mut entry = decoder.finish();
    entry.name = name.trim().to_owned();
    (entry.parameters, entry.max_threads) = (parameters, max_threads);
    entry.executed = entry.code.iter().map(|_| AtomicBool::new(false)).collect();
    Ok(entry)
}

/// The declarations of a body: registers and shared memory.
fn declare<'a>(decoder: &mut Decoder<'a>, body: &[Statement<'a>]) -> Result<(), (u32, String)> {
    for &Statement { line, text } in body {
        let unknown = || (line, format!("unknown declaration `{text}`"));
        match text.split_whitespace().next().unwrap_or("") {
            ".reg" => decoder.registers(text).ok_or_else(unknown)?,
            ".shared" => {
                let (name, align, _, size) = array(text).ok_or_else(unknown)?;
                decoder.shared(name, align, size as u64);
            }
            _ => {}
        }
    }
    decoder.place_dynamic();
    Ok(())
}
