//! The feed-forward block that computes only the active neurons.

use std::ops::Range;
use std::sync::Arc;

use super::facts::{Work, n_values};
use super::{Check, Visit, op, op_map, op_type, op_visit};
use crate::{Layout, Operand, Result, Rows};

/// How a neuron's value `h` follows from its gate and up products.
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
    /// Exact GELU, with the error function.
    GeluErf,
    /// gpt-oss: gate capped at `limit`, up clamped to `+-limit`,
    /// `h = gate * sigmoid(alpha * gate) * (up + 1)`.
    SwigluOai {
        /// Factor inside the sigmoid.
        alpha: f32,
        /// Clamping limit.
        limit: f32,
    },
    /// Gate capped at `limit`, up clamped to `+-limit`, `h = silu(gate) * up` (Maple).
    SwigluClamped {
        /// Clamping limit.
        limit: f32,
    },
    /// `h = min(silu(gate), limit) * up` with up clamped to `+-limit` (Step 3.5).
    SiluClamped {
        /// Clamping limit.
        limit: f32,
    },
    /// xIELU (Apertus): `positive * x^2 + slope * x` for positive x, otherwise
    /// `negative * (exp(x) - 1 - x) + slope * x`.
    XIelu {
        /// Factor of the square.
        positive: f32,
        /// Factor of the exponential's difference from its tangent at 0.
        negative: f32,
        /// Slope at 0.
        slope: f32,
    },
    /// SiTU (Kimi K3): `h = beta * tanh(gate / beta) * sigmoid(gate) * cap * tanh(up / cap)`.
    Situ {
        /// Limit of the gate's magnitude.
        beta: f32,
        /// Limit of up's magnitude; 0 for none.
        cap: f32,
    },
}

impl Activation {
    /// Whether a non-positive input gives exactly 0, so that such a neuron can be skipped without
    /// loss.
    #[must_use]
    pub fn is_exactly_sparse(self) -> bool {
        matches!(self, Activation::Relu | Activation::Relu2)
    }

    /// The limit of up in gated blocks, and what is added to up after that; `None` without a limit.
    #[must_use]
    pub fn up_limit(self) -> Option<(f32, f32)> {
        match self {
            Activation::SwigluOai { limit, .. } => Some((limit, 1.0)),
            Activation::SwigluClamped { limit } | Activation::SiluClamped { limit } => {
                Some((limit, 0.0))
            }
            Activation::Relu | Activation::Relu2 | Activation::Silu => None,
            Activation::Gelu | Activation::GeluErf | Activation::XIelu { .. } => None,
            Activation::Situ { .. } => None,
        }
    }

    /// `cap` if up becomes `cap * tanh(up / cap)` in gated blocks; `None` for other activations.
    #[must_use]
    pub fn up_cap(self) -> Option<f32> {
        match self {
            Activation::Situ { cap, .. } => (cap > 0.0).then_some(cap),
            Activation::SwigluOai { .. } | Activation::SwigluClamped { .. } => None,
            Activation::SiluClamped { .. } | Activation::XIelu { .. } => None,
            Activation::Relu | Activation::Relu2 | Activation::Silu => None,
            Activation::Gelu | Activation::GeluErf => None,
        }
    }
}

/// When a neuron is skipped. The decision uses the neuron's test value: its gate product, or its up
/// product in a block without a gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Skip {
    /// Never: every neuron is computed.
    Never,
    /// When the test value is not positive. This is exact for activations that are 0 for such
    /// values.
    NotPositive,
    /// When `|act(test value)|` is below the row's calibrated `threshold` (CATS, Lee et al.;
    /// CHESS, He et al.).
    BelowPerRow,
    /// When the test value is below the cut-off `mean + factor * standard deviation` of the
    /// token's test values. The cut-off is subtracted from the remaining values (Gemma 3n).
    GaussianCut(f32),
}

/// Orientation of the down matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// One row per neuron, `[n_rows, n_out]`, as stored in the file or transposed on import. `h`
    /// stays F32, and rows of skipped neurons are not read.
    ByNeuron,
    /// One row per output, `[n_out, n_rows]`, the usual layout of GGUF files. The whole matrix is
    /// read, and `h` is rounded like the activations of [`super::MatMul`]. In a MoE block, the
    /// matrices of all experts that have rows are stacked; all have the same shape.
    AcrossNeurons,
}

