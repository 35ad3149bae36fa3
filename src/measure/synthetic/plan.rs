//! The tensors of a synthetic model, and the scale of their values.

use hal::format::Format;

use super::{Rope, Spec, plant::FiringThresholds};
use gguf::Container;

/// Variance that all attention blocks together add to the residual, relative to the embedding's.
const ADDED_BY_ATTENTION: f32 = 0.3;
/// Variance that all feed-forward blocks together add to the residual, relative to the embedding's.
const ADDED_BY_FFN: f32 = 1.0;
/// Variance of the attention scores, which puts most of the attention on a few tokens.
const SCORE_VARIANCE: f32 = 4.0;
/// Mean square of the attention output for values with mean square 1, over contexts of tens to
/// hundreds of tokens.
const ATTENTION_SQUARE: f32 = 0.2;
const LOGIT_DEVIATION: f32 = 2.5;
/// Standard deviation of the norms' weights.
pub(super) const NORM_DEVIATION: f32 = 0.1;

/// Role of a tensor. Its number is part of the seed of the tensor's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TensorRole {
    TokenEmbd = 1,
    OutputNorm,
    Output,
    RopeFreqs,
    AttnNorm,
    Q,
    K,
    V,
    O,
    FfnNorm,
    Gate,
    Up,
    /// One row per output.
    Down,
    /// One row per neuron, with the same values.
    DownByNeuron,
    Fc1,
    Fc2,
    /// Router of the experts.
    Router,
}

#[derive(Debug)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) role: TensorRole,
    /// Layer; 0 for tensors of the whole model.
    pub(super) layer: usize,
    /// Number of stacked matrices, one for each expert; 1 otherwise.
    pub(super) n: usize,
    /// Rows of all stacked matrices together.
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) format: Format,
}

impl Tensor {
    pub(super) fn row_bytes(&self) -> usize {
        self.format.row_bytes(self.cols).expect("the spec was checked to have whole blocks")
    }
}

/// All values that are computed before the weights.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    pub(super) spec: &'a Spec,
    pub(super) n_const: usize,
    /// Hidden width of the predictor: features, features negated, constants.
    pub(super) n_hidden: usize,
    pub(super) firing: FiringThresholds,
}

