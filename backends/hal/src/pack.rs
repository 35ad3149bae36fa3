//! The plain layout of a pack, for devices that use host memory: functions that write, check and
//! read it.
//!
//! A pack is a weight matrix, or selected rows of it, in a device's own layout. The CPU reference
//! reads the plain layout; other backends may define a faster one.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;

use crate::format::{TransposedError, TransposedLayout, TransposedPart};
use crate::{
    Error, HostRows, Layout, PackDesc, Result, RowPlace, RowTable, Select, StoredPack, TensorDesc,
};

/// Bytes of a tensor of shape `desc` in the plain layout; `None` if rows are not whole blocks or
/// the size overflows.
#[must_use]
pub fn plain_size(desc: &TensorDesc) -> Option<usize> {
    match desc.layout {
        Layout::Rows => usize::try_from(desc.bytes()?.0).ok(),
        Layout::Transposed { n_source } => {
            let layout = TransposedLayout::new(desc.format, desc.n_rows, n_source, desc.n_cols);
            layout.ok().map(|layout| layout.n_bytes)
        }
    }
}

/// Name and version of the plain layout. A file whose packs have another layout is stale.
///
/// Change the version whenever the bytes change; a test pins the bytes.
pub const PLAIN_LAYOUT: &str = "plain/1";

/// Writes the plain layout of `pack` from `source` to all of `out`, which has [`plain_size`] bytes.
/// Transposing uses up to `n_threads` threads.
///
/// # Errors
/// [`Error::Shape`] if the pack does not fit, or errors of a paged source.
pub fn pack_plain(
    pack: &PackDesc,
    source: &HostRows,
    out: &mut [u8],
    n_threads: usize,
) -> Result<()> {
    let packed = pack.packed_desc()?;
    if plain_size(&packed) != Some(out.len()) {
        return Err(Error::shape("pack", "out", packed, format!("{} bytes", out.len())));
    }
    if pack.transpose {
        let layout = transposed(&packed)?;
        let neurons = &neurons(pack)[..];
        let bytes = source.rows(0..pack.source.n_rows)?;
        let parts = layout.parts(&bytes, neurons, out).map_err(|e| shape(&e))?;
        pack_parts(parts, n_threads);
        return Ok(());
    }
    let row = source.row_bytes();
    match &pack.select {
        Select::All => {
            let (rows, spare) = out.split_at_mut(row * pack.source.n_rows);
            rows.copy_from_slice(&source.rows(0..pack.source.n_rows)?);
            spare.fill(0);
        }
        Select::Rows(list) => {
            out[list.len() * row..].fill(0);
            for (&r, out) in list.iter().zip(out.chunks_exact_mut(row)) {
                out.copy_from_slice(&source.rows(r as usize..r as usize + 1)?);
            }
        }
        Select::ColumnBlocks(list) => {
            let block = pack.source.format.block_bytes();
            for (r, out) in out.chunks_exact_mut((list.len() * block).max(1)).enumerate() {
                let bytes = source.rows(r..r + 1)?;
                for (&b, out) in list.iter().zip(out.chunks_exact_mut(block)) {
                    out.copy_from_slice(&bytes[b as usize * block..][..block]);
                }
            }
        }
    }
    Ok(())
}

/// Name and version of the layout of stored packs whose rows begin on pages.
const PAGE_ROWS_LAYOUT: &str = "page rows/1";

/// Bytes from one row of a stored pack to the next if its rows begin on pages; `None` if they are
/// adjacent, as they are where pages would take a third more: such rows share few pages anyway.
fn page_pitch(pack: &PackDesc) -> Option<usize> {
    let in_rows = !pack.transpose && !matches!(pack.select, Select::ColumnBlocks(_));
    let desc = pack.packed_desc().ok().filter(|_| pack.page_rows && in_rows)?;
    let row = desc.format.row_bytes(desc.n_cols)?;
    let pitch = row.checked_next_multiple_of(RowPlace::UNIT as usize)?;
    (pitch > row && pitch - row <= row / 3).then_some(pitch)
}

