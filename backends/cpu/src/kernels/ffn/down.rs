//! Down matrices with one row per neuron: weighted sums of the active neurons' rows.

use hal::format::TransposedLayout;
use hal::{Operand, Tensor};

use super::is_transposed;
use crate::buffer::{ReadView, WeightRows};
use crate::kernels::Context;
use simd::{SumRowsFn, TransposedFn};

#[derive(Debug)]
pub(super) enum DownByNeuron {
    /// The file stores one row per neuron.
    Rows { rows: WeightRows, sum: SumRowsFn },
    /// The matrix of the file, transposed at import.
    Transposed { layout: TransposedLayout, bytes: ReadView<u8>, first: u32, sum: TransposedFn },
}

impl DownByNeuron {
    pub(super) fn new(tensor: &Tensor, context: &Context<'_>) -> Self {
        let format = tensor.desc().format;
        if is_transposed(tensor) {
            let (layout, bytes, first) = context.bind.transposed(tensor);
            let first = first as u32;
            Self::Transposed { layout, bytes, first, sum: context.simd.transposed(format) }
        } else {
            Self::Rows { rows: context.bind.weights(tensor), sum: context.simd.sum_rows(format) }
        }
    }

    /// Adds the sum of `h * row` to `y`; `values` are pairs of a row id and `h`.
    pub(super) fn add(&self, values: &[(u32, f32)], y: &mut [f32]) {
        match self {
            Self::Rows { rows, sum } => sum(rows.matrix(), values, y),
            Self::Transposed { layout, bytes, first: 0, sum } => {
                sum(layout, bytes.as_slice(), values, y);
            }
            Self::Transposed { layout, bytes, first, sum } => {
                // The view does not begin at the first slot, so the ids are shifted, 64 at a time.
                for values in values.chunks(64) {
                    let mut shifted = [(0, 0.0); 64];
                    for (to, &(id, h)) in shifted.iter_mut().zip(values) {
                        *to = (id + first, h);
                    }
                    sum(layout, bytes.as_slice(), &shifted[..values.len()], y);
                }
            }
        }
    }
}
