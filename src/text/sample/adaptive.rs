//! Adaptive-p: prefers tokens near a target probability.

use super::candidates::Candidates;
use super::config::SamplerConfig;
use super::stage::Stage;

/// Distance from the target at which the fall of a logit changes from quadratic to linear.
const WIDTH: f32 = 0.3;
/// Logit of a token with the target probability.
const PEAK: f32 = 5.0;
/// How far a logit falls per [`WIDTH`] of distance, far from the target.
const SHARPNESS: f32 = 10.0;

/// The target, and a weighted average of the probabilities of the chosen tokens.
///
/// Source: llama.cpp's pull request 17927.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdaptiveP {
    target: f32,
    decay: f32,
    weighted_sum: f32,
    total_weight: f32,
    /// The latest choice and its probability before the change, until a token is accepted.
    pending: Option<(u32, f32)>,
}

impl AdaptiveP {
    /// `None` if it is off.
    pub(super) fn new(config: &SamplerConfig) -> Option<AdaptiveP> {
        let (target, decay) = (config.adaptive_target, config.adaptive_decay);
        let is_on = target >= 0.0 && config.chain.contains(&Stage::AdaptiveP);
        let total_weight = 1.0 / (1.0 - decay);
        let weighted_sum = target / (1.0 - decay);
        is_on.then_some(AdaptiveP { target, decay, weighted_sum, total_weight, pending: None })
    }

    /// Changes the logits and draws a token with the random number `u`. Returns the token's index,
    /// or `None` as for [`Candidates::draw`].
    pub(super) fn choose(&mut self, list: &mut Candidates, u: f64) -> Option<usize> {
        list.softmax();
        let average = self.weighted_sum / self.total_weight;
        let target = (2.0 * self.target - average).clamp(0.0, 1.0);
        for (candidate, p) in list.list.iter_mut().zip(&list.probs) {
            if candidate.logit != f32::NEG_INFINITY {
                let distance = ((p - target) * (1.0 / WIDTH)).abs();
                candidate.logit = PEAK - SHARPNESS * distance * distance / (1.0 + distance);
            }
        }
        let at = list.draw(u)?;
        self.pending = Some((list.list[at].id, list.probs[at]));
        Some(at)
    }

    /// Adds `token` to the average if it is the latest choice.
    pub(super) fn accept(&mut self, token: u32) {
        if let Some((_, p)) = self.pending.take().filter(|(id, _)| *id == token) {
            self.weighted_sum = p + self.decay * self.weighted_sum;
            self.total_weight = 1.0 + self.decay * self.total_weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(state: &mut AdaptiveP) -> u32 {
        let mut list = Candidates::default();
        list.fill(&[0.6f32, 0.3, 0.1].map(f32::ln));
        let at = state.choose(&mut list, 0.5).unwrap();
        list.list[at].id
    }

    #[test]
    fn likely_choices_lower_the_target() {
        let chain = vec![Stage::AdaptiveP];
        let config = SamplerConfig { adaptive_target: 0.5, chain, ..SamplerConfig::default() };
        let mut state = AdaptiveP::new(&config).unwrap();
        assert_eq!(choose(&mut state), 0);
        for _ in 0..9 {
            state.pending = Some((0, 1.0));
            state.accept(0);
        }
        assert!(state.weighted_sum / state.total_weight > 0.7, "{state:?}");
        assert_ne!(choose(&mut state), 0);
        let before = state.weighted_sum;
        state.accept(0);
        assert_eq!((state.weighted_sum, state.pending), (before, None), "another token");
        let off = SamplerConfig { adaptive_target: -1.0, ..config };
        assert!(AdaptiveP::new(&off).is_none());
    }
}