/// How `pack` is stored for a device with the plain layout.
#[must_use]
pub fn stored_plain(pack: &PackDesc) -> Option<StoredPack> {
    let desc = pack.packed_desc().ok()?;
    match page_pitch(pack) {
        Some(pitch) => {
            let len = pitch.checked_mul(desc.n_rows)?;
            Some(StoredPack { layout: PAGE_ROWS_LAYOUT, len })
        }
        None => Some(StoredPack { layout: PLAIN_LAYOUT, len: plain_size(&desc)? }),
    }
}

/// Writes `pack` as [`stored_plain`] says, with zeros between rows.
///
/// # Errors
/// As [`pack_plain`].
pub fn pack_stored(
    pack: &PackDesc,
    source: &HostRows,
    out: &mut [u8],
    n_threads: usize,
) -> Result<()> {
    let Some(pitch) = page_pitch(pack) else {
        return pack_plain(pack, source, out, n_threads);
    };
    let (packed, row_bytes) = (pack.packed_desc()?, source.row_bytes());
    if pitch.checked_mul(packed.n_rows) != Some(out.len()) {
        return Err(Error::shape("pack", "out", packed, format!("{} bytes", out.len())));
    }
    out.fill(0);
    for (row, out) in out.chunks_exact_mut(pitch).enumerate() {
        let from = match &pack.select {
            Select::Rows(list) => list.get(row).map(|&from| from as usize),
            Select::All | Select::ColumnBlocks(_) => (row < pack.source.n_rows).then_some(row),
        };
        if let Some(from) = from {
            out[..row_bytes].copy_from_slice(&source.rows(from..from + 1)?);
        }
    }
    Ok(())
}

/// As [`check_plain`], for bytes that [`pack_stored`] wrote. Returns the bytes from one row to the
/// next if rows begin on pages.
///
/// # Errors
/// [`Error::Shape`] if the length or an index is wrong.
pub fn check_stored(pack: &PackDesc, bytes: &[u8]) -> Result<Option<usize>> {
    let Some(pitch) = page_pitch(pack) else { return check_plain(pack, bytes).map(|()| None) };
    let packed = pack.packed_desc()?;
    if pitch.checked_mul(packed.n_rows) == Some(bytes.len()) {
        Ok(Some(pitch))
    } else {
        Err(Error::shape("adopt", "bytes", packed, format!("{} bytes", bytes.len())))
    }
}

/// As [`check_stored`], for rows that begin where `table` says in a memory of `len` bytes. Returns the
/// bytes from one row to the next in a pack that is in order.
///
/// # Errors
/// [`Error::Shape`] if the number of rows, the layout or a place is wrong.
pub fn check_row_places(pack: &PackDesc, len: u64, table: &RowTable) -> Result<usize> {
    let packed = pack.packed_desc()?;
    let error = |found: String| Err(Error::shape("adopt", "rows", packed, found));
    let Some(row) = packed.format.row_bytes(packed.n_cols).filter(|_| !pack.transpose) else {
        return error("a table of rows".to_owned());
    };
    if table.len() != packed.n_rows {
        return error(format!("{} places", table.len()));
    }
    let outside = table.iter().find(|place| place.start() + row as u64 > len);
    match outside {
        Some(place) => error(format!("a row at byte {} of {len}", place.start())),
        None => Ok(page_pitch(pack).unwrap_or(row)),
    }
}

/// The neurons (columns of the source) that a transposing pack selects.
fn neurons(pack: &PackDesc) -> Cow<'_, [u32]> {
    match &pack.select {
        Select::Rows(list) => Cow::Borrowed(list),
        Select::All | Select::ColumnBlocks(_) => (0..pack.source.n_cols as u32).collect(),
    }
}

/// Checks untrusted `bytes` before they are used as a `pack` in the plain layout without spare
/// slots: their length, and every index in them. Wrong weights are not detected.
///
/// # Errors
/// [`Error::Shape`] if the length or an index is wrong.
pub fn check_plain(pack: &PackDesc, bytes: &[u8]) -> Result<()> {
    let packed = pack.packed_desc()?;
    let valid = if pack.transpose {
        transposed(&packed)?.accepts(&neurons(pack), bytes)
    } else {
        plain_size(&packed) == Some(bytes.len())
    };
    let wrong = || format!("{} bytes, or has an index out of range", bytes.len());
    if valid { Ok(()) } else { Err(Error::shape("adopt", "bytes", packed, wrong())) }
}

