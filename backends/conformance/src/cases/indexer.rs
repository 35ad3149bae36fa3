//! Cases of sparse attention (DSA): the indexer's selection, and attention to selected positions.
//!
//! A selection is compared to the bit, so the scores of a case are exact in F32: small whole numbers,
//! among which many are equal, or levels that are clearly apart in every format.

use hal::format::Format;
use hal::op::{Attention, KV_FORMATS, LightningIndexer, NO_POSITION};
use hal::{Batch, BatchFacts, BatchShape, KV_BLOCK, KvCache, KvRows, Result, Tensor, TensorDesc};

use crate::Case;
use crate::rig::Rig;

/// Sizes of a selection.
#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    n_head: usize,
    d_head: usize,
    top_k: usize,
    /// Positions per block.
    pool: usize,
    /// Whether heads have weights.
    weighted: bool,
    /// Length and number of new tokens of each sequence.
    seqs: &'static [(usize, usize)],
}

const FEW: Shape = Shape {
    name: "few",
    n_head: 3,
    d_head: 32,
    top_k: 8,
    pool: 1,
    weighted: true,
    seqs: &[(9, 5), (77, 1), (33, 2)],
};

/// `top_k` and the lengths give complete blocks, incomplete ones, and fewer blocks than are
/// selected.
const SHAPES: [Shape; 11] = [
    FEW,
    Shape { name: "unweighted", weighted: false, pool: 2, ..FEW },
    Shape { name: "pairs", top_k: 5, pool: 2, seqs: &[(9, 5), (77, 1), (78, 2)], ..FEW },
    Shape { name: "blocks", top_k: 3, pool: 4, seqs: &[(9, 9), (80, 1), (34, 6)], ..FEW },
    Shape { name: "all-blocks", top_k: 30, pool: 5, seqs: &[(3, 2), (77, 6)], ..FEW },
    Shape { name: "one", top_k: 1, seqs: &[(70, 4), (40, 3), (1, 1)], ..FEW },
    Shape { name: "all", top_k: 900, ..FEW },
    Shape { name: "edge", top_k: 77, seqs: &[(77, 3), (78, 2)], ..FEW },
    Shape { name: "long", n_head: 20, d_head: 128, top_k: 300, seqs: &[(700, 2)], ..FEW },
    Shape {
        name: "prompt",
        n_head: 9,
        d_head: 64,
        top_k: 70,
        pool: 1,
        weighted: true,
        seqs: &[(300, 37), (60, 20)],
    },
    Shape {
        name: "prompt-blocks",
        n_head: 9,
        d_head: 64,
        top_k: 20,
        pool: 3,
        weighted: true,
        seqs: &[(300, 37), (60, 20)],
    },
];

impl Shape {
    /// Number of positions that a token selects at most.
    fn n_cols(&self) -> usize {
        self.top_k * self.pool + self.pool - 1
    }
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in SHAPES {
        for &kv in KV_FORMATS {
            let name = format!("LightningIndexer/{kv}/{}", shape.name);
            cases.push(Case::new(name, move |rig| levels(rig, kv, &shape)));
            let name = format!("Attention/{kv}/selected-{}", shape.name);
            cases.push(Case::new(name, move |rig| attend(rig, kv, &shape, true)));
        }
        for kv in [Format::F32, Format::F16, Format::BF16] {
            let name = format!("LightningIndexer/{kv}/ties-{}", shape.name);
            cases.push(Case::new(name, move |rig| ties(rig, kv, &shape)));
        }
        for kv in [Format::F32, Format::Q8_0] {
            let name = format!("Attention/{kv}/selected-values-{}", shape.name);
            cases.push(Case::new(name, move |rig| attend(rig, kv, &shape, false)));
        }
    }
    cases.push(Case::new("LightningIndexer/F32/NaN", not_numbers));
    cases
}

