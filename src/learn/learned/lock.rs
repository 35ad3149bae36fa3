//! The lock of writers of a side file.

use std::fs::{self, TryLockError};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::SaveError;

/// Maximum time to wait for other writers, which need milliseconds.
pub(super) const WAIT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Locks the file at `path` against other writers, which wait, until the returned file is dropped.
/// The lock is on the folder, which leaves no lock file behind. If the folder cannot be locked (on
/// Windows, on some network drives), the lock is on `<path>.lock`, which remains. Anyone who may
/// read the folder can lock it, so the wait ends after 5 seconds, or when `interrupt` becomes set.
///
/// # Errors
/// [`SaveError::Lock`] and [`SaveError::Busy`].
pub fn lock(path: &Path, interrupt: &AtomicBool) -> Result<fs::File, SaveError> {
    let start = Instant::now();
    // A run that was interrupted before still saves what it has.
    let is_set = || interrupt.load(Ordering::Relaxed);
    let was_set = is_set();
    let ended = || (is_set() && !was_set) || start.elapsed() >= WAIT;
    let flock = |file: fs::File| loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if ended() => return Ok(None),
            Err(TryLockError::WouldBlock) => thread::sleep(POLL_INTERVAL),
        }
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder_lock = fs::File::open(folder.unwrap_or(Path::new("."))).and_then(flock);
    let file_lock = || {
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        fs::OpenOptions::new().create(true).truncate(false).write(true).open(name).and_then(flock)
    };
    let file = || path.display().to_string();
    let locked = folder_lock.or_else(|_| file_lock());
    let locked = locked.map_err(|reason| SaveError::Lock { file: file(), reason })?;
    locked.ok_or_else(|| SaveError::Busy { file: file() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_lock_that_is_never_released_ends_the_wait() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.gguf");
        let interrupt = AtomicBool::new(false);
        let held = lock(&path, &interrupt).unwrap();
        let start = Instant::now();
        assert!(matches!(lock(&path, &interrupt), Err(SaveError::Busy { .. })));
        assert!(start.elapsed() >= WAIT);
        // An interrupt ends it sooner, and one from before does not.
        let start = Instant::now();
        let waits = thread::scope(|scope| {
            let (begins, begun) = mpsc::channel();
            let (path, interrupt) = (&path, &interrupt);
            let waits = scope.spawn(move || {
                begins.send(()).unwrap();
                lock(path, interrupt)
            });
            begun.recv().unwrap();
            thread::sleep(25 * POLL_INTERVAL);
            interrupt.store(true, Ordering::Relaxed);
            waits.join().unwrap()
        });
        assert!(matches!(waits, Err(SaveError::Busy { .. })) && start.elapsed() < WAIT);
        thread::scope(|scope| {
            let waits = scope.spawn(|| lock(&path, &interrupt));
            thread::sleep(4 * POLL_INTERVAL);
            drop(held);
            assert!(waits.join().unwrap().is_ok());
        });
    }
}
