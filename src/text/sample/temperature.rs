//! Constant and dynamic temperature.

use super::candidates::Candidates;

impl Candidates {
    /// Divides the logits by `temp`. A `temp` of at most 0 keeps only the most likely token; ties
    /// go to the first in the list.
    pub(super) fn temperature(&mut self, temp: f32) {
        if temp > 0.0 {
            self.list.iter_mut().for_each(|c| c.logit /= temp);
            return;
        }
        let best = self.list.iter().copied();
        if let Some(best) = best.reduce(|best, c| if c.logit > best.logit { c } else { best }) {
            self.list.clear();
            self.list.push(best);
        }
    }

    /// Divides the logits by a temperature between `temp - range` (at least 0) and `temp + range`.
    /// It grows with the entropy, relative to the largest possible one, raised to `exponent`. A
    /// `range` of at most 0 is [`Candidates::temperature`].
    pub(super) fn dynamic_temperature(&mut self, temp: f32, range: f32, exponent: f32) {
        if range <= 0.0 {
            self.temperature(temp);
            return;
        }
        if self.list.len() <= 1 {
            return;
        }
        self.sort();
        let (least, most) = ((temp - range).max(0.0), temp + range);
        #[allow(clippy::cast_precision_loss)] // exact below 2^24 tokens
        let greatest_entropy = -(1.0 / self.list.len() as f32).ln();
        let relative = self.entropy() / greatest_entropy;
        let temp = least + (most - least) * relative.powf(exponent);
        // The power is infinite for an entropy of 0 and a negative exponent.
        self.temperature(temp.min(f32::MAX));
    }

    /// Entropy of the candidates in nats. Calls [`Candidates::softmax`].
    pub(super) fn entropy(&mut self) -> f32 {
        self.softmax();
        let terms = self.probs.iter().filter(|p| **p > 0.0).map(|p| p * p.ln());
        0.0 - terms.sum::<f32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaled(logits: &[f32], range: f32, exponent: f32) -> Vec<f32> {
        let mut c = Candidates::default();
        c.fill(logits);
        c.dynamic_temperature(1.0, range, exponent);
        c.list.iter().map(|c| c.logit).collect()
    }

    #[test]
    fn the_dynamic_temperature_follows_the_entropy() {
        assert_eq!(scaled(&[3.0, 3.0], 0.5, 1.0), [2.0, 2.0], "most entropy, 1.5");
        let sure = scaled(&[30.0, 0.0], 0.5, 1.0);
        assert!((sure[0] - 60.0).abs() < 1e-3, "no entropy, 0.5: {sure:?}");
        assert_eq!(scaled(&[0.0, 200.0], 1.0, 1.0), [200.0], "no entropy, 0");
        assert_eq!(scaled(&[4.0, 2.0], 0.0, 1.0), [4.0, 2.0]);
        assert_eq!(scaled(&[0.0, 200.0], 1.0, -1.0).len(), 2);
    }
}
