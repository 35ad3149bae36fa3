//! Tests of both vendors' backends on their fakes. Each test has a device of its own, so that
//! tests can run in parallel.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use hal::format::Format;
use hal::op::{Add, Merge, Post};
use hal::{
    Backend, BatchFacts, BatchSeq, BatchShape, BatchToken, Bytes, Device, DeviceId, Error,
    MailboxShape, Program, Queue, Tensor, TensorDesc,
};
use simt::Options;

use conformance::Case;

use crate::Fake;

/// Number of devices of a fake.
pub const DEVICES: usize = 10;
/// Index of the device whose calls block while it waits for the host.
const BLOCKING_DEVICE: usize = 7;
/// Index of the device that runs the conformance suite together with device 0.
pub const SECOND_DEVICE: usize = 9;
/// Index of the device that tests configure to have wrong matrix instructions, incomplete graphs
/// and blocking graphs.
pub const FAULTY_DEVICE: usize = 8;
/// Memory budget of a test: 1 GiB.
const BUDGET: Bytes = Bytes(1 << 30);

/// Defines the tests that both vendors share, which call the functions of this module. `fake`
/// returns the process's fake driver, `devices` lists its devices, `open` opens a device by its
/// index. Device names are `name` with a number, and descriptions contain `described`. `cases` are
/// the cases of the conformance suite that run.
#[macro_export]
macro_rules! vendor_tests {
    ($fake:path, $devices:path, $open:path, $name:literal, $described:literal, $cases:expr) => {
        #[test]
        fn devices_of_the_fake_are_named_and_described() {
            let Some(_fake) = $fake() else { return };
            let found = $devices().expect("the fake has devices");
            assert_eq!(found.len(), $crate::suite::DEVICES);
            for (number, device) in found.iter().enumerate() {
                assert_eq!(device.name, format!("{}{number}", $name));
                assert!(device.description.contains($described), "{}", device.description);
                assert!(device.memory.0 > 0 && !device.pci.is_empty());
            }
        }

        #[test]
        fn the_fake_conforms() {
            if let Some(fake) = $fake() {
                $crate::suite::conforms(&$open, $crate::suite::SECOND_DEVICE, fake, &$cases);
            }
        }

        #[test]
        fn the_fake_conforms_without_graphs() {
            if let Some(fake) = $fake() {
                $crate::suite::conforms_without_graphs(&$open, fake);
            }
        }

        #[test]
        fn an_allocation_that_does_not_fit_is_an_error() {
            if let Some(fake) = $fake() {
                $crate::suite::runs_out_of_memory(&$open, fake);
            }
        }

        #[test]
        fn every_call_on_a_lost_device_gives_the_same_error() {
            if let Some(fake) = $fake() {
                $crate::suite::a_lost_device_stays_lost(&$open, fake);
            }
        }

        #[test]
        fn a_failed_launch_does_not_lose_the_device() {
            if let Some(fake) = $fake() {
                $crate::suite::a_failed_launch_does_not_lose_the_device(&$open, fake);
            }
        }

        #[test]
        fn calls_that_wait_for_the_device_are_not_made_while_it_waits() {
            if let Some(fake) = $fake() {
                $crate::suite::calls_block_while_the_device_waits(&$open, fake);
            }
        }

        #[test]
        fn devices_and_threads_work_in_parallel() {
            if let Some(fake) = $fake() {
                // In one test, because all three use the same devices.
                $crate::suite::two_devices_work_in_parallel(&$open, fake);
                $crate::suite::threads_load_kernels_in_parallel(&$open);
                $crate::suite::threads_share_a_device(&$open, fake);
            }
        }
    };
}

/// Opens the device with this index.
pub type Open<'a> = &'a (dyn Fn(usize, Options) -> hal::Result<Arc<dyn Backend>> + Sync);

fn device(open: Open<'_>, number: usize, options: Options) -> Device {
    let backend = open(number, options).expect("the fake opens");
    Device::new(backend, DeviceId(number as u32), BUDGET)
}

