//! Panics of the standard library that are failures of memory, and RUST_BACKTRACE, for panics
//! alone. The standard library also prints a backtrace when an allocation fails, which allocates, so
//! that the process can hang in place of ending with exit code 4.
#![allow(unsafe_code)] // `remove_var`

use std::backtrace::Backtrace;
use std::ffi::OsStr;
use std::panic::PanicHookInfo;
use std::{env, panic, thread};

const VARIABLE: &str = "RUST_BACKTRACE";
/// The standard library maps a stack for signals at the start of each thread, and panics there, which
/// aborts, if the system refuses it.
#[cfg(unix)]
const SIGNAL_STACK: &str = "sys/pal/unix/stack_overflow.rs";

/// Reports panics from now on. No other thread may run yet.
pub(super) fn take_over() {
    #[allow(clippy::disallowed_methods)] // only the CLI reads the environment
    let value = env::var_os(VARIABLE);
    let with_trace = value.is_some_and(|value| is_wanted(&value));
    if with_trace {
        // SAFETY: this is the only thread, as the caller ensures.
        unsafe { env::remove_var(VARIABLE) };
    }
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        #[cfg(unix)]
        if info.location().is_some_and(|at| at.file().ends_with(SIGNAL_STACK)) {
            super::signal_actions::end_without_thread();
        }
        if with_trace { print(info) } else { usual(info) }
    }));
}

fn print(info: &PanicHookInfo<'_>) {
    let thread = thread::current();
    let name = thread.name().unwrap_or("<unnamed>");
    let at = info.location().map_or(String::new(), |at| format!(" at {at}"));
    let payload = info.payload();
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let message = text.or_else(|| payload.downcast_ref().copied()).unwrap_or("Box<dyn Any>");
    let trace = Backtrace::force_capture();
    eprintln!("\nthread '{name}' panicked{at}:\n{message}\nstack backtrace:\n{trace}");
}

fn is_wanted(value: &OsStr) -> bool {
    value != "0"
}
