//! Compares float products of the tiled kernels with F64 products. Matrix instructions truncate
//! mantissas, and the kernels must not lose the truncated bits.

use thermocline_fakes::Vendor;

use crate::device::{Arg, Device, open};

const TOKENS: usize = 40;
/// Allowed error of an F32 sum of a few hundred products, relative to the sum of their magnitudes.
/// Without the truncated bits, the error is ten times that.
const TOLERANCE: f64 = 2e-6;

/// Pseudo-random floats with magnitudes from 1 to 2. Only the bits of `kept` may be set.
fn floats(n: usize, seed: u64, kept: u32) -> Vec<f32> {
    let mut state = seed << 20 | 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f32::from_bits((state >> 32) as u32 & (0x807f_ffff & kept) | 0x3f80_0000)
    };
    (0..n).map(|_| next()).collect()
}

fn words(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Compares each value of `got` with the F64 sum of products of its `pairs`.
fn compare<I: Iterator<Item = (f32, f32)>>(
    what: &str,
    got: &[f32],
    n_cols: usize,
    pairs: impl Fn(usize, usize) -> I,
) {
    for (i, got) in got.iter().enumerate() {
        let products = || pairs(i / n_cols, i % n_cols).map(|(a, b)| f64::from(a) * f64::from(b));
        let (wanted, size): (f64, f64) = (products().sum(), products().map(f64::abs).sum());
        let error = (f64::from(*got) - wanted).abs() / size;
        assert!(error < TOLERANCE, "{what}, {} and {}: {error:e}", i / n_cols, i % n_cols);
    }
}

fn read(device: &Device, at: usize, n: usize) -> Vec<f32> {
    device.read(at, n).into_iter().map(f32::from_bits).collect()
}

#[test]
fn tiled_matmuls_have_f32_accuracy() {
    let Some(device) = open(Vendor::Cuda, 6) else { return };
    let (n_rows, n_cols) = (150, 301);
    let x = floats(TOKENS * n_cols, 2, u32::MAX);
    for (format, kept) in [("f32", u32::MAX), ("f16", 0xffff_e000), ("bf16", 0xffff_0000)] {
        let weight = floats(n_rows * n_cols, 1, kept);
        let row_words = if format == "f32" { n_cols } else { n_cols.div_ceil(2) };
        let mut stored = vec![0u32; n_rows * row_words];
        for (i, v) in weight.iter().enumerate() {
            let (row, k, bits) = (i / n_cols, i % n_cols, v.to_bits());
            match format {
                "f32" => stored[row * row_words + k] = bits,
                _ => {
                    // Magnitudes from 1 to 2 have the biased f16 exponent 15.
                    let half = bits >> 16 & 0x8000 | 15 << 10 | bits >> 13 & 0x3ff;
                    let short = if format == "f16" { half } else { bits >> 16 };
                    stored[row * row_words + k / 2] |= short << (k % 2 * 16);
                }
            }
        }
        for file in ["matmul_many", "matmul_plain"] {
            for (kernel, rows) in [("matmul_many", 128), ("matmul_some", 64)] {
                let [w, x_at] = [&stored, &words(&x)].map(|all| Arg::At(device.buffer(all)));
                let y = device.buffer(&vec![0; TOKENS * n_rows]);
                let (unit, null) = (format!("{file}.{format}"), Arg::At(0));
                let mut args = vec![w, null, x_at, null, null, null, Arg::At(y)];
                let numbers = [n_rows, n_rows, row_words, n_cols, TOKENS, 0, 0, 0];
                args.extend(numbers.map(|n| Arg::Word(n as u32)));
                let grid = n_rows.div_ceil(rows) as u32;
                assert_eq!(device.run((&unit, kernel), grid, 256, 0, &args), 0);
                let got = read(&device, y, TOKENS * n_rows);
                compare(&format!("{unit} {kernel}"), &got, n_rows, |token, row| {
                    (0..n_cols).map({
                        let (w, x) = (&weight[row * n_cols..], &x[token * n_cols..]);
                        move |k| (w[k], x[k])
                    })
                });
            }
        }
    }
}

#[test]
fn tiled_down_products_have_f32_accuracy() {
    let Some(device) = open(Vendor::Cuda, 6) else { return };
    let (n_rows, n_out) = (150, 120);
    let (down, h) = (floats(n_rows * n_out, 3, u32::MAX), floats(TOKENS * n_rows, 4, u32::MAX));
    for file in ["down_many", "down_plain"] {
        let [down_at, h_at] = [&down, &h].map(|all| Arg::At(device.buffer(&words(all))));
        let partial = device.buffer(&vec![0; TOKENS * n_out]);
        let (unit, null) = (format!("{file}.f32"), Arg::At(0));
        let mut args = vec![down_at, null, null, null, null, h_at, null, null, Arg::At(partial)];
        let numbers = [n_rows, 0, n_out, n_out, TOKENS, n_rows, n_rows, 0, 0, 0, 0];
        args.extend(numbers.map(|n| Arg::Word(n as u32)));
        assert_eq!(device.run((&unit, "down_many"), 1, 256, 0, &args), 0);
        let got = read(&device, partial, TOKENS * n_out);
        compare(&unit, &got, n_out, |token, column| {
            (0..n_rows).map({
                let (down, h) = (&down, &h);
                move |row| (down[row * n_out + column], h[token * n_rows + row])
            })
        });
    }
}
