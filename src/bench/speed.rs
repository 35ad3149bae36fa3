//! How fast a device is at what the planner asks about: a matrix read whole, rows read here and there, a hand-off, an
//! op beside its bytes. Measured with the very ops that a model runs.

use std::sync::Arc;
use std::time::Instant;

use hal::format::Format;
use hal::op::{Activation, Add, Down, FfnKind, MatMul, Merge, Op, Post, Skip, SparseFfn};
use hal::{
    BatchFacts, BatchSeq, BatchShape, BatchToken, Bytes, Device, HostRows, MailboxShape, PackDesc,
    Program, Queue, Result, Rows, Source, Tensor,
};

use crate::placement::Speed;

/// Larger than the caches of most processors; less where there is less memory.
const SIZE: Bytes = Bytes(256 << 20);
const LEAST: Bytes = Bytes(4 << 20);
/// Width of the rows, as in a model of seven billion weights.
const N_COLS: usize = 4096;
/// Every so many rows are read where single rows are.
const EVERY: usize = 8;
/// Passes of which the fastest counts: others only add to what is measured.
const PASSES: usize = 4;
/// Hand-offs, and ops, of one program.
const MANY: usize = 16;

/// Measures `device`, which has `free` bytes, with weights of `format`. Takes under a second; what it allocates is
/// gone afterwards.
///
/// # Errors
/// What the device refuses or reports.
pub fn speed(device: &Device, format: Format, free: Option<Bytes>) -> Result<Speed> {
    let room = free.unwrap_or(Bytes::MAX).0;
    let size = SIZE.0.min(room / 4).max(LEAST.0.min(room / 2));
    let probe = Probe::new(device, format, Bytes(size))?;
    let mut queue = device.queue("probe")?;
    let op = probe.op(&mut queue)?;
    let dense = probe.dense(&mut queue)?;
    let sparse = probe.sparse(&mut queue)?;
    let hand_off = match device.info().hand_off {
        true => probe.hand_off(&mut queue)?,
        false => 0.0,
    };
    Ok(Speed { dense, sparse: sparse.min(dense), hand_off, op })
}

/// `value` with two digits that count, so that plans made from it do not change from one measurement to the next.
#[must_use]
pub fn steady(value: f64) -> f64 {
    match value > 0.0 && value.is_finite() {
        true => format!("{value:.1e}").parse().unwrap_or(0.0),
        false => 0.0,
    }
}

struct Probe {
    device: Device,
    weights: Tensor,
    row_bytes: f64,
    x: Tensor,
}

impl Probe {
    fn new(device: &Device, format: Format, size: Bytes) -> Result<Probe> {
        let row = format.row_bytes(N_COLS).unwrap_or(4 * N_COLS);
        // A device cannot bind more; two halves of whole groups of rows.
        let size = size.0.min(device.info().max_binding.0) as usize;
        let n_rows = (size / row / 64).max(2) * 64;
        // Not zeros: pages that were never written are one page.
        let source = Source::Owned(Arc::new(vec![0x3c_u8; n_rows * row]));
        let rows = HostRows::new(source, n_rows, N_COLS, format)?;
        let mut queue = device.queue("probe")?;
        let x = device.alloc_f32("probe", 1, N_COLS)?;
        queue.write(&x, bytemuck::cast_slice(&vec![0.5f32; N_COLS]))?;
        Ok(Probe {
            device: device.clone(),
            weights: device.import("probe", &PackDesc::whole(rows.desc()), &rows)?,
            row_bytes: row as f64,
            x,
        })
    }

    fn n_rows(&self) -> usize {
        use hal::Operand;
        self.weights.desc().n_rows
    }

    fn program(&self, ops: Vec<Op>) -> Result<Program> {
        let mut recorder = self.device.record("probe");
        ops.into_iter().try_for_each(|op| recorder.push(op))?;
        recorder.finish()
    }

