//! The fast kernels, one file per op family. A kernel is an op with resolved memory, split into
//! phases and chunks.
//!
//! Results do not depend on the number of threads: every sum is computed in a fixed order. Scratch
//! memory comes from the shared workspace; fast kernels allocate nothing after compilation.

mod activation;
mod attention;
mod compress;
mod fallback;
mod ffn;
mod gated_delta;
mod head_matmul;
mod hyper;
mod matmul;
mod operand;
mod panels;
mod pool_keys;
mod position;
mod predict;
mod recurrent;
mod route;
mod rowwise;
mod wkv;

use std::fmt;

use hal::{Bytes, Op, OpDesc, Plan};

use crate::buffer::{Binder, Scratch};
use simd::Kernels;

/// The reason why the CPU does not run `Post` and `Merge`.
pub(crate) const NO_HAND_OFF: &str = "the CPU is the host side of a hand-off";

/// An op that is ready to run. Phases run one after another; the chunks of a phase run in any
/// order, on any thread.
pub(crate) trait Kernel: fmt::Debug + Send + Sync {
    fn n_phases(&self) -> usize {
        1
    }

    /// Number of chunks of a phase; may depend on values that earlier phases and ops wrote.
    fn chunks(&self, phase: usize) -> usize;

    fn run(&self, phase: usize, chunk: usize, worker: usize);
}

/// Inputs for compiling an op to a kernel.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) bind: Binder<'a>,
    pub(crate) simd: Kernels,
    /// Distance in bytes at which kernels prefetch rows.
    pub(crate) prefetch: usize,
    pub(crate) n_threads: usize,
}

/// Whether the CPU runs an op, its workspace size, and why it runs slowly, if it does.
pub(crate) fn plan(op: &OpDesc, n_threads: usize) -> Plan {
    let mut scratch = Scratch::default();
    let mut slow = None;
    match op {
        Op::MatMul(op) => _ = matmul::Workspace::new(op, n_threads, &mut scratch),
        Op::HeadMatMul(op) => _ = head_matmul::Workspace::new(op, n_threads, &mut scratch),
        Op::Attention(op) => _ = attention::Workspace::new(op, n_threads, &mut scratch),
        Op::LightningIndexer(op) => {
            _ = attention::IndexerWorkspace::new(op, n_threads, &mut scratch);
        }
        Op::PoolKeys(op) => _ = pool_keys::Workspace::new(op, n_threads, &mut scratch),
        Op::CompressKeys(op) => _ = compress::Workspace::new(op, n_threads, &mut scratch),
        Op::ListBlocks(_) => {}
        Op::SparseFfn(op) => match ffn::unsupported(op) {
            None => _ = ffn::Workspace::new(op, n_threads, &mut scratch),
            Some(reason) => slow = Some(reason),
        },
        Op::GetRows(_) | Op::Gather(_) | Op::Norm(_) | Op::Rope(_) | Op::StoreKv(_) => {}
        Op::AddPositions(_) | Op::Add(_) | Op::Mul(_) | Op::SoftCap(_) | Op::CopyHeads(_) => {}
        Op::ScaleByPosition(_) => {}
        Op::HyperWeights(_) | Op::HyperRead(_) | Op::HyperWrite(_) => {}
        Op::Predict(op) => _ = predict::Workspace::new(op, n_threads, &mut scratch),
        Op::Route(op) => _ = route::Workspace::new(op, &mut scratch),
        Op::ShortConv(op) => _ = recurrent::ConvSpan::new(op, n_threads, &mut scratch),
        Op::GatedDelta(op) => _ = gated_delta::DeltaSpans::new(op, n_threads, &mut scratch),
        Op::SsmScan(_) => {}
        Op::Wkv6(op) => _ = wkv::WkvSpan::new(op.d_head(), n_threads, &mut scratch),
        Op::Wkv7(op) => _ = wkv::WkvSpan::new(op.d_head(), n_threads, &mut scratch),
        Op::Post(_) | Op::Merge(_) => return Plan::No(NO_HAND_OFF.to_owned()),
    }
    let slow = slow
        .map(|why| format!("{} {why} on the CPU: it runs as plain loops on one thread", op.name()));
    Plan::Yes { workspace: Bytes(scratch.bytes as u64), slow }
}

