//! Whether two ways to run a model give the same logits.

use std::sync::atomic::AtomicBool;

use crate::engine::{Engine, Result, Want};
use crate::model::Model;

/// Tokens at the end of the text that are fed once more, at most.
pub const AGAIN: usize = 64;
/// Of these, how many are fed one by one after the others, at most.
const SINGLE: usize = 16;

/// Logits of `engine` in the ways that tokens take through a backend, `[n][n_vocab]`: `text` in the longest steps there
/// are, after which its last logits count (here neurons are brought to devices for prompts); then, with its end taken
/// back, that end in short steps, and what is left of it in single tokens, each with its logits.
///
/// # Errors
/// Those of [`Engine::feed`].
pub fn logits(engine: &mut Engine, text: &[u32], interrupt: &AtomicBool) -> Result<Vec<f32>> {
    let (before, again) = text.split_at(text.len().saturating_sub(AGAIN));
    let (short, single) = again.split_at(again.len() - (again.len() / 2).min(SINGLE));
    let mut session = engine.open();
    let mut all = Vec::new();
    let mut feed = |engine: &mut Engine, session: &mut _, piece: &[u32], want| {
        let each = &mut |_: usize, row: &[f32]| all.extend_from_slice(row);
        engine.feed(session, piece, want, interrupt, each).map(|_| ())
    };
    let fed = feed(engine, &mut session, text, Want::Last).and_then(|()| {
        engine.truncate(&mut session, before.len());
        let mut pieces = [short].into_iter().chain(single.chunks(1));
        pieces.try_for_each(|piece| feed(engine, &mut session, piece, Want::All))
    });
    engine.close(session);
    fed.map(|()| all)
}

/// How two runs of the same text differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// The largest difference of two logits, in units of the spread (root mean square) of the position's logits.
    pub largest: f64,
    /// Positions.
    pub n: usize,
    /// Those with the same most probable token.
    pub n_same: usize,
}

/// Compares logits of the same positions, each `n_vocab` wide. What is no number differs from everything, infinitely.
#[must_use]
pub fn difference(expected: &[f32], got: &[f32], n_vocab: usize) -> Difference {
    let mut found = Difference { largest: 0.0, n: 0, n_same: 0 };
    let top = |row: &[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]));
    for (a, b) in expected.chunks_exact(n_vocab.max(1)).zip(got.chunks_exact(n_vocab.max(1))) {
        let squares: f64 = a.iter().map(|v| f64::from(*v).powi(2)).sum();
        let spread = (squares / a.len() as f64).sqrt().max(f64::MIN_POSITIVE);
        let most = a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
        let numbers = a.iter().chain(b).all(|v| v.is_finite());
        found.largest = found.largest.max(if numbers { most / spread } else { f64::INFINITY });
        found.n += 1;
        found.n_same += usize::from(top(a) == top(b));
    }
    if expected.len() != got.len() {
        found.largest = f64::INFINITY;
    }
    found
}

/// The largest difference that rounding explains, and why. As in the tests that place a model at random: sums of F32 in
/// another order move logits by so much at most; where weights are quantised, an activation at the edge of two 8-bit
/// steps may also fall to either side.
#[must_use]
pub fn rounding_bound(model: &Model) -> (f64, &'static str) {
    let quantised = |rows: &hal::HostRows| rows.desc().format.quants().is_some();
    let mut matrices = model.layers.iter().flat_map(|layer| layer.ffn.matrices());
    match matrices.any(|(_, rows)| quantised(rows)) {
        true => (8e-2, "quantised weights"),
        false => (2e-3, "weights that are not quantised"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_in_units_of_the_spread() {
        let (a, b) = ([3.0, -4.0, 0.0, 1.0], [3.0, -4.0, 0.0, 1.0]);
        let same = Difference { largest: 0.0, n: 2, n_same: 2 };
        assert_eq!(difference(&a, &b, 2), same);
        let found = difference(&a, &[3.0, -3.5, 2.0, 1.0], 2);
        // The spread of the first position is 5 / sqrt(2), of the second 1 / sqrt(2).
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
