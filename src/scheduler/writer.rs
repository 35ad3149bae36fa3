//! Writes files on a thread of its own, so that no step waits for the disk.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};

use crate::files;

/// A file and its contents.
type Job = (PathBuf, Vec<u8>);
/// A file that was written, or the reason why it was not.
pub(crate) type Written = (PathBuf, io::Result<()>);

/// The thread, which writes files in order. Dropping this waits until all are written.
#[derive(Debug)]
pub(crate) struct FileWriter {
    jobs: Option<SyncSender<Job>>,
    written: Receiver<Written>,
    thread: Option<JoinHandle<()>>,
}

fn write_all(jobs: &Receiver<Job>, written: &Sender<Written>) {
    for (path, bytes) in jobs {
        let result = files::write_private(&path, &bytes);
        if written.send((path, result)).is_err() {
            return;
        }
    }
}

impl FileWriter {
    pub(crate) fn start() -> io::Result<FileWriter> {
        // One file is written and one waits: more would take memory without end.
        let (jobs, to_write) = sync_channel(1);
        let (done, written) = channel();
        let named = thread::Builder::new().name("disk-cache".to_owned());
        let thread = named.spawn(move || write_all(&to_write, &done))?;
        Ok(FileWriter { jobs: Some(jobs), written, thread: Some(thread) })
    }

    /// Writes a file soon; waits while two others are not written yet.
    pub(crate) fn write(&self, path: &Path, bytes: Vec<u8>) -> io::Result<()> {
        let sent = self.jobs.as_ref().map(|jobs| jobs.send((path.to_owned(), bytes)));
        sent.and_then(Result::ok).ok_or_else(ended)
    }

    /// A file that was written since the last call.
    pub(crate) fn try_next(&self) -> Option<Written> {
        self.written.try_recv().ok()
    }

    /// Waits for the next file that is written.
    pub(crate) fn next(&self) -> io::Result<Written> {
        self.written.recv().map_err(|_| ended())
    }
}

fn ended() -> io::Error {
    io::Error::other("the thread that writes the disk cache has ended")
}

impl Drop for FileWriter {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic there only loses files of a cache.
            drop(thread.join());
        }
    }
}
