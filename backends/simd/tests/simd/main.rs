//! Compares every SIMD level that this processor has with dequantised values in f64.
// Clippy exempts test functions from these lints, but not their helpers.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod cache;
mod grid;
mod panel;
mod recurrent;
mod same_bits;

use hal::format::{Activation, Format, Q8Row, TransposedLayout};

use thermocline_simd::*;

pub(crate) fn all_kernels() -> Vec<Kernels> {
    let all: Vec<_> = Level::ALL.into_iter().filter_map(Kernels::select).collect();
    println!("levels: {:?}", all.iter().map(Kernels::level).collect::<Vec<_>>());
    all
}

pub(crate) fn weight_formats() -> impl Iterator<Item = Format> {
    Format::ALL.iter().copied().filter(|format| format.is_weight())
}

/// Seeded values of both signs, most of them small.
pub(crate) fn random(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next() * next() * 3.0 + 0.1).collect()
}

/// `values` quantised to `format`, or random bytes seeded from `values` if the format has no
/// quantiser.
pub(crate) fn quantized(format: Format, values: &[f32]) -> Vec<u8> {
    if !format.quantizes() {
        let mix =
            |seed: u64, v: &f32| (seed ^ u64::from(v.to_bits())).wrapping_mul(0x100_0000_01b3);
        return conformance::random_weights(format, values.len(), values.iter().fold(7, mix));
    }
    let mut bytes = vec![0xA5; format.row_bytes(values.len()).unwrap()];
    format.quantize(values, &mut bytes);
    bytes
}

pub(crate) fn dequantized(format: Format, bytes: &[u8], n: usize) -> Vec<f32> {
    let mut values = vec![f32::NAN; n];
    format.dequantize(bytes, &mut values);
    values
}

pub(crate) fn q8(x: &[f32]) -> Q8Row {
    let mut row = Q8Row::default();
    row.quantize_into(x);
    row
}

/// `x` rounded as activations for weights in `format`.
pub(crate) fn round_activations(format: Format, x: &[f32]) -> Vec<f32> {
    match format.activation() {
        Activation::F32 => x.to_vec(),
        Activation::Q8 => {
            let row = q8(x);
            (0..x.len()).map(|i| row.d[i / 32] * f32::from(row.q[i])).collect()
        }
    }
}

/// Row lengths: a few blocks, whole tiles, tiles with a remainder, and other lengths for formats
/// without blocks.
fn lengths(format: Format) -> Vec<usize> {
    let n = format.block_values();
    let mut lengths: Vec<usize> = [1, 2, 3, 15, 16, 17, 31, 32, 33, 86].map(|k| k * n).to_vec();
    lengths.extend([0, 4096, 11008]);
    if n == 1 {
        lengths.extend([63, 64, 65, 288, 300]);
    }
    lengths
}

#[track_caller]
pub(crate) fn assert_close(got: f32, expected: f64, magnitude: f64, case: &str) {
    let error = (f64::from(got) - expected).abs();
    assert!(error <= 1e-6 * magnitude, "{case}: {got}, expected {expected} of {magnitude}");
}

#[test]
fn dots_match_dequantised_values() {
    for kernels in all_kernels() {
        for format in weight_formats() {
            for n in lengths(format) {
                let bytes = quantized(format, &random(n, n as u32));
                let values = dequantized(format, &bytes, n);
                let tokens: [Vec<f32>; 4] = std::array::from_fn(|t| random(n, 77 + t as u32));
                let rows = tokens.each_ref().map(|x| q8(x));
                let views = std::array::from_fn(|t| match format.activation() {
                    Activation::F32 => ActView::from(&tokens[t][..]),
                    Activation::Q8 => ActView::from(&rows[t]),
                });
                let mut four = [[f32::NAN; 4]];
                let run = RowRun::single(&bytes);
                kernels.rows4(format)(&run, views, &mut four);
                let [four] = four;
                for t in 0..4 {
                    let case = format!("{:?} {format} {n}", kernels.level());
                    let one = kernels.dot(format, &bytes, views[t]);
                    assert_eq!(one.to_bits(), four[t].to_bits(), "{case}");
                    let x = round_activations(format, &tokens[t]);
                    let terms =
                        || values.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x));
                    let magnitude = terms().map(f64::abs).sum();
                    assert_close(one, terms().sum(), magnitude, &case);
                }
            }
        }
    }
}

