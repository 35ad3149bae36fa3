//! Top-n-sigma: a threshold on the logits.

use super::candidates::Candidates;

impl Candidates {
    /// Bans tokens more than `n` standard deviations below the highest logit. They stay in the list
    /// without probability, as in llama.cpp, whose dynamic temperature counts them.
    ///
    /// Source: Tang et al., Top-nσ: Not All Logits Are You Need.
    pub(super) fn top_n_sigma(&mut self, n: f32) {
        if n <= 0.0 || self.list.len() <= 1 {
            return;
        }
        let logits = || self.list.iter().map(|c| c.logit).filter(|l| *l != f32::NEG_INFINITY);
        #[allow(clippy::cast_precision_loss)] // exact below 2^24 tokens
        let count = logits().count().max(1) as f32;
        let mean = logits().sum::<f32>() / count;
        #[allow(clippy::cast_possible_truncation)] // llama.cpp rounds each partial sum
        let squares = logits()
            .fold(0.0f32, |sum, logit| (f64::from(sum) + f64::from(logit - mean).powi(2)) as f32);
        let least = self.max_logit() - n * (squares / count).sqrt();
        self.list.iter_mut().filter(|c| c.logit < least).for_each(|c| c.logit = f32::NEG_INFINITY);
    }
}
