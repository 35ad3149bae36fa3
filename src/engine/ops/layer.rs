//! A layer as ops: over tensors to record the ops, over shapes to ask a device whether it supports
//! them.

use hal::op::{
    Add, Down, ExpertRanges, GateActivation, MatMul, Merge, Mul, Norm, Op, Post, Route, Scoring,
};
use hal::{Batch, Operand, RowSet, Rows};

use model::{Affine, Frame, LayerWeights, Mixer, Model, PredictorInput, RouterInput, SharedExpert};

use super::altup::{self, whole};
use super::ffn::{FfnMode, FfnOperands, FfnShare};
use super::hyper_connections;
use super::memory::Memory;
use super::predict::{Input, Predictor};
use super::scratch::{Role, Scratch};
use super::{chunk_experts, latent, low_rank_hyper, ngrams, residual_mix, stacks};

/// Operands of a layer's ops.
pub(crate) struct LayerOps<'a, T> {
    pub(crate) model: &'a Model,
    pub(crate) mode: FfnMode,
    pub(crate) index: usize,
    /// The layer in the file.
    pub(crate) facts: &'a LayerWeights,
    pub(crate) frame: &'a Frame<T>,
    /// Frequencies of RoPE; `None` in a layer without RoPE.
    pub(crate) freqs: Option<&'a T>,
    pub(crate) memory: &'a Memory<T>,
    /// Predicts the active neurons; `None` in a layer without a predictor.
    pub(crate) predictor: Option<&'a Predictor<T>>,
    /// Resident neurons; `None` if none is on the home device.
    pub(crate) own: Option<&'a FfnShare<T>>,
    pub(crate) scratch: &'a Scratch<T>,
    pub(crate) batch: &'a Batch<T>,
    /// Counters of active neurons.
    pub(crate) active: T,
    /// Row counters; `None` if rows are not counted.
    pub(crate) hits: Option<T>,
    /// Operand for [`hal::op::UnionCounts`]; `None` if the union is not counted.
    pub(crate) union: Option<T>,
    /// List of resident rows, which the predictor fills; `None` if no layer has a predictor.
    pub(crate) resident: Option<RowSet<T>>,
    /// List of absent rows, which the predictor fills if some neurons are on other devices.
    pub(crate) absent: Option<RowSet<T>>,
    /// Index of the mailbox; present if some neurons are computed on other devices.
    pub(crate) mailbox: Option<usize>,
}

/// `y = norm(x)`, where `x` is the residual.
pub(crate) fn residual_norm<T: Operand>(model: &Model, x: &T, by: &Affine<T>, y: &T) -> Op<T> {
    Norm { eps: model.hyper.residual_eps(), ..norm(model, x, by, y) }.into()
}

/// `y = norm(x)`. Each part of a row with the length of the norm's weight, such as a head, is
/// normed separately.
pub(super) fn norm<T: Operand>(model: &Model, x: &T, norm: &Affine<T>, y: &T) -> Norm<T> {
    Norm {
        x: x.clone(),
        weight: Some(norm.w.clone()),
        bias: norm.bias.clone(),
        y: y.clone(),
        kind: model.spec.norm,
        eps: model.hyper.eps,
        width: norm.w.desc().n_cols,
    }
}

/// Scratch that a layer needs in addition to the scratch of its mixer and the fixed tensors, as
/// roles and numbers of columns.
pub(crate) fn scratch_of(model: &Model, layer: &LayerWeights) -> Vec<(Role, usize)> {
    let (hyper, frame) = (&model.hyper, &layer.frame);
    let mut all = Vec::new();
    if frame.per_layer.is_some() {
        let (width, n_inputs) = (hyper.n_per_layer, hyper.n_per_layer * hyper.n_layer);
        all.extend([(Role::LayerInputs, n_inputs), (Role::LayerInputsPart, n_inputs)]);
        all.extend([(Role::LayerInput, width), (Role::LayerGate, width)]);
    }
    all.extend(frame.altup.iter().flat_map(|by| altup::scratch_of(by)));
    let streams = frame.hyper_connections.iter();
    all.extend(streams.flat_map(|by| hyper_connections::scratch_of(model, by)));
    let streams = frame.low_rank_hyper.iter();
    all.extend(streams.flat_map(|by| low_rank_hyper::scratch_of(by, hyper.n_embd)));
    all.extend(frame.ngrams.iter().flat_map(|by| ngrams::scratch_of(by)));
    all.extend(frame.residual_mix.iter().flat_map(|by| residual_mix::scratch_of(by)));
    let chunks = frame.chunks.iter();
    all.extend(chunks.flat_map(|by| chunk_experts::scratch_of(by, hyper.n_embd)));
    all.extend(stacks::scratch_of(layer, hyper.n_embd));
    all.extend(frame.latent.iter().flat_map(latent::scratch_of));
    if let Some(by) = &frame.input_scale {
        all.extend([(Role::ExpertWeight, 1), (Role::ExpertScores, by.identity.desc().n_rows)]);
    }
    if let Some(table) = &frame.listed_experts {
        all.push((Role::ListedExperts, table.desc().n_cols));
    }
    if frame.router_norm.is_some() {
        all.push((Role::RouterInput, hyper.n_embd));
    }
    if frame.early_experts {
        all.push((Role::ExpertInput, hyper.n_embd));
    }
    if frame.shared.as_ref().is_some_and(|shared| shared.norms.is_some()) {
        all.extend([(Role::DenseInput, hyper.n_embd), (Role::DenseOutput, hyper.n_embd)]);
    }
    all
}

