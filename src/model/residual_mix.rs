//! Attention over the residuals of earlier layers (Kimi K3): mixer and feed-forward block read a
//! softmax-weighted sum of snapshots of the residual. Generic over the operand: host rows, tensors or
//! shapes.

use hal::HostRows;

use super::Error;
use super::layer::MapOperand;
use super::layers::LayerReader;
use super::reader::f32_matrix;

/// Number of layers from one snapshot to the next; 0 for an ordinary residual.
const PERIOD: &str = "attn_res.block_size";

/// Maximum number of snapshots: each is kept for every token of a step.
const MAX_SNAPSHOTS: usize = 64;

/// The snapshots in one layer. The residual is a sum over the layers since the latest snapshot.
#[derive(Clone, Debug)]
pub struct ResidualMix<T = HostRows> {
    /// Number of snapshots before the layer.
    pub n_before: usize,
    /// Whether the layer's input becomes a snapshot; the residual then restarts from the mixer's
    /// output.
    pub takes_snapshot: bool,
    /// The mix that the mixer reads; `None` without snapshots, when it reads the residual.
    pub before_mixer: Option<MixWeights<T>>,
    /// The mix that the feed-forward block reads.
    pub before_ffn: MixWeights<T>,
    /// The mix that the output norm reads; `None` except in the last layer.
    pub end: Option<MixWeights<T>>,
    /// `[n, n]`, F32: the identity, for `n` vectors, which are the snapshots of all layers and the
    /// residual.
    pub identity: T,
}

/// Weights of a mix. The score of a vector is the product of its RMS norm and a row; the softmax of
/// the scores gives the vectors' weights.
#[derive(Clone, Debug)]
pub struct MixWeights<T = HostRows> {
    /// `[n, n_embd]`, F32: the same row for each of the `n` vectors.
    pub scores: T,
    /// `[1, n]`, F32: 0 for the mixed vectors, a large negative number for the others.
    pub mask: T,
}

impl<T> MixWeights<T> {
    fn try_map<U, E>(&self, f: &mut MapOperand<'_, T, U, E>) -> Result<MixWeights<U>, E> {
        Ok(MixWeights { scores: f("res_score", &self.scores)?, mask: f("res_mask", &self.mask)? })
    }
}

impl<T> ResidualMix<T> {
    /// Number of snapshots after the mixer.
    #[must_use]
    pub fn n_after(&self) -> usize {
        self.n_before + usize::from(self.takes_snapshot)
    }

    pub(super) fn try_map<U, E>(
        &self,
        f: &mut MapOperand<'_, T, U, E>,
    ) -> Result<ResidualMix<U>, E> {
        let ResidualMix { before_mixer, before_ffn, end, .. } = self;
        Ok(ResidualMix {
            n_before: self.n_before,
            takes_snapshot: self.takes_snapshot,
            before_mixer: before_mixer.as_ref().map(|by| by.try_map(f)).transpose()?,
            before_ffn: before_ffn.try_map(f)?,
            end: end.as_ref().map(|by| by.try_map(f)).transpose()?,
            identity: f("res_identity", &self.identity)?,
        })
    }
}

impl LayerReader<'_> {
    /// Reads the layer's mixes; `None` in models with an ordinary residual.
    pub(super) fn residual_mix(&self) -> Result<Option<Box<ResidualMix>>, Error> {
        if !self.layers.spec.residual_mix {
            return Ok(None);
        }
        let (keys, index, n_layer) = (self.keys(), self.index(), self.n_layer());
        let period = match keys.metadata.u32(&keys.name(PERIOD))? {
            None => return Err(keys.missing(PERIOD, "the number of layers between snapshots")),
            Some(0) => return Ok(None),
            Some(period) => period as usize,
        };
        let n_snapshots = n_layer.div_ceil(period);
        if n_snapshots > MAX_SNAPSHOTS {
            let least = n_layer.div_ceil(MAX_SNAPSHOTS);
            let expected = format!("0, or at least {least} for the {n_layer} layers");
            return Err(keys.wrong_key(PERIOD, expected, period));
        }
        let n = n_snapshots + 1;
        let mix = |tensor: String, n_mixed: usize| -> Result<MixWeights, Error> {
            let row = self.layers.reader.floats(&tensor, 1, self.n_embd())?;
            let mask = |i: usize| if i < n_mixed { 0.0 } else { -1e30 };
            Ok(MixWeights {
                scores: f32_matrix(n, &row.repeat(n)),
                mask: f32_matrix(1, &(0..n).map(mask).collect::<Vec<f32>>()),
            })
        };
        let (n_before, takes_snapshot) = (index.div_ceil(period), index.is_multiple_of(period));
        let n_after = n_before + usize::from(takes_snapshot);
        // Files have the tensor even in the first layer, which does not use it.
        let before_mixer = mix(self.tensor("attn_res_score.weight"), n_before + 1)?;
        let is_last = index + 1 == n_layer;
        let end = || mix("output_res_score.weight".to_owned(), n_after + 1);
        let on_diagonal = |i: usize| f32::from(u8::from(i / n == i % n));
        Ok(Some(Box::new(ResidualMix {
            n_before,
            takes_snapshot,
            before_mixer: (n_before > 0).then_some(before_mixer),
            before_ffn: mix(self.tensor("ffn_res_score.weight"), n_after + 1)?,
            end: is_last.then(end).transpose()?,
            identity: f32_matrix(n, &(0..n * n).map(on_diagonal).collect::<Vec<f32>>()),
        })))
    }
}
