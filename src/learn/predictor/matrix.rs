//! Row-major matrices and their operations.

use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, MatMut, MatRef, Par};
use hal::format::{Activation, Format, Q8_BLOCK, Q8Row};
use hal::{HostRows, Source};

use super::{Error, Result};

#[derive(Clone, Debug, PartialEq)]
pub(super) struct DenseMatrix {
    pub(super) n_rows: usize,
    pub(super) n_cols: usize,
    /// `[n_rows, n_cols]`
    pub(super) values: Vec<f32>,
}

impl DenseMatrix {
    #[must_use]
    pub(super) fn new(n_rows: usize, n_cols: usize) -> DenseMatrix {
        DenseMatrix { n_rows, n_cols, values: vec![0.0; n_rows * n_cols] }
    }

    /// Dequantises rows of a model.
    ///
    /// # Errors
    /// [`Error::Read`] if they cannot be read.
    pub(super) fn dequantize(rows: &HostRows) -> Result<DenseMatrix> {
        let desc = rows.desc();
        let mut dense = DenseMatrix::new(desc.n_rows, desc.n_cols);
        for (row, to) in dense.values.chunks_exact_mut(desc.n_cols.max(1)).enumerate() {
            let bytes = rows.rows(row..row + 1).map_err(|reason| Error::Read { reason })?;
            desc.format.dequantize(&bytes, to);
        }
        Ok(dense)
    }

    pub(super) fn push(&mut self, values: &[f32]) {
        assert!(values.len().is_multiple_of(self.n_cols), "whole rows");
        self.values.extend_from_slice(values);
        self.n_rows += values.len() / self.n_cols;
    }

    #[must_use]
    pub(super) fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.n_cols..][..self.n_cols]
    }

    #[must_use]
    pub(super) fn transposed(&self) -> DenseMatrix {
        let mut to = DenseMatrix::new(self.n_cols, self.n_rows);
        for (i, row) in self.values.chunks_exact(self.n_cols.max(1)).enumerate() {
            for (j, &v) in row.iter().enumerate() {
                to.values[j * self.n_rows + i] = v;
            }
        }
        to
    }

    pub(super) fn view(&self) -> MatRef<'_, f32> {
        MatRef::from_row_major_slice(&self.values, self.n_rows, self.n_cols)
    }

    pub(super) fn to_f64(&self) -> Mat<f64> {
        Mat::from_fn(self.n_rows, self.n_cols, |i, j| f64::from(self.row(i)[j]))
    }

    pub(super) fn from_f64(from: MatRef<'_, f64>) -> DenseMatrix {
        let mut to = DenseMatrix::new(from.nrows(), from.ncols());
        for (i, row) in to.values.chunks_exact_mut(from.ncols().max(1)).enumerate() {
            row.iter_mut().enumerate().for_each(|(j, to)| *to = from[(i, j)] as f32);
        }
        to
    }

    /// `self * other^T`: products of the rows of both.
    #[must_use]
    pub(super) fn times(&self, other: &DenseMatrix) -> DenseMatrix {
        let mut to = DenseMatrix::new(self.n_rows, other.n_rows);
        let out = MatMut::from_row_major_slice_mut(&mut to.values, self.n_rows, other.n_rows);
        matmul(out, Accum::Replace, self.view(), other.view().transpose(), 1.0, PAR);
        to
    }

    /// The rows, rounded as activations for weights of `format`.
    #[must_use]
    pub(super) fn activations(&self, format: Format) -> DenseMatrix {
        let mut to = self.clone();
        if format.activation() == Activation::Q8 {
            let mut q8 = Q8Row::default();
            for row in to.values.chunks_exact_mut(self.n_cols.max(1)) {
                q8.quantize_into(row);
                let blocks = row.chunks_mut(Q8_BLOCK).zip(q8.q.chunks(Q8_BLOCK)).zip(&q8.d);
                for ((row, q), d) in blocks {
                    row.iter_mut().zip(q).for_each(|(to, &q)| *to = d * f32::from(q));
                }
            }
        }
        to
    }

    /// Quantises the matrix to `format`, whose blocks must divide the rows.
    ///
    /// # Panics
    /// If the blocks do not divide the rows, or the format can only be dequantised.
    #[must_use]
    pub(super) fn quantized(&self, format: Format) -> HostRows {
        let n = format.row_bytes(self.n_cols).expect("a row has whole blocks");
        let mut bytes = vec![0; n * self.n_rows];
        for (row, to) in self.values.chunks_exact(self.n_cols).zip(bytes.chunks_exact_mut(n)) {
            format.quantize(row, to);
        }
        let source = Source::Owned(std::sync::Arc::new(bytes));
        HostRows::new(source, self.n_rows, self.n_cols, format).expect("the bytes match the rows")
    }
}

/// Products use one thread, so that a predictor is the same on every machine.
pub(super) const PAR: Par = Par::Seq;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_and_transposes_are_correct() {
        let a = DenseMatrix { n_rows: 2, n_cols: 3, values: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0] };
        let b = DenseMatrix { n_rows: 1, n_cols: 3, values: vec![1.0, 0.0, -1.0] };
        assert_eq!(a.times(&b).values, [-2.0, -2.0]);
        assert_eq!(a.transposed().transposed(), a);
        assert_eq!(a.transposed().row(1), [2.0, 5.0]);
        let rows = DenseMatrix::from_f64(a.to_f64().as_ref());
        assert_eq!(rows, a);
    }

    #[test]
    fn activations_are_rounded_for_quantised_weights() {
        let x = DenseMatrix {
            n_rows: 1,
            n_cols: 32,
            values: (0..32).map(|i| i as f32 * 0.37).collect(),
        };
        assert_eq!(x.activations(Format::F16), x);
        let rounded = x.activations(Format::Q4_0);
        assert_ne!(rounded, x);
        for (a, b) in x.values.iter().zip(&rounded.values) {
            assert!((a - b).abs() <= 31.0 * 0.37 / 254.0 + 1e-6);
        }
        assert_eq!(DenseMatrix::dequantize(&x.quantized(Format::F32)).unwrap(), x);
    }
}
