//! Ops at a modest shape, whose launches are counted.

use std::cell::RefCell;
use std::sync::Arc;

use hal::format::Format;
use hal::op::{
    Activation, Attention, Down, ExpertRanges, FfnKind, MatMul, NEVER_DENSE, Skip, SparseFfn,
};
use hal::{
    BatchFacts, BatchSeq, BatchShape, BatchToken, Device, HostRows, KV_BLOCK, KvCache, Op,
    PackDesc, Queue, Result, Rows, Source, Tensor,
};
use ptx::{Interpreter, Launch};

/// Columns of a product and of a feed-forward block, as a model of 2 or 7 billion parameters has.
const COLS: usize = 2048;
/// Neurons of a feed-forward block.
const NEURONS: usize = 256;
/// Experts, the neurons of each, and the columns of their inputs and outputs.
const EXPERTS: usize = 2;
const OF_EXPERT: usize = 768;
const EXPERT_COLS: usize = 512;
/// Positions in the cache, their key heads, and values per head.
const CONTEXT: usize = 256;
const KEY_HEADS: usize = 2;
const HEAD: usize = 128;
/// Tokens of a prompt.
const PROMPT: usize = 64;

/// A device whose launches are counted.
pub(super) struct Runs {
    device: Device,
    queue: RefCell<Queue>,
    interpreter: &'static Interpreter,
    number: i32,
}

/// The launch of a kernel, and the bytes of the weights (or of keys and values) that it reads, as a
/// file stores them.
pub(super) struct Measured {
    pub(super) launch: Launch,
    pub(super) bytes: usize,
}

/// Names of kernels, with what they read.
type Reads<'a> = [(&'a str, usize)];

impl Runs {
    pub(super) fn new(
        device: Device,
        interpreter: &'static Interpreter,
        number: i32,
    ) -> Result<Runs> {
        let queue = RefCell::new(device.queue("costs")?);
        Ok(Runs { device, queue, interpreter, number })
    }

    fn floats(&self, n_rows: usize, n_cols: usize) -> Result<Tensor> {
        let tensor = self.device.alloc_f32("values", n_rows, n_cols)?;
        let value = |i: usize| (i * 37 % 101) as f32 / 101.0 - 0.5;
        let bytes: Vec<u8> = (0..n_rows * n_cols).flat_map(|i| value(i).to_le_bytes()).collect();
        self.queue.borrow_mut().write(&tensor, &bytes)?;
        Ok(tensor)
    }

    fn weight(
        &self,
        [n_rows, n_cols]: [usize; 2],
        format: Format,
        transpose: bool,
    ) -> Result<Tensor> {
        let bytes = conformance::random_weights(format, n_rows * n_cols, 1);
        let source = HostRows::new(Source::Owned(Arc::new(bytes)), n_rows, n_cols, format)?;
        let pack = PackDesc { transpose, ..PackDesc::whole(source.desc()) };
        self.device.import("weight", &pack, &source)
    }

    /// Runs ops as a program, and returns its launches of these kernels: one of each.
    fn measure(&self, ops: Vec<Op>, reads: &Reads<'_>) -> Result<Vec<Measured>> {
        let mut recorder = self.device.record("costs");
        for op in ops {
            recorder.push(op)?;
        }
        let program = recorder.finish()?;
        self.interpreter.count(self.number);
        self.queue.borrow_mut().replay(&program)?.wait()?;
        let launches = self.interpreter.take_launches(self.number);
        let of = |&(kernel, bytes): &(&str, usize)| {
            let mut found = launches.iter().filter(|launch| launch.kernel == kernel);
            let launch = match (found.next(), found.next()) {
                (Some(launch), None) => launch.clone(),
                _ => {
                    let names: Vec<&str> = launches.iter().map(|l| l.kernel.as_str()).collect();
                    panic!("one launch of {kernel} expected; the launches are {names:?}")
                }
            };
            Measured { launch, bytes }
        };
        Ok(reads.iter().map(of).collect())
    }

    /// Products of some tokens with `n` matrices of `n_rows` rows.
    pub(super) fn product(
        &self,
        kernel: &'static str,
        format: Format,
        [n, n_rows, n_tokens]: [usize; 3],
    ) -> Result<Vec<Measured>> {
        let x = self.floats(n_tokens, COLS)?;
        let product = |_| {
            let w = self.weight([n_rows, COLS], format, false)?;
            Ok(MatMul { w, x: x.clone(), bias: None, y: self.floats(n_tokens, n_rows)? }.into())
        };
        let ops = (0..n).map(product).collect::<Result<_>>()?;
        self.measure(ops, &[(kernel, bytes(format, n * n_rows * COLS))])
    }

    /// A feed-forward block with one row of its down matrix per neuron: as a file stores them, or
    /// transposed when it is loaded.
    pub(super) fn by_neuron(
        &self,
        kernels: &[&'static str],
        format: Format,
        n_tokens: usize,
        transposed: bool,
    ) -> Result<Vec<Measured>> {
        let shape = if transposed { [COLS, NEURONS] } else { [NEURONS, COLS] };
        let down = self.weight(shape, format, transposed)?;
        let block = self.block(format, [NEURONS, COLS], n_tokens, down)?;
        let one = bytes(format, NEURONS * COLS);
        let read = |&kernel: &&'static str| {
            (kernel, if kernel.starts_with("ffn") { 2 * one } else { one })
        };
        let reads: Vec<_> = kernels.iter().map(read).collect();
        self.measure(vec![block.into()], &reads)
    }

