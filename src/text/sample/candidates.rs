//! The list of candidate tokens, and the stages top-k, top-p and min-p.
//!
//! The order of the list is part of the result, because a draw iterates over it. Equal logits are
//! sorted by id, so it does not depend on the standard library's sort. Probabilities that decide
//! which tokens stay are in single precision and summed in the order of the list, as in llama.cpp.

use std::cmp::Ordering;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) id: u32,
    pub(super) logit: f32,
}

fn best_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// Order of the list of candidates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    /// Ids ascend.
    #[default]
    ById,
    /// Logits descend.
    BestFirst,
    /// Neither.
    Other,
}

/// The list of candidates, reused between tokens so that its memory is allocated once.
#[derive(Clone, Debug, Default)]
pub(super) struct Candidates {
    pub(super) list: Vec<Candidate>,
    pub(super) order: Order,
    /// The probabilities of the list, as of the latest [`Candidates::softmax`].
    pub(super) probs: Vec<f32>,
}

impl Candidates {
    /// Resets to one candidate per logit, by id.
    pub(super) fn fill(&mut self, logits: &[f32]) {
        self.list.clear();
        let ids = 0u32..;
        let pairs = ids.zip(logits);
        self.list.extend(pairs.map(|(id, &logit)| Candidate { id, logit }));
        self.order = Order::ById;
    }

    /// Drops candidates that `is_allowed` rejects.
    pub(super) fn retain(&mut self, mut is_allowed: impl FnMut(u32) -> bool) {
        self.list.retain(|c| is_allowed(c.id));
    }

    /// Replaces the logits of candidates by `change(token, logit)`, which must return the logit of
    /// a token not in `tokens` unchanged. No candidate moves.
    pub(super) fn edit(
        &mut self,
        tokens: impl IntoIterator<Item = u32>,
        mut change: impl FnMut(u32, f32) -> f32,
    ) {
        if self.order != Order::ById {
            self.list.iter_mut().for_each(|c| c.logit = change(c.id, c.logit));
            self.order = Order::Other;
            return;
        }
        for token in tokens {
            if let Ok(at) = self.list.binary_search_by_key(&token, |c| c.id) {
                self.list[at].logit = change(token, self.list[at].logit);
            }
        }
    }

    /// Sets [`Candidates::probs`] to the probabilities of the list.
    pub(super) fn softmax(&mut self) {
        let max = self.max_logit();
        self.probs.clear();
        self.probs.extend(self.list.iter().map(|c| (c.logit - max).exp()));
        let total: f32 = self.probs.iter().sum();
        self.probs.iter_mut().for_each(|p| *p /= total);
    }

    /// Keeps the `k` best, in order. 0 keeps all, as in llama.cpp.
    pub(super) fn top_k(&mut self, k: usize) {
        if k == 0 {
            return;
        }
        self.sort_best(k);
        self.list.truncate(k);
        self.order = Order::BestFirst;
    }

    /// Sorts all candidates, best first.
    pub(super) fn sort(&mut self) {
        self.top_k(self.list.len());
    }

    /// Keeps the shortest best-first prefix whose probability reaches `p`, and at least
    /// `min_keep`.
    pub(super) fn top_p(&mut self, p: f32, min_keep: usize) {
        if p >= 1.0 || self.list.is_empty() {
            return;
        }
        let max = self.max_logit();
        let total: f32 = self.list.iter().map(|c| (c.logit - max).exp()).sum();
        // A vocabulary is long and the prefix short: sort only as much as the probability mass
        // requires.
        let is_sorted = self.order == Order::BestFirst;
        let mut ordered = if is_sorted { self.list.len() } else { 256 };
        loop {
            ordered = ordered.min(self.list.len());
            self.sort_best(ordered);
            let mut mass = 0.0;
            let reached = self.list[..ordered].iter().position(|c| {
                mass += (c.logit - max).exp() / total;
                mass >= p
            });
            let enough = reached.is_some() || ordered == self.list.len();
            let n_keep = reached.map_or(ordered, |last| last + 1).max(min_keep);
            if enough && n_keep <= ordered || ordered == self.list.len() {
                self.list.truncate(n_keep);
                self.order = Order::BestFirst;
                return;
            }
            ordered = ordered.saturating_mul(4);
        }
    }

