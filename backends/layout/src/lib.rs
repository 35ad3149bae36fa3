//! The layout of weights on a GPU: whole words, codes separate from scales, every row independent.
//!
//! A row holds the bits of the file's row and no more (except for the padding at its end),
//! regrouped into planes (`planes.rs`), so that a lane reads the codes of 32 values as one or two
//! loads of 16 bytes and their scales as one more. Rows of blocks begin at multiples of 16 bytes
//! and are independent: a slot is refilled by one write, and a matrix larger than a binding is
//! split between rows. Floats keep the file's layout, each row padded to whole words.
//!
//! A transposed down matrix in blocks has the layout of [`hal::format::TransposedLayout`], which
//! consists of whole words already; the rows of a transposed float matrix are plain rows.
//!
//! This crate converts bytes to bytes; the backend copies them to the device. `shaders/formats/`
//! and `kernels-cuda/formats/` read them.

mod pack;
mod planes;
mod tables;

#[cfg(test)]
mod tests;

use hal::format::Format;
use hal::pack::{plain_size, transposed};
use hal::{Layout, PackDesc, TensorDesc};

pub use pack::{Writes, pack, pack_into, pack_rows, refill};
pub use tables::{needs_tables, tables};

/// Rows of blocks are multiples of this many words: one load.
const ROW_WORDS: usize = 4;

/// Words from one row of a weight to the next; `None` if a row is not whole blocks.
#[must_use]
pub fn row_words(format: Format, n_cols: usize) -> Option<usize> {
    let bytes = format.row_bytes(n_cols)?;
    Some(match format.quants() {
        Some(_) => planes::row_bytes(format, n_cols).div_ceil(4).next_multiple_of(ROW_WORDS),
        None => bytes.div_ceil(4),
    })
}

/// Whether a tensor has a row of codes per neuron and scales in tables.
#[must_use]
pub fn has_tables(desc: &TensorDesc) -> bool {
    matches!(desc.layout, Layout::Transposed { .. }) && desc.format.quants().is_some()
}

/// Words from one row to the next of an imported weight; `None` if it overflows.
#[must_use]
pub fn stride(desc: &TensorDesc) -> Option<usize> {
    if has_tables(desc) {
        transposed(desc).ok().map(|layout| layout.row_bytes / 4)
    } else {
        row_words(desc.format, desc.n_cols)
    }
}

/// Bytes of an imported tensor of shape `desc`; `None` if it overflows.
#[must_use]
pub fn imported_size(desc: &TensorDesc) -> Option<u64> {
    if has_tables(desc) {
        return Some(plain_size(desc)? as u64);
    }
    // The transposed matrix must be valid, although its rows are then stored as plain rows.
    if desc.layout != Layout::Rows {
        transposed(desc).ok()?;
    }
    let row = row_words(desc.format, desc.n_cols)? as u64;
    row.checked_mul(4)?.checked_mul(desc.n_rows as u64)
}

/// Bytes of [`pack_into`] for a pack of shape `desc`; `None` if it is invalid.
#[must_use]
pub fn packed_len(desc: &TensorDesc) -> Option<usize> {
    usize::try_from(imported_size(desc)?).ok()
}

/// Bytes of `pack` on a device; `None` if it overflows.
#[must_use]
pub fn pack_size(pack: &PackDesc) -> Option<u64> {
    imported_size(&pack.packed().ok()?)
}
