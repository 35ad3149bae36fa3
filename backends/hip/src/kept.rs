//! The cache of compiled kernels in a folder.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// First bytes of a cache file; changes with its format.
const MAGIC: &[u8; 8] = b"tclhip01";

/// Names to try for a temporary file.
const ATTEMPTS: usize = 1000;

/// Location of the cached code of a unit.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    path: PathBuf,
    key: u64,
}

impl Kept {
    /// The location for code made from `parts`: source, options, compiler and architecture.
    pub(crate) fn new(folder: &Path, unit: &str, parts: &[&str]) -> Kept {
        let key = parts.iter().fold(START, |sum, part| {
            let length = (part.len() as u64).to_le_bytes();
            add(add(sum, &length), part.as_bytes())
        });
        Kept { path: folder.join(format!("{unit}-{key:016x}.hip")), key }
    }

    /// The cached code, if the file is intact.
    pub(crate) fn read(&self) -> Option<Vec<u8>> {
        let mut bytes = fs::read(&self.path).ok()?;
        let head = bytes.get(..24)?;
        let word = |at: usize| head[at..at + 8].try_into().ok().map(u64::from_le_bytes);
        let is_ours = head[..8] == MAGIC[..] && word(8) == Some(self.key);
        let is_whole = word(16) == Some(add(START, &bytes[24..]));
        (is_ours && is_whole).then(|| bytes.split_off(24))
    }

    /// Writes code to the cache. A reader sees the whole file or none.
    ///
    /// # Errors
    /// Errors of the folder.
    pub(crate) fn write(&self, code: &[u8]) -> io::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let (mut file, part) = self.begin(folder)?;
        let written = (|| {
            for piece in
                [&MAGIC[..], &self.key.to_le_bytes(), &add(START, code).to_le_bytes(), code]
            {
                file.write_all(piece)?;
            }
            fs::rename(&part, &self.path)
        })();
        if written.is_err() {
            // Ignored in favour of the first error.
            let _ = fs::remove_file(&part);
        }
        written
    }

    /// Creates a file that no one else writes: two devices may compile the same unit at once, in
    /// one process or in several.
    fn begin(&self, folder: &Path) -> io::Result<(fs::File, PathBuf)> {
        let mut n = 0;
        loop {
            let part = folder.join(format!("{:016x}.{}-{n}.part", self.key, std::process::id()));
            match fs::File::create_new(&part) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && n < ATTEMPTS => {
                    n += 1
                }
                file => return Ok((file?, part)),
            }
        }
    }
}

/// FNV-1a, 64 bits.
const START: u64 = 0xcbf2_9ce4_8422_2325;

fn add(sum: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(sum, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_files_of_the_same_key_are_read_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("created when needed");
        let kept = Kept::new(&folder, "add", &["source", "gfx1100"]);
        assert_eq!(kept.read(), None);
        kept.write(b"code").unwrap();
        assert_eq!(kept.read().as_deref(), Some(&b"code"[..]));
        assert_eq!(Kept::new(&folder, "add", &["source", "gfx1101"]).read(), None);
        assert_eq!(Kept::new(&folder, "add", &["sourc", "egfx1100"]).read(), None);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "a part is left");

        let whole = fs::read(&kept.path).unwrap();
        for length in [0, 7, 23, whole.len() - 1] {
            fs::write(&kept.path, &whole[..length]).unwrap();
            assert_eq!(kept.read(), None, "{length} bytes");
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&kept.path, &damaged).unwrap();
            assert_eq!(kept.read(), None, "byte {at}");
        }
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50).for_each(|_| kept.write(&[7; 100_000]).unwrap()));
            }
            let whole = || kept.read().is_none_or(|code| code == [7; 100_000]);
            assert!((0..50).all(|_| whole()));
        });
        assert_eq!(kept.read().map(|code| code.len()), Some(100_000));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "a part is left");
        kept.write(b"").unwrap();
        assert_eq!(kept.read().as_deref(), Some(&b""[..]));
    }
}
