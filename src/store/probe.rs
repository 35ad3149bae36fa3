//! How fast the disk of a file is.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::region::PAGE;
use crate::source::ReadAt;

/// Measured speed of the disk that a file is on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskSpeed {
    /// Bytes per second of large reads with `depth` threads.
    pub bandwidth: f64,
    /// Seconds that one read of a page takes.
    pub latency: f64,
    /// The number of reading threads with the best bandwidth.
    pub depth: usize,
}

/// Thread counts that are measured.
const DEPTHS: [usize; 4] = [2, 4, 8, 16];
/// Bytes of a large read.
const LARGE: usize = 1 << 20;
/// Duration of one measurement.
const TIME: Duration = Duration::from_millis(60);
/// A larger thread count must be faster by this factor: threads cost memory and time too.
const MIN_GAIN: f64 = 1.05;

/// Page-aligned memory.
struct Buffer {
    bytes: Vec<u8>,
    first: usize,
}

impl Buffer {
    fn new(len: usize) -> Buffer {
        let bytes = vec![0; len + PAGE as usize];
        let first = bytes.as_ptr().align_offset(PAGE as usize);
        Buffer { bytes, first }
    }

    fn get(&mut self, len: usize) -> &mut [u8] {
        &mut self.bytes[self.first..self.first + len]
    }
}

/// Measures reads of `file` at pseudo-random places, in about 0.3 s. `None` if a read fails or the
/// file is too small to tell.
#[must_use]
pub fn measure(file: &dyn ReadAt) -> Option<DiskSpeed> {
    let n_blocks = file.size() / LARGE as u64;
    if n_blocks < 8 {
        return None;
    }
    let n_read = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    // Each read takes a place that no earlier one took, as far as the file has that many.
    let place = || {
        let n = n_read.fetch_add(1, Ordering::Relaxed);
        n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % n_blocks * LARGE as u64
    };
    let bandwidth = |depth: usize| {
        let bytes = AtomicU64::new(0);
        let since = Instant::now();
        std::thread::scope(|scope| {
            let read = || {
                let mut buffer = Buffer::new(LARGE);
                while since.elapsed() < TIME && !failed.load(Ordering::Relaxed) {
                    match file.read_at(buffer.get(LARGE), place()) {
                        Ok(n) => _ = bytes.fetch_add(n as u64, Ordering::Relaxed),
                        Err(_) => failed.store(true, Ordering::Relaxed),
                    }
                }
            };
            for number in 1..depth {
                let builder = std::thread::Builder::new().name(format!("probe {number}"));
                let _ = builder.spawn_scoped(scope, read);
            }
            read();
        });
        bytes.into_inner() as f64 / since.elapsed().as_secs_f64()
    };
    let (mut best, mut depth) = (0.0, 1);
    for n in DEPTHS {
        let found = bandwidth(n);
        if found > best * MIN_GAIN {
            (best, depth) = (found, n);
        }
    }
    let mut buffer = Buffer::new(PAGE as usize);
    let (since, mut n) = (Instant::now(), 0);
    while n < 64 && since.elapsed() < TIME {
        failed
            .fetch_or(file.read_at(buffer.get(PAGE as usize), place()).is_err(), Ordering::Relaxed);
        n += 1;
    }
    let latency = since.elapsed().as_secs_f64() / f64::from(n.max(1));
    let measured = DiskSpeed { bandwidth: best, latency, depth };
    (!failed.into_inner() && best > 0.0).then_some(measured)
}
