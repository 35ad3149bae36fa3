//! Files that the repository stores as byte planes, compressed by gzip. The first plane holds the
//! bytes at positions 0, `width`, 2 `width` and so on, the next one those after them: the bytes of
//! F16 weights (width 2) and F32 logits (width 4) compress better apart.
//!
//! Only build scripts, tests and fuzz targets use this crate; `scripts/byte_planes.py` writes the
//! files.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use flate2::read::GzDecoder;

/// The content of a compressed file; gzip's checksum is checked.
///
/// # Errors
/// If the file cannot be read, or is damaged.
pub fn decompress(path: &Path) -> io::Result<Vec<u8>> {
    let packed = fs::read(path)?;
    let mut bytes = Vec::new();
    GzDecoder::new(&packed[..]).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The original content of a file of `width` planes.
///
/// # Errors
/// As [`decompress`].
pub fn unpack(path: &Path, width: usize) -> io::Result<Vec<u8>> {
    decompress(path).map(|planes| join(&planes, width))
}

/// The number of planes of a file whose original name is `name`.
pub fn width(name: &str) -> usize {
    if name.ends_with(".logits") { 4 } else { 2 }
}

fn join(planes: &[u8], width: usize) -> Vec<u8> {
    let mut bytes = vec![0; planes.len()];
    let mut rest = planes;
    for first in 0..width.min(planes.len()) {
        let (plane, others) = rest.split_at((planes.len() - first).div_ceil(width));
        for (byte, place) in plane.iter().zip(bytes[first..].iter_mut().step_by(width)) {
            *place = *byte;
        }
        rest = others;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::join;

    #[test]
    fn planes_of_any_length_are_joined() {
        for n in 0..20u8 {
            let bytes: Vec<u8> = (0..n).collect();
            for width in 1..6 {
                let planes: Vec<u8> = (0..width)
                    .flat_map(|first| bytes.iter().copied().skip(first).step_by(width))
                    .collect();
                assert_eq!(join(&planes, width), bytes, "{n} bytes, {width} planes");
            }
        }
    }
}