    /// Drops candidates less than `p` times as likely as the best. If fewer than `min_keep` or none
    /// would stay, keeps the `min_keep` best, at least one.
    pub(super) fn min_p(&mut self, p: f32, min_keep: usize) {
        if p <= 0.0 || self.list.is_empty() {
            return;
        }
        let floor = self.max_logit() + p.ln();
        let passing = self.list.iter().filter(|c| c.logit >= floor).count();
        if passing > 0 && passing >= min_keep {
            self.list.retain(|c| c.logit >= floor);
        } else {
            self.top_k(min_keep.max(1));
        }
    }

    /// Index of the candidate at which the cumulative probability passes `u`, a number in `0..1`.
    ///
    /// `None` if the list is empty, every candidate is banned, or a logit is NaN.
    pub(super) fn draw(&self, u: f64) -> Option<usize> {
        let max = self.max_logit();
        if !max.is_finite() {
            return None;
        }
        let total: f64 = self.list.iter().map(|c| softmax_term(c.logit, max)).sum();
        let target = u * total;
        let mut mass = 0.0;
        let mut last = None;
        for (at, candidate) in self.list.iter().enumerate() {
            let term = softmax_term(candidate.logit, max);
            mass += term;
            if term > 0.0 {
                last = Some(at);
            }
            if mass > target {
                return last;
            }
        }
        // Rounding may leave the sum slightly below the target.
        last
    }

    /// The candidates that [`Candidates::draw`] may take, with the natural logarithm of the
    /// probability of each, best first.
    pub(super) fn logprobs(&self) -> Vec<(u32, f32)> {
        let max = self.max_logit();
        let mut list: Vec<Candidate> =
            self.list.iter().filter(|c| softmax_term(c.logit, max) > 0.0).copied().collect();
        list.sort_unstable_by(best_first);
        let total: f64 = list.iter().map(|c| softmax_term(c.logit, max)).sum();
        let log_sum = f64::from(max) + total.ln();
        #[allow(clippy::cast_possible_truncation)] // reported in single precision
        let logprob = |logit: f32| (f64::from(logit) - log_sum) as f32;
        list.iter().map(|c| (c.id, logprob(c.logit))).collect()
    }

    pub(super) fn max_logit(&self) -> f32 {
        let logits = self.list.iter().map(|c| c.logit);
        logits.fold(f32::NEG_INFINITY, f32::max)
    }

    /// Moves the `n` best to the front, in order; the rest is unordered.
    fn sort_best(&mut self, n: usize) {
        let list = &mut self.list;
        if self.order == Order::BestFirst {
            return;
        }
        if n.saturating_mul(8) < list.len() {
            gather_best(list, n);
        } else if n < list.len() {
            list.select_nth_unstable_by(n, best_first);
        }
        let n = n.min(list.len());
        list[..n].sort_unstable_by(best_first);
    }
}

/// Moves the `n` best to the front in one pass. A pool of `2n` at the front collects candidates
/// that are better than the worst of the best so far. A full pool is reduced to its `n` best.
fn gather_best(list: &mut [Candidate], n: usize) {
    let mut pool = n;
    let mut worst = None;
    for i in n..list.len() {
        let passes = worst.is_none_or(|worst| best_first(&list[i], &worst).is_lt());
        if !passes {
            continue;
        }
        list.swap(pool, i);
        pool += 1;
        if pool == 2 * n {
            list[..pool].select_nth_unstable_by(n - 1, best_first);
            worst = Some(list[n - 1]);
            pool = n;
        }
    }
    if pool > n {
        list[..pool].select_nth_unstable_by(n - 1, best_first);
    }
}

