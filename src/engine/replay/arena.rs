//! Host memory of steps: buffers that every step reuses, and sizes that every step needs.

use hal::op::Activation;
use hal::{BatchFacts, BatchSeq, HostRowSet, Run};

use model::{LayerWeights, Model};

use super::sent_rows::SentRows;
use crate::options::EngineOptions;
use crate::timeline::Timeline;

/// Everything that a step writes on the host, kept between steps so that a step allocates nothing.
#[derive(Debug)]
pub(crate) struct StepArena {
    pub(crate) sizes: StepSizes,
    /// The tokens of the step and their sequences.
    pub(crate) facts: BatchFacts,
    /// Number of tokens of each feed in the next device step.
    pub(crate) takes: Vec<usize>,
    /// `[n_out, n_vocab]`: the result of the latest step.
    pub(crate) logits: Vec<f32>,
    /// `[n_out, n_embd]`: the inputs of the output matrix in the latest step, if
    /// `reads_hidden`.
    pub(crate) hidden: Vec<f32>,
    pub(crate) reads_hidden: bool,
    pub(super) x: Vec<f32>,
    pub(crate) inputs: LayerInputs,
    pub(crate) ngrams: NgramRows,
    pub(super) weights: Vec<f32>,
    pub(super) y: Vec<f32>,
    pub(super) sum: Vec<f32>,
    pub(crate) active: Vec<f32>,
    pub(crate) counts: Vec<u32>,
    pub(crate) words: Vec<u32>,
    pub(super) sent: SentRows,
    /// The neurons of a layer that a predictor on the CPU chose.
    pub(super) listed: HostRowSet,
    /// The rows that the next layer is likely to select.
    pub(super) guessed: HostRowSet,
    pub(super) runs: Vec<Run>,
    pub(crate) timeline: Timeline,
    /// Activity of each layer, over all steps whose counters were read.
    pub(crate) activity: Vec<LayerActivity>,
}

/// The per-layer embeddings of the tokens in the current step, which every device with layers
/// reads.
#[derive(Debug, Default)]
pub(crate) struct LayerInputs {
    pub(super) rows: Vec<f32>,
    /// The devices that have these rows already.
    pub(crate) devices: Vec<usize>,
}

/// The n-grams of the tokens in the current step.
#[derive(Debug, Default)]
pub(crate) struct NgramRows {
    /// Rows of the table, in order of the tokens; empty in models without n-grams.
    pub(crate) rows: Vec<u32>,
    /// The values of these rows.
    pub(crate) values: Vec<f32>,
}

impl StepArena {
    pub(crate) fn new(sizes: StepSizes) -> StepArena {
        StepArena {
            activity: vec![LayerActivity::default(); sizes.n_layer],
            sizes,
            facts: BatchFacts::default(),
            takes: Vec::new(),
            logits: Vec::new(),
            hidden: Vec::new(),
            reads_hidden: false,
            x: Vec::new(),
            inputs: LayerInputs::default(),
            ngrams: NgramRows::default(),
            weights: Vec::new(),
            y: Vec::new(),
            sum: Vec::new(),
            active: Vec::new(),
            counts: Vec::new(),
            words: Vec::new(),
            sent: SentRows::default(),
            listed: HostRowSet::default(),
            guessed: HostRowSet::default(),
            runs: Vec::new(),
            timeline: Timeline::default(),
        }
    }

    /// Adds `n_tokens` times the neurons of each layer to its activity.
    pub(crate) fn count_neurons(&mut self, n_tokens: usize) {
        for (activity, block) in self.activity.iter_mut().zip(&self.sizes.blocks) {
            activity.neurons += ((block.n_ff + block.n_shared) * n_tokens) as f64;
        }
    }

    /// Clears `facts` for a device step of at most `n_seq` sequences.
    pub(crate) fn clear_facts(&mut self, n_seq: usize) {
        self.facts.tokens.clear();
        self.ngrams.rows.clear();
        self.facts.seqs.resize_with(n_seq, BatchSeq::default);
        for seq in &mut self.facts.seqs {
            seq.blocks.clear();
            seq.len = 0;
        }
    }
}

