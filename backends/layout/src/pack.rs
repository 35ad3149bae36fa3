//! Converts weights from the file's layout to the device's layout.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Builder};

use hal::format::Format;
use hal::pack::{pack_plain, pack_rows_plain, plain_size, transposed};
use hal::{Error, HostRows, Layout, PackDesc, Result, Select, TensorDesc};

use crate::{imported_size, is_transposed_quantised, planes, row_words};

/// Approximate number of bytes per call of the sink.
const CHUNK_BYTES: usize = 8 << 20;

/// Writes to a device buffer: the destination offset of each write, and its range of the source
/// bytes.
pub type BufferWrites = Vec<(u64, Range<usize>)>;

/// Converts `pack` to the device's layout and passes the bytes to `sink(offset, bytes)`, in order
/// and without gaps.
///
/// # Errors
/// [`Error::Shape`] if the pack does not match the source; errors of a paged source or of `sink`.
pub fn pack(
    pack: &PackDesc,
    source: &HostRows,
    sink: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let packed = pack.packed_desc()?;
    let Some(n_bytes) = imported_size(&packed) else {
        return Err(Error::shape("pack", "source", "a size that fits in memory", packed));
    };
    if pack.transpose {
        let plain = transpose(pack, source, &packed)?;
        if is_transposed_quantised(&packed) {
            return send_chunks(&plain, n_bytes, sink);
        }
        let row = packed.format.row_bytes(packed.n_cols).unwrap_or_default();
        return convert_rows(&packed, sink, &|r| Ok(Cow::Borrowed(&plain[r * row..][..row])));
    }
    let block = packed.format.block_bytes();
    let n_source = pack.source.n_rows;
    convert_rows(&packed, sink, &|r| match &pack.select {
        Select::All if r < n_source => source.rows(r..r + 1),
        Select::Rows(list) if r < list.len() => source.rows(list[r] as usize..list[r] as usize + 1),
        // Spare slots are zero.
        Select::All | Select::Rows(_) => Ok(Cow::Owned(vec![0; source.row_bytes()])),
        Select::ColumnBlocks(list) => {
            let bytes = source.rows(r..r + 1)?;
            let taken = list.iter().flat_map(|&b| &bytes[b as usize * block..][..block]);
            Ok(Cow::Owned(taken.copied().collect()))
        }
    })
}

/// Like [`pack`], but writes all bytes to `out`.
///
/// # Errors
/// The errors of [`pack`], and [`Error::Shape`] if `out` does not have the length of the pack.
pub fn pack_into(pack: &PackDesc, source: &HostRows, out: &mut [u8]) -> Result<()> {
    let packed = pack.packed_desc()?;
    if imported_size(&packed) != Some(out.len() as u64) {
        return Err(Error::shape("pack", "out", packed, format!("{} bytes", out.len())));
    }
    if is_transposed_quantised(&packed) {
        return pack_plain(pack, source, out, n_threads());
    }
    self::pack(pack, source, &mut |at, bytes| {
        out[at as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    })
}

/// The whole transposed matrix in the plain layout.
fn transpose(pack: &PackDesc, source: &HostRows, packed: &TensorDesc) -> Result<Vec<u8>> {
    let mut plain = vec![0; plain_size(packed).unwrap_or_default()];
    pack_plain(pack, source, &mut plain, n_threads())?;
    Ok(plain)
}

fn n_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get().min(16))
}

fn send_chunks(
    bytes: &[u8],
    n_bytes: u64,
    sink: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    debug_assert_eq!(bytes.len() as u64, n_bytes, "the packed size differs");
    let mut at = 0;
    for chunk in bytes.chunks(CHUNK_BYTES) {
        sink(at, chunk)?;
        at += chunk.len() as u64;
    }
    Ok(())
}