/// A tensor on the device with one row of `values`.
fn row(device: &Device, queue: &mut Queue, values: &[f32]) -> Tensor {
    let desc = TensorDesc::new(1, values.len(), Format::F32);
    let tensor = device.alloc("row", desc).expect("a row fits");
    queue.write(&tensor, bytemuck::cast_slice(values)).expect("the write succeeds");
    tensor
}

fn read(queue: &mut Queue, tensor: &Tensor, n: usize) -> Vec<f32> {
    let mut values = vec![0.0; n];
    queue.read_f32(tensor, &mut values).expect("the read succeeds");
    values
}

/// A program that does `x += a`, `times` times.
fn add_repeatedly(device: &Device, a: &Tensor, x: &Tensor, times: usize) -> Program {
    let mut recorder = device.record("adding");
    for _ in 0..times {
        recorder.push(Add { a: a.clone(), x: x.clone() }).expect("the op is valid");
    }
    recorder.finish().expect("the program compiles")
}

/// Runs `cases` on device 0 and device `second`, with programs as graphs and hand-offs by flags in
/// memory.
///
/// # Panics
/// Panics with the report if a case fails.
pub fn conforms(open: Open<'_>, second: usize, fake: &Fake, cases: &[Case]) {
    let options = Options { graphs: Some(true), flags: Some(true), ..Options::default() };
    let devices = [0, second].map(|number| device(open, number, options));
    let report = conformance::run_in_parallel(&devices, cases);
    assert_eq!(report.n_failed(), 0, "\n{report}");
    assert!(fake.count(0, "graphs") > 0, "programs run as graphs");
}

/// Runs parts of the conformance suite with separate launches and with submissions that end at
/// hand-offs.
///
/// # Panics
/// Panics with the report if a case fails.
pub fn conforms_without_graphs(open: Open<'_>, fake: &Fake) {
    let options = Options { graphs: Some(false), flags: Some(false), ..Options::default() };
    let device = device(open, 1, options);
    let started = fake.count(1, "graphs");
    for part in
        ["HandOff", "Program", "Sequences", "MatMul/Q4_0", "SparseFfn/Q8_0", "Attention/F16"]
    {
        let report = conformance::run_matching(&device, part);
        assert_eq!(report.n_failed(), 0, "\n{report}");
        assert!(report.passed().count() > 0, "{part}");
    }
    assert_eq!(fake.count(1, "graphs"), started);
}

/// Allocations, loaded modules and new streams may wait for the device, which itself waits for the
/// host's answer in a hand-off: a host that makes such a call first never answers. The fake blocks
/// them, and hand-offs end all the same.
///
/// # Panics
/// On failure.
pub fn calls_block_while_the_device_waits(open: Open<'_>, fake: &Fake) {
    fake.set(&format!("{BLOCKING_DEVICE}:blocking_calls=1"));
    let wait_limit = Some(Duration::from_secs(5));
    let options =
        Options { graphs: Some(true), flags: Some(true), wait_limit, ..Options::default() };
    let device = device(open, BLOCKING_DEVICE, options);
    // The fake does block: an allocation ends after the answer.
    let mut queue = device.queue("waiting").expect("a queue can be opened");
    let (x, y) = (row(&device, &mut queue, &[1.0; 8]), row(&device, &mut queue, &[2.0; 8]));
    let shape = BatchShape { max_tokens: 1, max_seqs: 1, max_blocks: 1 };
    let batch = device.batch(shape).expect("a batch fits");
    let tokens = vec![BatchToken { id: 0, seq: 0, pos: 0, output: true }];
    let seqs = vec![BatchSeq { blocks: vec![0], len: 1 }];
    let words = BatchFacts { tokens, seqs }.encode(&shape, 1, 1).expect("the step fits");
    queue.write(&batch.words, bytemuck::cast_slice(&words)).expect("the write succeeds");
    let shape = MailboxShape { max_tokens: 1, n_in: 8, n_weights: 0, n_out: 8, max_rows: 0 };
    let blocks = device.mailbox(shape).expect("a mailbox fits");
    let mut recorder = device.record("waiting");
    let mailbox = recorder.mailbox(&blocks).expect("the mailbox is the device's");
    let post = Post { x, batch: batch.clone(), rows: None, weights: None, mailbox };
    recorder.push(post).expect("the op is valid");
    recorder.push(Merge { batch, y: y.clone(), mailbox, accumulate: true }).expect("a valid op");
    let program = recorder.finish().expect("the program compiles");
    let mut run = queue.replay(&program).expect("the run starts");
    assert!(run.next_post().expect("a post").is_some());
    std::thread::scope(|scope| {
        let late = scope.spawn(|| device.alloc_f32("late", 1, 8).map(drop));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!late.is_finished(), "the allocation waits for the device");
        run.answer(&[3.0; 8]).expect("the answer is taken");
        late.join().expect("no panic").expect("the memory fits");
    });
    run.wait().expect("the run ends");
    assert_eq!(read(&mut queue, &y, 8), [5.0; 8]);
    for part in ["HandOff", "Sequences", "Program"] {
        let report = conformance::run_matching(&device, part);
        assert_eq!(report.n_failed(), 0, "\n{report}");
        assert!(report.passed().count() > 0, "{part}");
    }
    fake.set(&format!("{BLOCKING_DEVICE}:reset=1"));
}

