//! Makes neurons with given firing rates, and a matching predictor.

use rayon::prelude::*;

use super::{
    plan::{Plan, TensorRole},
    random::{Stream, below},
};

/// Exponent of the power law of the firing rates: few neurons fire often, most fire seldom.
const EXPONENT: f64 = 0.85;
/// Largest firing rate of a neuron.
const MAX_RATE: f64 = 0.95;
/// Smallest firing rate of a neuron, as a fraction of the mean rate.
const MIN_RATE: f64 = 0.02;
/// Features per row of gate; a power of four makes the predictor's weights exact in few bits.
const FAN: usize = 16;
/// Standard deviation of the noise in a row of gate, which the predictor does not know. The whole
/// row has the standard deviation 1.
const NOISE: f32 = 0.1;
/// Bias of the predictor towards firing, in standard deviations.
const MARGIN: f32 = 0.15;

/// The thresholds of a layer's neurons, the same in all layers except for their order.
#[derive(Debug)]
pub(super) struct FiringThresholds {
    /// Threshold of a neuron's gate, in standard deviations above the mean.
    thresholds: Vec<f32>,
    /// Mean square of the activations of gates with standard deviation 1.
    pub(super) mean_square: f32,
}

impl FiringThresholds {
    pub(super) fn new(n_ff: usize, density: Option<f64>, relu: bool) -> FiringThresholds {
        let normal = Normal::new();
        let thresholds: Vec<f32> = match density {
            None => vec![0.0; n_ff],
            Some(density) => {
                rates(n_ff, density).iter().map(|rate| normal.quantile(*rate) as f32).collect()
            }
        };
        let square = |&threshold: &f32| normal.mean_square(f64::from(threshold), relu);
        // Without a given density, all thresholds are equal.
        let distinct = if density.is_some() { n_ff } else { 1 };
        let sum: f64 = thresholds[..distinct].par_iter().map(square).sum();
        FiringThresholds { thresholds, mean_square: (sum / distinct as f64) as f32 }
    }
}

/// Firing rates that follow a power law and have the mean `density`.
fn rates(n: usize, density: f64) -> Vec<f64> {
    let law = |scale: f64| -> Vec<f64> {
        let rank = |i: usize| (i as f64 + 0.5) / n as f64;
        let rate = |i| (scale * rank(i).powf(-EXPONENT)).clamp(MIN_RATE * density, MAX_RATE);
        (0..n).map(rate).collect()
    };
    let (mut low, mut high) = (1e-6_f64, 1e3_f64);
    for _ in 0..60 {
        let middle = (low * high).sqrt();
        let mean = law(middle).iter().sum::<f64>() / n as f64;
        if mean < density { low = middle } else { high = middle }
    }
    law(low)
}

/// The normal distribution, discretised.
struct Normal {
    /// Probability of each step.
    steps: Vec<f64>,
}

impl Normal {
    const REACH: f64 = 6.0;
    const WIDTH: f64 = 1.0 / 32.0;

    fn new() -> Normal {
        let n = (2.0 * Normal::REACH / Normal::WIDTH) as usize;
        let density = |z: f64| (-z * z / 2.0).exp() / std::f64::consts::TAU.sqrt();
        Normal { steps: (0..n).map(|i| density(Normal::middle(i)) * Normal::WIDTH).collect() }
    }

    fn middle(i: usize) -> f64 {
        (i as f64 + 0.5) * Normal::WIDTH - Normal::REACH
    }

    /// The value that a normally distributed number exceeds with probability `p`.
    fn quantile(&self, p: f64) -> f64 {
        let mut above = 0.0;
        for (i, step) in self.steps.iter().enumerate().rev() {
            if above + step >= p {
                return Normal::middle(i) + (0.5 - (p - above) / step) * Normal::WIDTH;
            }
            above += step;
        }
        -Normal::REACH
    }

    /// Mean square of the activation of `z - threshold`.
    fn mean_square(&self, threshold: f64, relu: bool) -> f64 {
        let square = |(i, step): (usize, &f64)| {
            let x = Normal::middle(i) - threshold;
            let y = if relu { x.max(0.0) } else { x / (1.0 + (-x).exp()) };
            step * y * y
        };
        self.steps.iter().enumerate().map(square).sum()
    }
}

/// The parameters that determine the firing rates of a layer.
#[derive(Debug)]
pub(super) struct PlantedLayer {
    n_const: usize,
    n_embd: usize,
    /// `[n_features, n_embd]`, standard deviation 1; zero on the constant channels.
    features: Vec<f32>,
    thresholds: Vec<f32>,
    choices: Stream,
    noise: Stream,
    /// Standard deviation of the gate's weights.
    deviation: f32,
    /// Standard deviation of the residual's free channels.
    residual: f32,
}

