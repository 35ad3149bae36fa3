//! Files that get their name when they are complete, so that no reader sees an incomplete one.

use std::{
    ffi::OsStr,
    fs,
    hash::{BuildHasher, RandomState},
    io::{self, Write},
    mem,
    path::{Path, PathBuf},
    process,
    time::Duration,
};

use super::{
    Error, Problem,
    chunked::ChunkedWriter,
    fault::{Registered, register_unfinished},
    output::check_replaced,
};

use own_file::is_dead;

/// Temporary names to try; an existing one is a leftover of a killed process.
const MAX_ATTEMPTS: u32 = 4;
/// A process that is still writing updates its file more often than this.
const ABANDONED: Duration = Duration::from_secs(15 * 60);
/// The same where the process seems to be dead; it may run on another machine or in a container.
const UNWRITTEN: Duration = Duration::from_secs(5 * 60);

/// A file under a temporary name. It is removed if dropped before it is complete.
#[derive(Debug)]
pub struct PartFile {
    file: ChunkedWriter<fs::File>,
    place: CompleteFile,
}

/// A complete and closed file under a temporary name. It is removed if dropped without
/// [`CompleteFile::publish`].
#[derive(Debug)]
pub struct CompleteFile {
    /// Empty after publishing.
    temporary: PathBuf,
    target: PathBuf,
    /// Whether a file that this process has mapped must not be replaced.
    reads_matter: bool,
    /// Lets a handler of SIGBUS remove the temporary file.
    registered: Option<Registered>,
}

impl PartFile {
    /// Starts the file that will be renamed to `target`.
    ///
    /// # Errors
    /// [`Problem::NotReplaceable`] if `target` exists and is not a regular file,
    /// [`Problem::ReadByThisRun`], I/O errors.
    pub fn create(target: &Path) -> Result<PartFile, Problem> {
        PartFile::start(target, true, None)
    }

    /// As [`PartFile::create`] for a file that only this user may read, where the system knows that.
    ///
    /// # Errors
    /// As [`PartFile::create`].
    pub fn create_private(target: &Path) -> Result<PartFile, Problem> {
        PartFile::start(target, true, Some(0o600))
    }

    /// As [`PartFile::create`] for a file that only this program writes, so this run may have mapped
    /// the file that it replaces.
    pub(super) fn create_own(target: &Path) -> Result<PartFile, Problem> {
        PartFile::start(target, false, None)
    }

    fn start(target: &Path, reads_matter: bool, mode: Option<u32>) -> Result<PartFile, Problem> {
        check_replaced(target, reads_matter)?;
        let io_error = |reason| Problem::Io { action: "create", reason };
        let Some(name) = target.file_name() else {
            return Err(io_error(io::Error::new(io::ErrorKind::InvalidInput, "no file name")));
        };
        drop_abandoned(target, name);
        let mut attempt = 0;
        loop {
            // A name that other users cannot create first.
            let random = RandomState::new().hash_one(attempt) as u32;
            let mut temporary = std::ffi::OsString::from(format!("{}-{random}.", process::id()));
            temporary.push(name);
            temporary.push(".part");
            let temporary = target.with_file_name(temporary);
            let registered = register_unfinished(&temporary);
            match create_new(&temporary, mode) {
                Ok(file) => {
                    let file = ChunkedWriter::new(file);
                    let target = target.to_owned();
                    let place = CompleteFile { temporary, target, reads_matter, registered };
                    if place.registered.as_ref().is_some_and(Registered::is_claimed) {
                        drop(place);
                        return Err(io_error(io::ErrorKind::Interrupted.into()));
                    }
                    return Ok(PartFile { file, place });
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && attempt < MAX_ATTEMPTS => {
                    attempt += 1;
                }
                Err(reason) => return Err(io_error(reason)),
            }
        }
    }

    /// Syncs the file to disk, then renames it.
    ///
    /// # Errors
    /// I/O errors.
    pub fn commit(self) -> Result<(), Problem> {
        self.complete()?.rename()
    }

    /// Syncs the file to disk.
    pub(super) fn complete(mut self) -> Result<CompleteFile, Problem> {
        let io_error = |reason| Problem::Io { action: "write", reason };
        self.file.flush().map_err(io_error)?;
        self.file.get_ref().sync_all().map_err(io_error)?;
        Ok(self.place)
    }
}

fn create_new(path: &Path, mode: Option<u32>) -> io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    if let Some(mode) = mode {
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    }
    #[cfg(not(unix))]
    let _ = mode;
    options.open(path)
}

