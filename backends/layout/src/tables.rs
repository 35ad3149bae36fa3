//! The tables that formats look codes up in, as the shaders read them: one buffer for all formats.
//!
//! They are found by taking blocks apart that name one entry after the other, so that they stand in one place only.

use hal::format::{Format, IQ4_CODES, Unpacked};

/// Where each table begins, in words; `shaders/formats/` has the same numbers.
const IQ2_XXS: usize = 0;
const IQ2_XS: usize = 512;
const IQ2_S: usize = 1536;
const IQ3_XXS: usize = 3584;
const IQ3_S: usize = 3840;
const IQ1: usize = 4352;
const IQ4: usize = 8448;
const N_WORDS: usize = 8704;

/// Whether the codes of a format's rows are places in a table.
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

/// All tables. A word holds four values, the first in the lowest byte; entries of eight values are two words. The
/// values of IQ1 are eighths, before one of them is added or taken off. An entry of IQ4 stands for a byte: the code of
/// its lower nibble in the lowest byte, that of the upper one 16 bits above.
#[must_use]
pub fn tables() -> Vec<u32> {
    let mut words = vec![0; N_WORDS];
    // The place stands in byte 2 of the block, and in further bits of another byte.
    let place = |format, at: usize, n: usize, n_values: usize, less: i8, upper: Upper| {
        entries(format, n, n_values, less, upper)
            .into_iter()
            .enumerate()
            .map(move |(i, w)| (at + i, w))
    };
    let all = place(Format::IQ2_XXS, IQ2_XXS, 256, 8, 0, Upper::None)
        .chain(place(Format::IQ2_XS, IQ2_XS, 512, 8, 0, Upper::In(3)))
        .chain(place(Format::IQ2_S, IQ2_S, 1024, 8, 0, Upper::In(66)))
        .chain(place(Format::IQ3_XXS, IQ3_XXS, 256, 4, 0, Upper::None))
        .chain(place(Format::IQ3_S, IQ3_S, 512, 4, 0, Upper::In(66)))
        .chain(place(Format::IQ1_S, IQ1, 2048, 8, 1, Upper::In(34)));
    all.for_each(|(i, word)| words[i] = word);
    for (pair, word) in words[IQ4..].iter_mut().enumerate() {
        let code = |nibble: usize| u32::from(IQ4_CODES[nibble] as u8);
        *word = code(pair & 15) | code(pair >> 4) << 16;
    }
    words
}

/// Where the bits of a place above the lower eight are, in the lowest bits of a byte of the block.
#[derive(Clone, Copy)]
enum Upper {
    None,
    In(usize),
}

/// The entries of a table: the first values of blocks that name one place after the other, each lowered by `less`.
fn entries(format: Format, n: usize, n_values: usize, less: i8, upper: Upper) -> Vec<u32> {
    let mut parts = Unpacked::default();
    let mut block = vec![0; format.block_bytes()];
    let mut words = Vec::new();
    for place in 0..n {
        block[2] = place as u8;
        if let Upper::In(byte) = upper {
            block[byte] = (place >> 8) as u8;
        }
        if let Some(quants) = format.quants() {
            quants.unpack(&block, &mut parts);
        }
        for four in parts.codes[..n_values].chunks_exact(4) {
            words.push(
                four.iter().rev().fold(0, |word, &v| word << 8 | u32::from((v - less) as u8)),
            );
        }
    }
    words
}
