//! The predictor of a layer's active neurons, as an op that fills lists of rows.

use std::sync::Arc;

use hal::format::Format;
use hal::op::{HiddenActivation, Predict};
use hal::{HostRows, Operand, RowSet, Source, TensorDesc};

use model::chooser::LayerPredictor;

/// The shape of a U32 tensor of row numbers, counts or membership bits.
pub(crate) fn u32_desc(n_rows: usize, n_cols: usize) -> TensorDesc {
    TensorDesc::new(n_rows, n_cols, Format::U32)
}

/// The shapes of a list of up to `capacity` rows for `n_tokens`.
pub(crate) fn list_desc(capacity: usize, n_tokens: usize) -> RowSet<TensorDesc> {
    RowSet {
        ids: u32_desc(1, capacity),
        count: u32_desc(1, 1),
        members: u32_desc(capacity, n_tokens.div_ceil(32)),
    }
}

/// Input of a predictor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// The input that the model's architecture defines.
    OfFile,
    /// The block's normed input.
    Normed,
}

/// The data of a predictor, on the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PredictorData<'a> {
    pub(crate) fc1: Option<&'a HostRows>,
    pub(crate) fc2: &'a HostRows,
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) threshold: f32,
    pub(crate) hidden: HiddenActivation,
    pub(crate) input: Input,
}

impl<'a> PredictorData<'a> {
    /// The predictor of a PowerInfer file, which selects neurons with a score of at least
    /// `threshold`.
    pub(crate) fn of_file(weights: &'a model::Predictor, threshold: f32) -> PredictorData<'a> {
        let model::Predictor { fc1, fc2 } = weights;
        let (hidden, input) = (HiddenActivation::Relu, Input::OfFile);
        PredictorData { fc1: Some(fc1), fc2, bias: None, threshold, hidden, input }
    }

    /// A trained predictor, for a relative error of `target` in the block's output.
    pub(crate) fn trained(layer: &'a LayerPredictor, target: f32) -> PredictorData<'a> {
        let threshold = layer.threshold(target);
        let LayerPredictor { fc1, fc2, bias, .. } = layer;
        let (hidden, input) = (HiddenActivation::Linear, Input::Normed);
        PredictorData { fc1: fc1.as_ref(), fc2, bias: Some(bias), threshold, hidden, input }
    }
}

/// A layer's predictor over tensors or, for planning, over their shapes.
#[derive(Clone, Debug)]
pub(crate) struct Predictor<T> {
    pub(crate) fc1: Option<T>,
    pub(crate) fc2: T,
    /// `[1, n_ff]`, added to the scores; `None` without a bias.
    pub(crate) bias: Option<T>,
    /// `[1, n_ff]`: the slot of each neuron, resident or absent.
    pub(crate) slots: T,
    pub(crate) threshold: f32,
    pub(crate) hidden: HiddenActivation,
    /// Which activations the op reads.
    pub(crate) input: Input,
}

impl Predictor<TensorDesc> {
    pub(crate) fn desc(data: PredictorData<'_>) -> Predictor<TensorDesc> {
        let PredictorData { fc1, fc2, bias, threshold, hidden, input } = data;
        let (fc1, fc2) = (fc1.map(HostRows::desc), fc2.desc());
        let bias = bias.map(|_| TensorDesc::new(1, fc2.n_rows, Format::F32));
        Predictor { fc1, fc2, bias, slots: u32_desc(1, fc2.n_rows), threshold, hidden, input }
    }
}

/// `values` as one row of F32.
pub(crate) fn vector(values: &[f32]) -> HostRows {
    let bytes: Vec<u8> = bytemuck::cast_slice(values).to_vec();
    let source = Source::Owned(Arc::new(bytes));
    HostRows::new(source, 1, values.len(), Format::F32).expect("the bytes match the values")
}

impl<T: Clone> Predictor<T> {
    /// The predictor over some of the neurons, with their rows, biases and slots.
    pub(crate) fn for_neurons(&self, fc2: T, bias: T, slots: T) -> Predictor<T> {
        Predictor { fc2, bias: Some(bias), slots, ..self.clone() }
    }
}

impl<T: Operand> Predictor<T> {
    /// The op over the input `x`.
    pub(crate) fn op(&self, x: T, resident: RowSet<T>, absent: Option<RowSet<T>>) -> Predict<T> {
        let Predictor { fc1, fc2, bias, slots, threshold, hidden, .. } = self.clone();
        Predict { x, fc1, fc2, bias, slots, resident, absent, threshold, hidden }
    }
}
