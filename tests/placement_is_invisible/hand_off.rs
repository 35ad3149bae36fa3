//! Hand-offs that end early: by an interrupt, by an error, or by a panic on the host.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use hal::{
    BackendQueue, DeviceInfo, HostRows, MailboxShape, MemoryReport, Op, OpDesc, PackDesc, Plan,
    RawBuffer, RawMailbox, RawProgram, RawRun, RawStaging, RawTransfer, Result, Tensor, TensorDesc,
};
use thermocline::engine::{Error, Observed};

use super::*;

#[test]
fn an_interrupt_leaves_the_text_where_it_was() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let expected = logits(&mut load(&model, vec![cpu_device(2)], None), &[1]);
        let (_, device) = sim_device(1, Bytes::MAX, Duration::ZERO..Duration::from_micros(300), 5);
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let mut placement = random_placement(&mut rng, &model, 2, 1);
        let half = |range: Range<u32>| Neurons::List(range.collect());
        placement.layers[1] = LayerPlacement {
            home: 1,
            shares: vec![
                Share { device: 1, neurons: half(0..40) },
                Share { device: 0, neurons: half(40..96) },
            ],
        };
        let mut engine = load(&model, vec![cpu_device(2), device], Some(placement));
        let mut session = engine.open();
        for (i, &token) in TEXT.iter().enumerate() {
            let stop = AtomicBool::new(true);
            let stopped = engine.feed(&mut session, &[token], Want::Last, &stop, &mut |_, _| {});
            assert!(matches!(stopped, Err(thermocline::engine::Error::Interrupted)), "{stopped:?}");
            assert_eq!(session.tokens(), &TEXT[..i]);
            let go_on = AtomicBool::new(false);
            let mut row = Vec::new();
            let each = &mut |_: usize, logits: &[f32]| row = logits.to_vec();
            engine.feed(&mut session, &[token], Want::Last, &go_on, each).unwrap();
            let one = |row: &Vec<f32>| vec![row.clone()];
            assert!(difference(&one(&expected[i]), &one(&row)) <= bound(Format::F16), "token {i}");
        }
    });
}

/// The CPU, except that one replay fails: by a panic, or by an error.
#[derive(Debug)]
struct Faulty {
    cpu: Arc<CpuBackend>,
    /// Number of replays that still succeed; `u64::MAX` for all.
    left: Arc<AtomicU64>,
    by_panic: bool,
}

#[derive(Debug)]
struct FaultyQueue {
    queue: Box<dyn BackendQueue>,
    left: Arc<AtomicU64>,
    by_panic: bool,
}

impl Backend for Faulty {
    fn info(&self) -> &DeviceInfo {
        self.cpu.info()
    }
    fn memory(&self) -> Result<MemoryReport> {
        self.cpu.memory()
    }
    fn plan(&self, op: &OpDesc) -> Plan {
        self.cpu.plan(op)
    }
    fn alloc_size(&self, desc: &TensorDesc) -> Bytes {
        self.cpu.alloc_size(desc)
    }
    fn alloc(&self, label: &str, desc: &TensorDesc) -> Result<Box<dyn RawBuffer>> {
        self.cpu.alloc(label, desc)
    }
    fn pack_size(&self, pack: &PackDesc, mapped: bool) -> Bytes {
        self.cpu.pack_size(pack, mapped)
    }
    fn import(&self, label: &str, pack: &PackDesc, rows: &HostRows) -> Result<Box<dyn RawBuffer>> {
        self.cpu.import(label, pack, rows)
    }
    fn pack_rows(&self, pack: &PackDesc, source: &HostRows, rows: Range<u32>) -> Result<Vec<u8>> {
        self.cpu.pack_rows(pack, source, rows)
    }
    fn staging(&self, len: Bytes) -> Result<Box<dyn RawStaging>> {
        self.cpu.staging(len)
    }
    fn mailbox(&self, shape: MailboxShape) -> Result<Arc<dyn RawMailbox>> {
        self.cpu.mailbox(shape)
    }
    fn compile(
        &self,
        label: &str,
        ops: &[Op],
        mailboxes: &[Arc<dyn RawMailbox>],
        workspace: Option<&Tensor>,
    ) -> Result<Arc<dyn RawProgram>> {
        self.cpu.compile(label, ops, mailboxes, workspace)
    }
    fn queue(&self, label: &str) -> Result<Box<dyn BackendQueue>> {
        let (left, by_panic) = (Arc::clone(&self.left), self.by_panic);
        Ok(Box::new(FaultyQueue { queue: self.cpu.queue(label)?, left, by_panic }))
    }
}

impl BackendQueue for FaultyQueue {
    fn replay(&mut self, program: &Arc<dyn RawProgram>) -> Result<Box<dyn RawRun>> {
        match self.left.load(Ordering::Relaxed) {
            u64::MAX => {}
            0 => {
                self.left.store(u64::MAX, Ordering::Relaxed);
                if self.by_panic {
                    // Not `panic!`: its message on stderr would look like a failed test.
                    std::panic::resume_unwind(Box::new("planted"));
                }
                let (call, message) = ("planted".to_owned(), String::new());
                return Err(hal::Error::Driver { call, code: 0, message });
            }
            n => self.left.store(n - 1, Ordering::Relaxed),
        }
        self.queue.replay(program)
    }
    fn upload(&mut self, src: Box<dyn RawStaging>, dst: &Tensor) -> Result<Box<dyn RawTransfer>> {
        self.queue.upload(src, dst)
    }
    fn download(&mut self, src: &Tensor, dst: Box<dyn RawStaging>) -> Result<Box<dyn RawTransfer>> {
        self.queue.download(src, dst)
    }
    fn refill(&mut self, pack: &Tensor, slots: Range<usize>, bytes: &[u8]) -> Result<()> {
        self.queue.refill(pack, slots, bytes)
    }
    fn repack(&mut self, src: Box<dyn RawStaging>, dst: &Tensor) -> Result<Box<dyn RawTransfer>> {
        self.queue.repack(src, dst)
    }
    fn copy_rows(&mut self, src: &Tensor, dst: &Tensor) -> Result<()> {
        self.queue.copy_rows(src, dst)
    }
    fn finish(&mut self) -> Result<()> {
        self.queue.finish()
    }
}

