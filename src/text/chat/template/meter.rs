//! Limits the time and memory of a template.
//!
//! minijinja counts instructions, but one instruction can double a string. So this module rewrites
//! the compiled instructions: values that are looked up, computed or stored pass through a filter
//! that counts their size, and the formatter counts the text it writes.

use std::time::Instant;

use minijinja::machinery::{Instruction, Instructions, Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, State, Value};

/// Budget in bytes and items, to which [`PASSES`] times the conversation's size is added.
const BASE_BUDGET: u64 = 48 << 20;
/// How often a template may process the whole conversation.
const PASSES: u64 = 64;
/// Cost in bytes of a value in addition to its text.
const ITEM_COST: usize = 24;
/// Maximum nesting of a stored value.
const MAX_DEPTH: usize = 100;

/// Names of filters. Templates cannot contain names with this control character.
const COUNT: &str = "\u{1}count";
const STORE: &str = "\u{1}store";
const LIST: &str = "\u{1}list";
pub(super) const SLICE: &str = "\u{1}slice";
/// A filter that returns its value. minijinja's compiler would compute a product of two constants
/// without counting it; this filter on the first factor prevents that.
const IDENTITY: &str = "_kept";
pub(super) const CONCAT: &str = "\u{1}concat";
pub(super) const REMAINDER: &str = "\u{1}remainder";

/// The remaining budget of one rendering.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meter {
    left: u64,
    /// After the deadline, counting fails with [`TooSlow`].
    deadline: Instant,
}

/// Marks an error as caused by an exhausted budget.
#[derive(Debug, thiserror::Error)]
#[error("the template produces too much text or too many values")]
pub(super) struct TooMuch;

pub(super) fn too_much() -> Error {
    Error::new(ErrorKind::InvalidOperation, TooMuch.to_string()).with_source(TooMuch)
}

/// Marks an error as caused by the deadline.
#[derive(Debug, thiserror::Error)]
#[error("the template takes too long")]
pub(super) struct TooSlow;

fn too_slow() -> Error {
    Error::new(ErrorKind::InvalidOperation, TooSlow.to_string()).with_source(TooSlow)
}

/// Maximum number of instructions for a conversation of `n_messages`.
pub(super) fn fuel(n_messages: usize) -> u64 {
    1_000_000 + 4_000 * n_messages as u64
}

/// Adds the filters, with a budget for a conversation of `size` bytes until `deadline`.
pub(super) fn install(env: &mut Environment<'_>, size: usize, deadline: Instant) {
    let initial = Meter { left: BASE_BUDGET + PASSES * size as u64, deadline };
    env.add_filter(COUNT, move |state: &mut State<'_, '_>, value: Value| -> Result<Value, Error> {
        let cost = match value.as_str() {
            Some(text) => text.len(),
            None => value.len().unwrap_or(1).saturating_mul(8),
        };
        state.get_or_insert_extension(initial).spend(cost)?;
        Ok(value)
    });
    // minijinja concatenates lists lazily: every use iterates over both lists again, recursively
    // for nested concatenations, and the length is unknown. So copy the items into a list.
    env.add_filter(LIST, move |state: &mut State<'_, '_>, value: Value| -> Result<Value, Error> {
        if value.kind() != ValueKind::Iterable {
            return Ok(value);
        }
        let meter = state.get_or_insert_extension(initial);
        let mut items = Vec::new();
        for item in value.try_iter()?.checked() {
            meter.spend(ITEM_COST)?;
            items.push(item?);
        }
        Ok(Value::from(items))
    });
    env.add_filter(IDENTITY, |value: Value| value);
    env.add_filter(STORE, move |state: &mut State<'_, '_>, value: Value| -> Result<Value, Error> {
        count(&value, 0, state.get_or_insert_extension(initial))?;
        Ok(value)
    });
}

/// Counts `cost` bytes or items.
///
/// # Errors
/// If the budget or the time is exhausted.
pub(super) fn spend(state: &mut State<'_, '_>, cost: usize) -> Result<(), Error> {
    // The meter exists, because every program begins by installing it.
    state.get_extension_mut::<Meter>().map_or_else(|| Err(too_much()), |meter| meter.spend(cost))
}

impl Meter {
    fn spend(&mut self, cost: usize) -> Result<(), Error> {
        let cost = (cost as u64).saturating_add(1);
        match self.left.checked_sub(cost) {
            Some(left) => {
                self.left = left;
                if Instant::now() < self.deadline { Ok(()) } else { Err(too_slow()) }
            }
            None => Err(too_much()),
        }
    }
}

