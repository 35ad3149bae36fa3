//! Checksums that distinguish files. They detect accidents, not forgery.

#[cfg(unix)]
use std::os::unix::fs::MetadataExt;
use std::time::UNIX_EPOCH;

use hal::Source;
use rayon::prelude::*;

use super::Weight;
use gguf::{File, Hash};

/// Bytes of a pack that one thread hashes as a unit.
const CHUNK: usize = 1 << 20;

/// The checksum of a pack: a hash of the checksums of its chunks, which all threads compute.
/// Computing it also reads the pack into memory.
pub(super) fn checksum(pack: &[u8]) -> u64 {
    let of_chunk = |chunk: &[u8]| {
        let mut hash = Hash::default();
        hash.add(chunk);
        hash.finish()
    };
    let sums: Vec<u64> = pack.par_chunks(CHUNK).map(of_chunk).collect();
    let mut hash = Hash::default();
    sums.into_iter().for_each(|sum| hash.word(sum));
    hash.word(pack.len() as u64);
    hash.finish()
}

/// Number of bytes sampled from each tensor.
const SAMPLE: usize = 64;

/// A fingerprint that identifies a model: size and times of its files, their headers, and a sample
/// of each tensor in `weights`.
///
/// A checksum of all weights would read the whole file at each start, and more samples would be
/// slow if the file is not in the page cache. On Unix, the change time (ctime) of the file is
/// included: users cannot set it, so it detects a write even if size and modification time were
/// restored.
pub(super) fn fingerprint(model: &File, weights: &[Weight]) -> String {
    let mut hash = Hash::default();
    model.headers().for_each(|header| hash.add(header));
    hash.add(&model.size_bytes().to_le_bytes());
    for facts in model.paths().iter().filter_map(|path| path.metadata().ok()) {
        let time = facts.modified().ok();
        let time = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        hash.add(&time.as_nanos().to_le_bytes());
        #[cfg(unix)]
        hash.add(&[facts.ctime().to_le_bytes(), facts.ctime_nsec().to_le_bytes()].concat());
    }
    for weight in weights {
        match weight.source.source() {
            Source::Mapped(bytes) | Source::Owned(bytes) => {
                let bytes = (**bytes).as_ref();
                let middle = bytes.len().saturating_sub(SAMPLE) / 2;
                hash.add(&bytes[middle..bytes.len().min(middle + SAMPLE)]);
            }
            Source::Paged(_) => {
                let middle = weight.source.desc().n_rows / 2;
                if let Ok(row) = weight.source.rows(middle..middle + 1) {
                    hash.add(&row[..row.len().min(SAMPLE)]);
                }
            }
        }
    }
    format!("{:016x}", hash.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_depends_on_every_chunk_their_order_and_the_length() {
        let bytes: Vec<u8> = (0..3 * CHUNK + 100).map(|i| (i % 251) as u8).collect();
        let whole = checksum(&bytes);
        for at in [0, 7, CHUNK - 1, CHUNK, 2 * CHUNK + 12_345, bytes.len() - 1] {
            let mut other = bytes.clone();
            other[at] ^= 16;
            assert_ne!(checksum(&other), whole, "byte {at}");
        }
        let mut other = bytes.clone();
        other.rotate_left(CHUNK);
        assert_ne!(checksum(&other), whole);
        assert_ne!(checksum(&bytes[..bytes.len() - 1]), whole);
        assert_eq!(checksum(&bytes.clone()), whole);
        assert_ne!(checksum(&[]), checksum(&[0]));
    }
}
