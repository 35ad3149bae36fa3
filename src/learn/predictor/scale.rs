//! Scales a predictor's scores by the residual error of each neuron.
//!
//! Given its score `s`, a neuron's test value is about `slope * s + mean`, with a standard
//! deviation per neuron. The expected loss of skipping the neuron is then `weight^2 * E[max(slope *
//! s + mean + deviation * e, 0)^2]` for a normal `e`, and the best list of a given length contains
//! the neurons with the largest loss. Rows of the second factor are therefore multiplied by the
//! slope (below 1 if rounding made the scores too large) and divided by the deviation, and a bias
//! makes a score of 0 mean the same loss for all neurons.

use super::matrix::DenseMatrix;
use super::observations::Observations;

/// Largest distance from 0, in standard deviations, that [`inverse`] returns.
const MAX_Z: f64 = 12.0;

/// Distribution of a neuron's test value given its score.
#[derive(Clone, Debug)]
pub(super) struct ScoreDistribution {
    /// `[n_ff]`
    slope: Vec<f64>,
    /// `[n_ff]`
    mean: Vec<f64>,
    /// `[n_ff]`, above 0.
    deviation: Vec<f64>,
}

impl ScoreDistribution {
    /// Estimates the distribution from test values `tests` and their `scores`, both `[n_tokens,
    /// n_ff]`.
    pub(super) fn new(tests: &DenseMatrix, scores: &DenseMatrix) -> ScoreDistribution {
        let (n_ff, n) = (tests.n_cols, tests.n_rows.max(1) as f64);
        let mut sums = vec![[0.0f64; 5]; n_ff];
        for (tests, scores) in tests.values.chunks_exact(n_ff).zip(scores.values.chunks_exact(n_ff))
        {
            for (sums, (&test, &score)) in sums.iter_mut().zip(tests.iter().zip(scores)) {
                let (test, score) = (f64::from(test), f64::from(score));
                let terms = [test, score, test * test, score * score, test * score];
                sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
            }
        }
        let (mut slope, mut mean, mut deviation) = (Vec::new(), Vec::new(), Vec::new());
        for sums in sums {
            let [test, score, tests, scores, both] = sums.map(|sum| sum / n);
            let (of_score, of_both) = (scores - score * score, both - test * score);
            let fit = of_both / of_score;
            // Scores without positive correlation keep their scale.
            let fit = if fit.is_finite() && fit > 0.0 { fit } else { 1.0 };
            let rest = (tests - test * test) - 2.0 * fit * of_both + fit * fit * of_score;
            slope.push(fit);
            mean.push(test - fit * score);
            deviation.push(rest.max(0.0).sqrt());
        }
        // A minimum deviation, since no neuron is known exactly.
        let average = deviation.iter().sum::<f64>() / n_ff.max(1) as f64;
        let least = (average * 0.05).max(1e-9);
        deviation.iter_mut().for_each(|d| *d = d.max(least));
        ScoreDistribution { slope, mean, deviation }
    }

    /// Multiplies the rows of the second factor by the slopes and divides them by the deviations.
    pub(super) fn scale(&self, fc2: &DenseMatrix) -> DenseMatrix {
        let mut to = fc2.clone();
        let factors = self.slope.iter().zip(&self.deviation).map(|(slope, d)| slope / d);
        let rows = to.values.chunks_exact_mut(fc2.n_cols.max(1)).zip(factors);
        rows.for_each(|(row, by)| row.iter_mut().for_each(|v| *v = (f64::from(*v) * by) as f32));
        to
    }

    /// Expected loss of skipping neuron `n` with this `weight` at a scaled `score`.
    pub(super) fn loss(&self, n: usize, score: f32, weight: f64) -> f64 {
        let z = f64::from(score) + self.mean[n] / self.deviation[n];
        (weight * self.deviation[n]).powi(2) * expected_square(z)
    }

    /// Biases of scaled scores: a neuron whose score plus bias is 0 costs `loss` if it is skipped.
    pub(super) fn bias(&self, weights: &[f64], loss: f64) -> Vec<f32> {
        let terms = self.mean.iter().zip(&self.deviation).zip(weights);
        terms
            .map(|((mean, deviation), weight)| {
                let line = inverse(loss / (weight * weight * deviation * deviation));
                (mean / deviation - line) as f32
            })
            .collect()
    }
}

