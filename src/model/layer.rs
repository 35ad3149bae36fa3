//! The weights of a layer, generic over the operand: host rows, tensors or shapes.

use hal::HostRows;
use hal::op::Activation;

use super::{
    AltUp, Attention, ChunkExperts, Experts, HyperConnections, LowRankHyper, Mixer, NgramLayer,
    PerLayer, ResidualMix, StackRun,
};

/// A weight matrix or the weight of a norm, with an optional bias.
#[derive(Clone, Debug)]
pub struct Affine<T = HostRows> {
    /// `[n_out, n_in]`; `[1, n]` for a norm.
    pub w: T,
    /// `[1, n_out]`, F32; `None` without a bias.
    pub bias: Option<T>,
}

/// Everything in a layer except its neurons: norms, mixer, router and shared expert.
#[derive(Clone, Debug)]
pub struct Frame<T = HostRows> {
    /// Whether mixer and feed-forward block both read the layer's input.
    pub parallel: bool,
    /// Whether the norms after mixer and feed-forward block normalise the sum of their output and the
    /// residual, instead of the output alone.
    pub sum_norms: bool,
    /// Whether the experts read the layer's input, before the mixer.
    pub early_experts: bool,
    /// Norm before the mixer; `None` without a mixer or such a norm.
    pub attn_norm: Option<Affine<T>>,
    /// The mixer, which combines tokens.
    pub mixer: Mixer<T>,
    /// Norm of the mixer's output; `None` without such a norm.
    pub post_attn_norm: Option<Affine<T>>,
    /// Norm of the sum of the layer's input and the normed residual after the mixer; `None` without
    /// such a norm (Jina v2 for code has it).
    pub input_sum_norm: Option<Affine<T>>,
    /// Epsilons of the norms of the mixer's and of the feed-forward block's output.
    pub post_eps: [f32; 2],
    /// Norm before the feed-forward block; `None` if the block shares the mixer's input, if there
    /// is no block, or without such a norm.
    pub ffn_norm: Option<Affine<T>>,
    /// `[n_expert, n_embd]`: selects the experts of a token; `None` without experts.
    pub router: Option<Affine<T>>,
    /// `[1, n_expert]`, F32: biases of the scores for the selection of experts only; `None` without
    /// them.
    pub selection: Option<T>,
    /// `[1, n_expert]`, F32: the group of each expert; `None` if experts have no groups.
    pub expert_groups: Option<T>,
    /// `[n_vocab, n_used]`, F32: the experts of each token; `None` if the router selects them.
    pub listed_experts: Option<T>,
    /// Norm of the router's input; `None` if the router has no norm of its own.
    pub router_norm: Option<Affine<T>>,
    /// Matrices that scale the experts' input by the weight of the token's only expert; `None` if
    /// weights scale the outputs.
    pub input_scale: Option<InputScale<T>>,
    /// `[1, n_expert]`, F32: factors on the weights of the selected experts; `None` without such
    /// factors.
    pub expert_scale: Option<T>,
    /// The shared expert, or the dense block in parallel with the experts; `None` if the layer has
    /// neither.
    pub shared: Option<SharedExpert<T>>,
    /// Matrices around the experts if they are narrower or wider than the residual; `None` if they read
    /// and write its width.
    pub latent: Option<LatentExperts<T>>,
    /// Blocks that experts share, which read the experts' output; `None` without them.
    pub chunks: Option<ChunkExperts<T>>,
    /// Norm of the feed-forward block's output; `None` without such a norm.
    pub post_ffn_norm: Option<Affine<T>>,
    /// Weights that add the per-layer embedding of the token, after the feed-forward block; `None`
    /// in models without per-layer embeddings.
    pub per_layer: Option<PerLayer<T>>,
    /// The residual streams, of which one passes through the layer; `None` in models with one
    /// stream.
    pub altup: Option<Box<AltUp<T>>>,
    /// The residual streams, which mixer and feed-forward block read and write; `None` in models with
    /// one stream.
    pub hyper_connections: Option<Box<HyperConnections<T>>>,
    /// How the residual streams are mixed, in place of norms; `None` in models without such streams.
    pub low_rank_hyper: Option<Box<LowRankHyper<T>>>,
    /// Weights that add the embeddings of n-grams, before the mixer; `None` in a layer without them.
    pub ngrams: Option<Box<NgramLayer<T>>>,
    /// The mixes of earlier residuals that the layer reads; `None` in models with an ordinary residual.
    pub residual_mix: Option<Box<ResidualMix<T>>>,
    /// `[1, 1]`, F32: factor on the normed embedding, which is added after the layer; `None` in models
    /// without it.
    pub embedding_skip: Option<T>,
    /// `[1, 1]`, F32: factors on the outputs of mixer and feed-forward block; `None` without them.
    pub gains: [Option<T>; 2],
    /// What begins or ends with the layer; `None` inside a stack and in models without stacks.
    pub stack: Option<StackRun<T>>,
    /// `[1, 1]`, F32: factor on the residual after the layer; `None` without such a factor.
    pub out_scale: Option<T>,
}

