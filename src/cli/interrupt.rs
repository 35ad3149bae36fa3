//! Ctrl-C, and signals like it: the first asks the run to stop, the second ends the process.

use super::failure::{Exit, Failure};
#[cfg(unix)]
use super::signal_actions;
use crate::gguf::fault;
#[cfg(unix)]
use signal_hook::consts::{SIGHUP, SIGQUIT};
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

/// The signals that count as Ctrl-C.
fn signals() -> Vec<i32> {
    let always = [SIGINT, SIGTERM];
    #[cfg(unix)]
    let others =
        [SIGHUP, SIGQUIT].into_iter().filter(|signal| !signal_actions::is_ignored(*signal));
    #[cfg(not(unix))]
    let others = [];
    always.into_iter().chain(others).collect()
}

/// Set by the first Ctrl-C. Clones see the same flag.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Installs the Ctrl-C handler for the rest of the process. SIGTERM, SIGQUIT and the SIGHUP of a
    /// closed terminal are treated as Ctrl-C, so that files are saved or removed; those that the
    /// caller of the program ignores (`nohup`) stay ignored.
    ///
    /// # Errors
    /// The system refuses the signal handler.
    pub(crate) fn install() -> Result<Self, Failure> {
        let flag = Arc::new(AtomicBool::new(false));
        let failed =
            |e: std::io::Error| Failure::new(Exit::Failed, "cannot handle Ctrl-C").caused_by(&e);
        // Register the shutdown first: it acts only if an earlier signal set the flag.
        let code = i32::from(Exit::Interrupted.code());
        for signal in signals() {
            flag::register_conditional_shutdown(signal, code, Arc::clone(&flag)).map_err(failed)?;
            flag::register(signal, Arc::clone(&flag)).map_err(failed)?;
        }
        Ok(Self(flag))
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
                    fault::remove_unfinished();
                    process::exit(i32::from(Exit::Interrupted.code()));
                }
            }
        };
        thread::scope(|scope| {
            // If the system refuses a thread, the second Ctrl-C ends the process.
            let _ = thread::Builder::new().spawn_scoped(scope, watch);
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
