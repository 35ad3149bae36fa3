//! Scratch of a layer's ops, shared by all layers.

use std::convert::Infallible;

use hal::TensorDesc;
use hal::format::Format;

use model::Model;

use super::layer;
use super::memory::shapes;
use super::mixer::scratch_of;

/// Scratch tensors or their shapes, all `[n_ubatch, ...]`; programs use their first rows.
#[derive(Clone, Debug)]
pub(crate) struct Scratch<T> {
    pub(crate) x: T,
    pub(crate) h: T,
    pub(crate) y: T,
    /// Input of a share, handed off by the home device of the layer.
    pub(crate) handed: T,
    /// The router's weights, computed on a layer's home; present if there are experts.
    pub(crate) weights: Option<T>,
    /// Weight of the shared expert for each token; present if there are experts.
    pub(crate) shared_weight: Option<T>,
    /// Other scratch tensors by role and number of columns. Layers of the same sizes share them.
    by_role: Vec<(Role, usize, T)>,
}

/// The role of a scratch tensor in layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Queries; the input of a short convolution; `c` of a Mamba block.
    Query,
    /// Queries or `c` after their convolution or norm.
    QueryConv,
    /// Queries and gates as the output of one matrix.
    QueryGate,
    /// Gates of attention's output.
    Gate,
    /// Keys; `b` of a Mamba block.
    Key,
    /// Keys or `b` after their convolution or norm.
    KeyConv,
    /// The columns of the key that RoPE is applied to (MLA).
    KeyRope,
    /// Values; the input of a Mamba block's heads.
    Value,
    /// Values after their norm.
    ValueNormed,
    /// The input of the query matrix, if it is not the layer's input (MLA).
    LatentQuery,
    /// The input of the query matrix after its norm.
    LatentQueryNormed,
    /// The latent vector of keys and values (MLA).
    LatentKv,
    /// The latent vector after its norm.
    LatentKvNormed,
    /// Queries of cache rows of latent vectors (MLA).
    AbsorbedQuery,
    /// The weighted sums of latent vectors, before each head's value matrix (MLA).
    LatentSum,
    /// Queries of the indexer (DSA).
    IndexQuery,
    /// The same after their norm.
    IndexQueryNormed,
    /// The key of the indexer.
    IndexKey,
    /// The key of the indexer after its norm.
    IndexKeyNormed,
    /// The key of the indexer and its gates.
    IndexKeyGate,
    /// Weights of the indexer's heads.
    IndexWeights,
    /// The positions that tokens attend to, kept for the layers that share them.
    Selected,
    /// Values of the positions of a block (DeepSeek-V4).
    BlockValues,
    /// Gates of the positions of a block.
    BlockGates,
    /// The positions and blocks that tokens attend to.
    BlockList,
    /// Output of the mixer before the output matrix.
    Mixed,
    /// The same after a matrix for each group of heads (DeepSeek-V4).
    GroupedOutput,
    /// Decay of a gated delta rule; step sizes of a Mamba block.
    Decay,
    /// Write strength (beta) of a gated delta rule.
    Beta,
    /// The product of the first of two matrices, for the decay or the gate of a gated delta rule.
    LowRank,
    /// The input of the step matrix of Mamba-1.
    Step,
    /// The input of the step matrix after its norm.
    StepNormed,
    /// The mean of a token's input and of the input before it (RWKV).
    Shifted,
    /// The token's input subtracted from the input before it (RWKV-6).
    Difference,
    /// The input of one product (RWKV-6).
    MixedInput,
    /// Gate of the feed-forward block's output, kept while the block is computed (RWKV-6).
    ChannelGate,
    /// The residual streams, kept during a step (Gemma 3n, hyper-connections).
    Streams,
    /// The streams predicted before a layer.
    Predicted,
    /// A summand of the streams.
    StreamPart,
    /// Output of the streams' router.
    StreamRouting,
    /// Shares of streams.
    StreamShares,
    /// Length of the first stream.
    StreamLength,
    /// The low-rank residual; at the end, a stream.
    Laurel,
    /// The low-rank residual between its two matrices.
    LaurelLow,
    /// Gates of the streams' values, or summands of the streams (hyper-connections).
    StreamGate,
    /// Another summand of the streams.
    StreamSum,
    /// The product of the first of the matrices that mix streams.
    StreamLow,
    /// The same after its activation.
    StreamLowGated,
    /// The embeddings of the tokens' n-grams, which the host writes.
    Ngrams,
    /// Scores of the streams for the embedding of n-grams.
    NgramScores,
    /// Snapshots of the residual, and the residual, kept during a step (Kimi K3).
    Snapshots,
    /// The same vectors after their norm, then times their shares in a mix.
    SnapshotParts,
    /// Scores of the vectors of a mix.
    MixScores,
    /// Shares of the vectors in a mix.
    MixShares,
    /// The mix.
    MixedResidual,
    /// A summand of the mix.
    MixSummand,
    /// Input of experts whose width is not that of the residual.
    LatentInput,
    /// Output of experts whose width is not that of the residual.
    LatentOutput,
    /// A summand of `LatentOutput` from other devices.
    LatentAnswer,
    /// Weights of the chunks of experts (GroveMoE).
    ChunkWeights,
    /// Output of the blocks that experts share.
    ChunkOutput,
    /// The normed embedding, kept during a step (Talkie).
    EmbeddingSkip,
    /// State of the low stack, kept during a step (HRM-Text).
    LowState,
    /// State of the high stack, kept during a step.
    HighState,
    /// Values of the first layer, kept during a step (RWKV-7).
    FirstValue,
    /// Output of attention in parallel with another mixer.
    Summand,
    /// Per-layer embeddings of the tokens for all layers, kept during a step.
    LayerInputs,
    /// A summand of `LayerInputs`: the projected embeddings, later the rows of the per-layer table.
    LayerInputsPart,
    /// Per-layer embeddings of the tokens for one layer.
    LayerInput,
    /// Gate of the per-layer embeddings for one layer.
    LayerGate,
    /// The tokens' experts, looked up in a table (DeepSeek-V4).
    ListedExperts,
    /// Weights of the experts before they scale the input.
    ExpertScores,
    /// Weight of a token's only expert.
    ExpertWeight,
    /// Normed input of a router.
    RouterInput,
    /// Input of a dense block in parallel with experts.
    DenseInput,
    /// Output of a dense block in parallel with experts.
    DenseOutput,
    /// Input of experts that read the layer's input, kept while the mixer runs.
    ExpertInput,
}

