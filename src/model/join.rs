//! Several matrices presented as one: stacked by rows, or concatenated by columns.

use std::ops::Range;
use std::sync::Arc;

use hal::format::Format;
use hal::{HostRows, Result, RowStore, Source, TensorDesc};

/// Matrices stacked by rows: all rows of the first, then all rows of the second, and so on.
#[derive(Debug)]
struct StackedRows(Vec<HostRows>);

impl RowStore for StackedRows {
    fn read(&self, rows: Range<usize>, out: &mut [u8]) -> Result<()> {
        let Some(first) = self.0.first() else { return Ok(()) };
        let (n, row) = (first.desc().n_rows, first.row_bytes());
        for (at, out) in rows.zip(out.chunks_exact_mut(row.max(1))) {
            out.copy_from_slice(&self.0[at / n].rows(at % n..at % n + 1)?);
        }
        Ok(())
    }

    fn parts(&self) -> &[HostRows] {
        &self.0
    }
}

/// The `n` matrices in `stacked`, concatenated by columns: row `i` is row `i` of the first matrix,
/// then row `i` of the second, and so on.
#[derive(Debug)]
struct ConcatenatedColumns {
    stacked: HostRows,
    n: usize,
}

impl RowStore for ConcatenatedColumns {
    fn read(&self, rows: Range<usize>, out: &mut [u8]) -> Result<()> {
        let (n_rows, row) = (self.stacked.desc().n_rows / self.n, self.stacked.row_bytes());
        let places = rows.flat_map(|at| (0..self.n).map(move |part| part * n_rows + at));
        for (at, out) in places.zip(out.chunks_exact_mut(row.max(1))) {
            out.copy_from_slice(&self.stacked.rows(at..at + 1)?);
        }
        Ok(())
    }

    fn parts(&self) -> &[HostRows] {
        std::slice::from_ref(&self.stacked)
    }
}

/// Matrices concatenated by columns: row `i` is row `i` of the first, then row `i` of the second,
/// and so on.
#[derive(Debug)]
struct BundledColumns(Vec<HostRows>);

impl RowStore for BundledColumns {
    fn read(&self, rows: Range<usize>, out: &mut [u8]) -> Result<()> {
        let row: usize = self.0.iter().map(HostRows::row_bytes).sum();
        for (at, mut out) in rows.zip(out.chunks_exact_mut(row.max(1))) {
            for part in &self.0 {
                let (to, rest) = out.split_at_mut(part.row_bytes());
                to.copy_from_slice(&part.rows(at..at + 1)?);
                out = rest;
            }
        }
        Ok(())
    }

    fn parts(&self) -> &[HostRows] {
        &self.0
    }
}

/// Concatenates `parts` by columns, so that all weights of a neuron are adjacent. The parts must
/// have equal row counts and one format.
///
/// # Errors
/// [`hal::Error::Shape`] if the matrices do not fit together.
pub fn bundle(parts: Vec<HostRows>) -> Result<HostRows> {
    let first = parts.first().map(HostRows::desc);
    let (n_rows, format) = first.map_or((0, hal::format::Format::F32), |d| (d.n_rows, d.format));
    if let Some(odd) = parts.iter().find(|p| (p.desc().n_rows, p.desc().format) != (n_rows, format))
    {
        let expected = format!("{n_rows} rows of {format}");
        return Err(hal::Error::shape("bundle", "parts", expected, odd.desc()));
    }
    let n_cols = parts.iter().map(|part| part.desc().n_cols).sum();
    HostRows::new(Source::Paged(Arc::new(BundledColumns(parts))), n_rows, n_cols, format)
}

/// Stacks `parts`, which must have one shape and one format, by rows.
///
/// # Errors
/// [`hal::Error::Shape`] if the matrices do not fit together.
pub(super) fn stack(parts: Vec<HostRows>) -> Result<HostRows> {
    let n = parts.len();
    match <[HostRows; 1]>::try_from(parts) {
        Ok([one]) => Ok(one),
        Err(parts) => {
            let desc = parts.first().map(HostRows::desc);
            let (n_rows, n_cols, format) = desc
                .map_or((0, 0, hal::format::Format::F32), |d| (n * d.n_rows, d.n_cols, d.format));
            HostRows::new(Source::Paged(Arc::new(StackedRows(parts))), n_rows, n_cols, format)
        }
    }
}

/// Matrices of one shape and format, each transposed, stacked by rows.
#[derive(Debug)]
struct TransposedParts(Vec<HostRows>);

impl RowStore for TransposedParts {
    fn read(&self, rows: Range<usize>, out: &mut [u8]) -> Result<()> {
        let Some(TensorDesc { n_cols, .. }) = self.0.first().map(HostRows::desc) else {
            return Ok(());
        };
        let (mut at, mut out) = (rows.start, out);
        while at < rows.end {
            let (part, columns) =
                (at / n_cols, at % n_cols..n_cols.min(at % n_cols + rows.end - at));
            let (to, rest) = out.split_at_mut(out.len() / (rows.end - at) * columns.len());
            transpose_columns(&self.0[part], columns.clone(), to)?;
            (at, out) = (at + columns.len(), rest);
        }
        Ok(())
    }

    fn parts(&self) -> &[HostRows] {
        &self.0
    }
}

