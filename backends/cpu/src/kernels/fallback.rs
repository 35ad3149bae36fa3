//! Ops without a fast kernel: the reference implementation, run by one worker.

use hal::Op;

use super::{Context, Kernel};
use crate::buffer::HostMemory;
use crate::reference;

#[derive(Debug)]
pub(super) struct ReferenceOp {
    op: Op,
    memory: HostMemory,
}

impl ReferenceOp {
    pub(super) fn new(op: &Op, context: &Context<'_>) -> ReferenceOp {
        ReferenceOp { op: op.clone(), memory: context.bind.memory() }
    }
}

impl Kernel for ReferenceOp {
    fn chunks(&self, _phase: usize) -> usize {
        1
    }

    fn run(&self, _phase: usize, _chunk: usize, _worker: usize) {
        reference::execute(&self.op, &self.memory).expect("host memory does not fail");
    }
}
