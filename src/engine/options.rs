//! Options of an engine.

use std::sync::Arc;

use hal::format::Format;
use hal::op::NEVER_DENSE;
use hal::{Bytes, KvCache};

use crate::converted::RepackFile;
use model::chooser::{Chooser, Layers};
use model::{Ffn, Model};
use placement::{CPU, DeviceIndex, PlacementRules, PlanConstraints, Speed};

/// Which neurons are skipped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sparsity {
    /// Neurons that the file's predictor, or an imported predictor in its place, rejects, and the
    /// neurons of [`Sparsity::Exact`]. The predictor changes the text, as its authors intended.
    /// Without a predictor, as [`Sparsity::Exact`].
    Predicted,
    /// Neurons that contribute exactly zero. Needs a ReLU-like activation; with others, no neuron
    /// is skipped.
    Exact,
    /// Neurons that [`EngineOptions::chooser`] rejects for this relative error of a block's output,
    /// and the neurons of [`Sparsity::Exact`]. Without a chooser, as [`Sparsity::Exact`].
    Within(f32),
    /// No neurons: all arithmetic is dense, for comparison.
    Off,
}

/// When weights on the CPU are streamed to the device during prefill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streaming {
    /// In steps that are large enough for streaming to be faster, by measured speeds.
    Measured,
    /// In steps of at least `from` tokens (minimum 17), in chunks of up to `chunk_bytes` bytes, even
    /// if that is slower.
    Forced {
        /// Minimum number of tokens of a step.
        from: usize,
        /// Maximum size of a chunk, in bytes of the file's format.
        chunk_bytes: Bytes,
    },
    /// Weights are not streamed.
    Off,
}

/// Options of an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Number of tokens of context, over all sequences; rounded up to whole cache blocks.
    pub n_ctx: usize,
    /// Maximum number of tokens of a step (micro-batch).
    pub n_ubatch: usize,
    /// Whether a step has all tokens of a text, whose hidden states are read instead of logits, as
    /// encoders need. [`EngineOptions::for_model`] sets this.
    pub whole_texts: bool,
    /// Maximum number of sequences.
    pub n_seq: usize,
    /// Number of checkpoints of recurrent states, over all sequences. Models without recurrent
    /// layers need no checkpoints.
    pub n_checkpoint: usize,
    /// Formats of the cached keys and values, each one of [`hal::op::KV_FORMATS`].
    pub kv_formats: KvCache<Format>,
    /// Which neurons are skipped.
    pub sparsity: Sparsity,
    /// Minimum score of a neuron that the file's or an imported predictor selects; `None` for the
    /// predictor's own threshold.
    pub sparse_threshold: Option<f32>,
    /// The trained predictor or thresholds of the side file, for [`Sparsity::Within`]; or a
    /// predictor that replaces the file's for [`Sparsity::Predicted`]; `None` for neither.
    pub chooser: Option<Arc<Chooser>>,
    /// Whether weights may be repacked. Otherwise they are used in the file's layout: this needs no
    /// memory beyond the file's, but all of down is read even where neurons are skipped, unless the
    /// file has one row of down per neuron.
    pub repack: bool,
    /// The opened repack file, whose packs are used in place; `None` without one.
    pub converted: Option<Arc<RepackFile>>,
    /// Whether the CPU locks its weights in memory. It then copies its experts of split layers,
    /// instead of using them in matrices that also have the experts of other devices.
    pub locked: bool,
    /// Memory and disk, if the CPU's weights may be partly on disk; `None` to use them where they
    /// are mapped.
    pub paging: Option<PagingOptions>,
    /// Inputs of the planner other than sizes and budgets.
    pub placing: PlannerInputs,
    /// Whether neurons are exchanged between devices as the text changes. The last bits of logits
    /// then depend on the earlier exchanges.
    pub adapt: bool,
    /// When weights on the CPU are streamed to the device during prefill.
    pub streaming: Streaming,
    /// The share of active rows from which a step of several tokens computes all rows instead of a
    /// list of rows.
    pub dense_from: DenseFrom,
}

