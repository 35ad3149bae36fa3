//! Cases of Rope, StoreKv and Attention.

use std::ops::Range;

use hal::format::Format;
use hal::op::{Attention, KV_FORMATS, Pairing, Rope, StoreKv, Window};
use hal::{BatchFacts, BatchShape, KvCache, Result};

use crate::Case;
use crate::rig::Rig;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for pairing in [Pairing::Adjacent, Pairing::Halves] {
        for (d_head, n_rot) in [(40, 40), (64, 32), (80, 80), (128, 64), (6, 6), (7, 4), (6, 2)] {
            for n_tokens in [1, 5, 17] {
                for first in
                    [0, d_head - n_rot].into_iter().take(if n_rot < d_head { 2 } else { 1 })
                {
                    let name = format!("Rope/{pairing:?}/{n_rot}of{d_head}at{first}/t{n_tokens}");
                    let head = [d_head, first, n_rot];
                    let body = move |rig: &mut Rig| rope(rig, pairing, head, n_tokens);
                    cases.push(Case::new(name, body));
                }
            }
        }
    }
    for (i, &k) in KV_FORMATS.iter().enumerate() {
        // Each format alone, and with keys and values in different ones.
        for v in [k, KV_FORMATS[(i + 1) % KV_FORMATS.len()]] {
            let formats = KvCache { k, v };
            for n_cols in [1, 32, 33, 96, 128] {
                if fits(formats, [n_cols; 2]) {
                    let body = move |rig: &mut Rig| store(rig, formats, n_cols);
                    cases.push(Case::new(format!("StoreKv/{k}+{v}/{n_cols}"), body));
                }
            }
            for shape in shapes() {
                if fits(formats, shape.heads()) && (k == v || MIXED_SHAPES.contains(&shape.name)) {
                    let body = move |rig: &mut Rig| attention(rig, formats, &shape);
                    cases.push(Case::new(format!("Attention/{k}+{v}/{}", shape.name), body));
                }
            }
            if k == v {
                let body = move |rig: &mut Rig| independent_tokens(rig, formats);
                cases.push(Case::new(format!("Attention/{k}+{v}/alone"), body));
            }
        }
    }
    cases
}

/// Shapes that run with keys and values in different formats.
const MIXED_SHAPES: [&str; 9] = [
    "one-token",
    "head-40",
    "head-96",
    "head-1",
    "values-5",
    "values-96",
    "latent-prompt",
    "long-4",
    "all",
];

/// Whether key rows and value rows with these numbers of columns are whole blocks.
fn fits(formats: KvCache<Format>, n_cols: [usize; 2]) -> bool {
    let halves = [formats.k, formats.v].into_iter().zip(n_cols);
    halves.into_iter().all(|(format, n)| n.is_multiple_of(format.block_values()))
}

/// RoPE on a padded batch of two sequences.
fn rope(rig: &mut Rig, pairing: Pairing, head: [usize; 3], n: usize) -> Result<()> {
    let [d_head, first, n_rot] = head;
    let (n_head, max_tokens) = (3, n + 3);
    let facts = rig.facts(&[(700, n.div_ceil(2)), (n, n / 2)], 23);
    let shape = BatchShape { max_tokens, max_seqs: 3, max_blocks: 22 };
    let batch = rig.batch(shape, &facts, 23, 1 << 20)?;
    let freqs: Vec<f32> =
        (0..n_rot / 2).map(|j| 1e4f32.powf(-2.0 * j as f32 / n_rot as f32)).collect();
    let freqs = rig.tensor(1, n_rot / 2, &freqs)?;
    let values = rig.rng.floats(max_tokens * n_head * d_head);
    let x = rig.output_from(max_tokens, n_head * d_head, &values)?;
    let scale = if n == 5 { 1.3 } else { 1.0 };
    let op = Rope { freqs, batch, x: x.clone(), d_head, first, n_rot, pairing, scale };
    rig.run([op.into()])?;
    rig.watch("x", &x.rows(0..n))
}

