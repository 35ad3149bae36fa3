//! What dropping neurons costs: the error of the block's output, and where to draw the line.

use std::ops::Range;

use rayon::prelude::*;

use super::matrix::Dense;
use super::seen::{Part, Seen};

/// Relative errors of a block's output for which thresholds are kept; between them they are interpolated.
pub const ERRORS: [f32; 12] =
    [0.003, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.07, 0.1, 0.14, 0.2, 0.3];

/// Tokens that are judged together.
const TOKENS: usize = 64;
/// Where more than one part in so many is dropped, a product of matrices is faster than rows one by one.
const MANY: usize = 16;
/// Halvings of the interval in which a threshold lies.
const HALVINGS: usize = 14;

/// A layer's tokens, and what its down matrix makes of them.
#[derive(Debug)]
pub(super) struct Judge<'a> {
    seen: &'a Seen,
    /// `[n_ff, n_embd]`: row by neuron.
    down: &'a Dense,
    /// The same with a row by output.
    columns: Dense,
    /// The squared size of each token's output, summed.
    size: f64,
    /// Length of each neuron's row of down.
    lengths: Vec<f64>,
}

/// What a line costs and saves.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Verdict {
    /// `|y - y'| / |y|`, over all tokens.
    pub error: f64,
    /// Share of neurons and tokens on the wanted side.
    pub listed: f64,
    /// Share of those that contribute and are wanted.
    pub recall: f64,
    /// The same, each weighed by its contribution's length.
    pub weighted_recall: f64,
}

/// For each of [`ERRORS`] the threshold, and what it costs and saves.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// `[ERRORS.len()]`, not decreasing.
    pub thresholds: Vec<f32>,
    /// `[ERRORS.len()]`
    pub verdicts: Vec<Verdict>,
}