/// The experts of a MoE block. Each expert is a range of rows; a token uses all rows of an expert
/// or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertRanges {
    /// First row of each expert, then `n_rows`; ascending from 0. An expert may have no rows.
    pub starts: Arc<[u32]>,
    /// Maximum number of experts with a nonzero weight for one token. A backend need not compute
    /// more experts.
    pub n_used: usize,
}

impl ExpertRanges {
    /// Number of experts.
    #[must_use]
    pub fn n_expert(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// The rows of each expert.
    pub fn rows(&self) -> impl Iterator<Item = Range<usize>> {
        self.starts.windows(2).map(|pair| pair[0] as usize..pair[1] as usize)
    }
}

/// Maximum number of tokens in a step for which an op counts the activations of each row. Larger
/// steps (prefill) read nearly every row, so the counts would be useless.
pub const MAX_COUNTED_TOKENS: usize = 16;

/// Counts for steps of several tokens, summed over feed-forward blocks: the union of the tokens'
/// active neurons, and the rows that were computed for all tokens instead of by row list.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UnionCounts {
    /// Neurons of all counted blocks.
    pub neurons: f32,
    /// Neurons that were active for at least one token.
    pub active: f32,
    /// Rows of the gate and up matrices.
    pub rows: f32,
    /// Rows that were computed for all tokens, whether a token needed them or not.
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

/// The value of [`SparseFfn::dense_from`] that no row list reaches: always compute by row list.
pub const NEVER_DENSE: f32 = f32::INFINITY;

op! {
    /// `y[t] = sum over rows r of h[t, r] * down[r]` (added to `y` if `accumulate`), where a row
    /// is skipped as soon as its test value shows that it is inactive.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `gate`, `up` | `[n_rows, n_embd]` | any weight |
    /// | `down` | `[n_rows, n_out]` or `[n_out, n_rows]`; with experts the latter is `[n_out * filled, n_rows / filled]` for `filled` experts that have rows, see [`Down`] | any weight |
    /// | `bias_gate`, `bias_up`, `threshold` | `[1, n_rows]` | F32 |
    /// | `bias_down` | `[1, n_out]`, or `[n_expert, n_out]` weighted like the expert's rows | F32 |
    /// | `expert_weights` | `[n_tokens, n_expert]`: router weights, a factor on `h`; an expert of weight 0 is not computed | F32 |
    /// | `rows` | slots to compute; `All` for every row | |
    /// | `x`, `y` | `[n_tokens, n_embd]`, `[n_tokens, n_out]` | F32 |
    /// | `active` | `[1, n_tokens]`: active neurons, for the density report | F32 |
    /// | `union` | `[1, 4]`: with 2 to [`MAX_COUNTED_TOKENS`] tokens, see [`UnionCounts`] | F32 |
    /// | `hits` | `[1, n_rows or more]`: tokens for which each row was active; up to [`MAX_COUNTED_TOKENS`] tokens | F32 |
    ///
    /// A dense block is `Rows::All` with [`Skip::Never`]. A backend may implement the op as one
    /// kernel or three. Source: PowerInfer (Song et al., SOSP 2024), with the gate computed first
    /// and the products fused.
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
        /// Router weight per token and expert.
        maybe expert_weights,
        /// Rows to compute.
        rows rows,
        /// Input.
        read x,
        /// Output.
        update y,
        /// Number of active neurons per token, to which the op adds.
        update active,
        /// Number of tokens for which each row was active, to which the op adds.
        maybe_update hits,
        /// [`UnionCounts`], to which the op adds. A device whose programs always multiply a listed
        /// row with all tokens leaves the counts unchanged.
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
        /// The experts' rows; given together with `expert_weights`.
        experts: Option<ExpertRanges>,
        /// Measured crossover for steps of several tokens. If the row lists need at least this
        /// fraction of the dense work, a device may compute all rows for all tokens and discard
        /// the products that a token does not need. The result is the same. Any list with a row
        /// reaches 0; no list reaches [`NEVER_DENSE`].
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
        c.require(up.layout == Layout::Rows, "up", "not transposed", up)?;
        c.require(
            self.gate.is_some() != (self.kind == FfnKind::Plain),
            "gate",
            "a gate unless the FFN kind is Plain",
            "inconsistent with the FFN kind",
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
            let few = x.n_rows <= MAX_COUNTED_TOKENS;
            c.require(few, "hits", format!("up to {MAX_COUNTED_TOKENS} tokens"), x.n_rows)?;
        }
        c.maybe_f32("union", &self.union, 1, UnionCounts::N)?;
        c.weight("down", &self.down)?;
        match self.orientation {
            Down::ByNeuron => c.shape("down", &self.down, n_rows, y.n_cols)?,
            Down::AcrossNeurons => {
                let (n_matrices, n_cols) = self.stacked(&c, n_rows)?;
                c.shape("down", &self.down, n_matrices * y.n_cols, n_cols)?;
                let dense =
                    matches!(self.rows, Rows::All) && self.down.desc().layout == Layout::Rows;
                c.require(
                    dense,
                    "down",
                    "one row per neuron if rows are listed",
                    self.down.desc(),
                )?;
            }
        }
        c.maybe_f32("bias_gate", &self.bias_gate, 1, n_rows)?;
        c.maybe_f32("bias_up", &self.bias_up, 1, n_rows)?;
        c.maybe_f32("threshold", &self.threshold, 1, n_rows)?;
        let per_row = self.threshold.is_some() == (self.skip == Skip::BelowPerRow);
        c.require(
            per_row,
            "threshold",
            "thresholds if rows are skipped by them, otherwise none",
            "inconsistent with `skip`",
        )?;
        let exact = self.skip != Skip::NotPositive || self.activation.is_exactly_sparse();
        let got = format!("NotPositive with {:?}", self.activation);
        c.require(exact, "skip", "NotPositive only with Relu or Relu2", got)?;
        let cut = !matches!(self.skip, Skip::GaussianCut(_)) || matches!(self.rows, Rows::All);
        let expected =
            "all rows, because GaussianCut needs the mean and deviation of all test values";
        c.require(cut, "rows", expected, "a row list")?;
        if let Rows::Active(set) = &self.rows {
            c.set("rows", set, x.n_rows)?;
        }
        self.check_experts(&c, n_rows, x.n_rows, y.n_cols)
    }

