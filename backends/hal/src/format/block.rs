//! Code shared by all quantised block formats.

use half::f16;

use super::grid::sixteen_if_set;

/// Quantises the values of one block.
pub(super) type Quantize = fn(&[f32], Option<Importance<'_>>, &mut [u8]);

/// How much the errors of a block's values count, from an importance matrix.
#[derive(Clone, Copy, Debug)]
pub(super) struct Importance<'a> {
    /// `[block_values]`: the mean square of each column's input.
    pub(super) columns: &'a [f32],
    /// The mean square of the weights of the whole row.
    pub(super) row_power: f32,
}

impl Importance<'_> {
    /// The weights of the errors of group `g`: `column * sqrt(power + value^2)`.
    ///
    /// Source: ggml.
    pub(super) fn weights<const N: usize>(
        &self,
        g: usize,
        values: &[f32; N],
        power: f32,
    ) -> [f32; N] {
        let columns = &self.columns[N * g..N * (g + 1)];
        core::array::from_fn(|i| columns[i] * (power + values[i] * values[i]).sqrt())
    }
}

/// The mean square of `values`.
pub(super) fn power(values: &[f32]) -> f32 {
    values.iter().map(|v| v * v).sum::<f32>() / values.len().max(1) as f32
}

/// How the transposed layout ([`super::TransposedLayout`]) stores the codes of a format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Code {
    /// Two codes per byte, each stored as `code + offset` in `0..16`.
    Nibble {
        /// Subtracted from the stored nibble.
        offset: i8,
    },
    /// One signed byte per code.
    Byte,
}

/// How a block of a quantised format is unpacked.
///
/// For every such format `value[i] = scale[i / group] * code[i] - min[i / group]`, rounded to f32
/// after the multiplication and after the subtraction.
#[derive(Clone, Copy, Debug)]
pub struct Quants {
    /// Consecutive values that share a scale and a minimum.
    pub group: usize,
    /// How codes are stored in the transposed layout.
    pub code: Code,
    /// Whether the transposed layout stores a group's scale and minimum as f32, because f16 cannot
    /// represent them; otherwise they are f16 as in the file.
    pub wide_scales: bool,
    /// Whether groups have a minimum that can be nonzero.
    pub has_min: bool,
    pub(super) unpack: fn(&[u8], &mut UnpackedBlock),
}

/// One unpacked block. Entries past the format's number of values and groups are unspecified.
#[derive(Clone, Debug)]
pub struct UnpackedBlock {
    /// `[block_values]`: the codes.
    pub codes: [i8; 256],
    /// `[block_values / group]`: the scale of each group.
    pub scales: [f32; 16],
    /// `[block_values / group]`: the minimum of each group, which is subtracted.
    pub mins: [f32; 16],
}

impl UnpackedBlock {
    /// All zeros.
    pub const ZERO: UnpackedBlock =
        UnpackedBlock { codes: [0; 256], scales: [0.0; 16], mins: [0.0; 16] };
}

impl Default for UnpackedBlock {
    fn default() -> Self {
        Self::ZERO
    }
}

impl Quants {
    /// Unpacks `block` into `unpacked`.
    ///
    /// # Panics
    /// If `block` is shorter than a block of the format.
    #[inline]
    pub fn unpack(&self, block: &[u8], unpacked: &mut UnpackedBlock) {
        (self.unpack)(block, unpacked);
    }

    pub(super) fn dequantize_block(&self, block: &[u8], out: &mut [f32]) {
        let mut unpacked = UnpackedBlock::default();
        self.unpack(block, &mut unpacked);
        let groups = out.chunks_exact_mut(self.group).zip(unpacked.codes.chunks_exact(self.group));
        for ((out, codes), (scale, min)) in groups.zip(unpacked.scales.iter().zip(&unpacked.mins)) {
            for (out, &code) in out.iter_mut().zip(codes) {
                *out = scale * f32::from(code) - min;
            }
        }
    }
}

/// The f16 at byte `at`.
pub(super) fn read_f16(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Writes `value` as f16 at byte `at` and returns the rounded value.
pub(super) fn write_f16(bytes: &mut [u8], at: usize, value: f32) -> f32 {
    let stored = f16::from_f32(value);
    bytes[at..at + 2].copy_from_slice(&stored.to_le_bytes());
    stored.to_f32()
}

/// The `i`th u16 of `bytes`.
#[inline]
pub(super) fn read_u16(bytes: &[u8], i: usize) -> u16 {
    u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])
}

/// The `i`th u32 of `bytes`.
#[inline]
pub(super) fn read_u32(bytes: &[u8], i: usize) -> u32 {
    u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
}

/// The `i`th nibble of `bytes`; the low nibble of a byte comes first.
#[inline]
pub(super) fn nibble(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 2] >> (4 * (i % 2)) & 15
}

/// Looks up 32 codes for the nibbles of 16 bytes: first the low nibbles, then the high nibbles.
#[inline]
pub(super) fn look_up(pairs: &[u8], table: &[i8; 16], codes: &mut [i8]) {
    let (low, high) = codes.split_at_mut(16);
    for ((low, high), &pair) in low.iter_mut().zip(high).zip(pairs) {
        *low = table[usize::from(pair & 15)];
        *high = table[usize::from(pair >> 4)];
    }
}

/// Reads 32 five-bit codes from 4 bytes with their high bits and 16 bytes of nibbles. The low
/// nibbles belong to the first 16 codes.
#[inline]
pub(super) fn five_bits(bytes: &[u8], codes: &mut [i8]) {
    let (codes, pairs) = (codes.as_chunks_mut::<8>().0, bytes[4..20].as_chunks::<8>().0);
    for (i, (codes, &high_bits)) in codes.iter_mut().zip(&bytes[..4]).enumerate() {
        for ((code, pair), high_bit) in
            codes.iter_mut().zip(pairs[i % 2]).zip(sixteen_if_set(high_bits))
        {
            *code = (pair >> (4 * (i / 2)) & 15 | high_bit) as i8;
        }
    }
}

pub(super) fn write_five_bits(codes: &[u8; 32], bytes: &mut [u8]) {
    let high_bits = codes.iter().rev().fold(0, |bits, code| bits << 1 | u32::from(code >> 4));
    bytes[..4].copy_from_slice(&high_bits.to_le_bytes());
    for (j, pair) in bytes[4..20].iter_mut().enumerate() {
        *pair = (codes[j] & 15) | codes[j + 16] << 4;
    }
}

/// The value of the largest magnitude; 0 for no values.
pub(super) fn farthest_from_zero(values: &[f32]) -> f32 {
    values.iter().fold(0.0f32, |far, &v| if v.abs() > far.abs() { v } else { far })
}

/// `1 / scale`, or 0 for scale 0, so that all codes of such a block become 0.
pub(super) fn inverse_or_zero(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}
