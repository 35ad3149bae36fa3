//! Log-probabilities of tokens.

use text::sample::Sampler;

use crate::request::TokenLogprobs;

/// Log-probability of `token` and of the `n` most likely tokens: the log-softmax of `logits`.
/// `-inf` for a token beyond the end of `logits`.
pub(crate) fn logprobs(logits: &[f32], token: u32, n: usize) -> TokenLogprobs {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from((logit - max).exp())).sum();
    let log_sum = f64::from(max) + sum.ln();
    let of = |logit: f32| (f64::from(logit) - log_sum) as f32;
    let chosen = logits.get(token as usize).map_or(f32::NEG_INFINITY, |&logit| of(logit));
    let mut top: Vec<(u32, f32)> = Vec::with_capacity(n.min(logits.len()) + 1);
    for (id, &logit) in (0u32..).zip(logits) {
        let enters = top.len() < n || top.last().is_some_and(|(_, last)| logit > *last);
        if n > 0 && enters {
            // Of equal logits, the token with the lower id comes first.
            let at = top.partition_point(|(_, other)| *other >= logit);
            top.insert(at, (id, logit));
            top.truncate(n);
        }
    }
    top.iter_mut().for_each(|(_, logit)| *logit = of(*logit));
    TokenLogprobs { chosen, top }
}

/// Log-probability of `token` and of the `n` most likely tokens, in the distribution that `token`
/// was drawn from.
pub(crate) fn after_sampling(sampler: &Sampler, token: u32, n: usize) -> TokenLogprobs {
    let mut top = sampler.logprobs();
    let chosen = top.iter().find(|(id, _)| *id == token);
    let chosen = chosen.map_or(f32::NEG_INFINITY, |(_, logprob)| *logprob);
    top.truncate(n);
    TokenLogprobs { chosen, top }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_1_and_are_sorted() {
        let logits = [1.0, 3.0, -2.0, 3.0, 0.5];
        let all = logprobs(&logits, 2, 9);
        let sum: f32 = all.top.iter().map(|(_, log)| log.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        let ids: Vec<u32> = all.top.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, [1, 3, 0, 4, 2]);
        assert_eq!(all.chosen, all.top[4].1);
        assert_eq!(logprobs(&logits, 1, 2).top[..], all.top[..2]);
        assert_eq!(logprobs(&logits, 1, 0).top, []);
    }
}
