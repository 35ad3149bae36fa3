//! The head of a ranking model, which scores how well a document answers a query.

use hal::HostRows;

use super::hyper::Keys;
use super::reader::Reader;
use super::{ArchSpec, Error, Hyper};

/// llama.cpp's `LLAMA_POOLING_TYPE_MEAN`.
const MEAN: u32 = 1;

/// Linear layers after the output norm of a ranking model, with the tensors `cls` and `cls.output`.
/// The formula is that of `build_pooling` in llama.cpp's `src/llama-graph.cpp`. Computed on the
/// host.
#[derive(Clone, Debug)]
pub struct RankHead {
    /// `[n_embd, n_embd]`, or `[n_outputs, n_embd]` without `output`; followed by tanh.
    dense: Option<Linear>,
    /// `[n_outputs, n_embd]`.
    output: Option<Linear>,
    /// Whether the input is the mean over all tokens; otherwise it is the last token's state.
    is_mean: bool,
    softmax: bool,
    /// Factor on the input, to undo the output norm's division by the logit scale.
    scale: f32,
}

#[derive(Clone, Debug)]
struct Linear {
    /// `[n_out, n_in]`, in the file's format.
    w: HostRows,
    /// `n_out` values; empty without a bias.
    bias: Vec<f32>,
}

impl Linear {
    fn read(reader: &Reader<'_>, name: &str, n_out: usize, n_in: usize) -> Result<Linear, Error> {
        let bias = reader.optional_floats(&format!("{name}.bias"), n_out)?;
        let w = reader.matrix(&format!("{name}.weight"), n_out, n_in)?;
        Ok(Linear { w, bias: bias.unwrap_or_default() })
    }

    fn apply(&self, x: &[f32]) -> Vec<f32> {
        let desc = self.w.desc();
        let mut row = vec![0.0; desc.n_cols];
        let mut product = |i: usize| {
            let bytes = self.w.rows(i..i + 1).expect("mapped rows are in memory");
            desc.format.dequantize(&bytes, &mut row);
            let sum: f64 = row.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
            sum as f32 + self.bias.get(i).copied().unwrap_or(0.0)
        };
        (0..desc.n_rows).map(&mut product).collect()
    }
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
        let pooling = keys.metadata.u32(&keys.name("classifier.pooling_type"))?;
        Ok(Some(RankHead {
            dense: linear(has_dense, "cls", n_dense)?,
            output: linear(has_output, "cls.output", n_outputs)?,
            is_mean: pooling == Some(MEAN),
            softmax: spec.rank_softmax,
            scale: hyper.scales.logits.recip(),
        }))
    }

    /// Whether [`RankHead::outputs`] takes the mean over all tokens; otherwise it takes the last
    /// token's state.
    #[must_use]
    pub fn is_mean(&self) -> bool {
        self.is_mean
    }

    /// The outputs for a final hidden state of `n_embd` values, after the output norm. The first
    /// output is the score. In Qwen 3 the outputs are the probabilities of "yes" and "no"; in other
    /// families they have no fixed range.
    #[must_use]
    pub fn outputs(&self, hidden: &[f32]) -> Vec<f32> {
        let mut values: Vec<f32> = hidden.iter().map(|x| x * self.scale).collect();
        if let Some(dense) = &self.dense {
            values = dense.apply(&values);
            values.iter_mut().for_each(|x| *x = x.tanh());
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