/// The backend detects wrong matrix instructions and computes correct products without them.
///
/// # Panics
/// On failure.
pub fn avoids_wrong_matrix_units(open: Open<'_>, fake: &Fake) {
    let right = open(FAULTY_DEVICE, Options::default()).expect("the fake opens");
    assert!(!right.info().description.contains("matrix units"), "{:?}", right.info());
    drop(right);
    fake.set(&format!("{FAULTY_DEVICE}:wrong_matrix=1"));
    let device = device(open, FAULTY_DEVICE, Options::default());
    let description = &device.info().description;
    assert!(description.contains("its matrix units are not used"), "{description}");
    for part in ["MatMul/Q4_0", "MatMul/F16", "SparseFfn/F32"] {
        let report = conformance::run_matching(&device, part);
        assert_eq!(report.n_failed(), 0, "\n{report}");
        assert!(report.passed().count() > 0, "{part}");
    }
    fake.set(&format!("{FAULTY_DEVICE}:reset=1"));
}

/// The backend does not use graphs that do not run as captured. If graph launches block the calling
/// thread, kernels do not wait for the host; submissions end at hand-offs instead. The device's
/// description reports both.
///
/// # Panics
/// On failure.
pub fn avoids_bad_graphs(open: Open<'_>, fake: &Fake) {
    let with_graphs = Options { graphs: Some(true), ..Options::default() };
    let reports = |options, remark: &str| {
        let device = device(open, FAULTY_DEVICE, options);
        let found = device.info().described().contains(remark);
        let report = conformance::run_matching(&device, "HandOff");
        assert_eq!(report.n_failed(), 0, "\n{report}");
        found
    };
    // On a busy machine the backend may measure a false delay, so this tries three times.
    assert!((0..3).any(|_| !reports(with_graphs, "so submissions end at hand-offs")));
    fake.set(&format!("{FAULTY_DEVICE}:blocking_graphs=1"));
    assert!(reports(
        with_graphs,
        "starting a graph waits for its kernels, so submissions end at hand-offs"
    ));
    fake.set(&format!("{FAULTY_DEVICE}:reset=1"));
    assert!((0..3).any(|_| !reports(Options::default(), "its graphs")));
    fake.set(&format!("{FAULTY_DEVICE}:short_graphs=1"));
    assert!(reports(Options::default(), "its graphs do not run as captured"));
    fake.set(&format!("{FAULTY_DEVICE}:reset=1"));
}