/// Norms in a layer where a dense block or a shared expert and experts run side by side with
/// separate inputs (Gemma 4, Llama 4).
#[derive(Clone, Debug)]
pub struct SharedNorms<T = HostRows> {
    /// `[1, n_embd]`: norm before the dense block. The experts use [`Frame::ffn_norm`].
    pub before: Affine<T>,
    /// `[1, n_embd]`: norm of the dense block's output, and norm of the experts' output; `None`
    /// without them.
    pub after: Option<[Affine<T>; 2]>,
}

/// Matrices over the weights of a token's experts, all of which are 0 except one (Llama 4).
#[derive(Clone, Debug)]
pub struct InputScale<T = HostRows> {
    /// `[1, n_expert]`, F32, all 1: the sum of the weights is the weight that is not 0.
    pub sum: T,
    /// `[n_expert, n_expert]`, F32: routing by this matrix selects the same expert with a weight of
    /// 1.
    pub identity: T,
}

/// Projections to the width of the experts and back (Kimi K3). Router and shared expert use the width
/// of the residual.
#[derive(Clone, Debug)]
pub struct LatentExperts<T = HostRows> {
    /// `[n_latent, n_embd]`: computes the experts' input.
    pub down: Affine<T>,
    /// `[1, n_latent]`: norm of the experts' output; `None` without one.
    pub norm: Option<Affine<T>>,
    /// `[n_embd, n_latent]`: computes the block's output.
    pub up: Affine<T>,
}

/// An expert that every token uses.
#[derive(Clone, Debug)]
pub struct SharedExpert<T = HostRows> {
    /// Its own norms; `None` if the shared expert reads the experts' input and adds to their
    /// output.
    pub norms: Option<SharedNorms<T>>,
    /// `[1, n_embd]`: the sigmoid of the product of this row and the input is the weight of the
    /// expert; `None` for a weight of 1.
    pub weight: Option<Affine<T>>,
    /// `[n_ff_shared, n_embd]`; `None` in blocks without a gate.
    pub gate: Option<Affine<T>>,
    /// `[n_ff_shared, n_embd]`.
    pub up: Affine<T>,
    /// `[n_embd, n_ff_shared]`.
    pub down: Affine<T>,
    /// Its activation.
    pub activation: Activation,
}

/// A feed-forward block in the file.
#[derive(Clone, Debug)]
pub struct Ffn {
    /// `[n_ff, n_embd]`; `None` in blocks without a gate.
    pub gate: Option<Affine>,
    /// `[n_ff, n_embd]`.
    pub up: Affine,
    /// `[n_embd, n_ff]`, or `[n_ff, n_embd]` if [`Ffn::down_by_neuron`]. With experts, their
    /// matrices are stacked and the bias is `[n_expert, n_embd]`.
    pub down: Affine,
    /// Number and routing of the experts, which have equal sizes; neurons are ordered by expert.
    /// `None` for a dense block.
    pub experts: Option<Experts>,
    /// The model's activation, or the same with a limit in this layer.
    pub activation: Activation,
    /// Neurons are skipped if their gates are below the mean of a token's gates plus this factor
    /// times their standard deviation ([`hal::op::Skip::GaussianCut`]); `None` without a cut-off.
    pub gaussian_cut: Option<f32>,
    /// Whether the file holds down with one row per neuron (PowerInfer's `ffn_down_t`).
    pub down_by_neuron: bool,
    /// The predictor of active neurons; `None` if the file has none in a supported format.
    pub predictor: Option<Predictor>,
}

/// PowerInfer's predictor of active neurons: `score = fc2 . relu(fc1 . p)` for an input `p`,
/// without biases.
#[derive(Clone, Debug)]
pub struct Predictor {
    /// `[rank, n_embd]`, any rank.
    pub fc1: HostRows,
    /// `[n_ff, rank]`.
    pub fc2: HostRows,
}

