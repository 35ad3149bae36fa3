//! Blocks that chunks of experts share, as ops (GroveMoE).

use hal::op::{Add, Down, ExpertRanges, Op, Route, Scoring};
use hal::{HostRows, Operand, Rows};

use model::ChunkExperts;

use super::ffn::{FfnOperands, FfnShare};
use super::layer::LayerOps;
use super::scratch::Role;

/// Scratch of the blocks, as roles and numbers of columns.
pub(super) fn scratch_of(by: &ChunkExperts<HostRows>, n_embd: usize) -> [(Role, usize); 2] {
    [(Role::ChunkWeights, by.n), (Role::ChunkOutput, n_embd)]
}

impl<T: Operand> LayerOps<'_, T> {
    /// Adds the output of the chunks of a token's experts to the experts' output `y`, which they read.
    /// The router reads `h`.
    pub(super) fn add_chunks(&self, ops: &mut Vec<Op<T>>) {
        let (s, Some(by)) = (self.scratch, &self.frame.chunks) else { return };
        let n = by.n;
        let weights = s.at(Role::ChunkWeights, n);
        let y = s.at(Role::ChunkOutput, self.model.hyper.n_embd);
        let route = Route {
            w: by.router.w.clone(),
            bias: by.router.bias.clone(),
            selection: None,
            groups: None,
            chosen: None,
            x: s.h.clone(),
            weights: weights.clone(),
            n_used: by.n_used,
            n_per_chunk: by.n_per_chunk,
            n_groups: [1, 1],
            scoring: Scoring::Softmax,
            renormalise: true,
            scale: by.scale,
        };
        ops.push(route.into());
        let n_ff = by.up.w.desc().n_rows / n;
        let starts = (0..=n).map(|chunk| (chunk * n_ff) as u32).collect();
        let share = FfnShare {
            gate: Some(by.gate.w.clone()),
            up: by.up.w.clone(),
            down: by.down.w.clone(),
            bias_gate: None,
            bias_up: None,
            bias_down: None,
            threshold: None,
            experts: Some(ExpertRanges { starts, n_used: by.n_used.min(n) }),
            activation: self.model.activation,
            gaussian_cut: None,
            orientation: Down::AcrossNeurons,
        };
        let place = FfnOperands {
            x: s.y.clone(),
            weights: Some(weights.clone()),
            y: y.clone(),
            active: self.active.clone(),
            hits: None,
            union: None,
            accumulate: false,
        };
        ops.push(self.mode.op(&share, Rows::All, place).into());
        ops.push(Add { a: y.clone(), x: s.y.clone() }.into());
    }
}
