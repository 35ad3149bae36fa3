//! Checksums of files, computed while they arrive.

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use std::fmt::Write;

/// A checksum that the hub announces. It is also the name of the file's data in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Checksum {
    /// SHA-256 of the data; for large files (Git LFS).
    Sha256(String),
    /// Git's object id, for small files: SHA-1 of `blob SIZE`, a zero byte and the data.
    Git(String),
}

impl Checksum {
    /// Parses an ETag or object id of the hub; `None` if it is not a checksum.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_hex = text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        match text.len() {
            64 if is_hex => Some(Self::Sha256(text.to_owned())),
            40 if is_hex => Some(Self::Git(text.to_owned())),
            _ => None,
        }
    }

    pub(crate) fn hex(&self) -> &str {
        match self {
            Self::Sha256(hex) | Self::Git(hex) => hex,
        }
    }

    /// Starts the computation for a file of `size` bytes.
    pub(crate) fn start(&self, size: u64) -> Context {
        match self {
            Self::Sha256(_) => Context::new(&SHA256),
            Self::Git(_) => {
                let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {size}\0").as_bytes());
                context
            }
        }
    }
}

/// The finished checksum, hexadecimal.
pub(crate) fn finish(context: Context) -> String {
    hex(context.finish().as_ref())
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// SHA-256 of a text, hexadecimal.
pub(crate) fn sha256(text: &str) -> String {
    hex(ring::digest::digest(&SHA256, text.as_bytes()).as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_hub() {
        // Source: `printf 'abc' | sha256sum` and `printf 'abc' | git hash-object --stdin`.
        let sha = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let git = "f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f";
        for hex in [sha, git] {
            let checksum = Checksum::parse(hex).unwrap();
            let mut context = checksum.start(3);
            context.update(b"abc");
            assert_eq!(finish(context), hex);
            assert_eq!(checksum.hex(), hex);
        }
        assert_eq!(sha256("abc"), sha);
        for wrong in ["", "abc", &sha.to_uppercase(), &format!("../{}", &git[3..])] {
            assert_eq!(Checksum::parse(wrong), None);
        }
    }
}
