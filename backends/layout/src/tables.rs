//! The code tables of the formats, as the shaders read them: one buffer for all formats.
//!
//! `hal` defines the values: the tables come from its constants, or from unpacking a block for each
//! index.

use hal::format::{Format, IQ4_CODES, UnpackedBlock};

/// Offset of each table, in words; `shaders/formats/` has the same numbers.
const IQ2_XXS: usize = 0;
const IQ2_XS: usize = 512;
const IQ2_S: usize = 1536;
const IQ3_XXS: usize = 3584;
const IQ3_S: usize = 3840;
const IQ1: usize = 4352;
const IQ4: usize = 8448;
const N_WORDS: usize = 8704;

/// Whether the codes of a format's rows are table indices.
#[must_use]
pub fn needs_tables(format: Format) -> bool {
    match format {
        Format::IQ2_XXS | Format::IQ2_XS | Format::IQ2_S | Format::IQ3_XXS | Format::IQ3_S => true,
        Format::IQ1_S | Format::IQ1_M | Format::IQ4_NL | Format::IQ4_XS => true,
        Format::F32 | Format::F16 | Format::BF16 | Format::U32 | Format::MXFP4 => false,
        Format::Q1_0 => false,
        Format::Q4_0 | Format::Q4_1 | Format::Q5_0 | Format::Q5_1 | Format::Q8_0 => false,
        Format::Q2_K | Format::Q3_K | Format::Q4_K | Format::Q5_K | Format::Q6_K => false,
    }
}

/// All tables. A word has four values, the first in the lowest byte; entries of eight values are
/// two words. The values of IQ1 are in eighths, before one eighth is added or subtracted. An IQ4
/// entry is indexed by a byte: the code of the lower nibble is in bits 0 to 7 of the entry, the
/// code of the upper nibble in bits 16 to 23.
#[must_use]
pub fn tables() -> Vec<u32> {
    let mut words = vec![0; N_WORDS];
    let place = |format, at: usize, n: usize, n_values: usize, delta: i8, upper: UpperBits| {
        entries(format, n, n_values, delta, upper)
            .into_iter()
            .enumerate()
            .map(move |(i, w)| (at + i, w))
    };
    let all = place(Format::IQ2_XXS, IQ2_XXS, 256, 8, 0, UpperBits::None)
        .chain(place(Format::IQ2_XS, IQ2_XS, 512, 8, 0, UpperBits::Byte(3)))
        .chain(place(Format::IQ2_S, IQ2_S, 1024, 8, 0, UpperBits::Byte(66)))
        .chain(place(Format::IQ3_XXS, IQ3_XXS, 256, 4, 0, UpperBits::None))
        .chain(place(Format::IQ3_S, IQ3_S, 512, 4, 0, UpperBits::Byte(66)))
        .chain(place(Format::IQ1_S, IQ1, 2048, 8, 1, UpperBits::Byte(34)));
    all.for_each(|(i, word)| words[i] = word);
    for (pair, word) in words[IQ4..].iter_mut().enumerate() {
        let code = |nibble: usize| u32::from(IQ4_CODES[nibble] as u8);
        *word = code(pair & 15) | code(pair >> 4) << 16;
    }
    words
}

/// Byte of a block with the index bits above the lower eight; byte 2 has the lower eight.
#[derive(Clone, Copy)]
enum UpperBits {
    None,
    Byte(usize),
}

/// The entries of a table: for each index, the first `n_values` values of a block with this index,
/// minus `delta`.
fn entries(format: Format, n: usize, n_values: usize, delta: i8, upper: UpperBits) -> Vec<u32> {
    let mut parts = UnpackedBlock::default();
    let mut block = vec![0; format.block_bytes()];
    let mut words = Vec::new();
    for place in 0..n {
        block[2] = place as u8;
        if let UpperBits::Byte(byte) = upper {
            block[byte] = (place >> 8) as u8;
        }
        if let Some(quants) = format.quants() {
            quants.unpack(&block, &mut parts);
        }
        for four in parts.codes[..n_values].chunks_exact(4) {
            words.push(
                four.iter().rev().fold(0, |word, &v| word << 8 | u32::from((v - delta) as u8)),
            );
        }
    }
    words
}
