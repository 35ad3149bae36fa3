//! The oracle: every op as plain loops, without threads or optimisations. One file per op family.
//!
//! Sums are in f64, so tests compare a fast kernel with nearly exact results. Weights are read row
//! by row through [`Memory`], whose calls are never nested.

mod activation;
mod attention;
mod compress;
mod elementwise;
mod hyper;
mod indexer;
mod matmul;
mod operands;
mod pool_keys;
mod predict;
mod recurrent;
mod route;
#[cfg(test)]
mod simd_tests;
mod sparse_ffn;

#[cfg(test)]
use activation::{activate, gate};
use hal::{Op, Result, Tensor};

/// A device's memory as the reference implementation accesses it: whole buffers in the plain layout
/// of [`hal::pack`].
pub trait Memory {
    /// Calls `f` with all bytes of the buffer that `tensor` is a view of.
    fn read(&self, tensor: &Tensor, f: &mut dyn FnMut(&[u8]));

    /// [`Memory::read`] with writable bytes.
    fn write(&self, tensor: &Tensor, f: &mut dyn FnMut(&mut [u8]));
}

/// Runs one op. If the op has a batch, rows of padding tokens keep their contents.
///
/// # Errors
/// Currently none; the `Result` is reserved for memory that can fail.
///
/// # Panics
/// If the op is `Post` or `Merge`: devices run hand-offs themselves.
pub fn execute(op: &Op, memory: &dyn Memory) -> Result<()> {
    match op {
        Op::GetRows(op) => elementwise::get_rows(op, memory),
        Op::AddPositions(op) => elementwise::add_positions(op, memory),
        Op::ScaleByPosition(op) => elementwise::scale_by_position(op, memory),
        Op::Gather(op) => elementwise::gather(op, memory),
        Op::Norm(op) => elementwise::norm(op, memory),
        Op::Add(op) => elementwise::add(op, memory),
        Op::Mul(op) => elementwise::mul(op, memory),
        Op::SoftCap(op) => elementwise::soft_cap(op, memory),
        Op::CopyHeads(op) => elementwise::copy_heads(op, memory),
        Op::MatMul(op) => matmul::matmul(op, memory),
        Op::HeadMatMul(op) => matmul::head_matmul(op, memory),
        Op::PoolKeys(op) => pool_keys::pool_keys(op, memory),
        Op::CompressKeys(op) => compress::compress_keys(op, memory),
        Op::ListBlocks(op) => compress::list_blocks(op, memory),
        Op::LightningIndexer(op) => indexer::lightning_indexer(op, memory),
        Op::Rope(op) => attention::rope(op, memory),
        Op::StoreKv(op) => attention::store_kv(op, memory),
        Op::Attention(op) => attention::attention(op, memory),
        Op::HyperWeights(op) => hyper::hyper_weights(op, memory),
        Op::HyperRead(op) => hyper::hyper_read(op, memory),
        Op::HyperWrite(op) => hyper::hyper_write(op, memory),
        Op::SparseFfn(op) => sparse_ffn::sparse_ffn(op, memory),
        Op::Predict(op) => predict::predict(op, memory),
        Op::Route(op) => route::route(op, memory),
        Op::ShortConv(op) => recurrent::short_conv(op, memory),
        Op::GatedDelta(op) => recurrent::gated_delta(op, memory),
        Op::SsmScan(op) => recurrent::ssm_scan(op, memory),
        Op::Wkv6(op) => recurrent::wkv6(op, memory),
        Op::Wkv7(op) => recurrent::wkv7(op, memory),
        Op::Post(_) | Op::Merge(_) => unreachable!("devices run hand-offs themselves"),
    }
    Ok(())
}