impl PlantedLayer {
    pub(super) fn new(plan: &Plan<'_>, layer: usize) -> PlantedLayer {
        let n_embd = plan.spec.shape.n_embd;
        let stream = |part: u64| Stream::new(plan.spec.seed, part << 8, layer as u64);
        let mut features = vec![0.0; plan.n_features() * n_embd];
        features.par_chunks_mut(n_embd).enumerate().for_each(|(row, out)| {
            stream(1).fill((row * n_embd) as u64, 1.0, out);
            out[..plan.n_const].fill(0.0);
        });
        let order = stream(2).shuffled(plan.spec.shape.n_ff);
        PlantedLayer {
            n_const: plan.n_const,
            n_embd,
            features,
            thresholds: order.iter().map(|&i| plan.firing.thresholds[i as usize]).collect(),
            choices: stream(3),
            noise: Stream::new(plan.spec.seed, TensorRole::Gate as u64, layer as u64),
            deviation: plan.deviation_ffn(layer),
            residual: plan.ffn_variance(layer).sqrt(),
        }
    }

    fn n_features(&self) -> usize {
        self.features.len() / self.n_embd
    }

    /// The features of a neuron, and their weights.
    fn features_of(&self, neuron: usize) -> impl Iterator<Item = (usize, f32)> {
        let weight = ((1.0 - NOISE * NOISE) / FAN as f32).sqrt();
        (0..FAN).map(move |i| {
            let bits = self.choices.bits((neuron * FAN + i) as u64);
            let sign = if bits & 1 == 0 { weight } else { -weight };
            (below(bits, self.n_features()), sign)
        })
    }

    /// Writes a row of gate, `[n_embd]`, that is 0 on the constant channels. Returns the standard
    /// deviation of its product with the residual times `norm`, the norm's weights.
    fn free_row(&self, neuron: usize, norm: &[f32], out: &mut [f32]) -> f32 {
        let n_const = self.n_const;
        self.noise.fill((neuron * self.n_embd) as u64, NOISE, out);
        out[..n_const].fill(0.0);
        for (feature, weight) in self.features_of(neuron) {
            let feature = &self.features[feature * self.n_embd..][..self.n_embd];
            out.iter_mut().zip(feature).for_each(|(out, x)| *out += weight * x);
        }
        out.iter_mut().for_each(|out| *out *= self.deviation);
        let square: f32 = out.iter().zip(norm).map(|(w, norm)| (w * norm) * (w * norm)).sum();
        square.sqrt() * self.residual
    }

    /// A row of gate, `[n_embd]`.
    pub(super) fn gate(&self, neuron: usize, norm: &[f32], out: &mut [f32]) {
        let deviation = self.free_row(neuron, norm, out);
        out[..self.n_const].fill(-self.thresholds[neuron] * deviation / self.n_const as f32);
    }

    /// A row of the predictor's first matrix, `[n_embd]`: a feature, a negated feature, or the
    /// constant 1.
    pub(super) fn fc1(&self, hidden: usize, norm: &[f32], out: &mut [f32]) {
        let n = self.n_features();
        out.fill(0.0);
        if hidden >= 2 * n {
            out[..self.n_const].fill(1.0 / self.n_const as f32);
            return;
        }
        let sign = if hidden < n { self.deviation } else { -self.deviation };
        let feature = &self.features[hidden % n * self.n_embd..][..self.n_embd];
        for ((out, x), norm) in out.iter_mut().zip(feature).zip(norm) {
            *out = sign * x * norm;
        }
    }

    /// A row of the predictor's second matrix, `[n_hidden]`. `row` is scratch memory for a row of
    /// gate.
    pub(super) fn fc2(&self, neuron: usize, norm: &[f32], row: &mut [f32], out: &mut [f32]) {
        let n = self.n_features();
        let deviation = self.free_row(neuron, norm, row);
        out.fill((MARGIN - self.thresholds[neuron]) * deviation / self.n_const as f32);
        out[..2 * n].fill(0.0);
        for (feature, weight) in self.features_of(neuron) {
            out[feature] += weight;
            out[n + feature] -= weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_the_given_mean() {
        for density in [0.005, 0.1, 0.5, 0.8] {
            let rates = rates(2048, density);
            let mean = rates.iter().sum::<f64>() / 2048.0;
            assert!((mean / density - 1.0).abs() < 1e-3, "{density}: {mean}");
        }
    }

    #[test]
    fn the_normal_distribution_matches_tables() {
        let normal = Normal::new();
        for (p, z) in [(0.5, 0.0), (0.1, 1.281_55), (0.002, 2.878_16), (0.95, -1.644_85)] {
            assert!((normal.quantile(p) - z).abs() < 1e-3, "{p}: {}", normal.quantile(p));
        }
        assert!((normal.mean_square(0.0, true) - 0.5).abs() < 1e-3);
        assert!((normal.mean_square(0.0, false) - 0.3558).abs() < 1e-3);
    }
}
