//! The layout of weights on a GPU: rows of whole words, codes separate from scales, every row
//! independent.
//!
//! A quantised row has the bits of the file's row, regrouped into planes (`planes.rs`), and padding
//! at its end. A lane reads the codes of 32 values with a few loads of up to 16 bytes, and their
//! scales separately. Quantised rows begin at multiples of 16 bytes and are independent, so one
//! write refills a slot, and a matrix larger than a GPU binding can be split between rows.
//! Floats keep the file's layout, with each row padded to whole words.
//!
//! A transposed quantised down matrix has the layout of [`hal::format::TransposedLayout`], which
//! already consists of whole words. The rows of a transposed float matrix are plain rows.
//!
//! This crate only converts bytes; the backend copies the result to the device. The kernels in
//! `shaders/formats/` and `kernels-cuda/formats/` read this layout.

mod pack;
mod planes;
mod tables;

#[cfg(test)]
mod tests;

use hal::format::Format;
use hal::pack::{plain_size, transposed};
use hal::{Layout, PackDesc, TensorDesc};

pub use pack::{BufferWrites, pack, pack_into, pack_rows, refill};
pub use tables::{needs_tables, tables};

/// Quantised rows are padded to a multiple of this number of 32-bit words, one load of 16 bytes.
const ROW_ALIGN_WORDS: usize = 4;

/// Words from one row of a weight to the next; `None` if a row has incomplete blocks or its
/// size overflows.
#[must_use]
pub fn row_words(format: Format, n_cols: usize) -> Option<usize> {
    let bytes = format.row_bytes(n_cols)?;
    Some(match format.quants() {
        Some(_) => planes::row_bytes(format, n_cols).div_ceil(4).next_multiple_of(ROW_ALIGN_WORDS),
        None => bytes.div_ceil(4),
    })
}

/// Whether a tensor is a transposed quantised matrix: a row of codes per neuron, scales in tables.
#[must_use]
pub fn is_transposed_quantised(desc: &TensorDesc) -> bool {
    matches!(desc.layout, Layout::Transposed { .. }) && desc.format.quants().is_some()
}

/// Words from one row to the next of an imported weight; `None` if the shape is invalid or a size
/// overflows.
#[must_use]
pub fn stride(desc: &TensorDesc) -> Option<usize> {
    if is_transposed_quantised(desc) {
        transposed(desc).ok().map(|layout| layout.row_bytes / 4)
    } else {
        row_words(desc.format, desc.n_cols)
    }
}

/// Bytes of an imported tensor of shape `desc`; `None` if the shape is invalid or the size
/// overflows.
#[must_use]
pub fn imported_size(desc: &TensorDesc) -> Option<u64> {
    if is_transposed_quantised(desc) {
        return Some(plain_size(desc)? as u64);
    }
    // A transposed float matrix must be valid too, although its rows are stored as plain rows.
    if desc.layout != Layout::Rows {
        transposed(desc).ok()?;
    }
    let row = row_words(desc.format, desc.n_cols)? as u64;
    row.checked_mul(4)?.checked_mul(desc.n_rows as u64)
}

/// Bytes that [`pack_into`] writes for a pack of shape `desc`; `None` if the shape is invalid or
/// the size overflows.
#[must_use]
pub fn packed_len(desc: &TensorDesc) -> Option<usize> {
    usize::try_from(imported_size(desc)?).ok()
}

/// Bytes of `pack` on a device; `None` if the pack is invalid or the size overflows.
#[must_use]
pub fn pack_size(pack: &PackDesc) -> Option<u64> {
    imported_size(&pack.packed_desc().ok()?)
}