/// Converts the rows that `get` returns. Several threads convert a chunk of rows while this thread
/// passes the previous chunk to the sink.
fn convert_rows<'a>(
    packed: &TensorDesc,
    sink: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    get: &(dyn Fn(usize) -> Result<Cow<'a, [u8]>> + Sync),
) -> Result<()> {
    let row = 4 * row_words(packed.format, packed.n_cols).unwrap_or_default();
    if row == 0 {
        return Ok(());
    }
    let (per_chunk, n_threads) = ((CHUNK_BYTES / row).max(1), n_threads());
    let mut bytes = vec![0; per_chunk.min(packed.n_rows) * row];
    // The previous chunk and its offset.
    let (mut previous, mut offset) = (Vec::new(), None);
    for first in (0..packed.n_rows).step_by(per_chunk) {
        let n = per_chunk.min(packed.n_rows - first);
        let share = n.div_ceil(n_threads).max(1);
        let convert_share = |i: usize, out: &mut [u8]| -> Result<()> {
            for (j, out) in out.chunks_exact_mut(row).enumerate() {
                write_row(packed.format, &get(first + i * share + j)?, out);
            }
            Ok(())
        };
        bytes.resize(n * row, 0);
        let shares = Mutex::new(bytes.chunks_mut(share * row).enumerate());
        let next = || shares.lock().unwrap_or_else(PoisonError::into_inner).next();
        let convert_shares = || {
            while let Some((i, out)) = next() {
                convert_share(i, out)?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let start = |_| Builder::new().spawn_scoped(scope, convert_shares).ok();
            let workers: Vec<_> = (0..n_threads).map_while(start).collect();
            let sent = offset.map_or(Ok(()), |at| sink(at, &previous));
            // If the system refuses threads, this one converts what they would.
            let rest = convert_shares();
            // A worker panics only if a length is wrong, which is a bug in this crate.
            workers.into_iter().try_for_each(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })?;
            rest.and(sent)
        })?;
        std::mem::swap(&mut bytes, &mut previous);
        offset = Some((first * row) as u64);
    }
    offset.map_or(Ok(()), |at| sink(at, &previous))
}

fn write_row(format: Format, row: &[u8], out: &mut [u8]) {
    match format.quants() {
        Some(_) => planes::write_row(format, row, out),
        None => {
            let (values, padding) = out.split_at_mut(row.len());
            values.copy_from_slice(row);
            padding.fill(0);
        }
    }
}

/// Packs consecutive rows for [`refill`].
///
/// # Errors
/// See [`pack`].
pub fn pack_rows(pack: &PackDesc, source: &HostRows, rows: Range<u32>) -> Result<Vec<u8>> {
    let packed = pack.packed_desc()?;
    if is_transposed_quantised(&packed) {
        return pack_rows_plain(pack, source, rows);
    }
    let selected = PackDesc { select: Select::Rows(rows.collect()), spare: 0, ..pack.clone() };
    let mut bytes = Vec::new();
    self::pack(&selected, source, &mut |_, chunk| {
        bytes.extend_from_slice(chunk);
        Ok(())
    })?;
    Ok(bytes)
}

/// Returns the writes that fill `slots` of a pack of shape `desc` with the bytes of [`pack_rows`].
///
/// # Errors
/// [`Error::Shape`] if `bytes` does not have one packed row per slot, or a slot is outside the
/// pack.
pub fn refill(desc: &TensorDesc, slots: Range<usize>, bytes: &[u8]) -> Result<BufferWrites> {
    let n = slots.len();
    let shape_error = || {
        let rows = format!("{n} packed rows");
        Error::shape("refill", "bytes", rows, format!("{} bytes", bytes.len()))
    };
    let inside = slots.end <= desc.n_rows;
    if is_transposed_quantised(desc) {
        let layout = transposed(desc)?;
        let row = layout.row_bytes;
        if !inside || bytes.len() != n * (row + 4) {
            return Err(shape_error());
        }
        let writes = slots.zip((0..).step_by(row + 4)).flat_map(|(slot, from)| {
            let (codes, group) = (slot * row, layout.groups_at + 4 * slot);
            [(codes as u64, from..from + row), (group as u64, from + row..from + row + 4)]
        });
        return Ok(writes.collect());
    }
    let row = 4 * row_words(desc.format, desc.n_cols).ok_or_else(shape_error)?;
    debug_assert!(desc.layout == Layout::Rows || desc.format.quants().is_none());
    if inside && bytes.len() == n * row {
        Ok(vec![((slots.start * row) as u64, 0..n * row)])
    } else {
        Err(shape_error())
    }
}
