//! Code shared by all quantised block formats.

use half::f16;

use super::grid::sixteens;

/// Quantises the values of one block.
pub(super) type Quantize = fn(&[f32], &mut [u8]);

/// How the codes of a format are stored in a row per neuron (`TransposedLayout`).
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
/// after each of the two steps.
#[derive(Clone, Copy, Debug)]
pub struct Quants {
    /// Consecutive values that share a scale and a minimum.
    pub group: usize,
    /// How codes are stored in the transposed layout.
    pub code: Code,
    /// Whether a group's scale and minimum are f32 products; otherwise they are f16 as in the
    /// file.
    pub wide_scales: bool,
    /// Whether groups have a minimum that can be nonzero.
    pub has_min: bool,
    pub(super) unpack: fn(&[u8], &mut Unpacked),
}

/// One unpacked block. Entries past the format's block and group counts are unspecified.
#[derive(Clone, Debug)]
pub struct Unpacked {
    /// `[block_values]`, each small enough that a product with an 8-bit number fits in 16 bits.
    pub codes: [i8; 256],
    /// `[block_values / group]`
    pub scales: [f32; 16],
    /// `[block_values / group]`
    pub mins: [f32; 16],
}

impl Unpacked {
    /// All zeros.
    pub const ZERO: Unpacked = Unpacked { codes: [0; 256], scales: [0.0; 16], mins: [0.0; 16] };
}

impl Default for Unpacked {
    fn default() -> Self {
        Self::ZERO
    }
}

impl Quants {
    /// Unpacks `block` into `parts`.
    ///
    /// # Panics
    /// If `block` is shorter than a block of the format.
    #[inline]
    pub fn unpack(&self, block: &[u8], parts: &mut Unpacked) {
        (self.unpack)(block, parts);
    }

    pub(super) fn dequantize_block(&self, block: &[u8], out: &mut [f32]) {
        let mut parts = Unpacked::default();
        self.unpack(block, &mut parts);
        let groups = out.chunks_exact_mut(self.group).zip(parts.codes.chunks_exact(self.group));
        for ((out, codes), (scale, min)) in groups.zip(parts.scales.iter().zip(&parts.mins)) {
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

/// Writes `value` as f16 at byte `at` and returns what was stored.
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

/// The `i`th nibble of `bytes`, the low one of a byte first.
#[inline]
pub(super) fn nibble(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 2] >> (4 * (i % 2)) & 15
}

/// Looks up the codes for the nibbles of 16 bytes, the low nibbles first.
#[inline]
pub(super) fn look_up(pairs: &[u8], table: &[i8; 16], codes: &mut [i8]) {
    let (low, high) = codes.split_at_mut(16);
    for ((low, high), &pair) in low.iter_mut().zip(high).zip(pairs) {
        *low = table[usize::from(pair & 15)];
        *high = table[usize::from(pair >> 4)];
    }
}

/// 32 codes of five bits: 4 bytes of fifth bits, then 16 bytes of nibbles, the low ones first.
#[inline]
pub(super) fn five_bits(bytes: &[u8], codes: &mut [i8]) {
    let (codes, pairs) = (codes.as_chunks_mut::<8>().0, bytes[4..20].as_chunks::<8>().0);
    for (i, (codes, &fifths)) in codes.iter_mut().zip(&bytes[..4]).enumerate() {
        for ((code, pair), fifth) in codes.iter_mut().zip(pairs[i % 2]).zip(sixteens(fifths)) {
            *code = (pair >> (4 * (i / 2)) & 15 | fifth) as i8;
        }
    }
}

/// Inverse of [`five_bits`].
pub(super) fn write_five_bits(codes: &[u8; 32], bytes: &mut [u8]) {
    let fifths = codes.iter().rev().fold(0, |bits, code| bits << 1 | u32::from(code >> 4));
    bytes[..4].copy_from_slice(&fifths.to_le_bytes());
    for (j, pair) in bytes[4..20].iter_mut().enumerate() {
        *pair = (codes[j] & 15) | codes[j + 16] << 4;
    }
}

/// `1 / scale`, and 0 for 0: all codes of a block with scale zero are zero.
pub(super) fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}
