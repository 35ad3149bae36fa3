//! Statistics over predicted tokens, in 64 bits.

/// A mean and its standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mean {
    n: u64,
    sum: f64,
    squares: f64,
}

impl Mean {
    pub(super) fn add(&mut self, value: f64) {
        self.n += 1;
        self.sum += value;
        self.squares += value * value;
    }

    /// Number of values.
    #[must_use]
    pub fn n(&self) -> u64 {
        self.n
    }

    /// The mean; 0 without values.
    #[must_use]
    pub fn value(&self) -> f64 {
        if self.n == 0 { 0.0 } else { self.sum / self.n as f64 }
    }

    /// The standard error of the mean; 0 for fewer than two values.
    #[must_use]
    pub fn error(&self) -> f64 {
        if self.n < 2 {
            return 0.0;
        }
        let variance = self.squares / self.n as f64 - self.value() * self.value();
        (variance.max(0.0) / (self.n - 1) as f64).sqrt()
    }
}

/// Perplexity: exp of the mean negative log-likelihood.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Perplexity {
    /// Negative log-likelihood of each token of the text, in nats.
    pub nll: Mean,
}

impl Perplexity {
    /// Adds a token of the text, `token`, which the model predicted with `logits`.
    ///
    /// # Panics
    /// If `token` is out of bounds of `logits`.
    pub fn add(&mut self, logits: &[f32], token: u32) {
        self.nll.add(log_sum_exp(logits) - f64::from(logits[token as usize]));
    }

    /// The perplexity.
    #[must_use]
    pub fn value(&self) -> f64 {
        self.nll.value().exp()
    }

    /// The standard error of the perplexity.
    #[must_use]
    pub fn error(&self) -> f64 {
        self.value() * self.nll.error()
    }
}

/// The reference distribution of a token.
#[derive(Clone, Copy, Debug)]
pub enum Reference<'a> {
    /// Logits of another run.
    Logits(&'a [f32]),
    /// Log probabilities from a file, of which low values are clamped.
    LogProbs(&'a [f32]),
}

/// Log probabilities from a file that are not above this may be clamped, so they are ignored, as in
/// llama.cpp.
const FLOOR: f64 = -16.0;

/// Differences between a run and a reference.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Perplexity of the run.
    pub perplexity: Perplexity,
    /// Perplexity of the reference.
    pub reference: Perplexity,
    /// Kullback-Leibler divergence of the run from the reference, nats per token.
    pub divergence: Mean,
    /// The largest divergence of one token.
    pub max_divergence: f64,
    /// Number of tokens with the same most likely prediction in both.
    pub n_same_top: u64,
}

impl Comparison {
    /// Adds a token of the text, `token`, which the run predicted with `logits` and the other run
    /// with `reference`, of the same length.
    ///
    /// # Panics
    /// If `token` is out of bounds of either.
    pub fn add(&mut self, reference: Reference<'_>, logits: &[f32], token: u32) {
        let (base, total, floor) = match reference {
            Reference::Logits(base) => (base, log_sum_exp(base), f64::NEG_INFINITY),
            Reference::LogProbs(base) => (base, 0.0, FLOOR),
        };
        let mine = log_sum_exp(logits);
        self.perplexity.nll.add(mine - f64::from(logits[token as usize]));
        self.reference.nll.add(total - f64::from(base[token as usize]));
        let mut divergence = 0.0;
        for (&p, &q) in base.iter().zip(logits) {
            let p = f64::from(p) - total;
            if p > floor {
                divergence += p.exp() * (p - (f64::from(q) - mine));
            }
        }
        self.divergence.add(divergence);
        self.max_divergence = self.max_divergence.max(divergence);
        self.n_same_top += u64::from(top(base) == top(logits));
    }

    /// Fraction of tokens with the same most likely prediction in both, 0 to 1.
    #[must_use]
    pub fn same_top(&self) -> f64 {
        self.n_same_top as f64 / self.divergence.n().max(1) as f64
    }
}

/// The logarithm of the softmax denominator.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    max + logits.iter().map(|&l| (f64::from(l) - max).exp()).sum::<f64>().ln()
}

/// The index of the largest value, the first of equal values; `None` for an empty list.
fn top(values: &[f32]) -> Option<usize> {
    let first = |best: Option<usize>, (i, &v): (usize, &f32)| match best {
        Some(b) if values[b] >= v => Some(b),
        Some(_) | None => Some(i),
    };
    values.iter().enumerate().fold(None, first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uniform_prediction_has_the_vocabulary_as_perplexity() {
        let mut perplexity = Perplexity::default();
        for token in 0..50 {
            perplexity.add(&[700.0; 50], token);
        }
        assert!((perplexity.value() - 50.0).abs() < 1e-9);
        assert!(perplexity.error() < 1e-6);
    }

    #[test]
    fn means_and_standard_errors_are_exact() {
        let mut mean = Mean::default();
        assert_eq!((mean.value(), mean.error()), (0.0, 0.0));
        for value in [1.0, 2.0, 3.0, 6.0] {
            mean.add(value);
        }
        // Variance 3.5 over 4 values.
        assert_eq!((mean.value(), mean.error()), (3.0, (3.5f64 / 3.0).sqrt()));
    }

    #[test]
    fn divergence_matches_its_formula() {
        let (p, q) = (0.25f64, 0.5f64);
        let logits = |p: f64| [p.ln() as f32 + 3.0, (1.0 - p).ln() as f32 + 3.0];
        let mut comparison = Comparison::default();
        comparison.add(Reference::Logits(&logits(p)), &logits(q), 0);
        let expected = p * (p / q).ln() + (1.0 - p) * ((1.0 - p) / (1.0 - q)).ln();
        assert!((comparison.divergence.value() - expected).abs() < 1e-6);
        assert_eq!(comparison.max_divergence, comparison.divergence.value());
        assert_eq!(comparison.n_same_top, 0);
        assert!((comparison.reference.value() - 4.0).abs() < 1e-5);
        assert!((comparison.perplexity.value() - 2.0).abs() < 1e-5);
        let logs = [p.ln() as f32, (1.0 - p).ln() as f32];
        let mut from_file = Comparison::default();
        from_file.add(Reference::LogProbs(&logs), &logits(q), 0);
        assert!((from_file.divergence.value() - expected).abs() < 1e-6);
    }

    #[test]
    fn a_run_has_no_divergence_from_itself() {
        let logits = [0.3f32, -4.0, f32::NEG_INFINITY, 11.0, 2.5];
        let mut comparison = Comparison::default();
        comparison.add(Reference::Logits(&logits), &logits, 3);
        assert_eq!((comparison.divergence.value(), comparison.same_top()), (0.0, 1.0));
    }
}