#[test]
fn a_run_of_rows_gives_the_bits_of_each_row() {
    for kernels in all_kernels() {
        // Half a tile, less than a tile, one tile and a half, and three tiles.
        for (format, n_blocks) in
            weight_formats().flat_map(|format| [8, 11, 24, 48].map(|n_blocks| (format, n_blocks)))
        {
            let (n, n_rows) = (n_blocks * format.block_values().max(32), 9);
            let bytes = quantized(format, &random(n * n_rows, 5));
            let row_bytes = bytes.len() / n_rows;
            let (x, other) = (random(n, 6), random(n, 7));
            let (q, other_q) = (q8(&x), q8(&other));
            let views = match format.activation() {
                Activation::F32 => [ActView::from(&x[..]), ActView::from(&other[..])],
                Activation::Q8 => [ActView::from(&q), ActView::from(&other_q)],
            };
            let row = |id: usize| &bytes[id * row_bytes..][..row_bytes];
            // The last ids are only prefetched.
            let list = [8, 0, 3, 3, 7, 1, 2];
            let runs = [(RowIds::List(&list), [8, 0, 3, 3, 7]), (RowIds::From(4), [4, 5, 6, 7, 8])];
            let distances = [0, DEFAULT_PREFETCH, FAR_PREFETCH, 3 * bytes.len()];
            for ((ids, expected), distance) in
                runs.into_iter().flat_map(|run| distances.map(|distance| (run, distance)))
            {
                let run = RowRun::new(Matrix::dense(&bytes, row_bytes), ids, distance);
                let (mut one, mut four) = ([[f32::NAN; 1]; 5], [[f32::NAN; 4]; 5]);
                kernels.rows(format)(&run, [views[0]], &mut one);
                kernels.rows4(format)(&run, [views[0], views[1], views[0], views[1]], &mut four);
                for (i, id) in expected.into_iter().enumerate() {
                    let [a, b] = views.map(|x| kernels.dot(format, row(id), x));
                    assert_eq!(one[i], [a], "{:?} {format}", kernels.level());
                    assert_eq!(four[i], [a, b, a, b], "{:?} {format}", kernels.level());
                }
            }
        }
    }
}

/// Byte range of the scales in a block, which the test must not fill with extreme values.
fn scale_bytes(format: Format) -> std::ops::Range<usize> {
    let odd = [
        (Format::Q2_K, 80..84),
        (Format::Q3_K, 108..110),
        (Format::Q6_K, 208..210),
        (Format::IQ1_M, 48..56),
        (Format::MXFP4, 0..1),
    ];
    let odd = odd.into_iter().find_map(|(other, at)| (other == format).then_some(at));
    // Other formats begin with an f16 scale; some have an f16 minimum after it.
    odd.unwrap_or(0..if format.quants().unwrap().has_min { 4 } else { 2 })
}

#[test]
fn dots_of_extreme_codes_do_not_overflow() {
    for kernels in all_kernels() {
        for format in weight_formats() {
            let n = 1024;
            for (fill, sign) in [(0xFF, 1.0), (0xFF, -1.0), (0x00, 1.0), (0x80, 1.0), (0x80, -1.0)]
            {
                let mut bytes = quantized(format, &random(n, 3));
                if format.block_values() > 1 {
                    let scales = scale_bytes(format);
                    for block in bytes.chunks_exact_mut(format.block_bytes()) {
                        for (i, byte) in block.iter_mut().enumerate() {
                            if !scales.contains(&i) {
                                *byte = fill;
                            }
                        }
                    }
                }
                let x = vec![sign * 0.7; n];
                let row = q8(&x);
                let view = match format.activation() {
                    Activation::F32 => ActView::from(&x[..]),
                    Activation::Q8 => ActView::from(&row),
                };
                let got = kernels.dot(format, &bytes, view);
                let values = dequantized(format, &bytes, n);
                let x = round_activations(format, &x);
                let terms = || values.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x));
                let magnitude = terms().map(f64::abs).sum();
                assert_close(
                    got,
                    terms().sum(),
                    magnitude,
                    &format!("{:?} {format}", kernels.level()),
                );
            }
        }
    }
}

