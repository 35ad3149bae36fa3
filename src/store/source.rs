//! Files that weights are read from.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::{Error, Result};

/// A file that weights are read from. Tests implement it to inject faults.
pub trait ReadAt: Send + Sync + std::fmt::Debug {
    /// Name for messages.
    fn name(&self) -> String;

    /// Length in bytes when the file was opened.
    fn size(&self) -> u64;

    /// Reads up to `out.len()` bytes from `offset` on, and returns their number; 0 at the end of
    /// the file. Offset, length and address are multiples of a page.
    ///
    /// # Errors
    /// The system's error.
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize>;

    /// The open file, for reads past [`ReadAt::read_at`]; `None` if there must be none.
    #[cfg(target_os = "linux")]
    fn descriptor(&self) -> Option<std::os::fd::RawFd> {
        None
    }

    /// Whether the file still is what it was when it was opened.
    fn is_unchanged(&self) -> bool;
}

/// A file that is read past the system's page cache.
#[derive(Debug)]
pub struct DirectFile {
    path: PathBuf,
    file: fs::File,
    size: u64,
    modified: Option<SystemTime>,
    direct: bool,
}

impl DirectFile {
    /// Opens the file that `opened` is, at `path`, for reads past the page cache. A file system
    /// without such reads is read through the page cache, whose pages are dropped after each read;
    /// see [`DirectFile::is_direct`].
    ///
    /// # Errors
    /// [`Error::Read`] if the file cannot be opened; [`Error::Changed`] if `path` is no longer the
    /// file `opened`.
    pub fn open(path: &Path, opened: Option<&fs::File>) -> Result<DirectFile> {
        let failed = |reason: io::Error| Error::Read {
            file: path.display().to_string(),
            offset: 0,
            reason: reason.to_string(),
        };
        let (file, direct) = match open_direct(path) {
            Ok(file) => (file, true),
            Err(_) => (fs::File::open(path).map_err(failed)?, false),
        };
        let facts = file.metadata().map_err(failed)?;
        if let Some(opened) = opened
            && !is_same(&facts, &opened.metadata().map_err(failed)?)
        {
            return Err(Error::Changed { file: path.display().to_string() });
        }
        let (size, modified) = (facts.len(), facts.modified().ok());
        Ok(DirectFile { path: path.to_owned(), file, size, modified, direct })
    }

    /// Whether reads bypass the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct
    }
}

#[cfg(unix)]
fn is_same(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// Windows' number of a file is not in stable Rust.
#[cfg(not(unix))]
fn is_same(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    let facts = |file: &fs::Metadata| (file.len(), file.created().ok(), file.modified().ok());
    facts(a) == facts(b)
}

#[cfg(target_os = "linux")]
fn open_direct(path: &Path) -> io::Result<fs::File> {
    use rustix::fs::{Mode, OFlags, open};
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    Ok(open(path, flags, Mode::empty())?.into())
}

/// Reads of blocks that the page cache has not bypass it.
#[cfg(target_vendor = "apple")]
fn open_direct(path: &Path) -> io::Result<fs::File> {
    let file = fs::File::open(path)?;
    rustix::fs::fcntl_nocache(&file, true)?;
    Ok(file)
}

#[cfg(windows)]
fn open_direct(path: &Path) -> io::Result<fs::File> {
    use std::os::windows::fs::OpenOptionsExt;
    use windows_sys::Win32::Storage::FileSystem::FILE_FLAG_NO_BUFFERING;
    fs::OpenOptions::new().read(true).custom_flags(FILE_FLAG_NO_BUFFERING).open(path)
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple", windows)))]
fn open_direct(_path: &Path) -> io::Result<fs::File> {
    Err(io::ErrorKind::Unsupported.into())
}

impl ReadAt for DirectFile {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn size(&self) -> u64 {
        self.size
    }

    /// Reads through the page cache stay with `read_at`, which drops their pages.
    #[cfg(target_os = "linux")]
    fn descriptor(&self) -> Option<std::os::fd::RawFd> {
        self.direct.then(|| std::os::fd::AsRawFd::as_raw_fd(&self.file))
    }

    #[cfg(unix)]
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize> {
        let n = std::os::unix::fs::FileExt::read_at(&self.file, out, offset)?;
        #[cfg(target_os = "linux")]
        if !self.direct {
            let len = std::num::NonZeroU64::new(n as u64);
            let _ = rustix::fs::fadvise(&self.file, offset, len, rustix::fs::Advice::DontNeed);
        }
        Ok(n)
    }

    #[cfg(windows)]
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::windows::fs::FileExt::seek_read(&self.file, out, offset)
    }

    fn is_unchanged(&self) -> bool {
        let now = self.file.metadata();
        now.is_ok_and(|now| now.len() == self.size && now.modified().ok() == self.modified)
    }
}
