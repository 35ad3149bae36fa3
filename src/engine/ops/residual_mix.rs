//! Mixes of earlier residuals as ops (Kimi K3).

use hal::op::{
    Add, CopyHeads, GateActivation, HeadColumns, HeadMatMul, Mul, Norm, NormKind, Op, Route,
    Scoring,
};
use hal::{Operand, TensorDesc};

use model::{MixWeights, ResidualMix};

use super::layer::LayerOps;
use super::scratch::Role;

/// Scratch of the mixes, as roles and numbers of columns.
pub(super) fn scratch_of(by: &ResidualMix) -> Vec<(Role, usize)> {
    let TensorDesc { n_rows: n, n_cols: n_embd, .. } = by.before_ffn.scores.desc();
    vec![
        (Role::Snapshots, n * n_embd),
        (Role::SnapshotParts, n * n_embd),
        (Role::MixScores, n),
        (Role::MixShares, n),
        (Role::MixedResidual, n_embd),
        (Role::MixSummand, n_embd),
    ]
}

impl<T: Operand> LayerOps<'_, T> {
    /// The mixer's input before its norm: a mix, or the residual. The first layer also initialises
    /// all vectors of the mix, because unused ones may hold NaN.
    pub(super) fn mixer_input(&self, ops: &mut Vec<Op<T>>) -> &T {
        let (s, Some(by)) = (self.scratch, &self.frame.residual_mix) else {
            return &self.scratch.x;
        };
        let Some(weights) = &by.before_mixer else {
            let n = by.identity.desc().n_rows;
            ops.push(self.copies(&s.x, (0, 0), self.snapshots(by), (0, n)));
            return &s.x;
        };
        self.mix_residuals(ops, by, weights, by.n_before)
    }

    /// The feed-forward block's input before its norm: a mix, or the residual.
    pub(super) fn block_input(&self, ops: &mut Vec<Op<T>>) -> &T {
        match &self.frame.residual_mix {
            None => &self.scratch.x,
            Some(by) => self.mix_residuals(ops, by, &by.before_ffn, by.n_after()),
        }
    }

    /// Restarts the residual from the mixer's output `y`, if the layer's input became a snapshot;
    /// returns whether it did.
    pub(super) fn restart_residual(&self, ops: &mut Vec<Op<T>>) -> bool {
        let s = self.scratch;
        let takes = self.frame.residual_mix.as_ref().is_some_and(|by| by.takes_snapshot);
        if takes {
            ops.push(self.copies(&s.y, (0, 0), &s.x, (0, 1)));
        }
        takes
    }

    /// Replaces the residual after the last layer by the mix that the output norm reads.
    pub(super) fn mix_at_end(&self, ops: &mut Vec<Op<T>>) {
        let (s, Some(by)) = (self.scratch, &self.frame.residual_mix) else { return };
        if let Some(weights) = &by.end {
            let mixed = self.mix_residuals(ops, by, weights, by.n_after());
            ops.push(self.copies(mixed, (0, 0), &s.x, (0, 1)));
        }
    }

    fn snapshots(&self, by: &ResidualMix<T>) -> &T {
        let n = by.identity.desc().n_rows;
        self.scratch.at(Role::Snapshots, n * self.model.hyper.n_embd)
    }

    /// The mix of the first `n_before` snapshots and the residual. Vector `n_before` becomes the
    /// residual, which may stay there as the next snapshot.
    fn mix_residuals(
        &self,
        ops: &mut Vec<Op<T>>,
        by: &ResidualMix<T>,
        weights: &MixWeights<T>,
        n_before: usize,
    ) -> &T {
        let (s, hyper) = (self.scratch, &self.model.hyper);
        let (n, width) = (by.identity.desc().n_rows, hyper.n_embd);
        let all = self.snapshots(by);
        let parts = s.at(Role::SnapshotParts, n * width);
        let [scores, shares] = [Role::MixScores, Role::MixShares].map(|role| s.at(role, n));
        let [mixed, summand] =
            [Role::MixedResidual, Role::MixSummand].map(|role| s.at(role, width));
        ops.push(self.copies(&s.x, (0, 0), all, (n_before, 1)));
        let (x, y, eps) = (all.clone(), parts.clone(), hyper.eps);
        ops.push(Norm { x, weight: None, bias: None, y, kind: NormKind::Rms, eps, width }.into());
        let (w, x, y) = (weights.scores.clone(), parts.clone(), scores.clone());
        ops.push(HeadMatMul { w, x, y, n_head: n }.into());
        let softmax = Route {
            w: by.identity.clone(),
            bias: Some(weights.mask.clone()),
            selection: None,
            groups: None,
            chosen: None,
            x: scores.clone(),
            weights: shares.clone(),
            n_used: n_before + 1,
            n_per_chunk: 1,
            n_groups: [1, 1],
            scoring: Scoring::SoftmaxChosen,
            renormalise: false,
            scale: 1.0,
        };
        ops.push(softmax.into());
        ops.push(self.copies(all, (0, width), parts, (0, n)));
        let (g, x) = (shares.clone(), parts.clone());
        ops.push(Mul { g, x, activation: GateActivation::None }.into());
        ops.push(self.copies(parts, (0, 0), mixed, (0, 1)));
        for i in 1..=n_before {
            ops.push(self.copies(parts, (i, 0), summand, (0, 1)));
            ops.push(Add { a: summand.clone(), x: mixed.clone() }.into());
        }
        mixed
    }

    /// Copies vectors as wide as the residual: from the vector with index `from.0` of `x`, with
    /// `from.1` values from one to the next, to `to.1` vectors of `y` from index `to.0` on.
    fn copies(&self, x: &T, from: (usize, usize), y: &T, to: (usize, usize)) -> Op<T> {
        let width = self.model.hyper.n_embd;
        let at = |index: usize, step: usize| HeadColumns { first: index * width, step };
        CopyHeads {
            x: x.clone(),
            y: y.clone(),
            n_head: to.1,
            width,
            from: at(from.0, from.1),
            to: at(to.0, width),
        }
        .into()
    }
}