/// The weights of one layer in the file.
#[derive(Clone, Debug)]
pub struct LayerWeights {
    /// Everything except the neurons.
    pub frame: Frame,
    /// The feed-forward block; `None` in a layer without one.
    pub ffn: Option<Ffn>,
}

/// A fallible function over the operands of a layer. Its first argument is the name of the tensor.
pub type MapOperand<'a, T, U, E> = dyn FnMut(&'static str, &T) -> Result<U, E> + 'a;

impl<T> Affine<T> {
    /// Applies `f` to every operand.
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

impl<T> SharedExpert<T> {
    fn try_map<U, E>(&self, f: &mut MapOperand<'_, T, U, E>) -> Result<SharedExpert<U>, E> {
        let norms = match &self.norms {
            Some(norms) => Some(SharedNorms {
                before: norms.before.try_map("ffn_norm_shexp", f)?,
                after: match &norms.after {
                    Some([dense, experts]) => Some([
                        dense.try_map("post_ffw_norm_1", f)?,
                        experts.try_map("post_ffw_norm_2", f)?,
                    ]),
                    None => None,
                },
            }),
            None => None,
        };
        Ok(SharedExpert {
            norms,
            weight: try_map_maybe(&self.weight, "ffn_gate_inp_shexp", f)?,
            gate: try_map_maybe(&self.gate, "ffn_gate_shexp", f)?,
            up: self.up.try_map("ffn_up_shexp", f)?,
            down: self.down.try_map("ffn_down_shexp", f)?,
            activation: self.activation,
        })
    }
}

impl<T> Frame<T> {
    /// Whether a shared expert adds to the experts' output.
    #[must_use]
    pub fn adds_shared(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.norms.is_none())
    }

    /// Applies `f` to every operand.
    ///
    /// # Errors
    /// The first error of `f`.
    pub fn try_map<U, E>(&self, f: &mut MapOperand<'_, T, U, E>) -> Result<Frame<U>, E> {
        Ok(Frame {
            parallel: self.parallel,
            sum_norms: self.sum_norms,
            early_experts: self.early_experts,
            post_eps: self.post_eps,
            attn_norm: try_map_maybe(&self.attn_norm, "attn_norm", f)?,
            mixer: self.mixer.try_map(f)?,
            post_attn_norm: try_map_maybe(&self.post_attn_norm, "post_attention_norm", f)?,
            input_sum_norm: try_map_maybe(&self.input_sum_norm, "attn_norm_2", f)?,
            ffn_norm: try_map_maybe(&self.ffn_norm, "ffn_norm", f)?,
            router: try_map_maybe(&self.router, "ffn_gate_inp", f)?,
            selection: self.selection.as_ref().map(|w| f("exp_probs_b", w)).transpose()?,
            expert_groups: (self.expert_groups.as_ref())
                .map(|w| f("expert_groups", w))
                .transpose()?,
            listed_experts: (self.listed_experts.as_ref())
                .map(|w| f("ffn_gate_tid2eid", w))
                .transpose()?,
            router_norm: try_map_maybe(&self.router_norm, "ffn_gate_inp.scale", f)?,
            input_scale: match &self.input_scale {
                Some(by) => Some(InputScale {
                    sum: f("expert_sum", &by.sum)?,
                    identity: f("expert_identity", &by.identity)?,
                }),
                None => None,
            },
            expert_scale: (self.expert_scale.as_ref())
                .map(|w| f("ffn_down_exps.scale", w))
                .transpose()?,
            shared: self.shared.as_ref().map(|shared| shared.try_map(f)).transpose()?,
            chunks: self.chunks.as_ref().map(|by| by.try_map(f)).transpose()?,
            latent: match &self.latent {
                Some(by) => Some(LatentExperts {
                    down: by.down.try_map("ffn_routed_down", f)?,
                    norm: try_map_maybe(&by.norm, "ffn_routed_norm", f)?,
                    up: by.up.try_map("ffn_routed_up", f)?,
                }),
                None => None,
            },
            post_ffn_norm: try_map_maybe(&self.post_ffn_norm, "post_ffw_norm", f)?,
            per_layer: self.per_layer.as_ref().map(|by| by.try_map(f)).transpose()?,
            altup: match &self.altup {
                Some(by) => Some(Box::new(by.try_map(f)?)),
                None => None,
            },
            hyper_connections: match &self.hyper_connections {
                Some(by) => Some(Box::new(by.try_map(f)?)),
                None => None,
            },
            low_rank_hyper: match &self.low_rank_hyper {
                Some(by) => Some(Box::new(by.try_map(f)?)),
                None => None,
            },
            ngrams: match &self.ngrams {
                Some(by) => Some(Box::new(by.try_map(f)?)),
                None => None,
            },
            residual_mix: match &self.residual_mix {
                Some(by) => Some(Box::new(by.try_map(f)?)),
                None => None,
            },
            embedding_skip: (self.embedding_skip.as_ref())
                .map(|w| f("embedding_skip", w))
                .transpose()?,
            gains: {
                let mut gain = |by: &Option<T>| by.as_ref().map(|w| f("gain", w)).transpose();
                [gain(&self.gains[0])?, gain(&self.gains[1])?]
            },
            stack: self.stack.as_ref().map(|run| run.try_map(f)).transpose()?,
            out_scale: self.out_scale.as_ref().map(|w| f("layer_output_scale", w)).transpose()?,
        })
    }

