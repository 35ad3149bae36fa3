//! The cases: the ops of a model cut down to few rows, alone and next to the ops that a backend may
//! compute together with them.

use std::collections::HashSet;

use hal::op::{
    Attention, CompressKeys, Down, ExpertRanges, Gather, LightningIndexer, ListBlocks, MatMul,
    Predict, SparseFfn, StoreKv,
};
use hal::{Batch, BatchShape, KV_BLOCK, KvRows, Layout, Op, OpDesc, RowSet, Rows, TensorDesc};

/// Rows of a matrix or table.
const ROWS: usize = 256;
/// Neurons of a feed-forward block: whole blocks of every format.
const NEURONS: usize = 256;
/// Neurons of an expert whose down matrix has short blocks.
const EXPERT_NEURONS: usize = 64;
/// Experts, if a token uses no more.
const EXPERTS: usize = 4;
/// Blocks of a sequence's KV cache.
pub(super) const SEQUENCE_BLOCKS: usize = 5;
/// Sequences of a step.
pub(super) const SEQUENCES: usize = 2;

/// One op, or ops that follow each other in a program.
#[derive(Clone, Debug)]
pub struct Case {
    pub(super) ops: Vec<OpDesc>,
}

impl Case {
    /// The kind of the last op: the one to refuse if the results are wrong.
    pub(super) fn kind(&self) -> String {
        self.ops.last().map(Op::kind).unwrap_or_default()
    }
}

/// The distinct cases of programs that consist of these ops.
pub fn cases(programs: impl IntoIterator<Item = Vec<OpDesc>>) -> Vec<Case> {
    let (mut alone, mut together, mut known) = (Vec::new(), Vec::new(), HashSet::new());
    let mut add = |all: &mut Vec<Case>, ops: &[OpDesc]| {
        let case = Case { ops: ops.to_vec() };
        if ops.iter().all(|op| op.check().is_ok()) && known.insert(format!("{case:?}")) {
            all.push(case);
        }
    };
    for program in programs {
        let ops: Vec<OpDesc> = program.into_iter().filter_map(few_rows).collect();
        for i in 0..ops.len() {
            add(&mut alone, &ops[i..=i]);
            let n = n_together(&ops[i..]);
            if n > 1 {
                add(&mut together, &ops[i..i + n]);
            }
        }
    }
    // First alone: if an op is wrong, it is refused and not the op after it.
    alone.extend(together);
    alone
}

/// The number of ops at the beginning that backends may compute in one kernel.
fn n_together(ops: &[OpDesc]) -> usize {
    match ops {
        [Op::Rope(_), Op::Rope(_), Op::StoreKv(_), ..] => 3,
        [Op::Add(_), Op::Norm(_), Op::MatMul(_) | Op::SparseFfn(_), ..] => 3,
        [Op::Add(_), Op::Norm(_), ..]
        | [Op::Norm(_) | Op::Attention(_), Op::MatMul(_) | Op::SparseFfn(_), ..]
        | [Op::Attention(_), Op::HeadMatMul(_), ..] => 2,
        [Op::MatMul(first), rest @ ..] if first.x.n_rows == 1 => {
            1 + rest.iter().take(2).take_while(|next| is_product_of_same_x(first, next)).count()
        }
        _ => 1,
    }
}

/// Whether an op may be the product of the same x as `first` with another matrix of its format, as
/// those of queries, keys and values are.
pub(super) fn is_product_of_same_x(first: &MatMul<TensorDesc>, op: &OpDesc) -> bool {
    matches!(op, Op::MatMul(op) if op.x == first.x && op.w.format == first.w.format)
}