/// The input of `predictor`, before the residual is updated.
pub(crate) fn predictor_input<'a, T>(
    model: &Model,
    predictor: &Predictor<T>,
    s: &'a Scratch<T>,
) -> &'a T {
    match (predictor.input, model.spec.predictor_input) {
        (Input::Normed, _) => &s.h,
        (Input::OfFile, PredictorInput::Residual) => &s.x,
    }
}

pub(crate) fn matmul<T: Operand>(by: &Affine<T>, x: &T, y: &T) -> Op<T> {
    MatMul { w: by.w.clone(), x: x.clone(), bias: by.bias.clone(), y: y.clone() }.into()
}

/// The matrices of a shared expert as a block without experts.
pub(crate) fn shared_share<T: Clone>(shared: &SharedExpert<T>) -> FfnShare<T> {
    let SharedExpert { gate, up, down, activation, .. } = shared.clone();
    let (gate, bias_gate) = gate.map_or((None, None), |gate| (Some(gate.w), gate.bias));
    FfnShare {
        gate,
        up: up.w,
        down: down.w,
        bias_gate,
        bias_up: up.bias,
        bias_down: down.bias,
        threshold: None,
        experts: None,
        activation,
        gaussian_cut: None,
        orientation: Down::AcrossNeurons,
    }
}

