//! Sparse attention (DSA, QSA): the lightning indexer of a layer, and how its tensors and keys are
//! read.

use hal::HostRows;
use hal::op::{NormKind, Pairing};

use super::attention::Attention;
use super::layer::{MapOperand, try_map_maybe};
use super::layers::LayerReader;
use super::pooled_keys::PooledKeys;
use super::reader::f32_matrix;
use super::{Affine, Error, Mixer};

/// How a layer selects the positions that it attends to (DeepSeek-V3.2-Exp, 2025).
#[derive(Clone, Debug)]
pub struct Sparse<T = HostRows> {
    /// Maximum number of positions in the blocks that a token selects; a multiple of `pool`.
    pub top_k: usize,
    /// Number of consecutive positions that are selected together; 1 without blocks. The positions
    /// of the incomplete block at the end are always selected too.
    pub pool: usize,
    /// Selects the positions; `None` in a layer that uses the selection of the last layer that has
    /// an indexer.
    pub indexer: Option<Indexer<T>>,
}

/// The lightning indexer of a layer. A token has one small key; the score of an earlier token is the
/// weighted sum over the heads of the ReLU of the products of the queries with its key.
///
/// llama.cpp multiplies queries and keys by a Hadamard matrix, which makes keys easier to quantise and
/// does not change their products. Here, keys are not quantised.
#[derive(Clone, Debug)]
pub struct Indexer<T = HostRows> {
    /// Number of query heads.
    pub n_head: usize,
    /// Number of values of a query head, and of the key.
    pub d_head: usize,
    /// Pairs of values that RoPE rotates: the first ones of a head, as many as in attention.
    pub pairing: Pairing,
    /// `[n_head * d_head, rank]`: queries, from the input of attention's query matrix.
    pub q: Affine<T>,
    /// `[1, d_head]`: norm of each query; `None` without one.
    pub q_norm: Option<Affine<T>>,
    /// `[d_head, n_embd]`: the key.
    pub k: Affine<T>,
    /// `[1, d_head]`: norm of the key.
    pub k_norm: Affine<T>,
    /// Kind of the norms.
    pub norm: NormKind,
    /// Epsilon of the norms.
    pub eps: f32,
    /// How the keys of a block become one; `None` if blocks are positions.
    pub blocks: Option<BlockKeys<T>>,
    /// `[n_head, n_embd]`: weights of the heads; `None` if all are 1.
    pub weights: Option<Affine<T>>,
}

/// How the keys of a block's positions become one key, which is stored at its last position.
#[derive(Clone, Debug)]
pub enum BlockKeys<T = HostRows> {
    /// A mean with learned weights (GLM-5.3-Flash, 2026).
    Gated(KeyPool<T>),
    /// The mean (Qwen3.8-Flash-Next).
    Mean(PooledKeys<T>),
}

/// For each value of a key, the mean over the block with the softmax of gates as weights.
#[derive(Clone, Debug)]
pub struct KeyPool<T = HostRows> {
    /// `[d_head, n_embd]`: the gates of a position.
    pub gate: Affine<T>,
    /// `[pool, d_head]`, F32: added to the gates, by position in the block.
    pub ape: T,
}

/// Epsilon of the norm of the key, in files that do not state it.
const INDEXER_EPS: f32 = 1e-6;

impl<T> Sparse<T> {
    /// Maximum number of positions that a token attends to: those of the selected blocks, and those
    /// of an incomplete block.
    #[must_use]
    pub fn n_selected(&self) -> usize {
        self.top_k + self.pool - 1
    }

    /// Whether a token can see more positions than it attends to, in sequences of `n_positions`.
    /// Otherwise there is nothing to select.
    #[must_use]
    pub fn selects(&self, n_positions: usize) -> bool {
        n_positions > self.n_selected()
    }

    pub(super) fn try_map<U, E>(&self, f: &mut MapOperand<'_, T, U, E>) -> Result<Sparse<U>, E> {
        let indexer = self.indexer.as_ref().map(|indexer| {
            Ok(Indexer {
                n_head: indexer.n_head,
                d_head: indexer.d_head,
                pairing: indexer.pairing,
                norm: indexer.norm,
                q: indexer.q.try_map("indexer.attn_q_b", f)?,
                q_norm: try_map_maybe(&indexer.q_norm, "indexer.q_norm", f)?,
                k: indexer.k.try_map("indexer.attn_k", f)?,
                k_norm: indexer.k_norm.try_map("indexer.k_norm", f)?,
                eps: indexer.eps,
                blocks: indexer.blocks.as_ref().map(|blocks| blocks.try_map(f)).transpose()?,
                weights: try_map_maybe(&indexer.weights, "indexer.proj", f)?,
            })
        });
        Ok(Sparse { top_k: self.top_k, pool: self.pool, indexer: indexer.transpose()? })
    }
}

