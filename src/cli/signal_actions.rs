//! SIGBUS: a read of a mapped model file whose end was cut off, or whose disk fails. SIGABRT: an
//! allocation that failed. And which signals are ignored.
#![allow(unsafe_code)] // a signal handler, the calls that are allowed in one, and `sigaction`

use super::allocation::failed_here;
use super::failure::Exit;
use crate::gguf::fault;
use libc::{c_char, c_int, c_void, iovec, siginfo_t};
use std::io::{self, IsTerminal};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

const MEMORY: &[u8] = b"error: not enough memory: this process could not allocate another ";
const MEMORY_HELP: &[u8] = b" bytes\nhelp: use a smaller context (-c), batch (-ub) or model, or raise the limit of this process (`ulimit -v`)\n";

const THREAD: &[u8] = b"error: not enough memory to start another thread\nhelp: use fewer threads (-t), or raise the limit of this process (`ulimit -v`)\n";

/// The action that the handler replaced.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
/// Whether standard error may have a progress bar in the line of the cursor.
static IS_TERMINAL: AtomicBool = AtomicBool::new(false);
/// Whether a thread ends the process already.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Handles SIGBUS and SIGABRT for the rest of the process. A fault outside of mapped files is left
/// to the action from before, and so is an abort for another reason than a failed allocation.
pub(super) fn install() {
    IS_TERMINAL.store(io::stderr().is_terminal(), Ordering::Relaxed);
    // SAFETY: a `sigaction` of zeros is valid: no flags, an empty mask, the default action.
    let (mut ours, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    ours.sa_sigaction = on_bus_error as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
    // Elsewhere, an overflow of the stack may be a SIGBUS too, so the handler needs another stack.
    // On Linux that stack has little room on processors with large registers.
    let stack = if cfg!(target_os = "linux") { 0 } else { libc::SA_ONSTACK };
    ours.sa_flags = libc::SA_SIGINFO | stack;
    // SAFETY: both point to whole structures. Between the two calls, a SIGBUS has the action from
    // before.
    let read = unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut before) };
    if read == 0 && BEFORE.set(before).is_ok() {
        // SAFETY: as above; `on_bus_error` calls only what is allowed in a handler. If it fails, the
        // action from before stays.
        let _ = unsafe { libc::sigaction(libc::SIGBUS, &ours, std::ptr::null_mut()) };
    }
    ours.sa_sigaction = on_abort as extern "C" fn(c_int) as usize;
    ours.sa_flags = stack;
    // SAFETY: as above.
    let _ = unsafe { libc::sigaction(libc::SIGABRT, &ours, std::ptr::null_mut()) };
}

/// Ends the process with a message if an allocation failed on this thread. Otherwise returns, and
/// `abort` ends the process.
extern "C" fn on_abort(_signal: c_int) {
    let Some(mut size) = failed_here() else { return };
    let (mut digits, mut at) = ([0; 20], 20);
    while at > 0 && (size > 0 || at == 20) {
        at -= 1;
        digits[at] = b'0' + (size % 10) as u8;
        size /= 10;
    }
    end(&[MEMORY, &digits[at..], MEMORY_HELP], Exit::Memory)
}

/// Ends the process with a message because the system refuses the memory of a new thread.
pub(super) fn end_without_thread() -> ! {
    end(&[THREAD], Exit::Memory)
}

/// Ignores SIGXFSZ for the rest of the process, so that a write beyond a limit of file sizes
/// (`ulimit -f`) is an error like that of a full disk.
pub(super) fn ignore_file_size_signal() {
    // SAFETY: to ignore a signal runs no code of ours.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Whether the program that started this one ignores `signal`, as `nohup` does with SIGHUP.
pub(super) fn is_ignored(signal: c_int) -> bool {
    // SAFETY: a `sigaction` of zeros is valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: `action` is a whole structure, and the action itself is not changed.
    let read = unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) };
    read == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// Ends the process with a message if `address` is in a mapped file. Otherwise restores the action
/// from before, which the repeated fault then meets.
extern "C" fn on_bus_error(signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
    // SAFETY: the system passes a valid `siginfo_t` with SA_SIGINFO.
    let (by_fault, address) = unsafe { ((*info).si_code > 0, (*info).si_addr().addr()) };
    if by_fault && let Some(name) = fault::mapped_file(address) {
        if ENDING.swap(true, Ordering::AcqRel) {
            loop {
                // SAFETY: waits for any signal; the other thread is about to end the process.
                unsafe { libc::pause() };
            }
        }
        // SAFETY: a name ends with a zero and does not change.
        let name = unsafe {
            let start = name.as_ptr().cast::<c_char>();
            std::slice::from_raw_parts(start.cast::<u8>(), libc::strlen(start))
        };
        end(&[fault::LOST.as_bytes(), name, fault::LOST_HELP.as_bytes()], Exit::BadModel);
    }
    // SAFETY: `before` is a structure that the system filled or a valid one of zeros, the default
    // action; both functions are allowed in a handler. A signal that another process sent is sent
    // again, and arrives after the return.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        let before = BEFORE.get().filter(|_| by_fault).unwrap_or(&default);
        libc::sigaction(signal, before, std::ptr::null_mut());
        if !by_fault {
            libc::raise(signal);
        }
    }
}

/// Prints a message of several pieces, removes the unfinished outputs, and exits.
fn end<const N: usize>(message: &[&[u8]; N], exit: Exit) -> ! {
    for part in fault::claim_unfinished() {
        // SAFETY: a name ends with a zero and does not change. A missing output is not an error.
        unsafe { libc::unlink(part.as_ptr().cast::<c_char>()) };
    }
    let line_break: &[u8] = if IS_TERMINAL.load(Ordering::Relaxed) { b"\n" } else { b"" };
    let part =
        |bytes: &[u8]| iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let pieces = message.map(part);
    // SAFETY: each entry is a pointer and a length of readable memory. If standard error is closed,
    // the message is lost.
    unsafe {
        libc::writev(libc::STDERR_FILENO, &part(line_break), 1);
        // One call, so that nothing comes between the pieces.
        libc::writev(libc::STDERR_FILENO, pieces.as_ptr(), N as c_int);
        libc::_exit(exit.code().into())
    }
}
