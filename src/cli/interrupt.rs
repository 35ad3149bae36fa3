//! Ctrl-C, and signals like it: the first asks the run to stop, the second ends the process.

use super::failure::{Exit, Failure};
#[cfg(unix)]
use super::signal_actions;
#[cfg(windows)]
use super::windows;
use crate::gguf::fault;
#[cfg(unix)]
use signal_hook::consts::{SIGHUP, SIGQUIT};
#[cfg(unix)]
pub(crate) use signal_hook::consts::{SIGINT, SIGTERM};
#[cfg(unix)]
use signal_hook::flag;
use std::io;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// C's numbers of signals. Windows has no signals; its events of a console count as both.
#[cfg(windows)]
pub(crate) const SIGINT: i32 = 2;
/// As [`SIGINT`].
#[cfg(windows)]
pub(crate) const SIGTERM: i32 = 15;

/// Interval between two checks for Ctrl-C.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Sets `pressed` at each signal that counts as Ctrl-C; ends the process if it is set already.
#[cfg(unix)]
fn watch(pressed: &Arc<AtomicBool>) -> io::Result<()> {
    let others =
        [SIGHUP, SIGQUIT].into_iter().filter(|signal| !signal_actions::is_ignored(*signal));
    let code = i32::from(Exit::Interrupted.code());
    for signal in [SIGINT, SIGTERM].into_iter().chain(others) {
        // Register the shutdown first: it acts only if an earlier signal set the flag.
        flag::register_conditional_shutdown(signal, code, Arc::clone(pressed))?;
        flag::register(signal, Arc::clone(pressed))?;
    }
    Ok(())
}

/// See the definition for Unix.
#[cfg(windows)]
fn watch(pressed: &Arc<AtomicBool>) -> io::Result<()> {
    windows::watch(pressed, true).map(std::mem::forget)
}

/// Set by the first Ctrl-C. Clones see the same flag.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Installs the Ctrl-C handler for the rest of the process. SIGTERM, SIGQUIT and the SIGHUP of a
    /// closed terminal are treated as Ctrl-C, so that files are saved or removed; those that the
    /// caller of the program ignores (`nohup`) stay ignored. On Windows, Ctrl-Break and a closed console count
    /// too.
    ///
    /// # Errors
    /// The system refuses the signal handler.
    pub(crate) fn install() -> Result<Self, Failure> {
        let flag = Arc::new(AtomicBool::new(false));
        watch(&flag)
            .map_err(|e| Failure::new(Exit::Failed, "cannot handle Ctrl-C").caused_by(&e))?;
        Ok(Self(flag))
    }

    /// Makes Ctrl-C end the process again, after the handlers of another part of the program were
    /// removed.
    ///
    /// # Errors
    /// The system refuses the signal handler.
    #[cfg(unix)]
    pub(crate) fn restore_default() -> Result<(), Failure> {
        let always = Arc::new(AtomicBool::new(true));
        let installed = flag::register_conditional_default(SIGINT, always);
        installed
            .map(drop)
            .map_err(|e| Failure::new(Exit::Failed, "cannot handle Ctrl-C").caused_by(&e))
    }

    /// Nothing to do: Windows' own handler acts when no other is left.
    #[cfg(windows)]
    #[expect(clippy::unnecessary_wraps, reason = "Unix may refuse")]
    pub(crate) fn restore_default() -> Result<(), Failure> {
        Ok(())
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

    /// Runs `work`, which cannot be cancelled. On Ctrl-C, calls `farewell`, removes the unfinished
    /// outputs, and ends the process.
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

    /// As [`Interrupt::exit_during`], for loading a model, which writes only what can be left out:
    /// measured speeds and repacked weights.
    pub(crate) fn exit_during_load<T>(&self, work: impl FnOnce() -> T) -> T {
        self.exit_during(|| (), work)
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

#[cfg(all(test, unix))]
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
