//! Low-rank hyper-connections (Qwen3.8-Flash-Next): several residual streams, mixed into one before
//! each mixer and feed-forward block, in place of norms. Hyper-connections: Zhu et al. 2024. Generic over
//! the operand: host rows, tensors or shapes.

use hal::HostRows;

use super::layer::MapOperand;
use super::layers::LayerReader;
use super::reader::{Reader, f32_matrix};
use super::{Affine, Error};

/// The mixing of the `n` streams in one layer. All streams begin as the embedding.
#[derive(Clone, Debug)]
pub struct LowRankHyper<T = HostRows> {
    /// Before the mixer of the layer.
    pub mixer: StreamMix<T>,
    /// Before the feed-forward block.
    pub ffn: StreamMix<T>,
    /// After the last layer, in place of the output norm; `None` in the other layers.
    pub head: Option<StreamMix<T>>,
    /// `[1, 1]`, F32: 2, the largest share of an output that is added to a stream.
    pub two: T,
}

/// Mixes `n` streams into one: `x = sum_i sigmoid(gate_i) * h_i`, where `h` is the streams after a
/// norm of each, divided by `n`, and `gate = up . silu(down . h)`. The output of the mixer or block
/// that reads `x` is added to stream `i` with the factor `2 * sigmoid(inject . h)_i`.
#[derive(Clone, Debug)]
pub struct StreamMix<T = HostRows> {
    /// `[1, n * n_embd]`, F32: weights of the norms of the streams, divided by `n`.
    pub norm: T,
    /// `[rank, n * n_embd]`.
    pub down: Affine<T>,
    /// `[n * n_embd, rank]`.
    pub up: Affine<T>,
    /// `[n, n * n_embd]`; `None` at the end of the model, where nothing is added to the streams.
    pub inject: Option<Affine<T>>,
}

impl<T> StreamMix<T> {
    fn try_map<U, E>(
        &self,
        [norm, down, up, inject]: [&'static str; 4],
        f: &mut MapOperand<'_, T, U, E>,
    ) -> Result<StreamMix<U>, E> {
        Ok(StreamMix {
            norm: f(norm, &self.norm)?,
            down: self.down.try_map(down, f)?,
            up: self.up.try_map(up, f)?,
            inject: self.inject.as_ref().map(|by| by.try_map(inject, f)).transpose()?,
        })
    }
}

impl<T> LowRankHyper<T> {
    pub(super) fn try_map<U, E>(
        &self,
        f: &mut MapOperand<'_, T, U, E>,
    ) -> Result<LowRankHyper<U>, E> {
        const MIXER: [&str; 4] = ["hc_attn_norm", "hc_attn_down", "hc_attn_up", "hc_attn_inject"];
        const FFN: [&str; 4] = ["hc_ffn_norm", "hc_ffn_down", "hc_ffn_up", "hc_ffn_inject"];
        const HEAD: [&str; 4] = ["output_hc_norm", "output_hc_down", "output_hc_up", ""];
        Ok(LowRankHyper {
            mixer: self.mixer.try_map(MIXER, f)?,
            ffn: self.ffn.try_map(FFN, f)?,
            head: self.head.as_ref().map(|head| head.try_map(HEAD, f)).transpose()?,
            two: f("hc_two", &self.two)?,
        })
    }
}

/// Reads the mixing from the tensors whose names begin with `prefix`.
fn stream_mix(
    reader: &Reader<'_>,
    prefix: &str,
    [n, rank, n_embd]: [usize; 3],
    injects: bool,
) -> Result<StreamMix, Error> {
    let all = n * n_embd;
    let norm = reader.flat(&format!("{prefix}norm.weight"), all)?;
    let norm: Vec<f32> = norm.iter().map(|weight| weight / n as f32).collect();
    let inject = injects.then(|| reader.affine(&format!("{prefix}inject"), n, all));
    Ok(StreamMix {
        norm: f32_matrix(1, &norm),
        down: reader.affine(&format!("{prefix}down"), rank, all)?,
        up: reader.affine(&format!("{prefix}up"), all, rank)?,
        inject: inject.transpose()?,
    })
}

const COUNT: &str = "hyper_connection.count";

impl LayerReader<'_> {
    /// Number of residual streams.
    ///
    /// # Errors
    /// [`Error`]: the key is missing, or below 2.
    pub(super) fn n_streams(&self) -> Result<usize, Error> {
        let keys = self.keys();
        match keys.need(COUNT, "the number of residual streams")? {
            1 => Err(keys.wrong_key(COUNT, "at least 2 residual streams", 1)),
            n => Ok(n),
        }
    }

    /// Reads how the residual streams are mixed; `None` in families without such streams.
    pub(super) fn low_rank_hyper(&self) -> Result<Option<Box<LowRankHyper>>, Error> {
        const RANK: &str = "hyper_connection.low_rank";
        if !self.layers.spec.low_rank_hyper {
            return Ok(None);
        }
        let rank = self.keys().need(RANK, "the rank of the matrices that mix the streams")?;
        let (reader, sizes) = (self.layers.reader, [self.n_streams()?, rank, self.n_embd()]);
        let is_last = self.index() + 1 == self.n_layer();
        let head = is_last.then(|| stream_mix(reader, "output_hc_", sizes, false));
        Ok(Some(Box::new(LowRankHyper {
            mixer: stream_mix(reader, &self.tensor("hc_attn_"), sizes, true)?,
            ffn: stream_mix(reader, &self.tensor("hc_ffn_"), sizes, true)?,
            head: head.transpose()?,
            two: f32_matrix(1, &[2.0]),
        })))
    }
}
