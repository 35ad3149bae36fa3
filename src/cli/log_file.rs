//! `--log-file`: a file that gets a copy of everything printed on standard error except progress.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::failure::{Exit, Failure};

/// An open log file. Clones write to the same file.
#[derive(Clone, Debug)]
pub(crate) struct LogFile(Arc<Mutex<Log>>);

#[derive(Debug)]
struct Log {
    file: File,
    path: PathBuf,
    has_failed: bool,
}

impl LogFile {
    /// Opens `path` for appending, so that a log of an earlier run stays.
    ///
    /// # Errors
    /// The file cannot be opened, or it holds a model.
    pub(crate) fn open(path: &Path) -> Result<LogFile, Failure> {
        let failed = || Failure::new(Exit::Failed, format!("cannot write {}", path.display()));
        if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")) {
            return Err(failed().help("--log-file names the log, -m the model"));
        }
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(|e| failed().caused_by(&e))?;
        Ok(LogFile(Arc::new(Mutex::new(Log { file, path: path.to_owned(), has_failed: false }))))
    }

    /// Appends a line. Returns what is wrong with the file at the first failure, such as a full disk;
    /// the lines themselves are on standard error too.
    pub(crate) fn line(&self, line: &str) -> Option<String> {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // One call, so that the lines of several processes do not mix.
        let error = log.file.write_all(format!("{line}\n").as_bytes()).err()?;
        let is_first = !std::mem::replace(&mut log.has_failed, true);
        is_first.then(|| format!("{} lacks lines from here on: {error}", log.path.display()))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_reported_once() {
        let log = LogFile::open(Path::new("/dev/full")).unwrap();
        let reported = log.line("one").unwrap();
        assert!(reported.contains("/dev/full") && reported.contains("space"), "{reported}");
        assert_eq!(log.line("two"), None);
    }
}
