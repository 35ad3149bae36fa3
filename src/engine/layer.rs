//! A layer as ops: over tensors to record it, over their shapes to ask whether a device can run it.

use hal::op::{
    Add, Attention, CopyHeads, Down, Groups, HeadColumns, MatMul, Merge, Norm, Op, Post, Rope,
    Route, Scoring, StoreKv,
};
use hal::{Batch, KvCache, Operand, RowSet, Rows};

use crate::model::{
    Affine, BlockKind, Frame, Kv, LayerWeights, Model, Positions, PredictorInput, RouterInput,
    Shared,
};

use super::ffn::{FfnMode, FfnPlace, FfnShare};
use super::lane::Scratch;
use super::predict::{Input, Predictor};

/// What the ops of a layer are made of.
pub(super) struct LayerOps<'a, T> {
    pub(super) model: &'a Model,
    pub(super) mode: FfnMode,
    /// The layer in the file.
    pub(super) facts: &'a LayerWeights,
    pub(super) frame: &'a Frame<T>,
    /// Frequencies of the rotary positions.
    pub(super) freqs: Option<&'a T>,
    pub(super) cache: &'a KvCache<T>,
    /// What chooses neurons.
    pub(super) predictor: Option<&'a Predictor<T>>,
    /// Neurons at home; `None` if all are elsewhere.
    pub(super) own: Option<&'a FfnShare<T>>,
    pub(super) scratch: &'a Scratch<T>,
    pub(super) batch: &'a Batch<T>,
    /// Counters of neurons.
    pub(super) active: T,
    /// Counters of rows, if they are counted.
    pub(super) hits: Option<T>,
    /// Lists that the predictor fills: rows here and, if some neurons are elsewhere, rows there.
    pub(super) resident: Option<RowSet<T>>,
    pub(super) absent: Option<RowSet<T>>,
    /// Present if neurons that are elsewhere are computed there.
    pub(super) mailbox: Option<usize>,
}

/// `y = norm(x)`, over each run of as many values as `norm` has factors.
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

/// What `predictor` reads, before anything is added to the residual.
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

fn matmul<T: Operand>(by: &Affine<T>, x: &T, y: &T) -> Op<T> {
    MatMul { w: by.w.clone(), x: x.clone(), bias: by.bias.clone(), y: y.clone() }.into()
}

