//! Allocations that fail: exit code 4 instead of an abort.
//!
//! Rust has no stable hook for a failed allocation that nothing handles: it prints the size and
//! aborts. So the program's allocator notes the last failure, and the handler of SIGABRT looks
//! whether it was on this thread. Failures that are handled (`try_reserve`) stay what they are. It
//! costs a comparison per allocation.
#![allow(unsafe_code)] // an allocator

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, which notes failures.
#[derive(Clone, Copy, Debug)]
pub struct Allocator;

static FAILED_SIZE: AtomicUsize = AtomicUsize::new(0);
static FAILED_THREAD: AtomicUsize = AtomicUsize::new(0);

fn noted(pointer: *mut u8, size: usize) -> *mut u8 {
    if pointer.is_null() {
        FAILED_SIZE.store(size, Ordering::Relaxed);
        FAILED_THREAD.store(this_thread(), Ordering::Release);
    }
    pointer
}

#[cfg(unix)]
fn this_thread() -> usize {
    // SAFETY: has no requirements.
    unsafe { libc::pthread_self() as usize }
}

#[cfg(not(unix))]
fn this_thread() -> usize {
    0
}

/// Bytes of the last allocation that failed, if it failed on this thread. Neither locks nor
/// allocates, so a signal handler may call it.
#[cfg(unix)]
pub(super) fn failed_here() -> Option<usize> {
    let here = FAILED_THREAD.load(Ordering::Acquire) == this_thread();
    here.then(|| FAILED_SIZE.load(Ordering::Relaxed))
}

// SAFETY: all work is the system allocator's, with the arguments as they came.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of this method, which is the same.
        noted(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        noted(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        noted(unsafe { System.realloc(pointer, layout, size) }, size)
    }
}