impl<T: Operand> LayerOps<'_, T> {
    pub(crate) fn all_ops(self) -> Vec<Op<T>> {
        let mut ops = self.before_neurons();
        ops.extend(self.ops_after_attention());
        ops
    }

    /// The ops up to the feed-forward block's input in `h` and, with experts, the router's weights.
    pub(crate) fn before_neurons(&self) -> Vec<Op<T>> {
        let (s, frame) = (self.scratch, self.frame);
        let mut ops = Vec::new();
        self.start_states(&mut ops);
        self.predict_streams(&mut ops);
        self.begin_mixed_streams(&mut ops);
        self.start_streams(&mut ops);
        self.read_streams(&mut ops, true);
        self.route(&mut ops, RouterInput::Layer, &s.x);
        let early = frame.early_experts.then(|| s.at(Role::ExpertInput, self.model.hyper.n_embd));
        if let (Some(early), Some(norm)) = (early, &frame.ffn_norm) {
            ops.push(residual_norm(self.model, &s.x, norm, early));
        }
        match &frame.low_rank_hyper {
            Some(by) => self.mix_streams(&mut ops, by, &by.mixer, &s.h),
            None => {
                let x = self.mixer_input(&mut ops);
                self.input(&mut ops, x, frame.attn_norm.as_ref(), self.has_mixer());
            }
        }
        self.laurel(&mut ops);
        self.mix(&mut ops);
        self.scale_output(&mut ops, &frame.gains[0]);
        if self.write_streams(&mut ops) {
            self.read_streams(&mut ops, false);
        } else if !self.is_parallel() && self.has_mixer() && !self.restart_residual(&mut ops) {
            self.add(&mut ops, frame.post_attn_norm.as_ref(), frame.post_eps[0]);
            self.add_input(&mut ops);
            self.add_laurel(&mut ops);
        }
        let reads_residual = self.facts.ffn.is_some() && !self.is_parallel();
        match (early, &frame.low_rank_hyper) {
            (Some(early), _) => ops.push(self.copy(early, &s.h)),
            (None, Some(by)) => self.mix_streams(&mut ops, by, &by.ffn, &s.h),
            (None, None) => {
                let x = self.block_input(&mut ops);
                self.input(&mut ops, x, frame.ffn_norm.as_ref(), reads_residual);
            }
        }
        self.mix_channels(&mut ops);
        self.shift_channels(&mut ops);
        self.route(&mut ops, RouterInput::Ffn, &s.h);
        self.scale_input(&mut ops);
        if let Some(norm) = &frame.router_norm {
            let x = s.at(Role::RouterInput, self.model.hyper.n_embd);
            ops.push(residual_norm(self.model, &s.x, norm, x));
            self.route(&mut ops, RouterInput::Residual, x);
        }
        self.to_latent(&mut ops);
        ops
    }

    /// Computes the normed residual or mix `x` into `h`. Without a norm, copies `x` if `is_read` is
    /// set.
    fn input(&self, ops: &mut Vec<Op<T>>, x: &T, norm: Option<&Affine<T>>, is_read: bool) {
        let s = self.scratch;
        match norm {
            Some(norm) => ops.push(residual_norm(self.model, x, norm, &s.h)),
            None if is_read => ops.push(self.copy(x, &s.h)),
            None => {}
        }
    }

    /// Copies values as wide as the residual.
    fn copy(&self, x: &T, y: &T) -> Op<T> {
        whole(x, y)
    }

    /// The ops from the feed-forward block on.
    pub(crate) fn ops_after_attention(&self) -> Vec<Op<T>> {
        let mut ops = self.neurons_alone();
        ops.extend(self.after_neurons());
        ops
    }

    /// The ops of the feed-forward block alone.
    pub(crate) fn neurons_alone(&self) -> Vec<Op<T>> {
        let mut ops = Vec::new();
        if self.facts.ffn.is_some() {
            self.neurons(&mut ops, self.is_parallel() && self.has_mixer());
        }
        ops
    }

    /// The ops after the feed-forward block.
    pub(crate) fn after_neurons(&self) -> Vec<Op<T>> {
        let mut ops = Vec::new();
        self.add_latent(&mut ops);
        self.add_chunks(&mut ops);
        self.join_dense(&mut ops);
        self.scale_output(&mut ops, &self.frame.gains[1]);
        self.gate_channels(&mut ops);
        if self.write_streams(&mut ops) {
            self.end_streams(&mut ops);
        } else if self.facts.ffn.is_some() || (self.is_parallel() && self.has_mixer()) {
            let eps = self.frame.post_eps[1];
            self.add(&mut ops, self.frame.post_ffn_norm.as_ref(), eps);
        }
        self.mix_at_end(&mut ops);
        self.correct_streams(&mut ops);
        self.per_layer(&mut ops);
        self.end_mixed_streams(&mut ops);
        if let Some(scale) = &self.frame.out_scale {
            let (g, x) = (scale.clone(), self.scratch.x.clone());
            ops.push(Mul { g, x, activation: GateActivation::None }.into());
        }
        self.end_states(&mut ops);
        ops
    }

    /// Sums the normed outputs of the experts and of the parallel dense block into `y`.
    fn join_dense(&self, ops: &mut Vec<Op<T>>) {
        let s = self.scratch;
        let shared = self.frame.shared.as_ref();
        let Some(norms) = shared.and_then(|shared| shared.norms.as_ref()) else { return };
        let dense = s.at(Role::DenseOutput, self.model.hyper.n_embd);
        let a = match &norms.after {
            Some([after, experts]) => {
                ops.push(self.norm(&s.y, experts, &s.h));
                ops.push(self.norm(dense, after, &s.y));
                &s.h
            }
            None => dense,
        };
        ops.push(Add { a: a.clone(), x: s.y.clone() }.into());
    }

    fn has_mixer(&self) -> bool {
        !matches!(self.frame.mixer, Mixer::None)
    }

    fn is_parallel(&self) -> bool {
        self.frame.parallel
    }

    pub(crate) fn norm(&self, x: &T, by: &Affine<T>, y: &T) -> Op<T> {
        norm(self.model, x, by, y).into()
    }

    /// Adds `y`, the output of the mixer or the block, to the residual, after its post-norm if any,
    /// whose epsilon is `eps`.
    pub(super) fn add(&self, ops: &mut Vec<Op<T>>, post_norm: Option<&Affine<T>>, eps: f32) {
        let s = self.scratch;
        if let Some(by) = &self.frame.low_rank_hyper {
            return self.add_to_mixed(ops, by);
        }
        let norm = |x: &T, by: &Affine<T>, y: &T| Norm { eps, ..norm(self.model, x, by, y) }.into();
        let a = match post_norm {
            Some(by) if self.frame.sum_norms => {
                ops.push(Add { a: s.x.clone(), x: s.y.clone() }.into());
                return ops.push(norm(&s.y, by, &s.x));
            }
            Some(by) => {
                ops.push(norm(&s.y, by, &s.h));
                &s.h
            }
            None => &s.y,
        };
        ops.push(Add { a: a.clone(), x: s.x.clone() }.into());
    }

    /// Adds the layer's input, a copy of which is in `h`, to the residual after the mixer, and norms
    /// the sum, in layers with such a norm.
    fn add_input(&self, ops: &mut Vec<Op<T>>) {
        let (s, Some(by)) = (self.scratch, &self.frame.input_sum_norm) else { return };
        ops.push(Add { a: s.x.clone(), x: s.h.clone() }.into());
        ops.push(self.norm(&s.h, by, &s.x));
    }

    /// Selects experts from `x`, if `input` is the input of the router.
    fn route(&self, ops: &mut Vec<Op<T>>, input: RouterInput, x: &T) {
        let (Some(router), Some(weights), Some(experts)) =
            (&self.frame.router, &self.scratch.weights, self.facts.experts())
        else {
            return;
        };
        if self.model.spec.routing.input == input {
            let weights = match &self.frame.input_scale {
                Some(_) => self.scratch.at(Role::ExpertScores, experts.n),
                None => weights,
            };
            self.routing(ops, router, experts, [x, weights]);
            if let Some(scale) = &self.frame.expert_scale {
                let (g, x) = (scale.clone(), weights.clone());
                ops.push(Mul { g, x, activation: GateActivation::None }.into());
            }
        }
    }

    /// Guesses the router's weights of this layer from the residual of an earlier one, into
    /// `weights`; no ops if the router's input is not the normed residual. Uses `y`.
    pub(crate) fn guess_experts(&self, weights: &T) -> Vec<Op<T>> {
        let (s, frame) = (self.scratch, self.frame);
        let usual = self.model.spec.routing.input == RouterInput::Ffn
            && frame.input_scale.is_none()
            && frame.residual_mix.is_none()
            && !self.is_parallel();
        let (Some(norm), Some(router), Some(experts), true) =
            (&frame.ffn_norm, &frame.router, self.facts.experts(), usual)
        else {
            return Vec::new();
        };
        let mut ops = vec![residual_norm(self.model, &s.x, norm, &s.y)];
        self.routing(&mut ops, router, experts, [&s.y, weights]);
        ops
    }

    /// Guesses this layer's active neurons from the residual of an earlier one, into `list`; no ops
    /// if some neurons are on other devices. Uses `y`.
    pub(crate) fn guess_neurons(&self, list: RowSet<T>) -> Vec<Op<T>> {
        let (s, usual) = (self.scratch, self.absent.is_none() && !self.is_parallel());
        let Some(predictor) = self.predictor.filter(|_| usual) else { return Vec::new() };
        match (predictor.input, self.model.spec.predictor_input, &self.frame.ffn_norm) {
            (Input::OfFile, PredictorInput::Residual, _) => {
                vec![predictor.op(s.x.clone(), list, None).into()]
            }
            (Input::Normed, _, Some(norm)) => {
                let normed = residual_norm(self.model, &s.x, norm, &s.y);
                vec![normed, predictor.op(s.y.clone(), list, None).into()]
            }
            (Input::Normed, _, None) => Vec::new(),
        }
    }

    /// Multiplies the input of the experts by the weight of the token's only expert. After that,
    /// the expert has weight 1.
    fn scale_input(&self, ops: &mut Vec<Op<T>>) {
        let s = self.scratch;
        let (Some(by), Some(weights)) = (&self.frame.input_scale, &s.weights) else { return };
        let scores = s.at(Role::ExpertScores, by.identity.desc().n_rows);
        let g = s.at(Role::ExpertWeight, 1).clone();
        ops.push(matmul(&Affine { w: by.sum.clone(), bias: None }, scores, &g));
        let ones = Route {
            w: by.identity.clone(),
            bias: None,
            selection: None,
            groups: None,
            chosen: None,
            x: scores.clone(),
            weights: weights.clone(),
            n_used: 1,
            n_per_chunk: 1,
            n_groups: [1, 1],
            scoring: Scoring::SoftmaxChosen,
            renormalise: false,
            scale: 1.0,
        };
        ops.push(ones.into());
        ops.push(Mul { g, x: s.h.clone(), activation: GateActivation::None }.into());
    }

    /// Computes the shared expert into `y`, or adds it to `y` if `accumulate` is set. A shared
    /// expert with norms of its own is computed into `Role::DenseOutput`.
    fn shared(&self, ops: &mut Vec<Op<T>>, shared: &SharedExpert<T>, accumulate: bool) {
        let s = self.scratch;
        let n_embd = self.model.hyper.n_embd;
        let (x, y) = match &shared.norms {
            Some(norms) => {
                let x = s.at(Role::DenseInput, n_embd);
                ops.push(residual_norm(self.model, &s.x, &norms.before, x));
                (x, s.at(Role::DenseOutput, n_embd))
            }
            None => (&s.h, &s.y),
        };
        let accumulate = accumulate && shared.norms.is_none();
        let mut experts = None;
        if let (Some(weight), Some(weights)) = (&shared.weight, &s.shared_weight) {
            let route = Route {
                w: weight.w.clone(),
                bias: weight.bias.clone(),
                selection: None,
                groups: None,
                chosen: None,
                x: x.clone(),
                weights: weights.clone(),
                n_used: 1,
                n_per_chunk: 1,
                n_groups: [1, 1],
                scoring: Scoring::Sigmoid,
                renormalise: false,
                scale: 1.0,
            };
            ops.push(route.into());
            let n_ff = shared.up.w.desc().n_rows as u32;
            experts = Some(ExpertRanges { starts: [0, n_ff].into(), n_used: 1 });
        }
        let place = FfnOperands {
            x: x.clone(),
            weights: s.shared_weight.clone().filter(|_| experts.is_some()),
            y: y.clone(),
            active: self.active.clone(),
            hits: None,
            union: None,
            accumulate,
        };
        let share = FfnShare { experts, ..shared_share(shared) };
        ops.push(self.mode.op(&share, Rows::All, place).into());
    }

    /// Computes the block from the normed `h` into `y`, or adds it to `y` if `accumulate` is set.
    fn neurons(&self, ops: &mut Vec<Op<T>>, accumulate: bool) {
        let s = self.scratch;
        let (mut rows, mut absent) = (Rows::All, None);
        // If the absent neurons are streamed, the predictor runs for each chunk instead.
        let wanted = self.own.is_some() || self.mailbox.is_some();
        if let (Some(predictor), Some(resident), true) = (self.predictor, &self.resident, wanted) {
            absent = self.absent.clone();
            let x = predictor_input(self.model, predictor, s).clone();
            ops.push(predictor.op(x, resident.clone(), absent.clone()).into());
            rows = Rows::Active(resident.clone());
        }
        if let Some(mailbox) = self.mailbox {
            let (x, batch) = (self.posted(ops).clone(), self.batch.clone());
            // All mailboxes of a model have the same shape: a dense layer among layers with experts
            // posts weights too, which the host ignores.
            let weights = s.weights.clone();
            ops.push(Post { x, batch, rows: absent, weights, mailbox }.into());
        }
        let mut accumulate = accumulate;
        if let Some(own) = self.own {
            let ([x, y], active) = (self.block().map(T::clone), self.active.clone());
            let weights = s.weights.clone().filter(|_| own.experts.is_some());
            let (hits, union) = (self.hits.clone(), self.union.clone());
            let place = FfnOperands { x, weights, y, active, hits, union, accumulate };
            ops.push(self.mode.op(own, rows, place).into());
            // Latent experts have an output of their own.
            accumulate = self.frame.latent.is_none();
        }
        if let Some(shared) = &self.frame.shared {
            self.shared(ops, shared, accumulate);
            accumulate |= self.frame.adds_shared();
        }
        match (self.mailbox, &self.frame.latent) {
            (Some(mailbox), Some(_)) => self.latent_answer(ops, mailbox),
            (Some(mailbox), None) => {
                let (batch, y) = (self.batch.clone(), s.y.clone());
                ops.push(Merge { batch, y, mailbox, accumulate }.into());
            }
            (None, _) => {}
        }
    }
}
