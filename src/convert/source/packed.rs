//! Quantised weights of a checkpoint: codes of 2 to 8 bits. A weight is the number that its code
//! denotes, times a scale.
//!
//! Source: the layouts of compressed-tensors, GPTQ and AWQ, as vLLM reads them; 8-bit floats as in the
//! OCP 8-bit Floating Point Specification.

use hal::format::Format;

use super::{Encoding, Tensor};
use crate::Error;
use gguf::Bytes;

/// 8-bit floats with 4 exponent bits: no infinities, NaN in the last code.
const E4M3: [f32; 256] = table(4);
/// 8-bit floats with 5 exponent bits: the upper halves of F16.
const E5M2: [f32; 256] = table(5);

/// The values of all codes of 8-bit floats.
const fn table(exponent_bits: u32) -> [f32; 256] {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        values[code] = float8(code as u32, exponent_bits);
        code += 1;
    }
    values
}

const fn float8(code: u32, exponent_bits: u32) -> f32 {
    let mantissa_bits = 7 - exponent_bits;
    let (exponent, mantissa) =
        (code >> mantissa_bits & ((1 << exponent_bits) - 1), { code & ((1 << mantissa_bits) - 1) });
    let bias = (1 << (exponent_bits - 1)) - 1;
    let is_last = exponent == (1 << exponent_bits) - 1;
    let magnitude = if is_last && exponent_bits == 5 {
        if mantissa == 0 { f32::INFINITY } else { f32::NAN }
    } else if code & 0x7f == 0x7f {
        f32::NAN
    } else if exponent == 0 {
        // Subnormal numbers have the exponent of field value 1, but no leading bit.
        mantissa as f32 * f32::from_bits((128 - bias - mantissa_bits) << 23)
    } else {
        f32::from_bits((exponent + 127 - bias) << 23 | mantissa << (23 - mantissa_bits))
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// 4-bit floats (E2M1), as in the OCP Microscaling Formats Specification.
const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Values of a block of MXFP4.
pub(super) const MXFP4_VALUES: usize = 32;

/// How a code is stored.
#[derive(Clone, Debug)]
pub(super) enum Codes {
    Float8E4M3,
    Float8E5M2,
    Int8,
    /// 4-bit floats, two in a byte, the first in the lower half.
    Float4,
    /// The tensor's bytes are 32-bit words.
    Words(Layout),
}

/// A matrix of small integers in 32-bit words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// 2, 4 or 8.
    pub(super) bits: u32,
    /// Whether a word holds values of one column, from consecutive rows.
    pub(super) down: bool,
    /// The order of AWQ, where odd columns follow even ones in a word.
    pub(super) alternating: bool,
    /// Columns of the matrix, in values.
    pub(super) n_cols: usize,
}

impl Layout {
    pub(super) fn per_word(self) -> usize {
        (32 / self.bits) as usize
    }

    fn get(self, words: &[u8], row: usize, col: usize) -> i32 {
        let per = self.per_word();
        let (word, within) = if self.down {
            (row / per * self.n_cols + col, row % per)
        } else {
            (row * self.n_cols.div_ceil(per) + col / per, col % per)
        };
        let within = if self.alternating { within % 2 * (per / 2) + within / 2 } else { within };
        let bytes = &words[4 * word..4 * word + 4];
        let word = u32::from_le_bytes(bytes.try_into().expect("four bytes"));
        let mask = (1u32 << self.bits) - 1;
        (word >> (self.bits * within as u32) & mask) as i32
    }
}

/// The code of zero.
#[derive(Clone, Debug)]
pub(super) enum Zero {
    At(i32),
    /// One for each scale, plus a constant.
    Words(Layout, Bytes, i32),
}

/// Floats of a small tensor: scales.
#[derive(Clone, Debug)]
pub(super) struct Numbers {
    bytes: Bytes,
    kind: NumberKind,
}

#[derive(Clone, Copy, Debug)]
enum NumberKind {
    Float(Format),
    /// Powers of two.
    E8M0,
}

impl Numbers {
    /// # Errors
    /// Any type but F32, F16, BF16 and E8M0.
    pub(super) fn new(tensor: &Tensor) -> Result<Numbers, Error> {
        let kind = match tensor.encoding {
            Encoding::Plain(format) if format.block_values() == 1 => NumberKind::Float(format),
            Encoding::Other("F8_E8M0") => NumberKind::E8M0,
            Encoding::Plain(_) | Encoding::F64 | Encoding::U8 | Encoding::Other(_) => {
                let (tensor, found) = (tensor.name.clone(), tensor.encoding.name().to_owned());
                return Err(Error::Encoding { tensor, expected: "F32, F16 or BF16", found });
            }
        };
        Ok(Numbers { bytes: tensor.bytes.clone(), kind })
    }

    /// Powers of two of a tensor of F8_E8M0, or of their bytes.
    ///
    /// # Errors
    /// Any other type.
    pub(super) fn powers(tensor: &Tensor) -> Result<Numbers, Error> {
        match tensor.encoding {
            Encoding::Other("F8_E8M0") | Encoding::U8 => {
                Ok(Numbers { bytes: tensor.bytes.clone(), kind: NumberKind::E8M0 })
            }
            Encoding::Plain(_) | Encoding::F64 | Encoding::Other(_) => {
                let (tensor, found) = (tensor.name.clone(), tensor.encoding.name().to_owned());
                Err(Error::Encoding { tensor, expected: "F8_E8M0", found })
            }
        }
    }

    fn get(&self, i: usize) -> f32 {
        match self.kind {
            NumberKind::Float(format) => {
                let (mut value, n) = ([0.0], format.block_bytes());
                format.dequantize(&self.bytes[n * i..n * (i + 1)], &mut value);
                value[0]
            }
            NumberKind::E8M0 => (f32::from(self.bytes[i]) - 127.0).exp2(),
        }
    }
}

/// The meaning of the codes of a tensor, in the order in which they are stored.
#[derive(Clone, Debug)]
pub(crate) struct Packing {
    pub(super) codes: Codes,
    /// Rows and columns of one matrix.
    pub(super) n_rows: usize,
    pub(super) n_cols: usize,
    pub(super) scales: Numbers,
    /// Rows and columns that share a scale.
    pub(super) block: [usize; 2],
    /// Number of scales of one matrix; 0 if all matrices share the same scales.
    pub(super) n_scales: usize,
    /// The row of scales of each row, if not by blocks: 32-bit integers.
    pub(super) groups: Option<Bytes>,
    pub(super) zero: Zero,
}

impl Packing {
    /// Fills `out` with the values from index `first` on.
    pub(crate) fn decode(&self, bytes: &[u8], first: usize, out: &mut [f32]) {
        let (mut at, mut rest) = (first, out);
        let scale_cols = self.n_cols.div_ceil(self.block[1]);
        while !rest.is_empty() {
            let (row, col) = (at / self.n_cols, at % self.n_cols);
            let (matrix, within) = (row / self.n_rows, row % self.n_rows);
            let n = (self.n_cols - col).min(self.block[1] - col % self.block[1]).min(rest.len());
            let (now, later) = rest.split_at_mut(n);
            let (scale_row, scale_col) = (self.scale_row(within), col / self.block[1]);
            let scale = matrix * self.n_scales + scale_row * scale_cols + scale_col;
            self.numbers(bytes, (row, col), self.zero_of(scale_row, scale_col), now);
            let scale = self.scales.get(scale);
            now.iter_mut().for_each(|value| *value *= scale);
            (at, rest) = (at + n, later);
        }
    }

    /// Whether these are blocks of MXFP4, whose bits a file can have as they are.
    pub(crate) fn is_mxfp4(&self) -> bool {
        let is_power = matches!(self.scales.kind, NumberKind::E8M0);
        matches!(self.codes, Codes::Float4) && is_power && self.block == [1, MXFP4_VALUES]
    }

    /// The scale and the codes of each block of a row, for [`Packing::is_mxfp4`].
    pub(crate) fn mxfp4_row<'a>(
        &'a self,
        bytes: &'a [u8],
        row: usize,
    ) -> impl Iterator<Item = (u8, &'a [u8])> {
        let n_blocks = self.n_cols / MXFP4_VALUES;
        let codes = bytes[row * self.n_cols / 2..].chunks_exact(MXFP4_VALUES / 2);
        self.scales.bytes[row * n_blocks..][..n_blocks].iter().copied().zip(codes)
    }

    fn scale_row(&self, row: usize) -> usize {
        match &self.groups {
            None => row / self.block[0],
            Some(groups) => {
                let bytes = &groups[4 * row..4 * row + 4];
                u32::from_le_bytes(bytes.try_into().expect("four bytes")) as usize
            }
        }
    }

    fn zero_of(&self, row: usize, col: usize) -> i32 {
        match &self.zero {
            Zero::At(zero) => *zero,
            Zero::Words(layout, words, more) => layout.get(words, row, col) + more,
        }
    }

    /// The numbers, before scaling, from a row and column on.
    fn numbers(&self, bytes: &[u8], (row, col): (usize, usize), zero: i32, out: &mut [f32]) {
        let first = row * self.n_cols + col;
        let stored = |out: &[f32]| &bytes[first..first + out.len()];
        let look_up = |table: &[f32; 256], out: &mut [f32]| {
            let codes = stored(out);
            out.iter_mut().zip(codes).for_each(|(out, &code)| *out = table[usize::from(code)]);
        };
        match &self.codes {
            Codes::Float8E4M3 => look_up(&E4M3, out),
            Codes::Float8E5M2 => look_up(&E5M2, out),
            Codes::Int8 => {
                let codes = stored(out);
                for (out, &code) in out.iter_mut().zip(codes) {
                    *out = (i32::from(code.cast_signed()) - zero) as f32;
                }
            }
            Codes::Float4 => {
                for (i, out) in (first..).zip(out) {
                    *out = E2M1[usize::from(bytes[i / 2] >> (4 * (i % 2)) & 15)];
                }
            }
            Codes::Words(layout) => {
                for (i, out) in out.iter_mut().enumerate() {
                    *out = (layout.get(bytes, row, col + i) - zero) as f32;
                }
            }
        }
    }

    /// The default format of such weights in a file: that of the scales if they have 16 bits.
    pub(crate) fn nearest(&self) -> Format {
        match (&self.codes, self.scales.kind) {
            (Codes::Words(_), NumberKind::Float(Format::F16)) => Format::F16,
            (_, _) => Format::BF16,
        }
    }

    /// The mapped bytes beside the codes.
    pub(crate) fn sources(&self) -> impl Iterator<Item = &Bytes> {
        let zeros = match &self.zero {
            Zero::At(_) => None,
            Zero::Words(_, words, _) => Some(words),
        };
        [Some(&self.scales.bytes), self.groups.as_ref(), zeros].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bit_floats_have_their_published_values() {
        // Largest, smallest normal and smallest number of each kind.
        assert_eq!((E4M3[0x7e], E4M3[0x08], E4M3[0x01]), (448.0, 0.015625, 0.001953125));
        assert_eq!((E4M3[0x38], E4M3[0xb9], E4M3[0x80].to_bits()), (1.0, -1.125, 1 << 31));
        assert!(E4M3[0x7f].is_nan() && E4M3[0xff].is_nan());
        assert_eq!((E5M2[0x7b], E5M2[0x04], E5M2[0x01]), (57344.0, 2f32.powi(-14), 2f32.powi(-16)));
        assert!(E5M2[0x7c] == f32::INFINITY && E5M2[0xfd].is_nan());
        for code in 0..=255u8 {
            let mut half = [0.0];
            Format::F16.dequantize(&[0, code], &mut half);
            let same = E5M2[usize::from(code)].to_bits() == half[0].to_bits();
            assert!(same || half[0].is_nan(), "code {code}");
        }
    }

    #[test]
    fn four_bit_floats_have_their_published_values() {
        // The file's MXFP4 has the same codes: a block with a scale of 1.
        let mut block = [0u8; 17];
        block[0] = 127;
        (0..16u8).for_each(|code| block[1 + usize::from(code)] = code);
        let mut values = [0.0; 32];
        Format::MXFP4.dequantize(&block, &mut values);
        assert_eq!(values[..16], E2M1);
    }

    #[test]
    fn words_hold_values_of_a_row_or_a_column() {
        let word = |values: [u32; 8]| {
            let all = values.iter().enumerate().map(|(i, value)| value << (4 * i));
            all.sum::<u32>().to_le_bytes()
        };
        let words = [word([0, 1, 2, 3, 4, 5, 6, 7]), word([8, 9, 10, 11, 12, 13, 14, 15])].concat();
        let row = Layout { bits: 4, down: false, alternating: false, n_cols: 16 };
        let values: Vec<i32> = (0..16).map(|col| row.get(&words, 0, col)).collect();
        assert_eq!(values, (0..16).collect::<Vec<i32>>());
        let down = Layout { down: true, n_cols: 2, ..row };
        assert_eq!((down.get(&words, 3, 0), down.get(&words, 3, 1)), (3, 11));
        let awq = Layout { alternating: true, ..row };
        let values: Vec<i32> = (0..8).map(|col| awq.get(&words, 0, col)).collect();
        assert_eq!(values, [0, 4, 1, 5, 2, 6, 3, 7]);
        let bytes = Layout { bits: 8, n_cols: 4, ..row };
        assert_eq!(bytes.get(&words, 1, 0), 0x98);
    }
}
