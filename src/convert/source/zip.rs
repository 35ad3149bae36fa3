//! The zip archive of a PyTorch checkpoint: only uncompressed members, so that each is a range of
//! the file.
//!
//! `torch.save` never compresses. Compressed archives are rejected, which excludes zip bombs.
//!
//! Source: PKWARE's APPNOTE, sections 4.3 and 4.5.3.

use std::collections::HashMap;
use std::ops::Range;

/// Bytes of the end-of-central-directory record without its comment, of the zip64 locator, and of
/// the zip64 end record.
const END: usize = 22;
const LOCATOR: usize = 20;
const END64: usize = 56;
/// Bytes of a directory entry and of a local header, without their names.
const ENTRY: usize = 46;
const LOCAL: usize = 30;
/// Marks a 32-bit field whose actual value is in the zip64 extra field.
const IN_ZIP64: u64 = 0xffff_ffff;

/// A problem with an archive.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// No directory was found.
    #[error(
        "it is not a zip archive (PyTorch writes zip archives since 1.6: load an older checkpoint in a newer PyTorch and save it again)"
    )]
    NotZip,
    /// The file ends inside its directory, or the directory points outside of the file.
    #[error("the archive is truncated in {place}")]
    Truncated {
        /// The structure being read.
        place: &'static str,
    },
    /// A structure that does not begin with its signature.
    #[error("{place} does not begin with its signature")]
    Signature {
        /// The structure being read.
        place: &'static str,
    },
    /// A compressed or encrypted member.
    #[error("member `{member}` is {how}, expected stored without compression")]
    Packed {
        /// The member.
        member: String,
        /// `compressed` or `encrypted`.
        how: &'static str,
    },
    /// A member that occurs twice.
    #[error("member `{member}` occurs twice")]
    Duplicate {
        /// The member.
        member: String,
    },
    /// Overlapping members.
    #[error("member `{member}` overlaps another member")]
    Overlap {
        /// The later of the two members.
        member: String,
    },
    /// A required member is missing.
    #[error("the archive has no member `{member}`")]
    Missing {
        /// The member.
        member: String,
    },
    /// A checkpoint from a big-endian machine.
    #[error("the numbers are big-endian, expected little-endian")]
    BigEndian,
}

