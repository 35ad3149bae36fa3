//! Cases of whole programs: order of work, replay with other batches, padding tokens.

use std::time::Instant;

use hal::format::Format;
use hal::op::{
    Add, Attention, Gather, GetRows, HiddenActivation, MatMul, Norm, NormKind, Pairing, Predict,
    Rope, SparseFfn, StoreKv,
};
use hal::{
    Batch, BatchFacts, BatchSeq, BatchShape, BatchToken, KvCache, Op, Result, Rows, Slot, Tensor,
};

use super::ffn::{DownLayout, Spec, build};
use crate::Case;
use crate::rig::{Rig, u32_bytes};

const SHAPE: BatchShape = BatchShape { max_tokens: 8, max_seqs: 2, max_blocks: 2 };
const N_BLOCKS: usize = 4;
const N_VOCAB: usize = 67;
const N_EMBD: usize = 96;
const N_HEAD: usize = 3;

pub(super) fn cases() -> Vec<Case> {
    let rounded = "repeated rounding of activations may amplify a difference";
    let mut cases = vec![
        Case::new("Program/F32/steps", |rig| run_steps(rig, Format::F32)),
        Case::new("Program/Q8_0/steps", |rig| run_steps(rig, Format::Q8_0))
            .with_tolerance(1e-4, rounded),
    ];
    cases.push(Case::new("Program/predicted-rows", run_predicted));
    cases.push(Case::new("Program/in-order", run_in_order));
    cases.push(Case::new("Program/timed", run_timed));
    cases
}

/// A layer of a language model, recorded once and replayed for a prompt, for a step of two
/// sequences, for a single token, and for another prompt.
fn run_steps(rig: &mut Rig, format: Format) -> Result<()> {
    let batch = rig.device.batch(SHAPE)?;
    let cache = rig.device.kv_cache(N_BLOCKS, KvCache::both(N_EMBD), KvCache::both(Format::F16))?;
    let logits = rig.output(SHAPE.max_tokens, N_VOCAB)?;
    let ops = layer_ops(rig, format, &batch, &cache, &logits)?;
    let program = rig.program(ops)?;
    let token = |id, seq, pos, output| BatchToken { id, seq, pos, output };
    let seq = |blocks: &[u32], len| BatchSeq { blocks: blocks.to_vec(), len };
    let prompt = |id: u32| (0..5).map(move |pos| token((id + 7 * pos) % 67, 0, pos, pos == 4));
    let steps = [
        BatchFacts { tokens: prompt(1).collect(), seqs: vec![seq(&[2], 5)] },
        BatchFacts {
            tokens: vec![token(66, 0, 5, true), token(3, 1, 0, false), token(4, 1, 1, true)],
            seqs: vec![seq(&[2], 6), seq(&[0, 3], 2)],
        },
        BatchFacts { tokens: vec![token(9, 0, 2, true)], seqs: vec![seq(&[0, 3], 3)] },
        BatchFacts { tokens: prompt(30).collect(), seqs: vec![seq(&[1], 5)] },
    ];
    for (i, facts) in steps.iter().enumerate() {
        let words = facts.encode(&SHAPE, N_BLOCKS, N_VOCAB)?;
        rig.queue.write(&batch.words, &u32_bytes(&words))?;
        rig.queue.replay(&program)?.wait()?;
        rig.watch(&format!("logits of step {i}"), &logits.rows(0..facts.n_out()))?;
    }
    Ok(())
}

/// The layer of [`run_steps`] in a timed run.
fn run_timed(rig: &mut Rig) -> Result<()> {
    let batch = rig.device.batch(SHAPE)?;
    let cache = rig.device.kv_cache(N_BLOCKS, KvCache::both(N_EMBD), KvCache::both(Format::F16))?;
    let logits = rig.output(SHAPE.max_tokens, N_VOCAB)?;
    let ops = layer_ops(rig, Format::F32, &batch, &cache, &logits)?;
    let mut recorder = rig.device.record("timed");
    let mut n_parts = 1;
    for (i, op) in ops.into_iter().enumerate() {
        if i % 4 == 3 {
            recorder.begin_part();
            n_parts += 1;
        }
        recorder.push(op)?;
    }
    // A part without ops.
    recorder.begin_part();
    let program = recorder.finish()?;
    let token = |id, pos, output| BatchToken { id, seq: 0, pos, output };
    let tokens = vec![token(5, 0, false), token(1, 1, true), token(60, 2, true)];
    let facts = BatchFacts { tokens, seqs: vec![BatchSeq { blocks: vec![1], len: 3 }] };
    let words = facts.encode(&SHAPE, N_BLOCKS, N_VOCAB)?;
    rig.queue.write(&batch.words, &u32_bytes(&words))?;
    let began = Instant::now();
    let times = rig.queue.replay_timed(&program)?.times()?;
    rig.check_times(&times, began, n_parts);
    rig.watch("logits", &logits.rows(0..facts.n_out()))
}