impl<T> BlockKeys<T> {
    fn try_map<U, E>(&self, f: &mut MapOperand<'_, T, U, E>) -> Result<BlockKeys<U>, E> {
        Ok(match self {
            BlockKeys::Gated(by) => BlockKeys::Gated(by.try_map(f)?),
            BlockKeys::Mean(by) => BlockKeys::Mean(by.try_map(f)?),
        })
    }
}

impl<T> KeyPool<T> {
    fn try_map<U, E>(&self, f: &mut MapOperand<'_, T, U, E>) -> Result<KeyPool<U>, E> {
        Ok(KeyPool {
            gate: self.gate.try_map("indexer_compressor_gate", f)?,
            ape: f("indexer_compressor_ape", &self.ape)?,
        })
    }
}

/// The tensors of an indexer.
const TENSORS: [&str; 7] = [
    "indexer.attn_q_b.weight",
    "indexer.attn_k.weight",
    "indexer.k_norm.weight",
    "indexer.k_norm.bias",
    "indexer.proj.weight",
    "indexer_compressor_gate.weight",
    "indexer_compressor_ape.weight",
];

/// Largest accepted number of positions of a block.
const MAX_POOL: usize = 1024;

/// Key of the number of positions that a token attends to.
pub(super) const TOP_K: &str = "attention.indexer.top_k";

/// Key that says which layers have an indexer.
const TYPES: &str = "attention.indexer.types";

