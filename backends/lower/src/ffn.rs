//! Feed-forward blocks: which algorithm computes one, and the scratch memory of each algorithm.

use hal::TensorDesc;
use hal::format::Format;
use hal::op::{Activation, Down, ExpertRanges, FfnKind, Skip, SparseFfn};

use crate::scratch::{Scratch, ScratchRange};
use crate::step::takes_q8;

/// Maximum number of tokens that are processed row by row. Up to this number, a token's result does
/// not depend on the other tokens, bit for bit.
pub const FEW_TOKENS: usize = 16;
/// Number of words before the neuron values; token `t` counts its active neurons in word `t`.
pub const N_COUNTS: usize = 64;
/// Marks the value of a skipped neuron: -0, which no computed neuron has.
pub const DROPPED: u32 = 0x8000_0000;

/// Maximum number of tokens processed at once in prefill, and of (token, expert) pairs. Both bound
/// the scratch memory for neuron values.
const CHUNK_TOKENS: usize = 256;
const MAX_PAIRS: usize = 4096;

/// How a feed-forward block is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FfnAlgorithm {
    /// Gate first, then only the active neurons, up to [`FEW_TOKENS`] tokens at a time.
    Few,
    /// First the products with all rows of gate and up, then inactive neurons are dropped.
    Many,
    /// Like [`Self::Many`], but each expert processes only the tokens that are routed to it.
    Experts,
}

impl FfnAlgorithm {
    /// `by_expert` says whether the backend can give each expert only its tokens.
    #[must_use]
    pub fn select(op: &SparseFfn<TensorDesc>, by_expert: bool) -> FfnAlgorithm {
        let (cut, many) = (matches!(op.skip, Skip::GaussianCut(_)), op.x.n_rows > FEW_TOKENS);
        match op.experts {
            _ if cut => FfnAlgorithm::Many,
            None if many => FfnAlgorithm::Many,
            Some(_) if many && by_expert => FfnAlgorithm::Experts,
            None | Some(_) => FfnAlgorithm::Few,
        }
    }

    /// Why the plan of this op is slow; `None` if it is not.
    #[must_use]
    pub fn slow(self, op: &SparseFfn<TensorDesc>) -> Option<&'static str> {
        (self == FfnAlgorithm::Few && op.x.n_rows > FEW_TOKENS)
            .then_some("experts with row lists process only 16 tokens at a time on GPUs")
    }
}

/// Number of an op's tokens that prefill processes at once if they are not routed to experts.
#[must_use]
pub fn chunk_tokens(n_tokens: usize) -> usize {
    n_tokens.min(CHUNK_TOKENS)
}

/// Whether gate or up reads x in Q8 blocks.
#[must_use]
pub fn quantizes_x(gate: Option<Format>, up: Format) -> bool {
    takes_q8(up) || gate.is_some_and(takes_q8)
}

/// Whether the down projection reads the neuron values in Q8 blocks.
#[must_use]
pub fn quantizes_h(op: &SparseFfn<TensorDesc>) -> bool {
    op.orientation == Down::AcrossNeurons && takes_q8(op.down.format)
}

/// Values of x that `n_tokens` need in Q8 blocks.
fn x_values(op: &SparseFfn<TensorDesc>, n_tokens: usize) -> usize {
    let quantized = quantizes_x(op.gate.as_ref().map(|gate| gate.format), op.up.format);
    if quantized { n_tokens * op.x.n_cols } else { 0 }
}

/// Scratch memory of [`FfnAlgorithm::Few`] without that of the down projection.
#[derive(Clone, Copy, Debug)]
pub struct FewScratch {
    /// x in Q8 blocks.
    pub q8: ScratchRange,
    /// Counts of active neurons, then the neuron values.
    pub h: ScratchRange,
}

impl FewScratch {
    /// Reserves it for the tokens that are processed at once.
    pub fn new(op: &SparseFfn<TensorDesc>, scratch: &mut Scratch) -> FewScratch {
        let n_tokens = op.x.n_rows.min(FEW_TOKENS);
        FewScratch {
            q8: scratch.q8(x_values(op, n_tokens)),
            h: scratch.words(N_COUNTS + n_tokens * op.up.n_rows),
        }
    }
}

/// Scratch memory of [`FfnAlgorithm::Many`] without that of the down projection.
#[derive(Clone, Copy, Debug)]
pub struct ManyScratch {
    /// x in Q8 blocks.
    pub q8: ScratchRange,
    /// The row list's membership bits, indexed by row.
    pub mask: ScratchRange,
    /// Active neurons of each token.
    pub counts: ScratchRange,
    /// The test value below which a token's neurons are inactive.
    pub cuts: ScratchRange,
    /// Products with the gate, or with up if there is no gate; later the neuron values.
    pub tests: ScratchRange,
    /// Products with up beside a gate.
    pub ups: ScratchRange,
}

