//! Measures the speeds that the planner needs: reading whole matrices, reading the rows of a few
//! active neurons, a hand-off, the overhead of an op. The probe runs the model's own ops on
//! matrices of its shapes, because narrow matrices are read more slowly than wide ones, and small
//! models fit in caches.

mod crossover;
mod prompts;

use std::sync::Arc;
use std::time::{Duration, Instant};

use hal::format::Format;
use hal::op::{
    Activation, Add, Down, FfnKind, MatMul, Merge, NEVER_DENSE, Op, Post, Skip, SparseFfn,
};
use hal::{
    BatchFacts, BatchSeq, BatchShape, BatchToken, Bytes, Device, DeviceKind, Error, HostRows,
    MailboxShape, PackDesc, Program, Queue, Result, Rows, Select, Source, Tensor,
};

use placement::Speed;

pub use crossover::dense_from;

/// Bytes of weights to read on GPUs and on CPUs: larger than their caches, which have up to
/// hundreds of megabytes. Less for a smaller model, but at least [`MIN_SIZE`]; at most a quarter of
/// the free memory.
const SIZE: Bytes = Bytes(256 << 20);
const CPU_SIZE: Bytes = Bytes(1 << 30);
const MIN_SIZE: Bytes = Bytes(4 << 20);
/// One of this many neurons is active.
const STRIDE: usize = 8;
/// Number of passes. The fastest pass is used, because disturbances only add time. After
/// [`TIME_LIMIT`], two passes are sufficient.
const PASSES: usize = 5;
const TIME_LIMIT: Duration = Duration::from_millis(400);
/// Number of hand-offs, or of ops, in one program.
const REPEATS: usize = 16;
/// Maximum number of layers of a program.
const MAX_LAYERS: usize = 64;
/// Bytes per second that every cache exceeds: slower reads came from memory, so the size suffices.
const MIN_CACHE_RATE: f64 = 2e9;

/// The shape that devices are measured with: the feed-forward blocks of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Format of the matrices.
    pub format: Format,
    /// Width of the residual.
    pub n_embd: usize,
    /// Neurons of a layer.
    pub n_ff: usize,
    /// Size of the model.
    pub size: Bytes,
    /// Whether a predictor lists the active neurons; otherwise the gate decides.
    pub listed: bool,
    /// Whether neurons are skipped, so that devices transpose down.
    pub skips: bool,
}

impl Shape {
    /// The shape of a model with seven billion weights.
    #[must_use]
    pub const fn of_7b_model(format: Format) -> Shape {
        Shape {
            format,
            n_embd: 4096,
            n_ff: 11008,
            size: Bytes(4 << 30),
            listed: false,
            skips: true,
        }
    }

    fn row_bytes(&self) -> usize {
        self.format.row_bytes(self.n_embd).unwrap_or(4 * self.n_embd).max(1)
    }
}

/// Measures `device`, which has `free` bytes, with weights of `shape`. Takes one or two seconds,
/// and frees the memory that it allocated.
///
/// # Errors
/// Errors of the device, including unsupported ops.
pub fn speed(device: &Device, shape: &Shape, free: Option<Bytes>) -> Result<Speed> {
    let size = if device.info().kind == DeviceKind::Cpu { CPU_SIZE } else { SIZE };
    let most = size.min(shape.size).max(MIN_SIZE).min(Bytes(free.map_or(u64::MAX, |b| b.0 / 4)));
    let mut queue = device.queue("probe")?;
    let mut probe = Probe::new(device, shape, MIN_SIZE, most)?;
    let op = probe.op(&mut queue)?;
    let mut dense = probe.dense(&mut queue, op)?;
    if dense > MIN_CACHE_RATE && probe.layers.len() < probe.max_layers {
        drop(probe);
        probe = Probe::new(device, shape, most, most)?;
        dense = probe.dense(&mut queue, op)?;
    }
    let sparse = probe.sparse(&mut queue, op, dense)?;
    let hand_off = if device.info().hand_off { probe.hand_off(&mut queue)? } else { 0.0 };
    let refill = probe.refill(&mut queue)?;
    let prompt = or_zero(probe.prompt(&mut queue))?;
    let upload = or_zero(probe.upload(&mut queue))?;
    Ok(Speed { dense, sparse, hand_off, op, refill, prompt, upload })
}