impl LayerReader<'_> {
    /// Adds sparse attention to latent attention. A layer `has_indexer` or uses the selection of an
    /// earlier layer.
    ///
    /// # Errors
    /// [`Error`]: missing or wrong keys and tensors.
    pub(super) fn sparse(
        &self,
        mixer: Mixer,
        pairing: Pairing,
        has_indexer: bool,
    ) -> Result<Mixer, Error> {
        let Mixer::Attention(attention) = mixer else { return Ok(mixer) };
        let keys = self.keys();
        let top_k = keys.need(TOP_K, "the number of positions that a token attends to")?;
        let pool = self.pool()?;
        if !top_k.is_multiple_of(pool) {
            let expected = format!("a multiple of the {pool} positions of a block");
            return Err(keys.wrong_key(TOP_K, expected, top_k));
        }
        let indexer = if has_indexer {
            Some(self.indexer(&attention, pairing, pool)?)
        } else {
            TENSORS.iter().for_each(|tensor| self.skip(tensor));
            None
        };
        let sparse = Some(Sparse { top_k, pool, indexer });
        Ok(Mixer::Attention(Attention { sparse, ..attention }))
    }

    /// Number of positions of a block that is selected as a whole; 1 in families without blocks.
    fn pool(&self) -> Result<usize, Error> {
        const POOL: &str = "attention.indexer.kpool";
        const TAIL: &str = "attention.indexer.kpool_select_tail";
        let keys = self.keys();
        if !self.layers.spec.pooled_indexer {
            return Ok(1);
        }
        let pool = keys.need(POOL, "the number of positions of a block")?;
        if !(2..=MAX_POOL).contains(&pool) {
            return Err(keys.wrong_key(POOL, format!("2 to {MAX_POOL}"), pool));
        }
        if keys.metadata.bool(&keys.name(TAIL))? == Some(false) {
            let expected = "true: otherwise the first tokens attend to no position";
            return Err(keys.wrong_key(TAIL, expected, false));
        }
        Ok(pool)
    }

    /// Number and size of the indexer's heads.
    pub(super) fn indexer_heads(&self, attention: &Attention) -> Result<[usize; 2], Error> {
        const HEADS: &str = "attention.indexer.head_count";
        const LENGTH: &str = "attention.indexer.key_length";
        let keys = self.keys();
        let n_head = keys.need(HEADS, "the number of the indexer's heads")?;
        let d_head = keys.need(LENGTH, "the number of values of the indexer's keys")?;
        let n_rot = attention.sizes.n_rot;
        if d_head < n_rot {
            let expected = format!("at least the {n_rot} values that RoPE is applied to");
            return Err(keys.wrong_key(LENGTH, expected, d_head));
        }
        Ok([n_head, d_head])
    }

    fn indexer(
        &self,
        attention: &Attention,
        pairing: Pairing,
        pool: usize,
    ) -> Result<Indexer, Error> {
        let [n_head, d_head] = self.indexer_heads(attention)?;
        let n_embd = self.n_embd();
        let rank = match &attention.q_a {
            Some(q_a) => q_a.a.w.desc().n_rows,
            // The error names the tensor that the file lacks.
            None => self.n_rows("attn_q_a.weight", n_embd)?,
        };
        Ok(Indexer {
            n_head,
            d_head,
            pairing,
            q: self.affine("indexer.attn_q_b", n_head * d_head, rank)?,
            q_norm: None,
            k: self.affine("indexer.attn_k", d_head, n_embd)?,
            k_norm: self.norm("indexer.k_norm", d_head)?,
            weights: Some(self.affine("indexer.proj", n_head, n_embd)?),
            norm: NormKind::Layer,
            eps: self.indexer_eps()?,
            blocks: if self.layers.spec.pooled_indexer {
                let ape = self.flat("indexer_compressor_ape.weight", pool * d_head)?;
                let gate = self.affine("indexer_compressor_gate", d_head, n_embd)?;
                Some(BlockKeys::Gated(KeyPool { gate, ape: f32_matrix(pool, &ape) }))
            } else {
                None
            },
        })
    }

    /// The epsilon of the norm of the key, which only files with blocks state.
    fn indexer_eps(&self) -> Result<f32, Error> {
        const KEY: &str = "attention.layer_norm_epsilon";
        let keys = self.keys();
        if !self.layers.spec.pooled_indexer {
            return Ok(INDEXER_EPS);
        }
        match keys.f32(KEY)?.unwrap_or(INDEXER_EPS) {
            eps if (0.0..1.0).contains(&eps) => Ok(eps),
            eps => Err(keys.wrong_key(KEY, "at least 0 and below 1", eps)),
        }
    }

    /// Whether the layer has an indexer, as the file says. Files of GLM-5.2, recognised by their
    /// long context, may not say it: there, the first three layers and every fourth one after them
    /// have one.
    ///
    /// # Errors
    /// [`Error::Key`] if it has none and no layer before it has attention and an indexer.
    pub(super) fn has_indexer(&self) -> Result<bool, Error> {
        const LONG: usize = 1 << 20;
        let listed = self.listed_indexers()?;
        let has = |layer: usize| match &listed {
            Some(list) => list[layer],
            None if self.layers.hyper.n_ctx_train < LONG => true,
            None => layer < 3 || layer % 4 == 2,
        };
        self.check_selecting(has)?;
        Ok(has(self.index()))
    }

    /// Checks that this layer or one before it has attention and an indexer.
    fn check_selecting(&self, has_indexer: impl Fn(usize) -> bool) -> Result<(), Error> {
        let has_attention = |layer: usize| self.layers.heads.sizes(layer).n_head_kv > 0;
        if (0..=self.index()).any(|layer| has_indexer(layer) && has_attention(layer)) {
            return Ok(());
        }
        let expected = "an indexer in the first layer with attention";
        Err(self.keys().wrong_key(TYPES, expected, "none"))
    }

    /// Whether the layer, which has attention, has an indexer, as the file says; the default is
    /// yes.
    ///
    /// # Errors
    /// [`Error::Key`] if it has none and no layer before it has attention and an indexer.
    pub(super) fn indexer_listed(&self) -> Result<bool, Error> {
        let Some(list) = self.listed_indexers()? else { return Ok(true) };
        self.check_selecting(|layer| list[layer])?;
        Ok(list[self.index()])
    }

    /// Which layers have an indexer; `None` if the file does not say it.
    fn listed_indexers(&self) -> Result<Option<Vec<bool>>, Error> {
        let keys = self.keys();
        let name = keys.name(TYPES);
        let is_list = keys.metadata.get(&name).is_some_and(|value| value.as_array().is_some());
        if is_list {
            return keys.flags(TYPES, self.n_layer());
        }
        // One number for all layers.
        Ok(keys.metadata.u32(&name)?.map(|kind| vec![kind != 0; self.n_layer()]))
    }
}
