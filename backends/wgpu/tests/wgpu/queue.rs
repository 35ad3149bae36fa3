//! The work of a queue runs in order, also after a run that waits for an answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hal::op::{Add, Merge, Post};
use hal::{
    Batch, BatchFacts, BatchSeq, BatchShape, BatchToken, Clock, Device, DeviceId, MailboxShape,
    Program, Queue, Tensor,
};
use thermocline_wgpu::Options;

use crate::support::{BUDGET, add_repeatedly, device, open, read, row};

const N: usize = 8;
/// How long the host waits before it answers in the timing test.
const PAUSE: Duration = Duration::from_millis(400);

fn batch(device: &Device, queue: &mut Queue) -> Batch<Tensor> {
    let shape = BatchShape { max_tokens: 1, max_seqs: 1, max_blocks: 1 };
    let batch = device.batch(shape).expect("a batch");
    let facts = BatchFacts {
        tokens: vec![BatchToken { id: 0, seq: 0, pos: 0, output: false }],
        seqs: vec![BatchSeq { blocks: vec![0], len: 1 }],
    };
    let words = facts.encode(&shape, 1, 1).expect("a step");
    queue.write(&batch.words, bytemuck::cast_slice(&words)).expect("a write");
    batch
}

/// Posts x, adds `a` to it, adds the answer, adds `a` again.
fn hand_off(device: &Device, queue: &mut Queue, a: &Tensor, x: &Tensor) -> Program {
    hand_offs(device, queue, a, x, 1)
}

/// [`hand_off`] repeated `times` times.
fn hand_offs(device: &Device, queue: &mut Queue, a: &Tensor, x: &Tensor, times: usize) -> Program {
    let batch = batch(device, queue);
    let shape = MailboxShape { max_tokens: 1, n_in: N, n_weights: 0, n_out: N, max_rows: 0 };
    let mut recorder = device.record("hand-off");
    let add = || Add { a: a.clone(), x: x.clone() };
    for mailbox in device.mailboxes(shape, times).expect("mailboxes") {
        let mailbox = recorder.mailbox(&mailbox).expect("an index");
        let (x, batch) = (x.clone(), batch.clone());
        let post = Post { x: x.clone(), batch: batch.clone(), rows: None, weights: None, mailbox };
        recorder.push(post).expect("an op");
        recorder.begin_part();
        recorder.push(add()).expect("an op");
        recorder.begin_part();
        recorder.push(Merge { batch, y: x, mailbox, accumulate: true }).expect("an op");
        recorder.push(add()).expect("an op");
    }
    recorder.finish().expect("a program")
}

/// Submissions are expensive. A layer with a hand-off takes two: one up to its post, and one up to
/// its merge. The program takes one more after the last merge. A program without hand-offs takes
/// one submission.
#[test]
fn a_hand_off_takes_two_submissions() {
    let Some(backend) = open(&Options::default()) else { return };
    let device = Device::new(Arc::clone(&backend) as _, DeviceId(7), BUDGET);
    let mut queue = device.queue("submissions").expect("a queue");
    let (a, x) = (row(&device, &mut queue, &[1.0; N]), row(&device, &mut queue, &[0.0; N]));
    for n_layers in [1, 2, 5] {
        let split = hand_offs(&device, &mut queue, &a, &x, n_layers);
        let whole = add_repeatedly(&device, &a, &x, 2 * n_layers);
        queue.finish().expect("the end");
        let before = backend.counts();
        let mut run = queue.replay(&split).expect("a run");
        while run.next_post().expect("a post").is_some() {
            run.answer(&[1.0; N]).expect("an answer");
        }
        run.wait().expect("the end");
        let between = backend.counts();
        queue.replay(&whole).expect("a run").wait().expect("the end");
        let after = backend.counts();
        let n = n_layers as u64;
        assert_eq!(between.submissions - before.submissions, 2 * n + 1, "{n} layers");
        assert_eq!(after.submissions - between.submissions, 1, "{n} layers");
        assert_eq!(after.dispatches - between.dispatches, 2 * n);
    }
}