/// An allocation that does not fit fails with the free size, and smaller allocations still work.
///
/// # Panics
/// On failure.
pub fn runs_out_of_memory(open: Open<'_>, fake: &Fake) {
    let backend = open(2, Options::default()).expect("the fake opens");
    let device = Device::new(backend, DeviceId(2), Bytes::MAX);
    let used = fake.count(2, "used");
    fake.set(&format!("2:memory={}", used + (4 << 20)));
    let desc = |mib: usize| TensorDesc::new(mib, 1 << 18, Format::F32);
    let before = device.ledger().used();
    let refused = device.alloc("too large", desc(5)).expect_err("5 MiB do not fit");
    let Error::OutOfMemory { device: name, label, requested, free } = &refused else {
        panic!("{refused}")
    };
    assert!(name.ends_with('2') && label == "too large", "{refused}");
    assert_eq!((*requested, *free), (Bytes(5 << 20), Bytes(4 << 20)));
    assert_eq!(device.ledger().used(), before, "a failed allocation reserves nothing");
    let kept = device.alloc("fits", desc(3)).expect("3 MiB fit");
    let report = device.memory().expect("the memory report is available");
    assert_eq!(report.free, Some(Bytes(1 << 20)));
    assert!(device.alloc("second", desc(2)).is_err());
    drop(kept);
    device.alloc("second", desc(4)).expect("freed memory can be allocated again");
    fake.set("2:reset=1");
    drop(device);
    counts_whole_pages(open, fake);
}

/// The ledger has what the driver takes, if that is whole pages.
fn counts_whole_pages(open: Open<'_>, fake: &Fake) {
    for granule in [512, 2 << 20] {
        fake.set(&format!("2:granule={granule}"));
        let device = device(open, 2, Options::default());
        let taken = || (device.ledger().used().0, fake.count(2, "used"));
        let before = taken();
        let sizes = [100, 1 << 18, (1 << 19) + 64, (2 << 20) - 64];
        let desc = |n: usize| TensorDesc::new(1, n, Format::F32);
        let tensors = sizes.map(|n| device.alloc("a tensor", desc(n)).expect("it fits"));
        let after = taken();
        let [counted, used] = [after.0 - before.0, after.1 - before.1];
        // The fake rounds to 512 bytes what the backend rounds to 256.
        assert!(used - counted <= 4 * 256, "{granule}: {counted} bytes counted, {used} taken");
        drop(tensors);
        assert_eq!(taken(), before);
    }
    fake.set("2:reset=1");
}

/// After a loss every call gives the same error, and every wait ends.
///
/// # Panics
/// On failure.
pub fn a_lost_device_stays_lost(open: Open<'_>, fake: &Fake) {
    // The codes of an illegal address, a failed kernel and a removed card.
    for code in [700, 719, 999] {
        let device = device(open, 3, Options::default());
        let mut queue = device.queue("lost").expect("a queue can be opened");
        let (a, x) = (row(&device, &mut queue, &[1.0; 8]), row(&device, &mut queue, &[2.0; 8]));
        let program = add_repeatedly(&device, &a, &x, 3);
        queue.replay(&program).and_then(|run| run.wait()).expect("the device works");
        fake.set(&format!("3:lost_after=1 3:lost_code={code}"));
        let first =
            queue.replay(&program).and_then(|run| run.wait()).expect_err("a lost device fails");
        assert!(
            matches!(&first, Error::DeviceLost { device, .. } if device.ends_with('3')),
            "{first}"
        );
        let same = |error: Error| assert_eq!(error, first);
        same(queue.replay(&program).map(drop).expect_err("a lost device fails"));
        same(queue.finish().expect_err("a lost device fails"));
        same(queue.write(&x, &[0; 32]).expect_err("a lost device fails"));
        same(device.alloc_f32("late", 1, 8).map(drop).expect_err("a lost device fails"));
        same(device.queue("late").map(drop).expect_err("a lost device fails"));
        same(device.memory().expect_err("a lost device fails"));
        drop((queue, program, a, x, device));
        fake.set("3:reset=1");
    }
}

