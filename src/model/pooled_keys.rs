//! Attention to selected blocks of positions (QSA of Qwen3.8-Flash-Next): the key of a block is the
//! mean of its positions' keys, which is then normed and rotated by RoPE as at the block's first
//! position.

use hal::HostRows;
use hal::op::{NormKind, Pairing};

use super::attention::Attention;
use super::indexer::{BlockKeys, Indexer, Sparse, TOP_K};
use super::layer::MapOperand;
use super::layers::LayerReader;
use super::reader::f32_matrix;
use super::{Error, Mixer, RopeTable};

/// How the keys of the positions in a block become one key, which is stored at its last position.
#[derive(Clone, Debug)]
pub struct PooledKeys<T = HostRows> {
    /// `[d_head, pool]`, F32, all values `1 / pool`: the filter of a convolution, whose result at the last
    /// position of a block is the mean of the block.
    pub mean: T,
    /// `[d_head, d_head]`, F32: rotates back from a block's last position to its first one, because
    /// RoPE is then applied with the last position.
    pub turn: T,
}

/// Key of the number of positions in a block of each layer; 0 in a layer that attends to all positions.
const RATIOS: &str = "attention.compress_ratios";

/// Maximum number of positions of a block, as in llama.cpp.
const MAX_POOL: usize = 64;

/// Maximum size of a head of the indexer, whose rotation is a matrix of that many rows.
const MAX_HEAD: usize = 4096;

impl<T> PooledKeys<T> {
    pub(super) fn try_map<U, E>(
        &self,
        f: &mut MapOperand<'_, T, U, E>,
    ) -> Result<PooledKeys<U>, E> {
        Ok(PooledKeys {
            mean: f("indexer.pool_mean", &self.mean)?,
            turn: f("indexer.pool_turn", &self.turn)?,
        })
    }
}

/// `[d_head, d_head]`: the rotation of heads by RoPE as at `position`, which may be negative.
fn rotation(d_head: usize, freqs: &[f32], pairing: Pairing, position: f64) -> HostRows {
    let mut matrix = vec![0.0f32; d_head * d_head];
    (0..d_head).for_each(|i| matrix[i * d_head + i] = 1.0);
    for (j, &freq) in freqs.iter().enumerate() {
        let (a, b) = match pairing {
            Pairing::Adjacent => (2 * j, 2 * j + 1),
            Pairing::Halves => (j, j + freqs.len()),
        };
        let (sin, cos) = (position * f64::from(freq)).sin_cos();
        matrix[a * d_head + a] = cos as f32;
        matrix[a * d_head + b] = -sin as f32;
        matrix[b * d_head + a] = sin as f32;
        matrix[b * d_head + b] = cos as f32;
    }
    f32_matrix(d_head, &matrix)
}

impl LayerReader<'_> {
    /// Adds an indexer over blocks to attention, in layers that have one.
    ///
    /// # Errors
    /// [`Error`]: missing or wrong keys and tensors.
    pub(super) fn pooled_sparse(&self, mixer: Mixer) -> Result<Mixer, Error> {
        let Mixer::Attention(attention) = mixer else { return Ok(mixer) };
        let keys = self.keys();
        let ratios = keys.per_layer(RATIOS, self.n_listed())?;
        let pool = ratios.map_or(0, |ratios| ratios[self.index()]);
        if pool == 0 {
            for part in ["q_proj", "k_proj", "q_norm", "k_norm"] {
                self.skip(&format!("indexer.{part}.weight"));
            }
            return Ok(Mixer::Attention(attention));
        }
        if pool > MAX_POOL {
            return Err(keys.wrong_key(RATIOS, format!("0 to {MAX_POOL} for each layer"), pool));
        }
        let top_k = keys.need(TOP_K, "the number of positions that a token attends to")?;
        if top_k < pool {
            return Err(keys.wrong_key(TOP_K, format!("at least a block of {pool}"), top_k));
        }
        let [n_head, d_head] = self.indexer_heads(&attention)?;
        if d_head > MAX_HEAD {
            let expected = format!("at most {MAX_HEAD} with blocks of positions");
            return Err(keys.wrong_key("attention.indexer.key_length", expected, d_head));
        }
        let pairing = attention.rope.as_ref().map_or(Pairing::Halves, |rope| rope.pairing);
        let n_embd = self.n_embd();
        let indexer = Indexer {
            n_head,
            d_head,
            pairing,
            q: self.affine("indexer.q_proj", n_head * d_head, n_embd)?,
            q_norm: Some(self.norm("indexer.q_norm", d_head)?),
            k: self.affine("indexer.k_proj", d_head, n_embd)?,
            k_norm: self.norm("indexer.k_norm", d_head)?,
            norm: NormKind::Rms,
            eps: self.layers.hyper.eps,
            blocks: if pool > 1 {
                let keys = self.pooled_keys(pool, d_head, attention.rope.as_deref())?;
                Some(BlockKeys::Mean(keys))
            } else {
                None
            },
            weights: None,
        };
        let top_k = top_k / pool * pool;
        let sparse = Some(Sparse { top_k, pool, indexer: Some(indexer) });
        Ok(Mixer::Attention(Attention { sparse, ..attention }))
    }

    fn pooled_keys(
        &self,
        pool: usize,
        d_head: usize,
        rope: Option<&RopeTable>,
    ) -> Result<PooledKeys, Error> {
        let freqs = rope.map_or(&[][..], |rope| rope.freqs(0));
        if rope.is_some_and(|rope| rope.freqs(usize::MAX) != freqs) {
            let expected = "0 or 1 in a model whose RoPE depends on the context (LongRoPE)";
            return Err(self.keys().wrong_key(RATIOS, expected, pool));
        }
        let pairing = rope.map_or(Pairing::Halves, |rope| rope.pairing);
        Ok(PooledKeys {
            mean: f32_matrix(d_head, &vec![(pool as f32).recip(); d_head * pool]),
            turn: rotation(d_head, freqs, pairing, 1.0 - pool as f64),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotations_turn_pairs_and_keep_other_values() {
        let quarter = std::f32::consts::FRAC_PI_2;
        let rows = |pairing, position| {
            let rows = rotation(5, &[quarter, 0.0], pairing, position);
            let bytes = rows.rows(0..5).unwrap();
            let values: &[f32] = bytemuck::cast_slice(&bytes);
            let x = [1.0, 2.0, 3.0, 4.0, 5.0];
            let dot = |row: &[f32]| row.iter().zip(x).map(|(w, x)| w * x).sum::<f32>().round();
            values.chunks(5).map(dot).collect::<Vec<_>>()
        };
        assert_eq!(rows(Pairing::Halves, 1.0), [-3.0, 2.0, 1.0, 4.0, 5.0]);
        assert_eq!(rows(Pairing::Halves, -1.0), [3.0, 2.0, -1.0, 4.0, 5.0]);
        assert_eq!(rows(Pairing::Adjacent, 1.0), [-2.0, 1.0, 3.0, 4.0, 5.0]);
        assert_eq!(rows(Pairing::Adjacent, 4.0), [1.0, 2.0, 3.0, 4.0, 5.0]);
    }
}