/// Only the cache rows of the step's tokens may change.
fn store(rig: &mut Rig, formats: KvCache<Format>, n_cols: usize) -> Result<()> {
    let (n_blocks, max_tokens) = (6, 9);
    let facts = rig.facts(&[(70, 4), (3, 2)], n_blocks);
    let shape = BatchShape { max_tokens, max_seqs: 2, max_blocks: 3 };
    let batch = rig.batch(shape, &facts, n_blocks, 1 << 20)?;
    let n_values = 2 * n_cols;
    let widths = KvCache { k: n_cols, v: n_values };
    let cache = rig.filled_cache(&facts, n_blocks, widths, formats)?;
    let (k, v) = (rig.input(max_tokens, n_cols)?, rig.input(max_tokens, n_values)?);
    rig.run([StoreKv { k, v: Some(v), batch, cache: cache.clone().into() }.into()])?;
    rig.watch_bits("k", &cache.k)?;
    rig.watch_bits("v", &cache.v)
}

#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    d_head: usize,
    /// Values per value head; 0 means the same as `d_head`.
    d_value: usize,
    n_head: usize,
    n_head_kv: usize,
    window: Option<Window>,
    softcap: f32,
    slopes: bool,
    sinks: bool,
    /// Length and number of new tokens of each sequence.
    seqs: &'static [(usize, usize)],
}

const PLAIN: Shape = Shape {
    name: "one-token",
    d_head: 64,
    d_value: 0,
    n_head: 4,
    n_head_kv: 2,
    window: None,
    softcap: 0.0,
    slopes: false,
    sinks: false,
    seqs: &[(1, 1)],
};

impl Shape {
    /// Values per key head and per value head.
    fn heads(&self) -> [usize; 2] {
        [self.d_head, if self.d_value == 0 { self.d_head } else { self.d_value }]
    }
}

fn shapes() -> Vec<Shape> {
    const MIXED: &[(usize, usize)] = &[(9, 5), (77, 1), (33, 2)];
    let long = Shape { seqs: &[(700, 1)], ..PLAIN };
    let mut shapes = vec![
        PLAIN,
        Shape { name: "head-40", d_head: 40, seqs: MIXED, ..PLAIN },
        Shape { name: "head-80", d_head: 80, n_head: 3, n_head_kv: 1, seqs: MIXED, ..PLAIN },
        Shape { name: "head-128", d_head: 128, n_head: 2, n_head_kv: 2, seqs: MIXED, ..PLAIN },
        Shape { name: "head-6", d_head: 6, n_head: 8, n_head_kv: 2, seqs: MIXED, ..PLAIN },
        Shape { name: "head-1", d_head: 1, n_head: 2, n_head_kv: 1, seqs: MIXED, ..PLAIN },
        Shape { name: "head-256", d_head: 256, n_head: 2, n_head_kv: 1, seqs: MIXED, ..PLAIN },
        Shape { name: "head-96", d_head: 96, n_head: 7, n_head_kv: 1, seqs: MIXED, ..PLAIN },
        Shape { name: "shared-10", d_head: 32, n_head: 20, n_head_kv: 2, seqs: MIXED, ..PLAIN },
        Shape { name: "values-32", d_value: 32, seqs: MIXED, ..PLAIN },
        Shape {
            name: "values-96",
            d_head: 32,
            d_value: 96,
            n_head: 2,
            seqs: &[(300, 37)],
            ..PLAIN
        },
        Shape {
            name: "values-5",
            d_head: 12,
            d_value: 5,
            n_head: 3,
            n_head_kv: 3,
            seqs: MIXED,
            ..PLAIN
        },
        Shape { name: "values-long", d_head: 192, d_value: 128, n_head: 3, n_head_kv: 3, ..long },
        Shape {
            name: "values-prompt",
            d_head: 24,
            d_value: 16,
            n_head: 8,
            seqs: &[(300, 37)],
            ..PLAIN
        },
        // Latent attention (MLA): one key for many heads, wider than usual.
        Shape {
            name: "latent",
            d_head: 576,
            d_value: 512,
            n_head: 9,
            n_head_kv: 1,
            seqs: &[(70, 1), (33, 2)],
            ..PLAIN
        },
        Shape {
            name: "latent-prompt",
            d_head: 288,
            d_value: 320,
            n_head: 3,
            n_head_kv: 1,
            seqs: &[(80, 20)],
            ..PLAIN
        },
        Shape { name: "long", ..long },
        Shape { name: "long-4", seqs: &[(700, 2), (257, 2)], ..PLAIN },
        Shape { name: "alone-prompt", d_head: 32, n_head: 2, seqs: &[(300, 37)], ..PLAIN },
        Shape { name: "long-batch", seqs: &[(700, 17), (513, 2), (32, 1)], ..PLAIN },
        Shape { name: "prefill", seqs: &[(40, 40)], ..PLAIN },
        Shape { name: "softcap", softcap: 0.7, seqs: MIXED, ..PLAIN },
        Shape { name: "sinks", sinks: true, seqs: MIXED, ..PLAIN },
        Shape { name: "slopes", slopes: true, seqs: MIXED, ..PLAIN },
        Shape { name: "slopes-prompt", slopes: true, n_head: 6, seqs: &[(290, 70)], ..PLAIN },
        Shape {
            name: "all",
            window: Some(Window::Sliding(65)),
            softcap: 1.5,
            slopes: true,
            sinks: true,
            ..long
        },
    ];
    shapes.extend(windows());
    shapes
}

