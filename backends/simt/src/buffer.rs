//! Tensors on the device: memory, and the location of their rows.

use std::fmt;
use std::sync::Arc;

use hal::pack::plain_size;
use hal::{Layout, Operand, RawBuffer, Result, Tensor, TensorDesc};

use crate::driver::{DevicePtr, Driver};
use crate::error::failure;

/// Layout of the rows in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowLayout {
    /// The host's format, with each row padded to whole 32-bit words.
    Plain,
    /// Weights packed by the `layout` crate.
    Packed,
}

pub(crate) struct Memory<D: Driver> {
    driver: Arc<D>,
    pub(crate) at: DevicePtr,
    pub(crate) len: u64,
}

impl<D: Driver> fmt::Debug for Memory<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({:#x}, {} bytes)", self.at, self.len)
    }
}

impl<D: Driver> Memory<D> {
    /// # Errors
    /// [`hal::Error::OutOfMemory`], a lost device.
    pub(crate) fn new(driver: &Arc<D>, label: &str, len: u64) -> Result<Memory<D>> {
        let at = driver.alloc(label, len)?;
        Ok(Memory { driver: Arc::clone(driver), at, len })
    }

    pub(crate) fn span(&self) -> Span {
        Span { at: self.at, size: self.len }
    }
}

impl<D: Driver> Drop for Memory<D> {
    fn drop(&mut self) {
        self.driver.free(self.at);
    }
}

/// Device memory of one tensor.
#[derive(Debug)]
pub(crate) struct SimtBuffer {
    pub(crate) span: Span,
    pub(crate) layout: RowLayout,
    /// Frees the memory when dropped; the trait object hides the driver's type.
    pub(crate) _memory: Box<dyn HeldMemory>,
}

/// A value that a buffer holds only so that it is not dropped.
pub(crate) trait HeldMemory: fmt::Debug + Send + Sync {}

impl<T: fmt::Debug + Send + Sync> HeldMemory for T {}

impl RawBuffer for SimtBuffer {}

/// A range of device memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) at: DevicePtr,
    pub(crate) size: u64,
}

impl Span {
    /// A null pointer: the span of a missing operand.
    pub(crate) const NONE: Span = Span { at: 0, size: 0 };

    /// A subrange, from byte `offset` on.
    pub(crate) fn part(self, offset: u64, size: u64) -> Span {
        debug_assert!(offset + size <= self.size, "{size} bytes at {offset} exceed {}", self.size);
        Span { at: self.at + offset, size }
    }
}

/// Bytes of a plain row on the device; `None` if the row is not a whole number of blocks or its
/// size overflows.
pub(crate) fn plain_stride(desc: &TensorDesc) -> Option<u64> {
    let bytes = desc.format.row_bytes(desc.n_cols)? as u64;
    Some(bytes.div_ceil(4) * 4)
}

/// Bytes that a tensor of this shape takes, before rounding; `None` if the shape is invalid or the
/// size overflows.
pub(crate) fn stored_size(desc: &TensorDesc) -> Option<u64> {
    match desc.layout {
        Layout::Rows => plain_stride(desc)?.checked_mul(desc.n_rows as u64),
        Layout::Transposed { .. } => plain_size(desc).map(|size| size as u64),
    }
}

/// The device memory behind a tensor.
///
/// # Errors
/// [`hal::Error::Driver`] for another backend's tensor, which `hal` rejects earlier.
pub(crate) fn raw(tensor: &Tensor) -> Result<&SimtBuffer> {
    tensor.raw().ok_or_else(|| failure("bind", "the tensor belongs to another backend"))
}

/// Location of the rows of a plain view.
///
/// # Errors
/// [`hal::Error::Driver`] for a tensor that is packed.
pub(crate) fn plain(tensor: &Tensor) -> Result<Span> {
    let (raw, desc) = (raw(tensor)?, tensor.desc());
    let stride = match (raw.layout, plain_stride(&desc)) {
        (RowLayout::Plain, Some(stride)) => stride,
        _ => {
            return Err(failure("bind", format!("{desc} is packed, but the op needs plain rows")));
        }
    };
    Ok(raw.span.part(stride * tensor.first_row() as u64, stride * desc.n_rows as u64))
}
