//! The weights of a layer, over host rows, tensors or shapes.

use hal::HostRows;

use super::{Attention, Experts, Mixer, PerLayer};

/// A matrix or the factors of a norm, and the bias added to the result.
#[derive(Clone, Debug)]
pub struct Affine<T = HostRows> {
    /// `[n_out, n_in]`, or `[1, n]` of a norm.
    pub w: T,
    /// `[1, n_out]`, F32.
    pub bias: Option<T>,
}

/// Everything in a layer except its neurons: norms, mixer, router and shared expert.
#[derive(Clone, Debug)]
pub struct Frame<T = HostRows> {
    /// Norm before the mixer; `None` without a mixer.
    pub attn_norm: Option<Affine<T>>,
    /// The mixer, which combines tokens.
    pub mixer: Mixer<T>,
    /// Norm of the mixer's output.
    pub post_attn_norm: Option<Affine<T>>,
    /// Norm before the feed-forward block; `None` if the block shares the mixer's input, or if
    /// there is no block.
    pub ffn_norm: Option<Affine<T>>,
    /// `[n_expert, n_embd]`: selects experts.
    pub router: Option<Affine<T>>,
    /// Norm of the router's input, where it has its own.
    pub router_norm: Option<Affine<T>>,
    /// `[1, n_expert]`, F32: factors on the weights of the selected experts.
    pub expert_scale: Option<T>,
    /// The shared expert.
    pub shared: Option<Shared<T>>,
    /// Norm of the feed-forward block's output.
    pub post_ffn_norm: Option<Affine<T>>,
    /// The token's embedding for this layer, which is used after the feed-forward block.
    pub per_layer: Option<PerLayer<T>>,
    /// `[1, 1]`, F32: factor on the residual after the layer.
    pub out_scale: Option<T>,
}

/// Norms of a dense block beside experts, each of which has its own input and output (Gemma 4).
#[derive(Clone, Debug)]
pub struct SharedNorms<T = HostRows> {
    /// `[1, n_embd]`: of the residual, for the dense block; the experts have `ffn_norm`.
    pub before: Affine<T>,
    /// `[1, n_embd]`: of the dense block's output.
    pub after: Affine<T>,
    /// `[1, n_embd]`: of the experts' output.
    pub experts: Affine<T>,
}

/// An expert that every token uses.
#[derive(Clone, Debug)]
pub struct Shared<T = HostRows> {
    /// Its own norms; `None` if it shares the experts' input and adds to their output.
    pub norms: Option<SharedNorms<T>>,
    /// `[1, n_embd]`: its weight is the sigmoid of this product; `None` for a weight of 1.
    pub weight: Option<Affine<T>>,
    /// `[n_ff_shared, n_embd]`.
    pub gate: Affine<T>,
    /// `[n_ff_shared, n_embd]`.
    pub up: Affine<T>,
    /// `[n_embd, n_ff_shared]`.
    pub down: Affine<T>,
}

/// A feed-forward block in the file.
#[derive(Clone, Debug)]
pub struct Ffn {
    /// `[n_ff, n_embd]`; `None` in blocks without a gate.
    pub gate: Option<Affine>,
    /// `[n_ff, n_embd]`.
    pub up: Affine,
    /// `[n_embd, n_ff]`, or `[n_ff, n_embd]` if [`Ffn::down_by_neuron`]. With experts, one such
    /// matrix for each, stacked, and biases `[n_expert, n_embd]`.
    pub down: Affine,
    /// The experts that the neurons belong to, in order, with equal sizes; `None` for a dense
    /// block.
    pub experts: Option<Experts>,
    /// The file holds down with one row per neuron (PowerInfer's `ffn_down_t`).
    pub down_by_neuron: bool,
    /// Predicts active neurons before their gate is computed, if the file has a predictor in a
    /// supported format.
    pub predictor: Option<Predictor>,
}

/// PowerInfer's predictor of active neurons: `score = fc2 . relu(fc1 . p)`, without biases.
#[derive(Clone, Debug)]
pub struct Predictor {
    /// `[rank, n_embd]`, any rank.
    pub fc1: HostRows,
    /// `[n_ff, rank]`.
    pub fc2: HostRows,
}

/// One layer in the file.
#[derive(Clone, Debug)]
pub struct LayerWeights {
    /// Norms and mixer.
    pub frame: Frame,
    /// The feed-forward block; `None` in a layer without one.
    pub ffn: Option<Ffn>,
}

/// A fallible function over the operands of a layer; it also gets the name of each in files.
pub type MapOperand<'a, T, U, E> = dyn FnMut(&'static str, &T) -> Result<U, E> + 'a;

impl<T> Affine<T> {
    /// The same over another kind of operand.
    ///
    /// # Errors
    /// The first error of `f`.
    pub fn try_map<U, E>(
        &self,
        name: &'static str,
        f: &mut MapOperand<'_, T, U, E>,
    ) -> Result<Affine<U>, E> {
        Ok(Affine {
            w: f(name, &self.w)?,
            bias: self.bias.as_ref().map(|bias| f(name, bias)).transpose()?,
        })
    }
}

pub(super) fn try_map_maybe<T, U, E>(
    part: &Option<Affine<T>>,
    name: &'static str,
    f: &mut MapOperand<'_, T, U, E>,
) -> Result<Option<Affine<U>>, E> {
    part.as_ref().map(|part| part.try_map(name, f)).transpose()
}

