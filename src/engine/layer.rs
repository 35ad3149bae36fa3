//! A layer as ops: over tensors to record it, over shapes to ask whether a device supports it.

use hal::op::{Add, Down, Groups, MatMul, Merge, Norm, Op, Post, Route, Scoring};
use hal::{Batch, Operand, RowSet, Rows};

use model::{
    Affine, BlockKind, Frame, LayerWeights, Mixer, Model, PredictorInput, RouterInput, Shared,
};

use super::ffn::{FfnMode, FfnPlace, FfnShare};
use super::lane::Scratch;
use super::mixer::Memory;
use super::predict::{Input, Predictor};

/// Operands of a layer's ops.
pub(super) struct LayerOps<'a, T> {
    pub(super) model: &'a Model,
    pub(super) mode: FfnMode,
    /// The layer in the file.
    pub(super) facts: &'a LayerWeights,
    pub(super) frame: &'a Frame<T>,
    /// Frequencies of RoPE.
    pub(super) freqs: Option<&'a T>,
    pub(super) memory: &'a Memory<T>,
    /// Chooses the active neurons.
    pub(super) predictor: Option<&'a Predictor<T>>,
    /// Resident neurons; `None` if none is on the home device.
    pub(super) own: Option<&'a FfnShare<T>>,
    pub(super) scratch: &'a Scratch<T>,
    pub(super) batch: &'a Batch<T>,
    /// Counters of neurons.
    pub(super) active: T,
    /// Row counters, if rows are counted.
    pub(super) hits: Option<T>,
    /// Lists that the predictor fills: resident rows and, if some neurons are on other devices,
    /// absent rows.
    pub(super) resident: Option<RowSet<T>>,
    pub(super) absent: Option<RowSet<T>>,
    /// Present if some neurons are computed on other devices.
    pub(super) mailbox: Option<usize>,
}

/// `y = norm(x)`, over each group of `norm`'s length.
pub(super) fn norm<T: Operand>(model: &Model, x: &T, norm: &Affine<T>, y: &T) -> Op<T> {
    Norm {
        x: x.clone(),
        weight: Some(norm.w.clone()),
        bias: norm.bias.clone(),
        y: y.clone(),
        kind: model.spec.norm,
        eps: model.hyper.eps,
        width: norm.w.desc().n_cols,
    }
    .into()
}

/// The input of `predictor`, before the residual is updated.
pub(super) fn predictor_input<'a, T>(
    model: &Model,
    predictor: &Predictor<T>,
    s: &'a Scratch<T>,
) -> &'a T {
    match (predictor.input, model.spec.predictor_input) {
        (Input::Normed, _) => &s.h,
        (Input::OfFile, PredictorInput::Residual) => &s.x,
    }
}

pub(super) fn matmul<T: Operand>(by: &Affine<T>, x: &T, y: &T) -> Op<T> {
    MatMul { w: by.w.clone(), x: x.clone(), bias: by.bias.clone(), y: y.clone() }.into()
}

