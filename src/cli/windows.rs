//! What is done on Windows in place of Unix' signals: a mapped model file that cannot be read, events of the console, its
//! escape sequences; and where libraries are loaded from.
#![allow(unsafe_code)] // functions of Windows

use super::failure::Exit;
use crate::gguf::fault;
use std::io::{self, IsTerminal, Write};
use std::os::windows::io::{AsHandle, AsRawHandle};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use windows_sys::Win32::Foundation::{EXCEPTION_ACCESS_VIOLATION, EXCEPTION_IN_PAGE_ERROR};
use windows_sys::Win32::System::Console::{
    CTRL_BREAK_EVENT, CTRL_C_EVENT, ENABLE_VIRTUAL_TERMINAL_PROCESSING, GetConsoleMode,
    SetConsoleCtrlHandler, SetConsoleMode,
};
use windows_sys::Win32::System::Diagnostics::Debug::{
    AddVectoredExceptionHandler, EXCEPTION_CONTINUE_SEARCH, EXCEPTION_POINTERS,
};
use windows_sys::Win32::System::LibraryLoader::{
    LOAD_LIBRARY_SEARCH_SYSTEM32, SetDefaultDllDirectories,
};
use windows_sys::Win32::System::Threading::{GetCurrentProcess, TerminateProcess};
use windows_sys::core::BOOL;

/// How long the program may go on after its console was closed; the system ends it after 5 seconds.
const AFTER_CLOSE: Duration = Duration::from_millis(4500);

/// Whether a thread ends the process already.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Loads libraries by their bare names (drivers, `vulkan-1.dll`) from the system's folder alone, and handles exceptions,
/// both for the rest of the process.
pub(super) fn install() {
    // SAFETY: no library is being loaded; if the call fails, the system's order of folders stays.
    let _ = unsafe { SetDefaultDllDirectories(LOAD_LIBRARY_SEARCH_SYSTEM32) };
    // SAFETY: `on_exception` has the signature of a handler, and lives as long as the process. If the call fails, a
    // failing read ends the process with the system's code.
    let _ = unsafe { AddVectoredExceptionHandler(1, Some(on_exception)) };
}

/// Ends the process with a message if a thread cannot read a mapped file, as SIGBUS does on Unix. Leaves all other
/// exceptions to the next handler.
///
/// It runs on the thread that read the file, between two instructions of code that reads weights: that code holds no
/// lock of the heap or of standard error, so both may be used here.
extern "system" fn on_exception(info: *mut EXCEPTION_POINTERS) -> i32 {
    // SAFETY: the system passes valid structures.
    let record = unsafe { &*(*info).ExceptionRecord };
    let [access, address, ..] = record.ExceptionInformation;
    // Wine reports a file that was shortened as a violation. Pages of a mapped file can be read, so a failing read of
    // one (0) is the file's fault.
    let by_file = match record.ExceptionCode {
        EXCEPTION_IN_PAGE_ERROR => record.NumberParameters >= 2,
        EXCEPTION_ACCESS_VIOLATION => record.NumberParameters >= 2 && access == 0,
        _ => false,
    };
    let Some(name) = Some(address).filter(|_| by_file).and_then(fault::mapped_file) else {
        return EXCEPTION_CONTINUE_SEARCH;
    };
    if ENDING.swap(true, Ordering::AcqRel) {
        loop {
            thread::sleep(AFTER_CLOSE);
        }
    }
    fault::remove_unfinished();
    let name: Vec<u8> = name
        .iter()
        .map(|byte: &AtomicU8| byte.load(Ordering::Relaxed))
        .take_while(|b| *b != 0)
        .collect();
    // Standard error may have a progress bar in the line of the cursor.
    let line_break = if io::stderr().is_terminal() { "\n" } else { "" };
    let message = format!(
        "{line_break}{}{}{}",
        fault::LOST,
        String::from_utf8_lossy(&name),
        fault::LOST_HELP
    );
    // If standard error is closed, the message is lost.
    let _ = io::stderr().write_all(message.as_bytes());
    end(Exit::BadModel);
    EXCEPTION_CONTINUE_SEARCH
}

/// A flag that events of the console set, such as Ctrl-C.
#[derive(Debug)]
struct Flag {
    pressed: Arc<AtomicBool>,
    /// Whether an event ends the process if the flag is set already.
    second_ends: bool,
}

static FLAGS: Mutex<Vec<Flag>> = Mutex::new(Vec::new());

fn flags() -> MutexGuard<'static, Vec<Flag>> {
    FLAGS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Events of the console set a flag, until this is dropped.
#[derive(Debug)]
pub(super) struct Watched(Arc<AtomicBool>);

impl Drop for Watched {
    fn drop(&mut self) {
        flags().retain(|flag| !Arc::ptr_eq(&flag.pressed, &self.0));
    }
}

/// Sets `pressed` at Ctrl-C, Ctrl-Break, when the console is closed, and at the end of the session; with `second_ends`,
/// ends the process if it is set already. Without any flag the system ends the process.
///
/// The C library's `signal`, which other crates use, has a moment after each event in which a second one ends the
/// process, and knows no closed console.
///
/// # Errors
/// The system's error.
pub(super) fn watch(pressed: &Arc<AtomicBool>, second_ends: bool) -> io::Result<Watched> {
    static IS_HANDLED: AtomicBool = AtomicBool::new(false);
    flags().push(Flag { pressed: Arc::clone(pressed), second_ends });
    let watched = Watched(Arc::clone(pressed));
    // SAFETY: `on_event` has the signature of a handler, and lives as long as the process.
    if !IS_HANDLED.swap(true, Ordering::AcqRel)
        && unsafe { SetConsoleCtrlHandler(Some(on_event), 1) } == 0
    {
        IS_HANDLED.store(false, Ordering::Release);
        return Err(io::Error::last_os_error());
    }
    Ok(watched)
}

/// Runs on a thread of its own. Returns whether the event needs no other handler.
extern "system" fn on_event(event: u32) -> BOOL {
    let flags = flags();
    if flags.is_empty() {
        return 0;
    }
    if flags.iter().any(|flag| flag.second_ends && flag.pressed.load(Ordering::Relaxed)) {
        end(Exit::Interrupted);
    }
    flags.iter().for_each(|flag| flag.pressed.store(true, Ordering::Relaxed));
    drop(flags);
    if matches!(event, CTRL_C_EVENT | CTRL_BREAK_EVENT) {
        return 1;
    }
    // The system ends the process when this returns.
    thread::sleep(AFTER_CLOSE);
    fault::remove_unfinished();
    0
}

/// Ends the process without anything else of it running any more, as `_exit` does.
fn end(exit: Exit) {
    // SAFETY: has no requirements.
    unsafe { TerminateProcess(GetCurrentProcess(), u32::from(exit.code())) };
}

/// Turns on escape sequences if `stream` is a console; false if that console has none (before Windows 10).
pub(super) fn takes_escapes(stream: &impl AsHandle) -> bool {
    let handle = stream.as_handle().as_raw_handle();
    let mut mode = 0;
    // SAFETY: the handle is open, and the call writes one number.
    if unsafe { GetConsoleMode(handle, &raw mut mode) } == 0 {
        // A file, a pipe, or the terminal of another system.
        return true;
    }
    let with_escapes = mode | ENABLE_VIRTUAL_TERMINAL_PROCESSING;
    // SAFETY: as above.
    mode == with_escapes || unsafe { SetConsoleMode(handle, with_escapes) } != 0
}
