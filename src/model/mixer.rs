//! The mixer of a layer, which combines the tokens of a sequence: attention, a recurrence, or
//! nothing. Generic over the operand: host rows, tensors or shapes.

use hal::HostRows;
use hal::op::{DecayCurve, GateActivation, HeadMapping};

use super::Affine;
use super::attention::{Attention, Kv};
use super::layer::{MapOperand, try_map_maybe};
use super::rwkv6::Rwkv6;
use super::rwkv7::Rwkv7;

/// The half of a layer that combines the tokens of a sequence.
#[derive(Clone, Debug)]
pub enum Mixer<T = HostRows> {
    /// The layer has no mixer.
    None,
    /// Attention, with a KV cache as state.
    Attention(Attention<T>),
    /// A gated short convolution, with the last inputs as state.
    ShortConv(ShortConv<T>),
    /// A gated delta net, with a matrix per head as state.
    GatedDelta(GatedDelta<T>),
    /// A Mamba-1 block, with a row per channel as state.
    Mamba1(Mamba1<T>),
    /// A Mamba-2 block, with a matrix per head as state.
    Mamba2(Mamba2<T>),
    /// A time mix of RWKV-6, with a matrix per head as state.
    Rwkv6(Box<Rwkv6<T>>),
    /// A time mix of RWKV-7, with a matrix per head as state.
    Rwkv7(Box<Rwkv7<T>>),
    /// Attention and a Mamba-2 block, whose outputs are added (Falcon H1).
    Parallel {
        /// The attention.
        attention: Attention<T>,
        /// The Mamba-2 block.
        mamba: Box<Mamba2<T>>,
    },
}

/// A gated short convolution (LFM2): `out . (c * conv(b * x))`, where `b`, `c` and `x` are
/// computed from the layer's input.
#[derive(Clone, Debug)]
pub struct ShortConv<T = HostRows> {
    /// `[n_channel, n_embd]`: the gate before the convolution.
    pub b: Affine<T>,
    /// `[n_channel, n_embd]`: the gate after the convolution.
    pub c: Affine<T>,
    /// `[n_channel, n_embd]`: the convolution's input.
    pub x: Affine<T>,
    /// `[n_channel, kernel_size]`, F32: a filter per channel.
    pub conv: T,
    /// `[n_embd, n_channel]`.
    pub out: Affine<T>,
}

/// Sizes of a gated delta net.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatedDeltaSizes {
    /// Number of query and key heads.
    pub n_head_k: usize,
    /// Number of value heads.
    pub n_head_v: usize,
    /// Number of values of a query or key head.
    pub d_k: usize,
    /// Number of values of a value head.
    pub d_v: usize,
    /// Which key head each value head uses.
    pub heads: HeadMapping,
}

/// A gated delta net (Yang et al. 2024): queries, keys and values pass through a short convolution
/// with SiLU, queries and keys are normalised to length 1, and a norm per head and a gate follow
/// the gated delta rule. In Kimi Delta Attention (Kimi Team 2025), each value of a key has a decay of
/// its own: `n_decay` is `n_head_v * d_k`, otherwise `n_head_v`.
#[derive(Clone, Debug)]
pub struct GatedDelta<T = HostRows> {
    /// Numbers and sizes of the heads.
    pub sizes: GatedDeltaSizes,
    /// The logarithm of the decay factors.
    pub curve: DecayCurve,
    /// Activation of the gate of the output.
    pub gate: GateActivation,
    /// `[n_head_k * d_k, n_embd]`.
    pub q: Affine<T>,
    /// `[n_head_k * d_k, n_embd]`.
    pub k: Affine<T>,
    /// `[n_head_v * d_v, n_embd]`.
    pub v: Affine<T>,
    /// `[n_head_k * d_k, kernel_size]`, F32: a filter per channel of the queries.
    pub q_conv: T,
    /// `[n_head_k * d_k, kernel_size]`, F32: a filter per channel of the keys.
    pub k_conv: T,
    /// `[n_head_v * d_v, kernel_size]`, F32: a filter per channel of the values.
    pub v_conv: T,
    /// `[1, d_k]`, F32, all values `1 / sqrt(d_k)`. An RMS norm with this weight and an epsilon of
    /// `eps / d_k` gives `x / sqrt(sum(x^2) + eps)`.
    pub unit: T,
    /// `[rank, n_embd]`: computes the input of [`GatedDelta::alpha`]; `None` if it is the layer's
    /// normed input.
    pub alpha_in: Option<Affine<T>>,
    /// `[n_decay, n_embd]` or `[n_decay, rank]`: the decay before bias and curve.
    pub alpha: Affine<T>,
    /// `[n_head_v, n_embd]`: the write strength (beta) before the sigmoid.
    pub beta: Affine<T>,
    /// `[1, n_decay]`, F32: bias of the decay.
    pub dt_bias: T,
    /// `[1, n_head_v]`, F32: the rate of a head's decay.
    pub a: T,
    /// `[1, d_v]`: norm of each head's output.
    pub norm: Affine<T>,
    /// `[rank, n_embd]`: computes the input of [`GatedDelta::z`]; `None` if it is the layer's normed
    /// input.
    pub z_in: Option<Affine<T>>,
    /// `[n_head_v * d_v, n_embd]` or `[n_head_v * d_v, rank]`: the gate of the output before its
    /// activation.
    pub z: Affine<T>,
    /// `[n_embd, n_head_v * d_v]`.
    pub out: Affine<T>,
}

