//! The ops of a layer give the same bits in one program as in separate programs. In one program, a
//! device may fuse neighbouring ops or reuse intermediate results.

use hal::format::Format;
use hal::op::{
    Add, Attention, MatMul, Norm, NormKind, Pairing, Rope, Route, Scoring, SparseFfn, StoreKv,
};
use hal::{Batch, BatchShape, KvCache, Op, Operand, Result, Tensor};

use super::WIDEST;
use super::ffn::{DownLayout, Spec, build};
use super::ffn_experts::Experts;
use super::program::resize_block;
use crate::Case;
use crate::rig::{Rig, f32_bytes};

const D_HEAD: usize = 64;

pub(super) fn cases() -> Vec<Case> {
    let rounded = "repeated rounding of activations may amplify a difference";
    let mut cases = Vec::new();
    // 320 is a whole number of blocks of 32, but not of 256.
    for (format, kv, n_embd) in [
        (Format::F32, Format::F32, 320),
        (Format::F16, Format::Q8_0, 320),
        (Format::Q8_0, Format::F16, 320),
        (Format::Q4_0, Format::BF16, 320),
        (Format::Q4_K, Format::F16, WIDEST),
        (Format::Q6_K, Format::F16, WIDEST),
    ] {
        for n_tokens in [1, 3, 20] {
            let name = format!("Program/neighbours/{format}+{kv}/t{n_tokens}");
            let case = Case::new(name, move |rig| neighbours(rig, format, kv, [n_embd, n_tokens]));
            cases.push(match (format, kv) {
                (Format::F32, Format::F32) => case,
                (Format::F32 | Format::F16, _) => {
                    case.with_tolerance(1e-4, "keys and values in the cache are rounded")
                }
                _ => case.with_tolerance(2e-3, rounded),
            });
        }
    }
    for format in [Format::F16, Format::Q4_0, Format::Q4_K] {
        for router in [Format::F32, Format::Q8_0] {
            for n_tokens in [1, 3, 20] {
                let name = format!("Program/experts/{format}+{router}/t{n_tokens}");
                let body = move |rig: &mut Rig| routed(rig, format, router, n_tokens);
                cases.push(Case::new(name, body).with_tolerance(2e-3, rounded));
            }
        }
    }
    cases
}

/// A norm, a router and its experts, which both read the norm's result.
fn routed(rig: &mut Rig, format: Format, router: Format, n: usize) -> Result<()> {
    let (n_expert, n_embd) = (6, WIDEST);
    let mut values = Values::default();
    let mut value = |rig: &mut Rig, name, cols| values.add(rig, name, n, cols);
    let [before, x] = [value(rig, "before", n_embd)?, value(rig, "x", n_embd)?];
    let normed = value(rig, "normed", n_embd)?;
    let weights = value(rig, "weights of the experts", n_expert)?;
    let spec = Spec {
        n_tokens: n,
        widest: true,
        hits: n == 3,
        experts: Some(Experts::mixed(n_expert, 2, 64)),
        ..Spec::new(format, DownLayout::Across)
    };
    let y = value(rig, "y", spec.n_out())?;
    let (weight, kind) = (Some(rig.input(1, n_embd)?), NormKind::Rms);
    let norm = Norm {
        x: x.clone(),
        weight,
        bias: None,
        y: normed.clone(),
        kind,
        eps: 1e-5,
        width: n_embd,
    };
    let route = Route {
        w: rig.weight(n_expert, n_embd, router)?,
        bias: None,
        selection: None,
        groups: None,
        chosen: None,
        x: normed.clone(),
        weights: weights.clone(),
        n_used: 2,
        n_per_chunk: 1,
        n_groups: [1, 1],
        scoring: Scoring::Softmax,
        renormalise: true,
        scale: 1.0,
    };
    let experts = build(rig, &spec)?;
    let experts = SparseFfn { x: normed, y, expert_weights: Some(weights), ..experts };
    let hits = experts.hits.clone();
    let ops = vec![Add { a: before, x }.into(), norm.into(), route.into(), experts.into()];
    compare(rig, ops, &values)?;
    // Counted in both runs.
    hits.map_or(Ok(()), |hits| rig.watch("hits", &hits))
}

/// Tensors of a layer, with their initial values.
#[derive(Default)]
pub(super) struct Values {
    tensors: Vec<(&'static str, Tensor, Vec<f32>)>,
}

impl Values {
    pub(super) fn add(
        &mut self,
        rig: &mut Rig,
        name: &'static str,
        n: usize,
        cols: usize,
    ) -> Result<Tensor> {
        let values = rig.rng.floats(n * cols);
        let tensor = rig.output_from(n, cols, &values)?;
        self.tensors.push((name, tensor.clone(), values));
        Ok(tensor)
    }

    /// Restores the initial values.
    fn reset(&self, rig: &mut Rig) -> Result<()> {
        for (_, tensor, values) in &self.tensors {
            rig.queue.write(tensor, &f32_bytes(values))?;
        }
        Ok(())
    }

