//! Test rig of a case: a device, a source of random data, and the outputs of the case.

use std::time::Instant;

use hal::format::Format;
use hal::{
    Batch, BatchFacts, BatchSeq, BatchShape, BatchToken, Device, Error, HostRows, KV_BLOCK,
    KvCache, Op, Operand, PackDesc, PartTime, Program, Queue, Result, RowSet, Tensor, TensorDesc,
    Times,
};

use crate::rng::Rng;
use crate::weights::{Origin, host_rows, random_bytes};

/// Initial contents of outputs: a NaN that no kernel produces.
pub(crate) const POISON: f32 = f32::from_bits(0x7fc0_dead);

/// An output that a case read back.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    pub(crate) name: String,
    pub(crate) data: Data,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Data {
    /// Compared within the case's tolerance.
    Floats(Vec<f32>),
    /// Compared to the bit.
    Words(Vec<u32>),
}

/// One run of a case. The same calls draw the same data on every device.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) device: Device,
    pub(crate) queue: Queue,
    pub(crate) rng: Rng,
    pub(crate) outputs: Vec<Output>,
    pub(crate) faults: Vec<String>,
    /// Tensors with a guard row of poison at both ends.
    guarded: Vec<Tensor>,
}

pub(crate) fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub(crate) fn u32_bytes(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

impl Rig {
    pub(crate) fn new(device: &Device, seed: u64) -> Result<Rig> {
        Ok(Rig {
            device: device.clone(),
            queue: device.queue("conformance")?,
            rng: Rng::new(seed),
            outputs: Vec::new(),
            faults: Vec::new(),
            guarded: Vec::new(),
        })
    }

    /// An F32 tensor of these values.
    pub(crate) fn tensor(
        &mut self,
        n_rows: usize,
        n_cols: usize,
        values: &[f32],
    ) -> Result<Tensor> {
        let tensor = self.device.alloc_f32("values", n_rows, n_cols)?;
        self.queue.write(&tensor, &f32_bytes(values))?;
        Ok(tensor)
    }

    /// An F32 tensor of random values in -1..1.
    pub(crate) fn input(&mut self, n_rows: usize, n_cols: usize) -> Result<Tensor> {
        let values = self.rng.floats(n_rows * n_cols);
        self.tensor(n_rows, n_cols, &values)
    }

    pub(crate) fn words(&mut self, n_rows: usize, n_cols: usize, words: &[u32]) -> Result<Tensor> {
        let tensor = self.device.alloc("words", TensorDesc::new(n_rows, n_cols, Format::U32))?;
        self.queue.write(&tensor, &u32_bytes(words))?;
        Ok(tensor)
    }

    /// A poisoned tensor between two guard rows.
    pub(crate) fn output(&mut self, n_rows: usize, n_cols: usize) -> Result<Tensor> {
        let poison = vec![POISON; (n_rows + 2) * n_cols];
        let whole = self.tensor(n_rows + 2, n_cols, &poison)?;
        let view = whole.rows(1..n_rows + 1);
        self.guarded.push(whole);
        Ok(view)
    }

    /// Like [`Rig::output`], with initial values.
    pub(crate) fn output_from(
        &mut self,
        n_rows: usize,
        n_cols: usize,
        values: &[f32],
    ) -> Result<Tensor> {
        let view = self.output(n_rows, n_cols)?;
        self.queue.write(&view, &f32_bytes(values))?;
        Ok(view)
    }

    pub(crate) fn matrix(
        &mut self,
        n_rows: usize,
        n_cols: usize,
        format: Format,
    ) -> Result<HostRows> {
        self.matrix_from(n_rows, n_cols, format, Origin::Owned)
    }

    pub(crate) fn matrix_from(
        &mut self,
        n_rows: usize,
        n_cols: usize,
        format: Format,
        origin: Origin,
    ) -> Result<HostRows> {
        let bytes = random_bytes(&mut self.rng, n_rows, n_cols, format);
        host_rows(bytes, n_rows, n_cols, format, origin)
    }

    /// A random matrix on the device, not transposed.
    pub(crate) fn weight(
        &mut self,
        n_rows: usize,
        n_cols: usize,
        format: Format,
    ) -> Result<Tensor> {
        let source = self.matrix(n_rows, n_cols, format)?;
        self.device.import("weight", &PackDesc::whole(source.desc()), &source)
    }

    pub(crate) fn program(&self, ops: impl IntoIterator<Item = Op>) -> Result<Program> {
        let mut recorder = self.device.record("conformance");
        for op in ops {
            recorder.push(op)?;
        }
        recorder.finish()
    }

    pub(crate) fn run(&mut self, ops: impl IntoIterator<Item = Op>) -> Result<()> {
        let program = self.program(ops)?;
        self.queue.replay(&program)?.wait()
    }

    /// Reads an F32 tensor as an output, to be compared within the tolerance.
    pub(crate) fn watch(&mut self, name: &str, tensor: &Tensor) -> Result<()> {
        let values = self.read(tensor)?;
        self.add_output(name, Data::Floats(values));
        Ok(())
    }

    /// Reads a plain tensor as an output, to be compared to the bit.
    pub(crate) fn watch_bits(&mut self, name: &str, tensor: &Tensor) -> Result<()> {
        let desc = tensor.desc();
        let mut bytes = vec![0; desc.bytes().map_or(0, |bytes| bytes.0 as usize)];
        self.queue.read(tensor, &mut bytes)?;
        // One word per number, or per byte of a quantised block.
        let size = if desc.format.quants().is_some() { 1 } else { desc.format.block_bytes() };
        let word = |w: &[u8]| w.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
        let words = bytes.chunks_exact(size).map(word).collect();
        self.add_output(name, Data::Words(words));
        Ok(())
    }

    /// Reads a row set as an output: count, rows and membership bits.
    pub(crate) fn watch_set(&mut self, name: &str, set: &RowSet<Tensor>) -> Result<()> {
        let mut count = [0; 4];
        self.queue.read(&set.count, &mut count)?;
        let count = u32::from_le_bytes(count) as usize;
        self.add_output(&format!("{name} count"), Data::Words(vec![count as u32]));
        let mut ids = vec![0; 4 * count.min(set.ids.desc().n_cols)];
        if ids.is_empty() {
            return Ok(());
        }
        self.queue.read(&set.ids, &mut ids)?;
        let ids: Vec<u32> =
            ids.chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect();
        let n = ids.len();
        self.add_output(&format!("{name} ids"), Data::Words(ids));
        self.watch_bits(&format!("{name} members"), &set.members.rows(0..n))
    }

    pub(crate) fn add_output(&mut self, name: &str, data: Data) {
        self.outputs.push(Output { name: name.to_owned(), data });
    }

    pub(crate) fn read(&mut self, tensor: &Tensor) -> Result<Vec<f32>> {
        let mut values = vec![0.0; tensor.desc().n_rows * tensor.desc().n_cols];
        self.queue.read_f32(tensor, &mut values)?;
        Ok(values)
    }

    /// Records a failure unless both are equal.
    pub(crate) fn same_bytes(&mut self, what: &str, a: &[u8], b: &[u8]) {
        if a != b {
            self.faults.push(format!("{what}: the bytes differ"));
        }
    }

    /// Records a failure unless both have the same bits.
    pub(crate) fn same_bits(&mut self, what: &str, a: &[f32], b: &[f32]) {
        if a.iter().zip(b).any(|(a, b)| a.to_bits() != b.to_bits()) || a.len() != b.len() {
            self.faults.push(format!("{what}: the bits differ"));
        }
    }

    /// Records a failure unless the times of a run are in the order of its parts, do not overlap,
    /// and lie between `began` and now. A device without timers reports no times.
    pub(crate) fn check_times(&mut self, times: &Times, began: Instant, n_parts: usize) {
        let ended = Instant::now();
        let mut last = (0, began);
        for PartTime { parts, begin, end } in &times.parts {
            let ordered = last.0 <= parts.start && parts.start < parts.end && parts.end <= n_parts;
            let in_time = last.1 <= *begin && begin <= end && *end <= ended;
            if !(ordered && in_time) {
                self.faults
                    .push(format!("parts {parts:?} out of order: {times:?}, run from {began:?}"));
            }
            last = (parts.end, *end);
        }
    }

    /// Records a failure if a guard row was written.
    pub(crate) fn check_guards(&mut self) -> Result<()> {
        for whole in std::mem::take(&mut self.guarded) {
            let last = whole.desc().n_rows - 1;
            for row in [0, last] {
                let values = self.read(&whole.rows(row..row + 1))?;
                if values.iter().any(|v| v.to_bits() != POISON.to_bits()) {
                    self.faults
                        .push(format!("the op wrote guard row {row} (of rows 0 and {last})"));
                }
            }
        }
        Ok(())
    }

    pub(crate) fn batch(
        &mut self,
        shape: BatchShape,
        facts: &BatchFacts,
        n_blocks: usize,
        n_vocab: usize,
    ) -> Result<Batch<Tensor>> {
        let batch = self.device.batch(shape)?;
        self.queue.write(&batch.words, &u32_bytes(&facts.encode(&shape, n_blocks, n_vocab)?))?;
        Ok(batch)
    }

    /// The contents of a batch. Each entry of `seqs` is a sequence's length and the number of its
    /// last positions that are tokens of the step. The blocks are in random order, and tokens of
    /// different sequences alternate.
    pub(crate) fn facts(&mut self, seqs: &[(usize, usize)], n_blocks: usize) -> BatchFacts {
        let mut blocks: Vec<u32> = (0..n_blocks as u32).collect();
        self.rng.shuffle(&mut blocks);
        let mut facts = BatchFacts::default();
        for &(len, _) in seqs {
            let taken = blocks.split_off(blocks.len() - len.div_ceil(KV_BLOCK));
            facts.seqs.push(BatchSeq { blocks: taken, len: len as u32 });
        }
        let longest = seqs.iter().map(|&(_, new)| new).max().unwrap_or(0);
        for i in 0..longest {
            for (s, &(len, _)) in seqs.iter().enumerate().filter(|(_, (_, new))| i < *new) {
                let pos = (len - seqs[s].1 + i) as u32;
                let (id, output) = (self.rng.below(1 << 20) as u32, self.rng.chance(0.5));
                facts.tokens.push(BatchToken { id, seq: s as u32, pos, output });
            }
        }
        facts
    }

    /// A cache with random values in the filled positions and poison in all others.
    pub(crate) fn filled_cache(
        &mut self,
        facts: &BatchFacts,
        n_blocks: usize,
        n_cols: KvCache<usize>,
        formats: KvCache<Format>,
    ) -> Result<KvCache<Tensor>> {
        let cache = self.device.kv_cache(n_blocks, n_cols, formats)?;
        for (tensor, n_cols) in [(&cache.k, n_cols.k), (&cache.v, n_cols.v)] {
            let mut values = vec![POISON; n_blocks * KV_BLOCK * n_cols];
            for seq in &facts.seqs {
                for pos in 0..seq.len as usize {
                    let row = seq.blocks[pos / KV_BLOCK] as usize * KV_BLOCK + pos % KV_BLOCK;
                    values[row * n_cols..][..n_cols].copy_from_slice(&self.rng.floats(n_cols));
                }
            }
            let format = tensor.desc().format;
            let mut bytes = vec![0; values.len() / format.block_values() * format.block_bytes()];
            format.quantize_cache(&values, &mut bytes);
            self.queue.write(tensor, &bytes)?;
        }
        Ok(cache)
    }

    /// A row set of `ids`. `wants(i, t)` returns whether token `t` needs row `ids[i]`. Entries past
    /// the end of `ids` have arbitrary contents.
    pub(crate) fn row_set(
        &mut self,
        capacity: usize,
        max_tokens: usize,
        ids: &[u32],
        n_tokens: usize,
        wants: &dyn Fn(usize, usize) -> bool,
    ) -> Result<RowSet<Tensor>> {
        let set = self.device.row_set(capacity, max_tokens)?;
        let n_words = max_tokens.div_ceil(32);
        let mut entries = vec![u32::MAX; capacity];
        entries[..ids.len()].copy_from_slice(ids);
        let mut members = vec![u32::MAX; capacity * n_words];
        for i in 0..ids.len() {
            members[i * n_words..][..n_words].fill(0);
            for t in (0..n_tokens).filter(|&t| wants(i, t)) {
                members[i * n_words + t / 32] |= 1 << (t % 32);
            }
        }
        self.queue.write(&set.ids, &u32_bytes(&entries))?;
        self.queue.write(&set.members, &u32_bytes(&members))?;
        self.queue.write(&set.count, &u32_bytes(&[ids.len() as u32]))?;
        Ok(set)
    }

    /// The error that skips a case which does not apply to this device.
    pub(crate) fn unsupported(&self, op: &'static str, reason: &str) -> Error {
        let device = self.device.info().name.clone();
        Error::Unsupported { op, device, reason: reason.to_owned() }
    }
}
