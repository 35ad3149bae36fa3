//! Copies of plain rows between staging and the device, and on the device.

use hal::{Operand, RawStaging, Result, Tensor};

use crate::buffer::{Span, plain, plain_stride};
use crate::driver::Driver;
use crate::error::driver;
use crate::pinned::Pinned;
use crate::stream::Stream;

/// A plain view with the width of its rows on both sides, in bytes.
pub(crate) struct Rows {
    span: Span,
    host: usize,
    device: usize,
}

impl Rows {
    /// # Errors
    /// [`hal::Error::Driver`] for a tensor without plain rows.
    pub(crate) fn of(tensor: &Tensor) -> Result<Rows> {
        let desc = tensor.desc();
        let host = desc.format.row_bytes(desc.n_cols);
        let (Some(host), Some(device)) = (host, plain_stride(&desc)) else {
            return Err(driver("copy", format!("{desc} cannot be copied as rows")));
        };
        Ok(Rows { span: plain(tensor)?, host, device: device as usize })
    }

    /// The copies for `len` bytes: host offset, device offset, length.
    fn pieces(&self, len: usize) -> impl Iterator<Item = (usize, u64, usize)> {
        let (host, device) = (self.host, self.device);
        // Rows that are padded on the device are copied one by one.
        let step = if host == device || host == 0 { len.max(1) } else { host };
        (0..len).step_by(step).enumerate().map(move |(row, at)| {
            let n = step.min(len - at);
            (at, (row * device) as u64, n)
        })
    }
}

/// Starts to write all of `from` to the first bytes of a view.
pub(crate) fn upload<D: Driver>(stream: &Stream<D>, from: &Pinned<D>, to: &Rows) -> Result<()> {
    let len = from.bytes().len();
    to.pieces(len).try_for_each(|(at, offset, n)| stream.copy_in(to.span, offset, from, at, n))
}

/// Starts to read the first bytes of a view, as many as `to` holds.
pub(crate) fn download<D: Driver>(
    stream: &Stream<D>,
    to: &mut Pinned<D>,
    from: &Rows,
) -> Result<()> {
    let len = to.bytes().len();
    let mut pieces = from.pieces(len);
    pieces.try_for_each(|(at, offset, n)| stream.copy_out(to, at, from.span, offset, n))
}

/// Copies rows to another tensor of the same shape.
pub(crate) fn copy_rows<D: Driver>(stream: &Stream<D>, src: &Tensor, dst: &Tensor) -> Result<()> {
    stream.copy(plain(dst)?, plain(src)?)
}
