//! Low-rank hyper-connections as ops: the residual streams are mixed into one before a mixer or a block,
//! and its output is added to all of them.

use hal::op::{Add, GateActivation, Mul, Norm, NormKind, Op};
use hal::{Operand, TensorDesc};

use model::{Affine, LowRankHyper, Model, StreamMix};

use super::altup::{Streams, scale, whole};
use super::layer::{LayerOps, matmul, residual_norm};
use super::scratch::Role;

/// Scratch of streams of `n_embd` values, as roles and numbers of columns.
pub(super) fn scratch_of(by: &LowRankHyper, n_embd: usize) -> Vec<(Role, usize)> {
    let TensorDesc { n_rows: rank, n_cols: all, .. } = by.mixer.down.w.desc();
    vec![
        (Role::Streams, all),
        (Role::StreamPart, all),
        (Role::StreamGate, all),
        (Role::StreamShares, all / n_embd),
        (Role::StreamLow, rank),
        (Role::StreamLowGated, rank),
    ]
}

/// `y = norm(x)`, the input of the output matrix, where `x` is the residual after the last layer. In
/// models without an output norm it is `x`.
pub(crate) fn output_norm<T: Operand>(
    model: &Model,
    x: &T,
    by: Option<&Affine<T>>,
    y: &T,
) -> Op<T> {
    match by {
        Some(by) => residual_norm(model, x, by, y),
        None => whole(x, y),
    }
}

impl<T: Operand> LayerOps<'_, T> {
    /// The streams of models with hyper-connections; `predicted` holds gates.
    pub(super) fn mixed_streams(&self, by: &LowRankHyper<T>) -> Streams<'_, T> {
        let (all, width) = (by.mixer.norm.desc().n_cols, self.model.hyper.n_embd);
        let at = |role| self.scratch.at(role, all);
        let roles = [Role::Streams, Role::StreamGate, Role::StreamPart];
        let [all_streams, predicted, part] = roles.map(at);
        Streams { n: all / width, width, all: all_streams, predicted, part }
    }

    /// In the first layer, copies the embedding to the streams; in the layer with n-grams, adds
    /// their embeddings.
    pub(super) fn begin_mixed_streams(&self, ops: &mut Vec<Op<T>>) {
        let Some(by) = &self.frame.low_rank_hyper else { return };
        let streams = self.mixed_streams(by);
        if self.index == 0 {
            ops.push(streams.repeat_to(&self.scratch.x, 0, streams.all));
        }
        if let Some(ngrams) = &self.frame.ngrams {
            self.add_ngrams(ops, ngrams, &streams);
        }
    }

    /// Mixes the streams into the residual, after the last layer.
    pub(super) fn end_mixed_streams(&self, ops: &mut Vec<Op<T>>) {
        let Some(by) = &self.frame.low_rank_hyper else { return };
        if let Some(head) = &by.head {
            self.mix_streams(ops, by, head, &self.scratch.x);
        }
    }

    /// `to = norm(streams)` without weights, for each stream separately.
    pub(super) fn norm_streams(&self, ops: &mut Vec<Op<T>>, x: &T, to: &T) {
        let norm = Norm {
            x: x.clone(),
            weight: None,
            bias: None,
            y: to.clone(),
            kind: NormKind::Rms,
            eps: self.model.hyper.eps,
            width: self.model.hyper.n_embd,
        };
        ops.push(norm.into());
    }

    /// Mixes the streams into `to`, and computes the streams' shares of the output that
    /// [`LayerOps::add_to_mixed`] adds. Uses `y`.
    pub(super) fn mix_streams(
        &self,
        ops: &mut Vec<Op<T>>,
        by: &LowRankHyper<T>,
        mix: &StreamMix<T>,
        to: &T,
    ) {
        let s = self.scratch;
        let streams = self.mixed_streams(by);
        let Streams { n, all, predicted: gate, part, .. } = streams;
        let rank = mix.down.w.desc().n_rows;
        let [low, gated] = [Role::StreamLow, Role::StreamLowGated].map(|role| s.at(role, rank));
        let activation = GateActivation::Sigmoid;
        self.norm_streams(ops, all, part);
        ops.push(scale(&mix.norm, part));
        ops.push(matmul(&mix.down, part, low));
        // SiLU is a product with the sigmoid.
        ops.push(whole(low, gated));
        ops.push(Mul { g: low.clone(), x: gated.clone(), activation }.into());
        ops.push(matmul(&mix.up, gated, gate));
        if let Some(inject) = &mix.inject {
            ops.push(matmul(inject, part, s.at(Role::StreamShares, n)));
        }
        ops.push(Mul { g: gate.clone(), x: part.clone(), activation }.into());
        ops.push(streams.copy(part, 0, to, 0));
        for i in 1..n {
            ops.push(streams.copy(part, i, &s.y, 0));
            ops.push(Add { a: s.y.clone(), x: to.clone() }.into());
        }
    }

    /// Adds `y`, the output of the mixer or block that read the mixed streams, to all streams.
    pub(super) fn add_to_mixed(&self, ops: &mut Vec<Op<T>>, by: &LowRankHyper<T>) {
        let s = self.scratch;
        let streams = self.mixed_streams(by);
        let Streams { n, all, part, .. } = streams;
        let shares = s.at(Role::StreamShares, n).clone();
        ops.push(scale(&by.two, &s.y));
        ops.push(streams.repeat_to(&s.y, 0, part));
        let activation = GateActivation::Sigmoid;
        ops.push(Mul { g: shares, x: part.clone(), activation }.into());
        ops.push(Add { a: part.clone(), x: all.clone() }.into());
    }
}
