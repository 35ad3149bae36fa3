//! Plans each op (its workspace, or why the device cannot run it) and lowers it to dispatches.

#[cfg(all(test, target_os = "linux"))]
mod amd_tests;
mod attention;
mod cache;
mod compress;
mod elementwise;
mod fused;
mod handoff;
mod hyper;
mod indexer;
mod norm;
mod recurrent;
mod rope;
mod route;
mod weights;

use hal::{Op, OpDesc, Plan, Result};

use crate::facts::Facts;
use crate::lowering::Lowering;
pub(crate) use handoff::{PostCopies, merge};
use lower::FusedWork;

/// Whether a device with these facts can run this op.
pub(crate) fn plan(op: &OpDesc, facts: &Facts) -> Plan {
    let mut refusal = None;
    op.visit(&mut |operand, _, desc| {
        refusal = refusal.take().or_else(|| facts.too_large(operand, desc));
    });
    if let Some(reason) = refusal {
        return Plan::No(reason);
    }
    match op {
        Op::Add(op) => elementwise::plan_add(op, facts),
        Op::Post(_) | Op::Merge(_) => Plan::yes(),
        Op::Gather(op) => elementwise::plan_gather(op, facts),
        Op::Norm(op) => norm::plan(op, facts),
        Op::Rope(op) => rope::plan(op, facts),
        Op::CopyHeads(op) => elementwise::plan_copy_heads(op, facts),
        Op::StoreKv(op) => cache::plan_store(op, facts),
        Op::Attention(op) => attention::plan(op, facts),
        Op::LightningIndexer(op) => indexer::plan(op, facts),
        Op::PoolKeys(op) => indexer::plan_pool(op, facts),
        Op::CompressKeys(op) => compress::plan(op, facts),
        Op::ListBlocks(op) => indexer::plan_list(op, facts),
        Op::HyperWeights(op) => hyper::plan_weights(op, facts),
        Op::HyperRead(op) => hyper::plan_read(op, facts),
        Op::HyperWrite(op) => hyper::plan_write(op, facts),
        Op::Mul(op) => elementwise::plan_mul(op, facts),
        Op::SoftCap(op) => elementwise::plan_soft_cap(op, facts),
        Op::ScaleByPosition(op) => elementwise::plan_scale_by_position(op, facts),
        Op::ShortConv(op) => recurrent::plan_short_conv(op, facts),
        Op::GatedDelta(op) => recurrent::plan_gated_delta(op, facts),
        Op::SsmScan(op) => recurrent::plan_ssm_scan(op, facts),
        Op::Wkv6(op) => recurrent::plan_wkv6(op, facts),
        Op::Wkv7(op) => recurrent::plan_wkv7(op, facts),
        Op::GetRows(op) => weights::plan_get_rows(op, facts),
        Op::AddPositions(op) => weights::plan_add_positions(op, facts),
        Op::MatMul(op) => weights::plan_matmul(op, facts),
        Op::HeadMatMul(op) => weights::plan_head_matmul(op, facts),
        Op::SparseFfn(op) => weights::plan_ffn(op, facts),
        Op::Predict(op) => weights::plan_predict(op, facts),
        Op::Route(op) => route::plan(op, facts),
    }
}

/// Adds the dispatches of an op that `plan` accepted, without fusing it. `Post` and `Merge` are handled by the program.
///
/// # Errors
/// Errors of the driver.
fn lower(op: &Op, out: &mut Lowering<'_>) -> Result<()> {
    match op {
        Op::Add(op) => elementwise::add(op, out),
        Op::Post(_) | Op::Merge(_) => Ok(()),
        Op::CompressKeys(op) => compress::lower(op, out),
        Op::ListBlocks(op) => indexer::list_blocks(op, out),
        Op::Gather(op) => elementwise::gather(op, out),
        Op::Norm(op) => norm::lower(op, &FusedWork::default(), out),
        Op::Rope(op) => rope::lower(op, out),
        Op::CopyHeads(op) => elementwise::copy_heads(op, out),
        Op::StoreKv(op) => cache::lower_store(op, out),
        Op::Attention(op) => attention::lower(op, false, out).map(drop),
        Op::LightningIndexer(op) => indexer::lower(op, out),
        Op::PoolKeys(op) => indexer::lower_pool(op, out),
        Op::HyperWeights(op) => hyper::lower_weights(op, out),
        Op::HyperRead(op) => hyper::lower_read(op, out),
        Op::HyperWrite(op) => hyper::lower_write(op, out),
        Op::Mul(op) => elementwise::mul(op, out),
        Op::SoftCap(op) => elementwise::soft_cap(op, out),
        Op::ScaleByPosition(op) => elementwise::scale_by_position(op, out),
        Op::ShortConv(op) => recurrent::short_conv(op, out),
        Op::GatedDelta(op) => recurrent::gated_delta(op, out),
        Op::SsmScan(op) => recurrent::ssm_scan(op, out),
        Op::Wkv6(op) => recurrent::wkv6(op, out),
        Op::Wkv7(op) => recurrent::wkv7(op, out),
        Op::GetRows(op) => weights::lower_get_rows(op, out),
        Op::AddPositions(op) => weights::lower_add_positions(op, out),
        Op::MatMul(op) => weights::lower_matmul(op, out),
        Op::HeadMatMul(op) => weights::lower_head_matmul(op, out),
        Op::SparseFfn(op) => weights::lower_ffn(op, out),
        Op::Predict(op) => weights::lower_predict(op, out),
        Op::Route(op) => route::lower(op, out),
    }
}

#[cfg(test)]
mod tests {
    use crate::shader::Source;
    use crate::translate::{sizes, translate};

    /// Tests shaders whose only variants are workgroup sizes.
    #[test]
    fn shaders_without_formats_translate() {
        let names = ["add", "copy_heads", "copy_words", "gather", "index_select", "merge"];
        let hyper = ["hyper_read", "hyper_weights", "hyper_write"];
        let more = ["mul", "norm", "patch_word", "rope", "route", "soft_cap"];
        for [flat, row] in sizes() {
            for name in names.into_iter().chain(more).chain(["attention_merge"]).chain(hyper) {
                for shared in [false, true] {
                    let source = Source::new(name).set("FLAT", flat).set("ROW", row);
                    let source = source.include("q", "lib/rotate");
                    translate(&source, shared).unwrap_or_else(|error| panic!("{name}: {error}"));
                }
            }
            for near in [8, 32, row] {
                let probe = Source::new("probe").set("ROW", row).set("NEAR", near);
                translate(&probe, false).unwrap_or_else(|error| panic!("probe {near}: {error}"));
            }
        }
    }
}
