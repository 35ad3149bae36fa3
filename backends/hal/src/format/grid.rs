//! Value tables of the IQ formats, which store several values as one index into a table.
//!
//! An entry is one word with a value in each byte, the first value in the lowest byte. An XOR and
//! an addition on the word negate all values whose sign bit is set. The SIMD kernels read these
//! tables, or the packed tables of [`grid_codes`], too.

use super::grid_codes;

/// The values of the 2-bit numbers in the IQ2 tables; 3 does not occur.
pub const IQ2_LEVELS: [u8; 4] = [8, 25, 43, 0];
/// The values of the 3-bit numbers in the IQ3_XXS table.
pub const IQ3_XXS_LEVELS: [u8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
/// The values of the 3-bit numbers in the IQ3_S table.
pub const IQ3_S_LEVELS: [u8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];
/// The offset of the values in [`IQ1`].
pub const IQ1_OFFSET: u8 = 136;
/// The values of the 2-bit numbers in the IQ1 table; 3 does not occur.
pub const IQ1_LEVELS: [u8; 4] = [IQ1_OFFSET - 8, IQ1_OFFSET, IQ1_OFFSET + 8, 0];

/// The table of IQ2_XXS: eight values per entry.
pub static IQ2_XXS: [u64; 256] = expand_eight(&grid_codes::IQ2_XXS, &IQ2_LEVELS);
/// The table of IQ2_XS: eight values per entry.
pub static IQ2_XS: [u64; 512] = expand_eight(&grid_codes::IQ2_XS, &IQ2_LEVELS);
/// The table of IQ2_S: eight values per entry.
pub static IQ2_S: [u64; 1024] = expand_eight(&grid_codes::IQ2_S, &IQ2_LEVELS);
/// The table of IQ3_XXS: four values per entry.
pub static IQ3_XXS: [u32; 256] = expand_four(&grid_codes::IQ3_XXS, &IQ3_XXS_LEVELS);
/// The table of IQ3_S: four values per entry.
pub static IQ3_S: [u32; 512] = expand_four(&grid_codes::IQ3_S, &IQ3_S_LEVELS);
/// The table of IQ1_S and IQ1_M: the values -1, 0 and 1 in eighths (-8, 0 and 8), plus
/// [`IQ1_OFFSET`] so that they fit in unsigned bytes.
pub static IQ1: [u64; 2048] = expand_eight(&grid_codes::IQ1, &IQ1_LEVELS);

/// The lowest bit of each byte.
const ONES: u64 = 0x0101_0101_0101_0101;

/// For each byte of sign bits, a word with 0xff in every byte whose sign bit is set.
static NEGATIVE: [u64; 256] = {
    let (mut out, mut i) = ([0; 256], 0);
    while i < 8 * 256 {
        out[i / 8] |= (((i / 8) >> (i % 8) & 1) as u64 * 255) << (8 * (i % 8));
        i += 1;
    }
    out
};

/// Like [`NEGATIVE`], for seven sign bits. The eighth makes the number of set bits even.
static EVEN_NEGATIVE: [u64; 128] = {
    let (mut out, mut i) = ([0; 128], 0);
    while i < 128 {
        out[i] = NEGATIVE[i | (i.count_ones() as usize & 1) << 7];
        i += 1;
    }
    out
};

/// Expands table entries of eight 2-bit codes to one byte per value; a code selects one of
/// `levels`.
const fn expand_eight<const N: usize>(packed: &[u16; N], levels: &[u8; 4]) -> [u64; N] {
    let (mut out, mut i) = ([0; N], 0);
    while i < 8 * N {
        let level = packed[i / 8] >> (2 * (i % 8)) & 3;
        out[i / 8] |= (levels[level as usize] as u64) << (8 * (i % 8));
        i += 1;
    }
    out
}

/// Expands table entries of four 4-bit codes to one byte per value; a code selects one of
/// `levels`.
const fn expand_four<const N: usize>(packed: &[u16; N], levels: &[u8; 8]) -> [u32; N] {
    let (mut out, mut i) = ([0; N], 0);
    while i < 4 * N {
        let level = packed[i / 4] >> (4 * (i % 4)) & 7;
        out[i / 4] |= (levels[level as usize] as u32) << (8 * (i % 4));
        i += 1;
    }
    out
}

fn negate(values: u64, negative: u64) -> [i8; 8] {
    // No value is zero, so the addition never carries into the next byte.
    bytemuck::cast(((values ^ negative) + (negative & ONES)).to_le_bytes())
}

/// The values of two entries with four values each.
#[inline]
pub(super) fn join(first: u32, second: u32) -> u64 {
    u64::from(first) | u64::from(second) << 32
}

/// Eight values of a table with signs applied; bit j of `signs` is the sign of value j.
#[inline]
pub(super) fn apply_signs(values: u64, signs: u8) -> [i8; 8] {
    negate(values, NEGATIVE[usize::from(signs)])
}

/// Like [`apply_signs`], with the lowest seven bits of `seven` as sign bits. The eighth makes the
/// number of set bits even.
#[inline]
pub(super) fn even_signed(values: u64, seven: u32) -> [i8; 8] {
    negate(values, EVEN_NEGATIVE[(seven & 127) as usize])
}

/// The eight values of entry `index` of the IQ1 table, in eighths, with one eighth subtracted or
/// added.
#[inline]
pub(super) fn iq1_eighths(index: usize, subtract: bool) -> [i8; 8] {
    // Subtracting 8 and flipping the top bit would remove the offset of 136. With 9 this also
    // subtracts one eighth, with 7 it adds one.
    let less = ONES * if subtract { 9 } else { 7 };
    bytemuck::cast(((IQ1[index] - less) ^ (128 * ONES)).to_le_bytes())
}

/// 16 in each byte whose bit is set, otherwise 0.
#[inline]
pub(super) fn sixteen_if_set(bits: u8) -> [u8; 8] {
    (NEGATIVE[usize::from(bits)] & (16 * ONES)).to_le_bytes()
}
