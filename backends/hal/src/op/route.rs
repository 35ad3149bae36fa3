//! Mixture-of-experts routing.

use super::facts::{Work, n_values};
use super::{Check, Visit, op, op_map, op_type, op_visit};
use crate::{Operand, Result};

/// How the router's logits become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each logit.
    Sigmoid,
    /// `sqrt(ln(1 + e^x))` of each logit `x` (DeepSeek V4).
    SqrtSoftplus,
    /// Softmax over the selected experts only (gpt-oss). Mixtral's renormalised softmax gives the
    /// same weights.
    SoftmaxChosen,
}

op! {
    /// Scores every expert by its logit `w . x + bias`, keeps the `n_used` best (on a tie the lower
    /// index) and writes their weights. All other weights are 0.
    ///
    /// With `selection`, the best are those with the largest sum of score and `selection`; the
    /// weights are made of the scores alone. With [`Scoring::SoftmaxChosen`], that sum is made of
    /// the logit. With `groups`, only experts of the `n_group_used` best groups are candidates; a
    /// group is as good as the sum of its two best candidates, and on a tie the lower one wins. If
    /// `renormalise`, the divisor is at least `2^-14`, as in llama.cpp.
    ///
    /// With `chosen`, a token uses the experts of its row, which are distinct, instead of the best ones.
    /// There is neither `selection` nor `groups` then.
    ///
    /// With `n_per_chunk` above 1, the weights are those of chunks of `n_per_chunk` consecutive experts.
    /// A selected expert counts for its chunk, and the score of chunk `c` is that of expert `c`, as in
    /// llama.cpp's GroveMoE: a chunk with two selected experts has twice its score.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `w` | `[n_expert, n_embd]` | any weight |
    /// | `bias` | `[1, n_expert]` | F32 |
    /// | `selection` | `[1, n_expert]` | F32 |
    /// | `groups` | `[1, n_expert]`: the group of each expert, a whole number below `n_group` | F32 |
    /// | `chosen` | `[n_tokens, n_used]`: experts, whole numbers below `n_expert` | F32 |
    /// | `x` | `[n_tokens, n_embd]` | F32 |
    /// | `weights` | `[n_tokens, n_expert / n_per_chunk]` | F32 |
    Route {
        /// Router matrix.
        weight w,
        /// Router bias.
        maybe bias,
        /// Bias of the scores for the selection only (DeepSeek V3).
        maybe selection,
        /// Group of each expert.
        maybe groups,
        /// The experts of each token (hash routing).
        maybe chosen,
        /// Input.
        read x,
        /// Weight of each expert; 0 if the token does not use it.
        write weights,
        ;
        /// Experts per token (top-k).
        n_used: usize,
        /// Number of experts that share a weight; 1 if each has its own.
        n_per_chunk: usize,
        /// Number of groups, and of groups per token; used with `groups`.
        n_groups: [usize; 2],
        /// How logits become scores.
        scoring: Scoring,
        /// Divide the weights of the selected experts by their sum.
        renormalise: bool,
        /// Factor on the weights.
        scale: f32,
    }
}

/// Smallest divisor of renormalised weights: the smallest normal F16.
pub const MIN_WEIGHT_SUM: f32 = 1.0 / 16384.0;

impl<T: Operand> Route<T> {
    pub(super) fn work(&self) -> Work {
        Work::new(self.x.desc().n_rows, n_values(&self.w))
    }

    pub(super) fn check(&self) -> Result<()> {
        let c = Check("Route");
        let (w, x) = (self.w.desc(), self.x.desc());
        c.weight("w", &self.w)?;
        c.f32("x", &self.x, x.n_rows, w.n_cols)?;
        for (name, part) in
            [("bias", &self.bias), ("selection", &self.selection), ("groups", &self.groups)]
        {
            c.maybe_f32(name, part, 1, w.n_rows)?;
        }
        c.maybe_f32("chosen", &self.chosen, x.n_rows, self.n_used)?;
        let alone = self.selection.is_none() && self.groups.is_none();
        let usable = self.chosen.is_none() || alone;
        c.require(usable, "chosen", "neither a selection nor groups", self.n_used)?;
        let [n_group, n_group_used] = self.n_groups;
        let grouped = self.groups.is_none() || (1..=n_group).contains(&n_group_used);
        c.require(grouped, "n_groups", format!("1 to {n_group} groups used"), n_group_used)?;
        let in_range = self.n_used >= 1 && self.n_used <= w.n_rows;
        c.require(in_range, "n_used", format!("1 to {}", w.n_rows), self.n_used)?;
        let whole = self.n_per_chunk > 0 && w.n_rows.is_multiple_of(self.n_per_chunk);
        c.require(whole, "n_per_chunk", format!("a divisor of {}", w.n_rows), self.n_per_chunk)?;
        let own = self.n_per_chunk == 1 || self.scoring != Scoring::SoftmaxChosen;
        c.require(
            own,
            "n_per_chunk",
            "1 with a softmax of the selected experts",
            self.n_per_chunk,
        )?;
        c.f32("weights", &self.weights, x.n_rows, w.n_rows / self.n_per_chunk)
    }
}
