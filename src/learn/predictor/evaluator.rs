//! The cost of skipping neurons: the error of the block's output, and the choice of thresholds.

use std::ops::Range;
use std::sync::OnceLock;

use rayon::prelude::*;

use model::chooser::{Curve, ERRORS, Evaluation};

use super::matrix::DenseMatrix;
use super::observations::{Contribution, Observations};

/// Tokens that are evaluated together.
const BATCH: usize = 64;
/// If tokens skip on average more than `1 / DENSE_DIVISOR` of the neurons, a matrix product is
/// faster than adding single rows.
const DENSE_DIVISOR: usize = 16;
/// Number of intervals in the first search for a threshold. A second search divides the interval
/// that contains the result into this number of intervals.
const INTERVALS: usize = 64;

/// Evaluates skipped contributions with a layer's down matrix.
#[derive(Debug)]
pub(super) struct Evaluator<'a> {
    seen: &'a Observations,
    /// `[n_ff, n_embd]`: a row per neuron.
    down: &'a DenseMatrix,
    /// `down` transposed, `[n_embd, n_ff]`, once it is needed.
    columns: OnceLock<DenseMatrix>,
    /// Sum over tokens of the squared norm of the output.
    size: f64,
    /// Norm of each neuron's row of down.
    lengths: Vec<f64>,
}