/// A read behind two runs is the only wait: the host then knows that both have ended. While it
/// waits, it encodes the next replay of both.
#[test]
fn a_read_waits_for_the_runs_before_it_and_encodes_their_next_replays() {
    let Some(backend) = open(&Options::default()) else { return };
    let device = Device::new(Arc::clone(&backend) as _, DeviceId(8), BUDGET);
    let mut queue = device.queue("waits").expect("a queue");
    let (a, x) = (row(&device, &mut queue, &[1.0; N]), row(&device, &mut queue, &[0.0; N]));
    let programs = [2, 3].map(|times| add_repeatedly(&device, &a, &x, times));
    for step in 0..4 {
        let before = backend.counts();
        let runs = programs.each_ref().map(|program| queue.replay(program).expect("a run"));
        assert_eq!(read(&mut queue, &x, N), [5.0 * (step + 1) as f32; N]);
        runs.into_iter().for_each(|run| run.wait().expect("the end"));
        let after = backend.counts();
        assert_eq!(after.submissions - before.submissions, 3);
        assert_eq!(after.dispatches - before.dispatches, 5);
        assert_eq!([after.waits - before.waits, after.copies - before.copies], [1, 1]);
        let ahead = if step == 0 { 0 } else { 2 };
        assert_eq!(after.encoded_ahead - before.encoded_ahead, ahead, "step {step}");
    }
}

#[test]
fn work_after_an_open_hand_off_waits() {
    let Some(device) = device() else { return };
    let mut queue = device.queue("order").expect("a queue");
    let (a, x) = (row(&device, &mut queue, &[1.0; N]), row(&device, &mut queue, &[0.0; N]));
    let copied = row(&device, &mut queue, &[0.0; N]);
    let split = hand_off(&device, &mut queue, &a, &x);
    let plain = add_repeatedly(&device, &a, &x, 1);
    let mut first = queue.replay(&split).expect("a run");
    let second = queue.replay(&plain).expect("a run");
    queue.copy_rows(&x, &copied).expect("a copy");
    let staging = device.staging(hal::Bytes(4 * N as u64)).expect("staging");
    let reading = queue.download(&x, staging).expect("a copy");
    assert!(!reading.is_done(), "work behind a waiting run does not start");
    let posted = first.next_post().expect("no error").expect("a post").x.to_vec();
    assert_eq!(posted, [0.0; N]);
    first.answer(&[10.0; N]).expect("an answer");
    assert!(first.next_post().expect("the end").is_none());
    first.wait().expect("the end");
    second.wait().expect("the end");
    let staging = reading.wait().expect("the copy");
    assert_eq!(bytemuck::cast_slice::<u8, f32>(staging.bytes()), [13.0; N]);
    queue.finish().expect("the end");
    assert_eq!(read(&mut queue, &copied, N), [13.0; N]);
}

#[test]
fn a_cancelled_run_does_not_block_the_next() {
    let Some(device) = device() else { return };
    let mut queue = device.queue("cancelled").expect("a queue");
    let (a, x) = (row(&device, &mut queue, &[1.0; N]), row(&device, &mut queue, &[0.0; N]));
    let split = hand_off(&device, &mut queue, &a, &x);
    let mut first = queue.replay(&split).expect("a run");
    let mut second = queue.replay(&split).expect("a run");
    assert!(first.next_post().expect("a post").is_some());
    drop(first);
    assert!(second.next_post().expect("a post").is_some());
    second.answer(&[10.0; N]).expect("an answer");
    second.wait().expect("the end");
    // The first run was cancelled before its merge, so it added `a` once.
    assert_eq!(read(&mut queue, &x, N), [13.0; N]);
    let unanswered = queue.replay(&split).expect("a run");
    assert_eq!(unanswered.wait(), Err(hal::Error::Cancelled));
    queue.finish().expect("no work is left in the queue");
    // The mailbox belongs to the device again: the next post uses it.
    let mut last = queue.replay(&split).expect("a run");
    assert_eq!(last.next_post().expect("no error").expect("a post").x, [14.0; N]);
    last.answer(&[10.0; N]).expect("an answer");
    last.wait().expect("the end");
    assert_eq!(read(&mut queue, &x, N), [26.0; N]);
}

