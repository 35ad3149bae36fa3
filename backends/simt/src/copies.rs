//! Copies of plain rows between staging and the device, and on the device.

use hal::{Operand, RawStaging, Result, Tensor};

use crate::buffer::{Span, plain, plain_stride};
use crate::driver::Driver;
use crate::error::failure;
use crate::pinned::Pinned;
use crate::stream::Stream;

/// A plain view, with the bytes of a row on the host and on the device.
pub(crate) struct Rows {
    span: Span,
    host_bytes: usize,
    device_bytes: usize,
}

impl Rows {
    /// # Errors
    /// [`hal::Error::Driver`] for a tensor without plain rows.
    pub(crate) fn of(tensor: &Tensor) -> Result<Rows> {
        let desc = tensor.desc();
        let host_bytes = desc.format.row_bytes(desc.n_cols);
        let (Some(host_bytes), Some(device_bytes)) = (host_bytes, plain_stride(&desc)) else {
            return Err(failure("copy", format!("{desc} has rows that are not whole blocks")));
        };
        Ok(Rows { span: plain(tensor)?, host_bytes, device_bytes: device_bytes as usize })
    }

    /// The copies for `len` bytes: host offset, device offset and length, in bytes.
    fn copies(&self, len: usize) -> impl Iterator<Item = (usize, u64, usize)> {
        let (host_bytes, device_bytes) = (self.host_bytes, self.device_bytes);
        // Rows that are padded on the device are copied one by one.
        let step =
            if host_bytes == device_bytes || host_bytes == 0 { len.max(1) } else { host_bytes };
        (0..len).step_by(step).enumerate().map(move |(row, at)| {
            let n = step.min(len - at);
            (at, (row * device_bytes) as u64, n)
        })
    }
}

/// Starts to copy all of `from` to the first bytes of a view.
pub(crate) fn upload<D: Driver>(stream: &Stream<D>, from: &Pinned<D>, to: &Rows) -> Result<()> {
    let len = from.bytes().len();
    to.copies(len).try_for_each(|(at, offset, n)| stream.copy_in(to.span, offset, from, at, n))
}

/// Starts a copy of the first bytes of a view, enough to fill `to`.
pub(crate) fn download<D: Driver>(
    stream: &Stream<D>,
    to: &mut Pinned<D>,
    from: &Rows,
) -> Result<()> {
    let len = to.bytes().len();
    let mut copies = from.copies(len);
    copies.try_for_each(|(at, offset, n)| stream.copy_out(to, at, from.span, offset, n))
}

pub(crate) fn copy_rows<D: Driver>(stream: &Stream<D>, src: &Tensor, dst: &Tensor) -> Result<()> {
    stream.copy(plain(dst)?, plain(src)?)
}
