//! The feed-forward block that computes only the active neurons.

use std::ops::Range;
use std::sync::Arc;

use super::facts::{Work, n_values};
use super::{Check, Visit, op, op_map, op_type, op_visit};
use crate::{Layout, Operand, Result, Rows};

/// How gate and up are combined to a neuron's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FfnKind {
    /// `h = act(up . x)`: no gate.
    Plain,
    /// `h = act(gate . x) * (up . x)`.
    Gated,
    /// `h = act(gate . x) * act(up . x)` (Bamboo's dReLU).
    GatedBoth,
}

/// The activation function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2`.
    Relu2,
    /// `x / (1 + exp(-x))`.
    Silu,
    /// The tanh approximation of GELU, as GGML's `gelu`.
    Gelu,
    /// GELU by the error function.
    GeluErf,
    /// gpt-oss: gate capped at `limit`, up clamped to `+-limit`, `h = gate * sigmoid(alpha * gate)
    /// * (up + 1)`.
    SwigluOai {
        /// Factor inside the sigmoid.
        alpha: f32,
        /// Clamping limit.
        limit: f32,
    },
}

impl Activation {
    /// Whether a non-positive input gives exactly 0, so that such a neuron can be skipped without
    /// loss.
    #[must_use]
    pub fn is_exactly_sparse(self) -> bool {
        matches!(self, Activation::Relu | Activation::Relu2)
    }
}

/// When a neuron is skipped after its test value (the gate, or up without a gate) is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Skip {
    /// Never: every neuron is computed.
    Never,
    /// When the test value is not positive: exact, for activations that are 0 there.
    NotPositive,
    /// When `|act(test)|` is below the row's own value in `threshold`: calibrated (CATS, Lee et
    /// al.; CHESS, He et al.).
    BelowPerRow,
    /// When the test value is below `mean + factor * deviation` of all test values of the token;
    /// that cut is subtracted from the others (Gemma 3n).
    GaussianCut(f32),
}

/// Orientation of the down matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// One row per neuron, `[n_rows, n_out]`: stored so, or transposed by the pack. `h` stays F32
    /// and rows of skipped neurons are not read.
    ByNeuron,
    /// One row per output, `[n_out, n_rows]`, as in ordinary files: all of it is read. `h` is
    /// rounded as the activations of [`super::MatMul`] are. With groups, the matrices of all
    /// groups that have rows are stacked; these groups have the same number of rows.
    AcrossNeurons,
}

/// Rows that a token uses all of or none of: the experts of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Start of each group's rows, then the end of the last: ascending from 0 to `n_rows`. A group
    /// may be empty.
    pub starts: Arc<[u32]>,
    /// Maximum number of groups with a nonzero weight for one token; a backend need not compute
    /// more.
    pub n_used: usize,
}

impl Groups {
    /// Number of groups.
    #[must_use]
    pub fn n_group(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// The rows of each group.
    pub fn rows(&self) -> impl Iterator<Item = Range<usize>> {
        self.starts.windows(2).map(|pair| pair[0] as usize..pair[1] as usize)
    }
}

/// Maximum number of tokens of a block that counts how many tokens activated each row. Larger
/// blocks (prefill) read nearly every row, so a count is of no use.
pub const MOST_COUNTED: usize = 16;

/// Counts over the blocks of several tokens: the union of the rows that the tokens need, and the
/// rows computed for all tokens instead of by lists.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UnionCounts {
    /// Neurons of the blocks.
    pub neurons: f32,
    /// Neurons that were active for any token.
    pub active: f32,
    /// Rows of the matrices before the activation: gate and up, or up alone.
    pub rows: f32,
    /// Rows that were computed for all tokens, needed or not.
    pub dense: f32,
}

impl UnionCounts {
    /// Number of counts.
    pub const N: usize = 4;

    /// The counts in the order of the `union` operand.
    #[must_use]
    pub fn values(self) -> [f32; UnionCounts::N] {
        [self.neurons, self.active, self.rows, self.dense]
    }
}

impl From<[f32; UnionCounts::N]> for UnionCounts {
    fn from([neurons, active, rows, dense]: [f32; UnionCounts::N]) -> UnionCounts {
        UnionCounts { neurons, active, rows, dense }
    }
}

