//! Compares the logits of two runs of a model, such as on different devices.

use std::sync::atomic::AtomicBool;

use engine::{Engine, LogitsRequest, Result};
use model::Model;

/// Maximum number of tokens at the end of the text that are fed a second time.
pub const N_REPEATED: usize = 64;
/// Maximum number of tokens at the end of the text that are then fed one by one.
const N_SINGLE: usize = 16;

/// Logits of `engine` on the different paths through a backend, `[n][n_vocab]`. First feeds `text`
/// in the largest micro-batches, which stream weights to devices, and returns the logits after its
/// last token. Then removes the end of the text and feeds it again in a short step and as single
/// tokens, and returns the logits after every token.
///
/// # Errors
/// Errors of [`Engine::feed`].
pub fn logits(engine: &mut Engine, text: &[u32], interrupt: &AtomicBool) -> Result<Vec<f32>> {
    let (before, again) = text.split_at(text.len().saturating_sub(N_REPEATED));
    let (short, single) = again.split_at(again.len() - (again.len() / 2).min(N_SINGLE));
    let mut sequence = engine.new_sequence();
    let mut rows = Vec::new();
    let mut feed = |engine: &mut Engine, sequence: &mut _, piece: &[u32], want| {
        let sink = &mut |_: usize, row: &[f32]| rows.extend_from_slice(row);
        engine.feed(sequence, piece, want, interrupt, sink).map(|_| ())
    };
    let fed = feed(engine, &mut sequence, text, LogitsRequest::Last).and_then(|()| {
        engine.truncate(&mut sequence, before.len());
        let mut pieces = [short].into_iter().chain(single.chunks(1));
        pieces.try_for_each(|piece| feed(engine, &mut sequence, piece, LogitsRequest::All))
    });
    fed.map(|()| rows)
}

/// Differences between two runs of the same text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// The largest difference of two logits, in units of the spread (root mean square) of the
    /// position's logits.
    pub largest: f64,
    /// Number of positions.
    pub n: usize,
    /// Positions with the same most probable token.
    pub n_same: usize,
}

/// Compares logits of the same positions, each `n_vocab` wide. NaN, infinity and missing logits
/// count as an infinite difference.
#[must_use]
pub fn difference(expected: &[f32], got: &[f32], n_vocab: usize) -> Difference {
    let mut found = Difference { largest: 0.0, n: 0, n_same: 0 };
    let top = |row: &[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]));
    for (a, b) in expected.chunks_exact(n_vocab.max(1)).zip(got.chunks_exact(n_vocab.max(1))) {
        let squares: f64 = a.iter().map(|v| f64::from(*v).powi(2)).sum();
        let spread = (squares / a.len() as f64).sqrt().max(f64::MIN_POSITIVE);
        let most = a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
        let finite = a.iter().chain(b).all(|v| v.is_finite());
        found.largest = found.largest.max(if finite { most / spread } else { f64::INFINITY });
        found.n += 1;
        found.n_same += usize::from(top(a) == top(b));
    }
    if expected.len() != got.len() {
        found.largest = f64::INFINITY;
    }
    found
}

/// The largest difference that rounding explains, and the reason for it. The tests with random
/// placements use the same bound. It covers F32 sums in another order and, with quantised weights,
/// also an activation that rounds to the neighbouring 8-bit value.
#[must_use]
pub fn rounding_bound(model: &Model) -> (f64, &'static str) {
    let quantised = |rows: &hal::HostRows| rows.desc().format.quants().is_some();
    let mut matrices = model.blocks().flat_map(|(_, ffn)| ffn.matrices());
    if matrices.any(|(_, rows)| quantised(rows)) {
        (8e-2, "quantised weights")
    } else {
        (2e-3, "weights that are not quantised")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_relative_to_the_rms() {
        let (a, b) = ([3.0, -4.0, 0.0, 1.0], [3.0, -4.0, 0.0, 1.0]);
        let same = Difference { largest: 0.0, n: 2, n_same: 2 };
        assert_eq!(difference(&a, &b, 2), same);
        let found = difference(&a, &[3.0, -3.5, 2.0, 1.0], 2);
        // The spread of the first position is 5 / sqrt(2), the spread of the second 1 / sqrt(2).
        assert_eq!((found.n, found.n_same), (2, 1));
        assert!((found.largest - 2.0 * 2f64.sqrt()).abs() < 1e-12, "{found:?}");
        assert_eq!(difference(&a, &a[..2], 2).largest, f64::INFINITY);
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let odd = [3.0, odd, 0.0, 1.0];
            for (expected, got) in [(&a, &odd), (&odd, &a), (&odd, &odd)] {
                assert_eq!(difference(expected, got, 2).largest, f64::INFINITY);
            }
        }
    }
}
