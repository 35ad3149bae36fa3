//! Two stacks of layers that run alternately on the same tokens (HRM-Text; hierarchical reasoning model,
//! Wang et al. 2025). A layer of the model is one run of a block of the file, with a KV cache of its
//! own. Generic over the operand: host rows, tensors or shapes.

use hal::HostRows;

use super::hyper::{Hyper, Keys};
use super::layer::{MapOperand, try_map_maybe};
use super::layers::LayerReader;
use super::reader::f32_matrix;
use super::{Affine, ArchSpec, Error};

/// The order of the runs: `n_low` runs of the low stack, then one run of the high stack, repeated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stacks {
    /// Number of blocks of a stack. The file has those of the low stack, then those of the high one.
    n_blocks: usize,
    n_low: usize,
}

/// The state that a run of a stack replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackState {
    /// That of the low stack.
    Low,
    /// That of the high stack, which is the embedding before its first run.
    High,
}

/// A layer that begins or ends a run of a stack. A run reads the sum of both states; the norm of its
/// result, without weights, is its stack's new state.
#[derive(Clone, Debug)]
pub struct StackRun<T = HostRows> {
    /// Whether the layer is the first of a run.
    pub starts: bool,
    /// `[1, n_embd]`: a norm of weight 0 whose bias is the first state of the low stack; `None` except
    /// in the model's first layer.
    pub first_low: Option<Affine<T>>,
    /// The state that the run replaces, if the layer is the last of a run; `None` in the model's last
    /// layer, which the output norm follows.
    pub ends: Option<StackState>,
}

impl<T> StackRun<T> {
    pub(super) fn try_map<U, E>(&self, f: &mut MapOperand<'_, T, U, E>) -> Result<StackRun<U>, E> {
        let first_low = try_map_maybe(&self.first_low, "hrm.z_l_init", f)?;
        Ok(StackRun { starts: self.starts, first_low, ends: self.ends })
    }
}

/// Maximum number of runs of the stacks. A file has the tensors of two runs, so that nothing else
/// bounds the number of layers that are made of them.
const MAX_RUNS: usize = 256;

impl Stacks {
    /// The stacks of a family; `None` in families without them.
    pub(super) fn read(
        keys: &Keys<'_>,
        spec: &ArchSpec,
        hyper: &Hyper,
    ) -> Result<Option<Stacks>, Error> {
        if !spec.stacks {
            return Ok(None);
        }
        let n_blocks = keys.need("hrm.layers_per_stack", "the number of layers of a stack")?;
        let n_high = keys.need("hrm.h_cycles", "the number of runs of the high stack")?;
        let n_low =
            keys.need("hrm.l_cycles", "the runs of the low stack before one of the high")?;
        let all = n_blocks.checked_mul(n_low + 1).and_then(|n| n.checked_mul(n_high));
        if all != Some(hyper.n_layer) {
            let expected = format!(
                "{n_high} times {} runs of {n_blocks} layers, as the other keys say",
                n_low + 1
            );
            return Err(keys.wrong_key("block_count", expected, hyper.n_layer));
        }
        let n_runs = (n_low + 1) * n_high;
        if n_runs > MAX_RUNS {
            let expected = format!("at most {MAX_RUNS} runs of a stack with `hrm.l_cycles`");
            return Err(keys.wrong_key("hrm.h_cycles", expected, n_runs));
        }
        Ok(Some(Stacks { n_blocks, n_low }))
    }

    /// The stack of layer `index`.
    fn state(self, index: usize) -> StackState {
        let run = index / self.n_blocks;
        if run % (self.n_low + 1) == self.n_low { StackState::High } else { StackState::Low }
    }

    /// The block of the file that layer `index` runs.
    fn block(self, index: usize) -> usize {
        let first = match self.state(index) {
            StackState::Low => 0,
            StackState::High => self.n_blocks,
        };
        first + index % self.n_blocks
    }
}

impl LayerReader<'_> {
    /// The block of the file with the layer's tensors.
    pub(super) fn file_block(&self) -> usize {
        self.layers.stacks.map_or(self.index(), |stacks| stacks.block(self.index()))
    }

    /// Reads what the layer does at the beginning and the end of a run of its stack; `None` inside
    /// a stack and in models without stacks.
    pub(super) fn stack_run(&self) -> Result<Option<StackRun>, Error> {
        let Some(stacks) = self.layers.stacks else { return Ok(None) };
        let (index, n_embd) = (self.index(), self.n_embd());
        let starts = index.is_multiple_of(stacks.n_blocks);
        let ends = (index + 1).is_multiple_of(stacks.n_blocks);
        let is_last = index + 1 == self.n_layer();
        let first_low = if index == 0 {
            let state = self.layers.reader.flat("hrm.z_l_init", n_embd)?;
            let w = self.constant(0.0, n_embd);
            Some(Affine { w, bias: Some(f32_matrix(1, &state)) })
        } else {
            None
        };
        let ends = (ends && !is_last).then(|| stacks.state(index));
        Ok((starts || ends.is_some()).then_some(StackRun { starts, first_low, ends }))
    }
}