/// Compiles an op that [`plan`] accepted.
pub(crate) fn compile(op: &Op, context: &Context<'_>) -> Box<dyn Kernel> {
    match op {
        Op::GetRows(op) => Box::new(rowwise::GetRows::new(op, context)),
        Op::AddPositions(op) => Box::new(position::AddPositions::new(op, context)),
        Op::ScaleByPosition(op) => Box::new(position::ScaleByPosition::new(op, context)),
        Op::Gather(op) => Box::new(rowwise::Gather::new(op, context)),
        Op::Norm(op) => Box::new(rowwise::Norm::new(op, context)),
        Op::Add(op) => Box::new(rowwise::Add::new(op, context)),
        Op::Mul(op) => Box::new(rowwise::Mul::new(op, context)),
        Op::SoftCap(op) => Box::new(rowwise::SoftCap::new(op, context)),
        Op::CopyHeads(op) => Box::new(rowwise::CopyHeads::new(op, context)),
        Op::MatMul(op) => Box::new(matmul::MatMul::new(op, context)),
        Op::HeadMatMul(op) => Box::new(head_matmul::HeadMatMul::new(op, context)),
        Op::Rope(op) => Box::new(position::Rope::new(op, context)),
        Op::StoreKv(op) => Box::new(position::StoreKv::new(op, context)),
        Op::Attention(op) => Box::new(attention::Attention::new(op, context)),
        Op::PoolKeys(op) => Box::new(pool_keys::PoolKeys::new(op, context)),
        Op::CompressKeys(op) => Box::new(compress::CompressKeys::new(op, context)),
        Op::ListBlocks(op) => Box::new(compress::ListBlocks::new(op, context)),
        Op::LightningIndexer(op) => Box::new(attention::LightningIndexer::new(op, context)),
        Op::HyperWeights(op) => Box::new(hyper::HyperWeights::new(op, context)),
        Op::HyperRead(op) => Box::new(hyper::HyperRead::new(op, context)),
        Op::HyperWrite(op) => Box::new(hyper::HyperWrite::new(op, context)),
        Op::SparseFfn(ffn) if ffn::unsupported(ffn).is_none() => {
            Box::new(ffn::SparseFfn::new(ffn, context))
        }
        Op::Predict(op) => Box::new(predict::Predict::new(op, context)),
        Op::Route(op) => Box::new(route::Route::new(op, context)),
        Op::SparseFfn(_) => Box::new(fallback::ReferenceOp::new(op, context)),
        Op::ShortConv(op) => Box::new(recurrent::ShortConv::new(op, context)),
        Op::GatedDelta(op) => Box::new(gated_delta::GatedDelta::new(op, context)),
        Op::SsmScan(op) => Box::new(recurrent::SsmScan::new(op, context)),
        Op::Wkv6(op) => Box::new(wkv::Wkv6::new(op, context)),
        Op::Wkv7(op) => Box::new(wkv::Wkv7::new(op, context)),
        Op::Post(_) | Op::Merge(_) => unreachable!("{NO_HAND_OFF}"),
    }
}

/// Values per chunk of a cheap op: enough to outweigh the cost of scheduling the chunk.
const CHEAP_CHUNK: usize = 8192;

/// Rows per chunk of an op that is cheap per value.
fn cheap_rows(n_cols: usize) -> usize {
    (CHEAP_CHUNK / n_cols.max(1)).max(1)
}

/// The range with index `chunk` of `0..n` split into ranges of `size`.
fn nth_range(chunk: usize, size: usize, n: usize) -> std::ops::Range<usize> {
    (chunk * size).min(n)..((chunk + 1) * size).min(n)
}