#[test]
fn summed_rows_match_dequantised_values() {
    for kernels in all_kernels() {
        for format in weight_formats() {
            for n in lengths(format) {
                let bytes = quantized(format, &random(n, n as u32));
                let values = dequantized(format, &bytes, n);
                let start = random(n, 5);
                let mut y = start.clone();
                let sum = kernels.sum_rows(format);
                let one = Matrix::dense(&bytes, bytes.len());
                sum(one, &[(0, -1.7)], &mut y);
                // A list of several rows, with one row twice, gives the same result as a separate
                // call per row.
                let rows = quantized(format, &random(7 * n, n as u32 + 1));
                let matrix = Matrix::dense(&rows, bytes.len());
                let list = [(5, 0.5), (0, -1.7), (6, 3.25), (5, 1e-3), (2, 0.0), (1, -2.0)];
                let (mut at_once, mut in_turn) = (start.clone(), start.clone());
                sum(matrix, &list, &mut at_once);
                list.iter().for_each(|one| sum(matrix, &[*one], &mut in_turn));
                assert_eq!(at_once, in_turn, "{:?} {format} {n}", kernels.level());
                for i in 0..n {
                    let (w, s) = (f64::from(values[i]), f64::from(start[i]));
                    let case = format!("{:?} {format} {n} at {i}", kernels.level());
                    assert_close(y[i], s - 1.7f32 as f64 * w, s.abs() + 2.0 * w.abs(), &case);
                }
            }
        }
    }
}

#[test]
fn transposed_sums_match_dequantised_rows() {
    for kernels in all_kernels() {
        for format in weight_formats() {
            for n_out in [1, 31, 32, 96, 160, 288, 301] {
                let n_ff = 2 * format.block_values().max(48);
                let source = quantized(format, &random(n_out * n_ff, n_out as u32));
                let neurons: Vec<u32> = (0..n_ff as u32).filter(|n| n % 3 != 1).collect();
                let layout = TransposedLayout::new(format, neurons.len() + 1, n_ff, n_out).unwrap();
                let mut bytes = vec![0xA5; layout.n_bytes];
                layout.pack(&source, &neurons, &mut bytes).unwrap();
                // Some slots in order, one out of order, one twice.
                let slots = (0..neurons.len() as u32).filter(|s| s % 4 < 2).chain([1, 0, 0]);
                let list: Vec<(u32, f32)> =
                    slots.zip(random(n_ff, 9)).map(|(slot, h)| (slot, 2.0 * h)).collect();
                let start = random(n_out, 5);
                let mut expected: Vec<f64> = start.iter().map(|&v| f64::from(v)).collect();
                let mut magnitude: Vec<f64> = expected.iter().map(|v| v.abs()).collect();
                let mut row = vec![f32::NAN; n_out];
                for &(slot, h) in &list {
                    layout.row(&bytes, slot as usize, &mut row);
                    for (i, &w) in row.iter().enumerate() {
                        expected[i] += f64::from(h) * f64::from(w);
                        // Products of codes and of minimums are summed separately, and may be
                        // larger than their difference.
                        magnitude[i] += f64::from(h).abs() * (f64::from(w).abs() + 3.0);
                    }
                }
                let mut y = start.clone();
                kernels.transposed(format)(&layout, &bytes, &list, &mut y);
                for i in 0..n_out {
                    let case = format!("{:?} {format} {n_out} at {i}", kernels.level());
                    assert_close(y[i], expected[i], magnitude[i], &case);
                }
                let mut again = start.clone();
                let moved = [&[0u8; 3][..], &bytes].concat();
                kernels.transposed(format)(&layout, &moved[3..], &list, &mut again);
                assert!(y.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits()));
                kernels.transposed(format)(&layout, &bytes, &[], &mut again);
                assert_eq!(y, again);
            }
        }
    }
}

