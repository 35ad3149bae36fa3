//! Seeded contents of operands: the same on the device and on the CPU.

use std::sync::Arc;

use hal::format::Format;
use hal::op::{Access, OperandUse, Role};
use hal::{
    BatchFacts, BatchSeq, BatchShape, BatchToken, HostRows, KV_BLOCK, Layout, Op, OpDesc, PackDesc,
    Result, Slot, Source, TensorDesc,
};

use super::cases::{SEQUENCE_BLOCKS, SEQUENCES};

/// Distinct blocks of a random matrix.
const BLOCKS: usize = 16;
/// Largest magnitudes of a random block's values that are used.
const MAGNITUDES: std::ops::Range<f32> = 0.01..0.5;
/// A NaN with which outputs begin: a value that a kernel leaves out is wrong.
const UNWRITTEN: u32 = 0x7fc0_dead;

/// What an operand holds before the op runs.
#[derive(Clone, Debug)]
pub(super) enum Contents {
    Plain(Vec<u8>),
    Weights(HostRows, PackDesc),
}

/// SplitMix64. Source: Steele, Lea and Flood, 2014.
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.word() % n.max(1) as u64) as usize
    }

    /// A float in -1..1.
    fn float(&mut self) -> f32 {
        (self.word() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}

fn words(words: impl IntoIterator<Item = u32>) -> Vec<u8> {
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// The step of a case, which is the same for all its ops.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) n_tokens: usize,
    /// Blocks of the KV cache.
    n_blocks: usize,
    /// Rows of the embedding, which token ids select.
    n_vocab: usize,
}

impl Step {
    pub(super) fn of(ops: &[OpDesc]) -> Step {
        let mut step = Step {
            n_tokens: ops.first().map_or(1, n_tokens),
            n_blocks: SEQUENCES * SEQUENCE_BLOCKS,
            n_vocab: 1 << 20,
        };
        for op in ops {
            op.visit(&mut |_, how, desc| match how.role {
                Role::Cache => step.n_blocks = step.n_blocks.min(desc.n_rows / KV_BLOCK),
                Role::Table => step.n_vocab = step.n_vocab.min(desc.n_rows.max(1)),
                Role::Weight | Role::Values | Role::Batch | Role::List | Role::State => {}
            });
        }
        step
    }
}

/// Number of tokens of a step with this op.
fn n_tokens(op: &OpDesc) -> usize {
    let mut n = None;
    op.visit(&mut |name, how, desc| {
        if how.role == Role::Values && ["x", "q", "k", "y"].contains(&name) {
            n.get_or_insert(desc.n_rows);
        }
    });
    n.unwrap_or(1)
}

/// Contents of operand `name` of `op`. `nth` is its number among the operands of that name, which
/// tells the parts of a row list apart.
pub(super) fn contents(
    (op, step): (&OpDesc, Step),
    (name, nth): (&'static str, usize),
    how: OperandUse,
    desc: TensorDesc,
    random: &mut Random,
) -> Result<Contents> {
    let n_values = desc.n_rows * desc.n_cols;
    Ok(match how.role {
        Role::Weight | Role::Table => return weights(desc, random),
        Role::Batch => Contents::Plain(batch(op, step)?),
        Role::Cache => Contents::Plain(cache(desc, random)),
        Role::State => Contents::Plain(floats(random.floats(n_values))),
        Role::List if how.access == Access::Read => {
            Contents::Plain(list(op, (nth, step), desc, random))
        }
        Role::List => Contents::Plain(words(vec![0; n_values])),
        Role::Values if how.access == Access::Write => {
            Contents::Plain(words(vec![UNWRITTEN; n_values]))
        }
        Role::Values if ["active", "hits", "union"].contains(&name) => {
            Contents::Plain(words(vec![0; n_values]))
        }
        Role::Values => Contents::Plain(values(op, name, desc, random)),
    })
}

/// Values of an activation or a parameter, in the range that the op expects.
fn values(op: &OpDesc, name: &str, desc: TensorDesc, random: &mut Random) -> Vec<u8> {
    let (n_rows, n_cols) = (desc.n_rows, desc.n_cols);
    let mut all = random.floats(n_rows * n_cols);
    match (op, name) {
        (Op::Rope(_), "freqs") => {
            let frequency = |i: usize| 1e4_f32.powf(-(i as f32) / n_cols as f32);
            return floats((0..n_cols).map(frequency));
        }
        // The first positions, whatever a token's own is.
        (Op::Attention(_), "selected") => {
            return words((0..n_rows).flat_map(|_| 0..n_cols as u32));
        }
        (Op::Predict(op), "slots") => {
            let slot = |i: u32| match &op.absent {
                Some(_) if i % 2 == 1 => Slot::Absent(i / 2),
                Some(_) => Slot::Resident(i / 2),
                None => Slot::Resident(i),
            };
            return words((0..n_cols as u32).map(|i| slot(i).encode()));
        }
        (Op::Route(op), "chosen") => {
            return floats((0..n_rows).flat_map(|_| 0..op.n_used).map(|expert| expert as f32));
        }
        (Op::Route(op), "groups") => {
            return floats((0..n_cols).map(|i| (i * op.n_groups[0] / n_cols) as f32));
        }
        (Op::SparseFfn(op), "expert_weights") => {
            let n_used = op.experts.as_ref().map_or(0, |experts| experts.n_used);
            for row in all.chunks_mut(n_cols.max(1)) {
                let first = random.below(n_cols);
                for (i, weight) in row.iter_mut().enumerate() {
                    let used = (i + n_cols - first) % n_cols < n_used;
                    *weight = if used { weight.abs() + 0.1 } else { 0.0 };
                }
            }
        }
        (Op::SparseFfn(_), "threshold") => all.iter_mut().for_each(|v| *v = 0.1 * v.abs()),
        // The rates of a bounded decay are positive.
        (Op::GatedDelta(op), "a") if op.curve.bound() < 0.0 => {
            all.iter_mut().for_each(|v| *v = 0.1 + v.abs());
        }
        // Decay rates, without which a state grows.
        (Op::GatedDelta(_) | Op::SsmScan(_), "a") => {
            all.iter_mut().for_each(|v| *v = -0.1 - v.abs());
        }
        // Keys of about unit length, so that a state stays bounded.
        (Op::GatedDelta(op), "k") => {
            let shrink = 1.0 / ((n_cols / op.n_head_k.max(1)).max(1) as f32).sqrt();
            all.iter_mut().for_each(|v| *v *= shrink);
        }
        (Op::Wkv6(_) | Op::Wkv7(_), _) => all.iter_mut().for_each(|v| *v *= 0.5),
        _ => {}
    }
    floats(all)
}

/// A step of up to two sequences, which have earlier positions. Their blocks are in descending
/// order.
fn batch(op: &OpDesc, step: Step) -> Result<Vec<u8>> {
    let Step { n_tokens, n_blocks, n_vocab } = step;
    let Some(shape) = batch_shape(op) else { return Ok(Vec::new()) };
    let n_seqs = SEQUENCES.min(shape.max_seqs).min(n_tokens).min(n_blocks).max(1);
    let per_seq = SEQUENCE_BLOCKS.min(shape.max_blocks).min(n_blocks / n_seqs);
    let mut facts = BatchFacts::default();
    for s in 0..n_seqs {
        let new = n_tokens / n_seqs + usize::from(s < n_tokens % n_seqs);
        // The last block is not full, and the step begins inside a block.
        let len = (per_seq * KV_BLOCK).saturating_sub(3 + s).max(new);
        let blocks = len.div_ceil(KV_BLOCK);
        let blocks = (s * per_seq..s * per_seq + blocks).rev().map(|block| block as u32);
        facts.seqs.push(BatchSeq { blocks: blocks.collect(), len: len as u32 });
        for i in 0..new {
            let (pos, id) = ((len - new + i) as u32, ((7 * i + 3 * s) % n_vocab) as u32);
            facts.tokens.push(BatchToken { id, seq: s as u32, pos, output: true });
        }
    }
    Ok(words(facts.encode(&shape, n_blocks, n_vocab)?))
}

fn batch_shape(op: &OpDesc) -> Option<BatchShape> {
    match op {
        Op::GetRows(op) => Some(op.batch.shape),
        Op::AddPositions(op) => Some(op.batch.shape),
        Op::ScaleByPosition(op) => Some(op.batch.shape),
        Op::Gather(op) => Some(op.batch.shape),
        Op::Rope(op) => Some(op.batch.shape),
        Op::StoreKv(op) => Some(op.batch.shape),
        Op::Attention(op) => Some(op.batch.shape),
        Op::PoolKeys(op) => Some(op.batch.shape),
        Op::CompressKeys(op) => Some(op.batch.shape),
        Op::ListBlocks(op) => Some(op.batch.shape),
        Op::LightningIndexer(op) => Some(op.batch.shape),
        Op::ShortConv(op) => Some(op.batch.shape),
        Op::GatedDelta(op) => Some(op.batch.shape),
        Op::SsmScan(op) => Some(op.batch.shape),
        Op::Wkv6(op) => Some(op.batch.shape),
        Op::Wkv7(op) => Some(op.batch.shape),
        Op::Post(op) => Some(op.batch.shape),
        Op::Merge(op) => Some(op.batch.shape),
        Op::Norm(_) | Op::MatMul(_) | Op::HeadMatMul(_) | Op::CopyHeads(_) => None,
        Op::Add(_) | Op::Mul(_) => None,
        Op::HyperWeights(_) | Op::HyperRead(_) | Op::HyperWrite(_) => None,
        Op::SoftCap(_) | Op::SparseFfn(_) | Op::Predict(_) | Op::Route(_) => None,
    }
}

/// Part `nth` of a row list: every other row, each for some tokens.
fn list(op: &OpDesc, (nth, step): (usize, Step), desc: TensorDesc, random: &mut Random) -> Vec<u8> {
    let Step { n_tokens: n, .. } = step;
    let n_rows = if let Op::SparseFfn(op) = op { op.up.n_rows } else { 0 };
    let count = n_rows.div_ceil(2);
    match nth {
        0 => words((0..desc.n_cols as u32).map(|i| if (i as usize) < count { 2 * i } else { 0 })),
        1 => words([count as u32]),
        _ => {
            let valid = |word: usize| match n.saturating_sub(32 * word) {
                0 => 0,
                left if left < 32 => (1u32 << left) - 1,
                _ => u32::MAX,
            };
            let bits = (0..desc.n_rows * desc.n_cols).map(|i| {
                let bits = random.word() as u32 | u32::from(i % desc.n_cols == 0);
                bits & valid(i % desc.n_cols)
            });
            words(bits)
        }
    }
}

fn cache(desc: TensorDesc, random: &mut Random) -> Vec<u8> {
    let values = random.floats(desc.n_rows * desc.n_cols);
    let mut bytes = vec![0; desc.bytes().map_or(0, |bytes| bytes.0 as usize)];
    desc.format.quantize_cache(&values, &mut bytes);
    bytes
}

fn weights(desc: TensorDesc, random: &mut Random) -> Result<Contents> {
    let (n_rows, n_cols, transpose) = match desc.layout {
        Layout::Rows => (desc.n_rows, desc.n_cols, false),
        Layout::Transposed { n_source } => (desc.n_cols, n_source, true),
    };
    let n_blocks = n_rows * n_cols / desc.format.block_values();
    let bytes = random_blocks(desc.format, n_blocks, random);
    let rows = HostRows::new(Source::Owned(Arc::new(bytes)), n_rows, n_cols, desc.format)?;
    let pack = PackDesc { transpose, ..PackDesc::whole(rows.desc()) };
    Ok(Contents::Weights(rows, pack))
}

/// Random weights of ordinary magnitude.
fn random_blocks(format: Format, n_blocks: usize, random: &mut Random) -> Vec<u8> {
    if format.quants().is_none() {
        let values: Vec<f32> = random.floats(n_blocks).iter().map(|v| v / 4.0).collect();
        let mut bytes = vec![0; n_blocks * format.block_bytes()];
        format.quantize(&values, &mut bytes);
        return bytes;
    }
    let pool: Vec<Vec<u8>> = (0..BLOCKS).map(|_| random_block(format, random)).collect();
    (0..n_blocks).flat_map(|_| pool[random.below(BLOCKS)].iter().copied()).collect()
}

/// Draws random bytes until their values have about the magnitude of weights.
fn random_block(format: Format, random: &mut Random) -> Vec<u8> {
    let mut values = vec![0.0; format.block_values()];
    loop {
        let bytes: Vec<u8> = (0..format.block_bytes()).map(|_| random.word() as u8).collect();
        format.dequantize(&bytes, &mut values);
        let largest = values.iter().map(|v| v.abs()).fold(0.0, f32::max);
        if values.iter().all(|v| v.is_finite()) && MAGNITUDES.contains(&largest) {
            return bytes;
        }
    }
}