/// Counts a value and everything in it. A nested namespace is an error, because it could contain
/// itself and no real template needs one.
fn count(value: &Value, depth: usize, meter: &mut Meter) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(too_much());
    }
    if let Some(text) = value.as_str() {
        return meter.spend(text.len());
    }
    meter.spend(ITEM_COST)?;
    let kind = value.kind();
    if !matches!(kind, ValueKind::Map | ValueKind::Seq | ValueKind::Iterable) {
        return Ok(());
    }
    if depth > 0 && is_namespace(value) {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "a namespace cannot be nested in a value",
        ));
    }
    // Counting would use up a one-shot iterator, so leave it to its consumer.
    if kind == ValueKind::Iterable && value.len().is_none() {
        return Ok(());
    }
    for item in value.try_iter()?.checked() {
        let item = item?;
        count(&item, depth + 1, meter)?;
        if kind == ValueKind::Map {
            count(&value.get_item(&item)?, depth + 1, meter)?;
        }
    }
    Ok(())
}

/// Whether a value is a namespace, by the name of its type, which minijinja does not export.
fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

/// The same source, changed so that products of constants are computed, and counted, at run time.
///
/// # Errors
/// Invalid tokens.
pub(super) fn prevent_constant_folding(
    source: &str,
    syntax: SyntaxConfig,
) -> Result<String, Error> {
    let mut out = String::with_capacity(source.len());
    let mut copied = 0;
    let mut after_opening = true;
    for token in tokenize(source, false, syntax) {
        let (token, span) = token?;
        let at = span.start_offset as usize;
        if matches!(token, Token::Mul)
            && !after_opening
            && let Some(text) = source.get(copied..at)
        {
            out.push_str(text);
            out.push('|');
            out.push_str(IDENTITY);
            out.push(' ');
            copied = at;
        }
        // After `(` or `,`, `*` is not a product.
        after_opening = matches!(token, Token::ParenOpen | Token::Comma);
    }
    out.push_str(source.get(copied..).unwrap_or_default());
    Ok(out)
}

/// The same program with instructions that count its values. Jump targets are adjusted.
pub(super) fn meter_instructions<'s>(old: &Instructions<'s>) -> Instructions<'s> {
    let pieces: Vec<_> = (0..).map_while(|i| old.get(i).map(meter_instruction)).collect();
    // The first counted value installs the meter, with the conversation's budget.
    let begin = [Instruction::LoadConst(Value::from(0)), filter(COUNT, 1), Instruction::DiscardTop];
    let mut targets = Vec::with_capacity(pieces.len() + 1);
    let mut next = begin.len() as u32;
    for piece in &pieces {
        targets.push(next);
        next += piece.len() as u32;
    }
    targets.push(next);
    let mut new = Instructions::new(old.name(), old.source());
    for instruction in begin {
        new.add(instruction);
    }
    for (i, piece) in (0u32..).zip(pieces) {
        let line = old.get_line(i).and_then(|line| u16::try_from(line).ok()).unwrap_or(u16::MAX);
        for mut instruction in piece {
            if let Some(target) = target(&mut instruction) {
                *target = targets.get(*target as usize).copied().unwrap_or(next);
            }
            new.add_with_line(instruction, line);
        }
    }
    new
}

fn target<'a>(instruction: &'a mut Instruction<'_>) -> Option<&'a mut u32> {
    if let Instruction::Iterate(to)
    | Instruction::Jump(to)
    | Instruction::JumpIfFalse(to)
    | Instruction::JumpIfFalseOrPop(to)
    | Instruction::JumpIfTrueOrPop(to)
    | Instruction::BuildMacro(_, to, _) = instruction
    {
        return Some(to);
    }
    None
}

/// One instruction with the counting instructions before and after it.
fn meter_instruction<'s>(instruction: &Instruction<'s>) -> Vec<Instruction<'s>> {
    use Instruction as I;
    let count = || filter(COUNT, 1);
    let this = instruction.clone();
    if let I::EmitRaw(text) = instruction {
        return vec![I::LoadConst(Value::from(*text)), I::Emit];
    }
    if let I::StringConcat = instruction {
        return vec![filter(CONCAT, 2)];
    }
    if let I::Rem = instruction {
        return vec![filter(REMAINDER, 2), count()];
    }
    if let I::Slice = instruction {
        return vec![filter(SLICE, 4), count()];
    }
    if let I::Add = instruction {
        return vec![this, filter(LIST, 1), count()];
    }
    if let I::StoreLocal(_) = instruction {
        return vec![filter(STORE, 1), this];
    }
    if let I::SetAttr(_) = instruction {
        // The namespace is above the value on the stack. Storing a value in a namespace nests it,
        // so count the value as an item of a list.
        return vec![
            I::Swap,
            I::BuildList(Some(1)),
            filter(STORE, 1),
            I::UnpackList(1),
            I::Swap,
            this,
        ];
    }
    let makes_value = matches!(
        instruction,
        I::Lookup(_)
            | I::GetAttr(_)
            | I::GetItem
            | I::Mul
            | I::ApplyFilter(..)
            | I::CallFunction(..)
            | I::CallMethod(..)
            | I::CallObject(_)
            | I::EndCapture
    );
    if makes_value { vec![this, count()] } else { vec![this] }
}

fn filter<'s>(name: &'static str, n_args: u16) -> Instruction<'s> {
    Instruction::ApplyFilter(name, Some(n_args), u8::MAX)
}