fn le(bytes: &[u8], at: usize, n: usize, place: &'static str) -> Result<u64, Problem> {
    let field = at.checked_add(n).and_then(|end| bytes.get(at..end));
    let field = field.ok_or(Problem::Truncated { place })?;
    Ok(field.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
}

fn signature(bytes: &[u8], at: usize, expected: &[u8], place: &'static str) -> Result<(), Problem> {
    match at.checked_add(4).and_then(|end| bytes.get(at..end)) {
        None => Err(Problem::Truncated { place }),
        Some(found) if found == expected => Ok(()),
        Some(_) => Err(Problem::Signature { place }),
    }
}

/// The byte range of each member.
pub(crate) fn members(bytes: &[u8]) -> Result<HashMap<String, Range<usize>>, Problem> {
    let (n, mut at) = directory(bytes)?;
    // An entry has at least `ENTRY` bytes, so this rejects an impossible count before allocating
    // memory for it.
    if n > (bytes.len() / ENTRY) as u64 {
        return Err(Problem::Truncated { place: "the central directory" });
    }
    let mut members = HashMap::new();
    let mut ranges = Vec::new();
    for _ in 0..n {
        let (name, range, next) = member(bytes, at)?;
        at = next;
        ranges.push((range.clone(), name.clone()));
        if members.insert(name.clone(), range).is_some() {
            return Err(Problem::Duplicate { member: name });
        }
    }
    ranges.retain(|(range, _)| !range.is_empty());
    ranges.sort_unstable_by_key(|(range, _)| range.start);
    match ranges.windows(2).find(|pair| pair[1].0.start < pair[0].0.end) {
        Some(pair) => Err(Problem::Overlap { member: pair[1].1.clone() }),
        None => Ok(members),
    }
}

/// Number of entries and offset of the directory.
fn directory(bytes: &[u8]) -> Result<(u64, usize), Problem> {
    // The end record comes before a comment of up to 65,535 bytes.
    let last = bytes.len().checked_sub(END).ok_or(Problem::NotZip)?;
    let first = last.saturating_sub(usize::from(u16::MAX));
    let fits = |&at: &usize| {
        let comment = le(bytes, at + 20, 2, "the end record").unwrap_or(0) as usize;
        bytes[at..].starts_with(b"PK\x05\x06") && at + END + comment == bytes.len()
    };
    let end = (first..=last).rev().find(fits).ok_or(Problem::NotZip)?;
    let n = le(bytes, end + 10, 2, "the end record")?;
    let start = le(bytes, end + 16, 4, "the end record")?;
    if n != 0xffff && start != IN_ZIP64 {
        return Ok((n, start as usize));
    }
    let place = "the zip64 end record";
    let locator = end.checked_sub(LOCATOR).ok_or(Problem::Truncated { place })?;
    if signature(bytes, locator, b"PK\x06\x07", place).is_err() {
        return Ok((n, start as usize));
    }
    let end64 = usize::try_from(le(bytes, locator + 8, 8, place)?)
        .ok()
        .filter(|at| at.checked_add(END64).is_some_and(|end| end <= bytes.len()))
        .ok_or(Problem::Truncated { place })?;
    signature(bytes, end64, b"PK\x06\x06", place)?;
    let start = usize::try_from(le(bytes, end64 + 48, 8, place)?);
    Ok((le(bytes, end64 + 32, 8, place)?, start.map_err(|_| Problem::Truncated { place })?))
}

/// Name and bytes of the member whose entry is at `at`, and the offset of the next entry.
fn member(bytes: &[u8], at: usize) -> Result<(String, Range<usize>, usize), Problem> {
    let place = "a directory entry";
    signature(bytes, at, b"PK\x01\x02", place)?;
    let number = |offset: usize, n: usize| le(bytes, at + offset, n, place);
    let (name_len, extra_len) = (number(28, 2)? as usize, number(30, 2)? as usize);
    let comment_len = number(32, 2)? as usize;
    let extra_at = at + ENTRY + name_len;
    let next = extra_at + extra_len + comment_len;
    let truncated = Problem::Truncated { place };
    let name = bytes.get(at + ENTRY..extra_at).ok_or(Problem::Truncated { place })?;
    let extra = bytes.get(extra_at..extra_at + extra_len).ok_or(truncated)?;
    let name = String::from_utf8_lossy(name).into_owned();
    let packed = |how| Problem::Packed { member: name.clone(), how };
    if number(8, 2)? & 1 != 0 {
        return Err(packed("encrypted"));
    }
    if number(10, 2)? != 0 {
        return Err(packed("compressed"));
    }
    // The zip64 extra field lists size, stored size and offset, in this order; it omits those that
    // fit in 32 bits.
    let mut wide = wide_fields(extra)?;
    let mut resolve = |value: u64| {
        if value == IN_ZIP64 { wide.next().ok_or(Problem::Truncated { place }) } else { Ok(value) }
    };
    let size = resolve(number(24, 4)?)?;
    let stored = resolve(number(20, 4)?)?;
    let offset = resolve(number(42, 4)?)?;
    if size != stored {
        return Err(packed("compressed"));
    }
    let local = usize::try_from(offset).map_err(|_| Problem::Truncated { place })?;
    let place = "a member";
    signature(bytes, local, b"PK\x03\x04", place)?;
    let skip = le(bytes, local + 26, 2, place)? + le(bytes, local + 28, 2, place)?;
    let start = local + LOCAL + skip as usize;
    let end = usize::try_from(size).ok().and_then(|size| start.checked_add(size));
    match end.filter(|&end| end <= bytes.len()) {
        Some(end) => Ok((name, start..end, next)),
        None => Err(Problem::Truncated { place }),
    }
}

/// The 64-bit numbers of the zip64 extra field; none if the entry lacks that field.
fn wide_fields(mut extra: &[u8]) -> Result<impl Iterator<Item = u64>, Problem> {
    let place = "an extra field";
    let mut wide: &[u8] = &[];
    while extra.len() >= 4 {
        let (id, len) = (le(extra, 0, 2, place)?, le(extra, 2, 2, place)? as usize);
        let field = extra.get(4..4 + len).ok_or(Problem::Truncated { place })?;
        if id == 1 {
            wide = field;
        }
        extra = &extra[4 + len..];
    }
    Ok(wide.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)))
}