impl<T: Operand> LayerOps<'_, T> {
    /// The ops in order.
    pub(super) fn list(self) -> Vec<Op<T>> {
        let mut ops = self.before_neurons();
        ops.extend(self.ops_after_attention());
        ops
    }

    /// The ops up to the feed-forward block's input in `h` and, with experts, their weights.
    pub(super) fn before_neurons(&self) -> Vec<Op<T>> {
        let (s, frame) = (self.scratch, self.frame);
        let mut ops = Vec::new();
        self.route(&mut ops, RouterInput::Layer, &s.x);
        if let Some(norm) = &frame.attn_norm {
            ops.push(self.norm(&s.x, norm, &s.h));
        }
        self.mix(&mut ops);
        if !self.is_parallel() && self.mixes() {
            self.add(&mut ops, frame.post_attn_norm.as_ref());
        }
        if let Some(norm) = &frame.ffn_norm {
            ops.push(self.norm(&s.x, norm, &s.h));
        }
        self.route(&mut ops, RouterInput::Ffn, &s.h);
        ops
    }

    /// The remaining ops: from the feed-forward block on.
    pub(super) fn ops_after_attention(&self) -> Vec<Op<T>> {
        let mut ops = self.neurons_alone();
        ops.extend(self.after_neurons());
        ops
    }

    /// The ops of the feed-forward block alone.
    pub(super) fn neurons_alone(&self) -> Vec<Op<T>> {
        let mut ops = Vec::new();
        if self.facts.ffn.is_some() {
            self.neurons(&mut ops, self.is_parallel() && self.mixes());
        }
        ops
    }

    /// The ops after it.
    pub(super) fn after_neurons(&self) -> Vec<Op<T>> {
        let mut ops = Vec::new();
        if self.facts.ffn.is_some() || (self.is_parallel() && self.mixes()) {
            self.add(&mut ops, self.frame.post_ffn_norm.as_ref());
        }
        ops
    }

    fn mixes(&self) -> bool {
        !matches!(self.frame.mixer, Mixer::None)
    }

    fn is_parallel(&self) -> bool {
        self.model.spec.block == BlockKind::Parallel
    }

    pub(super) fn norm(&self, x: &T, by: &Affine<T>, y: &T) -> Op<T> {
        norm(self.model, x, by, y)
    }

    /// Adds the output `y` of half a layer to the residual, after its post-norm if it has one.
    fn add(&self, ops: &mut Vec<Op<T>>, post_norm: Option<&Affine<T>>) {
        let s = self.scratch;
        let a = match post_norm {
            Some(norm) => {
                ops.push(self.norm(&s.y, norm, &s.h));
                &s.h
            }
            None => &s.y,
        };
        ops.push(Add { a: a.clone(), x: s.x.clone() }.into());
    }

    /// Chooses experts by `x` if the router reads `input`.
    fn route(&self, ops: &mut Vec<Op<T>>, input: RouterInput, x: &T) {
        let (Some(router), Some(weights), Some(experts)) =
            (&self.frame.router, &self.scratch.weights, self.facts.experts())
        else {
            return;
        };
        if self.model.spec.routing.input == input {
            let route = Route {
                w: router.w.clone(),
                bias: router.bias.clone(),
                x: x.clone(),
                weights: weights.clone(),
                n_used: experts.n_used,
                scoring: experts.scoring,
                renormalise: experts.renormalise,
                scale: experts.scale,
            };
            ops.push(route.into());
        }
    }

    /// Computes the shared expert into `y`, adding to it if `accumulate`.
    fn shared(&self, ops: &mut Vec<Op<T>>, shared: &Shared<T>, accumulate: bool) {
        let s = self.scratch;
        let mut groups = None;
        if let (Some(weight), Some(weights)) = (&shared.weight, &s.shared_weight) {
            let route = Route {
                w: weight.w.clone(),
                bias: weight.bias.clone(),
                x: s.h.clone(),
                weights: weights.clone(),
                n_used: 1,
                scoring: Scoring::Sigmoid,
                renormalise: false,
                scale: 1.0,
            };
            ops.push(route.into());
            let n_ff = shared.up.w.desc().n_rows as u32;
            groups = Some(Groups { starts: [0, n_ff].into(), n_used: 1 });
        }
        let place = FfnPlace {
            x: s.h.clone(),
            weights: s.shared_weight.clone().filter(|_| groups.is_some()),
            y: s.y.clone(),
            active: self.active.clone(),
            hits: None,
            accumulate,
        };
        let Shared { gate, up, down, .. } = shared.clone();
        let share = FfnShare {
            gate: Some(gate.w),
            up: up.w,
            down: down.w,
            bias_gate: gate.bias,
            bias_up: up.bias,
            bias_down: down.bias,
            threshold: None,
            groups,
            orientation: Down::AcrossNeurons,
        };
        ops.push(self.mode.op(&share, Rows::All, place).into());
    }

    /// From the normed `h` to the block's output in `y`, adding to it if `accumulate`.
    fn neurons(&self, ops: &mut Vec<Op<T>>, accumulate: bool) {
        let s = self.scratch;
        let (mut rows, mut absent) = (Rows::All, None);
        // Where the absent neurons are streamed, their lists are made per chunk.
        let wanted = self.own.is_some() || self.mailbox.is_some();
        if let (Some(predictor), Some(resident), true) = (self.predictor, &self.resident, wanted) {
            absent = self.absent.clone();
            let x = predictor_input(self.model, predictor, s).clone();
            ops.push(predictor.op(x, resident.clone(), absent.clone()).into());
            rows = Rows::Active(resident.clone());
        }
        if let Some(mailbox) = self.mailbox {
            let (x, batch) = (s.h.clone(), self.batch.clone());
            ops.push(Post { x, batch, rows: absent, weights: s.weights.clone(), mailbox }.into());
        }
        let mut accumulate = accumulate;
        if let Some(own) = self.own {
            let (x, y, active) = (s.h.clone(), s.y.clone(), self.active.clone());
            let weights = s.weights.clone().filter(|_| own.groups.is_some());
            let hits = self.hits.clone();
            let place = FfnPlace { x, weights, y, active, hits, accumulate };
            ops.push(self.mode.op(own, rows, place).into());
            accumulate = true;
        }
        if let Some(shared) = &self.frame.shared {
            self.shared(ops, shared, accumulate);
            accumulate = true;
        }
        if let Some(mailbox) = self.mailbox {
            let (batch, y) = (self.batch.clone(), s.y.clone());
            ops.push(Merge { batch, y, mailbox, accumulate }.into());
        }
    }
}