impl Role {
    fn label(self) -> &'static str {
        match self {
            Role::Query => "q",
            Role::QueryConv => "q_conv",
            Role::QueryGate => "q_gate",
            Role::Gate => "gate",
            Role::Key => "k",
            Role::KeyConv => "k_conv",
            Role::KeyRope => "k_rope",
            Role::Value => "v",
            Role::ValueNormed => "v_normed",
            Role::LatentQuery => "latent_q",
            Role::LatentQueryNormed => "latent_q_normed",
            Role::LatentKv => "latent",
            Role::LatentKvNormed => "latent_normed",
            Role::AbsorbedQuery => "absorbed_q",
            Role::LatentSum => "latent_sum",
            Role::IndexQuery => "index_q",
            Role::IndexQueryNormed => "index_q_normed",
            Role::IndexKey => "index_k",
            Role::IndexKeyNormed => "index_k_normed",
            Role::IndexKeyGate => "index_k_gate",
            Role::IndexWeights => "index_weights",
            Role::Selected => "selected",
            Role::BlockValues => "block_values",
            Role::BlockGates => "block_gates",
            Role::BlockList => "block_list",
            Role::Mixed => "mixed",
            Role::GroupedOutput => "grouped_output",
            Role::Decay => "decay",
            Role::Beta => "beta",
            Role::LowRank => "low_rank",
            Role::Step => "step",
            Role::StepNormed => "step_normed",
            Role::Shifted => "shifted",
            Role::Difference => "difference",
            Role::MixedInput => "mixed_input",
            Role::ChannelGate => "channel_gate",
            Role::Streams => "streams",
            Role::Predicted => "predicted",
            Role::StreamPart => "stream_part",
            Role::StreamRouting => "stream_routing",
            Role::StreamShares => "stream_shares",
            Role::StreamLength => "stream_length",
            Role::Laurel => "laurel",
            Role::LaurelLow => "laurel_low",
            Role::StreamGate => "stream_gate",
            Role::StreamSum => "stream_sum",
            Role::StreamLow => "stream_low",
            Role::StreamLowGated => "stream_low_gated",
            Role::Ngrams => "ngrams",
            Role::NgramScores => "ngram_scores",
            Role::Snapshots => "snapshots",
            Role::SnapshotParts => "snapshot_parts",
            Role::MixScores => "mix_scores",
            Role::MixShares => "mix_shares",
            Role::MixedResidual => "mixed_residual",
            Role::MixSummand => "mix_summand",
            Role::LatentInput => "latent_input",
            Role::LatentOutput => "latent_output",
            Role::LatentAnswer => "latent_answer",
            Role::ChunkWeights => "chunk_weights",
            Role::ChunkOutput => "chunk_output",
            Role::EmbeddingSkip => "embedding_skip",
            Role::LowState => "low_state",
            Role::HighState => "high_state",
            Role::FirstValue => "first_value",
            Role::Summand => "summand",
            Role::LayerInputs => "layer_inputs",
            Role::LayerInputsPart => "layer_inputs_part",
            Role::LayerInput => "layer_input",
            Role::LayerGate => "layer_gate",
            Role::ListedExperts => "listed_experts",
            Role::ExpertScores => "expert_scores",
            Role::ExpertWeight => "expert_weight",
            Role::RouterInput => "router_input",
            Role::DenseInput => "dense_input",
            Role::DenseOutput => "dense_output",
            Role::ExpertInput => "expert_input",
        }
    }

    fn format(self) -> Format {
        let is_list = matches!(self, Role::Selected | Role::BlockList);
        if is_list { Format::U32 } else { Format::F32 }
    }
}

