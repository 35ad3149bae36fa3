//! Sequences of ops that one launch can compute, in the order in which layers have them.

use hal::format::{Activation, Format};
use hal::op::{Add, Attention, MatMul, Norm, Pairing, Rope, Route, SparseFfn, StoreKv};
use hal::{Op, Operand, Result, Rows, Tensor};

use crate::Emit;
use crate::earlier::is_same;

/// Maximum number of products in a launch: queries, keys and values.
const MAX_PRODUCTS: usize = 3;

/// The first ops of a program, lowered together.
#[derive(Debug)]
pub(crate) enum Step<'a> {
    /// A norm, with the addition before it and preparations for the op after it.
    Norm(FusedNorm<'a>),
    /// Attention.
    Attention {
        /// The op.
        op: &'a Attention<Tensor>,
        /// Whether the next op reads the result in Q8 blocks.
        quantize: bool,
    },
    /// RoPE of queries and of keys, and the store of keys and values.
    RopeStore(RopeStore<'a>),
    /// Products of one token with two or three matrices of one format.
    Products(Vec<&'a MatMul<Tensor>>),
    /// An op alone.
    Single(&'a Op),
}

/// A norm and what is fused with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FusedNorm<'a> {
    /// The norm.
    pub(crate) norm: &'a Norm<Tensor>,
    /// The addition that computes the norm's input.
    pub(crate) add: Option<&'a Add<Tensor>>,
    /// The op that reads the result.
    pub(crate) reader: NormReader<'a>,
}

/// The op after a norm, for which the norm may quantise its result.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NormReader<'a> {
    /// A product.
    MatMul(&'a MatMul<Tensor>),
    /// A feed-forward block.
    SparseFfn(&'a SparseFfn<Tensor>),
    /// Experts, behind their router, which reads the result too.
    Experts(&'a SparseFfn<Tensor>),
    /// Another op, or an op that does not read the result, or the norm cannot be fused.
    Other,
}

/// RoPE of queries and of keys by the same angles, and the store of these keys with their values.
#[derive(Clone, Copy, Debug)]
pub struct RopeStore<'a> {
    /// RoPE of the queries.
    pub q: &'a Rope<Tensor>,
    /// RoPE of the keys.
    pub k: &'a Rope<Tensor>,
    /// The store.
    pub store: &'a StoreKv<Tensor>,
}

impl<'a> Step<'a> {
    /// The longest fusable sequence that `ops` begins with; `None` without ops.
    pub(crate) fn first(ops: &'a [Op], rules: &impl Emit) -> Result<Option<Step<'a>>> {
        Ok(Some(match ops {
            [Op::Add(add), Op::Norm(norm), rest @ ..] if is_sum_normed(add, norm, rules)? => {
                Step::Norm(FusedNorm::new(norm, Some(add), rest, rules)?)
            }
            [Op::Norm(norm), rest @ ..] => Step::Norm(FusedNorm::new(norm, None, rest, rules)?),
            [Op::Attention(op), rest @ ..] => {
                Step::Attention { op, quantize: reads_quantized(rest, &op.y) }
            }
            [Op::Rope(q), Op::Rope(k), Op::StoreKv(store), ..]
                if RopeStore { q, k, store }.is_fusable(rules) =>
            {
                Step::RopeStore(RopeStore { q, k, store })
            }
            [Op::MatMul(first), ..] => match products(first, ops, rules)? {
                together if together.len() > 1 => Step::Products(together),
                _ => Step::Single(&ops[0]),
            },
            [op, ..] => Step::Single(op),
            [] => return Ok(None),
        }))
    }

    /// The number of ops that the step lowers.
    pub(crate) fn n_ops(&self) -> usize {
        match self {
            Step::Norm(fused) => 1 + usize::from(fused.add.is_some()),
            Step::Attention { .. } | Step::Single(_) => 1,
            Step::RopeStore(_) => 3,
            Step::Products(ops) => ops.len(),
        }
    }
}

fn is_sum_normed(add: &Add<Tensor>, norm: &Norm<Tensor>, rules: &impl Emit) -> Result<bool> {
    Ok(is_same(&add.x, &norm.x) && rules.fuses_norm(norm, Some(&add.a))?)
}

impl<'a> FusedNorm<'a> {
    fn new(
        norm: &'a Norm<Tensor>,
        add: Option<&'a Add<Tensor>>,
        rest: &'a [Op],
        rules: &impl Emit,
    ) -> Result<FusedNorm<'a>> {
        // A post may come first: it reads the norm's result and does not change it.
        let mut next = rest.iter().filter(|op| !matches!(op, Op::Post(_)));
        let reads = |x: &Tensor| is_same(x, &norm.y);
        let reader = match next.next() {
            Some(Op::MatMul(op)) if reads(&op.x) => NormReader::MatMul(op),
            Some(Op::SparseFfn(op)) if reads(&op.x) => NormReader::SparseFfn(op),
            Some(Op::Route(op)) if reads(&op.x) && keeps_workspace(op) => match next.next() {
                Some(Op::SparseFfn(op)) if reads(&op.x) => NormReader::Experts(op),
                Some(_) | None => NormReader::Other,
            },
            Some(_) | None => NormReader::Other,
        };
        let fused = rules.fuses_norm(norm, add.map(|add| &add.a))?;
        Ok(FusedNorm { norm, add, reader: if fused { reader } else { NormReader::Other } })
    }
}

/// The weight that `ops` read first, if all ops before it are short, and all its rows are read.
pub(crate) fn next_weight(ops: &[Op]) -> Option<&Tensor> {
    let is_short = |op: &&Op| {
        use Op::{Add, Attention, Norm, Post, Rope, StoreKv};
        matches!(op, Add(_) | Attention(_) | Norm(_) | Post(_) | Rope(_) | StoreKv(_))
    };
    let next = ops.iter().find(|op| !is_short(op))?;
    if let Op::MatMul(op) = next {
        return Some(&op.w);
    }
    let Op::SparseFfn(op) = next else { return None };
    let whole = matches!(op.rows, Rows::All) && op.experts.is_none();
    whole.then(|| op.gate.as_ref().unwrap_or(&op.up))
}

/// Whether a router leaves alone what an earlier launch prepared in the workspace: one that quantises
/// its x does so in place of what may be there.
pub(crate) fn keeps_workspace(op: &Route<Tensor>) -> bool {
    !takes_q8(op.w.desc().format)
}

/// Whether the next op is a product that reads `x` in Q8 blocks.
fn reads_quantized(rest: &[Op], x: &Tensor) -> bool {
    match rest.first() {
        Some(Op::MatMul(op)) => is_same(&op.x, x) && takes_q8(op.w.desc().format),
        Some(Op::HeadMatMul(op)) => is_same(&op.x, x) && takes_q8(op.w.desc().format),
        _ => false,
    }
}

/// Whether products with weights of this format take their activations in Q8 blocks.
#[must_use]
pub fn takes_q8(format: Format) -> bool {
    format.activation() == Activation::Q8
}

/// The products at the beginning of `ops` that one launch can compute: they have one token, the
/// same x, weights of one format, and results that do not overlap.
fn products<'a>(
    first: &'a MatMul<Tensor>,
    ops: &'a [Op],
    rules: &impl Emit,
) -> Result<Vec<&'a MatMul<Tensor>>> {
    let mut together = vec![first];
    if first.x.desc().n_rows != 1 || !rules.fuses_product(first)? {
        return Ok(together);
    }
    for op in ops.iter().take(MAX_PRODUCTS).skip(1) {
        let Op::MatMul(op) = op else { break };
        let same = is_same(&op.x, &first.x) && op.w.desc().format == first.w.desc().format;
        let written = together.iter().any(|other| other.y.overlaps(&op.y));
        if !same || written || op.y.overlaps(&op.x) || !rules.fuses_product(op)? {
            break;
        }
        together.push(op);
    }
    Ok(together)
}

/// The pairs of values that RoPE rotates in a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RopePairs {
    /// Number of pairs.
    pub n: usize,
    /// Distance between the first values of two pairs.
    pub step: usize,
    /// Distance between the two values of a pair.
    pub distance: usize,
}