/// Sizes of a Mamba-1 block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mamba1Sizes {
    /// Number of heads, each with a step size and a skip connection of its own; `d_inner` in most
    /// families.
    pub n_head: usize,
    /// Total width of the heads.
    pub d_inner: usize,
    /// Number of values of the state of a channel.
    pub d_state: usize,
}

/// A Mamba-1 block (Gu and Dao 2023): `x` passes through a short convolution with SiLU; `b`, `c`
/// and the step sizes of the state space model are computed from it, and a gate follows.
#[derive(Clone, Debug)]
pub struct Mamba1<T = HostRows> {
    /// Numbers and sizes.
    pub sizes: Mamba1Sizes,
    /// `[d_inner, n_embd]`: the gate of the output before SiLU.
    pub z: Affine<T>,
    /// `[d_inner, n_embd]`: the input of the heads.
    pub x: Affine<T>,
    /// `[d_inner, kernel_size]`, F32: a filter per channel of `x`, and its bias.
    pub x_conv: Affine<T>,
    /// `[rank, d_inner]`: computes the input of [`Mamba1::dt`].
    pub dt_in: Affine<T>,
    /// `[d_state, d_inner]`: the input projection of the state.
    pub b: Affine<T>,
    /// `[d_state, d_inner]`: the output projection of the state.
    pub c: Affine<T>,
    /// Norms of the three products; `None` without them.
    pub norms: Option<ScanNorms<T>>,
    /// `[n_head, rank]`: step sizes before bias and softplus.
    pub dt: T,
    /// `[1, n_head]`, F32: bias of the step sizes.
    pub dt_bias: T,
    /// `[1, n_head * d_state]`, F32: `-exp(A_log)`; `[1, n_head]` if a head has one rate.
    pub a: T,
    /// `[1, n_head]`, F32: skip connection.
    pub d: T,
    /// `[n_embd, d_inner]`.
    pub out: Affine<T>,
}

/// Norms of the inputs of a Mamba-1 block's scan.
#[derive(Clone, Debug)]
pub struct ScanNorms<T = HostRows> {
    /// `[1, rank]`.
    pub dt: Affine<T>,
    /// `[1, d_state]`.
    pub b: Affine<T>,
    /// `[1, d_state]`.
    pub c: Affine<T>,
}

/// Sizes of a Mamba-2 block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mamba2Sizes {
    /// Number of heads, each with a step size, a decay rate and a skip connection of its own.
    pub n_head: usize,
    /// Number of groups of heads. The heads of a group share `b` and `c`, and their outputs are
    /// normalised together.
    pub n_group: usize,
    /// Total width of the heads.
    pub d_inner: usize,
    /// Number of columns of the state of a head.
    pub d_state: usize,
}