    /// Applies `f` to every operand.
    pub fn map<U>(&self, f: &mut dyn FnMut(&T) -> U) -> Frame<U> {
        let mapped: Result<_, std::convert::Infallible> = self.try_map(&mut |_, part| Ok(f(part)));
        match mapped {
            Ok(frame) => frame,
            Err(never) => match never {},
        }
    }

    /// Passes every operand to `f`.
    pub fn for_each(&self, f: &mut dyn FnMut(&'static str, &T)) {
        let _: Result<_, std::convert::Infallible> = self.try_map(&mut |name, part| {
            f(name, part);
            Ok(())
        });
    }
}

impl LayerWeights {
    /// Number of neurons of the shared expert and of the blocks that experts share; 0 without them.
    #[must_use]
    pub fn n_shared(&self) -> usize {
        let n_rows = |up: &Affine| up.w.desc().n_rows;
        let shared = self.frame.shared.as_ref().map_or(0, |shared| n_rows(&shared.up));
        shared + self.frame.chunks.as_ref().map_or(0, |chunks| n_rows(&chunks.up))
    }

    /// Number of neurons of the feed-forward block, over all experts; 0 without a block.
    #[must_use]
    pub fn n_ff(&self) -> usize {
        self.ffn.as_ref().map_or(0, Ffn::n_ff)
    }

    /// The experts of the feed-forward block; `None` in a dense block.
    #[must_use]
    pub fn experts(&self) -> Option<&Experts> {
        self.ffn.as_ref().and_then(|ffn| ffn.experts.as_ref())
    }

    /// The attention of the layer; `None` for another mixer.
    #[must_use]
    pub fn attention(&self) -> Option<&Attention> {
        self.frame.mixer.attention()
    }
}

/// A matrix of a feed-forward block.
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
    /// Number of neurons, over all experts.
    #[must_use]
    pub fn n_ff(&self) -> usize {
        self.up.w.desc().n_rows
    }

    /// Width of the block's input and output: that of the residual, or of latent experts.
    #[must_use]
    pub fn width(&self) -> usize {
        self.up.w.desc().n_cols
    }

    /// Number of experts; `None` in a dense block.
    #[must_use]
    pub fn n_expert(&self) -> Option<usize> {
        self.experts.as_ref().map(|experts| experts.n)
    }

    /// Number of neurons of one expert, or of a dense block.
    #[must_use]
    pub fn n_per_expert(&self) -> usize {
        self.n_ff() / self.n_expert().unwrap_or(1).max(1)
    }

    /// Share of the experts that a token uses; 1 in a dense block.
    #[must_use]
    pub fn share_used(&self) -> f64 {
        self.experts.as_ref().map_or(1.0, |experts| experts.n_used as f64 / experts.n as f64)
    }

    /// The matrices: gate (if the block has one), up, down.
    pub fn matrices(&self) -> impl Iterator<Item = (FfnMatrix, &HostRows)> {
        let gate = self.gate.iter().map(|gate| (FfnMatrix::Gate, &gate.w));
        gate.chain([(FfnMatrix::Up, &self.up.w), (FfnMatrix::Down, &self.down.w)])
    }

    /// The biases of gate, up and down, if the file has them.
    pub fn biases(&self) -> impl Iterator<Item = &HostRows> {
        let all = self.gate.iter().chain([&self.up, &self.down]);
        all.filter_map(|part| part.bias.as_ref())
    }
}
