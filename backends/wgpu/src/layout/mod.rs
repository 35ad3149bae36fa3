//! How weights lie on the device: whole words, codes apart from scales, every row by itself.
//!
//! A row holds the bits of the file's row and no more (but for the padding at its end), regrouped into planes
//! ([`planes`]), so that a lane reads the codes of 32 values as one or two loads of 16 bytes and their scales as one
//! more. Rows of blocks begin at multiples of 16 bytes and stand alone: a slot is refilled by one write, and a matrix larger
//! than a binding is cut between rows. Floats lie as they are, each row filled up to whole words.
//!
//! A down matrix that is transposed has the layout of [`hal::format::TransposedLayout`], which consists of whole words
//! already; of floats, its rows are like any others.

mod pack;
mod planes;
mod tables;

#[cfg(test)]
mod tests;

use hal::format::Format;
use hal::pack::{plain_size, transposed};
use hal::{Bytes, HostRows, Layout, PackDesc, Result, Tensor, TensorDesc};

use crate::buffer::{RowLayout, Span, WgpuBuffer, raw, rounded};
use crate::copies::write;
use crate::gpu::Gpu;

pub(crate) use tables::{needs_tables, tables};

/// Rows of blocks are multiples of so many words: one load.
const ROW_WORDS: usize = 4;

/// Words from one row of a weight to the next; `None` if a row is not whole blocks.
pub(crate) fn row_words(format: Format, n_cols: usize) -> Option<usize> {
    let bytes = format.row_bytes(n_cols)?;
    Some(match format.quants() {
        Some(_) => planes::row_bytes(format, n_cols).div_ceil(4).next_multiple_of(ROW_WORDS),
        None => bytes.div_ceil(4),
    })
}

/// Whether a tensor has codes by neuron and scales in tables.
pub(crate) fn has_tables(desc: &TensorDesc) -> bool {
    matches!(desc.layout, Layout::Transposed { .. }) && desc.format.quants().is_some()
}

/// Bytes of an imported tensor of shape `desc`; `None` if it cannot exist.
pub(crate) fn imported_size(desc: &TensorDesc) -> Option<u64> {
    if has_tables(desc) {
        return Some(plain_size(desc)? as u64);
    }
    // A transposed matrix must exist as such, though its rows then lie like any others.
    if desc.layout != Layout::Rows {
        transposed(desc).ok()?;
    }
    let row = row_words(desc.format, desc.n_cols)? as u64;
    row.checked_mul(4)?.checked_mul(desc.n_rows as u64)
}

/// Bytes that a pack takes on the device.
pub(crate) fn size(pack: &PackDesc) -> Bytes {
    let packed = pack.packed().ok();
    packed.and_then(|desc| imported_size(&desc)).map_or(Bytes::MAX, rounded)
}

/// Brings weights to the device.
///
/// # Errors
/// [`hal::Error::OutOfMemory`], a lost device, what a paged source reports.
pub(crate) fn import(
    gpu: &Gpu,
    label: &str,
    pack: &PackDesc,
    source: &HostRows,
) -> Result<WgpuBuffer> {
    let buffer = gpu.storage(label, size(pack).0)?;
    pack::pack(pack, source, &mut |at, bytes| {
        gpu.queue.write_buffer(&buffer, at, bytes);
        // What is on its way is host memory too.
        gpu.wait(&gpu.submit(None))
    })?;
    let layout = match pack.source.format.quants() {
        None => RowLayout::Plain,
        Some(_) => RowLayout::Packed,
    };
    Ok(WgpuBuffer { buffer, layout })
}

/// One row of a pack as it lies on the device.
///
/// # Errors
/// What a paged source reports.
pub(crate) fn row(pack: &PackDesc, source: &HostRows, row: u32) -> Result<Vec<u8>> {
    pack::pack_row(pack, source, row)
}

/// Puts a row from [`row`] into a slot.
///
/// # Errors
/// [`hal::Error::Shape`] for bytes that are not one row of the pack.
pub(crate) fn refill(gpu: &Gpu, tensor: &Tensor, slot: usize, bytes: &[u8]) -> Result<()> {
    let slot = tensor.first_row() + slot;
    for (offset, part) in pack::refill(&tensor.whole(), slot, bytes)? {
        let buffer = raw(tensor)?.buffer.clone();
        let span = Span { buffer, offset, size: part.len() as u64 };
        write(gpu, &span, 0, &bytes[part])?;
    }
    Ok(())
}

/// Bytes of [`pack_into`] for a pack of shape `desc`; `None` where there are none.
pub(crate) fn packed_len(desc: &TensorDesc) -> Option<usize> {
    usize::try_from(imported_size(desc)?).ok()
}

/// Makes the bytes that [`repack`] takes.
///
/// # Errors
/// [`hal::Error::Shape`] if the pack does not fit, what a paged source reports.
pub(crate) fn pack_into(pack: &PackDesc, source: &HostRows, out: &mut [u8]) -> Result<()> {
    pack::pack_into(pack, source, out)
}

/// Replaces all that a pack holds: before what is submitted next, after what was before.
///
/// # Errors
/// A driver fault.
pub(crate) fn repack(gpu: &Gpu, tensor: &Tensor, bytes: &[u8]) -> Result<()> {
    let span = Span { buffer: raw(tensor)?.buffer.clone(), offset: 0, size: bytes.len() as u64 };
    write(gpu, &span, 0, bytes)
}
