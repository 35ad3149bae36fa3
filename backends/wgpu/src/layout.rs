//! Imports weights and refills slots, in the layout of the `layout` crate.

use std::ops::Range;

use hal::{Bytes, HostRows, PackDesc, Result, Tensor};

use crate::buffer::{RowLayout, Span, WgpuBuffer, raw, rounded};
use crate::copies::write;
use crate::gpu::Gpu;

/// Bytes that a pack takes on the device.
pub(crate) fn size(pack: &PackDesc) -> Bytes {
    layout::pack_size(pack).map_or(Bytes::MAX, rounded)
}

/// Imports weights to the device.
///
/// # Errors
/// [`hal::Error::OutOfMemory`], a lost device, errors of a paged source.
pub(crate) fn import(
    gpu: &Gpu,
    label: &str,
    pack: &PackDesc,
    source: &HostRows,
) -> Result<WgpuBuffer> {
    let buffer = gpu.storage(label, size(pack).0)?;
    layout::pack(pack, source, &mut |at, bytes| {
        gpu.queue.write_buffer(&buffer, at, bytes);
        // Waits for each chunk, since bytes in flight take up host memory too.
        gpu.wait(&gpu.submit(None))
    })?;
    let layout = match pack.source.format.quants() {
        None => RowLayout::Plain,
        Some(_) => RowLayout::Packed,
    };
    Ok(WgpuBuffer { buffer, layout })
}

/// Writes rows from [`layout::pack_rows`] to slots.
///
/// # Errors
/// [`hal::Error::Shape`] if `bytes` does not have the size of `slots` rows of the pack.
pub(crate) fn refill(gpu: &Gpu, tensor: &Tensor, slots: Range<usize>, bytes: &[u8]) -> Result<()> {
    for (offset, part) in layout::refill(&tensor.whole(), tensor.buffer_rows(slots), bytes)? {
        let buffer = raw(tensor)?.buffer.clone();
        let span = Span { buffer, offset, size: part.len() as u64 };
        write(gpu, &span, 0, &bytes[part])?;
    }
    Ok(())
}

/// Replaces the whole contents of a pack, after the previous submission and before the next one.
///
/// # Errors
/// A lost device, errors of the driver.
pub(crate) fn repack(gpu: &Gpu, tensor: &Tensor, bytes: &[u8]) -> Result<()> {
    let span = Span { buffer: raw(tensor)?.buffer.clone(), offset: 0, size: bytes.len() as u64 };
    write(gpu, &span, 0, bytes)
}
