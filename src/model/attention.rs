//! The attention of a layer. Generic over the operand: host rows, tensors or shapes.

use std::sync::Arc;

use hal::op::{GateActivation, Window};
use hal::{HostRows, KvRows};

use super::layer::{MapOperand, try_map_maybe};
use super::{Affine, CompressedBlocks, Indexer, RopeTable, SingleKv, Sparse};

/// Sizes of a layer's attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSizes {
    /// Number of query heads.
    pub n_head: usize,
    /// Number of KV heads; 1 in latent attention.
    pub n_head_kv: usize,
    /// Number of values of a query or key head.
    pub d_head: usize,
    /// Number of values of a value head.
    pub d_value: usize,
    /// Number of values per head that RoPE is applied to.
    pub n_rot: usize,
    /// Number of values of the latent vector of a token's keys and values (MLA); 0 without one.
    pub d_latent: usize,
    /// Whether a value is the whole key of its position, and the last values of a head are rotated.
    pub is_single: bool,
    /// The positions that a token attends to; `None` for global attention.
    pub window: Option<Window>,
    /// Factor on the scores.
    pub scale: f32,
    /// Soft cap of the scores; 0 for none.
    pub softcap: f32,
    /// Limit of the values of queries, keys and values before norms and RoPE; `None` without one.
    pub clamp: Option<f32>,
    /// Growth of the queries with their position; `None` without it.
    pub temperature: Option<Temperature>,
}

/// Factor on queries: `1 + factor * ln(1 + floor((position + offset) / length))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// Factor on the logarithm.
    pub factor: f32,
    /// Number of positions with the same factor.
    pub length: u32,
    /// Added to positions.
    pub offset: u32,
}

/// The attention of a layer.
#[derive(Clone, Debug)]
pub struct Attention<T = HostRows> {
    /// Numbers and sizes of the heads.
    pub sizes: AttentionSizes,
    /// RoPE of queries and keys; `None` in a layer without RoPE.
    pub rope: Option<Arc<RopeTable>>,
    /// Computes the input of the query matrix; `None` if it is the layer's normed input.
    pub q_a: Option<LowRank<T>>,
    /// `[n_head * d_head, n_embd]`, or `[n_head * d_head, rank]` after [`Attention::q_a`]; with
    /// [`OutputGate::Joint`] `[n_head * 2 * d_head, n_embd]`: for each head its query, then its
    /// gate.
    pub q: Affine<T>,
    /// Gates of the heads' outputs.
    pub gate: OutputGate<T>,
    /// Norm of the queries; `None` without one.
    pub q_norm: Option<HeadNorm<T>>,
    /// How keys and values are computed.
    pub kv: Kv<T>,
    /// How positions are selected; `None` for attention to all positions.
    pub sparse: Option<Sparse<T>>,
    /// Norm of the keys; `None` without one.
    pub k_norm: Option<HeadNorm<T>>,
    /// Whether the norms of queries and keys follow RoPE.
    pub norms_after_rope: bool,
    /// Whether a norm without weights is applied to each head's value.
    pub v_normed: bool,
    /// `[1, n_head]`: slopes of ALiBi; `None` without them.
    pub slopes: Option<T>,
    /// `[1, n_head]`: learned attention sinks; `None` without them.
    pub sinks: Option<T>,
    /// `[n_embd, n_head * d_value]`.
    pub o: Affine<T>,
}

/// Norm of the queries or keys of all heads.
#[derive(Clone, Debug)]
pub struct HeadNorm<T = HostRows> {
    /// `[1, width]`, or `[1, n_head * d_head]` if each head has weights of its own.
    pub by: Affine<T>,
    /// Number of values that are normalised together.
    pub width: usize,
}

/// A matrix of low rank and the norm of its product.
#[derive(Clone, Debug)]
pub struct LowRank<T = HostRows> {
    /// `[rank, n_embd]`.
    pub a: Affine<T>,
    /// `[1, rank]`.
    pub norm: Affine<T>,
}

