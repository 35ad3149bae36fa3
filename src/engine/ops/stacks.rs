//! States that pass from layer to layer beside the residual, as ops: those of alternating stacks
//! (HRM-Text) and the normed embedding (Talkie).

use hal::Operand;
use hal::op::{Add, GateActivation, Mul, Norm, Op};

use model::{LayerWeights, StackState};

use super::latent::copy_columns;
use super::layer::LayerOps;
use super::scratch::Role;

/// Scratch of these states, as roles and numbers of columns.
pub(super) fn scratch_of(layer: &LayerWeights, n_embd: usize) -> Vec<(Role, usize)> {
    let skip = layer.frame.embedding_skip.iter().map(|_| Role::EmbeddingSkip);
    let stacks = layer.frame.stack.iter().flat_map(|_| [Role::LowState, Role::HighState]);
    skip.chain(stacks).map(|role| (role, n_embd)).collect()
}

impl<T: Operand> LayerOps<'_, T> {
    fn state(&self, role: Role) -> &T {
        self.scratch.at(role, self.model.hyper.n_embd)
    }

    /// Keeps the embedding in the first layer; sets the residual to the sum of both states at the
    /// beginning of a run of a stack.
    pub(super) fn start_states(&self, ops: &mut Vec<Op<T>>) {
        let (s, n_embd) = (self.scratch, self.model.hyper.n_embd);
        if self.frame.embedding_skip.is_some() && self.index == 0 {
            ops.push(copy_columns(&s.x, self.state(Role::EmbeddingSkip), n_embd));
        }
        let Some(run) = self.frame.stack.as_ref().filter(|run| run.starts) else { return };
        let [low, high] = [Role::LowState, Role::HighState].map(|role| self.state(role));
        if let Some(first) = &run.first_low {
            ops.push(copy_columns(&s.x, high, n_embd));
            ops.push(self.norm(&s.x, first, low));
        }
        ops.push(copy_columns(high, &s.x, n_embd));
        ops.push(Add { a: low.clone(), x: s.x.clone() }.into());
    }

    /// Multiplies the output `y` of the mixer or the feed-forward block by its factor, if it has one.
    pub(super) fn scale_output(&self, ops: &mut Vec<Op<T>>, gain: &Option<T>) {
        if let Some(gain) = gain {
            let (g, x) = (gain.clone(), self.scratch.y.clone());
            ops.push(Mul { g, x, activation: GateActivation::None }.into());
        }
    }

    /// Adds a multiple of the embedding to the residual; replaces a state at the end of a run of a
    /// stack.
    pub(super) fn end_states(&self, ops: &mut Vec<Op<T>>) {
        let (s, hyper) = (self.scratch, &self.model.hyper);
        if let Some(factor) = &self.frame.embedding_skip {
            ops.push(copy_columns(self.state(Role::EmbeddingSkip), &s.y, hyper.n_embd));
            let (g, x) = (factor.clone(), s.y.clone());
            ops.push(Mul { g, x, activation: GateActivation::None }.into());
            ops.push(Add { a: s.y.clone(), x: s.x.clone() }.into());
        }
        let Some(state) = self.frame.stack.as_ref().and_then(|run| run.ends) else { return };
        let y = match state {
            StackState::Low => self.state(Role::LowState),
            StackState::High => self.state(Role::HighState),
        };
        let (x, y, width) = (s.x.clone(), y.clone(), hyper.n_embd);
        let (kind, eps) = (self.model.spec.norm, hyper.eps);
        ops.push(Norm { x, weight: None, bias: None, y, kind, eps, width }.into());
    }
}
