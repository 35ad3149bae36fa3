//! Mirostat: chooses tokens so that their surprise stays near a target.

use super::candidates::Candidates;
use super::config::{self, SamplerConfig};

/// Number of the most likely tokens that version 1 estimates the distribution from.
const N_ESTIMATE: usize = 100;

/// Mirostat's state. Surprises are in bits.
///
/// Source: Basu et al., Mirostat, and llama.cpp.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mirostat {
    is_first_version: bool,
    tau: f32,
    eta: f32,
    /// The current limit of the surprise.
    mu: f32,
}

impl Mirostat {
    /// `None` if it is off.
    pub(super) fn new(config: &SamplerConfig) -> Option<Mirostat> {
        let is_first_version = config.mirostat == config::Mirostat::V1;
        let (tau, eta) = (config.mirostat_tau, config.mirostat_eta);
        let mirostat = Mirostat { is_first_version, tau, eta, mu: 2.0 * tau };
        (config.mirostat != config::Mirostat::Off).then_some(mirostat)
    }

    /// Draws a token with the random number `u`, and adjusts the limit by its surprise. Returns the
    /// token's index, or `None` as for [`Candidates::draw`].
    pub(super) fn choose(
        &mut self,
        list: &mut Candidates,
        n_vocab: usize,
        u: f64,
    ) -> Option<usize> {
        list.sort();
        list.softmax();
        let n = if self.is_first_version {
            self.estimated_count(&list.probs, n_vocab)
        } else {
            let mu = self.mu;
            let n = list.probs.iter().position(|p| -p.log2() > mu);
            n.unwrap_or(list.probs.len())
        };
        list.list.truncate(n.max(1));
        list.softmax();
        let at = list.draw(u)?;
        let surprise = -list.probs[at].log2();
        self.mu -= self.eta * (surprise - self.tau);
        Some(at)
    }

    /// The number of tokens whose surprise is within the limit if the probabilities, which
    /// descend, follow Zipf's law.
    fn estimated_count(&self, probs: &[f32], n_vocab: usize) -> usize {
        // Banned tokens do not follow the law.
        let n = probs.iter().take(N_ESTIMATE).take_while(|p| **p > 0.0).count();
        let (mut products, mut squares) = (0.0f32, 0.0f32);
        for (i, pair) in (1u16..).zip(probs[..n].windows(2)) {
            let rank = (f32::from(i + 1) / f32::from(i)).ln();
            products += rank * (pair[0] / pair[1]).ln();
            squares += rank * rank;
        }
        let exponent = products / squares;
        let excess = exponent - 1.0;
        #[allow(clippy::cast_precision_loss)] // exact below 2^24 tokens
        let tail = 1.0 - (n_vocab as f32).powf(-excess);
        let count = (excess * self.mu.exp2() / tail).powf(1.0 / exponent);
        // NaN, for a single token, becomes 0.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let count = count as usize;
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_follows_the_surprise() {
        for mirostat in [config::Mirostat::V1, config::Mirostat::V2] {
            let config = SamplerConfig { mirostat, mirostat_tau: 1.0, ..SamplerConfig::default() };
            let mut state = Mirostat::new(&config).unwrap();
            let mut list = Candidates::default();
            list.fill(&[0.25f32, 0.5, 0.125, 0.125].map(f32::ln));
            let at = state.choose(&mut list, 4, 0.999).unwrap();
            let surprise = -list.probs[at].log2();
            assert!((state.mu - (2.0 - 0.1 * (surprise - 1.0))).abs() < 1e-6, "{state:?}");
            assert!(mirostat == config::Mirostat::V1 || list.list.len() == 2, "2 bits: {list:?}");
            list.fill(&[0.0]);
            assert_eq!(state.choose(&mut list, 1, 0.5), Some(0), "{mirostat:?}");
        }
        assert!(Mirostat::new(&SamplerConfig::default()).is_none());
    }
}