/// The step of a case. Two tokens are padding.
struct Step {
    facts: BatchFacts,
    batch: Batch<Tensor>,
    n_blocks: usize,
    max_tokens: usize,
}

fn step(rig: &mut Rig, shape: &Shape) -> Result<Step> {
    let n_blocks = shape.seqs.iter().map(|(len, _)| len.div_ceil(KV_BLOCK)).sum::<usize>() + 2;
    let facts = rig.facts(shape.seqs, n_blocks);
    let max_tokens = facts.tokens.len() + 2;
    let batch_shape = BatchShape { max_tokens, max_seqs: shape.seqs.len(), max_blocks: 24 };
    let batch = rig.batch(batch_shape, &facts, n_blocks, 1 << 20)?;
    Ok(Step { facts, batch, n_blocks, max_tokens })
}

/// A cache of keys without values. `key(rig, seq, pos)` are the values of a filled position; the others
/// hold NaN.
fn keys(
    rig: &mut Rig,
    step: &Step,
    (kv, width): (Format, usize),
    key: &mut dyn FnMut(&mut Rig, usize, usize) -> Vec<f32>,
) -> Result<KvRows<Tensor>> {
    let mut values = vec![f32::NAN; step.n_blocks * KV_BLOCK * width];
    for (s, seq) in step.facts.seqs.iter().enumerate() {
        for pos in 0..seq.len as usize {
            let row = seq.blocks[pos / KV_BLOCK] as usize * KV_BLOCK + pos % KV_BLOCK;
            values[row * width..][..width].copy_from_slice(&key(rig, s, pos));
        }
    }
    let mut bytes = vec![0; values.len() / kv.block_values() * kv.block_bytes()];
    kv.quantize_cache(&values, &mut bytes);
    let k = rig.device.alloc("keys", TensorDesc::new(step.n_blocks * KV_BLOCK, width, kv))?;
    rig.queue.write(&k, &bytes)?;
    Ok(KvRows { k, v: None })
}

/// Runs the indexer, and reads the positions that it selects for the tokens of the step.
fn select(
    rig: &mut Rig,
    shape: &Shape,
    step: &Step,
    [q, weights]: [Vec<f32>; 2],
    cache: KvRows<Tensor>,
) -> Result<()> {
    let (n, n_head) = (step.max_tokens, shape.n_head);
    let q = rig.tensor(n, n_head * shape.d_head, &q)?;
    let weights = rig.tensor(n, n_head, &weights)?;
    let weights = shape.weighted.then_some(weights);
    let n_cols = shape.n_cols();
    let selected = rig.words(n, n_cols, &vec![u32::MAX - 1; n * n_cols])?;
    let (batch, pool) = (step.batch.clone(), shape.pool);
    let op = LightningIndexer {
        q,
        weights,
        cache,
        batch,
        selected: selected.clone(),
        n_head,
        pool,
        list: None,
    };
    rig.run([op.into()])?;
    rig.watch_bits("selected", &selected.rows(0..step.facts.tokens.len()))
}

/// The keys are one vector times a level of their position, a different one for each position of a
/// sequence. Half of the heads have negative products with it, which count as 0.
fn levels(rig: &mut Rig, kv: Format, shape: &Shape) -> Result<()> {
    let step = step(rig, shape)?;
    let d = shape.d_head;
    let direction: Vec<f32> = rig.rng.floats(d).iter().map(|v| v.signum()).collect();
    let mut order: Vec<Vec<usize>> =
        step.facts.seqs.iter().map(|seq| (0..seq.len as usize).collect()).collect();
    order.iter_mut().for_each(|order| rig.rng.shuffle(order));
    let cache = keys(rig, &step, (kv, d), &mut |_, seq, pos| {
        let level = 1.0 + order[seq][pos] as f32;
        direction.iter().map(|v| v * level / 64.0).collect()
    })?;
    let n_rows = step.max_tokens * shape.n_head;
    let mut q = Vec::new();
    for head in 0..n_rows {
        let side = if head % 2 == 0 { 1.0 } else { -1.0 };
        let size = rig.rng.floats(d);
        q.extend(direction.iter().zip(size).map(|(v, size)| side * v * (0.1 + size.abs())));
    }
    let weights = rig.rng.floats(n_rows);
    select(rig, shape, &step, [q, weights], cache)
}