#[test]
fn quantised_activations_match_the_reference() {
    for kernels in all_kernels() {
        for n in [0, 1, 31, 32, 33, 64, 100, 4096] {
            for (scale, special) in [
                (1.0, None),
                (1e-36, None),
                (3e-39, None),
                (1e38, None),
                (1.0, Some(f32::NAN)),
                (1.0, Some(f32::NEG_INFINITY)),
                (0.0, None),
            ] {
                let mut x: Vec<f32> = random(n, n as u32).iter().map(|v| v * scale).collect();
                if let (Some(special), Some(v)) = (special, x.get_mut(n / 2)) {
                    *v = special;
                }
                // Values exactly halfway between two codes.
                if n >= 64 && special.is_none() && scale == 1.0 {
                    x[32] = 127.0;
                    for (i, v) in x[33..64].iter_mut().enumerate() {
                        *v = i as f32 - 15.5;
                    }
                }
                let expected = q8(&x);
                let blocks = n.div_ceil(32);
                let (mut q, mut d, mut sum) =
                    (vec![99; blocks * 32], vec![f32::NAN; blocks], vec![99; blocks]);
                kernels.quantize(&x, &mut q, &mut d, &mut sum);
                let bits = |d: &[f32]| d.iter().map(|d| d.to_bits()).collect::<Vec<_>>();
                assert_eq!(
                    (q, bits(&d), sum),
                    (expected.q, bits(&expected.d), expected.sum),
                    "{:?} {n} {scale} {special:?}",
                    kernels.level()
                );
            }
        }
    }
}

#[test]
fn sums_of_squares_match_f64() {
    for kernels in all_kernels() {
        for n in [0, 1, 7, 8, 63, 64, 65, 300] {
            let x = random(n, 1);
            let squares = x.iter().map(|&v| f64::from(v).powi(2)).sum();
            assert_close(kernels.sum_squares(&x), squares, squares, "squares");
        }
    }
}

#[test]
fn the_best_level_is_the_last_supported() {
    let best = Kernels::best().level();
    for level in Level::ALL {
        assert!(level <= best || Kernels::select(level).is_none());
    }
}

#[test]
fn softmax_matches_exp_and_keeps_nan() {
    for kernels in all_kernels() {
        let softmax = kernels.softmax();
        let range: Vec<f32> = (0..4096).map(|i| 3.5 - i as f32 * (93.0 / 4096.0)).collect();
        let mut weights = range.clone();
        let [largest, sum] = softmax(&mut weights);
        assert_eq!(largest, 3.5);
        assert_close(sum, weights.iter().map(|w| f64::from(*w)).sum(), f64::from(sum), "sum");
        for (weight, score) in weights.iter().zip(&range) {
            let expected = f64::from(*score - largest).exp();
            let error = (f64::from(*weight) - expected).abs();
            // Subnormal results are flushed to zero.
            assert!(error <= 4e-7 * expected + 1.2e-38, "{:?} {score}", kernels.level());
        }
        let mut some = [f32::NEG_INFINITY; 16];
        some[5] = -1e30;
        assert_eq!(softmax(&mut some), [-1e30, 1.0], "{:?}", kernels.level());
        assert!(some.iter().enumerate().all(|(i, w)| *w == f32::from(u8::from(i == 5))));
        some[7] = f32::NAN;
        assert!(softmax(&mut some)[1].is_nan() && some[7].is_nan(), "{:?}", kernels.level());
    }
}