/// A Mamba-2 block (Dao and Gu 2024): `x`, `b` and `c` pass through a short convolution with SiLU;
/// a gate and an RMS norm per group follow the state space model.
#[derive(Clone, Debug)]
pub struct Mamba2<T = HostRows> {
    /// Numbers and sizes of the heads.
    pub sizes: Mamba2Sizes,
    /// `[d_inner, n_embd]`: the gate of the output before SiLU.
    pub z: Affine<T>,
    /// `[d_inner, n_embd]`: the input of the heads.
    pub x: Affine<T>,
    /// `[n_group * d_state, n_embd]`: the input projection of the state.
    pub b: Affine<T>,
    /// `[n_group * d_state, n_embd]`: the output projection of the state.
    pub c: Affine<T>,
    /// `[n_head, n_embd]`: step sizes before bias and softplus.
    pub dt: Affine<T>,
    /// `[d_inner, kernel_size]`, F32: a filter per channel of `x`, and its bias.
    pub x_conv: Affine<T>,
    /// `[n_group * d_state, kernel_size]`, F32: a filter per channel of `b`, and its bias.
    pub b_conv: Affine<T>,
    /// `[n_group * d_state, kernel_size]`, F32: a filter per channel of `c`, and its bias.
    pub c_conv: Affine<T>,
    /// `[1, n_head]`, F32: bias of the step sizes.
    pub dt_bias: T,
    /// `[1, n_head]`, F32: `-exp(A_log)`.
    pub a: T,
    /// `[1, n_head]`, F32: skip connection.
    pub d: T,
    /// `[1, d_inner]`, F32: weight of the norm; `None` without a norm.
    pub norm: Option<T>,
    /// `[n_embd, d_inner]`.
    pub out: Affine<T>,
}

impl GatedDeltaSizes {
    /// Total width of the query heads, and also of the key heads.
    #[must_use]
    pub fn n_k(&self) -> usize {
        self.n_head_k * self.d_k
    }

    /// Width of the values of all heads.
    #[must_use]
    pub fn n_v(&self) -> usize {
        self.n_head_v * self.d_v
    }
}

impl Mamba2Sizes {
    /// Total width of `b`, and also of `c`.
    #[must_use]
    pub fn n_b(&self) -> usize {
        self.n_group * self.d_state
    }
}

impl<T> Mixer<T> {
    /// The attention; `None` for other mixers.
    #[must_use]
    pub fn attention(&self) -> Option<&Attention<T>> {
        match self {
            Mixer::Attention(attention) | Mixer::Parallel { attention, .. } => Some(attention),
            Mixer::None | Mixer::ShortConv(_) | Mixer::GatedDelta(_) => None,
            Mixer::Mamba1(_) | Mixer::Mamba2(_) | Mixer::Rwkv6(_) | Mixer::Rwkv7(_) => None,
        }
    }

    /// The earlier layer whose KV cache this layer uses; `None` for a mixer with its own cache or
    /// state.
    #[must_use]
    pub fn kv_source(&self) -> Option<usize> {
        match self.attention()?.kv {
            Kv::Shared { layer } => Some(layer),
            Kv::Direct { .. } | Kv::Latent(_) | Kv::Single(_) => None,
        }
    }

    /// Whether later layers can share this layer's KV cache. A cache of latent vectors cannot be
    /// shared.
    #[must_use]
    pub fn has_kv(&self) -> bool {
        self.attention().is_some_and(|by| matches!(by.kv, Kv::Direct { .. }))
    }

    /// Applies `f` to every operand.
    pub(super) fn try_map<U, E>(&self, f: &mut MapOperand<'_, T, U, E>) -> Result<Mixer<U>, E> {
        Ok(match self {
            Mixer::None => Mixer::None,
            Mixer::Attention(attention) => Mixer::Attention(attention.try_map(f)?),
            Mixer::ShortConv(conv) => Mixer::ShortConv(conv.try_map(f)?),
            Mixer::GatedDelta(delta) => Mixer::GatedDelta(delta.try_map(f)?),
            Mixer::Mamba1(mamba) => Mixer::Mamba1(mamba.try_map(f)?),
            Mixer::Mamba2(mamba) => Mixer::Mamba2(mamba.try_map(f)?),
            Mixer::Rwkv6(by) => Mixer::Rwkv6(Box::new(by.try_map(f)?)),
            Mixer::Rwkv7(by) => Mixer::Rwkv7(Box::new(by.try_map(f)?)),
            Mixer::Parallel { attention, mamba } => Mixer::Parallel {
                attention: attention.try_map(f)?,
                mamba: Box::new(mamba.try_map(f)?),
            },
        })
    }
}

