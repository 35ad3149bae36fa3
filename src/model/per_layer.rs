//! Per-layer embeddings: a second embedding table gives each token an input for every layer (Gemma
//! 3n and 4).

use hal::HostRows;

use super::hyper::Keys;
use super::layer::MapOperand;
use super::layers::LayerReader;
use super::reader::{Reader, f32_matrix};
use super::{Affine, Error, Hyper};

/// The per-layer embeddings of a model. If `x` is the scaled embedding of a token, the input of a
/// layer is `(table[id] * sqrt(width) + norm(proj . x / sqrt(n_embd))) / sqrt(2)`.
#[derive(Clone, Debug)]
pub struct PerLayerEmbedding<T = HostRows> {
    /// Number of values per token and layer.
    pub width: usize,
    /// `[n_vocab, n_layer * width]`.
    pub table: T,
    /// `[n_layer * width, n_embd]`.
    pub proj: Affine<T>,
    /// `[1, width]`, F32: weight of the norm, divided by `sqrt(2)`.
    pub norm: T,
}

/// Weights that add a token's per-layer embedding, after the feed-forward block of a layer:
/// `x += norm(proj . (gelu(gate . x) * embedding))`.
#[derive(Clone, Debug)]
pub struct PerLayer<T = HostRows> {
    /// `[width, n_embd]`.
    pub gate: Affine<T>,
    /// `[n_embd, width]`.
    pub proj: Affine<T>,
    /// `[1, n_embd]`.
    pub norm: Affine<T>,
}

impl PerLayerEmbedding {
    /// Reads the per-layer embeddings; `None` if the model has none.
    pub(super) fn read(
        reader: &Reader<'_>,
        keys: &Keys<'_>,
        hyper: &Hyper,
        n_vocab: usize,
    ) -> Result<Option<PerLayerEmbedding>, Error> {
        let Hyper { n_layer, n_embd, n_per_layer: width, .. } = *hyper;
        if width == 0 {
            return Ok(None);
        }
        let Some(all) = width.checked_mul(n_layer) else {
            return Err(keys.wrong_key(WIDTH, "a total width that does not overflow", width));
        };
        let norm = reader.floats("per_layer_proj_norm.weight", 1, width)?;
        let norm: Vec<f32> = norm.iter().map(|w| w * std::f32::consts::FRAC_1_SQRT_2).collect();
        Ok(Some(PerLayerEmbedding {
            width,
            table: reader.matrix("per_layer_token_embd.weight", n_vocab, all)?,
            proj: reader.affine("per_layer_model_proj", all, n_embd)?,
            norm: f32_matrix(1, &norm),
        }))
    }
}

pub(super) const WIDTH: &str = "embedding_length_per_layer_input";

/// Number of values per token and layer; 0 without per-layer embeddings.
pub(super) fn width(keys: &Keys<'_>) -> Result<usize, Error> {
    match keys.metadata.u32(&keys.name(WIDTH)) {
        // Some files state 0 when there are no per-layer embeddings.
        Ok(Some(0)) => Ok(0),
        _ => Ok(keys.count(WIDTH)?.unwrap_or(0)),
    }
}

impl<T> PerLayerEmbedding<T> {
    /// Applies `f` to every operand.
    ///
    /// # Errors
    /// The first error of `f`.
    pub fn try_map<U, E>(
        &self,
        f: &mut MapOperand<'_, T, U, E>,
    ) -> Result<PerLayerEmbedding<U>, E> {
        Ok(PerLayerEmbedding {
            width: self.width,
            table: f("per_layer_token_embd", &self.table)?,
            proj: self.proj.try_map("per_layer_model_proj", f)?,
            norm: f("per_layer_proj_norm", &self.norm)?,
        })
    }
}

impl<T> PerLayer<T> {
    pub(super) fn try_map<U, E>(&self, f: &mut MapOperand<'_, T, U, E>) -> Result<PerLayer<U>, E> {
        Ok(PerLayer {
            gate: self.gate.try_map("inp_gate", f)?,
            proj: self.proj.try_map("proj", f)?,
            norm: self.norm.try_map("post_norm", f)?,
        })
    }
}

impl LayerReader<'_> {
    /// Reads the factor on the normed embedding; `None` in models that do not add it.
    pub(super) fn embedding_skip(&self) -> Result<Option<HostRows>, Error> {
        let is_added = self.layers.spec.embedding_skip;
        is_added.then(|| self.f32_row("layer_output_scale.weight", 1, 1)).transpose()
    }

    /// Reads the factors on the outputs of mixer and feed-forward block, in the same models.
    pub(super) fn gains(&self) -> Result<[Option<HostRows>; 2], Error> {
        let has_gains = self.layers.spec.embedding_skip;
        let gain = |part: &str| {
            let tensor = self.tensor(part);
            if has_gains { self.layers.reader.optional_vector(&tensor, 1) } else { Ok(None) }
        };
        Ok([gain("attn_output.scale")?, gain("ffn_down.scale")?])
    }
}
