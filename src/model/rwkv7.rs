//! The time mix of RWKV-7. Generic over the operand: host rows, tensors or shapes.

use hal::HostRows;

use super::Affine;
use super::layer::MapOperand;

/// The time mix of a layer of RWKV-7 (Peng et al. 2025). Each product reads a weighted mean of the
/// token's input and of the input of the token before it (token shift).
#[derive(Clone, Debug)]
pub struct Rwkv7<T = HostRows> {
    /// Number of heads.
    pub n_head: usize,
    /// Number of columns of a head.
    pub d_head: usize,
    /// Receptance, `[n, n_embd]`.
    pub r: Shifted<T>,
    /// Decay: `[rank, n_embd]`, before a tanh.
    pub w: Shifted<T>,
    /// `[n, rank]`, with a bias.
    pub w_out: Affine<T>,
    /// Keys, `[n, n_embd]`.
    pub k: Shifted<T>,
    /// Values, `[n, n_embd]`.
    pub v: Shifted<T>,
    /// Share of the first layer's values, before a sigmoid: `[rank, n_embd]`, then `[n, rank]` with
    /// a bias. They read the input of the values. `None` in the first layer.
    pub mix: Option<[Affine<T>; 2]>,
    /// In-context learning rates: `[rank, n_embd]`.
    pub a: Shifted<T>,
    /// `[n, rank]`, with a bias.
    pub a_out: Affine<T>,
    /// Gate of the output; `None` without one.
    pub gate: Option<Gate<T>>,
    /// `[4, n]`, F32: the vectors of [`hal::op::Wkv7`]; the last one is the bias of the heads'
    /// norm.
    pub vectors: T,
    /// `[1, n]`, F32: weights of the norm of the heads' outputs.
    pub norm: T,
    /// `[n_embd, n]`.
    pub out: Affine<T>,
    /// `[n_embd, 2]`, F32: token shift of the input of the feed-forward block.
    pub channel_shift: T,
}

/// A matrix and the token shift of its input.
#[derive(Clone, Debug)]
pub struct Shifted<T = HostRows> {
    /// `[n_embd, 2]`, F32: weights of the earlier input and of the token's input.
    pub shift: T,
    /// The matrix.
    pub by: Affine<T>,
}

/// The gate of a time mix: `out . sigmoid(input . x)`.
#[derive(Clone, Debug)]
pub struct Gate<T = HostRows> {
    /// `[rank, n_embd]`.
    pub input: Shifted<T>,
    /// `[1, rank]`, F32, all 0: with [`Gate::ones`], a norm that gives 1 for every value.
    pub zeros: T,
    /// `[1, rank]`, F32, all 1.
    pub ones: T,
    /// `[n, rank]`.
    pub out: Affine<T>,
}

impl<T> Shifted<T> {
    pub(super) fn try_map<U, E>(
        &self,
        name: &'static str,
        f: &mut MapOperand<'_, T, U, E>,
    ) -> Result<Shifted<U>, E> {
        Ok(Shifted { shift: f("time_mix_lerp", &self.shift)?, by: self.by.try_map(name, f)? })
    }
}

impl<T> Rwkv7<T> {
    /// The token shifts, that of the feed-forward block last.
    pub fn shifts(&self) -> impl Iterator<Item = &T> {
        let inputs = [&self.r, &self.w, &self.k, &self.v, &self.a].into_iter();
        let inputs = inputs.chain(self.gate.iter().map(|gate| &gate.input));
        inputs.map(|input| &input.shift).chain([&self.channel_shift])
    }

    pub(super) fn try_map<U, E>(&self, f: &mut MapOperand<'_, T, U, E>) -> Result<Rwkv7<U>, E> {
        Ok(Rwkv7 {
            n_head: self.n_head,
            d_head: self.d_head,
            r: self.r.try_map("time_mix_receptance", f)?,
            w: self.w.try_map("time_mix_w1", f)?,
            w_out: self.w_out.try_map("time_mix_w2", f)?,
            k: self.k.try_map("time_mix_key", f)?,
            v: self.v.try_map("time_mix_value", f)?,
            mix: match &self.mix {
                Some([v1, v2]) => {
                    Some([v1.try_map("time_mix_v1", f)?, v2.try_map("time_mix_v2", f)?])
                }
                None => None,
            },
            a: self.a.try_map("time_mix_a1", f)?,
            a_out: self.a_out.try_map("time_mix_a2", f)?,
            gate: match &self.gate {
                Some(gate) => Some(Gate {
                    input: gate.input.try_map("time_mix_g1", f)?,
                    zeros: f("zeros", &gate.zeros)?,
                    ones: f("ones", &gate.ones)?,
                    out: gate.out.try_map("time_mix_g2", f)?,
                }),
                None => None,
            },
            vectors: f("time_mix_vectors", &self.vectors)?,
            norm: f("time_mix_ln", &self.norm)?,
            out: self.out.try_map("time_mix_output", f)?,
            channel_shift: f("channel_mix_lerp_k", &self.channel_shift)?,
        })
    }
}
