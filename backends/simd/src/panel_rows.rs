//! Unpacks a row of each format into the words of a panel.

use hal::format::{E2M1_CODES, Format, IQ4_CODES, UnpackedBlock};
use half::f16;

use super::panel::{MINS, SCALES, WORDS};
use super::tile::{e8m0_normal, shift_codes, six_bits};

/// The codes of the IQ4 formats and of MXFP4, with [`super::panel::BIAS`] added.
const IQ4_SHIFTED: [i8; 16] = shift_codes(IQ4_CODES, -128);
const E2M1_SHIFTED: [i8; 16] = shift_codes(E2M1_CODES, -128);

/// Unpacks one row into codes, scales and minimums, or into floats for a format without blocks.
/// `widen` converts values of formats without blocks to floats, `look_up` maps the nibbles of 16
/// bytes to codes, and `grid` unpacks a row of a format whose codes are table entries into codes plus
/// [`super::panel::BIAS`] and scales: functions of the level.
#[inline(always)]
pub(super) fn unpack(
    format: Format,
    row: &[u8],
    words: &mut [u32; WORDS],
    widen: impl Fn(Format, &[u8], &mut [f32]),
    look_up: impl Fn(&[i8; 16], &[u8], &mut [u8]),
    grid: impl Fn(Format, &[u8], &mut [u8], &mut [f32]),
) {
    if format.quants().is_none() {
        let values: &mut [f32] = bytemuck::cast_slice_mut(words);
        return widen(format, row, &mut values[..row.len() / format.block_bytes()]);
    }
    let (codes, tables) = words.split_at_mut(SCALES);
    let (scales, mins) = tables.split_at_mut(MINS - SCALES);
    let codes: &mut [u8] = bytemuck::cast_slice_mut(codes);
    let (scales, mins): (&mut [f32], &mut [f32]) =
        (bytemuck::cast_slice_mut(scales), bytemuck::cast_slice_mut(mins));
    match format {
        Format::Q4_0 => {
            let halves = blocks_of_32::<18>(row, codes, |block, codes| {
                nibbles(&block[2..], 120, codes);
            });
            widen(Format::F16, &halves, &mut scales[..16]);
        }
        Format::Q4_1 => with_mins::<20>(row, codes, scales, mins, widen, |block, codes| {
            nibbles(block, 128, codes);
        }),
        Format::Q8_0 => {
            let halves = blocks_of_32::<34>(row, codes, |block, codes| {
                for (code, &byte) in codes.iter_mut().zip(&block[2..]) {
                    *code = byte ^ 128;
                }
            });
            widen(Format::F16, &halves, &mut scales[..16]);
        }
        Format::Q5_0 => {
            let halves = blocks_of_32::<22>(row, codes, |block, codes| {
                five_bits(&block[2..], 112, codes);
            });
            widen(Format::F16, &halves, &mut scales[..16]);
        }
        Format::Q5_1 => with_mins::<24>(row, codes, scales, mins, widen, |block, codes| {
            five_bits(block, 128, codes);
        }),
        Format::Q4_K => q4_k(row, codes, scales, mins),
        Format::Q6_K => q6_k(row, codes, scales),
        Format::IQ4_NL => {
            let halves = blocks_of_32::<18>(row, codes, |block, codes| {
                look_up(&IQ4_SHIFTED, &block[2..], codes);
            });
            widen(Format::F16, &halves, &mut scales[..16]);
        }
        Format::MXFP4 => {
            let blocks = row.as_chunks::<17>().0.iter().zip(codes.as_chunks_mut::<32>().0);
            for ((block, codes), scale) in blocks.zip(scales) {
                look_up(&E2M1_SHIFTED, &block[1..], codes);
                *scale = e8m0_normal(block[0]);
            }
        }
        Format::IQ4_XS => iq4_xs(row, codes, scales, look_up),
        // These formats are inlined, so unpacking uses this level's instructions.
        Format::Q2_K => unpack_any(Format::Q2_K, row, codes, scales, mins),
        Format::Q3_K => unpack_any(Format::Q3_K, row, codes, scales, mins),
        Format::IQ2_XXS
        | Format::IQ2_XS
        | Format::IQ2_S
        | Format::IQ3_XXS
        | Format::IQ3_S
        | Format::IQ1_S
        | Format::IQ1_M => grid(format, row, codes, scales),
        Format::F32 | Format::F16 | Format::BF16 | Format::U32 | Format::Q5_K | Format::Q1_0 => {
            unpack_call(format, row, codes, scales, mins)
        }
    }
}