    /// A block of experts, all of which are used, with the usual down matrices.
    pub(super) fn experts(
        &self,
        kernel: &'static str,
        format: Format,
        n_tokens: usize,
    ) -> Result<Vec<Measured>> {
        let down = self.weight([EXPERTS * EXPERT_COLS, OF_EXPERT], format, false)?;
        let starts = (0..=EXPERTS).map(|i| (i * OF_EXPERT) as u32).collect();
        let block = SparseFfn {
            expert_weights: Some(self.floats(n_tokens, EXPERTS)?),
            experts: Some(ExpertRanges { starts, n_used: EXPERTS }),
            orientation: Down::AcrossNeurons,
            ..self.block(format, [EXPERTS * OF_EXPERT, EXPERT_COLS], n_tokens, down)?
        };
        let reads = [(kernel, bytes(format, EXPERTS * EXPERT_COLS * OF_EXPERT))];
        self.measure(vec![block.into()], &reads)
    }

    /// A gated block whose neurons are all computed, by neuron.
    fn block(
        &self,
        format: Format,
        [n_rows, n_cols]: [usize; 2],
        n_tokens: usize,
        down: Tensor,
    ) -> Result<SparseFfn<Tensor>> {
        Ok(SparseFfn {
            gate: Some(self.weight([n_rows, n_cols], format, false)?),
            up: self.weight([n_rows, n_cols], format, false)?,
            down,
            bias_gate: None,
            bias_up: None,
            bias_down: None,
            threshold: None,
            expert_weights: None,
            rows: Rows::All,
            x: self.floats(n_tokens, n_cols)?,
            y: self.floats(n_tokens, n_cols)?,
            active: self.floats(1, n_tokens)?,
            hits: None,
            union: None,
            kind: FfnKind::Gated,
            activation: Activation::Silu,
            skip: Skip::Never,
            experts: None,
            orientation: Down::ByNeuron,
            dense_from: NEVER_DENSE,
            accumulate: false,
        })
    }

    /// Attention of the last `n_tokens` positions of one sequence. `queries` query heads share a key
    /// head.
    pub(super) fn attention(
        &self,
        kernel: &'static str,
        format: Format,
        queries: usize,
        n_tokens: usize,
    ) -> Result<Vec<Measured>> {
        let n_blocks = CONTEXT / KV_BLOCK;
        let cache = self.device.kv_cache(
            n_blocks,
            KvCache::both(KEY_HEADS * HEAD),
            KvCache { k: format, v: format },
        )?;
        let n_values = CONTEXT * KEY_HEADS * HEAD;
        let values = conformance::random_weights(format, n_values, 2);
        self.queue.borrow_mut().write(&cache.k, &values)?;
        self.queue.borrow_mut().write(&cache.v, &values)?;
        let token =
            |i| BatchToken { id: 0, seq: 0, pos: (CONTEXT - n_tokens + i) as u32, output: true };
        let facts = BatchFacts {
            tokens: (0..n_tokens).map(token).collect(),
            seqs: vec![BatchSeq { blocks: (0..n_blocks as u32).collect(), len: CONTEXT as u32 }],
        };
        let shape = BatchShape { max_tokens: n_tokens, max_seqs: 1, max_blocks: n_blocks };
        let batch = self.device.batch(shape)?;
        let words = facts.encode(&shape, n_blocks, 1)?;
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.queue.borrow_mut().write(&batch.words, &words)?;
        let n_cols = queries * KEY_HEADS * HEAD;
        let op = Attention {
            q: self.floats(n_tokens, n_cols)?,
            cache: cache.into(),
            batch,
            slopes: None,
            sinks: None,
            selected: None,
            y: self.floats(n_tokens, n_cols)?,
            n_head: queries * KEY_HEADS,
            n_head_kv: KEY_HEADS,
            scale: 0.1,
            window: None,
            softcap: 0.0,
        };
        self.measure(vec![op.into()], &[(kernel, 2 * bytes(format, n_values))])
    }
}

/// What runs for a weight format, in parts.
pub(super) fn of_weights(runs: &Runs, format: Format) -> Vec<Result<Vec<Measured>>> {
    // A device of two multiprocessors computes 256 rows in large tiles and 128 in small ones.
    let mut all = vec![
        runs.product("matmul_one", format, [1, 64, 1]),
        runs.product("matmul_three", format, [3, 64, 1]),
        runs.product("matmul_four", format, [1, 64, 4]),
        runs.product("matmul_eight", format, [1, 64, 8]),
        runs.product("matmul_some", format, [1, 128, PROMPT]),
        runs.product("matmul_many", format, [1, 256, PROMPT]),
        runs.by_neuron(&["ffn_one", "down_one"], format, 1, false),
        runs.by_neuron(&["ffn_few", "down_few"], format, 4, false),
        runs.by_neuron(&["down_many"], format, PROMPT, false),
        runs.experts("across_one", format, 1),
        runs.experts("across_few", format, 4),
    ];
    // Transposed floats use the kernels above.
    if matches!(format, Format::Q4_0 | Format::Q8_0) {
        all.extend([
            runs.by_neuron(&["down_one"], format, 1, true),
            runs.by_neuron(&["down_few"], format, 4, true),
            runs.by_neuron(&["down_many"], format, PROMPT, true),
        ]);
    }
    all
}

/// What runs for a format of the cache.
pub(super) fn of_caches(runs: &Runs, format: Format) -> Vec<Result<Vec<Measured>>> {
    vec![
        runs.attention("attention_1", format, 1, 1),
        runs.attention("attention_4", format, 4, 1),
        runs.attention("attention_8", format, 8, 1),
        runs.attention("attention_128", format, 4, PROMPT),
    ]
}

fn bytes(format: Format, n_values: usize) -> usize {
    format.row_bytes(n_values).expect("whole blocks")
}