impl Plan<'_> {
    /// Plans the model of `spec`, which must be valid.
    pub(super) fn new(spec: &Spec) -> Plan<'_> {
        let block = spec.format.block_values();
        let n_hidden = (spec.shape.n_embd / 4).max(256).max(2 * block).next_multiple_of(block);
        let firing = FiringThresholds::new(spec.shape.n_ff, spec.density, spec.relu);
        let n_hidden = n_hidden.next_multiple_of(2);
        Plan { spec, n_const: spec.n_const(), n_hidden, firing }
    }

    /// Number of features that the neurons of a layer share.
    pub(super) fn n_features(&self) -> usize {
        (self.n_hidden - self.n_const) / 2
    }

    pub(super) fn tensors(&self, container: Container) -> Vec<Tensor> {
        let spec = self.spec;
        let shape = &spec.shape;
        let (d, n_ff, n_vocab) = (shape.n_embd, shape.n_ff, spec.n_vocab);
        let mut list = Vec::new();
        let mut add = |role, layer, name: &str, rows, cols| {
            let plain = rows == 1 || role == TensorRole::Router;
            let format = if plain { Format::F32 } else { spec.format };
            let experts = spec
                .experts
                .filter(|_| matches!(role, TensorRole::Gate | TensorRole::Up | TensorRole::Down));
            let ([n, _], suffix) = experts.map_or(([1, 1], ""), |experts| (experts, "_exps"));
            let name = format!("{name}{suffix}.weight");
            list.push(Tensor { name, role, layer, n, rows: n * rows, cols, format });
        };
        add(TensorRole::TokenEmbd, 0, "token_embd", n_vocab, d);
        add(TensorRole::OutputNorm, 0, "output_norm", 1, d);
        if !spec.tied {
            add(TensorRole::Output, 0, "output", n_vocab, d);
        }
        if let Rope::Llama3 { .. } = spec.rope {
            add(TensorRole::RopeFreqs, 0, "rope_freqs", 1, spec.d_head() / 2);
        }
        for layer in 0..shape.n_layer {
            let mut add = |role, name, rows, cols| {
                add(role, layer, &format!("blk.{layer}.{name}"), rows, cols);
            };
            add(TensorRole::AttnNorm, "attn_norm", 1, d);
            add(TensorRole::Q, "attn_q", spec.n_q(), d);
            add(TensorRole::K, "attn_k", spec.n_kv(), d);
            add(TensorRole::V, "attn_v", spec.n_kv(), d);
            add(TensorRole::O, "attn_output", d, spec.n_q());
            add(TensorRole::FfnNorm, "ffn_norm", 1, d);
            if let Some([n, _]) = spec.experts {
                add(TensorRole::Router, "ffn_gate_inp", n, d);
            }
            add(TensorRole::Gate, "ffn_gate", n_ff, d);
            add(TensorRole::Up, "ffn_up", n_ff, d);
            match container {
                Container::Gguf => add(TensorRole::Down, "ffn_down", d, n_ff),
                Container::PowerInfer => {
                    add(TensorRole::DownByNeuron, "ffn_down_t", n_ff, d);
                    add(TensorRole::Fc1, "fc1", self.n_hidden, d);
                    add(TensorRole::Fc2, "fc2", n_ff, self.n_hidden);
                }
            }
        }
        list
    }

    /// Channels that are not constant.
    fn n_free(&self) -> usize {
        self.spec.shape.n_embd - self.n_const
    }

    /// Variance of the residual's free channels before the attention of `layer`; if `layer` is the
    /// number of layers, before the last norm.
    fn variance(&self, layer: usize) -> f32 {
        let depth = layer as f32 / self.spec.shape.n_layer as f32;
        1.0 + depth * (ADDED_BY_ATTENTION + ADDED_BY_FFN)
    }

    /// As [`Self::variance`], before the feed-forward block of `layer`.
    pub(super) fn ffn_variance(&self, layer: usize) -> f32 {
        self.variance(layer) + ADDED_BY_ATTENTION / self.spec.shape.n_layer as f32
    }

    /// Standard deviation of weights whose outputs have standard deviation 1, for the normalised
    /// input of a residual with this variance.
    fn input_weight_deviation(&self, variance: f32) -> f32 {
        let n_free = self.n_free() as f32;
        let mean_square = (self.n_const as f32 + n_free * variance) / self.spec.shape.n_embd as f32;
        let normed = variance / mean_square * (1.0 + NORM_DEVIATION * NORM_DEVIATION);
        (n_free * normed).sqrt().recip()
    }

    pub(super) fn deviation_qk(&self, layer: usize) -> f32 {
        // A score is the product of q and k divided by the root of the head size, so each gets the
        // fourth root of the scores' variance.
        self.deviation_v(layer) * SCORE_VARIANCE.powf(0.25)
    }

    pub(super) fn deviation_v(&self, layer: usize) -> f32 {
        self.input_weight_deviation(self.variance(layer))
    }

    pub(super) fn deviation_ffn(&self, layer: usize) -> f32 {
        self.input_weight_deviation(self.ffn_variance(layer))
    }

    pub(super) fn deviation_o(&self) -> f32 {
        let added = ADDED_BY_ATTENTION / self.spec.shape.n_layer as f32;
        (added / (ATTENTION_SQUARE * self.spec.n_q() as f32)).sqrt()
    }

    pub(super) fn deviation_down(&self) -> f32 {
        let added = ADDED_BY_FFN / self.spec.shape.n_layer as f32;
        (added / (self.firing.mean_square * self.spec.shape.n_ff as f32)).sqrt()
    }

    pub(super) fn deviation_output(&self) -> f32 {
        LOGIT_DEVIATION * self.input_weight_deviation(self.variance(self.spec.shape.n_layer))
    }
}
