//! Ops without a fast kernel: the reference, on one worker.

use hal::Op;

use super::{Context, Kernel};
use crate::buffer::HostMemory;
use crate::reference;

#[derive(Debug)]
pub(super) struct Slow {
    op: Op,
    memory: HostMemory,
}

impl Slow {
    pub(super) fn new(op: &Op, context: &Context<'_>) -> Slow {
        Slow { op: op.clone(), memory: context.bind.memory() }
    }
}

impl Kernel for Slow {
    fn chunks(&self, _phase: usize) -> usize {
        1
    }

    fn run(&self, _phase: usize, _chunk: usize, _worker: usize) {
        reference::execute(&self.op, &self.memory).expect("host memory does not fail");
    }
}