/// Windows of all kinds, shorter and longer than the sequences.
fn windows() -> Vec<Shape> {
    const MIXED: &[(usize, usize)] = &[(9, 5), (77, 1), (33, 2)];
    const WHOLE: &[(usize, usize)] = &[(301, 301), (9, 9), (70, 70)];
    let encoder = Shape { window: Some(Window::Around(usize::MAX)), slopes: true, ..PLAIN };
    let long = Shape { seqs: &[(700, 1)], ..PLAIN };
    vec![
        Shape {
            name: "window-prompt",
            window: Some(Window::Sliding(29)),
            seqs: &[(290, 70)],
            ..PLAIN
        },
        Shape { name: "window-1", window: Some(Window::Sliding(1)), seqs: MIXED, ..PLAIN },
        Shape { name: "window-7", window: Some(Window::Sliding(7)), seqs: MIXED, ..PLAIN },
        Shape {
            name: "window-100",
            window: Some(Window::Sliding(100)),
            seqs: &[(700, 3), (99, 2)],
            ..PLAIN
        },
        Shape { name: "window-wider", window: Some(Window::Sliding(4096)), ..long },
        Shape { name: "chunk-1", window: Some(Window::Chunk(1)), seqs: MIXED, ..PLAIN },
        Shape { name: "chunk-7", window: Some(Window::Chunk(7)), seqs: MIXED, ..PLAIN },
        Shape {
            name: "chunk-100",
            window: Some(Window::Chunk(100)),
            seqs: &[(700, 3), (99, 2)],
            ..PLAIN
        },
        Shape {
            name: "chunk-prompt",
            window: Some(Window::Chunk(29)),
            seqs: &[(290, 70)],
            ..PLAIN
        },
        Shape { name: "chunk-wider", window: Some(Window::Chunk(4096)), ..long },
        Shape { name: "around-0", window: Some(Window::Around(0)), seqs: MIXED, ..PLAIN },
        Shape { name: "around-3", window: Some(Window::Around(3)), seqs: MIXED, ..PLAIN },
        Shape { name: "around-100", window: Some(Window::Around(100)), seqs: WHOLE, ..PLAIN },
        Shape { name: "around-slopes", seqs: WHOLE, ..encoder },
        Shape { name: "around-few", seqs: &[(9, 9), (3, 3)], ..encoder },
        Shape { name: "around-last", sinks: true, seqs: &[(700, 3)], ..encoder },
    ]
}