fn layer_ops(
    rig: &mut Rig,
    format: Format,
    batch: &Batch<Tensor>,
    cache: &KvCache<Tensor>,
    logits: &Tensor,
) -> Result<Vec<Op>> {
    let n = SHAPE.max_tokens;
    let d_head = N_EMBD / N_HEAD;
    let [x, normed, q, k, v, attended, projected, chosen] =
        [0; 8].map(|_| rig.device.alloc_f32("activations", n, N_EMBD));
    let (x, normed, q, k, v, attended, projected, chosen) =
        (x?, normed?, q?, k?, v?, attended?, projected?, chosen?);
    let table = rig.weight(N_VOCAB, N_EMBD, format)?;
    let freqs: Vec<f32> = (0..d_head / 2).map(|j| 0.5f32.powi(j as i32)).collect();
    let freqs = rig.tensor(1, d_head / 2, &freqs)?;
    let norm = |x: &Tensor, y: &Tensor| -> Op {
        let (x, y) = (x.clone(), y.clone());
        Norm { x, weight: None, bias: None, y, kind: NormKind::Rms, eps: 1e-5, width: N_EMBD }
            .into()
    };
    let rope = |x: &Tensor| -> Op {
        let (freqs, batch, x) = (freqs.clone(), batch.clone(), x.clone());
        let pairing = Pairing::Halves;
        Rope { freqs, batch, x, d_head, first: 0, n_rot: d_head, pairing, scale: 1.0 }.into()
    };
    let mut ops: Vec<Op> = Vec::new();
    let embed = GetRows { table: table.clone(), batch: batch.clone(), y: x.clone(), scale: 4.0 };
    ops.extend([embed.into(), norm(&x, &normed)]);
    for y in [&q, &k, &v] {
        let w = rig.weight(N_EMBD, N_EMBD, format)?;
        ops.push(MatMul { w, x: normed.clone(), bias: None, y: y.clone() }.into());
    }
    ops.extend([rope(&q), rope(&k)]);
    ops.push(StoreKv { k, v: Some(v), batch: batch.clone(), cache: cache.clone().into() }.into());
    ops.push(
        Attention {
            q,
            cache: cache.clone().into(),
            batch: batch.clone(),
            slopes: None,
            sinks: None,
            selected: None,
            y: attended.clone(),
            n_head: N_HEAD,
            n_head_kv: N_HEAD,
            scale: 1.0 / (d_head as f32).sqrt(),
            window: None,
            softcap: 0.0,
        }
        .into(),
    );
    let w = rig.weight(N_EMBD, N_EMBD, format)?;
    ops.push(MatMul { w, x: attended, bias: None, y: projected.clone() }.into());
    ops.extend([Add { a: projected, x: x.clone() }.into(), norm(&x, &normed)]);
    let spec = Spec { n_tokens: n, accumulate: true, ..Spec::new(format, DownLayout::Transposed) };
    let ffn = build(rig, &spec)?;
    let ffn = resize_block(rig, ffn, format, N_EMBD, &normed, &x)?;
    ops.push(ffn.into());
    let gather = Gather { x, batch: batch.clone(), y: chosen.clone() };
    ops.extend([gather.into(), norm(&chosen, &normed)]);
    ops.push(MatMul { w: table, x: normed, bias: None, y: logits.clone() }.into());
    Ok(ops)
}

/// Changes a block to read `x`, write `y`, and have matrices of the matching sizes.
pub(super) fn resize_block(
    rig: &mut Rig,
    op: SparseFfn<Tensor>,
    format: Format,
    n_embd: usize,
    x: &Tensor,
    y: &Tensor,
) -> Result<SparseFfn<Tensor>> {
    // A whole number of blocks.
    let n_ff = if format.block_values() > 32 { 256 } else { 160 };
    let gate = rig.weight(n_ff, n_embd, format)?;
    let up = rig.weight(n_ff, n_embd, format)?;
    let source = rig.matrix(n_embd, n_ff, format)?;
    let pack = hal::PackDesc { transpose: true, ..hal::PackDesc::whole(source.desc()) };
    let down = rig.device.import("down", &pack, &source)?;
    let hits = None;
    Ok(SparseFfn { gate: Some(gate), up, down, x: x.clone(), y: y.clone(), hits, ..op })
}

/// The predictor's row list stays on the device, where the block uses it.
fn run_predicted(rig: &mut Rig) -> Result<()> {
    let spec = Spec { n_tokens: 3, ..Spec::new(Format::F32, DownLayout::Transposed) };
    let op = build(rig, &spec)?;
    let (n_rows, rank) = (spec.n_rows(), 8);
    let slots: Vec<u32> = (0..n_rows as u32).map(|id| Slot::Resident(id).encode()).collect();
    let slots = rig.words(1, n_rows, &slots)?;
    let set = rig.device.row_set(n_rows, 3)?;
    let predict = Predict {
        x: op.x.clone(),
        fc1: Some(rig.weight(rank, spec.n_embd(), Format::F32)?),
        fc2: rig.weight(n_rows, rank, Format::F32)?,
        bias: None,
        slots,
        resident: set.clone(),
        absent: None,
        threshold: 0.1,
        hidden: HiddenActivation::Relu,
    };
    let op = SparseFfn { rows: Rows::Active(set), ..op };
    rig.run([predict.into(), op.clone().into()])?;
    rig.watch("y", &op.y)?;
    rig.watch("active", &op.active)
}

/// Replays, writes and copies take effect in the order of submission, whether the host waits or
/// not.
fn run_in_order(rig: &mut Rig) -> Result<()> {
    let a = rig.input(3, 33)?;
    let x = rig.output_from(3, 33, &[1.0; 99])?;
    let copy = rig.output(3, 33)?;
    let program = rig.program([Add { a: a.clone(), x: x.clone() }.into()])?;
    let first = rig.queue.replay(&program)?;
    let second = rig.queue.replay(&program)?;
    rig.queue.copy_rows(&x, &copy)?;
    let third = rig.queue.replay(&program)?;
    let new = rig.rng.floats(99);
    rig.queue.write(&a, &crate::rig::f32_bytes(&new))?;
    let fourth = rig.queue.replay(&program)?;
    for run in [first, second, third, fourth] {
        run.wait()?;
    }
    rig.queue.finish()?;
    rig.watch_bits("copy", &copy)?;
    rig.watch_bits("x", &x)
}
