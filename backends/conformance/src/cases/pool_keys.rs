//! Cases of the keys of blocks of positions.

use hal::format::Format;
use hal::op::PoolKeys;
use hal::{BatchShape, KvCache, KvRows, Result};

use crate::Case;
use crate::rig::Rig;

/// Length and number of new tokens of each sequence: tokens at each place of a block, blocks that began
/// in an earlier step, blocks in two cache blocks, a block that is not complete.
const SEQS: &[(usize, usize)] = &[(9, 9), (36, 3), (64, 1), (3, 2), (77, 40)];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kv in [Format::F32, Format::F16, Format::BF16, Format::Q8_0] {
        for (pool, d) in [(1, 32), (4, 64), (3, 96), (32, 32)] {
            for gated in [true, false] {
                let kind = if gated { "gated" } else { "mean" };
                let name = format!("PoolKeys/{kv}/{kind}/{pool}x{d}");
                cases.push(Case::new(name, move |rig| pool_keys(rig, kv, [pool, d], gated)));
            }
        }
    }
    cases
}

/// Two tokens are padding.
fn pool_keys(rig: &mut Rig, kv: Format, [pool, d]: [usize; 2], gated: bool) -> Result<()> {
    let n_blocks = 12;
    let facts = rig.facts(SEQS, n_blocks);
    let n_tokens = facts.tokens.len();
    let max_tokens = n_tokens + 2;
    let shape = BatchShape { max_tokens, max_seqs: SEQS.len(), max_blocks: 4 };
    let batch = rig.batch(shape, &facts, n_blocks, 1 << 20)?;
    let width = if gated { 2 * d } else { d };
    let filled = rig.filled_cache(&facts, n_blocks, KvCache::both(width), KvCache::both(kv))?;
    let ape = if gated { Some(rig.input(pool, d)?) } else { None };
    let y = rig.output(max_tokens, d)?;
    let cache = KvRows { k: filled.k, v: None };
    rig.run([PoolKeys { cache, batch, ape, y: y.clone(), pool }.into()])?;
    rig.watch("y", &y.rows(0..n_tokens))
}
