//! A low-rank update of a matrix, and the arithmetic of merging it.

use hal::format::Format;
use rayon::prelude::*;

use gguf::{File, TensorInfo};

use super::EMBEDDING;
use super::error::{AdapterError, shape_text};

/// The largest F16 value.
const F16_MAX: f32 = 65_504.0;

/// An update `left right` of a matrix, or of `n` stacked matrices (experts).
#[derive(Debug)]
pub(super) struct LowRank {
    rank: usize,
    /// Number of rows of one of the stacked matrices.
    n_rows: usize,
    /// `[n * n_rows, rank]`, multiplied by the scale.
    left: Vec<f32>,
    /// `[n * rank, n_cols]`.
    right: Vec<f32>,
}

/// The length of axis `axis`; 1 for an axis that the shape does not have.
fn axis(tensor: &TensorInfo, axis: usize) -> u64 {
    tensor.shape.get(axis).copied().unwrap_or(1)
}

impl LowRank {
    /// Reads `lora_a` and `lora_b` of `file` for the matrix `target`.
    pub(super) fn read(
        file: &File,
        target: &TensorInfo,
        a: &TensorInfo,
        b: &TensorInfo,
        scale: f32,
        alpha: f32,
    ) -> Result<LowRank, AdapterError> {
        let embeds = target.name == EMBEDDING;
        let [n_cols, n_rows, n] = [0, 1, 2].map(|at| axis(target, at));
        let rank = axis(b, 0);
        // Factors of the embedding have exchanged roles: `lora_a` has a row for each token.
        let expected =
            if embeds { [rank, n_rows, rank, n_cols] } else { [n_cols, rank, rank, n_rows] };
        for (tensor, expected) in [(a, &expected[..2]), (b, &expected[2..])] {
            let wanted = [expected[0], expected[1], n, 1];
            if rank == 0 || (0..4).any(|at| axis(tensor, at) != wanted[at]) {
                let wanted = if n > 1 { &wanted[..3] } else { &wanted[..2] };
                return Err(AdapterError::Shape {
                    file: file.name().to_owned(),
                    tensor: tensor.name.clone(),
                    found: shape_text(&tensor.shape),
                    expected: format!(
                        "{} for `{}` of shape {} and rank {rank}",
                        shape_text(wanted),
                        target.name,
                        shape_text(&target.shape)
                    ),
                });
            }
        }
        let (left, right) = if embeds { (a, b) } else { (b, a) };
        let (mut left, mut right) = (floats(file, left)?, floats(file, right)?);
        if embeds {
            right = transposed(&right, rank as usize);
        }
        let scale = if alpha == 0.0 { scale } else { scale * alpha / rank as f32 };
        left.iter_mut().for_each(|value| *value *= scale);
        Ok(LowRank { rank: rank as usize, n_rows: n_rows as usize, left, right })
    }

    /// Adds the update of row `row` of all stacked rows.
    fn add_to(&self, row: usize, values: &mut [f32]) {
        let factors = &self.left[row * self.rank..][..self.rank];
        let first = row / self.n_rows * self.rank;
        for (k, factor) in factors.iter().enumerate() {
            let right = &self.right[(first + k) * values.len()..][..values.len()];
            values.iter_mut().zip(right).for_each(|(value, right)| *value += factor * right);
        }
    }
}

/// The values of a tensor.
fn floats(file: &File, tensor: &TensorInfo) -> Result<Vec<f32>, AdapterError> {
    let format = tensor.ty.format().filter(|format| format.is_weight());
    let format = format.ok_or_else(|| AdapterError::Format {
        file: file.name().to_owned(),
        tensor: tensor.name.clone(),
        found: tensor.ty.to_string(),
    })?;
    let mut values = vec![0.0; tensor.n_elements() as usize];
    format.dequantize(file.bytes(tensor)?, &mut values);
    Ok(values)
}

/// Rows of `n_cols` values as columns.
fn transposed(values: &[f32], n_cols: usize) -> Vec<f32> {
    let n_rows = values.len() / n_cols;
    (0..values.len()).map(|i| values[i % n_rows * n_cols + i / n_rows]).collect()
}

/// The rows of `source`, each of `n_cols` values in `format`, with `updates` added, in the format
/// `to`.
///
/// # Errors
/// A value that is not finite or too large for `to`.
pub(super) fn merge(
    source: &[u8],
    format: Format,
    n_cols: usize,
    updates: &[LowRank],
    to: Format,
) -> Result<Vec<u8>, f32> {
    let (Some(row_from), Some(row_to)) = (format.row_bytes(n_cols), to.row_bytes(n_cols)) else {
        return Ok(Vec::new());
    };
    if row_from == 0 {
        return Ok(Vec::new());
    }
    let mut out = vec![0; source.len() / row_from * row_to];
    let limit = if to.quants().is_some() {
        // The largest value of a block is 127 times its scale, which is F16.
        127.0 * F16_MAX
    } else if to == Format::F16 {
        F16_MAX
    } else {
        f32::MAX
    };
    let rows = source.par_chunks_exact(row_from).zip(out.par_chunks_exact_mut(row_to));
    rows.enumerate().try_for_each_init(
        || vec![0.0; n_cols],
        |values, (row, (source, out))| {
            format.dequantize(source, values);
            updates.iter().for_each(|update| update.add_to(row, values));
            match values.iter().find(|value| value.is_nan() || value.abs() > limit) {
                Some(value) => Err(*value),
                None => {
                    to.quantize(values, out);
                    Ok(())
                }
            }
        },
    )?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_become_rows() {
        assert_eq!(transposed(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2), [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]);
        assert_eq!(transposed(&[1.0, 2.0, 3.0], 1), [1.0, 2.0, 3.0]);
    }

    #[test]
    fn updates_of_stacked_matrices_use_the_factors_of_their_matrix() {
        // Two matrices of [1, 2], with updates of rank 1.
        let update = LowRank {
            rank: 1,
            n_rows: 1,
            left: vec![2.0, -1.0],
            right: vec![1.0, 10.0, 100.0, 1000.0],
        };
        let source: Vec<u8> =
            [0.5_f32, 0.0, 0.0, 0.5].iter().flat_map(|v| v.to_le_bytes()).collect();
        let both = merge(&source, Format::F32, 2, &[update], Format::F32).unwrap();
        let mut values = [0.0; 4];
        Format::F32.dequantize(&both, &mut values);
        assert_eq!(values, [2.5, 20.0, -100.0, -999.5]);
    }
}