impl<'a> Judge<'a> {
    /// Of what was `seen` before `down` `[n_ff, n_embd]`.
    #[must_use]
    pub(super) fn new(seen: &'a Seen, down: &'a Dense) -> Judge<'a> {
        let lengths = down
            .values
            .chunks_exact(down.n_cols.max(1))
            .map(|row| row.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>().sqrt());
        let (columns, lengths) = (down.transposed(), lengths.collect());
        let mut judge = Judge { seen, down, columns, size: 0.0, lengths };
        judge.size = judge.lost(|_, _| true);
        judge
    }

    /// The squared size of what is lost of the output where parts are `dropped`, summed over tokens.
    fn lost(&self, dropped: impl Fn(usize, &Part) -> bool + Sync) -> f64 {
        let n = self.seen.n_tokens();
        let some = |first: usize| self.lost_of(first..n.min(first + TOKENS), &dropped);
        // One sum after the other, whoever made them.
        let firsts: Vec<usize> = (0..n).step_by(TOKENS).collect();
        let sizes: Vec<f64> = firsts.into_par_iter().map(some).collect();
        sizes.iter().sum()
    }

    fn lost_of(&self, tokens: Range<usize>, dropped: &impl Fn(usize, &Part) -> bool) -> f64 {
        let parts = |t: usize| self.seen.parts(t).iter().filter(move |part| dropped(t, part));
        let n_dropped: usize = tokens.clone().map(|t| parts(t).count()).sum();
        let n_embd = self.down.n_cols;
        let mut sums = Dense::new(tokens.len(), n_embd);
        if n_dropped * MANY > tokens.len() * self.seen.n_ff() {
            let mut h = Dense::new(tokens.len(), self.seen.n_ff());
            for (t, row) in tokens.zip(h.values.chunks_exact_mut(self.seen.n_ff())) {
                parts(t).for_each(|part| row[part.neuron as usize] = part.h);
            }
            sums = h.times(&self.columns);
        } else {
            for (t, sum) in tokens.zip(sums.values.chunks_exact_mut(n_embd)) {
                for part in parts(t) {
                    let row = self.down.row(part.neuron as usize);
                    sum.iter_mut().zip(row).for_each(|(sum, d)| *sum += part.h * d);
                }
            }
        }
        sums.values.iter().map(|v| f64::from(*v) * f64::from(*v)).sum()
    }

    fn error(&self, dropped: impl Fn(usize, &Part) -> bool + Sync) -> f64 {
        match self.size > 0.0 {
            true => (self.lost(dropped) / self.size).sqrt(),
            false => 0.0,
        }
    }

    /// The error of dropping what scores less than 0 with its `bias`; `scores` `[n_tokens, n_ff]`.
    pub(super) fn error_with(&self, scores: &Dense, bias: &[f32]) -> f64 {
        self.error(|t, part| {
            let n = part.neuron as usize;
            scores.row(t)[n] + bias[n] < 0.0
        })
    }

    /// What it costs to drop what scores less than `threshold`; `scores` `[n_tokens, n_ff]`.
    #[must_use]
    pub(super) fn by_scores(&self, scores: &Dense, threshold: f32) -> Verdict {
        let dropped = |t: usize, part: &Part| scores.row(t)[part.neuron as usize] < threshold;
        let listed = scores.values.iter().filter(|score| **score >= threshold).count();
        self.verdict(listed as f64, dropped)
    }

    /// What it costs to drop parts whose activation is below `cut / weight` of their neuron.
    #[must_use]
    pub(super) fn by_activation(&self, weights: &[f32], cut: f32) -> Verdict {
        let dropped = |_: usize, part: &Part| part.act < row_threshold(weights, part, cut);
        let tokens = 0..self.seen.n_tokens();
        let kept = |t| self.seen.parts(t).iter().filter(|part| !dropped(t, part)).count();
        self.verdict(tokens.map(kept).sum::<usize>() as f64, dropped)
    }

    fn verdict(&self, listed: f64, dropped: impl Fn(usize, &Part) -> bool + Sync) -> Verdict {
        let (mut found, mut all) = ([0.0; 2], [0.0; 2]);
        for t in 0..self.seen.n_tokens() {
            for part in self.seen.parts(t) {
                let length = f64::from(part.h.abs()) * self.lengths[part.neuron as usize];
                let kept = if dropped(t, part) { 0.0 } else { 1.0 };
                found = [found[0] + kept, found[1] + kept * length];
                all = [all[0] + 1.0, all[1] + length];
            }
        }
        let share = |i: usize| if all[i] > 0.0 { found[i] / all[i] } else { 1.0 };
        Verdict {
            error: self.error(dropped),
            listed: listed / (self.seen.n_tokens() * self.seen.n_ff()).max(1) as f64,
            recall: share(0),
            weighted_recall: share(1),
        }
    }

    /// The largest threshold on `scores` whose error is at most `target`, within the halvings; at least `from`.
    #[must_use]
    pub(super) fn threshold(&self, scores: &Dense, target: f32, from: f32) -> f32 {
        let highest = scores.values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let lowest = scores.values.iter().copied().fold(f32::INFINITY, f32::min);
        let error = |line: f32| self.error(|t, part| scores.row(t)[part.neuron as usize] < line);
        bisect(from.max(lowest), highest, |line| error(line) <= f64::from(target))
    }

    /// Thresholds on `scores` for all of [`ERRORS`].
    #[must_use]
    pub(super) fn curve(&self, scores: &Dense) -> Curve {
        let mut from = f32::NEG_INFINITY;
        let thresholds: Vec<f32> = ERRORS
            .iter()
            .map(|&target| {
                from = self.threshold(scores, target, from);
                from
            })
            .collect();
        let verdicts = thresholds.iter().map(|&line| self.by_scores(scores, line)).collect();
        Curve { thresholds, verdicts }
    }

    /// How much a neuron's activation counts: the length of its row of down times the usual size of what the activation
    /// is multiplied with, `[n_ff]`. A neuron that never contributed has the least of all others.
    #[must_use]
    pub(super) fn weights(&self) -> Vec<f32> {
        let mut acts = vec![0.0f64; self.seen.n_ff()];
        for part in (0..self.seen.n_tokens()).flat_map(|t| self.seen.parts(t)) {
            acts[part.neuron as usize] += f64::from(part.act) * f64::from(part.act);
        }
        let energies = self.seen.energies();
        let weight = |n: usize| self.lengths[n] * (energies[n] / acts[n]).sqrt();
        let mut weights: Vec<f32> = (0..acts.len()).map(|n| weight(n) as f32).collect();
        let counts = |w: &&f32| w.is_finite() && **w > 0.0;
        let least = weights.iter().filter(counts).copied().fold(f32::INFINITY, f32::min);
        let least = if least.is_finite() { least } else { 1.0 };
        weights.iter_mut().filter(|w| !counts(&&**w)).for_each(|w| *w = least);
        weights
    }

    /// Cuts on weighted activations for all of [`ERRORS`].
    #[must_use]
    pub(super) fn activation_curve(&self, weights: &[f32]) -> Curve {
        let parts = || (0..self.seen.n_tokens()).flat_map(|t| self.seen.parts(t));
        let weighted = |part: &Part| part.act * weights[part.neuron as usize];
        let highest = parts().map(weighted).fold(0.0, f32::max);
        let mut from = 0.0;
        let thresholds: Vec<f32> = ERRORS
            .iter()
            .map(|&target| {
                let error =
                    |cut| self.error(|_, part| part.act < row_threshold(weights, part, cut));
                from = bisect(from, highest, |cut| error(cut) <= f64::from(target));
                from
            })
            .collect();
        let verdicts = thresholds.iter().map(|&cut| self.by_activation(weights, cut)).collect();
        Curve { thresholds, verdicts }
    }
}

/// What a neuron's activation must reach, as the engine computes it.
fn row_threshold(weights: &[f32], part: &Part, cut: f32) -> f32 {
    cut / weights[part.neuron as usize]
}

