//! How weights lie on the device, and how they get there.

use hal::pack::{pack_plain, plain_size};
use hal::{Bytes, Error, HostRows, Operand, PackDesc, Result, Select, Tensor, TensorDesc};

use crate::buffer::{RowLayout, WgpuBuffer, plain, plain_stride, rounded, stored_size};
use crate::copies::{spread, write};
use crate::gpu::Gpu;

/// Bytes of an import that are on their way at once.
const PIECE: usize = 16 << 20;

/// Bytes that a pack takes on the device.
pub(crate) fn size(pack: &PackDesc) -> Bytes {
    let packed = pack.packed().ok();
    packed.and_then(|desc| stored_size(&desc)).map_or(Bytes::MAX, |size| rounded(size.0))
}

/// Brings weights to the device.
///
/// # Errors
/// [`Error::OutOfMemory`], a lost device, what a paged source reports.
pub(crate) fn import(
    gpu: &Gpu,
    label: &str,
    pack: &PackDesc,
    source: &HostRows,
) -> Result<WgpuBuffer> {
    let buffer = gpu.storage(label, size(pack).0)?;
    import_rows(gpu, &buffer, pack, source)?;
    Ok(WgpuBuffer { buffer, layout: RowLayout::Plain })
}

/// Brings a pack that lies as plain rows to the device, piece by piece.
fn import_rows(gpu: &Gpu, buffer: &wgpu::Buffer, pack: &PackDesc, source: &HostRows) -> Result<()> {
    let desc = pack.packed()?;
    let stride = plain_stride(&desc).unwrap_or_default() as usize;
    if pack.transpose || stride == 0 {
        let reason = "it packs no transposed matrices yet".to_owned();
        return Err(Error::Unsupported { op: "import", device: "wgpu".to_owned(), reason });
    }
    let n_selected = desc.n_rows - pack.spare;
    let per_piece = (PIECE / stride).max(1);
    for first in (0..n_selected).step_by(per_piece) {
        let n = per_piece.min(n_selected - first);
        let bytes = plain_rows(pack, &desc, source, first..first + n)?;
        gpu.queue.write_buffer(buffer, (first * stride) as u64, &bytes);
        gpu.wait(&gpu.submit(None))?;
    }
    Ok(())
}

/// Some rows of a pack, filled up to whole words.
fn plain_rows(
    pack: &PackDesc,
    desc: &TensorDesc,
    source: &HostRows,
    rows: std::ops::Range<usize>,
) -> Result<Vec<u8>> {
    let host = desc.format.row_bytes(desc.n_cols).unwrap_or_default();
    let device = plain_stride(desc).unwrap_or_default() as usize;
    let bytes = match &pack.select {
        Select::All => source.rows(rows)?.into_owned(),
        Select::Rows(list) => {
            let mut bytes = Vec::with_capacity(rows.len() * host);
            for &row in &list[rows] {
                bytes.extend_from_slice(&source.rows(row as usize..row as usize + 1)?);
            }
            bytes
        }
        Select::ColumnBlocks(list) => {
            let block = desc.format.block_bytes();
            let mut bytes = Vec::with_capacity(rows.len() * host);
            for row in rows {
                let row = source.rows(row..row + 1)?;
                for &b in &list[..] {
                    bytes.extend_from_slice(&row[b as usize * block..][..block]);
                }
            }
            bytes
        }
    };
    Ok(spread(&bytes, host, device).into_owned())
}

/// One row of a pack as it lies on the device.
pub(crate) fn row(pack: &PackDesc, source: &HostRows, row: u32) -> Result<Vec<u8>> {
    let one = PackDesc { select: Select::Rows([row].into()), spare: 0, ..pack.clone() };
    let desc = one.packed()?;
    let mut bytes = vec![0; plain_size(&desc).unwrap_or_default()];
    pack_plain(&one, source, &mut bytes, 1)?;
    let device = plain_stride(&desc).unwrap_or_default() as usize;
    Ok(spread(&bytes, bytes.len(), device).into_owned())
}

/// Puts a row from [`row`] into a slot.
pub(crate) fn refill(gpu: &Gpu, pack: &Tensor, slot: usize, bytes: &[u8]) -> Result<()> {
    let span = plain(pack)?;
    let stride = plain_stride(&pack.desc()).unwrap_or_default();
    if bytes.len() as u64 != stride {
        let got = format!("{} bytes", bytes.len());
        return Err(Error::shape("refill", "bytes", format!("{stride} bytes"), got));
    }
    write(gpu, &span, slot as u64 * stride, bytes)
}