/// Memory for the CPU's weights, and the disk that the rest stays on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PagingOptions {
    /// Bytes of host memory for weights, KV cache and scratch.
    pub budget: Bytes,
    /// Number of threads that read from disk.
    pub depth: usize,
    /// How the neurons of layers with a predictor are read.
    pub neurons: NeuronReads,
}

/// How neurons that a predictor chooses are read from disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NeuronReads {
    /// All of the layer at once, in large reads.
    #[default]
    Layer,
    /// The rows of each chosen neuron, in each matrix of the file.
    Rows,
    /// As [`NeuronReads::Rows`], from [`EngineOptions::converted`], where the rows of a neuron lie
    /// together. Idea: neuron bundles of PowerInfer-2 (Xue et al., 2024), row-column bundling of
    /// LLM in a flash (Alizadeh et al., 2023).
    Bundles,
}

/// How fast a disk reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReadRates {
    /// Bytes per second of large reads.
    pub bandwidth: f64,
    /// Reads of a neuron's rows per second.
    pub small_reads: f64,
}

impl ReadRates {
    /// The rates of a usual solid-state disk with this bandwidth: it reads 16 KiB in the time in
    /// which a large read gets 32 KiB.
    #[must_use]
    pub fn of_bandwidth(bandwidth: f64) -> ReadRates {
        ReadRates { bandwidth, small_reads: bandwidth / f64::from(32 << 10) }
    }
}

/// Shares of active rows for [`hal::op::SparseFfn::dense_from`], one for each of
/// [`DenseFrom::TOKENS`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DenseFrom(pub [f32; DenseFrom::TOKENS.len()]);

impl DenseFrom {
    /// Token counts of the measured steps; a count in between uses the share of the next larger
    /// count.
    pub const TOKENS: [usize; 4] = [2, 4, 8, 16];

    /// Always computes lists of rows: the default without a measurement.
    pub const NEVER: DenseFrom = DenseFrom([NEVER_DENSE; DenseFrom::TOKENS.len()]);

    /// The share for a step of `n` tokens.
    #[must_use]
    pub fn at(&self, n: usize) -> f32 {
        let found = DenseFrom::TOKENS.iter().position(|&tokens| n <= tokens);
        found.filter(|_| n > 1).map_or(NEVER_DENSE, |i| self.0[i])
    }
}

/// Inputs of the planner other than sizes and budgets.
#[derive(Clone, Debug)]
pub struct PlannerInputs {
    /// Per layer, the share of tokens that use each neuron; `None` if unknown.
    pub uses: Option<Arc<Vec<Vec<f32>>>>,
    /// The share of neurons that a token uses in a sparse model, where `uses` is unknown.
    pub density: f64,
    /// How fast the disk reads that weights are on; `None` if that is unknown or all are in memory.
    pub disk: Option<ReadRates>,
    /// Measured speeds of the devices, in their order. A missing entry means a device 100
    /// times as fast as the CPU with free hand-offs, so that all of its budget is used.
    pub speeds: Vec<Speed>,
    /// Options fixed by the user.
    pub constraints: PlanConstraints,
    /// The user's rules for layers, embedding and head.
    pub rules: Arc<PlacementRules>,
}

/// Density assumed without a profile. Published models with ReLU feed-forward blocks have 0.1 to
/// 0.3.
const USUAL_DENSITY: f64 = 0.15;

impl Default for PlannerInputs {
    fn default() -> PlannerInputs {
        let constraints = PlanConstraints::default();
        let rules = Arc::default();
        let (uses, disk, speeds) = Default::default();
        PlannerInputs { uses, density: USUAL_DENSITY, disk, speeds, constraints, rules }
    }
}

impl PlannerInputs {
    /// The measured speed of a device, else an assumed one.
    #[must_use]
    pub fn speed(&self, device: DeviceIndex) -> Speed {
        let factor = if device == CPU { 1.0 } else { 100.0 };
        let rate = factor * 1e10;
        let assumed = Speed { dense: rate, sparse: rate, ..Speed::default() };
        self.speeds.get(device).copied().unwrap_or(assumed)
    }

