//! Bits: logic, shifts, moves and selections. A shift by the width or more moves every bit out.

use super::{Compute, binary, ternary, unary};

pub(super) fn find(opcode: &str) -> Option<Compute> {
    match opcode {
        "and.b16" | "and.b32" => binary(|a: u32, b: u32| a & b),
        "or.b16" | "or.b32" => binary(|a: u32, b: u32| a | b),
        "xor.b32" => binary(|a: u32, b: u32| a ^ b),
        "and.b64" => binary(|a: u64, b: u64| a & b),
        "or.b64" => binary(|a: u64, b: u64| a | b),
        "and.pred" => binary(|a: bool, b: bool| a & b),
        "or.pred" => binary(|a: bool, b: bool| a | b),
        "xor.pred" => binary(|a: bool, b: bool| a ^ b),
        "not.b32" => unary(|a: u32| !a),
        "not.b64" => unary(|a: u64| !a),
        "not.pred" => unary(|a: bool| !a),
        "shl.b16" => binary(|a: u32, b: u32| a.checked_shl(b).unwrap_or(0) & 0xffff),
        "shl.b32" => binary(|a: u32, b: u32| a.checked_shl(b).unwrap_or(0)),
        "shl.b64" => binary(|a: u64, b: u32| a.checked_shl(b).unwrap_or(0)),
        "shr.u16" => binary(|a: u32, b: u32| (a & 0xffff).checked_shr(b).unwrap_or(0)),
        "shr.u32" => binary(|a: u32, b: u32| a.checked_shr(b).unwrap_or(0)),
        "shr.u64" => binary(|a: u64, b: u32| a.checked_shr(b).unwrap_or(0)),
        "shr.s32" => binary(|a: u32, b: u32| (a as i32 >> b.min(31)) as u32),
        "mov.u16" => unary(|a: u32| a & 0xffff),
        "mov.b32" | "mov.u32" | "mov.f32" => unary(|a: u32| a),
        // `mov.b32 d, {a, b}`: the first half is the lower one.
        "mov.b32.pack" => binary(|a: u32, b: u32| a & 0xffff | b << 16),
        "mov.u64" | "cvta.to.global.u64" => unary(|a: u64| a),
        "mov.pred" => unary(|a: bool| a),
        "selp.b16" | "selp.u16" => {
            ternary(|a: u32, b: u32, c: bool| (if c { a } else { b }) & 0xffff)
        }
        "selp.b32" | "selp.u32" | "selp.f32" => {
            ternary(|a: u32, b: u32, c: bool| if c { a } else { b })
        }
        "selp.b64" => ternary(|a: u64, b: u64, c: bool| if c { a } else { b }),
        _ => None,
    }
}
