//! Cases with several sequences: cache blocks that sequences share, recurrent states that continue
//! over several steps, snapshots of states.

use std::ops::Range;

use hal::format::Format;
use hal::op::{
    AddPositions, Attention, DecayCurve, GateActivation, GatedDelta, Gather, GetRows, HeadMapping,
    Mul, Pairing, Rope, ShortConv, SsmScan, StoreKv, Window,
};
use hal::{
    Batch, BatchFacts, BatchSeq, BatchShape, BatchToken, KV_BLOCK, KvCache, Op, Operand, Result,
    Tensor,
};

use crate::Case;
use crate::rig::{POISON, Rig};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for layer in [Layer::Conv, Layer::Delta, Layer::Scan] {
        let mut case = |what: &str, body: fn(&mut Rig, Layer) -> Result<()>| {
            cases.push(Case::new(format!("Sequences/{layer:?}/{what}"), move |rig| {
                body(rig, layer)
            }));
        };
        case("interleaved", run_interleaved);
        case("padded", run_padded);
        case("step-by-step", run_step_by_step);
        case("snapshot", run_snapshot);
    }
    for format in [Format::F32, Format::F16] {
        let rounded = "keys and values in the cache are rounded";
        let name = |what: &str| format!("Sequences/{what}/{format}");
        let tolerance = if format == Format::F32 { 1e-7 } else { 1e-5 };
        for window in [None, Some(Window::Sliding(40))] {
            let suffix = if window.is_some() { "/window" } else { "" };
            let case = Case::new(name("shared-blocks") + suffix, move |rig: &mut Rig| {
                run_shared_blocks(rig, format, window)
            });
            cases.push(case.with_tolerance(tolerance, rounded));
        }
        let case = Case::new(name("attention-step"), move |rig: &mut Rig| run_mixed(rig, format));
        cases.push(case.with_tolerance(tolerance, rounded));
    }
    cases
}

/// A recurrent layer whose sizes are not multiples of a SIMD width.
#[derive(Clone, Copy, Debug)]
enum Layer {
    Conv,
    Delta,
    Scan,
}

const N_HEAD: usize = 6;
const N_HEAD_K: usize = 2;
const D_K: usize = 24;
const D_V: usize = 21;
const N_GROUP: usize = 3;
const D_STATE: usize = 37;
const KERNEL_SIZE: usize = 4;

impl Layer {
    /// Columns of the per-token inputs.
    fn inputs(self) -> &'static [usize] {
        match self {
            Layer::Conv => &[N_HEAD * D_V],
            Layer::Delta => &[N_HEAD_K * D_K, N_HEAD_K * D_K, N_HEAD * D_V, N_HEAD, N_HEAD],
            Layer::Scan => &[N_HEAD * D_V, N_HEAD, N_GROUP * D_STATE, N_GROUP * D_STATE],
        }
    }

    fn n_out(self) -> usize {
        N_HEAD * D_V
    }

    fn n_state(self) -> usize {
        match self {
            Layer::Conv => (KERNEL_SIZE - 1) * N_HEAD * D_V,
            Layer::Delta => N_HEAD * D_K * D_V,
            Layer::Scan => N_HEAD * D_V * D_STATE,
        }
    }
}

/// A layer with the inputs of some tokens and the states of some sequences.
struct Recurrence {
    layer: Layer,
    inputs: Vec<Tensor>,
    /// Weights of the layer, in the order of the op's operands.
    weights: Vec<Tensor>,
    state: Tensor,
    y: Tensor,
}

impl Recurrence {
    /// The states of the first `n_known` sequences are random; all others are poison.
    fn new(
        rig: &mut Rig,
        layer: Layer,
        n_tokens: usize,
        [n_states, n_known]: [usize; 2],
    ) -> Result<Recurrence> {
        let mut inputs = Vec::new();
        for &n_cols in layer.inputs() {
            inputs.push(rig.input(n_tokens, n_cols)?);
        }
        let rates: Vec<f32> = rig.rng.floats(N_HEAD).iter().map(|v| -0.1 - v.abs()).collect();
        let weights = match layer {
            Layer::Conv => vec![rig.input(N_HEAD * D_V, KERNEL_SIZE)?, rig.input(1, N_HEAD * D_V)?],
            Layer::Delta => vec![rig.input(1, N_HEAD)?, rig.tensor(1, N_HEAD, &rates)?],
            Layer::Scan => {
                let rates = rig.tensor(1, N_HEAD, &rates)?;
                vec![rig.input(1, N_HEAD)?, rates, rig.input(1, N_HEAD)?]
            }
        };
        if let Layer::Delta = layer {
            // Keys of at most unit length, as after a norm, so that the state stays bounded.
            let shrink = 1.0 / (D_K as f32).sqrt();
            let keys: Vec<f32> = rig.read(&inputs[1])?.iter().map(|v| v * shrink).collect();
            inputs[1] = rig.tensor(n_tokens, N_HEAD_K * D_K, &keys)?;
        }
        let mut states = rig.rng.floats(n_states * layer.n_state());
        states[n_known * layer.n_state()..].fill(POISON);
        let state = rig.output_from(n_states, layer.n_state(), &states)?;
        let y = rig.output(n_tokens, layer.n_out())?;
        Ok(Recurrence { layer, inputs, weights, state, y })
    }

