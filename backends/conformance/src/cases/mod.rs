//! The cases, one file per op family.

mod attention;
mod compress;
mod elementwise;
mod ffn;
mod ffn_experts;
mod ffn_packs;
mod ffn_variants;
mod handoff;
mod hyper;
mod indexer;
mod latent;
mod matmul;
mod memory;
mod neighbours;
mod pool_keys;
mod predict;
mod program;
mod recurrent;
mod route;
mod sequences;

use hal::format::Format;

use crate::Case;

pub(crate) fn all() -> Vec<Case> {
    [
        elementwise::cases(),
        matmul::cases(),
        attention::cases(),
        latent::cases(),
        pool_keys::cases(),
        indexer::cases(),
        compress::cases(),
        hyper::cases(),
        ffn::cases(),
        ffn_variants::cases(),
        ffn_experts::cases(),
        ffn_packs::cases(),
        predict::cases(),
        route::cases(),
        recurrent::cases(),
        sequences::cases(),
        program::cases(),
        neighbours::cases(),
        handoff::cases(),
        memory::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Number of values in the widest rows: several blocks in every format.
const WIDEST: usize = 512;

/// A short and a long row length in values: whole blocks and, if possible, not a multiple of a SIMD
/// width.
fn widths(format: Format) -> [usize; 2] {
    match format.block_values() {
        1 => [33, 257],
        block => [block, 3 * block + if block == 32 { 64 } else { 0 }],
    }
}
