//! What all quantised blocks have in common.

use half::f16;

/// How the codes of a format are kept where one row holds one neuron (`TransposedLayout`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Code {
    /// Two codes per byte, each stored as `code + offset` in `0..16`.
    Nibble {
        /// What to take away from the stored nibble.
        offset: i8,
    },
    /// One signed byte per code.
    Byte,
}

/// How a block of a quantised format comes apart.
///
/// For every such format `value[i] = scale[i / group] * code[i] - min[i / group]`, rounded to f32
/// after each of the two steps.
#[derive(Clone, Copy, Debug)]
pub struct Quants {
    /// Consecutive values that share a scale and a minimum.
    pub group: usize,
    /// How codes are kept in the transposed layout.
    pub code: Code,
    /// Whether a group's scale and minimum are f32 products; else they are f16 as in the file.
    pub wide_scales: bool,
    /// Whether groups have a minimum that is not always zero.
    pub has_min: bool,
    pub(super) unpack: fn(&[u8], &mut Unpacked),
}

/// One block in parts. Entries past the format's block and group counts are unspecified.
#[derive(Clone, Debug)]
pub struct Unpacked {
    /// `[block_values]`, each small enough that a product with an 8-bit number fits in 16 bits.
    pub codes: [i8; 256],
    /// `[block_values / group]`
    pub scales: [f32; 16],
    /// `[block_values / group]`
    pub mins: [f32; 16],
}

impl Default for Unpacked {
    fn default() -> Self {
        Self { codes: [0; 256], scales: [0.0; 16], mins: [0.0; 16] }
    }
}

impl Quants {
    /// Takes the block that `block` holds apart into `parts`.
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

/// `1 / scale`, and 0 for 0: the block of a zero scale has only zero codes.
pub(super) fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}