/// The unnormalised probability of a logit.
fn softmax_term(logit: f32, max: f32) -> f64 {
    f64::from((logit - max).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filled(logits: &[f32]) -> Candidates {
        let mut candidates = Candidates::default();
        candidates.fill(logits);
        candidates
    }

    fn ids(candidates: &Candidates) -> Vec<u32> {
        candidates.list.iter().map(|c| c.id).collect()
    }

    fn fully_sorted(logits: &[f32]) -> Vec<Candidate> {
        let mut list = filled(logits).list;
        list.sort_by(best_first);
        list
    }

    #[test]
    fn equal_logits_are_sorted_by_id() {
        let mut c = filled(&[1.0, 3.0, 3.0, 2.0]);
        c.top_k(3);
        assert_eq!(ids(&c), [1, 2, 3]);
    }

    #[test]
    fn min_p_compares_with_the_best() {
        let mut c = filled(&[0.0, (0.5f32).ln(), (0.04f32).ln()]);
        c.min_p(0.05, 0);
        assert_eq!(ids(&c), [0, 1]);
        c.min_p(0.9, 2);
        assert_eq!(ids(&c), [0, 1], "min_keep holds");
        let mut c = filled(&[1.0, 1.0, 0.0]);
        c.min_p(1.05, 0);
        assert_eq!(ids(&c), [0], "above 1, equal logits do not stay");
    }

    #[test]
    fn a_draw_never_takes_a_banned_token() {
        let c = filled(&[f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY]);
        assert_eq!(c.draw(0.0), Some(1));
        assert_eq!(c.draw(1.0), Some(1));
        assert_eq!(filled(&[f32::NEG_INFINITY]).draw(0.5), None);
    }

    #[test]
    fn edits_keep_the_order_of_a_sorted_list() {
        let mut c = filled(&[1.0, 3.0, 2.0]);
        c.top_k(2);
        c.edit([1], |id, logit| if id == 1 { logit - 5.0 } else { logit });
        assert_eq!((ids(&c), c.list[0].logit), (vec![1, 2], -2.0));
        c.top_k(1);
        assert_eq!(ids(&c), [2]);
    }

    proptest! {
        #[test]
        fn top_k_is_the_head_of_the_sorted_list(
            logits in prop::collection::vec(-4i8..4, 1..600), k in 1usize..80,
        ) {
            let logits: Vec<f32> = logits.into_iter().map(f32::from).collect();
            let mut c = filled(&logits);
            c.top_k(k);
            let mut expected = fully_sorted(&logits);
            expected.truncate(k);
            prop_assert_eq!(c.list, expected);
        }

        #[test]
        fn top_p_is_the_shortest_prefix_with_the_mass(
            logits in prop::collection::vec(-3f32..3.0, 1..1500), p in 0.01f32..0.999,
        ) {
            let mut c = filled(&logits);
            c.top_p(p, 0);
            let expected = fully_sorted(&logits);
            let max = expected[0].logit;
            let term = |c: &Candidate| softmax_term(c.logit, max);
            let mass = |n: usize| expected[..n].iter().map(term).sum::<f64>();
            let n = c.list.len();
            let share = |n| mass(n) / mass(expected.len());
            prop_assert_eq!(&c.list[..], &expected[..n]);
            prop_assert!(share(n) > f64::from(p) - 1e-5);
            prop_assert!(n == 1 || share(n - 1) < f64::from(p) + 1e-5);
        }

        #[test]
        fn top_p_keeps_min_keep(
            logits in prop::collection::vec(-3f32..3.0, 1..900), keep in 0usize..700,
        ) {
            let mut c = filled(&logits);
            c.top_p(0.01, keep);
            prop_assert!(c.list.len() >= keep.min(logits.len()));
            let expected = fully_sorted(&logits);
            prop_assert_eq!(&c.list[..], &expected[..c.list.len()]);
        }
    }
}
