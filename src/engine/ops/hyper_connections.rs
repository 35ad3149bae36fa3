//! The residual streams of hyper-connections as ops. The residual `x` is the input of a block, a
//! weighted sum of the streams; after the last layer it is their mean.

use hal::Operand;
use hal::op::{CopyHeads, HeadColumns, HyperRead, HyperWeights, HyperWrite, Norm, NormKind, Op};

use model::{Affine, HyperConnections, Model, StreamEnd, StreamWeights};

use super::layer::{LayerOps, matmul};
use super::scratch::Role;

/// Scratch of the streams, as roles and numbers of columns.
pub(super) fn scratch_of<T>(model: &Model, by: &HyperConnections<T>) -> Vec<(Role, usize)> {
    let (n, width) = (by.n_streams, model.hyper.n_embd);
    let mut all = vec![
        (Role::Streams, n * width),
        (Role::StreamPart, n * width),
        (Role::StreamShares, n * (n + 2)),
    ];
    all.extend(by.end.is_some().then_some((Role::StreamShares, n)));
    all
}

impl<T: Operand> LayerOps<'_, T> {
    fn all_streams(&self, by: &HyperConnections<T>) -> &T {
        self.scratch.at(Role::Streams, by.n_streams * self.model.hyper.n_embd)
    }

    fn stream_shares(&self, by: &HyperConnections<T>) -> &T {
        self.scratch.at(Role::StreamShares, by.n_streams * (by.n_streams + 2))
    }

    /// In the first layer, copies the embedding to all streams.
    pub(super) fn start_streams(&self, ops: &mut Vec<Op<T>>) {
        let Some(by) = self.frame.hyper_connections.as_ref().filter(|_| self.index == 0) else {
            return;
        };
        let (x, width) = (self.scratch.x.clone(), self.model.hyper.n_embd);
        let from = HeadColumns { first: 0, step: 0 };
        let to = HeadColumns { first: 0, step: width };
        let y = self.all_streams(by).clone();
        ops.push(CopyHeads { x, y, n_head: by.n_streams, width, from, to }.into());
    }

    /// Computes the weights of the mixer or feed-forward block, and writes its input to the
    /// residual.
    pub(super) fn read_streams(&self, ops: &mut Vec<Op<T>>, is_mixer: bool) {
        let Some(by) = &self.frame.hyper_connections else { return };
        let by_block = if is_mixer { &by.mixer } else { &by.ffn };
        let (weights, x) = (self.stream_shares(by), &self.scratch.x);
        self.sum_streams(ops, by, by_block, weights, x);
    }

    /// Computes the weights of the streams into `weights`, and their sum with the first of these weights
    /// into `y`.
    fn sum_streams(
        &self,
        ops: &mut Vec<Op<T>>,
        by: &HyperConnections<T>,
        StreamWeights { product, scale, base }: &StreamWeights<T>,
        weights: &T,
        y: &T,
    ) {
        let (n_streams, streams) = (by.n_streams, self.all_streams(by));
        let width = n_streams * self.model.hyper.n_embd;
        let normed = self.scratch.at(Role::StreamPart, width);
        let norm = Norm {
            x: streams.clone(),
            weight: None,
            bias: None,
            y: normed.clone(),
            kind: NormKind::Rms,
            eps: self.model.hyper.eps,
            width,
        };
        ops.push(norm.into());
        ops.push(matmul(&Affine { w: product.clone(), bias: None }, normed, weights));
        let of_streams = HyperWeights {
            scale: scale.clone(),
            base: base.clone(),
            weights: weights.clone(),
            n_streams,
            eps: by.eps,
            n_iterations: by.n_iterations,
        };
        ops.push(of_streams.into());
        let (streams, weights, y) = (streams.clone(), weights.clone(), y.clone());
        ops.push(HyperRead { streams, weights, y, n_streams }.into());
    }

    /// Writes `y`, the output of the mixer or the block, to the streams, with the weights of
    /// [`LayerOps::read_streams`]. Returns whether the layer has several streams.
    pub(super) fn write_streams(&self, ops: &mut Vec<Op<T>>) -> bool {
        let Some(by) = &self.frame.hyper_connections else { return false };
        let (streams, weights) = (self.all_streams(by).clone(), self.stream_shares(by).clone());
        let (x, n_streams) = (self.scratch.y.clone(), by.n_streams);
        ops.push(HyperWrite { x, weights, streams, n_streams }.into());
        true
    }

    /// After the last layer, computes the residual from the streams.
    pub(super) fn end_streams(&self, ops: &mut Vec<Op<T>>) {
        let Some(by) = &self.frame.hyper_connections else { return };
        match &by.end {
            None => {}
            Some(StreamEnd::Shares(shares)) => {
                let (streams, y) = (self.all_streams(by).clone(), self.scratch.x.clone());
                let (weights, n_streams) = (shares.clone(), by.n_streams);
                ops.push(HyperRead { streams, weights, y, n_streams }.into());
            }
            Some(StreamEnd::Weighted(end)) => {
                let weights = self.scratch.at(Role::StreamShares, by.n_streams);
                self.sum_streams(ops, by, end, weights, &self.scratch.x);
            }
        }
    }
}