impl<'a> Evaluator<'a> {
    /// Evaluates the contributions in `seen` with `down` `[n_ff, n_embd]`.
    #[must_use]
    pub(super) fn new(seen: &'a Observations, down: &'a DenseMatrix) -> Evaluator<'a> {
        let lengths = down
            .values
            .chunks_exact(down.n_cols.max(1))
            .map(|row| row.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>().sqrt());
        let (columns, lengths) = (OnceLock::new(), lengths.collect());
        let mut evaluator = Evaluator { seen, down, columns, size: 0.0, lengths };
        evaluator.size = evaluator.squared_error(|_, _| true);
        evaluator
    }

    /// The squared norm of the output's error, summed over tokens, if all contributions for which
    /// `dropped` returns `true` are skipped.
    fn squared_error(&self, dropped: impl Fn(usize, &Contribution) -> bool + Sync) -> f64 {
        let n = self.seen.n_tokens();
        let chunk = |first: usize| self.squared_error_of(first..n.min(first + BATCH), &dropped);
        // Added in order, so that the sum does not depend on the threads.
        let starts: Vec<usize> = (0..n).step_by(BATCH).collect();
        let sizes: Vec<f64> = starts.into_par_iter().map(chunk).collect();
        sizes.iter().sum()
    }

    fn squared_error_of(
        &self,
        tokens: Range<usize>,
        dropped: &impl Fn(usize, &Contribution) -> bool,
    ) -> f64 {
        let parts =
            |t: usize| self.seen.contributions(t).iter().filter(move |part| dropped(t, part));
        let n_dropped: usize = tokens.clone().map(|t| parts(t).count()).sum();
        let n_embd = self.down.n_cols;
        let mut sums = DenseMatrix::new(tokens.len(), n_embd);
        if n_dropped * DENSE_DIVISOR > tokens.len() * self.seen.n_ff() {
            let mut h = DenseMatrix::new(tokens.len(), self.seen.n_ff());
            for (t, row) in tokens.zip(h.values.chunks_exact_mut(self.seen.n_ff())) {
                parts(t).for_each(|part| row[part.neuron as usize] = part.h);
            }
            sums = h.times(self.columns.get_or_init(|| self.down.transposed()));
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

    fn error(&self, dropped: impl Fn(usize, &Contribution) -> bool + Sync) -> f64 {
        if self.size > 0.0 { (self.squared_error(dropped) / self.size).sqrt() } else { 0.0 }
    }

    /// For each of the ascending `thresholds`, the relative error if all contributions with a
    /// smaller `value` are skipped. Each token's contributions are visited once, in the order of
    /// their values.
    fn errors(
        &self,
        value: &(impl Fn(usize, &Contribution) -> f32 + Sync),
        thresholds: &[f32],
    ) -> Vec<f64> {
        let n = self.seen.n_tokens();
        let chunk = |first: usize| {
            let (mut sizes, mut sum) =
                (vec![0.0f64; thresholds.len()], vec![0.0; self.down.n_cols]);
            for t in first..n.min(first + BATCH) {
                let parts = self.seen.contributions(t).iter();
                let mut order: Vec<(f32, &Contribution)> =
                    parts.map(|part| (value(t, part), part)).collect();
                order.sort_by(|a, b| a.0.total_cmp(&b.0));
                sum.fill(0.0);
                let (mut order, mut size) = (order.into_iter().peekable(), 0.0);
                for (threshold, total) in thresholds.iter().zip(&mut sizes) {
                    let mut more = false;
                    while let Some((_, part)) = order.next_if(|(value, _)| value < threshold) {
                        let row = self.down.row(part.neuron as usize);
                        sum.iter_mut().zip(row).for_each(|(sum, d)| *sum += part.h * d);
                        more = true;
                    }
                    if more {
                        size = sum.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
                    }
                    *total += size;
                }
            }
            sizes
        };
        // Added in order, so that the sum does not depend on the threads.
        let starts: Vec<usize> = (0..n).step_by(BATCH).collect();
        let chunks: Vec<Vec<f64>> = starts.into_par_iter().map(chunk).collect();
        let total = |i: usize| chunks.iter().map(|sizes| sizes[i]).sum::<f64>();
        let error = |size: f64| if self.size > 0.0 { (size / self.size).sqrt() } else { 0.0 };
        (0..thresholds.len()).map(|i| error(total(i))).collect()
    }

    /// For each target error, the largest threshold on the contributions' `value`, up to `top`, for
    /// which the error of all tried thresholds up to it is within the target.
    pub(super) fn search(
        &self,
        value: impl Fn(usize, &Contribution) -> f32 + Sync,
        top: f32,
        targets: &[f32],
    ) -> Vec<f32> {
        let parts = (0..self.seen.n_tokens())
            .flat_map(|t| self.seen.contributions(t).iter().map(move |part| (t, part)));
        let mut values: Vec<f32> = parts.map(|(t, part)| value(t, part)).collect();
        values.sort_by(f32::total_cmp);
        let last = values.len().saturating_sub(1);
        let at = |i: usize| values.get(i.min(last)).copied().unwrap_or(top).min(top);
        let place = |i: usize| i * last / INTERVALS;
        let mut thresholds: Vec<f32> = (0..=INTERVALS).map(|i| at(place(i))).chain([top]).collect();
        let errors = self.errors(&value, &thresholds);
        let within = |errors: &[f64], target: f32| {
            let beyond = errors.iter().position(|error| *error > f64::from(target));
            beyond.unwrap_or(errors.len()).saturating_sub(1)
        };
        let mut finer = thresholds.clone();
        for found in targets.iter().map(|&target| within(&errors, target).min(INTERVALS)) {
            let (from, to) = (place(found), place((found + 1).min(INTERVALS)));
            finer.extend((1..INTERVALS).map(|i| at(from + i * (to - from) / INTERVALS)));
        }
        finer.sort_by(f32::total_cmp);
        finer.dedup();
        thresholds = finer;
        let errors = self.errors(&value, &thresholds);
        targets.iter().map(|&target| thresholds[within(&errors, target)]).collect()
    }

    /// Cost of skipping neurons with scores below `threshold`; `scores` `[n_tokens, n_ff]`.
    #[must_use]
    pub(super) fn by_scores(&self, scores: &DenseMatrix, threshold: f32) -> Evaluation {
        let dropped =
            |t: usize, part: &Contribution| scores.row(t)[part.neuron as usize] < threshold;
        let listed = scores.values.iter().filter(|score| **score >= threshold).count();
        self.evaluation(listed as f64, dropped)
    }

    /// Cost of skipping contributions whose activation is below `cut / weight` of their neuron.
    #[must_use]
    pub(super) fn by_activation(&self, weights: &[f32], cut: f32) -> Evaluation {
        let dropped = |_: usize, part: &Contribution| part.act < row_threshold(weights, part, cut);
        let tokens = 0..self.seen.n_tokens();
        let kept = |t| self.seen.contributions(t).iter().filter(|part| !dropped(t, part)).count();
        self.evaluation(tokens.map(kept).sum::<usize>() as f64, dropped)
    }

    fn evaluation(
        &self,
        listed: f64,
        dropped: impl Fn(usize, &Contribution) -> bool + Sync,
    ) -> Evaluation {
        let (mut found, mut total) = ([0.0; 2], [0.0; 2]);
        for t in 0..self.seen.n_tokens() {
            for part in self.seen.contributions(t) {
                let length = f64::from(part.h.abs()) * self.lengths[part.neuron as usize];
                let kept = if dropped(t, part) { 0.0 } else { 1.0 };
                found = [found[0] + kept, found[1] + kept * length];
                total = [total[0] + 1.0, total[1] + length];
            }
        }
        let share = |i: usize| if total[i] > 0.0 { found[i] / total[i] } else { 1.0 };
        Evaluation {
            error: self.error(dropped),
            listed: listed / self.seen.n_computed().max(1) as f64,
            recall: share(0),
            weighted_recall: share(1),
        }
    }

    /// For each target error, the largest threshold on `scores` that was found to stay within the
    /// target.
    #[must_use]
    pub(super) fn thresholds(&self, scores: &DenseMatrix, targets: &[f32]) -> Vec<f32> {
        let highest = scores.values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        self.search(|t, part| scores.row(t)[part.neuron as usize], highest, targets)
    }

    /// Thresholds on `scores` for all of [`ERRORS`], each with its evaluation.
    #[must_use]
    pub(super) fn curve(&self, scores: &DenseMatrix) -> Curve {
        let thresholds = self.thresholds(scores, &ERRORS);
        let evaluations =
            thresholds.iter().map(|&threshold| self.by_scores(scores, threshold)).collect();
        Curve { thresholds, evaluations }
    }

    /// Weight of a neuron's activation: the norm of its row of down times the typical magnitude of
    /// the factor on the activation, `[n_ff]`. For a neuron that never contributed, such as those
    /// of an expert that the text did not use, the factor is typical of the others. A neuron
    /// without any effect gets the smallest weight of the others.
    #[must_use]
    pub(super) fn weights(&self) -> Vec<f32> {
        let mut acts = vec![0.0f64; self.seen.n_ff()];
        for part in (0..self.seen.n_tokens()).flat_map(|t| self.seen.contributions(t)) {
            acts[part.neuron as usize] += f64::from(part.act) * f64::from(part.act);
        }
        let energies = self.seen.energies();
        let typical = energies.iter().sum::<f64>() / acts.iter().sum::<f64>();
        let weight = |n: usize| {
            let factor = if acts[n] > 0.0 { energies[n] / acts[n] } else { typical };
            self.lengths[n] * factor.sqrt()
        };
        let mut weights: Vec<f32> = (0..acts.len()).map(|n| weight(n) as f32).collect();
        let counts = |w: &&f32| w.is_finite() && **w > 0.0;
        let least = weights.iter().filter(counts).copied().fold(f32::INFINITY, f32::min);
        let least = if least.is_finite() { least } else { 1.0 };
        weights.iter_mut().filter(|w| !counts(&&**w)).for_each(|w| *w = least);
        weights
    }

    /// Cuts on weighted activations for all of [`ERRORS`], each with its evaluation.
    #[must_use]
    pub(super) fn activation_curve(&self, weights: &[f32]) -> Curve {
        // The cuts are slightly reduced, so that a contribution at a cut stays above it after
        // rounding.
        let weighted = |_: usize, part: &Contribution| part.act * weights[part.neuron as usize];
        let parts = (0..self.seen.n_tokens()).flat_map(|t| self.seen.contributions(t));
        let highest = parts.map(|part| weighted(0, part)).fold(0.0, f32::max);
        let thresholds = self.search(weighted, highest, &ERRORS);
        let thresholds: Vec<f32> =
            thresholds.into_iter().map(|threshold| threshold * (1.0 - 1e-6)).collect();
        let evaluations = thresholds.iter().map(|&cut| self.by_activation(weights, cut)).collect();
        Curve { thresholds, evaluations }
    }
}

/// The threshold on a neuron's activation, computed as in the engine.
fn row_threshold(weights: &[f32], part: &Contribution, cut: f32) -> f32 {
    cut / weights[part.neuron as usize]
}

#[cfg(test)]
mod tests {
    use hal::op::{Activation, FfnKind};
    use proptest::prelude::*;

    use super::*;

    fn seen(gates: &[f32], ups: &[f32], n_ff: usize) -> Observations {
        let mut seen = Observations::new(FfnKind::Gated, Activation::Relu, 1, n_ff);
        for (gates, ups) in gates.chunks_exact(n_ff).zip(ups.chunks_exact(n_ff)) {
            seen.push(&[1.0], Some(gates), ups, None);
        }
        seen
    }

    fn values(n: usize) -> impl Strategy<Value = Vec<f32>> {
        proptest::collection::vec(-1.0f32..1.0, n)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn thresholds_stay_within_their_errors(gates in values(80), ups in values(80), down in values(20), noise in values(80)) {
            let seen = seen(&gates, &ups, 10);
            let down = DenseMatrix { n_rows: 10, n_cols: 2, values: down };
            let evaluator = Evaluator::new(&seen, &down);
            let scores = gates.iter().zip(&noise).map(|(g, n)| g + 0.3 * n).collect();
            let scores = DenseMatrix { n_rows: 8, n_cols: 10, values: scores };
            let curve = evaluator.curve(&scores);
            let cuts = evaluator.activation_curve(&evaluator.weights());
            for curve in [&curve, &cuts] {
                prop_assert!(curve.thresholds.windows(2).all(|pair| pair[0] <= pair[1]));
                for (evaluation, target) in curve.evaluations.iter().zip(ERRORS) {
                    prop_assert!(evaluation.error <= f64::from(target) + 1e-6, "{evaluation:?} {target}");
                    prop_assert!((0.0..=1.0).contains(&evaluation.weighted_recall));
                }
            }
            // The error is 0 if all neurons are used, and 1 if no neuron is used.
            let all = evaluator.by_scores(&scores, f32::NEG_INFINITY);
            prop_assert_eq!((all.error, all.listed, all.recall), (0.0, 1.0, 1.0));
            let none = evaluator.by_scores(&scores, f32::INFINITY);
            prop_assert!(none.listed == 0.0 && (evaluator.size == 0.0 || (none.error - 1.0).abs() < 1e-6));
        }
    }

    #[test]
    fn errors_are_relative_to_the_output() {
        // The two contributions have norms 3 and 4 and are orthogonal, so the output has norm 5.
        // Skipping the first gives an error of 3 / 5.
        let seen = seen(&[1.0, 1.0], &[3.0, 4.0], 2);
        let down = DenseMatrix { n_rows: 2, n_cols: 2, values: vec![1.0, 0.0, 0.0, 1.0] };
        let evaluator = Evaluator::new(&seen, &down);
        let scores = DenseMatrix { n_rows: 1, n_cols: 2, values: vec![0.0, 1.0] };
        let evaluation = evaluator.by_scores(&scores, 0.5);
        assert!((evaluation.error - 0.6).abs() < 1e-6);
        assert_eq!((evaluation.listed, evaluation.recall), (0.5, 0.5));
        assert!((evaluation.weighted_recall - 4.0 / 7.0).abs() < 1e-6);
        assert_eq!(evaluator.weights(), [3.0, 4.0]);
    }

    #[test]
    fn thresholds_are_interpolated_between_errors() {
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
