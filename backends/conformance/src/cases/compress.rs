//! Cases of compressed keys: their computation, lists of them, selections, and attention to a list.

use hal::format::Format;
use hal::op::{
    Attention, BlockList, CompressKeys, KV_FORMATS, LightningIndexer, ListBlocks, Pairing,
    block_rows,
};
use hal::{BatchShape, KV_BLOCK, KvRows, Operand, Result, Tensor, TensorDesc};

use crate::Case;
use crate::rig::Rig;

/// Length and number of new tokens of each sequence: blocks that begin and end in the step, that began
/// in an earlier one, that do not end, and a first block.
type Seqs = &'static [(usize, usize)];

const SHORT: Seqs = &[(9, 9), (36, 3), (64, 1), (3, 2), (77, 40)];
const LONG: Seqs = &[(256, 1), (129, 3), (300, 260), (127, 2)];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kv in [Format::F32, Format::F16, Format::BF16, Format::Q8_0] {
        for (ratio, d, seqs) in [(4, 32, SHORT), (4, 96, LONG), (32, 64, LONG), (128, 32, LONG)] {
            for n_parts in [1, 2] {
                let name = format!("CompressKeys/{kv}/{ratio}x{d}/{n_parts}");
                let body = move |rig: &mut Rig| compress(rig, kv, [ratio, d, n_parts], seqs);
                cases.push(Case::new(name, body));
            }
        }
    }
    for (ratio, window, seqs) in [(4, 5, SHORT), (1, 3, SHORT), (128, 100, LONG), (32, 400, LONG)] {
        let name = format!("ListBlocks/{ratio}/{window}");
        cases.push(Case::new(name, move |rig| list(rig, ratio, window, seqs)));
    }
    for kv in [Format::F32, Format::F16, Format::BF16] {
        for (top_k, seqs) in [(1, SHORT), (7, SHORT), (40, LONG), (70, LONG)] {
            let name = format!("LightningIndexer/{kv}/list-{top_k}");
            cases.push(Case::new(name, move |rig| select(rig, kv, top_k, seqs)));
        }
    }
    for &kv in KV_FORMATS {
        let name = format!("Attention/{kv}/listed-blocks");
        cases.push(Case::new(name, move |rig| attend(rig, kv)));
    }
    cases
}

/// The batch of a case, of which two tokens are padding, its numbers of tokens with and without them, and
/// the number of KV blocks.
fn step(rig: &mut Rig, seqs: Seqs) -> Result<(hal::Batch<Tensor>, [usize; 2], usize)> {
    let n_blocks = seqs.iter().map(|(len, _)| len.div_ceil(KV_BLOCK)).sum::<usize>() + 2;
    let facts = rig.facts(seqs, n_blocks);
    let n_tokens = facts.tokens.len();
    let shape = BatchShape { max_tokens: n_tokens + 2, max_seqs: seqs.len(), max_blocks: 12 };
    let batch = rig.batch(shape, &facts, n_blocks, 1 << 20)?;
    Ok((batch, [n_tokens + 2, n_tokens], n_blocks))
}

/// A cache of random keys.
fn cache(rig: &mut Rig, kv: Format, n_rows: usize, width: usize) -> Result<KvRows<Tensor>> {
    let values = rig.rng.floats(n_rows * width);
    let mut bytes = vec![0; values.len() / kv.block_values() * kv.block_bytes()];
    kv.quantize_cache(&values, &mut bytes);
    let k = rig.device.alloc("keys", TensorDesc::new(n_rows, width, kv))?;
    rig.queue.write(&k, &bytes)?;
    Ok(KvRows { k, v: None })
}

/// Rows of other blocks and states of other sequences must not change.
fn compress(rig: &mut Rig, kv: Format, [ratio, d, n_parts]: [usize; 3], seqs: Seqs) -> Result<()> {
    let (batch, [max_tokens, n_tokens], n_blocks) = step(rig, seqs)?;
    let (width, n_seqs) = (n_parts * d, seqs.len());
    let (values, gates) = (rig.input(max_tokens, width)?, rig.input(max_tokens, width)?);
    let (ape, norm) = (rig.input(ratio, width)?, rig.input(1, d)?);
    let freqs: Vec<f32> = (0..8).map(|j| 1e4f32.powf(-(j as f32) / 8.0)).collect();
    let freqs = rig.tensor(1, 8, &freqs)?;
    let n_state = ratio * n_parts * 2 * width;
    let initial = rig.rng.floats((n_seqs + 1) * n_state);
    let state = rig.output_from(n_seqs + 1, n_state, &initial)?;
    let cache = cache(rig, kv, n_blocks * block_rows(ratio), d)?;
    let pairing = if d == 96 { Pairing::Halves } else { Pairing::Adjacent };
    let op = CompressKeys {
        values,
        gates,
        ape,
        norm,
        freqs,
        batch: batch.clone(),
        state: state.clone(),
        cache: cache.clone(),
        ratio,
        eps: 1e-5,
        pairing,
    };
    rig.run([op.into()])?;
    rig.watch_bits("state", &state)?;
    // Reads keys of any format through attention to one row each.
    let n_rows = cache.k.desc().n_rows;
    let rows: Vec<u32> =
        (0..n_tokens).map(|t| hal::op::CACHE_ROW | (t * n_rows / n_tokens) as u32).collect();
    let padded: Vec<u32> = rows.iter().copied().chain([hal::op::CACHE_ROW; 2]).collect();
    let selected = Some(rig.words(max_tokens, 1, &padded)?);
    let (q, y) = (rig.input(max_tokens, d)?, rig.output(max_tokens, d)?);
    rig.run([attention(q, cache, (batch, selected), y.clone(), 1).into()])?;
    rig.watch("keys", &y.rows(0..n_tokens))
}

