//! Per-layer embeddings as ops (Gemma 3n and 4).

use hal::Operand;
use hal::op::{CopyHeads, GateActivation, HeadColumns, Mul, Op};

use super::layer::{LayerOps, matmul};
use super::scratch::Role;

impl<T: Operand> LayerOps<'_, T> {
    /// Adds the contribution of the tokens' per-layer embeddings to the residual, or to the other
    /// residual streams.
    pub(super) fn per_layer(&self, ops: &mut Vec<Op<T>>) {
        let (s, hyper) = (self.scratch, &self.model.hyper);
        let Some(by) = &self.frame.per_layer else { return };
        let width = hyper.n_per_layer;
        let all = s.at(Role::LayerInputs, width * hyper.n_layer);
        let (input, gate) = (s.at(Role::LayerInput, width), s.at(Role::LayerGate, width));
        let copy = CopyHeads {
            x: all.clone(),
            y: input.clone(),
            n_head: 1,
            width,
            from: HeadColumns { first: self.index * width, step: width },
            to: HeadColumns { first: 0, step: width },
        };
        ops.push(copy.into());
        ops.push(matmul(&by.gate, &s.x, gate));
        let (g, x) = (gate.clone(), input.clone());
        ops.push(Mul { g, x, activation: GateActivation::Gelu }.into());
        ops.push(matmul(&by.proj, input, &s.y));
        if let Some(altup) = &self.frame.altup {
            ops.push(self.norm(&s.y, &by.norm, &s.h));
            self.add_to_streams(ops, altup);
        } else {
            self.add(ops, Some(&by.norm), hyper.eps);
        }
    }
}
