//! Compares the formats whose codes are table entries with plain loops, to the bit.

use std::collections::HashSet;

use hal::format::{Format, Q8Row, UnpackedBlock};

use crate::{all_kernels, q8, random};
use thermocline_simd::{
    ActView, DEFAULT_PREFETCH, Kernels, Level, Matrix, PANEL_LEN, PANEL_ROWS, RowIds, RowRun,
    panel_columns,
};

const FORMATS: [Format; 7] = [
    Format::IQ2_XXS,
    Format::IQ2_XS,
    Format::IQ2_S,
    Format::IQ3_XXS,
    Format::IQ3_S,
    Format::IQ1_S,
    Format::IQ1_M,
];

/// Rows of `n_blocks` random blocks whose scales are finite.
fn random_rows(format: Format, n_rows: usize, n_blocks: usize) -> Vec<Vec<u8>> {
    let mut state = 88_172_645_463_325_252_u64 ^ (n_blocks as u64) << 32;
    let mut byte = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    let mut row = || {
        let mut row: Vec<u8> = (0..n_blocks * format.block_bytes()).map(|_| byte()).collect();
        for block in row.chunks_exact_mut(format.block_bytes()) {
            // The highest byte of `d`: IQ1_M stores its nibbles in the last four words.
            if format == Format::IQ1_M {
                block[55] = block[55] & 0x0f | [0x00, 0x80, 0x20, 0xb0][usize::from(block[53] & 3)];
            } else {
                block[1] &= 0xb7;
            }
        }
        row
    };
    (0..n_rows).map(|_| row()).collect()
}

fn unpack(format: Format, row: &[u8]) -> Vec<UnpackedBlock> {
    let unpack = |block: &[u8]| {
        let mut unpacked = UnpackedBlock::default();
        format.quants().unwrap().unpack(block, &mut unpacked);
        unpacked
    };
    row.chunks_exact(format.block_bytes()).map(unpack).collect()
}

/// The product of a row with a token. A lane of a vector has the integer sum of consecutive values;
/// the f32 sums are added per lane and block, and at last across the lanes.
fn product(level: Level, format: Format, blocks: &[UnpackedBlock], x: &Q8Row) -> f32 {
    let group = format.quants().unwrap().group;
    let (n_lanes, n_values) = match level {
        Level::Scalar | Level::Avx2 | Level::AvxVnni => (8, 4),
        Level::Avx512 => (16, 4),
        Level::Neon | Level::NeonDot | Level::NeonMatrix => (4, 16),
    };
    let mut lanes = vec![0.0f32; n_lanes];
    for (b, block) in blocks.iter().enumerate() {
        let mut sums = vec![0.0f32; n_lanes];
        for at in (0..256).step_by(n_values) {
            let terms = (at..at + n_values)
                .map(|i| i32::from(block.codes[i]) * i32::from(x.q[256 * b + i]));
            let factor = block.scales[at / group] * x.d[8 * b + at / 32];
            let sum = &mut sums[at / n_values % n_lanes];
            *sum = (terms.sum::<i32>() as f32).mul_add(factor, *sum);
        }
        lanes.iter_mut().zip(sums).for_each(|(lane, sum)| *lane += sum);
    }
    while lanes.len() > 1 {
        let half = lanes.len() / 2;
        lanes = match level {
            Level::Neon | Level::NeonDot | Level::NeonMatrix => {
                lanes.chunks(2).map(|pair| pair[0] + pair[1]).collect()
            }
            Level::Scalar | Level::Avx2 | Level::AvxVnni | Level::Avx512 => {
                (0..half).map(|i| lanes[i] + lanes[i + half]).collect()
            }
        };
    }
    lanes[0]
}

fn check_products(kernels: &Kernels, format: Format, n_blocks: usize) {
    let rows = random_rows(format, 40, n_blocks);
    let tokens: [Q8Row; 8] = std::array::from_fn(|t| q8(&random(256 * n_blocks, 70 + t as u32)));
    let views = tokens.each_ref().map(ActView::from);
    let bytes = rows.concat();
    let run = RowRun::new(Matrix::dense(&bytes, rows[0].len()), RowIds::From(0), DEFAULT_PREFETCH);
    let mut eight = vec![[f32::NAN; 8]; rows.len()];
    kernels.rows8(format)(&run, views, &mut eight);
    let [a, b, c, d, ..] = views;
    let mut four = vec![[f32::NAN; 4]; rows.len()];
    kernels.rows4(format)(&run, [a, b, c, d], &mut four);
    for (r, row) in rows.iter().enumerate() {
        let blocks = unpack(format, row);
        for t in 0..8 {
            let case = format!("{:?} {format} {n_blocks} row {r} token {t}", kernels.level());
            let expected = product(kernels.level(), format, &blocks, &tokens[t]);
            assert!(expected.is_finite(), "{case}");
            let one = kernels.dot(format, row, views[t]);
            assert_eq!(one.to_bits(), expected.to_bits(), "{case}: {one}, {expected}");
            assert_eq!(eight[r][t].to_bits(), expected.to_bits(), "{case}");
            if t < 4 {
                assert_eq!(four[r][t].to_bits(), expected.to_bits(), "{case}");
            }
        }
    }
}

