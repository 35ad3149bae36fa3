//! The planes of a row: how bits of the file's blocks are regrouped on the device.
//!
//! A plane has the same number of bytes for each block, in the order of the blocks.
//! `shaders/formats/` and `kernels-cuda/formats/` read this layout. Codes that the file spreads
//! over a block are regrouped so that one word has the same bits of four consecutive values, one
//! value per byte:
//!
//! | plane | words for 32 values | word j, byte k, from its lowest bits on |
//! |---|---|---|
//! | nibbles | 4 | values 4j + k and 16 + 4j + k |
//! | pairs | 2 | values 16j + k, 16j + 4 + k, 16j + 8 + k, 16j + 12 + k |
//! | bits | 1 | values k, 4 + k, ..., 28 + k |

use hal::format::{Format, UnpackedBlock};

/// Source of a plane.
#[derive(Clone, Copy)]
enum PlaneSource {
    /// Bytes of the block: offset and length.
    Bytes(usize, usize),
    /// The lower four bits of the codes.
    Nibbles,
    /// Two bits of the codes, from this bit on.
    Pairs(u32),
    /// This bit of the codes.
    Bits(u32),
}

use PlaneSource::{Bits, Bytes, Nibbles, Pairs};

impl PlaneSource {
    /// Bytes for each block of `n_values`.
    fn bytes(self, n_values: usize) -> usize {
        match self {
            Bytes(_, len) => len,
            Nibbles => n_values / 2,
            Pairs(_) => n_values / 4,
            Bits(_) => n_values / 8,
        }
    }

    /// Writes the plane's bytes of one block.
    fn write(self, block: &[u8], codes: &[u8; 256], out: &mut [u8]) {
        let code = |i: usize| codes[i];
        match self {
            Bytes(from, len) => out.copy_from_slice(&block[from..from + len]),
            Nibbles => {
                for (i, out) in out.iter_mut().enumerate() {
                    let low = i / 16 * 32 + i % 16;
                    *out = code(low) & 15 | (code(low + 16) & 15) << 4;
                }
            }
            Pairs(from) => {
                for (i, out) in out.iter_mut().enumerate() {
                    let pair = |g: usize| (code(i / 4 * 16 + 4 * g + i % 4) >> from & 3) << (2 * g);
                    *out = (0..4).map(pair).sum();
                }
            }
            Bits(at) => {
                for (i, out) in out.iter_mut().enumerate() {
                    let bit = |g: usize| (code(i / 4 * 32 + 4 * g + i % 4) >> at & 1) << g;
                    *out = (0..8).map(bit).sum();
                }
            }
        }
    }
}

/// The planes of a quantised format in the order in which they are stored in a row, and the offset
/// that makes codes non-negative.
fn plane_sources(format: Format) -> (&'static [PlaneSource], i8) {
    match format {
        Format::Q4_0 | Format::IQ4_NL => (&[Bytes(2, 16), Bytes(0, 2)], 0),
        Format::Q4_1 => (&[Bytes(4, 16), Bytes(0, 4)], 0),
        Format::Q5_0 => (&[Bytes(6, 16), Bits(4), Bytes(0, 2)], 16),
        Format::Q5_1 => (&[Bytes(8, 16), Bits(4), Bytes(0, 4)], 0),
        Format::Q8_0 => (&[Bytes(2, 32), Bytes(0, 2)], 0),
        Format::Q2_K => (&[Bytes(0, 16), Pairs(0), Bytes(80, 4)], 0),
        Format::Q3_K => (&[Pairs(0), Bits(2), Bytes(96, 12), Bytes(108, 2)], 4),
        Format::Q4_K => (&[Nibbles, Bytes(0, 16)], 0),
        Format::Q5_K => (&[Nibbles, Bytes(0, 16), Bits(4)], 0),
        Format::Q6_K => (&[Nibbles, Bytes(192, 16), Pairs(4), Bytes(208, 2)], 32),
        Format::IQ2_XXS => (&[Bytes(2, 64), Bytes(0, 2)], 0),
        Format::IQ2_XS => (&[Bytes(2, 64), Bytes(66, 8), Bytes(0, 2)], 0),
        Format::IQ2_S => {
            (&[Bytes(2, 32), Bytes(34, 32), Bytes(66, 8), Bytes(74, 8), Bytes(0, 2)], 0)
        }
        Format::IQ3_XXS => (&[Bytes(2, 64), Bytes(66, 32), Bytes(0, 2)], 0),
        Format::IQ3_S => {
            (&[Bytes(2, 64), Bytes(74, 32), Bytes(66, 8), Bytes(106, 4), Bytes(0, 2)], 0)
        }
        Format::IQ1_S => (&[Bytes(2, 32), Bytes(34, 16), Bytes(0, 2)], 0),
        Format::IQ1_M => (&[Bytes(0, 32), Bytes(32, 16), Bytes(48, 8)], 0),
        Format::IQ4_XS => (&[Bytes(8, 128), Bytes(0, 8)], 0),
        Format::MXFP4 => (&[Bytes(1, 16), Bytes(0, 1)], 0),
        // With the offset, codes are 0 and 2, which differ in bit 1.
        Format::Q1_0 => (&[Bits(1), Bytes(0, 2)], 1),
        Format::F32 | Format::F16 | Format::BF16 | Format::U32 => (&[], 0),
    }
}

/// Bytes of a row without the padding at its end. Each plane ends with a whole word.
pub(super) fn row_bytes(format: Format, n_cols: usize) -> usize {
    let n_values = format.block_values();
    let plane =
        |source: &PlaneSource| (n_cols / n_values * source.bytes(n_values)).next_multiple_of(4);
    plane_sources(format).0.iter().map(plane).sum()
}

/// Regroups the file's row `row` of a quantised format into `out`; unused bytes of `out` become
/// zero.
pub(super) fn write_row(format: Format, row: &[u8], out: &mut [u8]) {
    let (sources, offset) = plane_sources(format);
    let (n_values, n_bytes) = (format.block_values(), format.block_bytes());
    let n_blocks = row.len() / n_bytes;
    let recoded = sources.iter().any(|source| !matches!(source, Bytes(..)));
    let (mut unpacked, mut codes) = (UnpackedBlock::default(), [0; 256]);
    out.fill(0);
    for (b, block) in row.chunks_exact(n_bytes).enumerate() {
        if let (true, Some(quants)) = (recoded, format.quants()) {
            quants.unpack(block, &mut unpacked);
            for (code, &from) in codes.iter_mut().zip(&unpacked.codes[..n_values]) {
                *code = (from + offset) as u8;
            }
        }
        let mut at = 0;
        for source in sources {
            let len = source.bytes(n_values);
            source.write(block, &codes, &mut out[at + b * len..][..len]);
            at += (n_blocks * len).next_multiple_of(4);
        }
    }
}
