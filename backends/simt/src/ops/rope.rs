//! Rotary position embedding.

use hal::op::Rope;
use hal::{Operand, Plan, Result, Tensor, TensorDesc};
use lower::{RopePairs, RopeStore};

use super::attention::row_words;
use super::elementwise::launch_per_item;
use crate::buffer::plain;
use crate::driver::Arg;
use crate::facts::Facts;
use crate::lowering::{Lowering, ptr, word};
use crate::units::{Unit, cache_format};

/// Threads per block of `rope_store`; a block rotates and stores one head.
const HEAD_THREADS: u32 = 64;
/// The size of a head that `rope_store` stores is a multiple of this many values.
const HEAD_STEP: usize = 32;
/// Limit of a grid's second dimension.
const MAX_TOKENS: usize = 65_535;

pub(crate) fn plan(_op: &Rope<TensorDesc>, _facts: &Facts) -> Plan {
    Plan::yes()
}

pub(crate) fn lower(op: &Rope<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let desc = op.x.desc();
    let n_head = desc.n_cols / op.d_head;
    let RopePairs { n: n_pairs, step, distance } = RopePairs::of(op);
    let spans = [ptr(plain(&op.freqs)?), ptr(plain(&op.batch.words)?), ptr(plain(&op.x)?)];
    let sizes = [
        op.batch.shape.max_tokens,
        desc.n_rows,
        n_head,
        op.d_head,
        op.first,
        n_pairs,
        step,
        distance,
    ];
    let mut args: Vec<Arg> = spans.into_iter().chain(sizes.map(word)).collect();
    args.push(Arg::F32(op.scale));
    launch_per_item("rope", desc.n_rows * n_head * n_pairs, &args, out);
    Ok(())
}

/// Whether a block can rotate and store a whole head of these keys and values.
pub(super) fn stores_heads(step: &RopeStore<'_>) -> bool {
    step.k.d_head.is_multiple_of(HEAD_STEP)
        && step.d_value().is_multiple_of(HEAD_STEP)
        && step.q.x.desc().n_rows <= MAX_TOKENS
}

/// Lowers both rotations and the store to one launch.
pub(super) fn lower_with_store(step: &RopeStore<'_>, out: &mut Lowering<'_>) -> Result<()> {
    let RopeStore { q, k, store } = step;
    let (n_rows, halves) = (q.x.desc().n_rows, store.cache.map(&mut |half| half.desc()));
    let n_head = q.x.desc().n_cols / q.d_head;
    let n_head_kv = step.n_head_kv();
    let d_value = step.d_value();
    let RopePairs { n: n_pairs, step, distance } = RopePairs::of(q);
    let mut args = Vec::new();
    for span in [&q.freqs, &q.batch.words, &q.x, &k.x] {
        args.push(ptr(plain(span)?));
    }
    args.push(ptr(out.plain_or_null(store.v.as_ref())?));
    args.extend([ptr(plain(&store.cache.k)?), ptr(plain(store.cache.values())?)]);
    let sizes = [
        q.batch.shape.max_tokens,
        n_rows,
        n_head,
        n_head_kv,
        q.d_head,
        d_value,
        q.first,
        n_pairs,
        step,
        distance,
        row_words(&halves.k),
        row_words(halves.values()),
        halves.k.n_rows,
    ];
    args.extend(sizes.map(word));
    args.push(Arg::F32(q.scale));
    args.extend([&halves.k, halves.values()].map(|half| Arg::U32(cache_format(half.format))));
    let unit = Unit::cache("rope_store", halves.k.format, halves.values().format);
    let prefetch = out.prefetch(n_rows, HEAD_THREADS);
    args.extend(prefetch.args);
    let grid = [n_head + n_head_kv + prefetch.n_blocks, n_rows, 1];
    out.launch(unit, "rope_store", grid, HEAD_THREADS, &args);
    Ok(())
}