fn attention(
    q: Tensor,
    cache: KvRows<Tensor>,
    (batch, selected): (hal::Batch<Tensor>, Option<Tensor>),
    y: Tensor,
    n_head: usize,
) -> Attention<Tensor> {
    Attention {
        q,
        cache,
        batch,
        slopes: None,
        sinks: None,
        selected,
        y,
        n_head,
        n_head_kv: 1,
        scale: 1.0,
        window: None,
        softcap: 0.0,
    }
}

fn list(rig: &mut Rig, ratio: usize, window: usize, seqs: Seqs) -> Result<()> {
    let (batch, [max_tokens, n_tokens], n_blocks) = step(rig, seqs)?;
    let n_cols = window + 12 * KV_BLOCK / ratio + 1;
    let selected = rig.words(max_tokens, n_cols, &vec![7; max_tokens * n_cols])?;
    let list = BlockList { window, first_row: n_blocks * KV_BLOCK };
    rig.run([ListBlocks { batch, selected: selected.clone(), ratio, list }.into()])?;
    rig.watch_bits("selected", &selected.rows(0..n_tokens))
}

/// Whole numbers, whose scores are exact and often equal.
fn select(rig: &mut Rig, kv: Format, top_k: usize, seqs: Seqs) -> Result<()> {
    let (batch, [max_tokens, n_tokens], n_blocks) = step(rig, seqs)?;
    let (n_head, d, pool, window) = (3, 32, 4, 10);
    let whole = |rig: &mut Rig, n: usize| -> Vec<f32> {
        rig.rng.floats(n).iter().map(|v| (3.0 * v).round()).collect()
    };
    let values = whole(rig, n_blocks * block_rows(pool) * d);
    let mut bytes = vec![0; values.len() * kv.block_bytes()];
    kv.quantize_cache(&values, &mut bytes);
    let k = rig.device.alloc("keys", TensorDesc::new(n_blocks * block_rows(pool), d, kv))?;
    rig.queue.write(&k, &bytes)?;
    let q = whole(rig, max_tokens * n_head * d);
    let q = rig.tensor(max_tokens, n_head * d, &q)?;
    let weights = whole(rig, max_tokens * n_head);
    let weights = Some(rig.tensor(max_tokens, n_head, &weights)?);
    let n_cols = window + top_k;
    let selected = rig.words(max_tokens, n_cols, &vec![7; max_tokens * n_cols])?;
    let op = LightningIndexer {
        q,
        weights,
        cache: KvRows { k, v: None },
        batch,
        selected: selected.clone(),
        n_head,
        pool,
        list: Some(BlockList { window, first_row: n_blocks * KV_BLOCK }),
    };
    rig.run([op.into()])?;
    rig.watch_bits("selected", &selected.rows(0..n_tokens))
}

/// The window and all blocks: more entries than a token sees positions.
fn attend(rig: &mut Rig, kv: Format) -> Result<()> {
    let (batch, [max_tokens, n_tokens], n_blocks) = step(rig, SHORT)?;
    let (n_head, d, ratio, window) = (3, 64, 4, 12 * KV_BLOCK);
    let first_row = n_blocks * KV_BLOCK;
    let cache = cache(rig, kv, first_row + n_blocks * block_rows(ratio), d)?;
    let n_cols = window + 12 * KV_BLOCK / ratio;
    let selected = rig.words(max_tokens, n_cols, &vec![7; max_tokens * n_cols])?;
    let list = BlockList { window, first_row };
    let (q, y) = (rig.input(max_tokens, n_head * d)?, rig.output(max_tokens, n_head * d)?);
    let lists = ListBlocks { batch: batch.clone(), selected: selected.clone(), ratio, list };
    let sinks = Some(rig.input(1, n_head)?);
    let op = attention(q, cache, (batch, Some(selected)), y.clone(), n_head);
    rig.run([lists.into(), Attention { sinks, ..op }.into()])?;
    rig.watch("y", &y.rows(0..n_tokens))
}
