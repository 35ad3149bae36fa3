//! SentencePiece's precompiled normalisation: a table from character sequences to their
//! replacements (`ﬁ` to `fi`, full-width to ASCII...), as one blob of bytes.
//!
//! The blob: the size in bytes of a double array (u32), the double array (u32 each), the
//! replacements, each terminated by a zero byte. A unit of the array holds, in bits 10 to 30, the
//! exclusive-or distance to its children (in 256s if bit 9 is set), in bits 0 to 7 and 31 the byte
//! that leads to it, and in bit 8 whether a sequence ends there: in that case its child for byte 0
//! is the offset of the replacement. All numbers are little-endian. The blob is untrusted: each
//! step is checked.
//!
//! Source: Darts-clone's format, as read by SentencePiece and llama.cpp.

use super::Error;

/// The longest sequence that is searched for, in bytes. Real tables have a few characters; a
/// malicious one could contain cycles.
const LONGEST: usize = 256;

/// Replacements of sequences.
#[derive(Debug, Default)]
pub(super) struct Charsmap {
    units: Vec<u32>,
    replacements: Vec<u8>,
}

impl Charsmap {
    /// An empty blob replaces nothing.
    ///
    /// # Errors
    /// `BadCharsmap` if the sizes do not fit together.
    pub(super) fn new(blob: &[u8]) -> Result<Charsmap, Error> {
        if blob.is_empty() {
            return Ok(Charsmap::default());
        }
        let bad = || Error::BadCharsmap { bytes: blob.len() };
        let (size, rest) = blob.split_first_chunk().ok_or_else(bad)?;
        let size = usize::try_from(u32::from_le_bytes(*size)).map_err(|_| bad())?;
        if size >= rest.len() {
            return Err(bad());
        }
        let (units, replacements) = rest.split_at(size);
        let units = units.chunks_exact(4).map(|u| u32::from_le_bytes([u[0], u[1], u[2], u[3]]));
        Ok(Charsmap { units: units.collect(), replacements: replacements.to_vec() })
    }

    /// The longest sequence that `text` begins with: its length and what it becomes.
    ///
    /// # Errors
    /// `BadCharsmap` if an index is out of range.
    pub(super) fn find(&self, text: &[u8]) -> Result<Option<(usize, &[u8])>, Error> {
        if self.units.is_empty() {
            return Ok(None);
        }
        let mut found = None;
        let mut node = distance(self.unit(0)?);
        for (i, &byte) in text.iter().take(LONGEST).enumerate().take_while(|(_, b)| **b != 0) {
            node ^= u32::from(byte);
            let unit = self.unit(node)?;
            if unit & (1 << 31 | 0xFF) != u32::from(byte) {
                break;
            }
            node ^= distance(unit);
            if unit >> 8 & 1 == 1 {
                found = Some((i + 1, self.unit(node)? & !(1 << 31)));
            }
        }
        found.map(|(len, at)| Ok((len, self.replacement(at)?))).transpose()
    }

    fn unit(&self, node: u32) -> Result<u32, Error> {
        self.units.get(node as usize).copied().ok_or_else(|| self.bad())
    }

    fn replacement(&self, at: u32) -> Result<&[u8], Error> {
        let rest = self.replacements.get(at as usize..).unwrap_or_default();
        let len = rest.iter().position(|&byte| byte == 0).ok_or_else(|| self.bad())?;
        Ok(&rest[..len])
    }

    fn bad(&self) -> Error {
        Error::BadCharsmap { bytes: 4 + 4 * self.units.len() + self.replacements.len() }
    }
}

/// Offset from a node to its children.
fn distance(unit: u32) -> u32 {
    unit >> 10 << ((unit & 1 << 9) >> 6)
}
