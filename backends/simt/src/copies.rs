//! Copies of plain rows between staging and the device, and inside it.

use hal::{Operand, RawStaging, Result, Tensor};

use crate::buffer::{Span, plain, plain_stride};
use crate::driver::Driver;
use crate::error::driver;
use crate::pinned::Pinned;
use crate::stream::Stream;

/// A plain view with the widths of its rows on both sides, in bytes.
pub(crate) struct Rows {
    span: Span,
    host: usize,
    device: usize,
}

impl Rows {
    /// # Errors
    /// [`hal::Error::Driver`] for what has no plain rows.
    pub(crate) fn of(tensor: &Tensor) -> Result<Rows> {
        let desc = tensor.desc();
        let host = desc.format.row_bytes(desc.n_cols);
        let (Some(host), Some(device)) = (host, plain_stride(&desc)) else {
            return Err(driver("copy", format!("{desc} has no rows of bytes")));
        };
        Ok(Rows { span: plain(tensor)?, host, device: device as usize })
    }

    /// What is copied of `len` bytes: where they begin on the host and on the device, and how many.
    fn pieces(&self, len: usize) -> impl Iterator<Item = (usize, u64, usize)> {
        let (host, device) = (self.host, self.device);
        // Rows that are filled up to whole words on the device go one by one.
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

/// Starts to read the first bytes of a view, as many as `to` has.
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