/// Replaces the error of an unsupported op or of missing memory by 0, which disables the feature on
/// this device.
fn or_zero(measured: Result<f64>) -> Result<f64> {
    match measured {
        Err(Error::Unsupported { .. } | Error::OutOfMemory { .. }) => Ok(0.0),
        measured => measured,
    }
}

/// Rounds `value` to two significant digits, so that plans do not change from one measurement to
/// the next.
#[must_use]
pub fn round_to_two_digits(value: f64) -> f64 {
    if value > 0.0 && value.is_finite() {
        format!("{value:.1e}").parse().unwrap_or(0.0)
    } else {
        0.0
    }
}

struct Probe {
    device: Device,
    shape: Shape,
    /// Gate, up and down of each layer, stacked.
    layers: Vec<Tensor>,
    max_layers: usize,
    n_ff: usize,
    x: Tensor,
}

impl Probe {
    /// Allocates weights of about `size` bytes, at most `most`.
    fn new(device: &Device, shape: &Shape, size: Bytes, most: Bytes) -> Result<Probe> {
        let row = shape.row_bytes() as u64;
        let limit = most.min(device.info().max_binding).0 / 3 / row;
        // A multiple of 64 rows is a whole number of scale groups in any transposed layout.
        let n_ff = (limit.min(shape.n_ff as u64) / 64).max(1) as usize * 64;
        let layer = 3 * n_ff as u64 * row;
        let n_layers = |size: Bytes| (size.0 / layer).clamp(1, MAX_LAYERS as u64) as usize;
        // Each layer has its own rows: the CPU uses them in place, and shared rows would come from
        // its cache. The rows are not zeros, because untouched pages all map to one physical page.
        let rows = || {
            let source = Source::Owned(Arc::new(vec![0x3c_u8; layer as usize]));
            HostRows::new(source, 3 * n_ff, shape.n_embd, shape.format)
        };
        let mut queue = device.queue("probe")?;
        let x = device.alloc_f32("probe", 1, shape.n_embd)?;
        queue.write(&x, bytemuck::cast_slice(&vec![0.5f32; shape.n_embd]))?;
        let import = |_| {
            let rows = rows()?;
            device.import("probe", &PackDesc::whole(rows.desc()), &rows)
        };
        Ok(Probe {
            device: device.clone(),
            shape: *shape,
            layers: (0..n_layers(size)).map(import).collect::<Result<_>>()?,
            max_layers: n_layers(most),
            n_ff,
            x,
        })
    }

    fn matrix_bytes(&self) -> f64 {
        (self.n_ff * self.shape.row_bytes()) as f64
    }

    fn program(&self, ops: Vec<Op>) -> Result<Program> {
        let mut recorder = self.device.record("probe");
        ops.into_iter().try_for_each(|op| recorder.push(op))?;
        recorder.finish()
    }

    /// Seconds of the fastest pass.
    fn time(&self, queue: &mut Queue, program: &Program) -> Result<f64> {
        let (mut least, first) = (f64::INFINITY, Instant::now());
        for pass in 0..PASSES {
            if pass >= 2 && first.elapsed() > TIME_LIMIT {
                break;
            }
            let begin = Instant::now();
            queue.replay(program)?.wait()?;
            queue.finish()?;
            least = least.min(begin.elapsed().as_secs_f64());
        }
        Ok(least.max(1e-9))
    }

    fn floats(&self, n: usize) -> Result<Tensor> {
        self.device.alloc_f32("probe", 1, n)
    }

    /// `seconds - overhead`, but at least a tenth of `seconds`: smaller differences are lost in the
    /// noise of the timer.
    fn subtract_overhead(seconds: f64, overhead: f64) -> f64 {
        (seconds - overhead).max(seconds / 10.0)
    }