/// The largest value between `low`, which `holds`, and `high` that holds, if what holds lies below what does not.
fn bisect(low: f32, high: f32, holds: impl Fn(f32) -> bool) -> f32 {
    let (mut low, mut high) = (low, high);
    if high <= low || holds(high) {
        return high.max(low);
    }
    for _ in 0..HALVINGS {
        let middle = low + (high - low) / 2.0;
        match holds(middle) {
            true => low = middle,
            false => high = middle,
        }
    }
    low
}

impl Curve {
    /// The threshold for a relative error of `target`: between two of [`ERRORS`] by the logarithm of the error, beyond
    /// them that of the nearest.
    #[must_use]
    pub fn at(thresholds: &[f32], target: f32) -> f32 {
        let above = ERRORS.iter().position(|&error| error >= target).unwrap_or(ERRORS.len() - 1);
        let [below, above] = [above.saturating_sub(1), above];
        if target <= ERRORS[below] || below == above {
            return thresholds[below];
        }
        let span = (ERRORS[above] / ERRORS[below]).ln();
        let share = ((target / ERRORS[below]).ln() / span).min(1.0);
        thresholds[below] + share * (thresholds[above] - thresholds[below])
    }
}

#[cfg(test)]
mod tests {
    use hal::op::{Activation, FfnKind};
    use proptest::prelude::*;

    use super::*;

    fn seen(gates: &[f32], ups: &[f32], n_ff: usize) -> Seen {
        let mut seen = Seen::new(FfnKind::Gated, Activation::Relu, 1, n_ff);
        for (gates, ups) in gates.chunks_exact(n_ff).zip(ups.chunks_exact(n_ff)) {
            seen.push(&[1.0], Some(gates), ups);
        }
        seen
    }

    fn values(n: usize) -> impl Strategy<Value = Vec<f32>> {
        proptest::collection::vec(-1.0f32..1.0, n)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn thresholds_keep_to_their_errors(gates in values(80), ups in values(80), down in values(20), noise in values(80)) {
            let seen = seen(&gates, &ups, 10);
            let down = Dense { n_rows: 10, n_cols: 2, values: down };
            let judge = Judge::new(&seen, &down);
            let scores = gates.iter().zip(&noise).map(|(g, n)| g + 0.3 * n).collect();
            let scores = Dense { n_rows: 8, n_cols: 10, values: scores };
            let curve = judge.curve(&scores);
            let cuts = judge.activation_curve(&judge.weights());
            for curve in [&curve, &cuts] {
                prop_assert!(curve.thresholds.windows(2).all(|pair| pair[0] <= pair[1]));
                for (verdict, target) in curve.verdicts.iter().zip(ERRORS) {
                    prop_assert!(verdict.error <= f64::from(target) + 1e-6, "{verdict:?} {target}");
                    prop_assert!((0.0..=1.0).contains(&verdict.weighted_recall));
                }
            }
            // Nothing is lost where everything is wanted, and all where nothing is.
            let all = judge.by_scores(&scores, f32::NEG_INFINITY);
            prop_assert_eq!((all.error, all.listed, all.recall), (0.0, 1.0, 1.0));
            let none = judge.by_scores(&scores, f32::INFINITY);
            prop_assert!(none.listed == 0.0 && (judge.size == 0.0 || (none.error - 1.0).abs() < 1e-6));
        }
    }

    #[test]
    fn the_error_is_that_of_the_output() {
        // Two neurons whose rows of down are at right angles: one lost of lengths 3 and 4.
        let seen = seen(&[1.0, 1.0], &[3.0, 4.0], 2);
        let down = Dense { n_rows: 2, n_cols: 2, values: vec![1.0, 0.0, 0.0, 1.0] };
        let judge = Judge::new(&seen, &down);
        let scores = Dense { n_rows: 1, n_cols: 2, values: vec![0.0, 1.0] };
        let verdict = judge.by_scores(&scores, 0.5);
        assert!((verdict.error - 0.6).abs() < 1e-6);
        assert_eq!((verdict.listed, verdict.recall), (0.5, 0.5));
        assert!((verdict.weighted_recall - 4.0 / 7.0).abs() < 1e-6);
        assert_eq!(judge.weights(), [3.0, 4.0]);
    }

    #[test]
    fn between_errors_thresholds_are_interpolated() {
        let thresholds: Vec<f32> = (0..ERRORS.len()).map(|i| i as f32).collect();
        assert_eq!(Curve::at(&thresholds, 0.0001), 0.0);
        assert_eq!(Curve::at(&thresholds, 0.003), 0.0);
        assert_eq!(Curve::at(&thresholds, 5.0), 11.0);
        for (i, error) in ERRORS.iter().enumerate() {
            assert!((Curve::at(&thresholds, *error) - i as f32).abs() < 1e-4);
        }
        let between = Curve::at(&thresholds, (0.01f32 * 0.02).sqrt());
        assert!((between - 2.5).abs() < 1e-4, "{between}");
    }
}
