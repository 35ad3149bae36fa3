//! Callbacks for the progress of a download.

use std::time::Duration;

/// Receives the progress of a download.
pub trait Progress {
    /// The files to fetch, their total size in bytes, and how much of it is on disk already. Called
    /// once per repository, or once per file of a URL; not if no file is missing.
    fn begin(&mut self, files: usize, total: u64, present: u64);
    /// Of the `present` bytes of a file that are on disk from an earlier attempt, `checked` have
    /// been read for the checksum.
    fn check(&mut self, checked: u64, present: u64);
    /// A file begins: its name, its size in bytes if known, and how much of it is on disk already.
    fn file(&mut self, name: &str, size: Option<u64>, present: u64);
    /// This many bytes of the file are on disk now, including those of earlier attempts.
    fn position(&mut self, bytes: u64);
    /// An attempt failed; the next one starts after `wait`.
    fn retry(&mut self, reason: &str, wait: Duration);
    /// Another process downloads this file; this one waits for it.
    fn wait(&mut self, name: &str);
    /// The file is complete. `verified` is false if no checksum is known.
    fn complete(&mut self, name: &str, verified: bool);
}
