//! `setp`. Comparisons of floats are false if an operand is NaN, except those that end in `u`.

use super::{Compute, binary};

pub(super) fn find(opcode: &str) -> Option<Compute> {
    let (relation, kind) = opcode.strip_prefix("setp.")?.split_once('.')?;
    match kind {
        "s16" => integers(relation, |a: u32| a as i16),
        "s32" | "b32" if is_defined(relation, kind) => integers(relation, |a: u32| a as i32),
        "u32" => integers(relation, |a: u32| a),
        "s64" | "b64" if is_defined(relation, kind) => doubles(relation, |a: u64| a as i64),
        "u64" => doubles(relation, |a: u64| a),
        "f32" => floats(relation),
        _ => None,
    }
}

/// Untyped bits can only be equal or not.
fn is_defined(relation: &str, kind: &str) -> bool {
    kind.starts_with('s') || relation == "eq" || relation == "ne"
}

fn integers<T: Ord + 'static>(
    relation: &str,
    of: impl Fn(u32) -> T + Copy + Send + Sync + 'static,
) -> Option<Compute> {
    match relation {
        "eq" => binary(move |a: u32, b: u32| of(a) == of(b)),
        "ne" => binary(move |a: u32, b: u32| of(a) != of(b)),
        "lt" => binary(move |a: u32, b: u32| of(a) < of(b)),
        "le" => binary(move |a: u32, b: u32| of(a) <= of(b)),
        "gt" => binary(move |a: u32, b: u32| of(a) > of(b)),
        "ge" => binary(move |a: u32, b: u32| of(a) >= of(b)),
        _ => None,
    }
}

fn doubles<T: Ord + 'static>(
    relation: &str,
    of: impl Fn(u64) -> T + Copy + Send + Sync + 'static,
) -> Option<Compute> {
    match relation {
        "eq" => binary(move |a: u64, b: u64| of(a) == of(b)),
        "ne" => binary(move |a: u64, b: u64| of(a) != of(b)),
        "lt" => binary(move |a: u64, b: u64| of(a) < of(b)),
        "le" => binary(move |a: u64, b: u64| of(a) <= of(b)),
        "gt" => binary(move |a: u64, b: u64| of(a) > of(b)),
        "ge" => binary(move |a: u64, b: u64| of(a) >= of(b)),
        _ => None,
    }
}

fn floats(relation: &str) -> Option<Compute> {
    match relation {
        "eq" => pair(|a, b| a == b),
        // Unlike `!=`, false for NaN.
        "ne" => pair(|a, b| a.partial_cmp(&b).is_some_and(|order| order.is_ne())),
        "lt" => pair(|a, b| a < b),
        "le" => pair(|a, b| a <= b),
        "gt" => pair(|a, b| a > b),
        "ge" => pair(|a, b| a >= b),
        "equ" => pair(|a, b| a == b || a.is_nan() || b.is_nan()),
        "neu" => pair(|a, b| a != b),
        "ltu" => pair(|a, b| a < b || a.is_nan() || b.is_nan()),
        "leu" => pair(|a, b| a <= b || a.is_nan() || b.is_nan()),
        "gtu" => pair(|a, b| a > b || a.is_nan() || b.is_nan()),
        "geu" => pair(|a, b| a >= b || a.is_nan() || b.is_nan()),
        "num" => pair(|a, b| !a.is_nan() && !b.is_nan()),
        "nan" => pair(|a, b| a.is_nan() || b.is_nan()),
        _ => None,
    }
}

fn pair(f: impl Fn(f32, f32) -> bool + Copy + Send + Sync + 'static) -> Option<Compute> {
    binary(move |a: u32, b: u32| f(f32::from_bits(a), f32::from_bits(b)))
}