/// Packs all `parts` on `n_threads` threads. The result does not depend on which thread packs which
/// part.
fn pack_parts(parts: Vec<TransposedPart<'_>>, n_threads: usize) {
    let n_threads = n_threads.clamp(1, parts.len().max(1));
    let queue = Mutex::new(parts.into_iter());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let pack_all = || {
        while let Some(part) = next() {
            part.pack();
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..n_threads {
            // If the system refuses a thread, the others pack its parts.
            if Builder::new().spawn_scoped(scope, pack_all).is_err() {
                break;
            }
        }
        pack_all();
    });
}

/// Consecutive rows in the plain layout, for [`refill_plain`]. In a transposed pack, each row is
/// followed by the number of its group of scales (u32).
///
/// # Errors
/// See [`pack_plain`].
pub fn pack_rows_plain(pack: &PackDesc, source: &HostRows, rows: Range<u32>) -> Result<Vec<u8>> {
    let selected =
        PackDesc { select: Select::Rows(rows.clone().collect()), spare: 0, ..pack.clone() };
    let packed = selected.packed_desc()?;
    if pack.transpose {
        let (layout, from) = (transposed(&packed)?, source.rows(0..pack.source.n_rows)?);
        let mut bytes = Vec::with_capacity(rows.len() * (layout.row_bytes + 4));
        for row in rows {
            let (codes, group) = layout.pack_one(&from, row).map_err(|e| shape(&e))?;
            bytes.extend(codes);
            bytes.extend(group.to_le_bytes());
        }
        return Ok(bytes);
    }
    let mut bytes = vec![0; plain_size(&packed).unwrap_or_default()];
    pack_plain(&selected, source, &mut bytes, 1)?;
    Ok(bytes)
}

/// The bytes of one slot of a transposed pack of shape `desc`, for [`refill_plain`].
///
/// # Errors
/// [`Error::Shape`] if the slot does not exist, or `pack` is not of this shape.
pub fn slot_plain(desc: &TensorDesc, pack: &[u8], slot: usize) -> Result<Vec<u8>> {
    let layout = transposed(desc)?;
    let codes = pack.get(slot * layout.row_bytes..(slot + 1) * layout.row_bytes);
    let group = pack.get(layout.groups_at + 4 * slot..layout.groups_at + 4 * slot + 4);
    match codes.zip(group).filter(|_| slot < layout.n_slots && pack.len() == layout.n_bytes) {
        Some((codes, group)) => Ok([codes, group].concat()),
        None => Err(Error::shape("refill", "slot", format!("one of {desc}"), slot)),
    }
}

/// Writes bytes from [`pack_rows_plain`] to `slots` of a pack of shape `desc`.
///
/// # Errors
/// [`Error::Shape`] if the pack lacks a slot, or `bytes` does not match the number of slots.
pub fn refill_plain(
    desc: &TensorDesc,
    pack: &mut [u8],
    slots: Range<usize>,
    bytes: &[u8],
) -> Result<()> {
    let wrong = || {
        let rows = format!("{} packed rows", slots.len());
        Error::shape("refill", "bytes", rows, format!("{} bytes", bytes.len()))
    };
    match desc.layout {
        Layout::Rows => {
            let row = desc.format.row_bytes(desc.n_cols).ok_or_else(wrong)?;
            let out = pack.get_mut(slots.start * row..slots.end * row).ok_or_else(wrong)?;
            if out.len() != bytes.len() {
                return Err(wrong());
            }
            out.copy_from_slice(bytes);
        }
        Layout::Transposed { .. } => {
            let layout = transposed(desc)?;
            let row = layout.row_bytes + 4;
            if bytes.len() != slots.len() * row || slots.end > layout.n_slots {
                return Err(wrong());
            }
            for (slot, bytes) in slots.zip(bytes.chunks_exact(row)) {
                let (codes, group) = bytes.split_at(layout.row_bytes);
                pack[slot * layout.row_bytes..][..layout.row_bytes].copy_from_slice(codes);
                pack[layout.groups_at + 4 * slot..][..4].copy_from_slice(group);
            }
        }
    }
    Ok(())
}

