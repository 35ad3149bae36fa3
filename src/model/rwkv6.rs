//! The time mix of RWKV-6. Generic over the operand: host rows, tensors or shapes.

use hal::HostRows;
use hal::op::GateActivation;

use super::layer::MapOperand;
use super::{Affine, Shifted};

/// The time mix of a layer of RWKV-6 (Peng et al. 2024), or of QRWKV. Each product reads the
/// token's input plus a share of its difference from the input of the token before it; a share of
/// its own for each token and channel.
#[derive(Clone, Debug)]
pub struct Rwkv6<T = HostRows> {
    /// Number of heads.
    pub n_head: usize,
    /// Number of heads of keys and values, each of which several heads use.
    pub n_head_kv: usize,
    /// Number of columns of a head.
    pub d_head: usize,
    /// `[n_embd, 2]`, F32: a convolution that subtracts the token's input from the one before it.
    pub difference: T,
    /// `[n_embd, 2]`, F32: token shift of the input of all [`Mixed::low`].
    pub shift: T,
    /// Decay: `[rank, n_embd]`, before a tanh.
    pub w: Mixed<T>,
    /// `[n, rank]`, with a bias.
    pub w_out: Affine<T>,
    /// Keys, `[n_head_kv * d_head, n_embd]`.
    pub k: Mixed<T>,
    /// Values, `[n_head_kv * d_head, n_embd]`.
    pub v: Mixed<T>,
    /// Receptance, `[n, n_embd]`.
    pub r: Mixed<T>,
    /// Gate of the output, `[n, n_embd]`.
    pub gate: Mixed<T>,
    /// Activation of the gate.
    pub gate_activation: GateActivation,
    /// `[1, n]`, F32: weight of a token's own key in its output; `None` in QRWKV.
    pub first: Option<T>,
    /// Norm of the heads' outputs; `None` in QRWKV.
    pub norm: Option<GroupNorm<T>>,
    /// `[1, 1]`, F32: factor on the heads' outputs; `None` for 1.
    pub scale: Option<T>,
    /// `[n_embd, n]`.
    pub out: Affine<T>,
    /// The feed-forward block's token shifts and its gate; `None` in QRWKV.
    pub channels: Option<ChannelMix<T>>,
}

/// A matrix and the share of its input, `share . tanh(low . x)`, where the bias of `share` is the
/// mean share.
#[derive(Clone, Debug)]
pub struct Mixed<T = HostRows> {
    /// `[rank, n_embd]`.
    pub low: Affine<T>,
    /// `[n_embd, rank]`, with a bias.
    pub share: Affine<T>,
    /// The matrix.
    pub by: Affine<T>,
}

/// A norm of each head with weights and biases of its own.
#[derive(Clone, Debug)]
pub struct GroupNorm<T = HostRows> {
    /// `[1, n]`, F32.
    pub weight: T,
    /// `[1, n]`, F32.
    pub bias: T,
}

/// The inputs of a feed-forward block of RWKV-6: `y = sigmoid(r . x_r) * ffn(x_k)`.
#[derive(Clone, Debug)]
pub struct ChannelMix<T = HostRows> {
    /// `[n_embd, 2]`, F32: token shift of the block's input.
    pub shift: T,
    /// `[n_embd, n_embd]`: receptance.
    pub r: Shifted<T>,
}

impl<T> Mixed<T> {
    fn try_map<U, E>(
        &self,
        name: &'static str,
        f: &mut MapOperand<'_, T, U, E>,
    ) -> Result<Mixed<U>, E> {
        Ok(Mixed {
            low: self.low.try_map("time_mix_w1", f)?,
            share: self.share.try_map("time_mix_w2", f)?,
            by: self.by.try_map(name, f)?,
        })
    }
}

impl<T> Rwkv6<T> {
    /// The convolutions over two tokens, in the order of their states.
    pub fn shifts(&self) -> impl Iterator<Item = &T> {
        let channels = self.channels.iter().flat_map(|by| [&by.shift, &by.r.shift]);
        [&self.difference, &self.shift].into_iter().chain(channels)
    }

    pub(super) fn try_map<U, E>(&self, f: &mut MapOperand<'_, T, U, E>) -> Result<Rwkv6<U>, E> {
        Ok(Rwkv6 {
            n_head: self.n_head,
            n_head_kv: self.n_head_kv,
            d_head: self.d_head,
            difference: f("difference", &self.difference)?,
            shift: f("time_mix_lerp_x", &self.shift)?,
            w: self.w.try_map("time_mix_decay_w1", f)?,
            w_out: self.w_out.try_map("time_mix_decay_w2", f)?,
            k: self.k.try_map("time_mix_key", f)?,
            v: self.v.try_map("time_mix_value", f)?,
            r: self.r.try_map("time_mix_receptance", f)?,
            gate: self.gate.try_map("time_mix_gate", f)?,
            gate_activation: self.gate_activation,
            first: self.first.as_ref().map(|w| f("time_mix_first", w)).transpose()?,
            norm: match &self.norm {
                Some(norm) => Some(GroupNorm {
                    weight: f("time_mix_ln", &norm.weight)?,
                    bias: f("time_mix_ln", &norm.bias)?,
                }),
                None => None,
            },
            scale: self.scale.as_ref().map(|w| f("scale", w)).transpose()?,
            out: self.out.try_map("time_mix_output", f)?,
            channels: match &self.channels {
                Some(by) => Some(ChannelMix {
                    shift: f("channel_mix_lerp_k", &by.shift)?,
                    r: by.r.try_map("channel_mix_receptance", f)?,
                }),
                None => None,
            },
        })
    }
}
