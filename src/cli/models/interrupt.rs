//! Ctrl-C while a model is downloaded.

use crate::cli::failure::{Exit, Failure};
use crate::cli::terminal::Terminal;
#[cfg(windows)]
use crate::cli::windows::{self, Watched};
#[cfg(unix)]
use signal_hook::{SigId, flag, low_level};
use std::ffi::c_int;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Interval between two checks for Ctrl-C.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Ends the process on the first signal, as long as this value lives: a download waits for the
/// network, which cannot be interrupted otherwise. The data on disk is kept under the name of a
/// partial file.
#[derive(Debug)]
pub(crate) struct ExitOnSignal {
    _watched: Watched,
    is_over: Arc<AtomicBool>,
}

/// The signals that set a flag, until it is dropped.
#[cfg(unix)]
#[derive(Debug)]
struct Watched(Vec<SigId>);

#[cfg(unix)]
impl Drop for Watched {
    fn drop(&mut self) {
        for id in self.0.drain(..) {
            low_level::unregister(id);
        }
    }
}

#[cfg(unix)]
fn watch(signals: &[c_int], pressed: &Arc<AtomicBool>) -> io::Result<Watched> {
    let register = |signal: &c_int| flag::register(*signal, Arc::clone(pressed));
    signals.iter().map(register).collect::<Result<_, _>>().map(Watched)
}

/// All events of the console count.
#[cfg(windows)]
fn watch(_signals: &[c_int], pressed: &Arc<AtomicBool>) -> io::Result<Watched> {
    windows::watch(pressed, false)
}

impl ExitOnSignal {
    /// Handles `signals`. After the value is dropped they are ignored on Unix until another handler is
    /// installed, because signal-hook does not restore the system's.
    ///
    /// # Errors
    /// The system refuses a handler or a thread.
    pub(crate) fn install(signals: &[c_int], terminal: &Terminal) -> Result<Self, Failure> {
        let (pressed, is_over) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let _watched = watch(signals, &pressed)
            .map_err(|e| Failure::new(Exit::Failed, "cannot handle Ctrl-C").caused_by(&e))?;
        let guard = Self { _watched, is_over: Arc::clone(&is_over) };
        let terminal = terminal.clone();
        let watch = move || {
            while !is_over.load(Ordering::Relaxed) {
                if pressed.load(Ordering::Relaxed) {
                    terminal.erase_line();
                    terminal.note("interrupted; the same command continues the download");
                    std::process::exit(i32::from(Exit::Interrupted.code()));
                }
                thread::sleep(POLL_INTERVAL);
            }
        };
        let spawned = thread::Builder::new().name("signals".to_owned()).spawn(watch);
        spawned.map_err(|e| Failure::new(Exit::Failed, "cannot start a thread").caused_by(&e))?;
        Ok(guard)
    }
}

impl Drop for ExitOnSignal {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}