/// Unpacks blocks of 32 values that begin with an f16 scale; `block` unpacks the codes. Returns
/// the bytes of the scales.
#[inline(always)]
fn blocks_of_32<const BYTES: usize>(
    row: &[u8],
    codes: &mut [u8],
    block: impl Fn(&[u8; BYTES], &mut [u8; 32]),
) -> [u8; 32] {
    let mut halves = [0; 32];
    let blocks = row.as_chunks::<BYTES>().0.iter().zip(codes.as_chunks_mut::<32>().0);
    for ((from, codes), half) in blocks.zip(halves.as_chunks_mut::<2>().0) {
        *half = [from[0], from[1]];
        block(from, codes);
    }
    halves
}

/// Unpacks 32 nibbles and adds `shift`; low nibbles are the first 16 codes.
#[inline(always)]
fn nibbles(pairs: &[u8], shift: u8, codes: &mut [u8; 32]) {
    for (j, &pair) in pairs.iter().enumerate() {
        codes[j] = (pair & 15) + shift;
        codes[j + 16] = (pair >> 4) + shift;
    }
}

/// Unpacks 32 codes of five bits and adds `shift`. `bytes` are the high bits, then the nibbles (low
/// nibbles are the first 16 codes). Eight codes are computed at a time, as the bytes of a word.
#[inline(always)]
pub(super) fn five_bits(bytes: &[u8], shift: u8, codes: &mut [u8; 32]) {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let (high_bits, pairs) = bytes.split_at(4);
    let pairs = pairs.as_chunks::<8>().0;
    for (i, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        // Byte j keeps only bit j. Adding 127 then sets the highest bit of the byte if bit j is
        // set.
        let bits = (u64::from(high_bits[i]) * ONES) & 0x8040_2010_0804_0201;
        let high_bit = ((bits + 127 * ONES) & (128 * ONES)) >> 3;
        let low = u64::from_le_bytes(pairs[i % 2]) >> (4 * (i / 2)) & (15 * ONES);
        *codes = ((low | high_bit) + u64::from(shift) * ONES).to_le_bytes();
    }
}

/// Unpacks blocks of 32 values that begin with an f16 scale and an f16 that is added; `block` unpacks
/// the codes from the bytes that follow.
#[inline(always)]
fn with_mins<const BYTES: usize>(
    row: &[u8],
    codes: &mut [u8],
    scales: &mut [f32],
    mins: &mut [f32],
    widen: impl Fn(Format, &[u8], &mut [f32]),
    block: impl Fn(&[u8], &mut [u8; 32]),
) {
    let halves = blocks_of_32::<BYTES>(row, codes, |bytes, codes| block(&bytes[4..], codes));
    widen(Format::F16, &halves, &mut scales[..16]);
    let mut added = [0; 32];
    let blocks = row.as_chunks::<BYTES>().0.iter();
    for (half, block) in added.as_chunks_mut::<2>().0.iter_mut().zip(blocks) {
        *half = [block[2], block[3]];
    }
    widen(Format::F16, &added, &mut mins[..16]);
    mins[..16].iter_mut().for_each(|min| *min = -*min);
}

#[inline(always)]
fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