    fn dense(&self, queue: &mut Queue, op: f64) -> Result<f64> {
        let y = self.floats(self.n_ff)?;
        let product = |w: Tensor| MatMul { w, x: self.x.clone(), bias: None, y: y.clone() }.into();
        let matrix = |layer: &Tensor, n: usize| layer.rows(n * self.n_ff..(n + 1) * self.n_ff);
        let matrices = self.layers.iter().flat_map(|layer| (0..3).map(move |n| matrix(layer, n)));
        let ops: Vec<Op> = matrices.map(product).collect();
        let n_ops = ops.len() as f64;
        let seconds = self.time(queue, &self.program(ops)?)?;
        Ok(n_ops * self.matrix_bytes() / Self::subtract_overhead(seconds, n_ops * op))
    }

    /// Bytes per second of the rows that are read only for active neurons, if every eighth neuron
    /// is active.
    fn sparse(&self, queue: &mut Queue, op: f64, dense: f64) -> Result<f64> {
        let n_ff = self.n_ff;
        let count = n_ff / STRIDE;
        let active = self.floats(1)?;
        queue.write(&active, bytemuck::bytes_of(&0f32))?;
        let listed = if self.shape.listed {
            let set = self.device.row_set(count, 1)?;
            let ids: Vec<u32> = (0..count).map(|i| (i * STRIDE) as u32).collect();
            queue.write(&set.ids, bytemuck::cast_slice(&ids))?;
            queue.write(&set.count, bytemuck::bytes_of(&(count as u32)))?;
            queue.write(&set.members, bytemuck::cast_slice(&vec![1u32; count]))?;
            Some(set)
        } else {
            None
        };
        // The biases decide which neurons are active, for any weights.
        let bias_of = |n: usize| if n.is_multiple_of(STRIDE) { 1e9f32 } else { -1e9 };
        let bias = self.floats(n_ff)?;
        queue.write(&bias, bytemuck::cast_slice(&(0..n_ff).map(bias_of).collect::<Vec<_>>()))?;
        let y = self.floats(self.shape.n_embd)?;
        let block = |layer: &Tensor| SparseFfn {
            gate: Some(layer.rows(0..n_ff)),
            up: layer.rows(n_ff..2 * n_ff),
            down: layer.rows(2 * n_ff..3 * n_ff),
            bias_gate: Some(bias.clone()),
            bias_up: None,
            bias_down: None,
            threshold: None,
            expert_weights: None,
            rows: listed.clone().map_or(Rows::All, Rows::Active),
            x: self.x.clone(),
            y: y.clone(),
            active: active.clone(),
            hits: None,
            union: None,
            kind: FfnKind::Gated,
            activation: Activation::Relu,
            skip: Skip::NotPositive,
            orientation: Down::ByNeuron,
            experts: None,
            dense_from: NEVER_DENSE,
            accumulate: false,
        };
        let program =
            self.program(self.layers.iter().map(|layer| block(layer).into()).collect())?;
        let seconds = self.time(queue, &program)? / self.layers.len() as f64;
        let (tested, used) =
            if self.shape.listed { (0.0, 3.0) } else { (self.matrix_bytes() / dense, 2.0) };
        let bytes = used * (count * self.shape.row_bytes()) as f64;
        Ok((bytes / Self::subtract_overhead(seconds, tested + op)).min(dense))
    }

    /// Seconds to pack one neuron of the file and write it into a slot. In float formats, the
    /// neuron is a column of the file's matrix.
    fn refill(&self, queue: &mut Queue) -> Result<f64> {
        let Shape { n_embd, format, .. } = self.shape;
        // A multiple of 256 rows is a whole number of blocks and scale groups in any format.
        let n_ff = self.n_ff.min(4096).next_multiple_of(256);
        let transpose = format.quants().is_none();
        let (n_rows, n_cols) = if transpose { (n_embd, n_ff) } else { (n_ff, n_embd) };
        let row = format.row_bytes(n_cols).unwrap_or(4 * n_cols);
        let source = Source::Owned(Arc::new(vec![0x3c_u8; n_rows * row]));
        let rows = HostRows::new(source, n_rows, n_cols, format)?;
        let select = Select::Rows((0..REPEATS as u32).collect());
        let pack = PackDesc { select, transpose, ..PackDesc::whole(rows.desc()) };
        let slots = self.device.import("probe", &pack, &rows)?;
        let mut least = f64::INFINITY;
        for pass in 0..PASSES {
            let begin = Instant::now();
            for slot in 0..REPEATS {
                let row = ((pass * REPEATS + slot) * STRIDE % n_ff) as u32;
                let bytes = self.device.pack_rows(&pack, &rows, row..row + 1)?;
                queue.refill(&slots, slot..slot + 1, &bytes)?;
            }
            queue.finish()?;
            least = least.min(begin.elapsed().as_secs_f64());
        }
        Ok(least / REPEATS as f64)
    }

