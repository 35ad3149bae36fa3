//! A device with a queue, small programs, and the watchdog.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use hal::op::{Add, Merge, Post};
use hal::{
    Batch, BatchFacts, BatchSeq, BatchShape, BatchToken, Bytes, Device, DeviceId, Error,
    MailboxShape, Operand, Program, Queue, Tensor,
};
use thermocline_sim::{SimBackend, SimOptions};

/// Runs per test, each with different delays. Increase the number to look for races.
const REPEAT: u64 = 5;

/// Longest duration of one run.
const LIMIT: Duration = Duration::from_secs(20);

/// Runs `test` with different seeds and fails if a run takes longer than [`LIMIT`].
pub(crate) fn repeat(test: impl Fn(u64) + Send + Sync + 'static) {
    let test = Arc::new(test);
    for seed in 0..REPEAT {
        let test = Arc::clone(&test);
        within_limit(move || test(seed));
    }
}

/// Fails if `test` takes longer than [`LIMIT`].
pub(crate) fn within_limit(test: impl FnOnce() + Send + 'static) {
    let (done, wait) = channel();
    let thread = thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    match wait.recv_timeout(LIMIT) {
        Err(RecvTimeoutError::Timeout) => panic!("a wait did not end within {LIMIT:?}"),
        Ok(()) | Err(RecvTimeoutError::Disconnected) => {
            if let Err(panic) = thread.join() {
                resume_unwind(panic);
            }
        }
    }
}

/// Columns of every tensor in these tests.
pub(crate) const COLS: usize = 8;
/// Rows of every tensor in these tests: [`REAL`] tokens, then padding.
pub(crate) const ROWS: usize = 4;
/// Tokens of every step, without padding.
pub(crate) const REAL: usize = 2;

pub(crate) struct Rig {
    pub(crate) sim: Arc<SimBackend>,
    pub(crate) device: Device,
    pub(crate) queue: Queue,
}

impl Rig {
    pub(crate) fn new(seed: u64) -> Rig {
        let delay = Duration::ZERO..Duration::from_micros(200);
        Rig::with_options(SimOptions { seed, delay, ..SimOptions::default() })
    }

    pub(crate) fn with_options(options: SimOptions) -> Rig {
        let sim = SimBackend::new(options);
        let device = Device::new(Arc::clone(&sim) as _, DeviceId(0), Bytes::MAX);
        let queue = device.queue("test").unwrap();
        Rig { sim, device, queue }
    }

    /// A `[ROWS, COLS]` tensor filled with one value.
    pub(crate) fn full(&mut self, value: f32) -> Tensor {
        let tensor = self.device.alloc_f32("test", ROWS, COLS).unwrap();
        self.write(&tensor, &[value; ROWS * COLS]);
        tensor
    }

    pub(crate) fn write(&mut self, tensor: &Tensor, values: &[f32]) {
        self.queue.write(tensor, bytemuck::cast_slice(values)).unwrap();
    }

    pub(crate) fn read(&mut self, tensor: &Tensor) -> Vec<f32> {
        let desc = tensor.desc();
        let mut out = vec![0.0; desc.n_rows * desc.n_cols];
        self.queue.read_f32(tensor, &mut out).unwrap();
        out
    }

    pub(crate) fn wait_for_hang(&self) {
        while self.sim.failures().hang_after.is_some() {
            thread::yield_now();
        }
    }

    /// A batch of [`REAL`] tokens.
    pub(crate) fn batch(&mut self) -> Batch<Tensor> {
        let shape = BatchShape { max_tokens: ROWS, max_seqs: 1, max_blocks: 1 };
        let token = |pos| BatchToken { id: 0, seq: 0, pos, output: false };
        let facts = BatchFacts {
            tokens: (0..REAL as u32).map(token).collect(),
            seqs: vec![BatchSeq { blocks: vec![0], len: REAL as u32 }],
        };
        let words = facts.encode(&shape, 1, 1).unwrap();
        let batch = self.device.batch(shape).unwrap();
        self.queue.write(&batch.words, bytemuck::cast_slice(&words)).unwrap();
        batch
    }

    /// `x += a`.
    pub(crate) fn add(&self, a: &Tensor, x: &Tensor) -> Program {
        let mut program = self.device.record("add");
        program.push(Add { a: a.clone(), x: x.clone() }).unwrap();
        program.finish().unwrap()
    }

    /// [`Rig::split`] with `x` full of twos, `a` of ones and `y` of zeros; also returns `y`.
    pub(crate) fn step(&mut self, n: usize) -> (Program, Tensor) {
        let [x, a, y] = [2.0, 1.0, 0.0].map(|value| self.full(value));
        (self.split(n, &x, &a, &y), y)
    }

    /// A step with `n` hand-offs. Each posts `x`, does `y += a` on the device and adds the host's
    /// answer to `y`.
    pub(crate) fn split(&mut self, n: usize, x: &Tensor, a: &Tensor, y: &Tensor) -> Program {
        let batch = self.batch();
        let mut program = self.device.record("split");
        for _ in 0..n {
            let shape = MailboxShape {
                max_tokens: ROWS,
                n_in: COLS,
                n_weights: 0,
                n_out: COLS,
                max_rows: 0,
            };
            let mailbox = program.mailbox(&self.device.mailbox(shape).unwrap()).unwrap();
            let batch = batch.clone();
            program
                .push(Post {
                    x: x.clone(),
                    batch: batch.clone(),
                    rows: None,
                    weights: None,
                    mailbox,
                })
                .unwrap();
            program.push(Add { a: a.clone(), x: y.clone() }).unwrap();
            let y = y.clone();
            program.push(Merge { batch, y, mailbox, accumulate: true }).unwrap();
        }
        program.finish().unwrap()
    }
}

/// The host's answer to a post of [`REAL`] tokens.
pub(crate) const ANSWER: [f32; REAL * COLS] = [10.0; REAL * COLS];

/// Values of a tensor with `real` in the rows of tokens and `padding` in the padding rows.
pub(crate) fn rows(real: f32, padding: f32) -> Vec<f32> {
    let mut values = vec![real; ROWS * COLS];
    values[REAL * COLS..].fill(padding);
    values
}

/// Fails unless `result` is [`hal::Error::DeviceLost`].
#[track_caller]
pub(crate) fn assert_lost<T>(result: hal::Result<T>) {
    match result {
        Err(Error::DeviceLost { .. }) => {}
        Err(error) => panic!("expected a lost device, got: {error}"),
        Ok(_) => panic!("a call on a lost device succeeded"),
    }
}