impl<T> Shared<T> {
    fn try_map<U, E>(&self, f: &mut MapOperand<'_, T, U, E>) -> Result<Shared<U>, E> {
        let norms = match &self.norms {
            Some(norms) => Some(SharedNorms {
                before: norms.before.try_map("ffn_norm_shexp", f)?,
                after: norms.after.try_map("post_ffw_norm_1", f)?,
                experts: norms.experts.try_map("post_ffw_norm_2", f)?,
            }),
            None => None,
        };
        Ok(Shared {
            norms,
            weight: try_map_maybe(&self.weight, "ffn_gate_inp_shexp", f)?,
            gate: self.gate.try_map("ffn_gate_shexp", f)?,
            up: self.up.try_map("ffn_up_shexp", f)?,
            down: self.down.try_map("ffn_down_shexp", f)?,
        })
    }
}

impl<T> Frame<T> {
    /// Whether a shared expert adds to the experts' output.
    #[must_use]
    pub fn adds_shared(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.norms.is_none())
    }

    /// The same over another kind of operand.
    ///
    /// # Errors
    /// The first error of `f`.
    pub fn try_map<U, E>(&self, f: &mut MapOperand<'_, T, U, E>) -> Result<Frame<U>, E> {
        Ok(Frame {
            attn_norm: try_map_maybe(&self.attn_norm, "attn_norm", f)?,
            mixer: self.mixer.try_map(f)?,
            post_attn_norm: try_map_maybe(&self.post_attn_norm, "post_attention_norm", f)?,
            ffn_norm: try_map_maybe(&self.ffn_norm, "ffn_norm", f)?,
            router: try_map_maybe(&self.router, "ffn_gate_inp", f)?,
            router_norm: try_map_maybe(&self.router_norm, "ffn_gate_inp.scale", f)?,
            expert_scale: (self.expert_scale.as_ref())
                .map(|w| f("ffn_down_exps.scale", w))
                .transpose()?,
            shared: self.shared.as_ref().map(|shared| shared.try_map(f)).transpose()?,
            post_ffn_norm: try_map_maybe(&self.post_ffn_norm, "post_ffw_norm", f)?,
            per_layer: self.per_layer.as_ref().map(|by| by.try_map(f)).transpose()?,
            out_scale: self.out_scale.as_ref().map(|w| f("layer_output_scale", w)).transpose()?,
        })
    }

    /// The same over another kind of operand.
    pub fn map<U>(&self, f: &mut dyn FnMut(&T) -> U) -> Frame<U> {
        let mapped: Result<_, std::convert::Infallible> = self.try_map(&mut |_, part| Ok(f(part)));
        match mapped {
            Ok(frame) => frame,
            Err(never) => match never {},
        }
    }

    /// Passes every operand to `f`.
    pub fn each(&self, f: &mut dyn FnMut(&'static str, &T)) {
        let _: Result<_, std::convert::Infallible> = self.try_map(&mut |name, part| {
            f(name, part);
            Ok(())
        });
    }
}

impl LayerWeights {
    /// Neurons of the shared expert.
    #[must_use]
    pub fn n_shared(&self) -> usize {
        self.frame.shared.as_ref().map_or(0, |shared| shared.up.w.desc().n_rows)
    }

    /// Neurons of its feed-forward block, of all experts together; 0 without a block.
    #[must_use]
    pub fn n_ff(&self) -> usize {
        self.ffn.as_ref().map_or(0, Ffn::n_ff)
    }

    /// The experts of its feed-forward block; `None` in a dense block.
    #[must_use]
    pub fn experts(&self) -> Option<&Experts> {
        self.ffn.as_ref().and_then(|ffn| ffn.experts.as_ref())
    }

    /// Its attention; `None` with another mixer.
    #[must_use]
    pub fn attention(&self) -> Option<&Attention> {
        self.frame.mixer.attention()
    }
}

/// Which matrix of a feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FfnMatrix {
    /// `ffn_gate`
    Gate,
    /// `ffn_up`
    Up,
    /// `ffn_down`
    Down,
}

impl Ffn {
    /// Neurons, of all experts together.
    #[must_use]
    pub fn n_ff(&self) -> usize {
        self.up.w.desc().n_rows
    }

    /// Number of experts; `None` in a dense block.
    #[must_use]
    pub fn n_expert(&self) -> Option<usize> {
        self.experts.as_ref().map(|experts| experts.n)
    }

    /// Neurons of an expert, or of a dense block.
    #[must_use]
    pub fn n_each(&self) -> usize {
        self.n_ff() / self.n_expert().unwrap_or(1).max(1)
    }

    /// Share of the experts that a token uses; 1 in a dense block.
    #[must_use]
    pub fn share_used(&self) -> f64 {
        self.experts.as_ref().map_or(1.0, |experts| experts.n_used as f64 / experts.n as f64)
    }

    /// Its matrices, gate first.
    pub fn matrices(&self) -> impl Iterator<Item = (FfnMatrix, &HostRows)> {
        let gate = self.gate.iter().map(|gate| (FfnMatrix::Gate, &gate.w));
        gate.chain([(FfnMatrix::Up, &self.up.w), (FfnMatrix::Down, &self.down.w)])
    }

    /// Its biases.
    pub fn biases(&self) -> impl Iterator<Item = &HostRows> {
        let all = self.gate.iter().chain([&self.up, &self.down]);
        all.filter_map(|part| part.bias.as_ref())
    }
}
