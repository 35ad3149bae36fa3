//! Writes files on a separate thread, so that steps do not wait for the disk.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};

use crate::files;

/// A file and its contents.
type Job = (PathBuf, Vec<u8>);
/// A file, and whether writing it succeeded.
pub(crate) type Written = (PathBuf, io::Result<()>);

/// The thread that writes files, in order. Dropping the writer waits until all files are written.
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
        // Queue at most one file, because each holds a whole sequence in memory.
        let (jobs, to_write) = sync_channel(1);
        let (results, written) = channel();
        let builder = thread::Builder::new().name("disk-cache".to_owned());
        let thread = builder.spawn(move || write_all(&to_write, &results))?;
        Ok(FileWriter { jobs: Some(jobs), written, thread: Some(thread) })
    }

    /// Queues a file for writing. Blocks while one file is being written and another is queued.
    pub(crate) fn write(&self, path: &Path, bytes: Vec<u8>) -> io::Result<()> {
        let sent = self.jobs.as_ref().map(|jobs| jobs.send((path.to_owned(), bytes)));
        sent.and_then(Result::ok).ok_or_else(thread_ended)
    }

    /// The next finished file; `None` if no further file is finished.
    pub(crate) fn try_next(&self) -> Option<Written> {
        self.written.try_recv().ok()
    }

    /// Waits for the next finished file.
    pub(crate) fn next(&self) -> io::Result<Written> {
        self.written.recv().map_err(|_| thread_ended())
    }
}

fn thread_ended() -> io::Error {
    io::Error::other("the thread that writes the disk cache has ended")
}

impl Drop for FileWriter {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread only loses cache files.
            drop(thread.join());
        }
    }
}
