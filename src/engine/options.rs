//! How a model is to be run.

use std::sync::Arc;

use hal::format::Format;
use hal::{Bytes, KvCache};

use crate::converted::Converted;
use crate::model::{Ffn, Model};
use crate::placement::{CPU, DeviceIndex, Speed, Wishes};
use crate::predictor::{Chooser, Layers};

/// Which neurons are dropped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sparsity {
    /// Those that the file's predictor does not want, which changes words as its makers meant it, and then as
    /// [`Sparsity::Exact`]; as that alone where the file has no predictor.
    Predicted,
    /// Those that contribute exactly nothing; needs a ReLU-like activation, is the dense run elsewhere.
    Exact,
    /// Those that [`EngineOptions::chooser`] lets go so that a block's output is off by about this share of its size, and
    /// then as [`Sparsity::Exact`]; as that alone without one.
    Within(f32),
    /// None: the dense arithmetic on the file as it is, to compare with.
    Off,
}

/// Whether the CPU's neurons come to the device for prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streaming {
    /// From the number of tokens on from which that is faster by measured speeds, if there is one.
    Measured,
    /// In steps of `from` tokens and more (17 at least), in pieces of up to `piece` bytes, whatever it takes.
    Forced {
        /// Tokens.
        from: usize,
        /// Bytes of weights, as the file has them.
        piece: Bytes,
    },
    /// Never.
    Off,
}

/// Settings of an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Tokens of context, over all sequences; rounded up to whole cache blocks.
    pub n_ctx: usize,
    /// Most tokens of one step.
    pub n_ubatch: usize,
    /// Most sequences at once.
    pub n_seq: usize,
    /// Formats of the cached keys and values, each one of [`hal::op::KV_FORMATS`].
    pub kv_formats: KvCache<Format>,
    /// Which neurons are dropped.
    pub sparsity: Sparsity,
    /// Least score of a neuron that a predictor wants; `None` for the file's.
    pub sparse_threshold: Option<f32>,
    /// What was learned about the model's neurons, for [`Sparsity::Within`]; or a predictor that takes the place of the
    /// file's for [`Sparsity::Predicted`].
    pub chooser: Option<Arc<Chooser>>,
    /// Whether weights may be laid out anew. Without it they are used as the file has them: no memory beside the
    /// file's, and where neurons are dropped, all of down is read nevertheless.
    pub repack: bool,
    /// Packs made earlier, which are used where they are.
    pub converted: Option<Arc<Converted>>,
    /// What decides where layers and neurons go, besides sizes and budgets.
    pub placing: Placing,
    /// Whether neurons change sides while a text runs, as it uses others than were expected. What a token computes then
    /// depends, in its last bits, on what ran before it.
    pub adapt: bool,
    /// Whether the CPU's neurons come to the device for prompts.
    pub streaming: Streaming,
}

/// What decides where layers and neurons go, besides sizes and budgets.
#[derive(Clone, Debug)]
pub struct Placing {
    /// Of each layer, the share of tokens that use each neuron; `None` where that is not known.
    pub uses: Option<Arc<Vec<Vec<f32>>>>,
    /// The share of the neurons that a token uses in a model that skips neurons, where `uses` does not tell.
    pub density: f64,
    /// Speeds of the devices in their order, as measured. What is missing: a device that is a hundred times as
    /// fast as the CPU and hands over at no cost, so that all of its budget is used.
    pub speeds: Vec<Speed>,
    /// What the user wants otherwise.
    pub wishes: Wishes,
}

/// The share of neurons that published models with a ReLU in their feed-forward blocks use: 0.1 to 0.3.
const USUAL_DENSITY: f64 = 0.15;

impl Default for Placing {
    fn default() -> Placing {
        let wishes = Wishes::default();
        Placing { uses: None, density: USUAL_DENSITY, speeds: Vec::new(), wishes }
    }
}

impl Placing {
    /// The speed of a device.
    #[must_use]
    pub fn speed(&self, device: DeviceIndex) -> Speed {
        let factor = if device == CPU { 1.0 } else { 100.0 };
        let rate = factor * 1e10;
        let assumed = Speed { dense: rate, sparse: rate, ..Speed::default() };
        self.speeds.get(device).copied().unwrap_or(assumed)
    }
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            n_ctx: 2048,
            n_ubatch: 512,
            n_seq: 1,
            kv_formats: KvCache::both(Format::F16),
            sparsity: Sparsity::Predicted,
            sparse_threshold: None,
            chooser: None,
            repack: true,
            converted: None,
            placing: Placing::default(),
            adapt: false,
            streaming: Streaming::Measured,
        }
    }
}

impl EngineOptions {
    /// Steps are done in these numbers of tokens: powers of two up to `n_ubatch`, and `n_ubatch`.
    #[must_use]
    pub fn ladder(&self) -> Vec<usize> {
        let powers = (0..).map(|i| 1usize << i).take_while(|&n| n < self.n_ubatch);
        powers.chain([self.n_ubatch]).collect()
    }

    /// Layers of `model` in which predictors choose neurons in such a run. Where neurons are listed, down has to lie by
    /// neuron: in the file, or because weights may be laid out anew.
    #[must_use]
    pub fn n_predicting(&self, model: &Model) -> usize {
        if !model.is_exactly_sparse() {
            return 0;
        }
        let by_neuron = |ffn: &Ffn| self.repack || ffn.down_by_neuron;
        let blocks = model.layers.iter().map(|layer| &layer.ffn);
        match (self.sparsity, self.learned_layers()) {
            (Sparsity::Predicted, Some(Layers::Imported { layers, .. })) => {
                blocks.take(layers.len()).filter(|ffn| by_neuron(ffn)).count()
            }
            (Sparsity::Predicted, _) => {
                blocks.filter(|ffn| ffn.predictor.is_some() && by_neuron(ffn)).count()
            }
            (Sparsity::Within(_), Some(Layers::Predictors(layers))) => {
                blocks.take(layers.len()).filter(|ffn| by_neuron(ffn)).count()
            }
            (Sparsity::Within(_) | Sparsity::Exact | Sparsity::Off, _) => 0,
        }
    }

    /// Whether neurons are dropped by thresholds on their activation.
    #[must_use]
    pub fn has_thresholds(&self) -> bool {
        let layers = self.learned_layers();
        matches!((self.sparsity, layers), (Sparsity::Within(_), Some(Layers::Thresholds(_))))
    }

    /// What was learned about each layer.
    pub(super) fn learned_layers(&self) -> Option<&Layers> {
        self.chooser.as_ref().map(|chooser| &chooser.layers)
    }

    /// Whether there is any such layer.
    #[must_use]
    pub fn predicts(&self, model: &Model) -> bool {
        self.n_predicting(model) > 0
    }

    /// Most tokens of one step whose output is computed.
    #[must_use]
    pub fn max_out(&self) -> usize {
        self.n_ubatch.min(64)
    }

    /// Cache blocks.
    #[must_use]
    pub fn n_blocks(&self) -> usize {
        self.n_ctx.div_ceil(hal::KV_BLOCK)
    }
}