/// Activity of one layer over all steps whose counters were read, without the neurons that are
/// streamed to a device in prefill: these are counted for all layers together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerActivity {
    /// Active neurons, over all tokens.
    pub active: f64,
    /// Active neurons that were not on the CPU, over all tokens.
    pub off_cpu: f64,
    /// All neurons, over all tokens.
    pub neurons: f64,
}

#[derive(Clone, Debug)]
pub(crate) struct StepSizes {
    pub(crate) buckets: Vec<usize>,
    pub(crate) n_blocks: usize,
    pub(crate) n_vocab: usize,
    pub(crate) n_embd: usize,
    /// Number of columns of the per-layer embeddings for all layers; 0 in models without them.
    pub(crate) n_inputs: usize,
    pub(crate) n_layer: usize,
    pub(crate) blocks: Vec<BlockSizes>,
    /// Number of neurons of the shared experts, over all layers.
    pub(crate) n_shared: usize,
    /// Maximum number of experts of a layer; 0 in a dense model.
    pub(crate) n_expert: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockSizes {
    /// Number of neurons; 0 without a block.
    pub(crate) n_ff: usize,
    /// Number of experts; 0 in a dense block.
    pub(crate) n_expert: usize,
    /// Width of the input; 0 without a block.
    pub(crate) width: usize,
    /// Whether the experts have another width than the residual.
    pub(crate) is_latent: bool,
    /// Number of neurons of the shared expert.
    pub(crate) n_shared: usize,
    /// Activation; not used without a block.
    pub(crate) activation: Activation,
    /// Factor of the gates' cut-off; `None` without one.
    pub(crate) gaussian_cut: Option<f32>,
    /// Number of experts that a token uses.
    n_used: usize,
}

impl BlockSizes {
    pub(crate) fn new(layer: &LayerWeights) -> BlockSizes {
        let (n_expert, n_used) = layer.experts().map_or((0, 0), |by| (by.n, by.n_used));
        let activation = layer.ffn.as_ref().map_or(Activation::Silu, |ffn| ffn.activation);
        BlockSizes {
            n_ff: layer.n_ff(),
            n_expert,
            width: layer.ffn.as_ref().map_or(0, model::Ffn::width),
            is_latent: layer.frame.latent.is_some(),
            n_shared: layer.n_shared(),
            activation,
            gaussian_cut: layer.ffn.as_ref().and_then(|ffn| ffn.gaussian_cut),
            n_used,
        }
    }

    /// Expected share of the experts that `n` tokens use, if tokens choose experts independently; 1
    /// in a dense block.
    pub(crate) fn share_used(&self, n: usize) -> f64 {
        let each = self.n_used as f64 / self.n_expert.max(1) as f64;
        if self.n_expert == 0 { 1.0 } else { 1.0 - (1.0 - each).powf(n as f64) }
    }
}

impl StepSizes {
    pub(crate) fn new(model: &Model, options: &EngineOptions) -> StepSizes {
        StepSizes {
            buckets: options.buckets(),
            n_blocks: options.n_blocks(),
            n_vocab: model.n_vocab(),
            n_embd: model.hyper.n_embd,
            n_inputs: model.hyper.n_per_layer * model.hyper.n_layer,
            n_layer: model.hyper.n_layer,
            blocks: model.layers.iter().map(BlockSizes::new).collect(),
            n_shared: model.layers.iter().map(LayerWeights::n_shared).sum(),
            n_expert: model.max_experts(),
        }
    }

    /// Number of steps whose counters may accumulate before they are read: F32 counts exactly up
    /// to 2^24.
    pub(crate) fn max_deferred(&self) -> usize {
        let n_ff = self.blocks.iter().map(|block| block.n_ff).max().unwrap_or(0);
        ((1 << 24) / (n_ff + self.n_shared).max(1)).max(1)
    }

    /// The smallest recorded token count of at least `n`.
    pub(crate) fn padded(&self, n: usize) -> usize {
        self.buckets.iter().copied().find(|&size| size >= n).unwrap_or(n)
    }
}