impl<T> ShortConv<T> {
    fn try_map<U, E>(&self, f: &mut MapOperand<'_, T, U, E>) -> Result<ShortConv<U>, E> {
        Ok(ShortConv {
            b: self.b.try_map("shortconv.in_proj_b", f)?,
            c: self.c.try_map("shortconv.in_proj_c", f)?,
            x: self.x.try_map("shortconv.in_proj_x", f)?,
            conv: f("shortconv.conv", &self.conv)?,
            out: self.out.try_map("shortconv.out_proj", f)?,
        })
    }
}

impl<T> GatedDelta<T> {
    fn try_map<U, E>(&self, f: &mut MapOperand<'_, T, U, E>) -> Result<GatedDelta<U>, E> {
        Ok(GatedDelta {
            sizes: self.sizes,
            curve: self.curve,
            gate: self.gate,
            q: self.q.try_map("attn_q", f)?,
            k: self.k.try_map("attn_k", f)?,
            v: self.v.try_map("attn_v", f)?,
            q_conv: f("ssm_conv1d_q", &self.q_conv)?,
            k_conv: f("ssm_conv1d_k", &self.k_conv)?,
            v_conv: f("ssm_conv1d_v", &self.v_conv)?,
            unit: f("qk_unit", &self.unit)?,
            alpha_in: try_map_maybe(&self.alpha_in, "ssm_f_a", f)?,
            alpha: self.alpha.try_map("ssm_alpha", f)?,
            beta: self.beta.try_map("ssm_beta", f)?,
            dt_bias: f("ssm_dt", &self.dt_bias)?,
            a: f("ssm_a", &self.a)?,
            norm: self.norm.try_map("ssm_norm", f)?,
            z_in: try_map_maybe(&self.z_in, "ssm_g_a", f)?,
            z: self.z.try_map("attn_gate", f)?,
            out: self.out.try_map("ssm_out", f)?,
        })
    }
}

impl<T> Mamba1<T> {
    fn try_map<U, E>(&self, f: &mut MapOperand<'_, T, U, E>) -> Result<Mamba1<U>, E> {
        let norms = match &self.norms {
            Some(norms) => Some(ScanNorms {
                dt: norms.dt.try_map("ssm_dt_norm", f)?,
                b: norms.b.try_map("ssm_b_norm", f)?,
                c: norms.c.try_map("ssm_c_norm", f)?,
            }),
            None => None,
        };
        Ok(Mamba1 {
            sizes: self.sizes,
            z: self.z.try_map("ssm_in_z", f)?,
            x: self.x.try_map("ssm_in_x", f)?,
            x_conv: self.x_conv.try_map("ssm_conv1d", f)?,
            dt_in: self.dt_in.try_map("ssm_x_dt", f)?,
            b: self.b.try_map("ssm_x_b", f)?,
            c: self.c.try_map("ssm_x_c", f)?,
            norms,
            dt: f("ssm_dt", &self.dt)?,
            dt_bias: f("ssm_dt", &self.dt_bias)?,
            a: f("ssm_a", &self.a)?,
            d: f("ssm_d", &self.d)?,
            out: self.out.try_map("ssm_out", f)?,
        })
    }
}

impl<T> Mamba2<T> {
    fn try_map<U, E>(&self, f: &mut MapOperand<'_, T, U, E>) -> Result<Mamba2<U>, E> {
        Ok(Mamba2 {
            sizes: self.sizes,
            z: self.z.try_map("ssm_in_z", f)?,
            x: self.x.try_map("ssm_in_x", f)?,
            b: self.b.try_map("ssm_in_b", f)?,
            c: self.c.try_map("ssm_in_c", f)?,
            dt: self.dt.try_map("ssm_in_dt", f)?,
            x_conv: self.x_conv.try_map("ssm_conv1d_x", f)?,
            b_conv: self.b_conv.try_map("ssm_conv1d_b", f)?,
            c_conv: self.c_conv.try_map("ssm_conv1d_c", f)?,
            dt_bias: f("ssm_dt", &self.dt_bias)?,
            a: f("ssm_a", &self.a)?,
            d: f("ssm_d", &self.d)?,
            norm: self.norm.as_ref().map(|norm| f("ssm_norm", norm)).transpose()?,
            out: self.out.try_map("ssm_out", f)?,
        })
    }
}
