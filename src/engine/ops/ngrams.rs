//! The embeddings of n-grams as ops: a layer adds them to its residual streams.

use hal::Operand;
use hal::op::{Add, GateActivation, HeadMatMul, Mul, Op, ShortConv};

use model::NgramLayer;

use super::altup::Streams;
use super::layer::{LayerOps, matmul};
use super::scratch::Role;

/// Scratch of a layer with n-grams, beside that of its streams, as roles and numbers of columns.
pub(super) fn scratch_of(by: &NgramLayer) -> Vec<(Role, usize)> {
    let (all, n) = (by.key.w.desc().n_rows, by.scores.desc().n_rows);
    let width = by.key.w.desc().n_cols;
    vec![(Role::Ngrams, width), (Role::StreamSum, all), (Role::NgramScores, n)]
}

impl<T: Operand> LayerOps<'_, T> {
    /// Adds the embeddings of the tokens' n-grams to the streams: `v` and `silu(conv(norm(v)))`, where a
    /// stream's `v` is the value times its gate. Uses `y`.
    pub(super) fn add_ngrams(
        &self,
        ops: &mut Vec<Op<T>>,
        by: &NgramLayer<T>,
        streams: &Streams<'_, T>,
    ) {
        let (s, Some(state)) = (self.scratch, self.memory.ngrams.as_ref()) else { return };
        let Streams { n, width, all, predicted: key, part } = *streams;
        let embedding = s.at(Role::Ngrams, by.key.w.desc().n_cols);
        let scores = s.at(Role::NgramScores, n);
        let sum = s.at(Role::StreamSum, n * width);
        ops.push(matmul(&by.key, embedding, part));
        self.norm_streams(ops, part, key);
        self.norm_streams(ops, all, part);
        let (g, x) = (key.clone(), part.clone());
        ops.push(Mul { g, x, activation: GateActivation::None }.into());
        let (w, x, y) = (by.scores.clone(), part.clone(), scores.clone());
        ops.push(HeadMatMul { w, x, y, n_head: n }.into());
        ops.push(matmul(&by.value, embedding, &s.y));
        // The key's tensor holds the gated values from here on.
        let values = key;
        ops.push(streams.repeat_to(&s.y, 0, values));
        let (g, x) = (scores.clone(), values.clone());
        ops.push(Mul { g, x, activation: GateActivation::SigmoidOfRoot }.into());
        self.norm_streams(ops, values, part);
        let conv = ShortConv {
            x: part.clone(),
            weight: by.conv.clone(),
            bias: None,
            batch: self.batch.clone(),
            state: state.clone(),
            y: sum.clone(),
            silu: true,
        };
        ops.push(conv.into());
        ops.push(Add { a: values.clone(), x: sum.clone() }.into());
        ops.push(Add { a: sum.clone(), x: all.clone() }.into());
    }
}
