//! Integer arithmetic. All of it wraps.

use super::{Class, Compute, LANES, Places, Registers, Value, binary, compute, ternary, unary};

pub(super) fn find(opcode: &str) -> Option<Compute> {
    match opcode {
        "add.s16" => binary(|a: u32, b: u32| u32::from((a as u16).wrapping_add(b as u16))),
        "add.s32" => binary(u32::wrapping_add),
        "add.s64" => binary(u64::wrapping_add),
        "sub.s32" => binary(u32::wrapping_sub),
        "sub.s64" => binary(u64::wrapping_sub),
        "mul.lo.s32" => binary(u32::wrapping_mul),
        "mul.lo.s64" => binary(u64::wrapping_mul),
        "mul.wide.u16" => binary(|a: u32, b: u32| u32::from(a as u16) * u32::from(b as u16)),
        "mul.wide.u32" => binary(|a: u32, b: u32| u64::from(a) * u64::from(b)),
        "mad.lo.s32" => ternary(|a: u32, b: u32, c: u32| a.wrapping_mul(b).wrapping_add(c)),
        // The value for a divisor of 0 is never used: that is a fault.
        "div.u32" => divides(binary(|a: u32, b: u32| a.checked_div(b).unwrap_or(u32::MAX))),
        "div.u64" => divides(binary(|a: u64, b: u64| a.checked_div(b).unwrap_or(u64::MAX))),
        "rem.u32" => divides(binary(|a: u32, b: u32| a.checked_rem(b).unwrap_or(u32::MAX))),
        "rem.u64" => divides(binary(|a: u64, b: u64| a.checked_rem(b).unwrap_or(u64::MAX))),
        "neg.s32" => unary(u32::wrapping_neg),
        "neg.s64" => unary(u64::wrapping_neg),
        "min.u32" => binary(|a: u32, b: u32| a.min(b)),
        "max.u32" => binary(|a: u32, b: u32| a.max(b)),
        "popc.b32" => unary(u32::count_ones),
        "popc.b64" => unary(u64::count_ones),
        "bfi.b32" => bfi(),
        "prmt.b32" => ternary(prmt),
        "dp4a.s32.s32" => ternary(dp4a),
        _ => None,
    }
}

/// Marks the second operand as a divisor.
fn divides(compute: Option<Compute>) -> Option<Compute> {
    compute.map(|compute| Compute { divisor: Some(2), ..compute })
}

/// `bfi.b32 d, a, b, c, e`: the lower `e` bits of `a` replace those of `b` from bit `c` on. Only
/// the lower 8 bits of `c` and `e` count.
fn bfi() -> Option<Compute> {
    let run = |registers: &mut Registers, at: &Places, lanes: u32| {
        let [a, b, c, e] = [1, 2, 3, 4].map(|i| u32::load(registers, at[i]));
        let d: [u32; LANES] =
            std::array::from_fn(|lane| insert(a[lane], b[lane], c[lane] & 255, e[lane] & 255));
        u32::store(registers, at[0], &d, lanes);
    };
    compute(&[Class::Word; 5], Box::new(run))
}

fn insert(a: u32, b: u32, position: u32, n: u32) -> u32 {
    let bits = ((1_u64 << n.min(32)) - 1) << position.min(32);
    let moved = u64::from(a) << position.min(32);
    (u64::from(b) & !bits | moved & bits) as u32
}

/// Bytes of `a` (0 to 3) and `b` (4 to 7), selected by the lower three bits of four nibbles; a
/// nibble with the fourth bit repeats the sign of its byte.
fn prmt(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    let mut d = 0;
    for i in 0..4 {
        let nibble = selector >> (4 * i) & 15;
        let byte = (bytes >> (8 * (nibble & 7))) as u8;
        let sign = if byte & 0x80 == 0 { 0 } else { 0xff };
        d |= u32::from(if nibble & 8 == 0 { byte } else { sign }) << (8 * i);
    }
    d
}

/// `c` plus the sum of the products of the four signed bytes of `a` and `b`.
pub(super) fn dp4a(a: u32, b: u32, c: u32) -> u32 {
    let (a, b) = (a.to_le_bytes(), b.to_le_bytes());
    let product = |i: usize| i32::from(a[i] as i8) * i32::from(b[i] as i8);
    c.wrapping_add((product(0) + product(1) + product(2) + product(3)) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_selected_and_signs_repeated() {
        assert_eq!(prmt(0x3322_1100, 0x7766_5544, 0x7520), 0x7755_2200);
        assert_eq!(prmt(0x3322_8100, 0, 0x8989), 0x00ff_00ff);
    }

    #[test]
    fn bit_fields_are_inserted() {
        assert_eq!(insert(0b101, 0xffff_ffff, 4, 3), 0xffff_ffdf);
        assert_eq!(insert(0xffff_ffff, 0, 7, 25), 0xffff_ff80);
        assert_eq!(insert(0xffff_ffff, 0, 0, 32), 0xffff_ffff);
        assert_eq!(insert(0xffff_ffff, 5, 32, 8), 5);
        assert_eq!(insert(0xffff_ffff, 5, 255, 255), 5);
    }

    #[test]
    fn products_of_bytes_are_signed() {
        assert_eq!(dp4a(0x80ff_7f01, 0x8001_7f02, 10) as i32, 16384 - 1 + 16129 + 2 + 10);
    }
}