impl ManyScratch {
    /// Reserves it for the tokens that are processed at once.
    pub fn new(op: &SparseFfn<TensorDesc>, scratch: &mut Scratch) -> ManyScratch {
        let (n, n_rows) = (chunk_tokens(op.x.n_rows), op.up.n_rows);
        let words = match &op.rows {
            hal::Rows::All => 0,
            hal::Rows::Active(set) => set.members.n_cols,
        };
        ManyScratch {
            q8: scratch.q8(x_values(op, n)),
            mask: scratch.words(n_rows * words),
            counts: scratch.words(n),
            cuts: scratch.words(n),
            tests: scratch.words(n * n_rows),
            ups: scratch.words(if op.gate.is_some() { n * n_rows } else { 0 }),
        }
    }
}

/// Sizes of an op with experts, for a chunk of its tokens.
#[derive(Clone, Copy, Debug)]
pub struct ExpertSizes {
    /// Tokens of the chunk.
    pub n_tokens: usize,
    /// All experts.
    pub n_expert: usize,
    /// Experts that a token uses.
    pub n_used: usize,
    /// Pairs of a token and an expert that it uses.
    pub n_pairs: usize,
    /// Maximum number of rows of an expert.
    pub max_rows: usize,
}

impl ExpertSizes {
    /// Maximum number of tokens processed at once.
    #[must_use]
    pub fn chunk_tokens(experts: &ExpertRanges) -> usize {
        CHUNK_TOKENS.min(MAX_PAIRS / experts.n_used.max(1)).max(1)
    }

    /// The sizes if `n_tokens` remain.
    #[must_use]
    pub fn new(n_tokens: usize, experts: &ExpertRanges) -> ExpertSizes {
        let n_tokens = n_tokens.min(ExpertSizes::chunk_tokens(experts));
        let max_rows = experts.rows().map(|rows| rows.len()).max().unwrap_or(0);
        let (n_expert, n_used) = (experts.n_expert(), experts.n_used);
        ExpertSizes { n_tokens, n_expert, n_used, n_pairs: n_tokens * n_used, max_rows }
    }
}

/// Scratch memory of [`FfnAlgorithm::Experts`] without the lists of pairs.
#[derive(Clone, Copy, Debug)]
pub struct ExpertScratch {
    /// x in Q8 blocks.
    pub q8: ScratchRange,
    /// Active neurons of each token.
    pub counts: ScratchRange,
    /// As in [`ManyScratch`], for each pair.
    pub tests: ScratchRange,
    /// As in [`ManyScratch`], for each pair.
    pub ups: ScratchRange,
    /// Neuron values in Q8 blocks.
    pub h_q8: ScratchRange,
    /// Partial sums of the down projection.
    pub partial: ScratchRange,
}

impl ExpertScratch {
    /// `n_parts`: ranges of rows of the down projection that are multiplied one after another.
    pub fn new(
        op: &SparseFfn<TensorDesc>,
        experts: &ExpertRanges,
        n_parts: usize,
        scratch: &mut Scratch,
    ) -> ExpertScratch {
        let sizes = ExpertSizes::new(op.x.n_rows, experts);
        let n_h = sizes.n_pairs * sizes.max_rows;
        ExpertScratch {
            q8: scratch.q8(x_values(op, sizes.n_tokens)),
            counts: scratch.words(sizes.n_tokens),
            tests: scratch.words(n_h),
            ups: scratch.words(if op.gate.is_some() { n_h } else { 0 }),
            h_q8: scratch.q8(if quantizes_h(op) { n_h } else { 0 }),
            partial: scratch.words(n_parts * sizes.n_pairs * op.y.n_cols),
        }
    }
}

/// The numbers by which kernels and shaders know how a neuron is computed and when it is skipped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FfnCodes {
    /// The FFN kind.
    pub kind: u32,
    /// The activation, with its factor, slope and limit.
    pub activation: u32,
    /// Factor, slope and limit of the activation.
    pub parameters: [f32; 3],
    /// The skip rule.
    pub skip: u32,
}

impl FfnCodes {
    /// The codes of an op.
    #[must_use]
    pub fn of<T: hal::Operand>(op: &SparseFfn<T>) -> FfnCodes {
        let kind = match op.kind {
            FfnKind::Plain => 0,
            FfnKind::Gated => 1,
            FfnKind::GatedBoth => 2,
        };
        let (activation, parameters) = match op.activation {
            Activation::Relu => (0, [0.0; 3]),
            Activation::Relu2 => (1, [0.0; 3]),
            Activation::Silu => (2, [0.0; 3]),
            Activation::Gelu => (3, [0.0; 3]),
            Activation::GeluErf => (4, [0.0; 3]),
            Activation::SwigluOai { alpha, limit } => (5, [alpha, 0.0, limit]),
            Activation::SwigluClamped { limit } => (6, [1.0, 0.0, limit]),
            Activation::SiluClamped { limit } => (7, [0.0, 0.0, limit]),
            Activation::XIelu { positive, negative, slope } => (8, [positive, slope, negative]),
            Activation::Situ { beta, cap } => (9, [beta, 0.0, cap]),
        };
        let skip = match op.skip {
            Skip::Never => 0,
            Skip::NotPositive => 1,
            Skip::BelowPerRow => 2,
            Skip::GaussianCut(_) => 3,
        };
        FfnCodes { kind, activation, parameters, skip }
    }
}
