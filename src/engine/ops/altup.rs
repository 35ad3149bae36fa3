//! The residual streams of Gemma 3n as ops, and its low-rank residual.

use hal::op::{Add, CopyHeads, GateActivation, HeadColumns, Mul, Norm, NormKind, Op, SoftCap};
use hal::{Operand, TensorDesc};

use model::{Affine, AltUp};

use super::layer::{LayerOps, matmul};
use super::scratch::Role;

/// Smallest length that a stream is divided by.
const MIN_LENGTH: f32 = 1e-12;

/// Scratch of the streams, as roles and numbers of columns.
pub(super) fn scratch_of(by: &AltUp) -> Vec<(Role, usize)> {
    let TensorDesc { n_rows: n, n_cols: n_embd, .. } = by.router.desc();
    vec![
        (Role::Streams, n * n_embd),
        (Role::Predicted, n * n_embd),
        (Role::StreamPart, n * n_embd),
        (Role::StreamRouting, n),
        (Role::StreamShares, n),
        (Role::StreamLength, 1),
        (Role::Laurel, n_embd),
        (Role::LaurelLow, by.laurel.left.w.desc().n_rows),
    ]
}

/// The tensors that hold the streams of a step.
pub(super) struct Streams<'a, T> {
    pub(super) n: usize,
    pub(super) width: usize,
    /// The streams of a token, one after the other.
    pub(super) all: &'a T,
    /// Other values of all streams: in Gemma 3n the predicted streams.
    pub(super) predicted: &'a T,
    pub(super) part: &'a T,
}

impl<T: Operand> LayerOps<'_, T> {
    fn streams(&self, by: &AltUp<T>) -> Streams<'_, T> {
        let (n, width) = (by.router.desc().n_rows, self.model.hyper.n_embd);
        let at = |role| self.scratch.at(role, n * width);
        let [all, predicted, part] = [Role::Streams, Role::Predicted, Role::StreamPart].map(at);
        Streams { n, width, all, predicted, part }
    }

    /// Predicts the streams after the layer, and makes the first one the residual. The first layer
    /// also computes the streams from the embedding.
    pub(super) fn predict_streams(&self, ops: &mut Vec<Op<T>>) {
        let (s, Some(by)) = (self.scratch, &self.frame.altup) else { return };
        let streams = self.streams(by);
        let Streams { n, all, predicted, part, .. } = streams;
        if !by.start.is_empty() {
            self.length(ops, by);
            ops.push(streams.copy(&s.x, 0, all, 0));
            for (i, w) in by.start.iter().enumerate() {
                self.of_length(ops, w, &s.x);
                ops.push(streams.copy(&s.h, 0, all, i + 1));
            }
        }
        ops.push(streams.copy(all, 0, &s.x, 0));
        self.route_streams(ops, by);
        ops.push(whole(all, predicted));
        let routing = s.at(Role::StreamRouting, n);
        let shares = s.at(Role::StreamShares, n);
        for (j, w) in by.predict.iter().enumerate() {
            ops.push(matmul(&Affine { w: w.clone(), bias: None }, routing, shares));
            ops.push(streams.repeat(all, j));
            ops.push(scale(shares, part));
            ops.push(Add { a: part.clone(), x: predicted.clone() }.into());
        }
        ops.push(streams.copy(predicted, 0, &s.x, 0));
    }

    /// Corrects the predicted streams by the residual after the layer.
    pub(super) fn correct_streams(&self, ops: &mut Vec<Op<T>>) {
        let (s, Some(by)) = (self.scratch, &self.frame.altup) else { return };
        let streams = self.streams(by);
        let Streams { n, all, predicted, part, .. } = streams;
        self.route_streams(ops, by);
        let shares = s.at(Role::StreamShares, n);
        ops.push(matmul(&by.correct, s.at(Role::StreamRouting, n), shares));
        ops.push(streams.copy(predicted, 0, &s.y, 0));
        ops.push(scale(&by.constants.minus, &s.y));
        ops.push(Add { a: s.x.clone(), x: s.y.clone() }.into());
        ops.push(streams.repeat(&s.y, 0));
        ops.push(scale(shares, part));
        ops.push(whole(predicted, all));
        ops.push(Add { a: part.clone(), x: all.clone() }.into());
        // The input of the per-layer embedding's gate.
        ops.push(streams.copy(all, 0, &s.x, 0));
        ops.push(scale(&by.gate_scale, &s.x));
    }

    /// Adds `h` to all streams except the first. The last layer then averages the streams into the
    /// residual.
    pub(super) fn add_to_streams(&self, ops: &mut Vec<Op<T>>, by: &AltUp<T>) {
        let s = self.scratch;
        let streams = self.streams(by);
        let Streams { all, part, .. } = streams;
        ops.push(streams.repeat(&s.h, 0));
        ops.push(scale(&by.constants.others, part));
        ops.push(Add { a: part.clone(), x: all.clone() }.into());
        if by.end.is_empty() {
            return;
        }
        ops.push(streams.copy(all, 0, &s.x, 0));
        self.length(ops, by);
        let other = s.at(Role::Laurel, streams.width);
        for (i, w) in by.end.iter().enumerate() {
            ops.push(streams.copy(all, i + 1, other, 0));
            self.of_length(ops, w, other);
            ops.push(Add { a: s.h.clone(), x: s.x.clone() }.into());
        }
        ops.push(scale(&by.constants.mean, &s.x));
    }

    /// Computes the router's output from the residual. Uses `h`.
    fn route_streams(&self, ops: &mut Vec<Op<T>>, by: &AltUp<T>) {
        let s = self.scratch;
        let routing = s.at(Role::StreamRouting, by.router.desc().n_rows);
        ops.push(self.norm(&s.x, &by.router_norm, &s.h));
        ops.push(matmul(&Affine { w: by.router.clone(), bias: None }, &s.h, routing));
        // A soft cap of 1 is a tanh.
        ops.push(SoftCap { x: routing.clone(), cap: 1.0, hard: false }.into());
    }

    /// The length of the residual: the sum of `x * x / length`. Uses `h` and `y`.
    fn length(&self, ops: &mut Vec<Op<T>>, by: &AltUp<T>) {
        let s = self.scratch;
        ops.push(unit(&s.x, &s.h));
        ops.push(whole(&s.x, &s.y));
        ops.push(scale(&s.h, &s.y));
        let ones = Affine { w: by.constants.ones.clone(), bias: None };
        ops.push(matmul(&ones, &s.y, s.at(Role::StreamLength, 1)));
    }

    /// `h = w . x` with the length that [`LayerOps::length`] computed. Uses `y`.
    fn of_length(&self, ops: &mut Vec<Op<T>>, w: &T, x: &T) {
        let s = self.scratch;
        ops.push(matmul(&Affine { w: w.clone(), bias: None }, x, &s.y));
        ops.push(unit(&s.y, &s.h));
        ops.push(scale(s.at(Role::StreamLength, 1), &s.h));
    }

    /// Computes the low-rank residual from the mixer's input `h`. Uses `y`.
    pub(super) fn laurel(&self, ops: &mut Vec<Op<T>>) {
        let (s, Some(by)) = (self.scratch, &self.frame.altup) else { return };
        let low = s.at(Role::LaurelLow, by.laurel.left.w.desc().n_rows);
        let out = s.at(Role::Laurel, self.model.hyper.n_embd);
        ops.push(matmul(&by.laurel.left, &s.h, low));
        ops.push(matmul(&by.laurel.right, low, &s.y));
        ops.push(self.norm(&s.y, &by.laurel.norm, out));
        ops.push(Add { a: s.h.clone(), x: out.clone() }.into());
    }

    /// Adds the low-rank residual to the residual after the mixer.
    pub(super) fn add_laurel(&self, ops: &mut Vec<Op<T>>) {
        let (s, Some(by)) = (self.scratch, &self.frame.altup) else { return };
        let laurel = s.at(Role::Laurel, self.model.hyper.n_embd);
        ops.push(Add { a: laurel.clone(), x: s.x.clone() }.into());
        ops.push(scale(&by.constants.half, &s.x));
    }
}

