//! `--log-file`: a file that gets a copy of everything printed on standard error except progress.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::failure::{Exit, Failure};

/// An open log file. Clones write to the same file.
#[derive(Clone, Debug)]
pub(crate) struct LogFile(Arc<Mutex<File>>);

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
        Ok(LogFile(Arc::new(Mutex::new(file))))
    }

    /// Appends a line. A failure, such as a full disk, is ignored: the line is on standard error too.
    pub(crate) fn line(&self, line: &str) {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // One call, so that the lines of several processes do not mix.
        let _ = file.write_all(format!("{line}\n").as_bytes());
    }
}