/// The op with few rows; `None` for a hand-off, which has no kernel that computes.
fn few_rows(op: OpDesc) -> Option<OpDesc> {
    Some(match op {
        Op::Post(_) | Op::Merge(_) => return None,
        Op::GetRows(mut op) => {
            op.table.n_rows = op.table.n_rows.min(ROWS);
            few_blocks(&mut op.batch);
            op.into()
        }
        Op::AddPositions(mut op) => {
            op.table.n_rows = op.table.n_rows.min(op.offset.saturating_add(ROWS));
            few_blocks(&mut op.batch);
            op.into()
        }
        Op::MatMul(mut op) => {
            op.w.n_rows = op.w.n_rows.min(ROWS);
            op.y.n_cols = op.w.n_rows;
            set_cols(&mut op.bias, op.w.n_rows);
            op.into()
        }
        Op::HeadMatMul(mut op) => {
            // Every head keeps some of its rows.
            let n_out = op.n_out().min(ROWS / op.n_head).max(1);
            op.w.n_rows = n_out * op.n_head;
            op.into()
        }
        Op::Gather(op) => gather(op).into(),
        Op::StoreKv(op) => store_kv(op).into(),
        Op::Attention(op) => attention(op).into(),
        Op::LightningIndexer(op) => lightning_indexer(op).into(),
        Op::PoolKeys(mut op) => {
            few_positions(&mut op.batch, &mut op.cache);
            op.into()
        }
        Op::CompressKeys(op) => compress_keys(op).into(),
        Op::ListBlocks(op) => list_blocks(op).into(),
        Op::SparseFfn(op) => sparse_ffn(op).into(),
        Op::Predict(op) => predict(op).into(),
        Op::ScaleByPosition(mut op) => {
            few_blocks(&mut op.batch);
            op.into()
        }
        Op::Rope(mut op) => {
            few_blocks(&mut op.batch);
            op.into()
        }
        Op::ShortConv(mut op) => {
            few_states(&mut op.batch, &mut op.state);
            op.into()
        }
        Op::GatedDelta(mut op) => {
            few_states(&mut op.batch, &mut op.state);
            op.into()
        }
        Op::SsmScan(mut op) => {
            few_states(&mut op.batch, &mut op.state);
            op.into()
        }
        Op::Wkv6(mut op) => {
            few_states(&mut op.batch, &mut op.state);
            op.into()
        }
        Op::Wkv7(mut op) => {
            few_states(&mut op.batch, &mut op.state);
            op.into()
        }
        op @ (Op::Norm(_)
        | Op::CopyHeads(_)
        | Op::Add(_)
        | Op::Mul(_)
        | Op::SoftCap(_)
        | Op::HyperWeights(_)
        | Op::HyperRead(_)
        | Op::HyperWrite(_)
        | Op::Route(_)) => op,
    })
}

fn set_cols(operand: &mut Option<TensorDesc>, n_cols: usize) {
    if let Some(operand) = operand {
        operand.n_cols = n_cols;
    }
}

/// Shortens the block tables of a batch.
fn few_blocks(batch: &mut Batch<TensorDesc>) {
    let BatchShape { max_tokens, max_seqs, max_blocks } = batch.shape;
    let (max_seqs, max_blocks) = (max_seqs.min(SEQUENCES), max_blocks.min(SEQUENCE_BLOCKS));
    batch.shape = BatchShape { max_tokens, max_seqs, max_blocks };
    batch.words.n_cols = batch.shape.n_words();
}

fn few_states(batch: &mut Batch<TensorDesc>, state: &mut TensorDesc) {
    few_blocks(batch);
    state.n_rows = state.n_rows.min(SEQUENCES);
}

fn few_positions(batch: &mut Batch<TensorDesc>, cache: &mut KvRows<TensorDesc>) {
    few_blocks(batch);
    let n_rows = cache.k.n_rows.min(SEQUENCES * SEQUENCE_BLOCKS * KV_BLOCK);
    [&mut cache.k].into_iter().chain(&mut cache.v).for_each(|half| half.n_rows = n_rows);
}

fn gather(mut op: Gather<TensorDesc>) -> Gather<TensorDesc> {
    // Every token of the step is an output.
    op.x.n_rows = op.y.n_rows;
    few_blocks(&mut op.batch);
    op
}

