//! The values of the IQ formats that store several of them as one code: the code is a place in a table.

use super::grid_codes;

const TWO_BITS: [i8; 4] = [8, 25, 43, 0];

pub(super) static IQ2_XXS: [[i8; 8]; 256] = expand(&grid_codes::IQ2_XXS, &TWO_BITS);
pub(super) static IQ2_XS: [[i8; 8]; 512] = expand(&grid_codes::IQ2_XS, &TWO_BITS);
pub(super) static IQ2_S: [[i8; 8]; 1024] = expand(&grid_codes::IQ2_S, &TWO_BITS);
pub(super) static IQ3_XXS: [[i8; 4]; 256] =
    expand(&grid_codes::IQ3_XXS, &[4, 12, 20, 28, 36, 44, 52, 62]);
pub(super) static IQ3_S: [[i8; 4]; 512] = expand(&grid_codes::IQ3_S, &[1, 3, 5, 7, 9, 11, 13, 15]);
/// Eighths, so that the eighth that is added to or taken off all values is 1.
pub(super) static IQ1: [[i8; 8]; 2048] = expand(&grid_codes::IQ1, &[-8, 0, 8, 0]);

/// For each byte of signs, -1 where its bit is set.
static NEGATIVE: [[i8; 8]; 256] = {
    let mut out = [[0; 8]; 256];
    let mut i = 0;
    while i < 8 * 256 {
        out[i / 8][i % 8] = -(((i / 8) >> (i % 8) & 1) as i8);
        i += 1;
    }
    out
};

const fn expand<const VALUES: usize, const N: usize>(
    packed: &[u16; N],
    levels: &[i8],
) -> [[i8; VALUES]; N] {
    let (mut out, mut i) = ([[0; VALUES]; N], 0);
    while i < VALUES * N {
        let (at, bits) = (i % VALUES, 16 / VALUES);
        let level = packed[i / VALUES] >> (bits * at) & ((1 << bits) - 1);
        out[i / VALUES][at] = levels[level as usize];
        i += 1;
    }
    out
}

/// Gives value j the sign of bit j.
#[inline]
pub(super) fn set_signs(codes: &mut [i8], signs: u8) {
    for (code, &negative) in codes.iter_mut().zip(&NEGATIVE[usize::from(signs)]) {
        *code = (*code ^ negative).wrapping_sub(negative);
    }
}

/// The last seven bits as signs; the eighth makes their number even.
#[inline]
pub(super) fn even_signs(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | (seven.count_ones() as u8 & 1) << 7
}
