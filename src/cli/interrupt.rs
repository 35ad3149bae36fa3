//! Ctrl-C: the first press asks the run to stop, the second ends the process.

use super::failure::{Exit, Failure};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Interval between two checks for Ctrl-C.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Set by the first Ctrl-C. Clones see the same flag.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Installs the Ctrl-C handler for the rest of the process.
    ///
    /// # Errors
    /// The system refuses the signal handler.
    pub(crate) fn install() -> Result<Self, Failure> {
        Self::of(&[SIGINT])
    }

    /// As [`Self::install`], and treats SIGTERM as Ctrl-C, for commands that must remove or save
    /// files before they end.
    ///
    /// # Errors
    /// The system refuses the signal handler.
    pub(crate) fn install_with_termination() -> Result<Self, Failure> {
        Self::of(&[SIGINT, SIGTERM])
    }

    /// Makes Ctrl-C end the process again, after the handlers of another part of the program were
    /// removed.
    ///
    /// # Errors
    /// The system refuses the signal handler.
    pub(crate) fn restore_default() -> Result<(), Failure> {
        let always = Arc::new(AtomicBool::new(true));
        let installed = flag::register_conditional_default(SIGINT, always);
        installed
            .map(drop)
            .map_err(|e| Failure::new(Exit::Failed, "cannot handle Ctrl-C").caused_by(&e))
    }

    fn of(signals: &[i32]) -> Result<Self, Failure> {
        let flag = Arc::new(AtomicBool::new(false));
        let failed =
            |e: std::io::Error| Failure::new(Exit::Failed, "cannot handle Ctrl-C").caused_by(&e);
        // Register the shutdown first: it acts only if an earlier signal set the flag.
        let code = i32::from(Exit::Interrupted.code());
        for &signal in signals {
            flag::register_conditional_shutdown(signal, code, Arc::clone(&flag)).map_err(failed)?;
            flag::register(signal, Arc::clone(&flag)).map_err(failed)?;
        }
        Ok(Self(flag))
    }

    /// Resets the flag, so that the next Ctrl-C counts as a first press.
    pub(crate) fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Makes the next Ctrl-C end the process, until [`Interrupt::clear`]. Used while waiting for
    /// input, which cannot poll the flag. Returns false if the flag was already set.
    #[must_use]
    pub(crate) fn arm(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Runs `work`, which cannot be cancelled and must not write files. On Ctrl-C, calls `farewell`
    /// and ends the process.
    pub(crate) fn exit_during<T>(
        &self,
        farewell: impl FnOnce() + Send,
        work: impl FnOnce() -> T,
    ) -> T {
        let (working, ended) = mpsc::channel::<()>();
        let watch = move || {
            while ended.recv_timeout(POLL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                if self.is_set() {
                    farewell();
                    process::exit(i32::from(Exit::Interrupted.code()));
                }
            }
        };
        thread::scope(|scope| {
            scope.spawn(watch);
            // Dropped after `work`, also if it panics: this ends the watch.
            let _working = working;
            work()
        })
    }

    /// The flag itself, for an engine that polls it inside a step.
    pub(crate) fn flag(&self) -> &Arc<AtomicBool> {
        &self.0
    }
}

#[cfg(test)]
impl Interrupt {
    /// A flag that no signal sets.
    pub(crate) fn unhandled() -> Self {
        Self(Arc::new(AtomicBool::new(false)))
    }

    /// Sets the flag as a signal does.
    pub(crate) fn press(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_press_only_sets_the_flag() {
        let interrupt = Interrupt::install().unwrap();
        let seen_elsewhere = interrupt.clone();
        assert!(!interrupt.is_set());
        signal_hook::low_level::raise(SIGINT).unwrap();
        assert!(seen_elsewhere.is_set() && interrupt.flag().load(Ordering::Relaxed));
        interrupt.clear();
        assert!(!seen_elsewhere.is_set());
        signal_hook::low_level::raise(SIGINT).unwrap();
        assert!(interrupt.is_set(), "it asks again");
    }
}
