//! The threads of rayon, which converts, quantises, hashes and trains; the engine has its own.

use std::io;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, Builder};

/// Starts rayon's global pool with one thread for each CPU, at most `wanted`; with fewer if the
/// system refuses some. Rayon itself would panic at its first use, and a pool that failed to start
/// cannot be started again. So the threads start first, and then become those of the pool.
pub(super) fn start(wanted: Option<NonZeroUsize>) {
    let n_cpus = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let wanted = wanted.map_or(n_cpus, |wanted| wanted.get().min(n_cpus));
    let (sender, receiver) = mpsc::channel::<rayon::ThreadBuilder>();
    let receiver = Arc::new(Mutex::new(receiver));
    let start = |i: usize| {
        let receiver = Arc::clone(&receiver);
        let work = move || {
            let thread = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
            if let Ok(thread) = thread {
                thread.run();
            }
        };
        Builder::new().name(format!("compute {i}")).spawn(work).ok()
    };
    let n_started = (0..wanted).map_while(start).count();
    let pool = rayon::ThreadPoolBuilder::new();
    // It fails only if a pool exists, and nothing has used one yet.
    let _ = if n_started == 0 {
        pool.num_threads(1).use_current_thread().build_global()
    } else {
        let hand_over =
            move |thread| sender.send(thread).map_err(|_| io::Error::other("the thread has ended"));
        pool.num_threads(n_started).spawn_handler(hand_over).build_global()
    };
}
