//! The distance at which kernels prefetch rows of weights. The best distance depends on the
//! processor, and no result depends on the distance, so it is measured.

use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, scope};
use std::time::Instant;

use hal::Bytes;
use hal::format::{Format, Q8Row};
use simd::{ActView, DEFAULT_PREFETCH, FAR_PREFETCH, Kernels, Matrix, RowIds, RowRun};

use crate::pages::Pages;

/// The prefetch distance of a CPU device, in bytes. Clones share the value; programs that were
/// recorded before a change keep the old value.
#[derive(Clone, Debug)]
pub struct PrefetchDistance(Arc<AtomicUsize>);

impl Default for PrefetchDistance {
    fn default() -> PrefetchDistance {
        PrefetchDistance(Arc::new(AtomicUsize::new(DEFAULT_PREFETCH)))
    }
}

impl PrefetchDistance {
    /// Distances between which [`PrefetchDistance::measure`] chooses, in bytes.
    pub const CANDIDATES: [usize; 8] =
        [1 << 10, 2 << 10, 4 << 10, 6 << 10, 8 << 10, 12 << 10, FAR_PREFETCH, 24 << 10];

    /// The distance in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Changes the distance for programs that are recorded from now on.
    pub fn set(&self, bytes: usize) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    /// The fastest of [`PrefetchDistance::CANDIDATES`], by [`PrefetchDistance::rates`] of `n_threads`
    /// threads and of one: threads that together reach the limit of memory are about equally fast with
    /// any distance, but other programs may leave them more of it at another time.
    #[must_use]
    pub fn measure(n_threads: usize, most: Bytes) -> Option<usize> {
        let mut scores = PrefetchDistance::rates(n_threads, most)?;
        if n_threads > 1 {
            let alone = PrefetchDistance::rates(1, Bytes(most.0.min(SIZE as u64 / 2)))?;
            scores.iter_mut().zip(alone).for_each(|(score, alone)| *score *= alone);
        }
        let fastest = scores.into_iter().fold(0.0, f64::max);
        // On a tie the shortest distance: it wastes the least at the end of a list of rows.
        let mut all = PrefetchDistance::CANDIDATES.into_iter().zip(scores);
        all.find(|(_, score)| *score >= fastest / TIE).map(|(distance, _)| distance)
    }

    /// For each of [`PrefetchDistance::CANDIDATES`], the bytes per second at which `n_threads`
    /// threads multiply rows of Q4_0. Allocates at most `most` bytes and takes a fraction of a
    /// second. `None` if the system refuses memory or threads.
    #[must_use]
    pub fn rates(
        n_threads: usize,
        most: Bytes,
    ) -> Option<[f64; PrefetchDistance::CANDIDATES.len()]> {
        let rows = Rows::allocate(n_threads.max(1), most)?;
        let mut best = [f64::INFINITY; PrefetchDistance::CANDIDATES.len()];
        for _ in 0..ROUNDS {
            // Candidates take turns, so that a change of the machine's load affects all of them.
            for (best, distance) in best.iter_mut().zip(PrefetchDistance::CANDIDATES) {
                *best = best.min(rows.seconds(distance)?);
            }
        }
        let n_bytes = rows.parts.iter().map(Range::len).sum::<usize>() as f64;
        Some(best.map(|seconds| n_bytes / seconds))
    }
}

/// Bytes of weights: more than the caches of most processors hold.
const SIZE: usize = 512 << 20;
/// Values per row, as in a 7B model.
const N_COLS: usize = 4096;
/// Rows per call of a kernel, as in a matrix product.
const AT_ONCE: usize = 16;
const ROUNDS: usize = 5;
/// Times closer than this factor count as equal.
const TIE: f64 = 1.02;

/// Rows of weights, in the pages that tensors of this size get.
struct Rows {
    pages: Pages,
    /// Byte range of each thread's rows.
    parts: Vec<Range<usize>>,
    row_bytes: usize,
    x: Q8Row,
}

impl Rows {
    fn allocate(n_threads: usize, most: Bytes) -> Option<Rows> {
        let row_bytes = Format::Q4_0.row_bytes(N_COLS)?;
        let size = usize::try_from(most.0).unwrap_or(usize::MAX).min(SIZE);
        let part = (size / n_threads / row_bytes / AT_ONCE).max(1) * AT_ONCE * row_bytes;
        let mut pages = Pages::new(n_threads * part).ok()?;
        // Each thread touches its own rows first. The byte makes scales of normal size.
        scope(|scope| {
            let fill = |part: &'_ mut [u8]| part.fill(0x3C);
            let parts = pages.bytes().chunks_mut(part).take(n_threads);
            let start = |part| Builder::new().spawn_scoped(scope, move || fill(part));
            let threads: Vec<_> = parts.map(start).collect();
            threads.into_iter().try_for_each(|thread| thread.ok()?.join().ok())
        })?;
        let mut x = Q8Row::default();
        x.quantize_into(&[0.5; N_COLS]);
        let parts = (0..n_threads).map(|i| i * part..(i + 1) * part).collect();
        Some(Rows { pages, parts, row_bytes, x })
    }

    /// Seconds in which all threads multiply their rows once.
    fn seconds(&self, distance: usize) -> Option<f64> {
        let begin = Instant::now();
        scope(|scope| {
            let multiply = |part: &Range<usize>| self.multiply(part, distance);
            let start = |part| Builder::new().spawn_scoped(scope, move || multiply(part));
            let threads: Vec<_> = self.parts.iter().map(start).collect();
            threads.into_iter().try_for_each(|thread| thread.ok()?.join().ok())
        })?;
        Some(begin.elapsed().as_secs_f64())
    }

    fn multiply(&self, part: &Range<usize>, distance: usize) {
        let kernel = Kernels::best().rows(Format::Q4_0);
        let matrix = Matrix::dense(&self.pages.as_slice()[part.clone()], self.row_bytes);
        let mut products = [[0.0]; AT_ONCE];
        for first in (0..part.len() / self.row_bytes).step_by(AT_ONCE) {
            let run = RowRun::new(matrix, RowIds::From(first), distance);
            kernel(&run, [ActView::from(&self.x)], &mut products);
            black_box(&products);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_candidate_is_chosen_and_clones_share_it() {
        let measured = PrefetchDistance::measure(2, Bytes(1 << 20)).unwrap();
        assert!(PrefetchDistance::CANDIDATES.contains(&measured));
        let distance = PrefetchDistance::default();
        assert_eq!(distance.bytes(), DEFAULT_PREFETCH);
        distance.clone().set(measured);
        assert_eq!(distance.bytes(), measured);
    }

    #[test]
    fn little_memory_still_gives_a_distance() {
        assert!(PrefetchDistance::measure(3, Bytes(0)).is_some());
    }
}