/// Cancels runs at arbitrary times while another thread submits the work queued behind them; all
/// runs use one mailbox.
#[test]
fn cancelled_runs_release_their_mailbox() {
    let Some(device) = device() else { return };
    let mut queue = device.queue("cancelled").expect("a queue");
    let (a, x) = (row(&device, &mut queue, &[0.0; N]), row(&device, &mut queue, &[1.0; N]));
    let split = hand_off(&device, &mut queue, &a, &x);
    for round in 0..20 {
        let first = queue.replay(&split).expect("a run");
        let mut second = queue.replay(&split).expect("a run");
        std::thread::scope(|scope| {
            scope.spawn(move || match round % 2 {
                0 => drop(first),
                _ => assert_eq!(first.wait(), Err(hal::Error::Cancelled)),
            });
            assert!(second.next_post().expect("a post").is_some(), "round {round}");
        });
        second.answer(&[0.0; N]).expect("an answer");
        second.wait().expect("the end");
    }
    assert_eq!(read(&mut queue, &x, N), [1.0; N]);
}

#[test]
fn queues_are_independent() {
    let Some(device) = device() else { return };
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let device = &device;
            scope.spawn(move || {
                let mut queue = device.queue("thread").expect("a queue");
                let a = row(device, &mut queue, &[1.0 + thread as f32; N]);
                let x = row(device, &mut queue, &[0.0; N]);
                let split = hand_off(device, &mut queue, &a, &x);
                for _ in 0..5 {
                    let mut run = queue.replay(&split).expect("a run");
                    assert!(run.next_post().expect("a post").is_some());
                    run.answer(&[0.5; N]).expect("an answer");
                    run.wait().expect("the end");
                }
                let expected = 5.0 * (2.0 * (1.0 + thread as f32) + 0.5);
                assert_eq!(read(&mut queue, &x, N), [expected; N]);
            });
        }
    });
}

/// No part includes the time that the host takes to answer: parts end before the post arrives or
/// begin after the answer.
#[test]
fn a_timed_run_returns_the_times_of_its_parts() {
    // A separate device, since the work of other tests could delay this queue by as much as
    // `PAUSE`.
    let Some(backend) = open(&Options::default()) else { return };
    let device = Device::new(backend, DeviceId(0), BUDGET);
    let report = conformance::run_matching(&device, "timed");
    assert!(report.n_failed() == 0 && report.passed().count() == 3, "\n{report}");
    let mut queue = device.queue("times").expect("a queue");
    let (a, x) = (row(&device, &mut queue, &[1.0; N]), row(&device, &mut queue, &[0.0; N]));
    let split = hand_off(&device, &mut queue, &a, &x);
    for _ in 0..2 {
        let began = Instant::now();
        let mut run = queue.replay_timed(&split).expect("a run");
        assert!(run.next_post().expect("a post").is_some());
        let posted = Instant::now();
        std::thread::sleep(PAUSE);
        run.answer(&[10.0; N]).expect("an answer");
        let answered = Instant::now();
        assert!(run.next_post().expect("the end").is_none());
        let times = run.times().expect("times");
        let ended = Instant::now();
        eprintln!("{times:?}, from {began:?}, {posted:?}, {answered:?}, to {ended:?}");
        // The parts are the post, an addition, and a merge with an addition.
        let parts: Vec<_> = times.parts.iter().map(|time| time.parts.clone()).collect();
        let merge = times.parts.last().expect("the merge ran");
        assert!(merge.begin + PAUSE / 2 >= answered && merge.end <= ended);
        match times.clock {
            Clock::Device => {
                assert_eq!(parts, [1..2, 2..3]);
                assert!(times.parts[0].begin >= began && times.parts[0].end <= posted + PAUSE / 2);
            }
            Clock::Observed => assert_eq!(parts, [0..1, 1..2, 2..3]),
            Clock::Host => panic!("the work runs on the device"),
        }
    }
}
