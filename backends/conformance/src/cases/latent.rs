//! Cases of absorbed latent attention (MLA): a cache whose values are the first values of its keys,
//! alone and with the other ops of such a layer.

use hal::format::Format;
use hal::op::{Attention, CopyHeads, HeadColumns, HeadMatMul, KV_FORMATS, MatMul, Pairing};
use hal::op::{Rope, StoreKv};
use hal::{BatchShape, KvCache, KvRows, Op, Operand, Result, Tensor};

use super::neighbours::{Values, compare};
use crate::Case;
use crate::rig::Rig;

/// Sizes of latent attention.
#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    d_latent: usize,
    n_rot: usize,
    n_head: usize,
    /// Length and number of new tokens of each sequence.
    seqs: &'static [(usize, usize)],
}

impl Shape {
    /// Values of a row of the cache.
    fn width(&self) -> usize {
        self.d_latent + self.n_rot
    }

    fn n_tokens(&self) -> usize {
        self.seqs.iter().map(|(_, new)| new).sum()
    }
}

const SHAPES: [Shape; 5] = [
    Shape { name: "few", d_latent: 32, n_rot: 32, n_head: 3, seqs: &[(9, 5), (77, 1), (33, 2)] },
    Shape { name: "wide", d_latent: 512, n_rot: 64, n_head: 20, seqs: &[(70, 1), (33, 2)] },
    Shape { name: "wide-prompt", d_latent: 512, n_rot: 64, n_head: 17, seqs: &[(40, 20)] },
    Shape { name: "long", d_latent: 256, n_rot: 32, n_head: 33, seqs: &[(700, 1)] },
    Shape { name: "prompt", d_latent: 64, n_rot: 32, n_head: 10, seqs: &[(300, 37)] },
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for &kv in KV_FORMATS {
        cases.push(Case::new(format!("StoreKv/{kv}/latent"), move |rig| store(rig, kv)));
        for shape in SHAPES {
            let body = move |rig: &mut Rig| attention(rig, kv, &shape);
            cases.push(Case::new(format!("Attention/{kv}/latent-{}", shape.name), body));
        }
    }
    for (format, kv) in [
        (Format::F32, Format::F32),
        (Format::F16, Format::Q8_0),
        (Format::Q8_0, Format::F16),
        (Format::Q4_0, Format::Q4_0),
    ] {
        for (shape, n_tokens) in [(SHAPES[0], 8), (LONE, 1), (SHAPES[4], 37)] {
            let name = format!("Program/latent/{format}+{kv}/t{n_tokens}");
            let case = Case::new(name, move |rig| layer(rig, format, kv, &shape));
            let rounded = "activations and the cache are rounded repeatedly";
            cases.push(if format == Format::F32 {
                case
            } else {
                case.with_tolerance(2e-3, rounded)
            });
        }
    }
    cases
}

const LONE: Shape = Shape { name: "lone", seqs: &[(70, 1)], ..SHAPES[0] };

/// The cache of a shape, filled at the positions of its sequences, and the step's batch.
fn step(rig: &mut Rig, kv: Format, shape: &Shape) -> Result<(KvRows<Tensor>, hal::Batch<Tensor>)> {
    let n_blocks = shape.seqs.iter().map(|(len, _)| len.div_ceil(32)).sum::<usize>() + 2;
    let facts = rig.facts(shape.seqs, n_blocks);
    let max_seqs = shape.seqs.len();
    let batch_shape = BatchShape { max_tokens: shape.n_tokens(), max_seqs, max_blocks: 24 };
    let batch = rig.batch(batch_shape, &facts, n_blocks, 1 << 20)?;
    let widths = KvCache { k: shape.width(), v: 32 };
    let cache = rig.filled_cache(&facts, n_blocks, widths, KvCache::both(kv))?;
    Ok((KvRows { k: cache.k, v: None }, batch))
}