impl<T: Operand> LayerOps<'_, T> {
    /// The ops in order.
    pub(super) fn list(self) -> Vec<Op<T>> {
        let mut ops = self.before_neurons();
        ops.extend(self.ops_after_attention());
        ops
    }

    /// Up to the feed-forward block's input in `h` and, with experts, what each weighs.
    pub(super) fn before_neurons(&self) -> Vec<Op<T>> {
        let (s, frame) = (self.scratch, self.frame);
        let mut ops = Vec::new();
        self.route(&mut ops, RouterInput::Layer, &s.x);
        ops.push(self.norm(&s.x, &frame.attn_norm, &s.h));
        self.attention(&mut ops);
        if !self.is_parallel() {
            self.add(&mut ops, frame.post_attn_norm.as_ref());
        }
        if let Some(norm) = &frame.ffn_norm {
            ops.push(self.norm(&s.x, norm, &s.h));
        }
        self.route(&mut ops, RouterInput::Ffn, &s.h);
        ops
    }

    /// The rest: from the feed-forward block on.
    pub(super) fn ops_after_attention(&self) -> Vec<Op<T>> {
        let mut ops = self.neurons_alone();
        ops.extend(self.after_neurons());
        ops
    }

    /// The feed-forward block alone.
    pub(super) fn neurons_alone(&self) -> Vec<Op<T>> {
        let mut ops = Vec::new();
        self.neurons(&mut ops, self.is_parallel());
        ops
    }

    /// What follows it.
    pub(super) fn after_neurons(&self) -> Vec<Op<T>> {
        let mut ops = Vec::new();
        self.add(&mut ops, self.frame.post_ffn_norm.as_ref());
        ops
    }

    fn is_parallel(&self) -> bool {
        self.model.spec.block == BlockKind::Parallel
    }

    fn norm(&self, x: &T, by: &Affine<T>, y: &T) -> Op<T> {
        norm(self.model, x, by, y)
    }

    /// Adds what half a layer left in `y`, normed first if there is a norm for it.
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
            (&self.frame.router, &self.scratch.weights, &self.model.hyper.experts)
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

    /// Adds what every token uses beside its experts to `y`, or puts it there unless `accumulate`.
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

    /// From the normed `h` to the block's output in `y`, added to what is there if `accumulate`.
    fn neurons(&self, ops: &mut Vec<Op<T>>, accumulate: bool) {
        let s = self.scratch;
        let (mut rows, mut absent) = (Rows::All, None);
        // Where the others stream, their lists are made piece by piece.
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
            let (weights, hits) = (s.weights.clone(), self.hits.clone());
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

    /// From the normed `h` to attention's output in `y`.
    fn attention(&self, ops: &mut Vec<Op<T>>) {
        let (s, frame, hyper) = (self.scratch, self.frame, &self.model.hyper);
        self.queries_keys_values(ops);
        if let (Some(freqs), Some(rope), Positions::Rotary(pairing)) =
            (self.freqs, &self.facts.rope, self.model.spec.positions)
        {
            let first = match frame.kv {
                Kv::Direct { .. } => 0,
                Kv::Latent(_) => hyper.d_head - hyper.n_rot,
            };
            for x in [&s.q, &s.k] {
                let rope = Rope {
                    freqs: freqs.clone(),
                    batch: self.batch.clone(),
                    x: x.clone(),
                    d_head: hyper.d_head,
                    first,
                    n_rot: hyper.n_rot,
                    pairing,
                    scale: rope.scale,
                };
                ops.push(rope.into());
            }
        }
        let (k, v) = (s.k.clone(), s.v.clone());
        ops.push(StoreKv { k, v, batch: self.batch.clone(), cache: self.cache.clone() }.into());
        let attention = Attention {
            q: s.q.clone(),
            cache: self.cache.clone(),
            batch: self.batch.clone(),
            sinks: frame.sinks.clone(),
            y: s.attention.clone(),
            n_head: hyper.n_head,
            n_head_kv: hyper.n_head_kv,
            scale: hyper.attn_scale,
            window: self.facts.window,
            softcap: hyper.attn_softcap,
        };
        ops.push(attention.into());
        ops.push(matmul(&frame.o, &s.attention, &s.y));
    }

    /// From the normed `h` to `q`, `k` and `v`.
    fn queries_keys_values(&self, ops: &mut Vec<Op<T>>) {
        let (s, frame) = (self.scratch, self.frame);
        // What is normed by head is made where nothing else is yet: attention's output and the values.
        let mut product =
            |by: &Affine<T>, head_norm: Option<&Affine<T>>, free: &T, y: &T| match head_norm {
                Some(norm) => {
                    ops.push(matmul(by, &s.h, free));
                    ops.push(self.norm(free, norm, y));
                }
                None => ops.push(matmul(by, &s.h, y)),
            };
        product(&frame.q, frame.q_norm.as_ref(), &s.attention, &s.q);
        match &frame.kv {
            Kv::Direct { k, v } => {
                product(k, frame.k_norm.as_ref(), &s.v, &s.k);
                product(v, None, &s.v, &s.v);
            }
            Kv::Latent(_) => self.latent(ops),
        }
    }

    /// Keys and values through a latent vector.
    fn latent(&self, ops: &mut Vec<Op<T>>) {
        let (s, hyper) = (self.scratch, &self.model.hyper);
        let (Kv::Latent(by), Some(latent)) = (&self.frame.kv, &s.latent) else {
            return;
        };
        let n_still = hyper.d_head - hyper.n_rot;
        let n_unfolded = n_still + hyper.d_value;
        ops.push(matmul(&by.fold, &s.h, &latent.folded));
        ops.push(self.norm(&latent.folded, &by.norm, &latent.normed));
        ops.push(matmul(&by.turning, &s.h, &latent.turning));
        ops.push(matmul(&by.unfold, &latent.normed, &latent.unfolded));
        let columns = |first, step| HeadColumns { first, step };
        let mut copy = |x: &T, from, y: &T, to, width| {
            let (x, y) = (x.clone(), y.clone());
            ops.push(CopyHeads { x, y, n_head: hyper.n_head, width, from, to }.into());
        };
        let to_key = |first| columns(first, hyper.d_head);
        copy(&latent.unfolded, columns(0, n_unfolded), &s.k, to_key(0), n_still);
        copy(&latent.turning, columns(0, 0), &s.k, to_key(n_still), hyper.n_rot);
        let to_value = columns(0, hyper.d_value);
        copy(&latent.unfolded, columns(n_still, n_unfolded), &s.v, to_value, hyper.d_value);
    }
}
