//! Rotary position embedding.

use hal::op::{Pairing, Rope, StoreKv};
use hal::{Operand, Plan, Result, Tensor, TensorDesc};

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
    let [n_pairs, step, distance] = pairs(op);
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

/// Number of pairs per head, distance between pairs, and distance between the two values of a pair.
fn pairs(op: &Rope<Tensor>) -> [usize; 3] {
    let n_pairs = op.n_rot / 2;
    match op.pairing {
        Pairing::Adjacent => [n_pairs, 2, 1],
        Pairing::Halves => [n_pairs, 1, n_pairs],
    }
}

/// Whether one launch can run all three ops: `store` stores the keys that `k` rotates, both
/// rotations are the same, and a block can store a whole head.
pub(super) fn can_fuse(
    q: &Rope<Tensor>,
    k: &Rope<Tensor>,
    store: &StoreKv<Tensor>,
) -> Result<bool> {
    let words = plain(&q.batch.words)?;
    let same_step = words == plain(&k.batch.words)? && words == plain(&store.batch.words)?;
    let rotation =
        |op: &Rope<Tensor>| (op.d_head, op.first, op.n_rot, op.pairing, op.scale.to_bits());
    let same_rotation = rotation(q) == rotation(k) && plain(&q.freqs)? == plain(&k.freqs)?;
    let n_head_kv = k.x.desc().n_cols / k.d_head;
    let v_cols = store.v.desc().n_cols;
    let d_value = v_cols / n_head_kv.max(1);
    let whole = k.d_head.is_multiple_of(HEAD_STEP)
        && d_value.is_multiple_of(HEAD_STEP)
        && d_value * n_head_kv == v_cols;
    let spans = [plain(&q.x)?, plain(&k.x)?, plain(&store.v)?];
    let apart = !spans[0].overlaps(spans[1]) && !spans[0].overlaps(spans[2]);
    let n_rows = q.x.desc().n_rows;
    Ok(same_step
        && same_rotation
        && whole
        && apart
        && spans[1] == plain(&store.k)?
        && n_rows == k.x.desc().n_rows
        && n_rows <= MAX_TOKENS)
}

/// Lowers both rotations and the store, which [`can_fuse`] accepted, to one launch.
pub(super) fn lower_with_store(
    q: &Rope<Tensor>,
    k: &Rope<Tensor>,
    store: &StoreKv<Tensor>,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let (n_rows, halves) = (q.x.desc().n_rows, store.cache.map(&mut |half| half.desc()));
    let n_head = q.x.desc().n_cols / q.d_head;
    let n_head_kv = k.x.desc().n_cols / k.d_head;
    let [n_pairs, step, distance] = pairs(q);
    let spans = [&q.freqs, &q.batch.words, &q.x, &k.x, &store.v, &store.cache.k, &store.cache.v];
    let mut args = Vec::new();
    for span in spans {
        args.push(ptr(plain(span)?));
    }
    let sizes = [
        q.batch.shape.max_tokens,
        n_rows,
        n_head,
        n_head_kv,
        q.d_head,
        store.v.desc().n_cols / n_head_kv,
        q.first,
        n_pairs,
        step,
        distance,
        row_words(&halves.k),
        row_words(&halves.v),
        halves.k.n_rows,
    ];
    args.extend(sizes.map(word));
    args.push(Arg::F32(q.scale));
    args.extend([halves.k, halves.v].map(|half| Arg::U32(cache_format(half.format))));
    let unit = Unit::cache("rope_store", halves.k.format, halves.v.format);
    out.launch(unit, "rope_store", [n_head + n_head_kv, n_rows, 1], HEAD_THREADS, &args);
    Ok(())
}