/// A crossover that no list reaches: rows are always computed by lists.
pub const NEVER_DENSE: f32 = f32::INFINITY;

op! {
    /// `y[t] = sum over rows r of h[t, r] * down[r]` (added to `y` if `accumulate`), where a row
    /// is skipped as soon as its test value shows that it is inactive.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `gate`, `up` | `[n_rows, n_embd]` | any weight |
    /// | `down` | `[n_rows, n_out]` or `[n_out, n_rows]`; with groups instead of the latter `[n_out * filled, n_rows / filled]` for `filled` groups that have rows, see [`Down`] | any weight |
    /// | `bias_gate`, `bias_up`, `threshold` | `[1, n_rows]` | F32 |
    /// | `bias_down` | `[1, n_out]`, or `[n_group, n_out]` weighted like the group's rows | F32 |
    /// | `group_weight` | `[n_tokens, n_group]`: factor on `h`; a group of weight 0 is not computed | F32 |
    /// | `rows` | slots to compute; `All` for every row | |
    /// | `x`, `y` | `[n_tokens, n_embd]`, `[n_tokens, n_out]` | F32 |
    /// | `active` | `[1, n_tokens]`: active neurons, for the density report | F32 |
    /// | `union` | `[1, 4]`: with 2 to [`MOST_COUNTED`] tokens, see [`UnionCounts`] | F32 |
    /// | `hits` | `[1, n_rows or more]`: tokens for which each row was active; up to [`MOST_COUNTED`] tokens | F32 |
    ///
    /// A dense block is `Rows::All` with [`Skip::Never`]; experts are groups. A backend may
    /// implement it as one kernel or three. Source: PowerInfer (Song et al., SOSP 2024), gate
    /// first and fused.
    SparseFfn {
        /// Gate rows.
        maybe_weight gate,
        /// Up rows.
        weight up,
        /// Down rows or columns.
        weight down,
        /// Bias of gate.
        maybe bias_gate,
        /// Bias of up.
        maybe bias_up,
        /// Bias of down.
        maybe bias_down,
        /// Threshold per row, for [`Skip::BelowPerRow`].
        maybe threshold,
        /// Factor per token and group.
        maybe group_weight,
        /// Rows to compute.
        rows rows,
        /// Input.
        read x,
        /// Output.
        update y,
        /// Number of active neurons per token (added to).
        update active,
        /// Number of tokens for which each row was active (added to).
        maybe_update hits,
        /// [`UnionCounts`] (added to). A device whose programs always multiply a listed row with
        /// all tokens leaves them unchanged.
        maybe_update union,
        ;
        /// How gate and up are combined.
        kind: FfnKind,
        /// Activation function.
        activation: Activation,
        /// When a row is skipped.
        skip: Skip,
        /// Orientation of `down`.
        orientation: Down,
        /// Groups of rows; given together with `group_weight`.
        groups: Option<Groups>,
        /// Measured crossover for several tokens. If lists of rows would take at least this share
        /// of the dense work, a device may compute all rows for all tokens and discard the products
        /// that a token does not need; the result is the same. 0: always dense. [`NEVER_DENSE`]:
        /// always lists.
        dense_from: f32,
        /// Add to `y` instead of overwriting it.
        accumulate: bool,
    }
}

impl<T: Operand> SparseFfn<T> {
    /// An upper bound: every token computes every row.
    pub(super) fn work(&self) -> Work {
        let gate = self.gate.as_ref().map_or(0, n_values);
        let per_token = gate + n_values(&self.up) + n_values(&self.down);
        Work::new(self.x.desc().n_rows, per_token)
    }