    /// Seconds of the fastest pass.
    fn time(&self, queue: &mut Queue, program: &Program) -> Result<f64> {
        let mut least = f64::INFINITY;
        for _ in 0..PASSES {
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

    fn dense(&self, queue: &mut Queue) -> Result<f64> {
        let (w, x) = (self.weights.clone(), self.x.clone());
        let y = self.floats(self.n_rows())?;
        let program = self.program(vec![MatMul { w, x, bias: None, y }.into()])?;
        Ok(self.n_rows() as f64 * self.row_bytes / self.time(queue, &program)?)
    }

    /// One row of up and one of down for every eighth neuron.
    fn sparse(&self, queue: &mut Queue) -> Result<f64> {
        let half = self.n_rows() / 2;
        let count = half / EVERY;
        let set = self.device.row_set(count, 1)?;
        let ids: Vec<u32> = (0..count).map(|i| (i * EVERY) as u32).collect();
        queue.write(&set.ids, bytemuck::cast_slice(&ids))?;
        queue.write(&set.count, bytemuck::bytes_of(&(count as u32)))?;
        queue.write(&set.members, bytemuck::cast_slice(&vec![1u32; count]))?;
        let active = self.floats(1)?;
        queue.write(&active, bytemuck::bytes_of(&0f32))?;
        let ffn = SparseFfn {
            gate: None,
            up: self.weights.rows(0..half),
            down: self.weights.rows(half..2 * half),
            bias_gate: None,
            bias_up: None,
            bias_down: None,
            threshold: None,
            group_weight: None,
            rows: Rows::Active(set),
            x: self.x.clone(),
            y: self.floats(N_COLS)?,
            active,
            kind: FfnKind::Plain,
            activation: Activation::Relu,
            skip: Skip::Never,
            orientation: Down::ByNeuron,
            groups: None,
            accumulate: false,
        };
        let program = self.program(vec![ffn.into()])?;
        Ok(2.0 * count as f64 * self.row_bytes / self.time(queue, &program)?)
    }

    /// What one more op takes.
    fn op(&self, queue: &mut Queue) -> Result<f64> {
        let (a, x) = (self.floats(N_COLS)?, self.floats(N_COLS)?);
        let add = || Op::from(Add { a: a.clone(), x: x.clone() });
        let one = self.program(vec![add()])?;
        let many = self.program((0..=MANY).map(|_| add()).collect())?;
        let (one, many) = (self.time(queue, &one)?, self.time(queue, &many)?);
        Ok(((many - one) / MANY as f64).max(0.0))
    }

    /// A post that is answered at once, and the merge of it.
    fn hand_off(&self, queue: &mut Queue) -> Result<f64> {
        let shape = BatchShape { max_tokens: 1, max_seqs: 1, max_blocks: 1 };
        let batch = self.device.batch(shape)?;
        let token = BatchToken { id: 0, seq: 0, pos: 0, output: false };
        let seq = BatchSeq { blocks: vec![0], len: 1 };
        let words = BatchFacts { tokens: vec![token], seqs: vec![seq] }.encode(&shape, 1, 1)?;
        queue.write(&batch.words, bytemuck::cast_slice(&words))?;
        let shape =
            MailboxShape { max_tokens: 1, n_in: N_COLS, n_weights: 0, n_out: N_COLS, max_rows: 0 };
        let y = self.floats(N_COLS)?;
        let mut recorder = self.device.record("probe");
        for _ in 0..MANY {
            let mailbox = recorder.mailbox(&self.device.mailbox(shape)?)?;
            let (x, batch) = (self.x.clone(), batch.clone());
            let post = Post { x, batch: batch.clone(), rows: None, weights: None, mailbox };
            recorder.push(post)?;
            recorder.push(Merge { batch, y: y.clone(), mailbox, accumulate: false })?;
        }
        let program = recorder.finish()?;
        let answer = vec![0f32; N_COLS];
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
        Ok(least / MANY as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_has_a_speed_in_every_kind_of_format() {
        let cpu = crate::devices::cpu(Some(1));
        for format in [Format::F16, Format::Q4_0, Format::Q6_K] {
            let speed = speed(&cpu, format, Some(Bytes(32 << 20))).unwrap();
            assert!(speed.dense > 1e6 && speed.sparse > 1e6, "{format:?}: {speed:?}");
            assert!(speed.sparse <= speed.dense && speed.hand_off == 0.0 && speed.op < 0.1);
        }
    }

    #[test]
    fn two_digits_stay() {
        assert_eq!(
            [1234.0, 0.000_018_7, 99.9, 0.0, -1.0].map(steady),
            [1200.0, 0.000_019, 100.0, 0.0, 0.0]
        );
    }
}