    fn check_experts(&self, c: &Check, n_rows: usize, n_tokens: usize, n_out: usize) -> Result<()> {
        let consistent = self.experts.is_some() == self.expert_weights.is_some();
        c.require(
            consistent,
            "experts",
            "both `experts` and `expert_weights`, or neither",
            "given without the other",
        )?;
        let mut n_expert = 1;
        if let (Some(experts), Some(weight)) = (&self.experts, &self.expert_weights) {
            n_expert = experts.n_expert();
            let ends = [experts.starts.first(), experts.starts.last()]
                == [Some(&0), Some(&(n_rows as u32))];
            let ascending = experts.starts.windows(2).all(|pair| pair[0] <= pair[1]);
            let expected = format!("rows ascending from 0 to {n_rows}");
            c.require(
                ends && ascending && n_expert > 0,
                "experts",
                expected,
                "not ascending or out of range",
            )?;
            let in_range = (1..=n_expert).contains(&experts.n_used);
            c.require(
                in_range,
                "experts",
                format!("1 to {n_expert} experts used"),
                experts.n_used,
            )?;
            c.f32("expert_weights", weight, n_tokens, n_expert)?;
        }
        c.maybe_f32("bias_down", &self.bias_down, n_expert, n_out)
    }

    /// Number of matrices stacked in a down matrix with one row per output, and the columns of
    /// each matrix.
    fn stacked(&self, c: &Check, n_rows: usize) -> Result<(usize, usize)> {
        let Some(experts) = &self.experts else { return Ok((1, n_rows)) };
        let filled: Vec<usize> = experts.rows().map(|rows| rows.len()).filter(|&n| n > 0).collect();
        let first = filled.first().copied().unwrap_or(0);
        let equal = filled.iter().all(|&n| n == first);
        c.require(
            equal,
            "experts",
            "experts with the same number of rows or none",
            "a mix of sizes",
        )?;
        Ok((filled.len(), first))
    }
}