/// Gates of the heads' outputs.
#[derive(Clone, Debug)]
pub enum OutputGate<T = HostRows> {
    /// The outputs are not gated.
    None,
    /// The query matrix computes the gates, whose sigmoid is the factor on the outputs; `d_value`
    /// equals `d_head`.
    Joint,
    /// A matrix of their own computes the gates.
    Matrix {
        /// `[n_head * d_value, n_embd]`, or `[n_head, n_embd]` for a gate per head.
        by: Affine<T>,
        /// Activation of the gates.
        activation: GateActivation,
    },
}

/// How keys and values are computed from a layer's normed input.
#[derive(Clone, Debug)]
pub enum Kv<T = HostRows> {
    /// From a matrix for keys and a matrix for values.
    Direct {
        /// `[n_head_kv * d_head, n_embd]`.
        k: Affine<T>,
        /// `[n_head_kv * d_value, n_embd]`; `None` if the values are the keys before their norm and
        /// RoPE.
        v: Option<Affine<T>>,
    },
    /// From a latent vector, which the cache holds (MLA).
    Latent(Latent<T>),
    /// One key, which is also the value, for all heads (DeepSeek-V4).
    Single(Box<SingleKv<T>>),
    /// Shared with an earlier layer of the same sizes. This layer has no matrices for keys and
    /// values and no KV cache of its own.
    Shared {
        /// Index of the earlier layer, which has a KV cache of its own.
        layer: usize,
    },
}

/// Multi-head latent attention (MLA) in its absorbed form (DeepSeek-V2, 2024). A token's row of the KV
/// cache is its latent vector and the columns of its key that RoPE is applied to; the row is the key of
/// all heads, and its latent vector is their value. In place of expanding keys and values, queries are
/// multiplied by the matrix of the keys, and outputs by the matrix of the values.
#[derive(Clone, Debug)]
pub struct Latent<T = HostRows> {
    /// `[d_latent, n_embd]`: computes the latent vector.
    pub kv_a_proj: Affine<T>,
    /// `[1, d_latent]`: norm of the latent vector.
    pub kv_a_norm: Affine<T>,
    /// `[n_rot, n_embd]`: computes the columns of the keys that RoPE is applied to, which all heads
    /// share; `None` if there are none.
    pub k_rope: Option<Affine<T>>,
    /// `[n_head * d_latent, d_head - n_rot]`: for each head, the transpose of the matrix that would
    /// expand the other columns of its key; a column of zeros if it has no others.
    pub k_b: T,
    /// `[n_head * d_value, d_latent]`: for each head, the matrix that expands its value.
    pub v_b: T,
}

impl AttentionSizes {
    /// Width of the keys of all heads, except in latent attention.
    #[must_use]
    pub fn n_k(&self) -> usize {
        self.n_head_kv * self.d_head
    }

    /// Width of the values of all heads, except in latent attention.
    #[must_use]
    pub fn n_v(&self) -> usize {
        self.n_head_kv * self.d_value
    }

    /// Width of a token's rows in the KV cache.
    #[must_use]
    pub fn cached(&self) -> KvRows<usize> {
        match self.d_latent {
            0 => KvRows { k: self.n_k(), v: (!self.is_single).then(|| self.n_v()) },
            d_latent => KvRows { k: d_latent + self.n_rot, v: None },
        }
    }

    /// Number of values of a key and of a value in the KV cache.
    #[must_use]
    pub fn cached_heads(&self) -> [usize; 2] {
        match self.d_latent {
            0 => [self.d_head, self.d_value],
            d_latent => [d_latent + self.n_rot, d_latent],
        }
    }

    /// Index of the first value of a cached head that RoPE is applied to.
    #[must_use]
    pub fn first_rotated(&self) -> usize {
        if self.is_single { self.d_head - self.n_rot } else { self.d_latent }
    }

    /// Width of the queries of all heads.
    #[must_use]
    pub fn n_q(&self) -> usize {
        self.n_head * self.d_head
    }

