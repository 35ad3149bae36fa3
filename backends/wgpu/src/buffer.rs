//! Tensors on the device: a buffer, and the location of its rows.

use hal::pack::plain_size;
use hal::{Bytes, Layout, Operand, RawBuffer, Result, Tensor, TensorDesc};

use crate::error::driver;

/// Buffer sizes are multiples of this many bytes, itself a multiple of every driver's alignment of
/// buffers and bindings.
const ALIGN: u64 = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowLayout {
    /// The host's format, with each row padded to whole 32-bit words.
    Plain,
    /// Weights packed by `layout`.
    Packed,
}

/// Device memory of a tensor.
#[derive(Debug)]
pub(crate) struct WgpuBuffer {
    pub(crate) buffer: wgpu::Buffer,
    pub(crate) layout: RowLayout,
}

impl RawBuffer for WgpuBuffer {}

/// Range of a buffer; offset and size are multiples of 4 bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Span {
    pub(crate) buffer: wgpu::Buffer,
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

impl Span {
    /// The subrange of `size` bytes from byte `offset` on.
    pub(crate) fn part(&self, offset: u64, size: u64) -> Span {
        Span { buffer: self.buffer.clone(), offset: self.offset + offset, size }
    }
}

/// `bytes` rounded up to a valid buffer size.
pub(crate) fn rounded(bytes: u64) -> Bytes {
    Bytes(bytes.max(1).div_ceil(ALIGN).saturating_mul(ALIGN))
}

/// Bytes of a plain row on the device; `None` if the row is not a whole number of blocks or its
/// size overflows.
pub(crate) fn plain_stride(desc: &TensorDesc) -> Option<u64> {
    let bytes = desc.format.row_bytes(desc.n_cols)? as u64;
    Some(bytes.div_ceil(4) * 4)
}

/// Bytes that a tensor of this shape takes, before rounding; `None` if the shape is invalid or the
/// size overflows.
pub(crate) fn stored_size(desc: &TensorDesc) -> Option<Bytes> {
    match desc.layout {
        Layout::Rows => plain_stride(desc)?.checked_mul(desc.n_rows as u64).map(Bytes),
        Layout::Transposed { .. } => plain_size(desc).map(|size| Bytes(size as u64)),
    }
}

/// The buffer behind a tensor.
///
/// # Errors
/// [`hal::Error::Driver`] for another backend's tensor, which `hal` rejects earlier.
pub(crate) fn raw(tensor: &Tensor) -> Result<&WgpuBuffer> {
    tensor.raw().ok_or_else(|| driver("bind", "the tensor belongs to another backend"))
}

/// Location of the rows of a plain view.
///
/// # Errors
/// [`hal::Error::Driver`] for a packed tensor.
pub(crate) fn plain(tensor: &Tensor) -> Result<Span> {
    let (raw, desc) = (raw(tensor)?, tensor.desc());
    let stride = match (raw.layout, plain_stride(&desc)) {
        (RowLayout::Plain, Some(stride)) => stride,
        _ => return Err(driver("bind", format!("{desc} is packed, but the op needs plain rows"))),
    };
    let offset = stride * tensor.first_row() as u64;
    Ok(Span { buffer: raw.buffer.clone(), offset, size: stride * desc.n_rows as u64 })
}
