//! The cache of compiled kernels in a folder.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use own_file::read_own;

/// First bytes of a cache file; changes with its format.
const MAGIC: &[u8; 8] = b"tclhip01";
/// Larger files are not read; a kernel file has up to some MB.
const MAX_CODE: u64 = 1 << 28;

/// Location of the cached code of a unit.
#[derive(Clone, Debug)]
pub(crate) struct CachedCode {
    path: PathBuf,
    key: u64,
}

impl CachedCode {
    /// The location for code made from `parts`: source, options, compiler and architecture.
    pub(crate) fn new(folder: &Path, unit: &str, parts: &[&str]) -> CachedCode {
        let key = parts.iter().fold(FNV_START, |sum, part| {
            let length = (part.len() as u64).to_le_bytes();
            fnv(fnv(sum, &length), part.as_bytes())
        });
        CachedCode { path: folder.join(format!("{unit}-{key:016x}.hip")), key }
    }

    /// The cached code, if an intact file with this key exists.
    pub(crate) fn read(&self) -> Option<Vec<u8>> {
        let mut bytes = read_own(&self.path, MAX_CODE).ok()?;
        let head = bytes.get(..24)?;
        let word = |at: usize| head[at..at + 8].try_into().ok().map(u64::from_le_bytes);
        let is_ours = head[..8] == MAGIC[..] && word(8) == Some(self.key);
        let is_whole = word(16) == Some(fnv(FNV_START, &bytes[24..]));
        (is_ours && is_whole).then(|| bytes.split_off(24))
    }

    /// Writes code to the cache. A reader sees the whole file or none.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(crate) fn write(&self, code: &[u8]) -> io::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let (mut file, temporary) = self.create_temporary(folder)?;
        let written = (|| {
            for piece in
                [&MAGIC[..], &self.key.to_le_bytes(), &fnv(FNV_START, code).to_le_bytes(), code]
            {
                file.write_all(piece)?;
            }
            fs::rename(&temporary, &self.path)
        })();
        if written.is_err() {
            // An error here is ignored: the first error is returned.
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    /// Creates a temporary file that no other device or process writes: several may compile the
    /// same unit at once.
    fn create_temporary(&self, folder: &Path) -> io::Result<(fs::File, PathBuf)> {
        let random = RandomState::new().hash_one(self.key);
        let temporary = folder.join(format!("{:016x}.{random:016x}.part", self.key));
        Ok((fs::File::create_new(&temporary)?, temporary))
    }
}

/// Initial value of a 64-bit FNV-1a hash.
pub(crate) const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

pub(crate) fn fnv(sum: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(sum, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_files_of_the_same_key_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("created when needed");
        let cached = CachedCode::new(&folder, "add", &["source", "gfx1100"]);
        assert_eq!(cached.read(), None);
        cached.write(b"code").unwrap();
        assert_eq!(cached.read().as_deref(), Some(&b"code"[..]));
        assert_eq!(CachedCode::new(&folder, "add", &["source", "gfx1101"]).read(), None);
        assert_eq!(CachedCode::new(&folder, "add", &["sourc", "egfx1100"]).read(), None);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "a temporary file is left");

        let whole = fs::read(&cached.path).unwrap();
        for length in [0, 7, 23, whole.len() - 1] {
            fs::write(&cached.path, &whole[..length]).unwrap();
            assert_eq!(cached.read(), None, "{length} bytes");
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&cached.path, &damaged).unwrap();
            assert_eq!(cached.read(), None, "byte {at}");
        }
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50).for_each(|_| cached.write(&[7; 100_000]).unwrap()));
            }
            let whole = || cached.read().is_none_or(|code| code == [7; 100_000]);
            assert!((0..50).all(|_| whole()));
        });
        assert_eq!(cached.read().map(|code| code.len()), Some(100_000));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "a temporary file is left");
        cached.write(b"").unwrap();
        assert_eq!(cached.read().as_deref(), Some(&b""[..]));
    }
}