    /// The share of tokens that use a neuron of a layer; 0 if unknown.
    pub(crate) fn use_of(&self, layer: usize, neuron: usize) -> f64 {
        let of = self.uses.as_ref().and_then(|uses| uses.get(layer)?.get(neuron));
        of.map_or(0.0, |share| f64::from(*share))
    }
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            n_ctx: 2048,
            n_ubatch: 512,
            whole_texts: false,
            n_seq: 1,
            n_checkpoint: 0,
            kv_formats: KvCache::both(Format::F16),
            sparsity: Sparsity::Predicted,
            sparse_threshold: None,
            chooser: None,
            repack: true,
            converted: None,
            locked: false,
            paging: None,
            placing: PlannerInputs::default(),
            adapt: false,
            streaming: Streaming::Measured,
            dense_from: DenseFrom::NEVER,
        }
    }
}

impl EngineOptions {
    /// These options, changed to what `model` needs: an encoder computes texts of up to the whole
    /// context in one step.
    #[must_use]
    pub fn for_model(self, model: &Model) -> EngineOptions {
        if model.hyper.causal {
            return self;
        }
        EngineOptions { n_ubatch: self.n_ctx.max(1), whole_texts: true, ..self }
    }

    /// Token counts for which steps are recorded: powers of two below `n_ubatch`, and `n_ubatch`.
    /// Steps with whole texts are padded, so there are counts between these powers too.
    #[must_use]
    pub fn buckets(&self) -> Vec<usize> {
        let between = |power: usize| (self.whole_texts && power > 2).then_some(power / 4 * 3);
        let powers = (0..).map(|i| 1usize << i);
        let sizes = powers.flat_map(|power| between(power).into_iter().chain([power]));
        sizes.take_while(|&n| n < self.n_ubatch).chain([self.n_ubatch]).collect()
    }

    /// Number of layers of `model` in which predictors choose neurons with these options. A layer
    /// with lists of neurons needs down with one row per neuron: in the file, or by repacking.
    #[must_use]
    pub fn n_predicting(&self, model: &Model) -> usize {
        if !model.is_exactly_sparse() {
            return 0;
        }
        let by_neuron = |ffn: &Ffn| self.repack || ffn.down_by_neuron;
        let blocks = || model.blocks().map(|(_, ffn)| ffn);
        // The chooser's entries are indexed by layer.
        let known = |n: usize| model.blocks().filter(move |(index, _)| *index < n);
        match (self.sparsity, self.chooser_layers()) {
            (Sparsity::Predicted, Some(Layers::Imported { layers, .. })) => {
                known(layers.len()).filter(|(_, ffn)| by_neuron(ffn)).count()
            }
            (Sparsity::Predicted, _) => {
                blocks().filter(|ffn| ffn.predictor.is_some() && by_neuron(ffn)).count()
            }
            (Sparsity::Within(_), Some(Layers::Predictors(layers))) => {
                known(layers.len()).filter(|(_, ffn)| by_neuron(ffn)).count()
            }
            (Sparsity::Within(_) | Sparsity::Exact | Sparsity::Off, _) => 0,
        }
    }

    /// Whether neurons are skipped by thresholds on their activation.
    #[must_use]
    pub fn has_thresholds(&self) -> bool {
        let layers = self.chooser_layers();
        matches!((self.sparsity, layers), (Sparsity::Within(_), Some(Layers::Thresholds(_))))
    }

    /// The trained or imported predictors or the thresholds per layer; `None` without
    /// [`EngineOptions::chooser`].
    pub(crate) fn chooser_layers(&self) -> Option<&Layers> {
        self.chooser.as_ref().map(|chooser| &chooser.layers)
    }

    /// Whether predictors choose neurons in any layer of `model`.
    #[must_use]
    pub fn predicts(&self, model: &Model) -> bool {
        self.n_predicting(model) > 0
    }

    /// Maximum number of tokens of one step whose logits are computed.
    #[must_use]
    pub fn max_out(&self) -> usize {
        if self.whole_texts { self.n_ubatch } else { self.n_ubatch.min(self.n_seq.max(64)) }
    }

    /// Number of KV cache blocks.
    #[must_use]
    pub fn n_blocks(&self) -> usize {
        self.n_ctx.div_ceil(hal::KV_BLOCK)
    }
}
