//! Files that weights are read from.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use gguf::FileFacts;

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

    /// The open file, for reads that bypass [`ReadAt::read_at`]; `None` if such reads are not
    /// allowed.
    #[cfg(target_os = "linux")]
    fn descriptor(&self) -> Option<std::os::fd::RawFd> {
        None
    }

    /// Whether the file is unchanged since it was opened.
    fn is_unchanged(&self) -> bool;
}

/// A file that is read past the system's page cache.
#[derive(Debug)]
pub struct DirectFile {
    path: PathBuf,
    file: fs::File,
    opened: FileFacts,
    direct: bool,
}

impl DirectFile {
    /// Opens the file at `path`, which had the facts `opened`, for reads past the page cache. A file system
    /// without such reads is read through the page cache, whose pages are dropped after each read;
    /// see [`DirectFile::is_direct`].
    ///
    /// # Errors
    /// [`Error::Read`] if the file cannot be opened; [`Error::Changed`] if it was written to since
    /// it had the facts `opened`, or if another file is at `path`.
    pub fn open(path: &Path, opened: Option<&FileFacts>) -> Result<DirectFile> {
        let failed = |reason: io::Error| Error::Read {
            file: path.display().to_string(),
            offset: 0,
            reason: reason.to_string(),
        };
        let (file, direct) = match open_direct(path) {
            Ok(file) => (file, true),
            Err(_) => (fs::File::open(path).map_err(failed)?, false),
        };
        let now = FileFacts::of(&file).map_err(failed)?;
        if opened.is_some_and(|opened| !opened.is_unchanged(&now)) {
            return Err(Error::Changed { file: path.display().to_string() });
        }
        let opened = *opened.unwrap_or(&now);
        Ok(DirectFile { path: path.to_owned(), file, opened, direct })
    }

    /// Whether reads bypass the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct
    }
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
        self.opened.size()
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
        FileFacts::of(&self.file).is_ok_and(|now| self.opened.is_unchanged(&now))
    }
}
