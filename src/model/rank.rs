//! The head of a ranking model, which scores how well a document answers a query.

use super::hyper::Keys;
use super::linear::Linear;
use super::reader::Reader;
use super::{ArchSpec, Error, Hyper, RankActivation};

/// llama.cpp's `LLAMA_POOLING_TYPE_MEAN`.
const MEAN: u32 = 1;

/// Linear layers after the output norm of a ranking model, with the tensors `cls` and `cls.output`.
/// The formula is that of `build_pooling` in llama.cpp's `src/llama-graph.cpp`. Computed on the
/// host.
#[derive(Clone, Debug)]
pub struct RankHead {
    /// `[n_embd, n_embd]`, or `[n_outputs, n_embd]` without `output`; followed by `activation`.
    dense: Option<Linear>,
    activation: RankActivation,
    /// Weights of the LayerNorm after `dense`, and its epsilon; `None` without it.
    norm: Option<(Vec<f32>, f32)>,
    /// `[n_outputs, n_embd]`.
    output: Option<Linear>,
    state: RankState,
    softmax: bool,
    /// Factor on the input, to undo the output norm's division by the logit scale.
    scale: f32,
}

/// The state of a text that a [`RankHead`] takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankState {
    /// The mean over all tokens.
    Mean,
    /// That of the first token (encoders).
    First,
    /// That of the last token.
    Last,
}

impl RankHead {
    /// Reads the head; `None` if the file has none. `classifier.output_labels` names the outputs;
    /// without labels there is one output.
    pub(super) fn read(
        reader: &Reader<'_>,
        keys: &Keys<'_>,
        spec: &ArchSpec,
        hyper: &Hyper,
    ) -> Result<Option<RankHead>, Error> {
        let [has_dense, has_output] = ["cls.weight", "cls.output.weight"].map(|t| reader.has(t));
        if !has_dense && !has_output {
            return Ok(None);
        }
        let labels = keys.metadata.str_array(&keys.name("classifier.output_labels"))?;
        let n_outputs = labels.map_or(1, |labels| labels.len().max(1));
        let n_embd = hyper.n_embd;
        let n_dense = if has_output { n_embd } else { n_outputs };
        let linear = |is_there: bool, name: &str, n_out: usize| {
            is_there.then(|| Linear::read(reader, name, n_out, n_embd)).transpose()
        };
        let state = match keys.metadata.u32(&keys.name("classifier.pooling_type"))? {
            Some(MEAN) => RankState::Mean,
            // As in llama.cpp.
            None if spec.rank_activation == RankActivation::Gelu => RankState::Mean,
            _ if hyper.causal => RankState::Last,
            _ => RankState::First,
        };
        let norm = reader.optional_floats("cls.norm.weight", n_embd)?;
        Ok(Some(RankHead {
            dense: linear(has_dense, "cls", n_dense)?,
            output: linear(has_output, "cls.output", n_outputs)?,
            activation: spec.rank_activation,
            norm: norm.map(|weights| (weights, hyper.eps)),
            state,
            softmax: spec.rank_softmax,
            scale: hyper.scales.logits.recip(),
        }))
    }

    /// The state that [`RankHead::outputs`] takes.
    #[must_use]
    pub fn state(&self) -> RankState {
        self.state
    }

    /// The outputs for a final hidden state of `n_embd` values, after the output norm. The first
    /// output is the score. In Qwen 3 the outputs are the probabilities of "yes" and "no"; in other
    /// families they have no fixed range.
    #[must_use]
    pub fn outputs(&self, hidden: &[f32]) -> Vec<f32> {
        let mut values: Vec<f32> = hidden.iter().map(|x| x * self.scale).collect();
        if let Some(dense) = &self.dense {
            values = dense.apply(&values);
            values.iter_mut().for_each(|x| *x = self.activation.apply(*x));
        }
        if let Some((weights, eps)) = &self.norm {
            layer_norm(&mut values, weights, *eps);
        }
        if let Some(output) = &self.output {
            values = output.apply(&values);
        }
        if self.softmax {
            let most = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            values.iter_mut().for_each(|x| *x = (*x - most).exp());
            let sum: f32 = values.iter().sum();
            values.iter_mut().for_each(|x| *x /= sum);
        }
        values
    }
}

fn layer_norm(values: &mut [f32], weights: &[f32], eps: f32) {
    let n = values.len() as f32;
    let mean = values.iter().sum::<f32>() / n;
    let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / n;
    let factor = (variance + eps).sqrt().recip();
    values.iter_mut().zip(weights).for_each(|(x, weight)| *x = (*x - mean) * factor * weight);
}
