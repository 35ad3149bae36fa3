//! `cvt`. A float becomes an integer by saturation, and NaN becomes 0.

use half::f16;

use super::{Compute, unary};

pub(super) fn find(opcode: &str) -> Option<Compute> {
    match opcode.strip_prefix("cvt.")? {
        "f32.f16" => unary(|a: u32| f16::from_bits(a as u16).to_f32().to_bits()),
        "rn.f16.f32" => unary(|a: u32| u32::from(f16::from_f32(f32::from_bits(a)).to_bits())),
        "rn.f32.s32" => unary(|a: u32| (a as i32 as f32).to_bits()),
        "rn.f32.u32" => unary(|a: u32| (a as f32).to_bits()),
        "rmi.f32.f32" => unary(|a: u32| f32::from_bits(a).floor().to_bits()),
        "rni.f32.f32" => unary(|a: u32| f32::from_bits(a).round_ties_even().to_bits()),
        "rzi.s32.f32" => unary(|a: u32| f32::from_bits(a) as i32 as u32),
        "rzi.u32.f32" => unary(|a: u32| f32::from_bits(a) as u32),
        // To 0 to 1; NaN becomes 0, and so does -0.
        "sat.f32.f32" => unary(|a: u32| {
            let a = f32::from_bits(a);
            (if a > 0.0 { a.min(1.0) } else { 0.0 }).to_bits()
        }),
        "s32.s8" => unary(|a: u32| a as i8 as i32 as u32),
        "u16.u32" | "u32.u16" => unary(|a: u32| a & 0xffff),
        "u32.u64" => unary(|a: u64| a as u32),
        "u64.u16" => unary(|a: u32| u64::from(a as u16)),
        "u64.u32" => unary(|a: u32| u64::from(a)),
        _ => None,
    }
}