/// Dequantises row `row` of a tensor in the plain layout into `out`. `desc` is the shape of the
/// whole buffer.
///
/// # Panics
/// If `bytes` is not a buffer of that shape or the row is out of range.
pub fn dequantize_row_plain(desc: &TensorDesc, bytes: &[u8], row: usize, out: &mut [f32]) {
    match desc.layout {
        Layout::Rows => {
            let len =
                desc.format.row_bytes(desc.n_cols).expect("tensors have whole blocks per row");
            desc.format.dequantize(&bytes[row * len..][..len], out);
        }
        Layout::Transposed { .. } => {
            transposed(desc).expect("the tensor was packed by this layout").row(bytes, row, out);
        }
    }
}

/// The transposed layout of a tensor.
///
/// # Errors
/// [`Error::Shape`] if the source's neurons are not whole blocks or the tensor is not transposed.
pub fn transposed(desc: &TensorDesc) -> Result<TransposedLayout> {
    match desc.layout {
        Layout::Transposed { n_source } => {
            TransposedLayout::new(desc.format, desc.n_rows, n_source, desc.n_cols)
                .map_err(|e| shape(&e))
        }
        Layout::Rows => Err(Error::shape("pack", "layout", "transposed", desc)),
    }
}

fn shape(error: &TransposedError) -> Error {
    Error::shape("pack", "source", "a matrix that can be transposed", error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Format;
    use std::sync::Arc;

    /// 3 rows of `n_cols` F16 values, none of whose bytes is 0.
    fn rows(n_cols: usize) -> HostRows {
        let bytes: Vec<u8> = (0..3 * 2 * n_cols).map(|i| (i % 251 + 1) as u8).collect();
        HostRows::new(crate::Source::Owned(Arc::new(bytes)), 3, n_cols, Format::F16).unwrap()
    }

    #[test]
    fn stored_rows_begin_on_pages_where_that_costs_a_third_at_most() {
        let stored = |n_cols: usize, page_rows| {
            let pack = PackDesc { page_rows, ..PackDesc::whole(rows(n_cols).desc()) };
            stored_plain(&pack).map(|stored| (stored.layout, stored.len)).unwrap()
        };
        assert_eq!(stored(3456, false), (PLAIN_LAYOUT, 3 * 6912));
        assert_eq!(stored(3456, true), (PAGE_ROWS_LAYOUT, 3 * 8192));
        assert_eq!(stored(1536, true), (PAGE_ROWS_LAYOUT, 3 * 4096));
        assert_eq!(stored(1535, true), (PLAIN_LAYOUT, 3 * 3070));
        assert_eq!(stored(4096, true), (PLAIN_LAYOUT, 3 * 8192));
    }

    #[test]
    fn rows_on_pages_have_zeros_between_them_and_are_checked() {
        let source = rows(3456);
        let whole = PackDesc { page_rows: true, ..PackDesc::whole(source.desc()) };
        let some = PackDesc { select: Select::Rows([0, 2].into()), ..whole.clone() };
        for (pack, expected) in [(whole, &[0, 1, 2][..]), (some, &[0, 2])] {
            let mut out = vec![9; stored_plain(&pack).unwrap().len];
            pack_stored(&pack, &source, &mut out, 1).unwrap();
            assert_eq!(check_stored(&pack, &out).unwrap(), Some(8192));
            for (out, &row) in out.chunks_exact(8192).zip(expected) {
                assert_eq!(out[..6912], *source.rows(row..row + 1).unwrap());
                assert!(out[6912..].iter().all(|&byte| byte == 0));
            }
            assert!(check_stored(&pack, &out[1..]).is_err());
            assert!(pack_stored(&pack, &source, &mut out[1..], 1).is_err());
        }
    }
}