    /// Overhead of one op, in seconds.
    fn op(&self, queue: &mut Queue) -> Result<f64> {
        let n = self.shape.n_embd;
        let (a, x) = (self.floats(n)?, self.floats(n)?);
        let add = || Op::from(Add { a: a.clone(), x: x.clone() });
        let one = self.program(vec![add()])?;
        let many = self.program((0..=REPEATS).map(|_| add()).collect())?;
        let (one, many) = (self.time(queue, &one)?, self.time(queue, &many)?);
        Ok(((many - one) / REPEATS as f64).max(0.0))
    }

    /// Seconds of a hand-off that the host answers immediately.
    fn hand_off(&self, queue: &mut Queue) -> Result<f64> {
        let shape = BatchShape { max_tokens: 1, max_seqs: 1, max_blocks: 1 };
        let batch = self.device.batch(shape)?;
        let token = BatchToken { id: 0, seq: 0, pos: 0, output: false };
        let seq = BatchSeq { blocks: vec![0], len: 1 };
        let words = BatchFacts { tokens: vec![token], seqs: vec![seq] }.encode(&shape, 1, 1)?;
        queue.write(&batch.words, bytemuck::cast_slice(&words))?;
        let n = self.shape.n_embd;
        let shape = MailboxShape { max_tokens: 1, n_in: n, n_weights: 0, n_out: n, max_rows: 0 };
        let y = self.floats(n)?;
        let mut recorder = self.device.record("probe");
        for _ in 0..REPEATS {
            let mailbox = recorder.mailbox(&self.device.mailbox(shape)?)?;
            let (x, batch) = (self.x.clone(), batch.clone());
            let post = Post { x, batch: batch.clone(), rows: None, weights: None, mailbox };
            recorder.push(post)?;
            recorder.push(Merge { batch, y: y.clone(), mailbox, accumulate: false })?;
        }
        let program = recorder.finish()?;
        let answer = vec![0f32; n];
        let mut least = f64::INFINITY;
        for _ in 0..PASSES {
            let begin = Instant::now();
            let mut run = queue.replay(&program)?;
            while run.next_post()?.is_some() {
                run.answer(&answer)?;
            }
            run.wait()?;
            least = least.min(begin.elapsed().as_secs_f64());
        }
        Ok(least / REPEATS as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_has_a_speed_in_every_kind_of_format() {
        let cpu = runtime::devices::cpu(Some(1));
        for format in [Format::F16, Format::Q4_0, Format::Q6_K] {
            for listed in [false, true] {
                let shape = Shape { listed, n_embd: 512, n_ff: 700, ..Shape::of_7b_model(format) };
                let speed = speed(&cpu, &shape, Some(Bytes(32 << 20))).unwrap();
                assert!(speed.dense > 1e6 && speed.sparse > 1e6, "{format:?}: {speed:?}");
                assert!(speed.sparse <= speed.dense && speed.hand_off == 0.0 && speed.op < 0.1);
                assert!(speed.prompt > 1e6 && speed.upload == 0.0, "{format:?}: {speed:?}");
            }
        }
    }

    #[test]
    fn rounding_keeps_two_digits() {
        assert_eq!(
            [1234.0, 0.000_018_7, 99.9, 0.0, -1.0].map(round_to_two_digits),
            [1200.0, 0.000_019, 100.0, 0.0, 0.0]
        );
    }
}