/// A failed launch is an error of that launch only; the device still works.
///
/// # Panics
/// On failure.
pub fn a_failed_launch_does_not_lose_the_device(open: Open<'_>, fake: &Fake) {
    let options = Options { graphs: Some(false), ..Options::default() };
    let device = device(open, 4, options);
    let mut queue = device.queue("refused").expect("a queue can be opened");
    let (a, x) = (row(&device, &mut queue, &[1.0; 8]), row(&device, &mut queue, &[2.0; 8]));
    let program = add_repeatedly(&device, &a, &x, 3);
    fake.set("4:refuse_after=1 4:refuse_code=701");
    let refused = queue.replay(&program).and_then(|run| run.wait()).expect_err("a call is refused");
    assert!(matches!(refused, Error::Driver { code: 701, .. }), "{refused}");
    assert!(refused.to_string().contains("LaunchKernel"), "{refused}");
    queue.write(&x, bytemuck::cast_slice(&[5.0f32; 8])).expect("the write succeeds");
    queue.replay(&program).and_then(|run| run.wait()).expect("the device still works");
    assert_eq!(read(&mut queue, &x, 8), [8.0; 8]);
}

/// Several threads can open one device repeatedly and use it at the same time.
///
/// # Panics
/// On failure.
pub fn threads_share_a_device(open: Open<'_>, fake: &Fake) {
    let before = fake.count(5, "used");
    let options = Options { graphs: Some(true), flags: Some(true), ..Options::default() };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let open = move |round: usize| {
                let device = device(open, 5, options);
                (0..300).for_each(|_| drop(device.queue("short").expect("a queue can be opened")));
                for _ in 0..20 {
                    let mut queue = device.queue("shared").expect("a queue can be opened");
                    let start = (100 * thread + round) as f32;
                    let a = row(&device, &mut queue, &[1.0; 100]);
                    let x = row(&device, &mut queue, &[start; 100]);
                    let program = add_repeatedly(&device, &a, &x, 5);
                    queue.replay(&program).and_then(|run| run.wait()).expect("the run ends");
                    assert_eq!(read(&mut queue, &x, 100), vec![start + 5.0; 100]);
                }
            };
            scope.spawn(move || (0..3).for_each(open));
        }
    });
    assert_eq!(fake.count(5, "used"), before, "all memory is freed");
}

/// Threads that load the same kernels at the same time, for the first time, all get valid kernels.
///
/// # Panics
/// On failure.
pub fn threads_load_kernels_in_parallel(open: Open<'_>) {
    const THREADS: usize = 4;
    for _ in 0..20 {
        let device = &device(open, 6, Options::default());
        let together = &Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    let mut queue = device.queue("first").expect("a queue can be opened");
                    let start = thread as f32;
                    let a = row(device, &mut queue, &[1.0; 100]);
                    let x = row(device, &mut queue, &[start; 100]);
                    together.wait();
                    let program = add_repeatedly(device, &a, &x, 5);
                    queue.replay(&program).and_then(|run| run.wait()).expect("the run ends");
                    assert_eq!(read(&mut queue, &x, 100), vec![start + 5.0; 100]);
                });
            }
        });
    }
}

/// Two devices with several queues each work independently and free all their memory.
///
/// # Panics
/// On failure.
pub fn two_devices_work_in_parallel(open: Open<'_>, fake: &Fake) {
    let before = [5, 6].map(|number| fake.count(number, "used"));
    let devices = [5, 6].map(|number| device(open, number, Options::default()));
    std::thread::scope(|scope| {
        for (number, device) in devices.iter().enumerate() {
            for thread in 0..3 {
                scope.spawn(move || {
                    let mut queue = device.queue("parallel").expect("a queue can be opened");
                    let start = (100 * number + 10 * thread) as f32;
                    let a = row(device, &mut queue, &[1.0; 1000]);
                    let x = row(device, &mut queue, &[start; 1000]);
                    let program = add_repeatedly(device, &a, &x, 5);
                    for _ in 0..20 {
                        queue.replay(&program).and_then(|run| run.wait()).expect("the run ends");
                    }
                    assert_eq!(read(&mut queue, &x, 1000), vec![start + 100.0; 1000]);
                });
            }
        }
    });
    drop(devices);
    assert_eq!([5, 6].map(|number| fake.count(number, "used")), before, "all memory is freed");
}