    pub(super) fn check(&self) -> Result<()> {
        let c = Check("SparseFfn");
        let (up, x, y) = (self.up.desc(), self.x.desc(), self.y.desc());
        let n_rows = up.n_rows;
        c.weight("up", &self.up)?;
        c.that(up.layout == Layout::Rows, "up", "plain rows", up)?;
        c.that(
            self.gate.is_some() != (self.kind == FfnKind::Plain),
            "gate",
            "present exactly when the FFN kind has a gate",
            "not",
        )?;
        if let Some(gate) = &self.gate {
            c.weight("gate", gate)?;
            c.shape("gate", gate, n_rows, up.n_cols)?;
        }
        c.f32("x", &self.x, x.n_rows, up.n_cols)?;
        c.f32("y", &self.y, x.n_rows, y.n_cols)?;
        c.f32("active", &self.active, 1, x.n_rows)?;
        if let Some(hits) = &self.hits {
            c.f32("hits", hits, 1, hits.desc().n_cols.max(n_rows))?;
            let few = x.n_rows <= MOST_COUNTED;
            c.that(few, "hits", format!("up to {MOST_COUNTED} tokens"), x.n_rows)?;
        }
        c.maybe_f32("union", &self.union, 1, UnionCounts::N)?;
        c.weight("down", &self.down)?;
        match self.orientation {
            Down::ByNeuron => c.shape("down", &self.down, n_rows, y.n_cols)?,
            Down::AcrossNeurons => {
                let (n_matrices, n_cols) = self.stacked(&c, n_rows)?;
                c.shape("down", &self.down, n_matrices * y.n_cols, n_cols)?;
                let all = matches!(self.rows, Rows::All) && self.down.desc().layout == Layout::Rows;
                c.that(all, "down", "one row per neuron, where rows are listed", self.down.desc())?;
            }
        }
        c.maybe_f32("bias_gate", &self.bias_gate, 1, n_rows)?;
        c.maybe_f32("bias_up", &self.bias_up, 1, n_rows)?;
        c.maybe_f32("threshold", &self.threshold, 1, n_rows)?;
        let per_row = self.threshold.is_some() == (self.skip == Skip::BelowPerRow);
        c.that(
            per_row,
            "threshold",
            "present exactly when rows are skipped by their own thresholds",
            "not",
        )?;
        let exact = self.skip != Skip::NotPositive || self.activation.is_exactly_sparse();
        c.that(exact, "skip", "an activation that is 0 below 0", format!("{:?}", self.activation))?;
        let cut = !matches!(self.skip, Skip::GaussianCut(_)) || matches!(self.rows, Rows::All);
        c.that(cut, "skip", "all rows, since the cut depends on their mean", "a list")?;
        if let Rows::Active(set) = &self.rows {
            c.set("rows", set, x.n_rows)?;
        }
        self.check_groups(&c, n_rows, x.n_rows, y.n_cols)
    }

    fn check_groups(&self, c: &Check, n_rows: usize, n_tokens: usize, n_out: usize) -> Result<()> {
        let both = self.groups.is_some() == self.group_weight.is_some();
        c.that(both, "groups", "present together with group_weight", "not")?;
        let mut n_group = 1;
        if let (Some(groups), Some(weight)) = (&self.groups, &self.group_weight) {
            n_group = groups.n_group();
            let ends =
                [groups.starts.first(), groups.starts.last()] == [Some(&0), Some(&(n_rows as u32))];
            let ascending = groups.starts.windows(2).all(|pair| pair[0] <= pair[1]);
            let expected = format!("rows ascending from 0 to {n_rows}");
            c.that(
                ends && ascending && n_group > 0,
                "groups",
                expected,
                "not ascending or out of range",
            )?;
            let some = (1..=n_group).contains(&groups.n_used);
            c.that(some, "groups", format!("1 to {n_group} groups used"), groups.n_used)?;
            c.f32("group_weight", weight, n_tokens, n_group)?;
        }
        c.maybe_f32("bias_down", &self.bias_down, n_group, n_out)
    }

    /// Number of stacked matrices in a down matrix with one row per output, and the columns of
    /// each.
    fn stacked(&self, c: &Check, n_rows: usize) -> Result<(usize, usize)> {
        let Some(groups) = &self.groups else { return Ok((1, n_rows)) };
        let filled: Vec<usize> = groups.rows().map(|rows| rows.len()).filter(|&n| n > 0).collect();
        let first = filled.first().copied().unwrap_or(0);
        let equal = filled.iter().all(|&n| n == first);
        c.that(equal, "groups", "groups with the same number of rows or none", "not")?;
        Ok((filled.len(), first))
    }
}