impl Scratch<TensorDesc> {
    /// The shapes for `n_tokens` in sequences of `n_positions`.
    pub(crate) fn shapes(
        model: &Model,
        n_tokens: usize,
        n_positions: usize,
    ) -> Scratch<TensorDesc> {
        let f32 = |cols| TensorDesc::new(n_tokens, cols, Format::F32);
        let (n_embd, n_expert) = (model.hyper.n_embd, model.max_experts());
        let mut by_role: Vec<(Role, usize, TensorDesc)> = Vec::new();
        let of_layers = model.layers.iter().flat_map(|layer| {
            scratch_of(&shapes(layer), n_positions)
                .into_iter()
                .chain(layer::scratch_of(model, layer))
        });
        for (role, cols) in of_layers {
            if !by_role.iter().any(|known| (known.0, known.1) == (role, cols)) {
                by_role.push((role, cols, TensorDesc::new(n_tokens, cols, role.format())));
            }
        }
        Scratch {
            x: f32(n_embd),
            h: f32(n_embd),
            y: f32(n_embd),
            handed: f32(n_embd),
            weights: (n_expert > 0).then(|| f32(n_expert)),
            shared_weight: (n_expert > 0).then(|| f32(1)),
            by_role,
        }
    }
}

/// Maps a scratch tensor, given its label, to another kind of operand.
type MapScratch<'a, T, U, E> = dyn FnMut(&'static str, &T) -> std::result::Result<U, E> + 'a;

impl<T> Scratch<T> {
    pub(crate) fn try_map<U, E>(
        &self,
        f: &mut MapScratch<'_, T, U, E>,
    ) -> std::result::Result<Scratch<U>, E> {
        let maybe = |label, part: &Option<T>, f: &mut MapScratch<'_, T, U, E>| {
            part.as_ref().map(|part| f(label, part)).transpose()
        };
        Ok(Scratch {
            x: f("x", &self.x)?,
            h: f("h", &self.h)?,
            y: f("y", &self.y)?,
            handed: f("hand_off_input", &self.handed)?,
            weights: maybe("weights", &self.weights, f)?,
            shared_weight: maybe("shared_weight", &self.shared_weight, f)?,
            by_role: self
                .by_role
                .iter()
                .map(|(role, cols, tensor)| Ok((*role, *cols, f(role.label(), tensor)?)))
                .collect::<std::result::Result<_, E>>()?,
        })
    }

    /// The tensor of `cols` columns that layers use for `role`. [`scratch_of`] and
    /// [`layer::scratch_of`] list all of these tensors.
    pub(crate) fn at(&self, role: Role, cols: usize) -> &T {
        self.find(role, cols).expect("scratch is allocated for all layers")
    }

    /// What layers pass on in addition to the residual; each item has the same size in all layers:
    /// values of the first layer, residual streams, snapshots of the residual, states of stacks,
    /// the embedding, selected positions.
    pub(crate) fn passed_on(&self) -> impl Iterator<Item = &T> {
        const PASSED: [Role; 7] = [
            Role::FirstValue,
            Role::Streams,
            Role::Snapshots,
            Role::LowState,
            Role::HighState,
            Role::EmbeddingSkip,
            Role::Selected,
        ];
        let passed = |(role, ..): &&(Role, usize, T)| PASSED.contains(role);
        self.by_role.iter().filter(passed).map(|(_, _, tensor)| tensor)
    }

    /// The tensor of `cols` columns for `role`; `None` if no layer uses it.
    fn find(&self, role: Role, cols: usize) -> Option<&T> {
        let found = self.by_role.iter().find(|known| (known.0, known.1) == (role, cols));
        found.map(|(_, _, tensor)| tensor)
    }

    pub(crate) fn map<U>(&self, f: &mut dyn FnMut(&T) -> U) -> Scratch<U> {
        let mapped: std::result::Result<_, Infallible> =
            self.try_map(&mut |_, tensor| Ok(f(tensor)));
        match mapped {
            Ok(scratch) => scratch,
            Err(never) => match never {},
        }
    }
}

/// Total number of columns of the scratch tensors of a step in sequences of `n_positions`.
#[must_use]
pub fn scratch_width(model: &Model, n_positions: usize) -> usize {
    let mut width = 0;
    Scratch::shapes(model, 1, n_positions).map(&mut |desc| width += desc.n_cols);
    width
}
