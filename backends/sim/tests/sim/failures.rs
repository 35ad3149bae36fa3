//! A device that is lost, or whose thread panics, leaves no caller waiting.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hal::{Bytes, Error, MailboxShape, Result, TensorDesc};

use crate::support::{ANSWER, COLS, ROWS, Rig, assert_lost, repeat};

/// Number of work items of one [`step`]: two hand-offs of three ops each, and two copies.
const N_ITEMS: u64 = 8;

/// Runs a step with hand-offs and copies, as in an engine. `fail` injects a failure after the
/// set-up.
fn step(rig: &mut Rig, fail: impl FnOnce(&Rig)) -> Result<Vec<f32>> {
    let (x, a, y) = (rig.full(2.0), rig.full(1.0), rig.full(0.0));
    let program = rig.split(2, &x, &a, &y);
    fail(rig);
    let mut run = rig.queue.replay(&program)?;
    while run.next_post()?.is_some() {
        run.answer(&ANSWER)?;
    }
    run.wait()?;
    rig.queue.copy_rows(&y, &x)?;
    rig.queue.finish()?;
    let mut out = vec![0.0; ROWS * COLS];
    rig.queue.read_f32(&x, &mut out)?;
    Ok(out)
}

/// Asserts that every call on the lost device gives `error`.
#[track_caller]
fn assert_all_lost(rig: &mut Rig, error: &Error) {
    assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
    let device = &rig.device;
    let desc = TensorDesc::new(1, 1, hal::format::Format::F32);
    let shape = MailboxShape { max_tokens: 1, n_in: 1, n_weights: 0, n_out: 1, max_rows: 0 };
    assert_eq!(device.memory().err().as_ref(), Some(error));
    assert_eq!(device.alloc("test", desc).err().as_ref(), Some(error));
    assert_eq!(device.staging(Bytes(4)).err().as_ref(), Some(error));
    assert_eq!(device.mailbox(shape).err().as_ref(), Some(error));
    assert_eq!(device.queue("test").err().as_ref(), Some(error));
    assert_eq!(device.record("test").finish().err().as_ref(), Some(error));
    assert_eq!(rig.queue.finish().err().as_ref(), Some(error));
}

/// Loses the device from another thread after 1 ms, most likely while the caller waits.
fn lose_soon(rig: &Rig) -> JoinHandle<()> {
    let sim = Arc::clone(&rig.sim);
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(1));
        sim.lose_now();
    })
}

#[test]
fn a_loss_at_any_op_ends_the_step() {
    repeat(|seed| {
        for after in 0..=N_ITEMS {
            let mut rig = Rig::new(seed);
            let result = step(&mut rig, |rig| rig.sim.lose_after(after));
            match result {
                Ok(out) => assert_eq!((after, out[0]), (N_ITEMS, 22.0)),
                Err(error) => {
                    assert!(after < N_ITEMS);
                    assert_all_lost(&mut rig, &error);
                }
            }
        }
    });
}

#[test]
fn a_panic_at_any_op_is_a_loss() {
    repeat(|seed| {
        for after in 0..=N_ITEMS {
            let mut rig = Rig::new(seed);
            let result = step(&mut rig, |rig| rig.sim.panic_after(after));
            match result {
                Ok(out) => assert_eq!((after, out[0]), (N_ITEMS, 22.0)),
                Err(error) => {
                    assert!(after < N_ITEMS);
                    assert!(error.to_string().contains("panic"), "{error}");
                    assert_all_lost(&mut rig, &error);
                }
            }
        }
    });
}

#[test]
fn a_loss_at_any_moment_ends_the_step() {
    repeat(|seed| {
        let mut rig = Rig::new(seed);
        let mut thread = None;
        let result = step(&mut rig, |rig| {
            let sim = rig.sim.clone();
            thread = Some(thread::spawn(move || {
                for _ in 0..seed * 50 {
                    thread::yield_now();
                }
                sim.lose_now();
            }));
        });
        thread.unwrap().join().unwrap();
        if let Err(error) = result {
            assert_all_lost(&mut rig, &error);
        }
        assert_lost(rig.device.memory());
    });
}

