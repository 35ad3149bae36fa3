//! Locally typical sampling.

use super::candidates::{Candidates, Order};

impl Candidates {
    /// Keeps the tokens whose surprise is closest to the entropy, closest first, until their total
    /// probability exceeds `p` and there are at least `min_keep`.
    ///
    /// Source: Meister et al., Locally Typical Sampling, and llama.cpp.
    pub(super) fn typical(&mut self, p: f32, min_keep: usize) {
        if p >= 1.0 || self.list.is_empty() {
            return;
        }
        self.sort();
        let entropy = self.entropy();
        let distance = |p: f32| (-p.ln() - entropy).abs();
        let mut order: Vec<(f32, usize)> =
            self.probs.iter().enumerate().map(|(at, p)| (distance(*p), at)).collect();
        order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut mass = 0.0;
        let last = order.iter().enumerate().position(|(i, (_, at))| {
            mass += self.probs[*at];
            mass > p && i + 1 >= min_keep
        });
        let kept = last.map_or(order.len(), |last| last + 1);
        self.list = order[..kept].iter().map(|(_, at)| self.list[*at]).collect();
        self.order = Order::Other;
    }
}