    /// The op over rows `rows` of the inputs.
    fn op(&self, rows: Range<usize>, batch: &Batch<Tensor>) -> Op {
        let (batch, state, y) = (batch.clone(), self.state.clone(), self.y.rows(rows.clone()));
        let input = |i: usize| self.inputs[i].rows(rows.clone());
        let weight = |i: usize| self.weights[i].clone();
        match self.layer {
            Layer::Conv => {
                let (weight, bias) = (weight(0), Some(weight(1)));
                ShortConv { x: input(0), weight, bias, batch, state, y, silu: true }.into()
            }
            Layer::Delta => GatedDelta {
                q: input(0),
                k: input(1),
                v: input(2),
                decay: input(3),
                beta: input(4),
                dt_bias: weight(0),
                a: weight(1),
                batch,
                state,
                y,
                n_head_k: N_HEAD_K,
                n_head_v: N_HEAD,
                heads: HeadMapping::Grouped,
                curve: DecayCurve::Softplus,
                scale: 0.2,
            }
            .into(),
            Layer::Scan => SsmScan {
                x: input(0),
                dt: input(1),
                dt_bias: weight(0),
                a: weight(1),
                b: input(2),
                c: input(3),
                d: weight(2),
                batch,
                state,
                y,
                n_group: N_GROUP,
            }
            .into(),
        }
    }

    /// Runs the op over `rows`; `tokens` has the sequence and position of each row.
    fn run(
        &self,
        rig: &mut Rig,
        rows: Range<usize>,
        max_seqs: usize,
        tokens: &[(u32, u32)],
    ) -> Result<()> {
        let n_seqs = tokens.iter().map(|(seq, _)| *seq as usize + 1).max().unwrap_or(0);
        let batch = batch(rig, rows.len(), [max_seqs, n_seqs], tokens)?;
        rig.run([self.op(rows, &batch)])
    }
}

/// A batch of tokens, given as (sequence, position) in order, with a cache block for each sequence.
fn batch(
    rig: &mut Rig,
    max_tokens: usize,
    [max_seqs, n_seqs]: [usize; 2],
    tokens: &[(u32, u32)],
) -> Result<Batch<Tensor>> {
    let token = |&(seq, pos)| BatchToken { id: 0, seq, pos, output: false };
    let seq = |s| BatchSeq { blocks: vec![s as u32], len: KV_BLOCK as u32 };
    let facts = BatchFacts {
        tokens: tokens.iter().map(token).collect(),
        seqs: (0..n_seqs).map(seq).collect(),
    };
    rig.batch(BatchShape { max_tokens, max_seqs, max_blocks: 1 }, &facts, n_seqs, 1)
}

/// Four sequences: two continue, one begins, one has no token. The other rows of the state tensor
/// are unused. The tokens are in two different orders.
fn run_interleaved(rig: &mut Rig, layer: Layer) -> Result<()> {
    let orders: [&[(u32, u32)]; 2] = [
        &[(3, 9), (0, 5), (1, 0), (3, 10), (0, 6), (0, 7), (1, 1), (3, 11), (1, 2)],
        &[(1, 0), (1, 1), (1, 2), (0, 5), (3, 9), (0, 6), (0, 7), (3, 10), (3, 11)],
    ];
    for tokens in orders {
        let recurrence = Recurrence::new(rig, layer, tokens.len(), [7, 5])?;
        recurrence.run(rig, 0..tokens.len(), 5, tokens)?;
        rig.watch("y", &recurrence.y)?;
        rig.watch("states", &recurrence.state.rows(0..2))?;
        rig.watch_bits("an absent sequence", &recurrence.state.rows(2..3))?;
        rig.watch("state", &recurrence.state.rows(3..4))?;
        rig.watch_bits("unused rows", &recurrence.state.rows(4..7))?;
    }
    Ok(())
}

