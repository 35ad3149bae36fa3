//! Value tables of the IQ formats, which store several values as one code: an index into a table.
//!
//! An entry is one word with a value in each byte, the first in the lowest, so that the signs of
//! all values are applied at once.

use super::grid_codes;

const TWO_BITS: [u8; 4] = [8, 25, 43, 0];

pub(super) static IQ2_XXS: [u64; 256] = expand(&grid_codes::IQ2_XXS, &TWO_BITS);
pub(super) static IQ2_XS: [u64; 512] = expand(&grid_codes::IQ2_XS, &TWO_BITS);
pub(super) static IQ2_S: [u64; 1024] = expand(&grid_codes::IQ2_S, &TWO_BITS);
/// Four values.
pub(super) static IQ3_XXS: [u64; 256] =
    expand(&grid_codes::IQ3_XXS, &[4, 12, 20, 28, 36, 44, 52, 62]);
/// Four values.
pub(super) static IQ3_S: [u64; 512] = expand(&grid_codes::IQ3_S, &[1, 3, 5, 7, 9, 11, 13, 15]);
/// Values in eighths, shifted up by 136.
static IQ1: [u64; 2048] = expand(&grid_codes::IQ1, &[128, 136, 144, 0]);

/// The lowest bit of each byte.
const ONES: u64 = 0x0101_0101_0101_0101;

/// For each byte of signs: 0xff in each byte whose bit is set.
static NEGATIVE: [u64; 256] = {
    let (mut out, mut i) = ([0; 256], 0);
    while i < 8 * 256 {
        out[i / 8] |= (((i / 8) >> (i % 8) & 1) as u64 * 255) << (8 * (i % 8));
        i += 1;
    }
    out
};

/// As [`NEGATIVE`] for seven signs; the eighth makes the number of set signs even.
static EVEN: [u64; 128] = {
    let (mut out, mut i) = ([0; 128], 0);
    while i < 128 {
        out[i] = NEGATIVE[i | (i.count_ones() as usize & 1) << 7];
        i += 1;
    }
    out
};

const fn expand<const N: usize>(packed: &[u16; N], levels: &[u8]) -> [u64; N] {
    let (bits, mut out, mut i) = (if levels.len() == 8 { 4 } else { 2 }, [0; N], 0);
    while i < N {
        let mut at = 0;
        while at < 16 / bits {
            let level = packed[i] >> (bits * at) & ((1 << bits) - 1);
            out[i] |= (levels[level as usize] as u64) << (8 * at);
            at += 1;
        }
        i += 1;
    }
    out
}

fn negate(values: u64, negative: u64) -> [i8; 8] {
    // No value is zero, so nothing carries from byte to byte.
    bytemuck::cast(((values ^ negative) + (negative & ONES)).to_le_bytes())
}

/// Eight values of a table with signs applied, bit j for value j.
#[inline]
pub(super) fn signed(values: u64, signs: u8) -> [i8; 8] {
    negate(values, NEGATIVE[usize::from(signs)])
}

/// As [`signed`] with the lowest seven bits of `seven`; the eighth sign makes the number of set
/// signs even.
#[inline]
pub(super) fn even_signed(values: u64, seven: u32) -> [i8; 8] {
    negate(values, EVEN[(seven & 127) as usize])
}

/// Eight values of the IQ1 table in eighths, with one eighth subtracted or added.
#[inline]
pub(super) fn eighths(place: usize, take_off: bool) -> [i8; 8] {
    let less = ONES * if take_off { 9 } else { 7 };
    bytemuck::cast(((IQ1[place] - less) ^ (128 * ONES)).to_le_bytes())
}

/// 16 in each byte whose bit is set, otherwise 0.
#[inline]
pub(super) fn sixteens(bits: u8) -> [u8; 8] {
    (NEGATIVE[usize::from(bits)] & (16 * ONES)).to_le_bytes()
}
