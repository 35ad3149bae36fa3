//! SentencePiece's precompiled normalisation: a table from character sequences to their
//! replacements (`ﬁ` to `fi`, full-width to ASCII...), as one blob of bytes.
//!
//! The blob contains the size in bytes of a double array (u32), the double array (u32 each), and
//! the replacements, each terminated by a zero byte. All numbers are little-endian. In a unit of
//! the array, bits 10 to 30 are the exclusive-or distance to its children (in 256s if bit 9 is
//! set), and bits 0 to 7 and 31 are the byte that leads to the unit. Bit 8 says whether a sequence
//! ends at the unit; then its child for byte 0 is the offset of the replacement. The blob is
//! untrusted, so each step is checked.
//!
//! Source: Darts-clone's format, as read by SentencePiece and llama.cpp.

use super::Error;

/// Maximum length of a sequence in bytes. Sequences in real tables have a few characters; a
/// malicious table could contain cycles.
const MAX_SEQUENCE: usize = 256;

/// The parsed table: replacements of byte sequences.
#[derive(Debug, Default)]
pub(super) struct Charsmap {
    units: Vec<u32>,
    replacements: Vec<u8>,
}

impl Charsmap {
    /// Parses the blob. An empty blob replaces nothing.
    ///
    /// # Errors
    /// `BadCharsmap` if the sizes are inconsistent.
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

    /// The longest sequence at the start of `text`: its length in bytes and its replacement; `None`
    /// if no sequence matches.
    ///
    /// # Errors
    /// `BadCharsmap` if an index is out of range or a replacement has no end.
    pub(super) fn find(&self, text: &[u8]) -> Result<Option<(usize, &[u8])>, Error> {
        if self.units.is_empty() {
            return Ok(None);
        }
        let mut found = None;
        let mut node = distance(self.unit(0)?);
        for (i, &byte) in text.iter().take(MAX_SEQUENCE).enumerate().take_while(|(_, b)| **b != 0) {
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
        self.units.get(node as usize).copied().ok_or_else(|| self.invalid_charsmap())
    }

    fn replacement(&self, at: u32) -> Result<&[u8], Error> {
        let rest = self.replacements.get(at as usize..).unwrap_or_default();
        let len = rest.iter().position(|&byte| byte == 0).ok_or_else(|| self.invalid_charsmap())?;
        Ok(&rest[..len])
    }

    fn invalid_charsmap(&self) -> Error {
        Error::BadCharsmap { bytes: 4 + 4 * self.units.len() + self.replacements.len() }
    }
}

/// Exclusive-or distance from a node to its children.
fn distance(unit: u32) -> u32 {
    unit >> 10 << ((unit & 1 << 9) >> 6)
}
