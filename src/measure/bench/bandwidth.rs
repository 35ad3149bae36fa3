//! Read bandwidth of this machine's memory, as an ordinary program gets it.

use std::hint::black_box;
use std::thread::{Builder, scope};
use std::time::{Duration, Instant};

use hal::Bytes;

/// Least and most bytes of the usual buffer.
const USUAL_SIZES: [Bytes; 2] = [Bytes(128 << 20), Bytes(1 << 30)];
/// The usual buffer by the size of the last-level caches, of which a pass keeps a part.
const CACHES: u64 = 16;
/// Maximum number of passes over the buffer, and the time after which two passes are enough.
const PASSES: usize = 7;
const TIME_LIMIT: Duration = Duration::from_millis(500);
/// Number of independent sums: enough that additions do not delay the reads.
const LANES: usize = 64;

/// The usual size of the buffer on a machine whose last-level caches have `caches` bytes together.
#[must_use]
pub fn usual_probe_size(caches: Option<Bytes>) -> Bytes {
    let [least, most] = USUAL_SIZES;
    caches.map_or(most, |caches| Bytes(caches.0.saturating_mul(CACHES)).clamp(least, most))
}

/// Bytes to read: `wanted`, but at most a quarter of the `free` memory, if known.
#[must_use]
pub fn probe_size(wanted: Bytes, free: Option<Bytes>) -> Bytes {
    free.map_or(wanted, |free| wanted.min(Bytes(free.0 / 4)))
}

/// The best of a few passes in which `n_threads` threads sum a buffer of `size`, in GB (1e9 bytes)
/// per second. Each thread writes its own part of the buffer first. `None` for a `size` of 0, or if
/// the system refuses memory or threads.
#[must_use]
pub fn read_bandwidth(n_threads: usize, size: Bytes) -> Option<f64> {
    let n_threads = n_threads.max(1);
    let len = usize::try_from(size.0).ok()? / size_of::<u64>() / n_threads;
    let parts = on_threads(0..n_threads, |i| filled(len, i as u64 + 1))?;
    let parts: Vec<Vec<u64>> = parts.into_iter().collect::<Option<_>>()?;
    let (mut best, started) = (f64::INFINITY, Instant::now());
    for pass in 0..PASSES {
        if pass >= 2 && started.elapsed() > TIME_LIMIT {
            break;
        }
        let begin = Instant::now();
        let sums = on_threads(parts.iter(), |part| sum(black_box(part)))?;
        best = best.min(begin.elapsed().as_secs_f64());
        black_box(sums);
    }
    let read = (n_threads * len * size_of::<u64>()) as f64;
    (read > 0.0 && best > 0.0).then(|| read / best / 1e9)
}

fn filled(len: usize, value: u64) -> Option<Vec<u64>> {
    let mut part = Vec::new();
    part.try_reserve_exact(len).ok()?;
    part.resize(len, value);
    Some(part)
}

/// Runs `work` on each input, each on its own thread. `None` if the system refuses a thread.
fn on_threads<I: Send, T: Send>(
    inputs: impl Iterator<Item = I>,
    work: impl Fn(I) -> T + Sync,
) -> Option<Vec<T>> {
    let work = &work;
    scope(|scope| {
        let start = |input| Builder::new().spawn_scoped(scope, move || work(input));
        let threads: Vec<_> = inputs.map(start).collect();
        threads.into_iter().map(|thread| thread.ok()?.join().ok()).collect()
    })
}

fn sum(values: &[u64]) -> u64 {
    let mut sums = [0u64; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*value);
        }
    }
    sums.iter().chain(rest).fold(0, |sum, value| sum.wrapping_add(*value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_read() {
        let values: Vec<u64> = (0..1000).collect();
        assert_eq!(sum(&values), 499_500);
        assert_eq!(sum(&values[..LANES - 1]), (0..LANES as u64 - 1).sum::<u64>());
    }

    #[test]
    fn a_bandwidth_is_a_positive_number() {
        let found = read_bandwidth(2, Bytes(1 << 20)).unwrap();
        assert!(found.is_finite() && found > 0.0);
        assert_eq!(read_bandwidth(2, Bytes(0)), None);
    }

    #[test]
    fn the_usual_buffer_follows_the_caches() {
        let mib = |caches: Option<u64>| usual_probe_size(caches.map(|n| Bytes(n << 20))).0 >> 20;
        assert_eq!([None, Some(384), Some(54), Some(2)].map(mib), [1024, 1024, 864, 128]);
        assert_eq!(usual_probe_size(Some(Bytes::MAX)).0 >> 20, 1024);
    }

    #[test]
    fn little_memory_makes_a_small_buffer() {
        assert_eq!(probe_size(Bytes(1 << 30), None), Bytes(1 << 30));
        assert_eq!(probe_size(Bytes(1 << 30), Some(Bytes(400))), Bytes(100));
        assert_eq!(probe_size(Bytes(70), Some(Bytes(1 << 40))), Bytes(70));
    }
}
