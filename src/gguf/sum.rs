//! Checksums that identify files. They detect accidents, not forgeries.

use super::File;

/// A hash of 64-bit words, with one multiplication and one rotation per word.
#[derive(Debug, Default)]
pub struct Hash(u64);

impl Hash {
    /// Adds bytes and their length.
    pub fn add(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        words.iter().for_each(|&word| self.word(u64::from_le_bytes(word)));
        self.word(u64::from_le_bytes(last));
        self.word(bytes.len() as u64);
    }

    /// Adds a word.
    pub fn word(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    }

    /// The hash; every bit of the input affects its lower half.
    #[must_use]
    pub fn finish(&self) -> u64 {
        (self.0 ^ self.0 >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ self.0 >> 29
    }
}

/// Bytes per sample of a tensor.
const SAMPLE: usize = 64;

impl File {
    /// Identifies a model independently of its path: a hash of its headers, its size, and samples
    /// of the beginning, middle and end of each tensor. Hashing all bytes would read the whole
    /// file.
    pub fn fingerprint(&self) -> String {
        let mut hash = Hash::default();
        self.headers().for_each(|header| hash.add(header));
        hash.add(&self.size_bytes().to_le_bytes());
        for bytes in self.tensors().iter().filter_map(|tensor| self.bytes(tensor).ok()) {
            let last = bytes.len().saturating_sub(SAMPLE);
            for start in [0, last / 2, last] {
                hash.add(&bytes[start..bytes.len().min(start + SAMPLE)]);
            }
        }
        format!("{:016x}", hash.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Container, TensorType, Writer};

    #[test]
    fn every_byte_and_the_length_change_the_hash() {
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
    fn the_fingerprint_depends_on_header_and_tensors() {
        let file = |name: &str, values: &[u8; 400]| {
            let mut writer = Writer::new(Container::Gguf);
            writer.declare(name, &[400], TensorType::I8).unwrap();
            let mut data = writer.in_memory().unwrap();
            data.write(name, values).unwrap();
            File::from_vec(data.finish().unwrap(), "x").unwrap().fingerprint()
        };
        let known = file("w", &[0; 400]);
        assert_eq!(known, file("w", &[0; 400]));
        assert_ne!(known, file("v", &[0; 400]));
        for at in [0, 63, 200, 399] {
            let mut other = [0; 400];
            other[at] = 1;
            assert_ne!(known, file("w", &other), "byte {at}");
        }
    }
}