/// In steps of up to 16 tokens, a token's values do not depend on the other tokens.
fn independent_tokens(rig: &mut Rig, formats: KvCache<Format>) -> Result<()> {
    let (n_head, n_head_kv, d_head, n_blocks) = (6, 2, 32, 28);
    let n_cols = n_head * d_head;
    let facts = rig.facts(&[(700, 2), (40, 5), (9, 9)], n_blocks);
    let cache = rig.filled_cache(&facts, n_blocks, KvCache::both(n_head_kv * d_head), formats)?;
    let values = rig.rng.floats(facts.tokens.len() * n_cols);
    let mut attend = |tokens: Range<usize>| -> Result<Vec<f32>> {
        let n = tokens.len();
        let shape = BatchShape { max_tokens: n, max_seqs: 3, max_blocks: 24 };
        let part =
            BatchFacts { tokens: facts.tokens[tokens.clone()].to_vec(), seqs: facts.seqs.clone() };
        let batch = rig.batch(shape, &part, n_blocks, 1 << 20)?;
        let q = rig.tensor(n, n_cols, &values[tokens.start * n_cols..tokens.end * n_cols])?;
        let y = rig.output(n, n_cols)?;
        let op = Attention {
            q,
            cache: cache.clone().into(),
            batch,
            slopes: None,
            sinks: None,
            selected: None,
            y: y.clone(),
            n_head,
            n_head_kv,
            scale: 0.5,
            window: None,
            softcap: 0.0,
        };
        rig.run([op.into()])?;
        if n > 1 {
            rig.watch("y", &y)?;
        }
        rig.read(&y)
    };
    let whole = attend(0..facts.tokens.len())?;
    let ones = (0..facts.tokens.len()).map(|t| attend(t..t + 1)).collect::<Result<Vec<_>>>()?;
    for (t, one) in ones.iter().enumerate() {
        rig.same_bits(&format!("token {t}"), &whole[t * n_cols..][..n_cols], one);
    }
    Ok(())
}

/// Positions that a token must not attend to hold NaN, including those past the end of its sequence
/// in the last block.
fn attention(rig: &mut Rig, formats: KvCache<Format>, shape: &Shape) -> Result<()> {
    let n_blocks = shape.seqs.iter().map(|(len, _)| len.div_ceil(32)).sum::<usize>() + 2;
    let facts = rig.facts(shape.seqs, n_blocks);
    let (n_tokens, max_tokens) = (facts.tokens.len(), facts.tokens.len() + 2);
    let max_seqs = shape.seqs.len() + 1;
    let batch_shape = BatchShape { max_tokens, max_seqs, max_blocks: 24 };
    let batch = rig.batch(batch_shape, &facts, n_blocks, 1 << 20)?;
    let [d_head, d_value] = shape.heads();
    let widths = KvCache { k: shape.n_head_kv * d_head, v: shape.n_head_kv * d_value };
    let cache = rig.filled_cache(&facts, n_blocks, widths, formats)?;
    let q = rig.input(max_tokens, shape.n_head * d_head)?;
    let slopes = if shape.slopes { Some(rig.input(1, shape.n_head)?) } else { None };
    let sinks = if shape.sinks { Some(rig.input(1, shape.n_head)?) } else { None };
    let y = rig.output(max_tokens, shape.n_head * d_value)?;
    let op = Attention {
        q,
        cache: cache.into(),
        batch,
        slopes,
        sinks,
        selected: None,
        y: y.clone(),
        n_head: shape.n_head,
        n_head_kv: shape.n_head_kv,
        // Larger than usual, so that the softmax weights differ clearly.
        scale: 3.0 / (shape.d_head as f32).sqrt(),
        window: shape.window,
        softcap: shape.softcap,
    };
    rig.run([op.into()])?;
    rig.watch("y", &y.rows(0..n_tokens))
}