    /// Width of the outputs of all heads.
    #[must_use]
    pub fn n_out(&self) -> usize {
        self.n_head * self.d_value
    }
}

impl<T> Attention<T> {
    /// The indexer of sparse attention; `None` in layers without one.
    pub fn indexer(&self) -> Option<&Indexer<T>> {
        self.sparse.as_ref()?.indexer.as_ref()
    }

    /// The compressed keys of blocks; `None` in layers without them.
    pub fn blocks(&self) -> Option<&CompressedBlocks<T>> {
        match &self.kv {
            Kv::Single(by) => by.blocks.as_deref(),
            Kv::Direct { .. } | Kv::Latent(_) | Kv::Shared { .. } => None,
        }
    }

    pub(super) fn try_map<U, E>(&self, f: &mut MapOperand<'_, T, U, E>) -> Result<Attention<U>, E> {
        Ok(Attention {
            sizes: self.sizes,
            rope: self.rope.clone(),
            q_a: self.q_a.as_ref().map(|q_a| q_a.try_map(f)).transpose()?,
            q: self.q.try_map("attn_q", f)?,
            gate: match &self.gate {
                OutputGate::None => OutputGate::None,
                OutputGate::Joint => OutputGate::Joint,
                OutputGate::Matrix { by, activation } => {
                    OutputGate::Matrix { by: by.try_map("attn_gate", f)?, activation: *activation }
                }
            },
            q_norm: try_map_norm(&self.q_norm, "attn_q_norm", f)?,
            kv: match &self.kv {
                Kv::Direct { k, v } => {
                    Kv::Direct { k: k.try_map("attn_k", f)?, v: try_map_maybe(v, "attn_v", f)? }
                }
                Kv::Latent(latent) => Kv::Latent(latent.try_map(f)?),
                Kv::Single(by) => Kv::Single(Box::new(by.try_map(f)?)),
                Kv::Shared { layer } => Kv::Shared { layer: *layer },
            },
            sparse: self.sparse.as_ref().map(|sparse| sparse.try_map(f)).transpose()?,
            k_norm: try_map_norm(&self.k_norm, "attn_k_norm", f)?,
            norms_after_rope: self.norms_after_rope,
            v_normed: self.v_normed,
            slopes: self.slopes.as_ref().map(|slopes| f("attn_slopes", slopes)).transpose()?,
            sinks: self.sinks.as_ref().map(|sinks| f("attn_sinks", sinks)).transpose()?,
            o: self.o.try_map("attn_output", f)?,
        })
    }
}

impl<T> Latent<T> {
    fn try_map<U, E>(&self, f: &mut MapOperand<'_, T, U, E>) -> Result<Latent<U>, E> {
        Ok(Latent {
            kv_a_proj: self.kv_a_proj.try_map("attn_kv_a_mqa", f)?,
            kv_a_norm: self.kv_a_norm.try_map("attn_kv_a_norm", f)?,
            k_rope: try_map_maybe(&self.k_rope, "attn_k_pe", f)?,
            k_b: f("attn_k_b", &self.k_b)?,
            v_b: f("attn_v_b", &self.v_b)?,
        })
    }
}

impl<T> LowRank<T> {
    fn try_map<U, E>(&self, f: &mut MapOperand<'_, T, U, E>) -> Result<LowRank<U>, E> {
        Ok(LowRank {
            a: self.a.try_map("attn_q_a", f)?,
            norm: self.norm.try_map("attn_q_a_norm", f)?,
        })
    }
}

fn try_map_norm<T, U, E>(
    norm: &Option<HeadNorm<T>>,
    name: &'static str,
    f: &mut MapOperand<'_, T, U, E>,
) -> Result<Option<HeadNorm<U>>, E> {
    let one =
        |norm: &HeadNorm<T>| Ok(HeadNorm { by: norm.by.try_map(name, f)?, width: norm.width });
    norm.as_ref().map(one).transpose()
}