/// Padding tokens change nothing, whatever their rows contain.
fn run_padded(rig: &mut Rig, layer: Layer) -> Result<()> {
    let tokens = [(1, 0), (0, 3), (1, 1)];
    let mut recurrence = Recurrence::new(rig, layer, 8, [3, 2])?;
    for input in &mut recurrence.inputs {
        let n_cols = input.desc().n_cols;
        let mut values = rig.read(input)?;
        values[tokens.len() * n_cols..].fill(POISON);
        *input = rig.tensor(8, n_cols, &values)?;
    }
    recurrence.run(rig, 0..8, 3, &tokens)?;
    rig.watch("y", &recurrence.y.rows(0..tokens.len()))?;
    rig.watch("states", &recurrence.state.rows(0..2))?;
    rig.watch_bits("unused row", &recurrence.state.rows(2..3))
}

/// A sequence gives the same bits in one step, token by token, in two steps, and in a step with
/// another sequence.
fn run_step_by_step(rig: &mut Rig, layer: Layer) -> Result<()> {
    let n = 7;
    let recurrence = Recurrence::new(rig, layer, 2 * n, [2, 0])?;
    let own: Vec<(u32, u32)> = (0..n as u32).map(|pos| (0, pos)).collect();
    // Rows 0..n of the inputs are sequence 0's, the others sequence 1's.
    let other: Vec<(u32, u32)> = (0..n as u32).map(|pos| (1, pos)).collect();
    recurrence.run(rig, 0..n, 2, &own)?;
    let whole = rig.read(&recurrence.y.rows(0..n))?;
    let state = rig.read(&recurrence.state.rows(0..1))?;
    rig.watch("y", &recurrence.y.rows(0..n))?;
    rig.watch("state", &recurrence.state.rows(0..1))?;
    for cuts in [vec![0, 1, 2, 3, 4, 5, 6, 7], vec![0, 4, 7]] {
        for step in cuts.windows(2) {
            recurrence.run(rig, step[0]..step[1], 1, &own[step[0]..step[1]])?;
        }
        let y = rig.read(&recurrence.y.rows(0..n))?;
        rig.same_bits(&format!("steps {cuts:?}"), &y, &whole);
        let after = rig.read(&recurrence.state.rows(0..1))?;
        rig.same_bits(&format!("state of steps {cuts:?}"), &after, &state);
    }
    recurrence.run(rig, 0..2 * n, 2, &[own, other].concat())?;
    let y = rig.read(&recurrence.y.rows(0..n))?;
    rig.same_bits("in a step with another sequence", &y, &whole);
    rig.watch("both", &recurrence.y)
}

/// A snapshot of a state that is taken between two steps and restored to any row continues with the
/// same bits.
fn run_snapshot(rig: &mut Rig, layer: Layer) -> Result<()> {
    let (n, max_seqs) = (9, 2);
    let recurrence = Recurrence::new(rig, layer, n, [4, 0])?;
    let tokens = |seq| (0..n as u32).map(|pos| (seq, pos)).collect::<Vec<_>>();
    let state = |slot: usize| recurrence.state.rows(slot..slot + 1);
    recurrence.run(rig, 0..5, max_seqs, &tokens(0)[..5])?;
    rig.queue.copy_rows(&state(0), &state(3))?;
    recurrence.run(rig, 5..n, max_seqs, &tokens(0)[5..])?;
    let first = rig.read(&recurrence.y.rows(5..n))?;
    rig.watch("y", &recurrence.y)?;
    for slot in [0, 1] {
        rig.queue.copy_rows(&state(3), &state(slot))?;
        recurrence.run(rig, 5..n, max_seqs, &tokens(slot as u32)[5..])?;
        let restored = rig.read(&recurrence.y.rows(5..n))?;
        rig.same_bits(&format!("from the snapshot in slot {slot}"), &restored, &first);
    }
    rig.watch("states", &recurrence.state.rows(0..2))?;
    rig.watch("snapshot", &state(3))
}

/// Two sequences that share their first cache block, as after a fork, and a third sequence.
fn forked_batch() -> BatchFacts {
    let seq = |blocks: &[u32], len| BatchSeq { blocks: blocks.to_vec(), len };
    let seqs = vec![seq(&[4, 1, 6], 70), seq(&[4, 3], 45), seq(&[0], 9)];
    let at = [(1, 43), (0, 68), (2, 8), (0, 69), (1, 44)];
    let token = |(seq, pos)| BatchToken { id: 7 * pos, seq, pos, output: pos != 68 };
    BatchFacts { tokens: at.map(token).to_vec(), seqs }
}