fn store(rig: &mut Rig, kv: Format) -> Result<()> {
    let shape = SHAPES[0];
    let (cache, batch) = step(rig, kv, &shape)?;
    let k = rig.input(shape.n_tokens(), shape.width())?;
    rig.run([StoreKv { k, v: None, batch, cache: cache.clone() }.into()])?;
    rig.watch_bits("k", &cache.k)
}

fn attend(
    shape: &Shape,
    [q, y]: [&Tensor; 2],
    cache: &KvRows<Tensor>,
    batch: &hal::Batch<Tensor>,
) -> Op {
    Attention {
        q: q.clone(),
        cache: cache.clone(),
        batch: batch.clone(),
        slopes: None,
        sinks: None,
        selected: None,
        y: y.clone(),
        n_head: shape.n_head,
        n_head_kv: 1,
        scale: 3.0 / (shape.width() as f32).sqrt(),
        window: None,
        softcap: 0.0,
    }
    .into()
}

fn attention(rig: &mut Rig, kv: Format, shape: &Shape) -> Result<()> {
    let (cache, batch) = step(rig, kv, shape)?;
    let q = rig.input(shape.n_tokens(), shape.n_head * shape.width())?;
    let y = rig.output(shape.n_tokens(), shape.n_head * shape.d_latent)?;
    rig.run([attend(shape, [&q, &y], &cache, &batch)])?;
    rig.watch("y", &y)
}

/// The ops of a layer from its queries and its latent vector to the output matrix.
fn layer(rig: &mut Rig, format: Format, kv: Format, shape: &Shape) -> Result<()> {
    const D_NOPE: usize = 64;
    const D_VALUE: usize = 32;
    let Shape { d_latent, n_rot, n_head, .. } = *shape;
    let (n, width) = (shape.n_tokens(), shape.width());
    let (cache, batch) = step(rig, kv, shape)?;
    let mut values = Values::default();
    let mut value = |rig: &mut Rig, name, cols| values.add(rig, name, n, cols);
    let q = value(rig, "q", n_head * (D_NOPE + n_rot))?;
    let absorbed = value(rig, "absorbed", n_head * width)?;
    let key = value(rig, "key", width)?;
    let sums = value(rig, "sums", n_head * d_latent)?;
    let mixed = value(rig, "mixed", n_head * D_VALUE)?;
    let projected = value(rig, "projected", 40)?;
    let freqs: Vec<f32> = (0..n_rot / 2).map(|j| 0.7f32.powi(j as i32)).collect();
    let freqs = rig.tensor(1, n_rot / 2, &freqs)?;
    let rope = |x: &Tensor| -> Op {
        let (freqs, batch, x) = (freqs.clone(), batch.clone(), x.clone());
        let pairing = Pairing::Adjacent;
        Rope { freqs, batch, x, d_head: width, first: d_latent, n_rot, pairing, scale: 1.0 }.into()
    };
    let copy = CopyHeads {
        x: q.clone(),
        y: absorbed.clone(),
        n_head,
        width: n_rot,
        from: HeadColumns { first: D_NOPE, step: D_NOPE + n_rot },
        to: HeadColumns { first: d_latent, step: width },
    };
    let k_b = rig.weight(n_head * d_latent, D_NOPE, format)?;
    let v_b = rig.weight(n_head * D_VALUE, d_latent, format)?;
    let o = rig.weight(projected.desc().n_cols, n_head * D_VALUE, format)?;
    let ops = vec![
        HeadMatMul { w: k_b, x: q, y: absorbed.clone(), n_head }.into(),
        copy.into(),
        rope(&absorbed),
        rope(&key),
        StoreKv { k: key, v: None, batch: batch.clone(), cache: cache.clone() }.into(),
        attend(shape, [&absorbed, &sums], &cache, &batch),
        HeadMatMul { w: v_b, x: sums, y: mixed.clone(), n_head }.into(),
        MatMul { w: o, x: mixed, bias: None, y: projected }.into(),
    ];
    compare(rig, ops, &values)
}