#[inline(always)]
fn q4_k(row: &[u8], codes: &mut [u8], scales: &mut [f32], mins: &mut [f32]) {
    for (b, block) in row.as_chunks::<144>().0.iter().enumerate() {
        let (d, dmin) = (half_at(block, 0), half_at(block, 2));
        let (six_scales, six_mins) = six_bits(&block[4..16]);
        for (g, (scale, min)) in
            six_scales.to_le_bytes().into_iter().zip(six_mins.to_le_bytes()).enumerate()
        {
            scales[8 * b + g] = d * f32::from(scale);
            mins[8 * b + g] = dmin * f32::from(min);
        }
        let pairs = block[16..].as_chunks::<32>().0;
        for (pairs, codes) in pairs.iter().zip(codes[256 * b..].as_chunks_mut::<64>().0) {
            for (j, &pair) in pairs.iter().enumerate() {
                codes[j] = (pair & 15) | 128;
                codes[j + 32] = (pair >> 4) | 128;
            }
        }
    }
}

#[inline(always)]
fn q6_k(row: &[u8], codes: &mut [u8], scales: &mut [f32]) {
    for (b, block) in row.as_chunks::<210>().0.iter().enumerate() {
        let d = half_at(block, 208);
        for (scale, &byte) in scales[16 * b..].iter_mut().zip(&block[192..208]) {
            *scale = d * f32::from(byte as i8);
        }
        let nibbles = block[..128].as_chunks::<64>().0.iter();
        let pairs = block[128..192].as_chunks::<32>().0;
        let halves = codes[256 * b..].as_chunks_mut::<128>().0;
        for ((nibbles, pairs), codes) in nibbles.zip(pairs).zip(halves) {
            for (j, &pair) in pairs.iter().enumerate() {
                let (first, second) = (nibbles[j], nibbles[j + 32]);
                codes[j] = (first & 15 | (pair & 3) << 4) + 96;
                codes[j + 32] = (second & 15 | (pair >> 2 & 3) << 4) + 96;
                codes[j + 64] = (first >> 4 | (pair >> 4 & 3) << 4) + 96;
                codes[j + 96] = (second >> 4 | (pair >> 6) << 4) + 96;
            }
        }
    }
}

#[inline(always)]
fn iq4_xs(
    row: &[u8],
    codes: &mut [u8],
    scales: &mut [f32],
    look_up: impl Fn(&[i8; 16], &[u8], &mut [u8]),
) {
    for (b, block) in row.as_chunks::<136>().0.iter().enumerate() {
        let d = half_at(block, 0);
        let upper = u16::from_le_bytes([block[2], block[3]]);
        let groups = codes[256 * b..].as_chunks_mut::<32>().0.iter_mut();
        let groups = groups.zip(&mut scales[8 * b..]).zip(block[8..].as_chunks::<16>().0);
        for (i, ((codes, scale), pairs)) in groups.enumerate() {
            let low = block[4 + i / 2] >> (4 * (i % 2)) & 15;
            let six_bits = low | ((upper >> (2 * i) & 3) as u8) << 4;
            *scale = d * f32::from(six_bits as i8 - 32);
            look_up(&IQ4_SHIFTED, pairs, codes);
        }
    }
}

/// [`unpack_any`] as a separate function that is not inlined, to limit the size of the code.
#[inline(never)]
fn unpack_call(format: Format, row: &[u8], codes: &mut [u8], scales: &mut [f32], mins: &mut [f32]) {
    unpack_any(format, row, codes, scales, mins);
}

/// Unpacks any format with blocks, block by block.
#[inline(always)]
fn unpack_any(format: Format, row: &[u8], codes: &mut [u8], scales: &mut [f32], mins: &mut [f32]) {
    let Some(quants) = format.quants() else { return };
    let (n, n_groups) = (format.block_values(), format.block_values() / quants.group);
    let mut parts = UnpackedBlock::default();
    for (b, block) in row.chunks_exact(format.block_bytes()).enumerate() {
        quants.unpack(block, &mut parts);
        for (to, &code) in codes[b * n..].iter_mut().zip(&parts.codes[..n]) {
            *to = code as u8 ^ 128;
        }
        let groups = b * n_groups..(b + 1) * n_groups;
        scales[groups.clone()].copy_from_slice(&parts.scales[..n_groups]);
        if quants.has_min {
            mins[groups].copy_from_slice(&parts.mins[..n_groups]);
        }
    }
}