fn store_kv(mut op: StoreKv<TensorDesc>) -> StoreKv<TensorDesc> {
    few_positions(&mut op.batch, &mut op.cache);
    op
}

/// A cache with as many rows as a cache of positions: no block of the step is then beyond its end.
fn rows_of_positions(cache: &mut KvRows<TensorDesc>) {
    cache.k.n_rows = SEQUENCES * SEQUENCE_BLOCKS * KV_BLOCK;
}

fn compress_keys(mut op: CompressKeys<TensorDesc>) -> CompressKeys<TensorDesc> {
    few_states(&mut op.batch, &mut op.state);
    rows_of_positions(&mut op.cache);
    op
}

fn list_blocks(mut op: ListBlocks<TensorDesc>) -> ListBlocks<TensorDesc> {
    few_blocks(&mut op.batch);
    op
}

fn lightning_indexer(mut op: LightningIndexer<TensorDesc>) -> LightningIndexer<TensorDesc> {
    few_positions(&mut op.batch, &mut op.cache);
    if op.list.is_some() {
        rows_of_positions(&mut op.cache);
    }
    op
}

fn attention(mut op: Attention<TensorDesc>) -> Attention<TensorDesc> {
    few_positions(&mut op.batch, &mut op.cache);
    op
}

fn few_listed(set: &mut RowSet<TensorDesc>, n_rows: usize) {
    set.ids.n_cols = set.ids.n_cols.min(n_rows);
    set.members.n_rows = set.ids.n_cols;
}

fn predict(mut op: Predict<TensorDesc>) -> Predict<TensorDesc> {
    let n = op.fc2.n_rows.min(NEURONS);
    op.fc2.n_rows = n;
    op.slots.n_cols = n;
    set_cols(&mut op.bias, n);
    few_listed(&mut op.resident, n);
    op.absent.iter_mut().for_each(|set| few_listed(set, n));
    op
}

fn sparse_ffn(mut op: SparseFfn<TensorDesc>) -> SparseFfn<TensorDesc> {
    // The number of rows, and those of a down matrix in the file's orientation.
    let (n_rows, n_filled, per_matrix) = match &mut op.experts {
        None => {
            let n = op.up.n_rows.min(NEURONS);
            (n, 1, n)
        }
        Some(experts) => {
            let most = op.down.format.block_values().max(EXPERT_NEURONS);
            let lengths = experts.rows().map(|rows| rows.len()).filter(|&n| n > 0);
            let n_expert = experts.n_used.max(EXPERTS).min(experts.n_expert());
            let lengths: Vec<usize> = lengths.map(|n| n.min(most)).take(n_expert).collect();
            let mut starts = vec![0];
            for length in &lengths {
                starts.push(starts[starts.len() - 1] + *length as u32);
            }
            // Without rows, the op stays as it is.
            let Some(&first) = lengths.first() else { return op };
            let n_used = experts.n_used.min(lengths.len());
            *experts = ExpertRanges { starts: starts.into(), n_used };
            (lengths.iter().sum(), lengths.len(), first)
        }
    };
    op.up.n_rows = n_rows;
    op.gate.iter_mut().for_each(|gate| gate.n_rows = n_rows);
    match op.orientation {
        Down::ByNeuron => op.down.n_rows = n_rows,
        Down::AcrossNeurons => {
            (op.down.n_rows, op.down.n_cols) = (n_filled * op.y.n_cols, per_matrix);
        }
    }
    if let Layout::Transposed { n_source } = &mut op.down.layout {
        *n_source = n_rows;
    }
    for operand in [&mut op.bias_gate, &mut op.bias_up, &mut op.threshold, &mut op.hits] {
        set_cols(operand, n_rows);
    }
    if let (Some(weights), Some(experts)) = (&mut op.expert_weights, &op.experts) {
        weights.n_cols = experts.n_expert();
        op.bias_down.iter_mut().for_each(|bias| bias.n_rows = experts.n_expert());
    }
    if let Rows::Active(set) = &mut op.rows {
        few_listed(set, n_rows);
    }
    op
}