/// Removes temporary files of `target` that killed processes of this user left.
fn drop_abandoned(target: &Path, name: &OsStr) {
    let folder =
        target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = name.to_string_lossy();
    drop_leftovers(folder, |target| target == name);
}

/// The process that writes a temporary file with this name, and the name of its target.
pub fn writer_of(file: &str) -> Option<(u32, &str)> {
    let (numbers, target) = file.strip_suffix(".part")?.split_once('.')?;
    let (id, n) = numbers.split_once('-')?;
    n.parse::<u32>().ok()?;
    Some((id.parse().ok()?, target))
}

/// Removes temporary files that killed processes of this user left in `folder`, for targets whose
/// names are `ours`.
pub fn drop_leftovers(folder: &Path, ours: impl Fn(&str) -> bool) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let file = entry.file_name();
        let file = file.to_string_lossy();
        let Some((id, _)) = writer_of(&file).filter(|(_, target)| ours(target)) else { continue };
        let Ok(file) = entry.metadata() else { continue };
        let unwritten = file.modified().ok().and_then(|time| time.elapsed().ok());
        let limit = if is_dead(id) { UNWRITTEN } else { ABANDONED };
        if unwritten.is_some_and(|time| time > limit) && is_own(&file) {
            // A leftover only costs disk space, so a failure is ignored.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The reason that a finished file could not get its name, with what to do about it.
fn explained(reason: io::Error) -> io::Error {
    // ERROR_ACCESS_DENIED, ERROR_SHARING_VIOLATION, ERROR_LOCK_VIOLATION, ERROR_USER_MAPPED_FILE.
    const IN_USE: [i32; 4] = [5, 32, 33, 1224];
    if cfg!(windows) && reason.raw_os_error().is_some_and(|code| IN_USE.contains(&code)) {
        let text = format!(
            "{reason} The file of that name may be open in another program, or write-protected"
        );
        return io::Error::new(reason.kind(), text);
    }
    reason
}

/// Whether the file is this user's, as far as the system says.
fn is_own(file: &fs::Metadata) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        file.uid() == rustix::process::geteuid().as_raw()
    }
    #[cfg(not(unix))]
    {
        let _ = file;
        true
    }
}

impl Write for PartFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl CompleteFile {
    /// Renames the file, replacing an existing file.
    ///
    /// # Errors
    /// An I/O error. The file is then removed.
    pub fn publish(self) -> Result<(), Error> {
        let name = self.target.display().to_string();
        self.rename().map_err(|problem| Error::new(&name, problem))
    }

    /// Bytes of the file.
    ///
    /// # Errors
    /// The I/O error.
    pub fn size(&self) -> Result<u64, Error> {
        let io_error = |reason| {
            let problem = Problem::Io { action: "open", reason };
            Error::new(&self.target.display().to_string(), problem)
        };
        Ok(fs::metadata(&self.temporary).map_err(io_error)?.len())
    }

    fn rename(mut self) -> Result<(), Problem> {
        let io_error =
            |reason| Problem::Io { action: "rename the finished file", reason: explained(reason) };
        // Again: files may have been opened since.
        check_replaced(&self.target, self.reads_matter)?;
        fs::rename(&self.temporary, &self.target).map_err(io_error)?;
        mem::take(&mut self.temporary);
        Ok(())
    }
}

impl Drop for CompleteFile {
    fn drop(&mut self) {
        // `drop` cannot return an error; a leftover temporary file is harmless.
        if !self.temporary.as_os_str().is_empty() {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}
