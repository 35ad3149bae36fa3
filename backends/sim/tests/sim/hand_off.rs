//! Posts and answers, and every way of cancelling a step.

use hal::op::{Merge, Post};
use hal::{Error, HostRowSet, MailboxShape};

use crate::support::{ANSWER, COLS, REAL, ROWS, Rig, repeat, rows};

#[test]
fn the_device_continues_while_the_host_works() {
    repeat(|seed| {
        let mut rig = Rig::new(seed);
        let (program, y) = rig.step(1);
        // The op after the post hangs; the post must still arrive.
        rig.sim.hang_after(1);
        let mut run = rig.queue.replay(&program).unwrap();
        let posted = run.next_post().unwrap().unwrap();
        assert_eq!((posted.mailbox, posted.n_tokens, posted.rows), (0, REAL, None));
        assert_eq!(posted.x, [2.0; REAL * COLS], "padding tokens are not sent");
        assert_eq!(rig.sim.counters().ops, 1, "only the post has started");
        run.answer(&ANSWER).unwrap();
        rig.sim.resume();
        assert!(run.next_post().unwrap().is_none());
        run.wait().unwrap();
        assert_eq!(rig.read(&y), rows(11.0, 1.0), "the answer leaves padding rows unchanged");
    });
}

#[test]
fn the_device_continues_before_the_answer() {
    repeat(|seed| {
        let mut rig = Rig::new(seed);
        let (program, y) = rig.step(1);
        let mut run = rig.queue.replay(&program).unwrap();
        run.next_post().unwrap().unwrap();
        // Without an answer the device still starts its add and its merge.
        while rig.sim.counters().ops < 3 {
            std::thread::yield_now();
        }
        run.answer(&ANSWER).unwrap();
        run.wait().unwrap();
        assert_eq!(rig.read(&y), rows(11.0, 1.0));
    });
}

#[test]
fn posts_arrive_in_program_order_in_every_replay() {
    repeat(|seed| {
        let mut rig = Rig::new(seed);
        let (program, y) = rig.step(5);
        for step in 1..=3u8 {
            let mut run = rig.queue.replay(&program).unwrap();
            let mut seen = Vec::new();
            while let Some(posted) = run.next_post().unwrap() {
                seen.push(posted.mailbox);
                run.answer(&ANSWER).unwrap();
            }
            assert_eq!(seen, [0, 1, 2, 3, 4]);
            run.wait().unwrap();
            let step = f32::from(step);
            assert_eq!(rig.read(&y), rows(step * 55.0, step * 5.0));
        }
    });
}

#[test]
fn only_valid_rows_and_needed_membership_words_are_sent() {
    repeat(|seed| {
        let mut rig = Rig::new(seed);
        let (x, y) = (rig.full(2.0), rig.full(0.0));
        let batch = rig.batch();
        let set = rig.device.row_set(6, 40).unwrap();
        let words = |words: &[u32]| bytemuck::cast_slice::<u32, u8>(words).to_vec();
        rig.queue.write(&set.ids, &words(&[3, 8, 9, 77, 77, 77])).unwrap();
        rig.queue.write(&set.count, &words(&[3])).unwrap();
        // Two membership words per row, for 40 tokens. The step's two tokens need only one.
        rig.queue.write(&set.members, &words(&[1, 9, 2, 9, 3, 9, 9, 9, 9, 9, 9, 9])).unwrap();
        let mut program = rig.device.record("rows");
        let shape =
            MailboxShape { max_tokens: ROWS, n_in: COLS, n_weights: 0, n_out: COLS, max_rows: 6 };
        let mailbox = program.mailbox(&rig.device.mailbox(shape).unwrap()).unwrap();
        program
            .push(Post { x, batch: batch.clone(), rows: Some(set), weights: None, mailbox })
            .unwrap();
        program.push(Merge { batch, y, mailbox, accumulate: true }).unwrap();
        let program = program.finish().unwrap();
        let mut run = rig.queue.replay(&program).unwrap();
        let posted = run.next_post().unwrap().unwrap();
        let expected = HostRowSet { ids: vec![3, 8, 9], members: vec![1, 2, 3], words: 1 };
        assert_eq!(posted.rows, Some(&expected));
        run.answer(&ANSWER).unwrap();
        run.wait().unwrap();
    });
}

