//! XTC: excludes top choices.

use super::candidates::Candidates;

/// The settings of XTC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Xtc {
    pub(super) probability: f32,
    pub(super) threshold: f32,
    pub(super) min_keep: usize,
}

impl Candidates {
    /// If the random number `chance` is at most `probability`, drops the tokens whose probability
    /// reaches the threshold, except the least likely of them. Drops none if fewer than `min_keep`
    /// would stay, or if the threshold is above 0.5.
    ///
    /// Source: p-e-w, Exclude Top Choices, and llama.cpp.
    pub(super) fn xtc(&mut self, settings: &Xtc, chance: f64) {
        let Xtc { probability, threshold, min_keep } = *settings;
        let is_off = probability <= 0.0 || threshold > 0.5 || self.list.len() < 2;
        #[allow(clippy::cast_possible_truncation)] // llama.cpp draws in single precision
        let chance = chance as f32;
        if is_off || chance > probability {
            return;
        }
        self.sort();
        self.softmax();
        let n_top = self.probs.iter().take_while(|p| **p >= threshold).count();
        let n_dropped = n_top.saturating_sub(1);
        if self.list.len() - n_dropped >= min_keep {
            self.list.drain(..n_dropped);
        }
    }
}
