//! The recent tokens, counted, and the penalties for them.

use super::config::SamplerConfig;
use std::collections::{HashMap, VecDeque};

/// The last `repeat_last_n` tokens and their counts.
#[derive(Clone, Debug)]
pub(super) struct History {
    window: usize,
    recent: VecDeque<u32>,
    counts: HashMap<u32, u32>,
}

impl History {
    /// An empty history. `window` 0 stores nothing; memory grows as needed.
    pub(super) fn new(window: usize) -> Self {
        Self { window, recent: VecDeque::new(), counts: HashMap::new() }
    }

    /// Adds the newest token and drops the token that leaves the window.
    pub(super) fn push(&mut self, token: u32) {
        if self.window == 0 {
            return;
        }
        if self.recent.len() == self.window
            && let Some(oldest) = self.recent.pop_front()
            && let Some(count) = self.counts.get_mut(&oldest)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&oldest);
            }
        }
        self.recent.push_back(token);
        *self.counts.entry(token).or_insert(0) += 1;
    }

    /// The distinct tokens in the window.
    pub(super) fn tokens(&self) -> impl Iterator<Item = u32> {
        self.counts.keys().copied()
    }

    /// The logit of `token` after the penalties for its occurrences in the window.
    ///
    /// Source: llama.cpp's penalties, which are the repeat penalty of the CTRL paper, corrected for
    /// negative logits, and OpenAI's presence and frequency penalties.
    pub(super) fn penalise(&self, token: u32, logit: f32, config: &SamplerConfig) -> f32 {
        let Some(&count) = self.counts.get(&token) else {
            return logit;
        };
        let repeated = if logit <= 0.0 {
            logit * config.repeat_penalty
        } else {
            logit / config.repeat_penalty
        };
        #[allow(clippy::cast_precision_loss)] // exact below 2^24 equal tokens
        let count = count as f32;
        repeated - count * config.frequency_penalty - config.presence_penalty
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_outside_the_window_are_ignored() {
        let config = SamplerConfig { frequency_penalty: 1.0, ..SamplerConfig::default() };
        let mut history = History::new(3);
        for token in [7, 7, 8, 9] {
            history.push(token);
        }
        assert_eq!(history.penalise(7, 0.0, &config), -1.0);
        history.push(9);
        assert_eq!(history.penalise(7, 0.0, &config), 0.0);
        assert_eq!(history.penalise(9, 0.0, &config), -2.0);
    }

    #[test]
    fn a_penalty_lowers_positive_and_negative_logits() {
        let config = SamplerConfig {
            repeat_penalty: 2.0,
            presence_penalty: 0.5,
            ..SamplerConfig::default()
        };
        let mut history = History::new(64);
        history.push(1);
        assert_eq!(history.penalise(1, 4.0, &config), 1.5);
        assert_eq!(history.penalise(1, -4.0, &config), -8.5);
        assert_eq!(history.penalise(2, 4.0, &config), 4.0);
    }
}
