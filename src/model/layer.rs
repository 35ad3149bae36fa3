//! What a layer consists of, over host rows, over tensors or over their shapes.

use std::sync::Arc;

use hal::HostRows;

use super::RopeTable;

/// A matrix or the factors of a norm, and what is added to the result.
#[derive(Clone, Debug)]
pub struct Affine<T = HostRows> {
    /// `[n_out, n_in]`, or `[1, n]` of a norm.
    pub w: T,
    /// `[1, n_out]`, F32.
    pub bias: Option<T>,
}

/// How keys and values are made of a layer's normed input.
#[derive(Clone, Debug)]
pub enum Kv<T = HostRows> {
    /// By a matrix each.
    Direct {
        /// `[n_head_kv * d_head, n_embd]`.
        k: Affine<T>,
        /// `[n_head_kv * d_value, n_embd]`.
        v: Affine<T>,
    },
    /// Through a latent vector.
    Latent(Latent<T>),
}

/// Multi-head latent attention without a separate form for decoding.
#[derive(Clone, Debug)]
pub struct Latent<T = HostRows> {
    /// `[d_latent, n_embd]`: makes the latent vector.
    pub fold: Affine<T>,
    /// `[1, d_latent]`: its norm.
    pub norm: Affine<T>,
    /// `[n_rot, n_embd]`: the part of the keys that turns, the same for all heads.
    pub turning: Affine<T>,
    /// `[n_head * (d_head - n_rot + d_value), d_latent]`: of each head the other part of its key, then its value.
    pub unfold: Affine<T>,
}

/// Everything of a layer but its neurons: norms and attention, and what holds for every token beside experts.
#[derive(Clone, Debug)]
pub struct Frame<T = HostRows> {
    /// Before attention.
    pub attn_norm: Affine<T>,
    /// `[n_head * d_head, n_embd]`.
    pub q: Affine<T>,
    /// `[1, d_head]`, of each head's queries.
    pub q_norm: Option<Affine<T>>,
    /// Keys and values.
    pub kv: Kv<T>,
    /// `[1, d_head]`, of each head's keys.
    pub k_norm: Option<Affine<T>>,
    /// `[1, n_head]`: learned sinks of attention.
    pub sinks: Option<T>,
    /// `[n_embd, n_head * d_value]`.
    pub o: Affine<T>,
    /// After attention, before it is added.
    pub post_attn_norm: Option<Affine<T>>,
    /// Before the feed-forward block; `None` where it reads what attention reads.
    pub ffn_norm: Option<Affine<T>>,
    /// `[n_expert, n_embd]`: what chooses experts.
    pub router: Option<Affine<T>>,
    /// What every token uses besides.
    pub shared: Option<Shared<T>>,
    /// After the feed-forward block, before it is added.
    pub post_ffn_norm: Option<Affine<T>>,
}

/// An expert that every token uses.
#[derive(Clone, Debug)]
pub struct Shared<T = HostRows> {
    /// `[1, n_embd]`: what tells how much, by a sigmoid; `None` for 1.
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
    /// `[n_embd, n_ff]`, or `[n_ff, n_embd]` if [`Ffn::down_by_neuron`]. With experts, one such matrix for each, one
    /// below the other, and offsets `[n_expert, n_embd]`.
    pub down: Affine,
    /// Experts whose neurons these are, one after the other, equally many of each; `None` if all go together.
    pub n_expert: Option<usize>,
    /// The file holds down with one row per neuron (PowerInfer's `ffn_down_t`).
    pub down_by_neuron: bool,
    /// What tells active neurons before their gate is known, if the file has it in a format that is built.
    pub predictor: Option<Predictor>,
}

/// PowerInfer's predictor of active neurons: `score = fc2 . relu(fc1 . p)`, no offsets.
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
    /// Norms and attention.
    pub frame: Frame,
    /// The feed-forward block.
    pub ffn: Ffn,
    /// Positions a token sees; `None` for all.
    pub window: Option<usize>,
    /// How queries and keys turn; `None` if they do not.
    pub rope: Option<Arc<RopeTable>>,
}

