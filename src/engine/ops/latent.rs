//! Experts whose width differs from that of the residual, as ops (Kimi K3): a projection before them, a
//! norm and a projection after them.
//!
//! Hand-offs have the width of the residual: what a layer's home posts begins with the experts' input,
//! and the answer with their output; the other columns have no meaning.

use hal::op::{Add, CopyHeads, HeadColumns, Merge, Op};
use hal::{HostRows, Operand};

use model::LatentExperts;

use super::layer::{LayerOps, matmul};
use super::scratch::{Role, Scratch};

/// Scratch of the experts, as roles and numbers of columns.
pub(super) fn scratch_of(by: &LatentExperts<HostRows>) -> Vec<(Role, usize)> {
    let width = by.down.w.desc().n_rows;
    [Role::LatentInput, Role::LatentOutput, Role::LatentAnswer].map(|role| (role, width)).into()
}

/// Input and output of the blocks of `width` columns of a device that is a layer's home.
pub(crate) fn block_operands<T>(s: &Scratch<T>, width: usize, is_latent: bool) -> [&T; 2] {
    if is_latent {
        [Role::LatentInput, Role::LatentOutput].map(|role| s.at(role, width))
    } else {
        [&s.h, &s.y]
    }
}

/// Copies the first `width` columns of `x` to those of `y`.
pub(crate) fn copy_columns<T: Operand>(x: &T, y: &T, width: usize) -> Op<T> {
    let columns = HeadColumns { first: 0, step: width };
    let (x, y) = (x.clone(), y.clone());
    CopyHeads { x, y, n_head: 1, width, from: columns, to: columns }.into()
}

impl<T: Operand> LayerOps<'_, T> {
    /// Input and output of the block without its shared expert.
    pub(super) fn block(&self) -> [&T; 2] {
        let width = self.facts.ffn.as_ref().map_or(self.model.hyper.n_embd, model::Ffn::width);
        block_operands(self.scratch, width, self.frame.latent.is_some())
    }

    /// Computes the experts' input from `h`.
    pub(super) fn to_latent(&self, ops: &mut Vec<Op<T>>) {
        if let Some(by) = &self.frame.latent {
            let [input, _] = self.block();
            ops.push(matmul(&by.down, &self.scratch.h, input));
        }
    }

    /// Computes `y` from the experts' output, or adds to it what a shared expert computed. Overwrites the
    /// experts' input and `h`.
    pub(super) fn add_latent(&self, ops: &mut Vec<Op<T>>) {
        let (s, Some(by)) = (self.scratch, &self.frame.latent) else { return };
        let [input, output] = self.block();
        let x = match &by.norm {
            Some(norm) => {
                ops.push(self.norm(output, norm, input));
                input
            }
            None => output,
        };
        if self.frame.adds_shared() {
            ops.push(matmul(&by.up, x, &s.h));
            ops.push(Add { a: s.h.clone(), x: s.y.clone() }.into());
        } else {
            ops.push(matmul(&by.up, x, &s.y));
        }
    }

    /// The tensor that the layer's home posts, as wide as the residual.
    pub(super) fn posted(&self, ops: &mut Vec<Op<T>>) -> &T {
        let (s, [input, _]) = (self.scratch, self.block());
        if self.frame.latent.is_none() {
            return input;
        }
        ops.push(copy_columns(input, &s.y, input.desc().n_cols));
        &s.y
    }

    /// Waits for the answer to a hand-off, and adds it to the output of the experts on the home, if it has
    /// some. Overwrites `h`.
    pub(super) fn latent_answer(&self, ops: &mut Vec<Op<T>>, mailbox: usize) {
        let (s, [_, output]) = (self.scratch, self.block());
        let width = output.desc().n_cols;
        let (batch, y) = (self.batch.clone(), s.h.clone());
        ops.push(Merge { batch, y, mailbox, accumulate: false }.into());
        if self.own.is_none() {
            return ops.push(copy_columns(&s.h, output, width));
        }
        let part = s.at(Role::LatentAnswer, width);
        ops.push(copy_columns(&s.h, part, width));
        ops.push(Add { a: part.clone(), x: output.clone() }.into());
    }
}
