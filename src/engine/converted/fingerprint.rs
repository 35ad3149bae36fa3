//! Checksums that distinguish files. They detect accidents, not forgery.

#[cfg(unix)]
use std::os::unix::fs::MetadataExt;
use std::time::UNIX_EPOCH;

use hal::Source;
use rayon::prelude::*;

use super::Weight;
use gguf::{File, Hash};

/// Bytes summed as one unit by a thread.
const PIECE: usize = 1 << 20;

/// The checksum of a pack, made of the sums of its chunks, which are computed on all threads.
/// Checking it also reads the pack into memory in order.
pub(super) fn sum(pack: &[u8]) -> u64 {
    let of_piece = |piece: &[u8]| {
        let mut hash = Hash::default();
        hash.add(piece);
        hash.finish()
    };
    let sums: Vec<u64> = pack.par_chunks(PIECE).map(of_piece).collect();
    let mut hash = Hash::default();
    sums.into_iter().for_each(|sum| hash.word(sum));
    hash.word(pack.len() as u64);
    hash.finish()
}

/// Bytes of a sample of a tensor.
const SAMPLE: usize = 64;

/// Identifies a model: size and times of its files, their headers, and a sample of each tensor in
/// `weights`.
///
/// Summing all of it would read the whole file at each start, and many samples are slow if the
/// file is not in memory. On Unix the change time (ctime) of the file is included; users cannot
/// set it, so it detects a write even where size and modification time were restored.
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
    fn every_piece_of_a_pack_its_place_and_the_length_count() {
        let bytes: Vec<u8> = (0..3 * PIECE + 100).map(|i| (i % 251) as u8).collect();
        let whole = sum(&bytes);
        for at in [0, 7, PIECE - 1, PIECE, 2 * PIECE + 12_345, bytes.len() - 1] {
            let mut other = bytes.clone();
            other[at] ^= 16;
            assert_ne!(sum(&other), whole, "byte {at}");
        }
        let mut other = bytes.clone();
        other.rotate_left(PIECE);
        assert_ne!(sum(&other), whole);
        assert_ne!(sum(&bytes[..bytes.len() - 1]), whole);
        assert_eq!(sum(&bytes.clone()), whole);
        assert_ne!(sum(&[]), sum(&[0]));
    }
}