/// A function over the parts of a layer; it hears what each is called in files.
pub type Part<'a, T, U, E> = dyn FnMut(&'static str, &T) -> Result<U, E> + 'a;

impl<T> Affine<T> {
    /// The same over another kind of operand.
    ///
    /// # Errors
    /// The first of `f`.
    pub fn try_map<U, E>(
        &self,
        name: &'static str,
        f: &mut Part<'_, T, U, E>,
    ) -> Result<Affine<U>, E> {
        Ok(Affine {
            w: f(name, &self.w)?,
            bias: self.bias.as_ref().map(|bias| f(name, bias)).transpose()?,
        })
    }
}

fn try_map_maybe<T, U, E>(
    part: &Option<Affine<T>>,
    name: &'static str,
    f: &mut Part<'_, T, U, E>,
) -> Result<Option<Affine<U>>, E> {
    part.as_ref().map(|part| part.try_map(name, f)).transpose()
}

impl<T> Frame<T> {
    /// The same over another kind of operand.
    ///
    /// # Errors
    /// The first of `f`.
    pub fn try_map<U, E>(&self, f: &mut Part<'_, T, U, E>) -> Result<Frame<U>, E> {
        Ok(Frame {
            attn_norm: self.attn_norm.try_map("attn_norm", f)?,
            q: self.q.try_map("attn_q", f)?,
            q_norm: try_map_maybe(&self.q_norm, "attn_q_norm", f)?,
            kv: match &self.kv {
                Kv::Direct { k, v } => {
                    Kv::Direct { k: k.try_map("attn_k", f)?, v: v.try_map("attn_v", f)? }
                }
                Kv::Latent(latent) => Kv::Latent(Latent {
                    fold: latent.fold.try_map("attn_kv_a_mqa", f)?,
                    norm: latent.norm.try_map("attn_kv_a_norm", f)?,
                    turning: latent.turning.try_map("attn_k_pe", f)?,
                    unfold: latent.unfold.try_map("attn_kv_b", f)?,
                }),
            },
            k_norm: try_map_maybe(&self.k_norm, "attn_k_norm", f)?,
            sinks: self.sinks.as_ref().map(|sinks| f("attn_sinks", sinks)).transpose()?,
            o: self.o.try_map("attn_output", f)?,
            post_attn_norm: try_map_maybe(&self.post_attn_norm, "post_attention_norm", f)?,
            ffn_norm: try_map_maybe(&self.ffn_norm, "ffn_norm", f)?,
            router: try_map_maybe(&self.router, "ffn_gate_inp", f)?,
            shared: match &self.shared {
                Some(shared) => Some(Shared {
                    weight: try_map_maybe(&shared.weight, "ffn_gate_inp_shexp", f)?,
                    gate: shared.gate.try_map("ffn_gate_shexp", f)?,
                    up: shared.up.try_map("ffn_up_shexp", f)?,
                    down: shared.down.try_map("ffn_down_shexp", f)?,
                }),
                None => None,
            },
            post_ffn_norm: try_map_maybe(&self.post_ffn_norm, "post_ffw_norm", f)?,
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

    /// Shows every part.
    pub fn each(&self, f: &mut dyn FnMut(&'static str, &T)) {
        let _: Result<_, std::convert::Infallible> = self.try_map(&mut |name, part| {
            f(name, part);
            Ok(())
        });
    }
}

impl LayerWeights {
    /// Neurons that every token uses beside its experts.
    #[must_use]
    pub fn n_shared(&self) -> usize {
        self.frame.shared.as_ref().map_or(0, |shared| shared.up.w.desc().n_rows)
    }
}

impl Ffn {
    /// What its matrices are called in files, gate first, and each.
    pub fn matrices(&self) -> impl Iterator<Item = (&'static str, &HostRows)> {
        let gate = self.gate.iter().map(|gate| ("ffn_gate", &gate.w));
        gate.chain([("ffn_up", &self.up.w), ("ffn_down", &self.down.w)])
    }

    /// Its offsets.
    pub fn biases(&self) -> impl Iterator<Item = &HostRows> {
        let all = self.gate.iter().chain([&self.up, &self.down]);
        all.filter_map(|part| part.bias.as_ref())
    }
}