/// Progress of a step when it is cancelled.
#[derive(Clone, Copy, Debug)]
enum Stage {
    NotStarted,
    Posted,
    PostReceived,
    Answered,
    SecondPost,
    Hanging,
}

#[test]
fn a_step_can_be_cancelled_at_any_stage() {
    use Stage::{Answered, Hanging, NotStarted, PostReceived, Posted, SecondPost};
    repeat(|seed| {
        for stage in [NotStarted, Posted, PostReceived, Answered, SecondPost, Hanging] {
            let mut rig = Rig::new(seed);
            let (x, a, y, z) = (rig.full(2.0), rig.full(1.0), rig.full(0.0), rig.full(0.0));
            let (split, add) = (rig.split(3, &x, &a, &y), rig.add(&a, &z));
            match stage {
                NotStarted => rig.sim.hang_after(0),
                Hanging => rig.sim.hang_after(1),
                Posted | PostReceived | Answered | SecondPost => {}
            }
            let first = rig.queue.replay(&add).unwrap();
            let mut run = rig.queue.replay(&split).unwrap();
            let after = rig.queue.replay(&add).unwrap();
            let n_answers = match stage {
                NotStarted | Posted | Hanging | PostReceived => 0,
                Answered => 1,
                SecondPost => 2,
            };
            for _ in 0..n_answers {
                run.next_post().unwrap().unwrap();
                run.answer(&ANSWER).unwrap();
            }
            if matches!(stage, PostReceived | SecondPost) {
                run.next_post().unwrap().unwrap();
            }
            drop(run);
            rig.sim.resume();
            // The queue runs the next program, and the cancelled program does not run to its end.
            first.wait().unwrap();
            after.wait().unwrap();
            assert_eq!(rig.read(&z), [2.0; ROWS * COLS], "{stage:?}");
            assert!(rig.read(&y)[0] <= 23.0, "{stage:?}");
            rig.write(&y, &[0.0; ROWS * COLS]);
            let mut run = rig.queue.replay(&split).unwrap();
            while run.next_post().unwrap().is_some() {
                run.answer(&ANSWER).unwrap();
            }
            run.wait().unwrap();
            assert_eq!(rig.read(&y), rows(33.0, 3.0), "{stage:?}");
        }
    });
}

#[test]
fn waiting_with_an_open_post_cancels() {
    repeat(|seed| {
        let mut rig = Rig::new(seed);
        let (program, _) = rig.step(2);
        let run = rig.queue.replay(&program).unwrap();
        assert_eq!(run.wait(), Err(Error::Cancelled), "no post was received");
        let mut run = rig.queue.replay(&program).unwrap();
        run.next_post().unwrap().unwrap();
        assert_eq!(run.wait(), Err(Error::Cancelled), "a post was received but not answered");
        rig.queue.finish().unwrap();
    });
}

#[test]
fn a_dropped_queue_cancels_its_programs_and_completes_its_copies() {
    repeat(|seed| {
        let mut rig = Rig::new(seed);
        let (x, a, y) = (rig.full(2.0), rig.full(1.0), rig.full(0.0));
        let program = rig.split(1, &x, &a, &y);
        let mut run = rig.queue.replay(&program).unwrap();
        let mut queued = rig.queue.replay(&program).unwrap();
        let staging = rig.device.staging(hal::Bytes::of_slice(&[0f32; COLS])).unwrap();
        let copy = rig.queue.download(&x, staging).unwrap();
        run.next_post().unwrap().unwrap();
        rig.queue = rig.device.queue("another").unwrap();
        assert_eq!(run.answer(&ANSWER), Err(Error::Cancelled));
        assert_eq!(run.wait(), Err(Error::Cancelled));
        assert_eq!(queued.next_post().map(|_| ()), Err(Error::Cancelled));
        assert_eq!(bytemuck::cast_slice::<u8, f32>(copy.wait().unwrap().bytes()), [2.0; COLS]);
        assert_eq!(rig.read(&x), [2.0; ROWS * COLS], "the device still works");
    });
}

#[test]
fn a_queue_is_dropped_while_it_hangs() {
    repeat(|seed| {
        for hang_after in 0..3 {
            let mut rig = Rig::new(seed);
            let (program, _) = rig.step(1);
            rig.sim.hang_after(hang_after);
            let run = rig.queue.replay(&program).unwrap();
            rig.queue = rig.device.queue("another").unwrap();
            assert_eq!(run.wait(), Err(Error::Cancelled));
        }
    });
}