impl RopePairs {
    /// The pairs of an op.
    #[must_use]
    pub fn of<T: Operand>(op: &Rope<T>) -> RopePairs {
        RopePairs::new(op.pairing, op.n_rot / 2)
    }

    /// `n` pairs.
    #[must_use]
    pub fn new(pairing: Pairing, n: usize) -> RopePairs {
        let (step, distance) = match pairing {
            Pairing::Adjacent => (2, 1),
            Pairing::Halves => (1, n),
        };
        RopePairs { n, step, distance }
    }
}

impl RopeStore<'_> {
    /// Number of key heads.
    #[must_use]
    pub fn n_head_kv(&self) -> usize {
        self.k.x.desc().n_cols / self.k.d_head
    }

    /// Size of a value head; 0 if values are a part of the keys.
    #[must_use]
    pub fn d_value(&self) -> usize {
        self.v_cols() / self.n_head_kv().max(1)
    }

    /// Width of the values of all heads.
    #[must_use]
    pub fn v_cols(&self) -> usize {
        self.store.v.as_ref().map_or(0, |v| v.desc().n_cols)
    }

    /// Whether one launch can run all three ops: `store` stores the keys that `k` rotates, both
    /// rotations are the same, and the device stores whole heads of these sizes.
    fn is_fusable(&self, rules: &impl Emit) -> bool {
        let RopeStore { q, k, store } = self;
        let words = &q.batch.words;
        let same_step = is_same(words, &k.batch.words) && is_same(words, &store.batch.words);
        let rotation =
            |op: &Rope<Tensor>| (op.d_head, op.first, op.n_rot, op.pairing, op.scale.to_bits());
        let same_rotation = rotation(q) == rotation(k) && is_same(&q.freqs, &k.freqs);
        let whole = self.d_value() * self.n_head_kv() == self.v_cols();
        let apart = !q.x.overlaps(&k.x) && store.v.iter().all(|v| !q.x.overlaps(v));
        same_step
            && same_rotation
            && whole
            && apart
            && is_same(&k.x, &store.k)
            && q.x.desc().n_rows == k.x.desc().n_rows
            && rules.stores_heads(self)
    }
}
