//! Rotary position embedding.

use hal::format::Format;
use hal::op::Rope;
use hal::{KvCache, Operand, Plan, Result, Tensor, TensorDesc};
use lower::{RopePairs, RopeStore};

use super::cache::{formats, row_words, store_sources, values_per_store};
use super::elementwise::{each_value_u32, plan_bindings};
use crate::buffer::plain;
use crate::error::driver;
use crate::facts::Facts;
use crate::lowering::Lowering;
use crate::shader::Source;

pub(super) fn plan(op: &Rope<TensorDesc>, facts: &Facts) -> Plan {
    plan_bindings(&[("x", &op.x)], facts)
}

pub(super) fn lower(op: &Rope<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let desc = op.x.desc();
    let n_head = desc.n_cols / op.d_head;
    let RopePairs { n: n_pairs, step, distance: other } = RopePairs::of(op);
    let sizes =
        [op.batch.shape.max_tokens, desc.n_rows, n_head, op.d_head, op.first, n_pairs, step, other];
    let mut numbers: Vec<u32> = sizes.iter().map(|&n| n as u32).collect();
    numbers.push(op.scale.to_bits());
    let spans = [plain(&op.freqs)?, plain(&op.batch.words)?, plain(&op.x)?];
    each_value_u32(
        Source::new("rope").include("q", "lib/rotate"),
        desc.n_rows * n_head * n_pairs,
        &spans,
        &numbers,
        out,
    )
}

/// The sizes of a key head and of a value head, in invocations that store them; `None` if an
/// invocation would store values of two heads.
fn stores(step: &RopeStore<'_>) -> Option<KvCache<usize>> {
    let per_store = |half: &Tensor, d: usize| {
        let n = values_per_store(half.desc().format);
        d.is_multiple_of(n).then_some(d / n)
    };
    let cache = &step.store.cache;
    Some(KvCache {
        k: per_store(&cache.k, step.k.d_head)?,
        v: per_store(cache.values(), step.d_value())?,
    })
}

/// Whether a workgroup can rotate and store a whole head of these keys and values.
pub(super) fn stores_heads(step: &RopeStore<'_>) -> bool {
    stores(step).is_some()
}

/// The shader that rotates, and stores keys and values of these formats.
pub(super) fn rope_store(formats: KvCache<Format>) -> Source {
    let source = store_sources("rope_store", formats);
    source.include("q", "lib/rotate").include("k", "lib/rotate")
}

/// Lowers both rotations and the store to one dispatch.
pub(super) fn lower_with_store(step: &RopeStore<'_>, out: &mut Lowering<'_>) -> Result<()> {
    let RopeStore { q, k, store } = step;
    let Some(stores) = stores(step) else {
        return Err(driver("compile", "an invocation would store two heads"));
    };
    let (n_rows, halves) = (q.x.desc().n_rows, store.cache.map(&mut |half| half.desc()));
    let v_cols = step.v_cols();
    let [n_head, n_head_kv] = [q.x.desc().n_cols / q.d_head, step.n_head_kv()];
    let RopePairs { n: n_pairs, step, distance: other } = RopePairs::of(q);
    let sizes = [
        q.batch.shape.max_tokens,
        n_rows,
        n_head,
        n_head_kv,
        q.d_head,
        q.first,
        n_pairs,
        step,
        other,
        k.x.desc().n_cols,
        v_cols,
        stores.k,
        stores.v,
        row_words(&halves.k),
        row_words(halves.values()),
        halves.k.n_rows,
    ];
    let mut numbers: Vec<u32> = sizes.iter().map(|&n| n as u32).collect();
    numbers.push(q.scale.to_bits());
    let spans = [
        plain(&q.freqs)?,
        plain(&q.batch.words)?,
        plain(&q.x)?,
        plain(&k.x)?,
        out.plain_or_dummy(store.v.as_ref())?,
        plain(&store.cache.k)?,
        // Without values, nothing is written there.
        plain(store.cache.values())?,
    ];
    let source = rope_store(formats(&store.cache));
    let source = source.set("ROW", out.facts().tuning.row);
    let grid = out.facts().grid(n_rows * (n_head + n_head_kv));
    out.dispatch(&source, &spans, &numbers, grid)
}
