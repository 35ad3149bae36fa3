//! The fast kernels: one file per op family, each an op with its memory resolved, split into
//! phases and chunks.
//!
//! Chunks depend on sizes alone, never on the number of threads, and every chunk computes its
//! values in a fixed order: the bits are the same for any thread pool. Scratch comes from the
//! shared workspace; nothing is allocated here after compiling.

mod activation;
mod attention;
mod ffn;
mod matmul;
mod operand;
mod panels;
mod position;
mod predict;
mod recurrent;
mod route;
mod rowwise;
mod slow;

use std::fmt;

use hal::{Bytes, Op, OpDesc, Plan};

use crate::buffer::{Binder, Scratch};
use crate::simd::Kernels;

/// Why the CPU has no `Post` and `Merge`.
pub(crate) const OTHER_SIDE: &str = "the CPU is the host side of a hand-off";

/// An op, ready to run. Phases run one after another; the chunks of one phase in any order.
pub(crate) trait Kernel: fmt::Debug + Send + Sync {
    /// Number of phases.
    fn n_phases(&self) -> usize {
        1
    }

    /// Chunks of a phase; may depend on what earlier phases and ops wrote.
    fn chunks(&self, phase: usize) -> usize;

    /// Runs one chunk.
    fn run(&self, phase: usize, chunk: usize, worker: usize);
}

/// Inputs for making a kernel.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) bind: Binder<'a>,
    pub(crate) simd: Kernels,
    pub(crate) n_threads: usize,
}

/// Whether and how an op runs on the CPU.
pub(crate) fn plan(op: &OpDesc, n_threads: usize) -> Plan {
    let mut scratch = Scratch::default();
    let mut slow = None;
    match op {
        Op::MatMul(op) => _ = matmul::Spans::new(op, n_threads, &mut scratch),
        Op::Attention(op) => _ = attention::Spans::new(op, n_threads, &mut scratch),
        Op::SparseFfn(op) => match ffn::unsupported(op) {
            None => _ = ffn::Spans::new(op, n_threads, &mut scratch),
            Some(reason) => slow = Some(reason),
        },
        Op::GetRows(_) | Op::Gather(_) | Op::Norm(_) | Op::Rope(_) | Op::StoreKv(_) => {}
        Op::AddPositions(_) | Op::Add(_) | Op::Mul(_) | Op::SoftCap(_) | Op::CopyHeads(_) => {}
        Op::Predict(op) => _ = predict::Spans::new(op, n_threads, &mut scratch),
        Op::Route(op) => _ = route::Spans::new(op, &mut scratch),
        Op::ShortConv(op) => _ = recurrent::ConvSpan::new(op, n_threads, &mut scratch),
        Op::GatedDelta(op) => _ = recurrent::DeltaSpans::new(op, n_threads, &mut scratch),
        Op::SsmScan(_) => {}
        Op::Post(_) | Op::Merge(_) => return Plan::No(OTHER_SIDE.to_owned()),
    }
    let slow = slow.map(|why| format!("{} {why} on the CPU: plain loops on one thread", op.name()));
    Plan::Yes { workspace: Bytes(scratch.bytes as u64), slow }
}

/// Makes the kernel of an op that [`plan`] accepted.
pub(crate) fn compile(op: &Op, context: &Context<'_>) -> Box<dyn Kernel> {
    match op {
        Op::GetRows(op) => Box::new(rowwise::GetRows::new(op, context)),
        Op::AddPositions(op) => Box::new(position::AddPositions::new(op, context)),
        Op::Gather(op) => Box::new(rowwise::Gather::new(op, context)),
        Op::Norm(op) => Box::new(rowwise::Norm::new(op, context)),
        Op::Add(op) => Box::new(rowwise::Add::new(op, context)),
        Op::Mul(op) => Box::new(rowwise::Mul::new(op, context)),
        Op::SoftCap(op) => Box::new(rowwise::SoftCap::new(op, context)),
        Op::CopyHeads(op) => Box::new(rowwise::CopyHeads::new(op, context)),
        Op::MatMul(op) => Box::new(matmul::MatMul::new(op, context)),
        Op::Rope(op) => Box::new(position::Rope::new(op, context)),
        Op::StoreKv(op) => Box::new(position::StoreKv::new(op, context)),
        Op::Attention(op) => Box::new(attention::Attention::new(op, context)),
        Op::SparseFfn(ffn) if ffn::unsupported(ffn).is_none() => {
            Box::new(ffn::SparseFfn::new(ffn, context))
        }
        Op::Predict(op) => Box::new(predict::Predict::new(op, context)),
        Op::Route(op) => Box::new(route::Route::new(op, context)),
        Op::SparseFfn(_) => Box::new(slow::Slow::new(op, context)),
        Op::ShortConv(op) => Box::new(recurrent::ShortConv::new(op, context)),
        Op::GatedDelta(op) => Box::new(recurrent::GatedDelta::new(op, context)),
        Op::SsmScan(op) => Box::new(recurrent::SsmScan::new(op, context)),
        Op::Post(_) | Op::Merge(_) => unreachable!("{OTHER_SIDE}"),
    }
}

/// Values per chunk of cheap work: large enough to outweigh the scheduling.
const CHEAP_CHUNK: usize = 8192;

/// Rows per chunk of work that is cheap per value.
fn cheap_rows(n_cols: usize) -> usize {
    (CHEAP_CHUNK / n_cols.max(1)).max(1)
}

/// Range number `chunk` of `0..n`, split into ranges of `size`.
fn piece(chunk: usize, size: usize, n: usize) -> std::ops::Range<usize> {
    (chunk * size).min(n)..((chunk + 1) * size).min(n)
}
