//! Compares the panels of every level that this processor has with dequantised values in f64.

use hal::format::{Activation, Format, Q8_BLOCK};

use crate::{
    all_kernels, assert_close, dequantized, q8, quantized, random, round_activations,
    weight_formats,
};
use thermocline_simd::{
    ActView, Kernels, PANEL_LEN, PANEL_ROWS, Q8View, RowIds, TokenRows, panel_columns,
};

/// A matrix and some tokens.
pub(crate) struct Product {
    pub format: Format,
    pub n_cols: usize,
    pub rows: Vec<Vec<u8>>,
    pub x: Vec<Vec<f32>>,
}

impl Product {
    fn new(format: Format, n_rows: usize, n_cols: usize, n_tokens: usize) -> Product {
        let seed = (n_rows * 100 + n_cols) as u32;
        let rows = (0..n_rows as u32).map(|r| quantized(format, &random(n_cols, seed + r)));
        let x = (0..n_tokens as u32).map(|t| random(n_cols, seed + 7000 + t));
        Product { format, n_cols, rows: rows.collect(), x: x.collect() }
    }

    /// Multiplies as the kernels do, with a panel that initially contains NaN.
    pub(crate) fn run(&self, kernels: &Kernels) -> Vec<[f32; PANEL_ROWS]> {
        let x8: Vec<_> = self.x.iter().map(|x| q8(x)).collect();
        let q: Vec<i8> = x8.iter().flat_map(|x| x.q.iter().copied()).collect();
        let d: Vec<f32> = x8.iter().flat_map(|x| x.d.iter().copied()).collect();
        let sum: Vec<i32> = x8.iter().flat_map(|x| x.sum.iter().copied()).collect();
        let plain = self.x.concat();
        let acts = match self.format.activation() {
            Activation::F32 => ActView::F32(&plain),
            Activation::Q8 => ActView::Q8(Q8View { q: &q, d: &d, sum: &sum }),
        };
        // The rows are in reverse order, so a token's row differs from its index.
        let ids: Vec<u32> = (0..self.x.len() as u32).rev().collect();
        let x = TokenRows { acts, n_cols: self.n_cols, ids: RowIds::List(&ids) };
        let mut panel = vec![f32::NAN; PANEL_LEN];
        let mut sums = vec![[0.0; PANEL_ROWS]; self.x.len()];
        let columns = panel_columns(self.format);
        for first in (0..self.n_cols).step_by(columns) {
            let k = first..self.n_cols.min(first + columns);
            let bytes = |k: usize| k / self.format.block_values() * self.format.block_bytes();
            let rows: Vec<&[u8]> =
                self.rows.iter().map(|row| &row[bytes(k.start)..bytes(k.end)]).collect();
            kernels.fill_panel(self.format, &rows, &mut panel);
            kernels.multiply_panel(self.format, &panel, k, &x, &mut sums);
        }
        sums.reverse();
        sums
    }

    fn check(&self, kernels: &Kernels, case: &str) {
        let sums = self.run(kernels);
        for (r, row) in self.rows.iter().enumerate() {
            let values = dequantized(self.format, row, self.n_cols);
            for (t, x) in self.x.iter().enumerate() {
                let x = round_activations(self.format, x);
                let terms = || values.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x));
                // Products of codes and of minimums are summed separately, and may be larger than
                // their difference.
                let size = |x: &f32| f64::from(x.abs());
                let more: f64 = x.iter().map(size).sum();
                let magnitude = terms().map(f64::abs).sum::<f64>() + more;
                let case = format!("{case} {} row {r} token {t}", self.n_cols);
                assert_close(sums[t][r], terms().sum(), magnitude, &case);
            }
        }
    }
}

#[test]
fn panel_products_match_dequantised_values() {
    for kernels in all_kernels() {
        for format in weight_formats() {
            let n = format.block_values();
            let case = format!("{:?} {format}", kernels.level());
            for (n_rows, n_cols, n_tokens) in
                [(32, 3 * n, 1), (1, 2 * n.max(300), 5), (31, 7 * n, 7), (17, 5 * n.max(128), 19)]
            {
                let n_cols = n_cols.next_multiple_of(n);
                Product::new(format, n_rows, n_cols, n_tokens).check(&kernels, &case);
            }
        }
    }
}

#[test]
fn other_tokens_do_not_change_a_result() {
    for kernels in all_kernels() {
        for format in weight_formats() {
            let mut product = Product::new(format, 20, 5 * format.block_values().max(256), 21);
            let among = product.run(&kernels);
            product.x.drain(..9);
            product.x.truncate(7);
            let few = product.run(&kernels);
            for (t, few) in few.iter().enumerate() {
                let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                let case = format!("{:?} {format} token {t}", kernels.level());
                assert_eq!(bits(&among[9 + t][..20]), bits(&few[..20]), "{case}");
            }
        }
    }
}

#[test]
fn panels_of_extreme_codes_do_not_overflow() {
    for kernels in all_kernels() {
        for format in weight_formats().filter(|format| format.block_values() >= Q8_BLOCK) {
            for sign in [1.0, -1.0] {
                for extreme in [-1.0f32, 1.0] {
                    let n_cols = 512;
                    let row = quantized(format, &vec![extreme; n_cols]);
                    let x = vec![vec![sign * 0.7; n_cols]; 3];
                    let product = Product { format, n_cols, rows: vec![row; 3], x };
                    product.check(&kernels, &format!("{:?} {format}", kernels.level()));
                }
            }
        }
    }
}
