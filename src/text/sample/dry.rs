//! DRY: lowers the logits of tokens that would continue a repeated sequence.

use std::collections::{HashMap, VecDeque};

use super::breakers::Breakers;
use super::candidates::Candidates;
use super::config::SamplerConfig;

/// Natural logarithm of the greatest number in single precision.
const MAX_LOG: f32 = 88.722_84;

/// The tokens that DRY considers, latest first.
///
/// Source: p-e-w, DRY: a modern repetition penalty, and llama.cpp.
#[derive(Clone, Debug)]
pub(super) struct Dry {
    window: usize,
    recent: VecDeque<u32>,
    /// For each token that would continue a repetition, the length of the longest.
    repeated: HashMap<u32, usize>,
}

impl Dry {
    /// `None` if it is off.
    pub(super) fn new(config: &SamplerConfig) -> Option<Dry> {
        let (window, recent) = (config.dry_penalty_last_n, VecDeque::new());
        config.uses_dry().then(|| Dry { window, recent, repeated: HashMap::new() })
    }

    /// Adds the newest token, and drops the token that leaves the window.
    pub(super) fn push(&mut self, token: u32) {
        self.recent.truncate(self.window - 1);
        self.recent.push_front(token);
    }

    /// Lowers the logits of tokens that continue a repetition of at least the allowed length.
    pub(super) fn apply(
        &mut self,
        config: &SamplerConfig,
        breakers: &Breakers,
        candidates: &mut Candidates,
    ) {
        let recent: &[u32] = self.recent.make_contiguous();
        let allowed = config.dry_allowed_length;
        if recent.len() <= allowed {
            return;
        }
        let limit = breakers.n_since(recent);
        if limit < allowed {
            return;
        }
        self.repeated.clear();
        for (at, length) in common_prefixes(recent).into_iter().enumerate().skip(1) {
            let length = length.min(limit);
            let next = recent[at - 1];
            if length >= allowed && !breakers.is_breaker(next) {
                let longest = self.repeated.entry(next).or_default();
                *longest = length.max(*longest);
            }
        }
        let base = config.dry_base;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // positive
        let max_exponent =
            if base > 1.000_001 { (MAX_LOG / base.ln()) as usize } else { usize::MAX };
        let penalty = |length: usize| {
            let exponent = length.saturating_sub(allowed);
            let exponent = if max_exponent > 0 { exponent.min(max_exponent) } else { exponent };
            #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
            let penalty = f64::from(config.dry_multiplier) * f64::from(base).powf(exponent as f64);
            penalty
        };
        candidates.edit(self.repeated.keys().copied(), |token, logit| {
            #[allow(clippy::cast_possible_truncation)] // logits are in single precision
            self.repeated.get(&token).map_or(logit, |length| logit - penalty(*length) as f32)
        });
    }
}

/// For each position but 0, how many tokens from there equal those from the start (Z-algorithm).
fn common_prefixes(tokens: &[u32]) -> Vec<usize> {
    let n = tokens.len();
    let mut lengths = vec![0; n];
    // Start and end of the match that reaches furthest.
    let (mut start, mut end) = (0, 0);
    for at in 1..n {
        let mut length = 0;
        if at < end {
            length = lengths[at - start].min(end - at);
        }
        while at + length < n && tokens[length] == tokens[at + length] {
            length += 1;
        }
        if at + length > end {
            (start, end) = (at, at + length);
        }
        lengths[at] = length;
    }
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_penalty_grows_with_the_repetition() {
        let config = SamplerConfig {
            dry_multiplier: 0.5,
            dry_base: 2.0,
            dry_penalty_last_n: 8,
            ..SamplerConfig::default()
        };
        let penalties = |tokens: &[u32], breakers: &Breakers| {
            let mut dry = Dry::new(&config).unwrap();
            tokens.iter().for_each(|token| dry.push(*token));
            let mut list = Candidates::default();
            list.fill(&[0.0; 6]);
            dry.apply(&config, breakers, &mut list);
            list.list.iter().map(|c| -c.logit).collect::<Vec<f32>>()
        };
        let none = Breakers::default();
        assert_eq!(penalties(&[1, 2, 3, 1, 2], &none), [0.0, 0.0, 0.0, 0.5, 0.0, 0.0]);
        assert_eq!(penalties(&[0, 1, 2, 3, 0, 1, 2], &none), [0.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
        let distant = [1, 2, 3, 4, 0, 0, 0, 0, 1, 2];
        assert_eq!(penalties(&distant, &none)[3], 0.0, "outside the window");
        let mut breakers = Breakers::default();
        breakers.add(1, vec![]);
        assert_eq!(penalties(&[1, 2, 3, 1, 2], &breakers), [0.0; 6]);
        breakers = Breakers::default();
        breakers.add(3, vec![]);
        assert_eq!(penalties(&[1, 2, 3, 1, 2], &breakers), [0.0; 6], "3 is a breaker");
        let off = SamplerConfig { dry_penalty_last_n: 0, ..config.clone() };
        assert!(Dry::new(&off).is_none());
    }

    proptest! {
        #[test]
        fn prefixes_are_those_of_a_direct_comparison(
            tokens in prop::collection::vec(0u32..3, 0..40),
        ) {
            let direct = |at: usize| tokens.iter().zip(&tokens[at..]).take_while(|(a, b)| a == b);
            for (at, length) in common_prefixes(&tokens).into_iter().enumerate().skip(1) {
                prop_assert_eq!(length, direct(at).count());
            }
        }
    }
}