/// Writes the `columns` of a matrix as rows: in its format if a block is one value, else as F32. Reads
/// only the blocks of these columns.
fn transpose_columns(matrix: &HostRows, columns: Range<usize>, out: &mut [u8]) -> Result<()> {
    let TensorDesc { n_rows, format, .. } = matrix.desc();
    let (block, bytes) = (format.block_values(), format.block_bytes());
    let size = if block == 1 { bytes } else { size_of::<f32>() };
    let mut values = vec![0.0f32; block];
    for r in 0..n_rows {
        let row = matrix.rows(r..r + 1)?;
        if block == 1 {
            for (i, column) in columns.clone().enumerate() {
                out[(i * n_rows + r) * size..][..size]
                    .copy_from_slice(&row[column * size..][..size]);
            }
            continue;
        }
        for b in columns.start / block..columns.end.div_ceil(block) {
            format.dequantize(&row[b * bytes..][..bytes], &mut values);
            let inside = columns.start.max(b * block)..columns.end.min((b + 1) * block);
            for column in inside {
                let at = ((column - columns.start) * n_rows + r) * size;
                out[at..at + size].copy_from_slice(&values[column % block].to_le_bytes());
            }
        }
    }
    Ok(())
}

/// Transposes each of `parts`, which must have one shape and one format, and stacks the results by
/// rows. Formats with blocks of several values become F32, which holds their values exactly:
/// transposed blocks would need other scales.
///
/// # Errors
/// [`hal::Error::Shape`] if the matrices do not fit together.
pub(super) fn stack_transposed(parts: Vec<HostRows>) -> Result<HostRows> {
    let Some(desc) = parts.first().map(HostRows::desc) else { return stack(parts) };
    if let Some(odd) = parts.iter().find(|part| part.desc() != desc) {
        return Err(hal::Error::shape(
            "stack_transposed",
            "parts",
            format!("{desc:?}"),
            odd.desc(),
        ));
    }
    let format = if desc.format.block_values() == 1 { desc.format } else { Format::F32 };
    let n_rows = parts.len() * desc.n_cols;
    HostRows::new(Source::Paged(Arc::new(TransposedParts(parts))), n_rows, desc.n_rows, format)
}

/// Concatenates by columns the `n` matrices that are stacked in `rows`.
///
/// # Errors
/// [`hal::Error::Shape`] if the matrices do not fit together.
pub fn stacked_to_columns(rows: &HostRows, n: usize) -> Result<HostRows> {
    let desc = rows.desc();
    let store = ConcatenatedColumns { stacked: rows.clone(), n: n.max(1) };
    let (n_rows, n_cols) = (desc.n_rows / n.max(1), desc.n_cols * n);
    HostRows::new(Source::Paged(Arc::new(store)), n_rows, n_cols, desc.format)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(values: &[f32], n_cols: usize) -> HostRows {
        let bytes: Vec<u8> = bytemuck::cast_slice(values).to_vec();
        let n_rows = values.len() / n_cols;
        HostRows::new(Source::Owned(Arc::new(bytes)), n_rows, n_cols, Format::F32).unwrap()
    }

    fn values(rows: &HostRows, range: Range<usize>) -> Vec<f32> {
        let bytes = rows.rows(range).unwrap();
        bytes.chunks_exact(4).map(|v| f32::from_le_bytes(v.try_into().unwrap())).collect()
    }

    #[test]
    fn transposed_parts_have_the_values_of_their_columns() {
        let floats = matrix(&(0..6).map(|i| i as f32).collect::<Vec<_>>(), 3);
        let all = stack_transposed(vec![floats.clone(), floats]).unwrap();
        assert_eq!((all.desc().n_rows, all.desc().n_cols), (6, 2));
        assert_eq!(values(&all, 1..5), [1., 4., 2., 5., 0., 3., 1., 4.]);
        let quantised = |seed: f32| {
            let values: Vec<f32> = (0..5 * 64).map(|i| (seed + i as f32).sin()).collect();
            let mut bytes = vec![0; 10 * Format::Q8_0.block_bytes()];
            Format::Q8_0.quantize(&values, &mut bytes);
            HostRows::new(Source::Owned(Arc::new(bytes)), 5, 64, Format::Q8_0).unwrap()
        };
        let parts = [quantised(0.0), quantised(7.0)];
        let mut expected = Vec::new();
        for part in &parts {
            let mut all = vec![0.0; 5 * 64];
            Format::Q8_0.dequantize(&part.rows(0..5).unwrap(), &mut all);
            expected.extend(
                (0..64).flat_map(|c| (0..5).map(move |r| (r, c))).map(|(r, c)| all[r * 64 + c]),
            );
        }
        let all = stack_transposed(parts.to_vec()).unwrap();
        for range in [0..128, 3..4, 30..35, 60..70, 127..128] {
            assert_eq!(values(&all, range.clone()), expected[range.start * 5..range.end * 5]);
        }
        assert!(stack_transposed(vec![quantised(0.0), matrix(&[1., 2.], 2)]).is_err());
    }

    #[test]
    fn stacked_and_bundled_matrices_have_the_rows_of_their_parts() {
        let (a, b) = (matrix(&[1., 2., 3., 4.], 2), matrix(&[5., 6., 7., 8.], 2));
        let stacked = stack(vec![a, b]).unwrap();
        assert_eq!(values(&stacked, 1..4), [3., 4., 5., 6., 7., 8.]);
        let columns = stacked_to_columns(&stacked, 2).unwrap();
        assert_eq!((columns.desc().n_rows, columns.desc().n_cols), (2, 4));
        assert_eq!(values(&columns, 0..2), [1., 2., 5., 6., 3., 4., 7., 8.]);
        assert_eq!(values(&columns, 1..2), [3., 4., 7., 8.]);
        let bundle = bundle(vec![stacked.clone(), stacked.clone(), stacked.clone()]).unwrap();
        assert_eq!((bundle.desc().n_rows, bundle.desc().n_cols), (4, 6));
        assert_eq!(values(&bundle, 1..3), [3., 4., 3., 4., 3., 4., 5., 6., 5., 6., 5., 6.]);
        assert!(super::bundle(vec![stacked, columns]).is_err());
    }
}