    fn read(&self, rig: &mut Rig) -> Result<Vec<Vec<f32>>> {
        self.tensors.iter().map(|(_, tensor, _)| rig.read(tensor)).collect()
    }
}

fn neighbours(rig: &mut Rig, format: Format, kv: Format, [n_embd, n]: [usize; 2]) -> Result<()> {
    let shape = BatchShape { max_tokens: n, max_seqs: 1, max_blocks: 3 };
    let facts = rig.facts(&[(n + 40, n)], 4);
    let batch = rig.batch(shape, &facts, 4, 1 << 20)?;
    let cache = rig.filled_cache(&facts, 4, KvCache::both(D_HEAD), KvCache::both(kv))?;
    let mut values = Values::default();
    let ops = layer(rig, format, (&batch, &cache), [n_embd, n], &mut values)?;
    compare(rig, ops, &values)
}

/// Runs `ops`, which write `values`, in one program and in separate programs.
pub(super) fn compare(rig: &mut Rig, ops: Vec<Op>, values: &Values) -> Result<()> {
    rig.run(ops.clone())?;
    let together = values.read(rig)?;
    for ((name, tensor, _), _) in values.tensors.iter().zip(&together) {
        rig.watch(name, tensor)?;
    }
    values.reset(rig)?;
    for op in ops {
        rig.run([op])?;
    }
    let separate = values.read(rig)?;
    let pairs = together.iter().zip(&separate);
    for ((name, _, _), (together, separate)) in values.tensors.iter().zip(pairs) {
        rig.same_bits(name, together, separate);
    }
    Ok(())
}

fn layer(
    rig: &mut Rig,
    format: Format,
    (batch, cache): (&Batch<Tensor>, &KvCache<Tensor>),
    [n_embd, n]: [usize; 2],
    values: &mut Values,
) -> Result<Vec<Op>> {
    let n_head = n_embd / D_HEAD;
    let mut value = |rig: &mut Rig, name, cols| values.add(rig, name, n, cols);
    let [before, x] = [value(rig, "before", n_embd)?, value(rig, "x", n_embd)?];
    let [first, second] =
        [value(rig, "first normed", n_embd)?, value(rig, "second normed", n_embd)?];
    let q = value(rig, "q", n_embd)?;
    let [k, v] = [value(rig, "k", D_HEAD)?, value(rig, "v", D_HEAD)?];
    let attended = value(rig, "attended", n_embd)?;
    let [projected, y] = [value(rig, "projected", n_embd)?, value(rig, "y", n_embd)?];
    let last = value(rig, "last normed", n_embd)?;
    let freqs: Vec<f32> = (0..D_HEAD / 2).map(|j| 0.7f32.powi(j as i32)).collect();
    let freqs = rig.tensor(1, D_HEAD / 2, &freqs)?;
    let norm = |rig: &mut Rig, y: &Tensor, kind| -> Result<Op> {
        let weight = Some(rig.input(1, n_embd)?);
        let bias = if kind == NormKind::Layer { Some(rig.input(1, n_embd)?) } else { None };
        let (x, y) = (x.clone(), y.clone());
        Ok(Norm { x, weight, bias, y, kind, eps: 1e-5, width: n_embd }.into())
    };
    let add = |a: &Tensor| -> Op { Add { a: a.clone(), x: x.clone() }.into() };
    let rope = |x: &Tensor| -> Op {
        let (freqs, batch, x) = (freqs.clone(), batch.clone(), x.clone());
        let pairing = Pairing::Halves;
        Rope { freqs, batch, x, d_head: D_HEAD, first: 0, n_rot: D_HEAD, pairing, scale: 1.0 }
            .into()
    };
    let mut ops: Vec<Op> = vec![add(&before), norm(rig, &first, NormKind::Rms)?];
    for to in [&q, &k, &v] {
        let (n_rows, bias) = (to.desc().n_cols, rig.input(1, to.desc().n_cols)?);
        let (w, x, y) = (rig.weight(n_rows, n_embd, format)?, first.clone(), to.clone());
        ops.push(MatMul { w, x, bias: Some(bias), y }.into());
    }
    ops.extend([rope(&q), rope(&k)]);
    let stored = StoreKv { k, v: Some(v), batch: batch.clone(), cache: cache.clone().into() };
    ops.push(stored.into());
    let attention = Attention {
        q,
        cache: cache.clone().into(),
        batch: batch.clone(),
        slopes: None,
        sinks: None,
        selected: None,
        y: attended.clone(),
        n_head,
        n_head_kv: 1,
        scale: 0.125,
        window: None,
        softcap: 0.0,
    };
    let w = rig.weight(n_embd, n_embd, format)?;
    ops.extend([
        attention.into(),
        MatMul { w, x: attended, bias: None, y: projected.clone() }.into(),
        add(&projected),
        norm(rig, &second, NormKind::Layer)?,
    ]);
    let spec = Spec { n_tokens: n, ..Spec::new(format, DownLayout::Transposed) };
    let ffn = build(rig, &spec)?;
    ops.push(resize_block(rig, ffn, format, n_embd, &second, &y)?.into());
    ops.extend([add(&y), norm(rig, &last, NormKind::Rms)?]);
    Ok(ops)
}