/// Whole numbers, whose scores are exact and often equal.
fn ties(rig: &mut Rig, kv: Format, shape: &Shape) -> Result<()> {
    let step = step(rig, shape)?;
    let whole = |rig: &mut Rig, n: usize, most: f32| -> Vec<f32> {
        rig.rng.floats(n).iter().map(|v| (most * v).round()).collect()
    };
    let d = shape.d_head;
    // Few keys differ in more than two values.
    let cache = keys(rig, &step, (kv, d), &mut |rig, _, _| {
        let mut key = vec![1.0; d];
        for _ in 0..2 {
            let at = rig.rng.below(d);
            key[at] = whole(rig, 1, 2.0)[0];
        }
        key
    })?;
    let n_rows = step.max_tokens * shape.n_head;
    let q = whole(rig, n_rows * d, 3.0);
    let weights = whole(rig, n_rows, 2.0);
    select(rig, shape, &step, [q, weights], cache)
}

/// Positions with NaN scores come after all others, in order.
fn not_numbers(rig: &mut Rig) -> Result<()> {
    let shape = Shape { top_k: 20, seqs: &[(40, 2)], ..FEW };
    let step = step(rig, &shape)?;
    let d = shape.d_head;
    let cache = keys(rig, &step, (Format::F32, d), &mut |_, _, pos| {
        vec![if pos % 3 == 0 { pos as f32 } else { f32::NAN }; d]
    })?;
    let n_rows = step.max_tokens * shape.n_head;
    select(rig, &shape, &step, [vec![-1.0; n_rows * d], vec![1.0; n_rows]], cache)
}

/// Attention to random positions, over keys that are also the values or over keys and values. With
/// blocks, a token attends to fewer positions than it sees.
fn attend(rig: &mut Rig, kv: Format, shape: &Shape, latent: bool) -> Result<()> {
    let Shape { n_head, d_head, .. } = *shape;
    let n_cols = shape.n_cols();
    let step = step(rig, shape)?;
    let (n, n_tokens) = (step.max_tokens, step.facts.tokens.len());
    let mut listed = vec![NO_POSITION; n * n_cols];
    for (token, list) in step.facts.tokens.iter().zip(listed.chunks_mut(n_cols)) {
        let n_visible = token.pos as usize + 1;
        let n_selected = n_cols.min(n_visible.div_ceil(shape.pool));
        let mut positions = rig.rng.choose(n_selected, n_visible);
        positions.sort_unstable();
        list[..positions.len()].copy_from_slice(&positions);
    }
    let selected = rig.words(n, n_cols, &listed)?;
    let filled =
        rig.filled_cache(&step.facts, step.n_blocks, KvCache::both(d_head), KvCache::both(kv))?;
    let cache = if latent { KvRows { k: filled.k, v: None } } else { filled.into() };
    // Values are whole blocks of every format.
    let d_value = if latent && d_head > 32 { d_head / 2 } else { d_head };
    let q = rig.input(n, n_head * d_head)?;
    let y = rig.output(n, n_head * d_value)?;
    let op = Attention {
        q,
        cache,
        batch: step.batch.clone(),
        slopes: None,
        sinks: None,
        selected: Some(selected),
        y: y.clone(),
        n_head,
        n_head_kv: 1,
        scale: 3.0 / (d_head as f32).sqrt(),
        window: None,
        softcap: 0.0,
    };
    rig.run([op.into()])?;
    rig.watch("y", &y.rows(0..n_tokens))
}