#[test]
fn products_have_the_bits_of_plain_loops() {
    // The order of the scalar level's sums differs; other tests compare it with f64.
    for kernels in all_kernels().iter().filter(|kernels| kernels.level() != Level::Scalar) {
        for format in FORMATS {
            for n_blocks in [1, 2, 3, 17] {
                check_products(kernels, format, n_blocks);
            }
        }
    }
}

#[test]
fn the_random_blocks_have_all_table_entries() {
    let sizes = [256, 512, 1024, 256, 512, 2048, 2048];
    for (format, n_entries) in FORMATS.into_iter().zip(sizes) {
        let n = if matches!(format, Format::IQ3_XXS | Format::IQ3_S) { 4 } else { 8 };
        // IQ1 adds or subtracts an eighth; other signs are not part of an entry.
        let entry = |codes: &[i8]| -> Vec<i8> {
            let signed = matches!(format, Format::IQ1_S | Format::IQ1_M);
            codes.iter().map(|&code| if signed { (code + 4) >> 3 } else { code.abs() }).collect()
        };
        let mut found = HashSet::new();
        for block in random_rows(format, 40, 17).iter().flat_map(|row| unpack(format, row)) {
            found.extend(block.codes.chunks(n).map(entry));
        }
        assert_eq!(found.len(), n_entries, "{format}");
    }
}

#[test]
fn panels_and_sums_have_the_bits_of_the_blocks() {
    for kernels in all_kernels() {
        for format in FORMATS {
            let case = format!("{:?} {format}", kernels.level());
            let n_blocks = panel_columns(format) / 256;
            let group = format.quants().unwrap().group;
            let rows = random_rows(format, PANEL_ROWS, n_blocks);
            let mut panel = vec![f32::NAN; PANEL_LEN];
            let views: Vec<&[u8]> = rows.iter().map(|row| &row[..]).collect();
            kernels.fill_panel(format, &views, &mut panel);
            for (r, row) in rows.iter().enumerate() {
                let mut y = vec![0.0; 256 * n_blocks];
                kernels.sum_rows(format)(Matrix::dense(row, row.len()), &[(0, 1.0)], &mut y);
                for (b, block) in unpack(format, row).iter().enumerate() {
                    for i in 0..256 {
                        let at = 256 * b + i;
                        let value = block.scales[i / group] * f32::from(block.codes[i]);
                        assert_eq!(y[at], value, "{case} row {r} value {at}");
                    }
                    check_panel(kernels.level(), &panel, (r, b), block, group, &case);
                }
            }
        }
    }
}

/// Where a level's panel has a word of codes, and what is added to its codes.
fn code_word(level: Level, word: usize, r: usize) -> (usize, u8) {
    match level {
        Level::Scalar | Level::Avx2 | Level::AvxVnni | Level::Avx512 => {
            (word * PANEL_ROWS + r, 128)
        }
        Level::Neon | Level::NeonDot => (word * PANEL_ROWS + r, 0),
        // Two words of each row are neighbours; four rows of eight are where one word was.
        Level::NeonMatrix => {
            let place = word / 2 * 2 + r % 8 / 4;
            (place * PANEL_ROWS + r / 8 * 8 + r % 4 * 2 + word % 2, 0)
        }
    }
}

/// Compares row `r` of a panel with block `b` of the row, which has scales of `group` values.
fn check_panel(
    level: Level,
    panel: &[f32],
    (r, b): (usize, usize),
    block: &UnpackedBlock,
    group: usize,
    case: &str,
) {
    for i in 0..256 {
        let (at, bias) = code_word(level, 64 * b + i / 4, r);
        let code = panel[at].to_bits().to_le_bytes()[i % 4].wrapping_sub(bias);
        assert_eq!(code as i8, block.codes[i], "{case} row {r} code {i} of block {b}");
    }
    for g in 0..256 / group {
        let scale = panel[(128 + b * 256 / group + g) * PANEL_ROWS + r].to_bits();
        assert_eq!(scale, block.scales[g].to_bits(), "{case} row {r} scale {g} of block {b}");
    }
}
