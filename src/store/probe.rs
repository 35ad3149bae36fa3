//! How fast the disk of a file is.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::region::{PAGE, Region};
use crate::source::ReadAt;

/// Measured speed of the disk that a file is on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskSpeed {
    /// Bytes per second of large reads with `depth` threads.
    pub bandwidth: f64,
    /// Seconds that one read of a page takes.
    pub latency: f64,
    /// Small reads (16 KiB, a neuron's rows) per second with [`SMALL_DEPTH`] threads.
    pub small_reads: f64,
    /// The number of reading threads with the best bandwidth.
    pub depth: usize,
}

/// Number of threads for small reads: a disk needs more of them at once than large ones.
pub const SMALL_DEPTH: usize = 16;
/// Thread counts that are measured.
const DEPTHS: [u64; 4] = [2, 4, 8, 16];
/// Bytes of a large read.
const LARGE: u64 = 1 << 20;
/// Bytes of a small read.
const SMALL: u64 = 16 << 10;
/// Duration of one measurement.
const TIME: Duration = Duration::from_millis(60);
/// A larger thread count must be faster by this factor: threads cost memory and time too.
const MIN_GAIN: f64 = 1.05;

/// Measures reads of `file` at pseudo-random places, in about 0.4 s. `None` if a read fails or the
/// file is too small to tell.
#[must_use]
pub fn measure(file: &dyn ReadAt) -> Option<DiskSpeed> {
    let n_blocks = file.size() / LARGE;
    if n_blocks < 8 {
        return None;
    }
    // The buffers of the reading threads, with memory before the clock starts.
    let all = 0..DEPTHS.into_iter().max()? * LARGE;
    let buffers = Region::reserve(all.end).ok()?;
    buffers.advise_huge(all.clone());
    buffers.fill(all, |bytes| bytes.fill(1));
    let n_read = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    // Each read takes a place that no earlier one took, as far as the file has that many.
    let place = || {
        let n = n_read.fetch_add(1, Ordering::Relaxed);
        n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % n_blocks * LARGE
    };
    let read = |thread: u64, len: u64| {
        buffers.fill(thread * LARGE..thread * LARGE + len, |out| file.read_at(out, place()))
    };
    let bandwidth = |depth: u64, len: u64| {
        let bytes = AtomicU64::new(0);
        let since = Instant::now();
        std::thread::scope(|scope| {
            let read_on = |thread: u64| {
                while since.elapsed() < TIME && !failed.load(Ordering::Relaxed) {
                    match read(thread, len) {
                        Ok(n) => _ = bytes.fetch_add(n as u64, Ordering::Relaxed),
                        Err(_) => failed.store(true, Ordering::Relaxed),
                    }
                }
            };
            for number in 1..depth {
                let builder = std::thread::Builder::new().name(format!("probe {number}"));
                let _ = builder.spawn_scoped(scope, move || read_on(number));
            }
            read_on(0);
        });
        bytes.into_inner() as f64 / since.elapsed().as_secs_f64()
    };
    let (mut best, mut depth) = (0.0, 1);
    for n in DEPTHS {
        let found = bandwidth(n, LARGE);
        if found > best * MIN_GAIN {
            (best, depth) = (found, n);
        }
    }
    let small_reads = bandwidth(SMALL_DEPTH as u64, SMALL) / SMALL as f64;
    let (since, mut n) = (Instant::now(), 0);
    while n < 64 && since.elapsed() < TIME {
        failed.fetch_or(read(0, PAGE).is_err(), Ordering::Relaxed);
        n += 1;
    }
    let latency = since.elapsed().as_secs_f64() / f64::from(n.max(1));
    let measured = DiskSpeed { bandwidth: best, latency, small_reads, depth: depth as usize };
    (!failed.into_inner() && best > 0.0 && small_reads > 0.0).then_some(measured)
}
