//! Sums that tell one file from another. They find accidents, not forgeries.

use std::time::UNIX_EPOCH;

use crate::gguf::File;

/// A sum over words: a multiplication and a rotation for each.
#[derive(Debug, Default)]
pub(super) struct Hash(u64);

impl Hash {
    /// Adds bytes and where they end.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        words.iter().for_each(|&word| self.word(u64::from_le_bytes(word)));
        self.word(u64::from_le_bytes(last));
        self.word(bytes.len() as u64);
    }

    fn word(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    }

    /// The sum; every bit of the input reaches its lower half.
    pub(super) fn finish(&self) -> u64 {
        (self.0 ^ self.0 >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ self.0 >> 29
    }
}

/// Bytes of a sample.
const SAMPLE: usize = 64;
/// A sample of a pack stands for so many bytes: what a lost write or a hole in the file takes at the least is
/// usually more.
const STRIDE: usize = 512 << 10;

/// The sum of samples of a pack: its beginning, its end, and every [`STRIDE`] bytes between.
pub(super) fn sample(bytes: &[u8]) -> u64 {
    let mut hash = Hash::default();
    for start in (0..bytes.len()).step_by(STRIDE) {
        hash.add(&bytes[start..bytes.len().min(start + SAMPLE)]);
    }
    hash.add(&bytes[bytes.len().saturating_sub(SAMPLE)..]);
    hash.finish()
}

/// What a model is known by: the size and time of its files, their headers, and three samples of each tensor.
pub(super) fn fingerprint(model: &File) -> String {
    let mut hash = Hash::default();
    model.headers().for_each(|header| hash.add(header));
    hash.add(&model.size_bytes().to_le_bytes());
    for path in model.paths() {
        let time = path.metadata().and_then(|file| file.modified()).ok();
        let time = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        hash.add(&time.as_nanos().to_le_bytes());
    }
    for tensor in model.tensors() {
        let Ok(bytes) = model.bytes(tensor) else { continue };
        let end = bytes.len().saturating_sub(SAMPLE);
        for start in [0, end / 2, end] {
            hash.add(&bytes[start..bytes.len().min(start + SAMPLE)]);
        }
    }
    format!("{:016x}", hash.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_and_the_length_count() {
        let sum = |bytes: &[u8]| {
            let mut hash = Hash::default();
            hash.add(bytes);
            hash.finish()
        };
        let bytes: Vec<u8> = (0..37).collect();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut other = bytes.clone();
                other[at] ^= 1 << bit;
                assert_ne!(sum(&bytes) as u32, sum(&other) as u32, "byte {at} bit {bit}");
            }
        }
        assert_ne!(sum(&[0; 8]), sum(&[0; 9]));
    }

    #[test]
    fn samples_see_beginning_end_and_long_holes() {
        let bytes: Vec<u8> = (0..3 * STRIDE + 100).map(|i| (i % 251) as u8 + 1).collect();
        let whole = sample(&bytes);
        for hole in [0..10, bytes.len() - 1..bytes.len(), 100..100 + STRIDE] {
            let mut other = bytes.clone();
            other[hole].fill(0);
            assert_ne!(sample(&other), whole);
        }
        assert_ne!(sample(&bytes[..bytes.len() - 1]), whole);
        assert_eq!(sample(&[]), sample(&[]));
    }
}
