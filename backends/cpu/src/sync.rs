//! The shared variables and threads of the thread pool: those of the standard library. `loom/` has
//! the same names for loom's.

use std::sync::atomic::Ordering;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, fence};
pub(crate) use std::sync::{Arc, Condvar, Mutex};
pub(crate) use std::thread::{self, JoinHandle};

/// Number of times that an idle thread looks for work before it reads the clock.
pub(crate) const SPINS: u32 = 16;

/// Stores a word that other threads increment meanwhile.
pub(crate) fn store_word(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Release);
}