/// A panic or an error of the host between a post and its answer, while another device computes
/// its share: no device is left waiting, and the same text continues.
#[test]
fn a_host_that_fails_in_a_hand_off_leaves_nobody_waiting() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let expected = logits(&mut load(&model, vec![cpu_device(2)], None), &[23]);
        for by_panic in [true, false] {
            let left = Arc::new(AtomicU64::new(u64::MAX));
            let cpu = CpuBackend::new(CpuOptions { threads: Some(2), ..Default::default() });
            let cpu = Arc::new(Faulty { cpu, left: Arc::clone(&left), by_panic });
            let delay = Duration::ZERO..Duration::from_micros(80);
            let (_, a) = sim_device(1, Bytes::MAX, delay.clone(), 1);
            let (_, b) = sim_device(2, Bytes::MAX, delay, 2);
            let layers =
                [[1, 2, 0], [2, 0, 1], [1, 0, 2]].map(|devices| deal(&model, &devices)).into();
            let placement = Placement { embed: 0, head: 2, layers };
            let devices = vec![Device::new(cpu, DeviceId(0), Bytes::MAX), a, b];
            let mut engine = load(&model, devices, Some(placement));
            let mut session = engine.open();
            let go_on = AtomicBool::new(false);
            // Replays of the CPU in a step: the embedding, then a share of each layer.
            for (i, &token) in TEXT[..12].iter().enumerate() {
                left.store(i as u64 % 4, Ordering::Relaxed);
                let failed = catch_unwind(AssertUnwindSafe(|| {
                    engine.feed(&mut session, &[token], Want::Last, &go_on, &mut |_, _| {})
                }));
                match (by_panic, failed) {
                    (true, Err(_)) => {}
                    (false, Ok(Err(Error::Device(hal::Error::Driver { .. })))) => {}
                    (_, other) => panic!("token {i}: {other:?}"),
                }
                assert_eq!(session.tokens(), &TEXT[..i]);
                let mut row = vec![Vec::new()];
                let each = &mut |_: usize, logits: &[f32]| row[0] = logits.to_vec();
                engine.feed(&mut session, &[token], Want::Last, &go_on, each).unwrap();
                let expected = vec![expected[i].clone()];
                assert!(difference(&expected, &row) <= bound(Format::F16), "token {i}");
            }
        }
    });
}

/// A model whose layers are split between a device and the CPU.
fn shared(model: &Arc<Model>) -> Engine {
    let (_, device) = sim_device(1, Bytes::MAX, Duration::ZERO..Duration::from_micros(50), 3);
    let layers = vec![deal(model, &[1, 0]); 3];
    let placement = Placement { embed: 1, head: 1, layers };
    load(model, vec![cpu_device(2), device], Some(placement))
}

#[test]
fn a_panic_of_who_observes_leaves_the_text_where_it_was() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let expected = logits(&mut load(&model, vec![cpu_device(2)], None), &[1]);
        let mut engine = shared(&model);
        let (mut session, mut other) = (engine.open(), engine.open());
        let go_on = AtomicBool::new(false);
        for (i, &token) in TEXT[..6].iter().enumerate() {
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                let each = &mut |_: usize, _: &Observed<'_>| {
                    std::panic::resume_unwind(Box::new("planted"));
                };
                engine.observe(&mut session, &[token], &go_on, each)
            }));
            assert!(panicked.is_err());
            assert_eq!(session.tokens(), &TEXT[..i]);
            // Two texts at once, which must not share parts of the cache.
            for session in [&mut session, &mut other] {
                let mut row = vec![Vec::new()];
                let each = &mut |_: usize, logits: &[f32]| row[0] = logits.to_vec();
                engine.feed(session, &[token], Want::Last, &go_on, each).unwrap();
                assert!(difference(&vec![expected[i].clone()], &row) <= bound(Format::F16));
            }
        }
    });
}

#[test]
fn a_panic_of_who_takes_the_logits_leaves_the_text_where_it_was() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let expected = logits(&mut load(&model, vec![cpu_device(2)], None), &[1]);
        let mut engine = shared(&model);
        let mut session = engine.open();
        let go_on = AtomicBool::new(false);
        for (i, &token) in TEXT.iter().enumerate() {
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                let each =
                    &mut |_: usize, _: &[f32]| std::panic::resume_unwind(Box::new("planted"));
                engine.feed(&mut session, &[token], Want::Last, &go_on, each)
            }));
            assert!(panicked.is_err());
            assert_eq!(session.tokens(), &TEXT[..i]);
            let mut row = vec![Vec::new()];
            let each = &mut |_: usize, logits: &[f32]| row[0] = logits.to_vec();
            engine.feed(&mut session, &[token], Want::Last, &go_on, each).unwrap();
            assert!(difference(&vec![expected[i].clone()], &row) <= bound(Format::F16));
        }
    });
}