#[test]
fn a_loss_ends_the_wait_for_a_post() {
    repeat(|seed| {
        let mut rig = Rig::new(seed);
        let (program, _) = rig.step(1);
        rig.sim.hang_after(0);
        let mut run = rig.queue.replay(&program).unwrap();
        rig.wait_for_hang();
        let thread = lose_soon(&rig);
        assert_lost(run.next_post());
        assert_lost(run.wait());
        thread.join().unwrap();
    });
}

#[test]
fn a_loss_ends_the_waits_for_a_copy_and_for_the_queue() {
    repeat(|seed| {
        for finish in [false, true] {
            let mut rig = Rig::new(seed);
            let x = rig.full(0.0);
            rig.sim.hang_after(0);
            let staging = rig.device.staging(Bytes::of_slice(&[0f32; COLS])).unwrap();
            let copy = rig.queue.upload(staging, &x).unwrap();
            rig.wait_for_hang();
            let thread = lose_soon(&rig);
            if finish {
                assert_lost(rig.queue.finish());
            }
            assert_lost(copy.wait());
            thread.join().unwrap();
        }
    });
}

#[test]
fn a_loss_ends_the_wait_for_an_answer() {
    repeat(|seed| {
        let mut rig = Rig::new(seed);
        let (program, _) = rig.step(1);
        let mut run = rig.queue.replay(&program).unwrap();
        run.next_post().unwrap().unwrap();
        // Waits until the device has started its merge, which needs the answer.
        while rig.sim.counters().ops < 3 {
            thread::yield_now();
        }
        rig.sim.lose_now();
        assert_lost(run.answer(&ANSWER));
        assert_lost(run.wait());
        assert_lost(rig.queue.finish());
    });
}

#[test]
fn a_loss_ends_transfers_and_programs_of_all_queues() {
    repeat(|seed| {
        let mut rig = Rig::new(seed);
        let (x, a, y) = (rig.full(2.0), rig.full(1.0), rig.full(0.0));
        let program = rig.split(1, &x, &a, &y);
        let mut other = rig.device.queue("other").unwrap();
        let run = other.replay(&program).unwrap();
        rig.sim.hang_after(3);
        let staging = || rig.device.staging(Bytes::of_slice(&[0f32; COLS])).unwrap();
        let up = rig.queue.upload(staging(), &a).unwrap();
        let down = rig.queue.download(&y, staging()).unwrap();
        let dropped = rig.queue.download(&y, staging()).unwrap();
        rig.sim.lose_now();
        assert!(down.is_done(), "a copy ends when the device is lost");
        drop(dropped);
        assert_lost(up.wait());
        assert_lost(down.wait());
        assert_lost(run.wait());
        assert_lost(other.finish());
    });
}

#[test]
fn a_lost_device_frees_all_memory() {
    repeat(|seed| {
        let mut rig = Rig::new(seed);
        step(&mut rig, |rig| rig.sim.lose_after(4)).unwrap_err();
        let Rig { sim, device, queue } = rig;
        drop(queue);
        assert_eq!((sim.counters().used, device.ledger().used()), (Bytes(0), Bytes(0)));
    });
}

#[test]
fn a_cancelled_program_does_not_affect_the_next() {
    repeat(|seed| {
        let mut rig = Rig::new(seed);
        let (a, x) = (rig.full(1.0), rig.full(0.0));
        let program = rig.add(&a, &x);
        rig.sim.hang_after(0);
        drop(rig.queue.replay(&program).unwrap());
        rig.sim.resume();
        rig.queue.replay(&program).unwrap().wait().unwrap();
        assert_eq!(rig.read(&x), [1.0; ROWS * COLS]);
    });
}

#[test]
fn a_panic_of_the_host_cancels_the_step() {
    repeat(|seed| {
        let mut rig = Rig::new(seed);
        let (program, _) = rig.step(1);
        let mut run = rig.queue.replay(&program).unwrap();
        let host = thread::spawn(move || {
            run.next_post().unwrap().unwrap();
            std::panic::resume_unwind(Box::new("the host has a bug"));
        });
        host.join().unwrap_err();
        rig.queue.finish().unwrap();
        let (a, x) = (rig.full(1.0), rig.full(2.0));
        let program = rig.add(&a, &x);
        rig.queue.replay(&program).unwrap().wait().unwrap();
    });
}
