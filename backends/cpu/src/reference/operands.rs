//! Reads and writes operands; computes dot products for all formats.

use hal::format::{Activation, Format, Q8_BLOCK, Q8Row};
use hal::pack::dequantize_row_plain;
use hal::{Batch, BatchView, Operand, Tensor};

use super::Memory;

/// Dequantises one row of a view into `out` `[n_cols]`.
pub(super) fn read_row(memory: &dyn Memory, tensor: &Tensor, row: usize, out: &mut [f32]) {
    let (whole, row) = (tensor.whole(), tensor.first_row() + row);
    if out.len() == whole.n_cols {
        return memory.read(tensor, &mut |bytes| dequantize_row_plain(&whole, bytes, row, out));
    }
    let mut all = vec![0.0; whole.n_cols];
    memory.read(tensor, &mut |bytes| dequantize_row_plain(&whole, bytes, row, &mut all));
    out.copy_from_slice(&all[tensor.first_col()..][..out.len()]);
}

/// One row of a view, dequantised.
pub(super) fn row(memory: &dyn Memory, tensor: &Tensor, row: usize) -> Vec<f32> {
    let mut out = vec![0.0; tensor.desc().n_cols];
    read_row(memory, tensor, row, &mut out);
    out
}

/// All rows of a view, dequantised, one after another.
pub(super) fn floats(memory: &dyn Memory, tensor: &Tensor) -> Vec<f32> {
    let desc = tensor.desc();
    let mut out = vec![0.0; desc.n_rows * desc.n_cols];
    for r in 0..desc.n_rows {
        read_row(memory, tensor, r, &mut out[r * desc.n_cols..][..desc.n_cols]);
    }
    out
}

pub(super) fn optional_floats(memory: &dyn Memory, tensor: Option<&Tensor>) -> Option<Vec<f32>> {
    tensor.map(|tensor| floats(memory, tensor))
}

/// Overwrites one row of a view with `values`, quantised to the view's format.
pub(super) fn write_row(memory: &dyn Memory, tensor: &Tensor, row: usize, values: &[f32]) {
    let format = tensor.desc().format;
    let len = format.row_bytes(values.len()).expect("tensors have whole blocks per row");
    let at = (tensor.first_row() + row) * len;
    memory.write(tensor, &mut |bytes| format.quantize(values, &mut bytes[at..at + len]));
}

/// Overwrites one row of the KV cache with `values`, quantised to the cache's format.
pub(super) fn write_cache_row(memory: &dyn Memory, cache: &Tensor, row: usize, values: &[f32]) {
    let format = cache.desc().format;
    let len = format.row_bytes(values.len()).expect("tensors have whole blocks per row");
    let at = (cache.first_row() + row) * len;
    memory.write(cache, &mut |bytes| format.quantize_cache(values, &mut bytes[at..at + len]));
}

pub(super) fn words(memory: &dyn Memory, tensor: &Tensor) -> Vec<u32> {
    let desc = tensor.desc();
    let (at, len) = (4 * tensor.first_row() * desc.n_cols, 4 * desc.n_rows * desc.n_cols);
    let mut out = Vec::new();
    memory.read(tensor, &mut |bytes| {
        let words = bytes[at..at + len].chunks_exact(4);
        out = words.map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect();
    });
    out
}

/// Overwrites the first words of a U32 view.
pub(super) fn write_words(memory: &dyn Memory, tensor: &Tensor, words: &[u32]) {
    let at = 4 * tensor.first_row() * tensor.desc().n_cols;
    memory.write(tensor, &mut |bytes| {
        for (out, word) in bytes[at..].chunks_exact_mut(4).zip(words) {
            out.copy_from_slice(&word.to_le_bytes());
        }
    });
}

pub(super) struct Step {
    words: Vec<u32>,
    shape: hal::BatchShape,
}

impl Step {
    pub(super) fn new(memory: &dyn Memory, batch: &Batch<Tensor>) -> Step {
        Step { words: words(memory, &batch.words), shape: batch.shape }
    }

    pub(super) fn view(&self) -> BatchView<'_> {
        BatchView::new(&self.words, self.shape)
    }

    /// Number of the step's tokens in a program recorded for `n_rows`; the other rows are padding.
    pub(super) fn n_tokens(&self, n_rows: usize) -> usize {
        self.view().n_tokens().min(n_rows)
    }
}

/// `x` as the input of a weight matrix in `format`: unchanged, or quantised to Q8 blocks.
pub(super) fn activations(x: &[f32], format: Format) -> Vec<f64> {
    match format.activation() {
        Activation::F32 => x.iter().map(|&v| f64::from(v)).collect(),
        Activation::Q8 => {
            let mut row = Q8Row::default();
            row.quantize_into(x);
            let value = |i: usize| f64::from(row.d[i / Q8_BLOCK]) * f64::from(row.q[i]);
            (0..x.len()).map(value).collect()
        }
    }
}

/// All rows of `x` as inputs of a weight matrix in `format`.
pub(super) fn activation_rows(memory: &dyn Memory, x: &Tensor, format: Format) -> Vec<Vec<f64>> {
    (0..x.desc().n_rows).map(|t| activations(&row(memory, x, t), format)).collect()
}

pub(super) fn dot(w: &[f32], x: &[f64]) -> f64 {
    w.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum()
}
