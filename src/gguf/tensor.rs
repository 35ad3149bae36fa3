//! A tensor's entry in a container, and its checks.

use std::ops::Range;

use super::{Problem, TensorType};

pub(super) const MAX_DIMENSIONS: usize = 4;

/// Name, shape, type and location of a tensor. Once a file is open, its bytes are known to lie
/// inside it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo {
    /// The name, unique in the model.
    pub name: String,
    /// Values along each axis in ggml order: `shape[0]`, the contiguous axis, is the length of a
    /// row.
    pub shape: Vec<u64>,
    /// Format of the values.
    pub ty: TensorType,
    pub(super) part: usize,
    /// Offset of the tensor in bytes: from the data section while the header is read, later from
    /// the start of the file.
    pub(super) offset: u64,
    n_elements: u64,
    n_bytes: u64,
}

impl TensorInfo {
    /// Checks the shape against the type and computes the sizes.
    pub(super) fn new(
        name: String,
        shape: Vec<u64>,
        ty: TensorType,
        offset: u64,
    ) -> Result<TensorInfo, Problem> {
        if shape.is_empty() || shape.len() > MAX_DIMENSIONS {
            return Err(Problem::Dimensions { tensor: name, found: shape.len() as u64 });
        }
        // Axes of length 0 are skipped, so that no later product of other axes can overflow.
        let size = |unit: u64| {
            shape.iter().filter(|&&n| n > 0).try_fold(unit, |product, &n| product.checked_mul(n))
        };
        let Some(widest) = size(1) else {
            return Err(Problem::Elements { tensor: name, shape });
        };
        let n_elements = if shape.contains(&0) { 0 } else { widest };
        let n_bytes = match ty.block() {
            None => 0,
            Some(block) if !shape[0].is_multiple_of(block.values) => {
                let found = shape[0];
                return Err(Problem::RowLength { tensor: name, ty, expected: block.values, found });
            }
            Some(block) => match (n_elements / block.values).checked_mul(block.bytes) {
                Some(n_bytes) => n_bytes,
                None => {
                    return Err(Problem::Elements { tensor: name, shape });
                }
            },
        };
        Ok(TensorInfo { name, shape, ty, part: 0, offset, n_elements, n_bytes })
    }

    /// Values in the tensor.
    pub fn n_elements(&self) -> u64 {
        self.n_elements
    }

    /// Bytes of the tensor; 0 if the size of its type is unknown.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Values in a row: `shape[0]`.
    pub fn row_len(&self) -> u64 {
        self.shape[0]
    }

    /// Rows of [`TensorInfo::row_len`] values: the product of all axes but the first.
    pub fn n_rows(&self) -> u64 {
        self.shape[1..].iter().product()
    }

    /// Index of the file that contains the tensor, for a split model.
    pub fn part(&self) -> usize {
        self.part
    }

    /// Offset of the tensor in its file, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn range(&self) -> Range<usize> {
        // The casts cannot overflow: `locate_in_file` checked that the range lies inside a slice.
        self.offset as usize..(self.offset + self.n_bytes) as usize
    }
}

/// Converts offsets in the data section to offsets in the file, and checks that every tensor is
/// inside the file, aligned, and does not overlap others.
pub(super) fn locate_in_file(
    tensors: &mut [TensorInfo],
    data_start: u128,
    alignment: u64,
    file_len: u64,
) -> Result<(), Problem> {
    for tensor in tensors.iter_mut() {
        if !tensor.offset.is_multiple_of(alignment) {
            return Err(Problem::Misaligned {
                tensor: tensor.name.clone(),
                expected: alignment,
                found: tensor.offset,
            });
        }
        let start = data_start + u128::from(tensor.offset);
        let end = start + u128::from(tensor.n_bytes);
        if end > u128::from(file_len) {
            return Err(Problem::BeyondEnd {
                tensor: tensor.name.clone(),
                expected: end,
                found: file_len,
            });
        }
        tensor.offset = start as u64; // at most `end`, which fits in a u64
    }
    let mut by_offset: Vec<&TensorInfo> = tensors.iter().filter(|t| t.n_bytes > 0).collect();
    by_offset.sort_unstable_by_key(|tensor| tensor.offset);
    for pair in by_offset.windows(2) {
        let end = pair[0].offset + pair[0].n_bytes;
        if pair[1].offset < end {
            return Err(Problem::Overlap {
                first: pair[0].name.clone(),
                second: pair[1].name.clone(),
                end,
                start: pair[1].offset,
            });
        }
    }
    Ok(())
}