const FORKED: BatchShape = BatchShape { max_tokens: 7, max_seqs: 4, max_blocks: 3 };
const N_BLOCKS: usize = 8;
const D_HEAD: usize = 32;

fn attention(
    q: &Tensor,
    cache: &KvCache<Tensor>,
    batch: &Batch<Tensor>,
    y: &Tensor,
    window: Option<Window>,
) -> Attention<Tensor> {
    Attention {
        q: q.clone(),
        cache: cache.clone().into(),
        batch: batch.clone(),
        slopes: None,
        sinks: None,
        selected: None,
        y: y.clone(),
        n_head: 6,
        n_head_kv: 2,
        scale: 0.5,
        window,
        softcap: 0.0,
    }
}

/// Both sequences read the shared block, and no token attends to another sequence's own positions.
fn run_shared_blocks(rig: &mut Rig, format: Format, window: Option<Window>) -> Result<()> {
    let facts = forked_batch();
    let batch = rig.batch(FORKED, &facts, N_BLOCKS, 1 << 20)?;
    let (n, max_tokens) = (facts.tokens.len(), FORKED.max_tokens);
    let widths = KvCache::both(2 * D_HEAD);
    let cache = rig.filled_cache(&facts, N_BLOCKS, widths, KvCache::both(format))?;
    let (k, v) = (rig.input(max_tokens, 2 * D_HEAD)?, rig.input(max_tokens, 2 * D_HEAD)?);
    let q = rig.input(max_tokens, 6 * D_HEAD)?;
    let y = rig.output(max_tokens, 6 * D_HEAD)?;
    let store = StoreKv { k, v: Some(v), batch: batch.clone(), cache: cache.clone().into() };
    rig.run([store.into(), attention(&q, &cache, &batch, &y, window).into()])?;
    rig.watch_bits("keys", &cache.k)?;
    rig.watch("y", &y.rows(0..n))
}

/// A layer from token ids to outputs, with decode and prefill tokens in one batch.
fn run_mixed(rig: &mut Rig, format: Format) -> Result<()> {
    let seqs = [(40, 1), (6, 6), (64, 3)];
    let (n_blocks, max_tokens, n_cols) = (6, 14, 6 * D_HEAD);
    let mut facts = rig.facts(&seqs, n_blocks);
    let n = facts.tokens.len();
    facts.tokens.iter_mut().for_each(|token| token.id %= 50);
    (facts.tokens[0].output, facts.tokens[n - 1].output) = (true, true);
    let shape = BatchShape { max_tokens, max_seqs: 4, max_blocks: 2 };
    let batch = rig.batch(shape, &facts, n_blocks, 50)?;
    let widths = KvCache::both(2 * D_HEAD);
    let cache = rig.filled_cache(&facts, n_blocks, widths, KvCache::both(format))?;
    let table = rig.weight(50, n_cols, Format::F32)?;
    let positions = rig.weight(70, n_cols, Format::F32)?;
    let freqs: Vec<f32> = (0..D_HEAD / 2).map(|j| 0.6f32.powi(j as i32)).collect();
    let freqs = rig.tensor(1, D_HEAD / 2, &freqs)?;
    let (k, v) = (rig.input(max_tokens, 2 * D_HEAD)?, rig.input(max_tokens, 2 * D_HEAD)?);
    let gates = rig.input(max_tokens, 6)?;
    let [x, y, out] = [(); 3].map(|()| rig.output(max_tokens, n_cols));
    let (x, y, out) = (x?, y?, out?);
    let ops: [Op; 7] = [
        GetRows { table, batch: batch.clone(), y: x.clone(), scale: 1.0 }.into(),
        AddPositions { table: positions, batch: batch.clone(), x: x.clone(), offset: 2 }.into(),
        Rope {
            freqs,
            batch: batch.clone(),
            x: x.clone(),
            d_head: D_HEAD,
            first: 0,
            n_rot: D_HEAD,
            pairing: Pairing::Halves,
            scale: 1.0,
        }
        .into(),
        StoreKv { k, v: Some(v), batch: batch.clone(), cache: cache.clone().into() }.into(),
        attention(&x, &cache, &batch, &y, None).into(),
        Mul { g: gates, x: y.clone(), activation: GateActivation::Sigmoid }.into(),
        Gather { x: y.clone(), batch, y: out.clone() }.into(),
    ];
    rig.run(ops)?;
    rig.watch("x", &x.rows(0..n))?;
    rig.watch("y", &y.rows(0..n))?;
    rig.watch("outputs", &out.rows(0..facts.n_out()))
}