/// Effect of a unit of each neuron's test value on the output, `[n_ff]`: the root mean square of
/// the neuron's contributions, divided by that of its activations. A neuron that never contributed
/// gets the mean weight of the others.
pub(super) fn weights(seen: &Observations, down: &DenseMatrix) -> Vec<f64> {
    let (mut tests, mut gains) = (vec![0.0f64; seen.n_ff()], seen.energies());
    for part in (0..seen.n_tokens()).flat_map(|t| seen.contributions(t)) {
        tests[part.neuron as usize] += f64::from(part.act) * f64::from(part.act);
    }
    for (n, gain) in gains.iter_mut().enumerate() {
        let length: f64 = down.row(n).iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
        *gain = (*gain / tests[n] * length).sqrt();
    }
    let known: Vec<f64> = gains.iter().copied().filter(|g| g.is_finite() && *g > 0.0).collect();
    let mean = known.iter().sum::<f64>() / known.len().max(1) as f64;
    let mean = if mean > 0.0 { mean } else { 1.0 };
    let is_valid = |g: f64| g.is_finite() && g > 0.0;
    gains.iter_mut().for_each(|g| *g = if is_valid(*g) { *g } else { mean });
    gains
}

/// `E[max(z + e, 0)^2]` for a normal `e`.
fn expected_square(z: f64) -> f64 {
    let density = (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let below = 0.5 * libm::erfc(-z / std::f64::consts::SQRT_2);
    ((z * z + 1.0) * below + z * density).max(0.0)
}

/// Inverse of [`expected_square`], within [`MAX_Z`].
fn inverse(value: f64) -> f64 {
    let (mut low, mut high) = (-MAX_Z, MAX_Z);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if expected_square(middle) < value { low = middle } else { high = middle }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_matches_integration_and_its_inverse() {
        assert!((expected_square(0.0) - 0.5).abs() < 1e-12);
        // For large z the expectation is z^2 + 1.
        assert!((expected_square(9.0) - 82.0).abs() < 1e-9);
        let sum = |z: f64| {
            let step = 1e-3;
            let grid = (-10_000..10_000).map(|i| f64::from(i) * step);
            grid.map(|e| (z + e).max(0.0).powi(2) * (-0.5 * e * e).exp() * step).sum::<f64>()
                / (2.0 * std::f64::consts::PI).sqrt()
        };
        for z in [-3.0, -1.0, 0.3, 2.0] {
            assert!((expected_square(z) / sum(z) - 1.0).abs() < 1e-4, "{z}");
            assert!((inverse(expected_square(z)) - z).abs() < 1e-6, "{z}");
        }
        assert!(inverse(0.0) <= -8.0 && inverse(1e9) >= MAX_Z - 1e-6);
    }

    #[test]
    fn larger_weight_or_deviation_raises_the_bias() {
        let tests =
            DenseMatrix { n_rows: 2, n_cols: 3, values: vec![1.0, 1.0, 4.0, -1.0, -1.0, -4.0] };
        let scores = DenseMatrix::new(2, 3);
        let spread = ScoreDistribution::new(&tests, &scores);
        assert_eq!(spread.deviation, [1.0, 1.0, 4.0]);
        let bias = spread.bias(&[1.0, 2.0, 1.0], 0.1);
        // At the threshold, where score plus bias is 0, skipping each neuron costs 0.1.
        for (n, weight) in [(0, 1.0), (1, 2.0), (2, 1.0)] {
            assert!((spread.loss(n, -bias[n], weight) / 0.1 - 1.0).abs() < 1e-4);
        }
        assert!(bias[1] > bias[0] && bias[2] > bias[0], "{bias:?}");
        let scaled = spread.scale(&DenseMatrix { n_rows: 3, n_cols: 1, values: vec![2.0; 3] });
        assert_eq!(scaled.values, [2.0, 2.0, 0.5]);
    }

    #[test]
    fn scores_are_multiplied_by_the_slope() {
        // test = score / 2 + 1, plus or minus 0.1.
        let scores = DenseMatrix { n_rows: 4, n_cols: 1, values: vec![-2.0, -2.0, 2.0, 2.0] };
        let tests = DenseMatrix { n_rows: 4, n_cols: 1, values: vec![-0.1, 0.1, 1.9, 2.1] };
        let spread = ScoreDistribution::new(&tests, &scores);
        let near =
            |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-6, "{found}");
        near(spread.slope[0], 0.5);
        near(spread.mean[0], 1.0);
        near(spread.deviation[0], 0.1);
        let scaled = spread.scale(&DenseMatrix { n_rows: 1, n_cols: 1, values: vec![3.0] });
        near(f64::from(scaled.values[0]), 15.0);
    }
}