impl<T: Operand> Streams<'_, T> {
    /// Copies stream `from` of `x` to stream `to` of `y`.
    pub(super) fn copy(&self, x: &T, from: usize, y: &T, to: usize) -> Op<T> {
        let at = |stream: usize| HeadColumns { first: stream * self.width, step: self.width };
        let (x, y) = (x.clone(), y.clone());
        CopyHeads { x, y, n_head: 1, width: self.width, from: at(from), to: at(to) }.into()
    }

    /// Copies stream `from` of `x` to all streams of `part`.
    fn repeat(&self, x: &T, from: usize) -> Op<T> {
        self.repeat_to(x, from, self.part)
    }

    /// Copies stream `from` of `x` to all streams of `y`.
    pub(super) fn repeat_to(&self, x: &T, from: usize, y: &T) -> Op<T> {
        let (x, y) = (x.clone(), y.clone());
        let (first, width) = (from * self.width, self.width);
        let from = HeadColumns { first, step: 0 };
        CopyHeads { x, y, n_head: self.n, width, from, to: HeadColumns { first: 0, step: width } }
            .into()
    }
}

pub(super) fn whole<T: Operand>(x: &T, y: &T) -> Op<T> {
    let width = x.desc().n_cols;
    let columns = HeadColumns { first: 0, step: width };
    CopyHeads { x: x.clone(), y: y.clone(), n_head: 1, width, from: columns, to: columns }.into()
}

pub(super) fn scale<T: Operand>(g: &T, x: &T) -> Op<T> {
    Mul { g: g.clone(), x: x.clone(), activation: GateActivation::None }.into()
}

/// `y = x / |x|`.
fn unit<T: Operand>(x: &T, y: &T) -> Op<T> {
    let width = x.desc().n_cols;
    let (x, y) = (x.clone(), y.clone());
    Norm { x, weight: None, bias: None, y, kind: NormKind::L2, eps: MIN_LENGTH, width }.into()
}
