//! The embedded PTX: `kernels-cuda/ptx.zst` and its table of contents, `kernels-cuda/ptx.manifest`.
//!
//! `scripts/make_ptx` writes both. The archive has one zstd frame per kernel file, with its units
//! in sequence. When a device loads a unit, the unit is decompressed from the start of its frame.
//! Units are not cached, since a model needs each only once. A damaged archive or manifest is an
//! error.

use std::io::{self, Read as _};

use ruzstd::decoding::StreamingDecoder;
use thiserror::Error;

/// Size limit of a unit, in bytes; the largest unit is 0.5 MB.
const MAX_UNIT: usize = 16 << 20;

#[derive(Debug, Error)]
pub(crate) enum ArchiveError {
    #[error("this build has no PTX for compute capability {}.{} or lower", target / 10, target % 10)]
    Missing { target: u32 },
    #[error("line {line} of the PTX manifest is invalid: this build is broken")]
    Manifest { line: usize },
    #[error("the PTX archive ends before byte {end}: this build is broken")]
    Short { end: usize },
    #[error("the PTX archive is damaged: {0}")]
    Frame(String),
    #[error("the PTX archive is damaged: hash {found:016x} instead of {expected:016x}")]
    Hash { found: u64, expected: u64 },
}

/// A unit in the manifest, and its location in the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry<'a> {
    unit: &'a str,
    /// Compute capability of its target, 75 for 7.5: devices with this capability or a later one
    /// can run the unit.
    target: u32,
    /// Begin and end of its frame in the archive, in bytes.
    frame: (usize, usize),
    /// Offset and size of the unit in the decompressed frame, in bytes.
    start: usize,
    size: usize,
    /// FNV-1a hashes of its sources (`source`) and of its PTX (`hash`).
    #[cfg_attr(not(test), allow(dead_code, reason = "a test compares it with the sources"))]
    source: u64,
    hash: u64,
}

/// Compressed PTX, and its manifest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Archive<'a> {
    pub(crate) manifest: &'a str,
    pub(crate) packed: &'a [u8],
}

/// The archive embedded in the program.
pub(crate) const EMBEDDED: Archive<'static> = Archive {
    manifest: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels-cuda/ptx.manifest")),
    packed: include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels-cuda/ptx.zst")),
};

impl<'a> Archive<'a> {
    /// The PTX of a unit, with a final NUL, as the driver requires. `target` is the device's
    /// compute capability (75 for 7.5). Of the unit's targets up to `target`, the function selects
    /// the highest.
    ///
    /// # Errors
    /// No unit for this target, or a damaged archive or manifest.
    pub(crate) fn ptx(&self, unit: &str, target: u32) -> Result<Vec<u8>, ArchiveError> {
        let mut best: Option<Entry<'a>> = None;
        for entry in self.entries() {
            let entry = entry?;
            let fits = entry.unit == unit && entry.target <= target;
            if fits && best.is_none_or(|best| best.target < entry.target) {
                best = Some(entry);
            }
        }
        self.read(best.ok_or(ArchiveError::Missing { target })?)
    }

    /// The units in the order of the manifest; the iterator ends after the first invalid line.
    fn entries(&self) -> impl Iterator<Item = Result<Entry<'a>, ArchiveError>> + use<'a> {
        let (mut frame, mut start, mut failed) = ((0, 0), 0_usize, false);
        self.manifest.lines().enumerate().filter_map(move |(index, line)| {
            if failed {
                return None;
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            let parsed = match words[..] {
                [] | ["compiler", ..] => Some(None),
                [first, ..] if first.starts_with('#') => Some(None),
                ["file", _, size] => next_frame(frame, size).map(|next| {
                    (frame, start) = (next, 0);
                    None
                }),
                ["unit", ..] => parse_unit(&words, frame, start).map(|entry| {
                    start = entry.start + entry.size;
                    Some(entry)
                }),
                _ => None,
            };
            failed = parsed.is_none();
            parsed.map_or(Some(Err(ArchiveError::Manifest { line: index + 1 })), |found| {
                found.map(Ok)
            })
        })
    }

    fn read(&self, entry: Entry<'_>) -> Result<Vec<u8>, ArchiveError> {
        let damaged = |error: &dyn std::fmt::Display| ArchiveError::Frame(error.to_string());
        let (from, to) = entry.frame;
        let frame = self.packed.get(from..to).ok_or(ArchiveError::Short { end: to })?;
        let mut decoder = StreamingDecoder::new(frame).map_err(|error| damaged(&error))?;
        let start = entry.start as u64;
        let skipped = io::copy(&mut decoder.by_ref().take(start), &mut io::sink());
        if skipped.map_err(|error| damaged(&error))? != start {
            return Err(damaged(&"a frame ends early"));
        }
        let mut text = vec![0; entry.size];
        decoder.read_exact(&mut text).map_err(|error| damaged(&error))?;
        let found = fnv(&text);
        if found != entry.hash {
            return Err(ArchiveError::Hash { found, expected: entry.hash });
        }
        text.push(0);
        Ok(text)
    }
}

/// The frame of `size` bytes that follows `frame`.
fn next_frame(frame: (usize, usize), size: &str) -> Option<(usize, usize)> {
    Some((frame.1, frame.1.checked_add(size.parse().ok()?)?))
}

/// Parses the words of a `unit` line: name, target, bytes, and two hashes.
fn parse_unit<'a>(words: &[&'a str], frame: (usize, usize), start: usize) -> Option<Entry<'a>> {
    let [_, unit, target, size, source, hash] = *words else { return None };
    let size = size.parse().ok().filter(|size| *size <= MAX_UNIT)?;
    start.checked_add(size)?;
    let hex = |word| u64::from_str_radix(word, 16).ok();
    let (source, hash) = (hex(source)?, hex(hash)?);
    Some(Entry { unit, target: target.parse().ok()?, frame, start, size, source, hash })
}

/// FNV-1a with 64 bits, as `scripts/kernel_units.py` computes it.
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests;
