//! A queue runs work in order and owns the memory of copies in flight.

use std::sync::Arc;

use hal::format::Format;
use hal::{Bytes, HostRows, Operand, PackDesc, Select, Source, TensorDesc};

use crate::support::{COLS, ROWS, Rig, repeat};

#[test]
fn work_sees_the_results_of_earlier_work() {
    repeat(|seed| {
        let mut rig = Rig::new(seed);
        let (a, x) = (rig.full(1.0), rig.full(0.0));
        let program = rig.add(&a, &x);
        let size = Bytes::of_slice(&[0f32; ROWS * COLS]);
        let (mut runs, mut copies) = (Vec::new(), Vec::new());
        // Queues all work before the first wait.
        for step in 0..20u8 {
            if step == 10 {
                let mut zero = rig.device.staging(size).unwrap();
                zero.bytes_mut().fill(0);
                copies.push((None, rig.queue.upload(zero, &x).unwrap()));
            }
            runs.push(rig.queue.replay(&program).unwrap());
            let staging = rig.device.staging(size).unwrap();
            let copy = rig.queue.download(&x, staging).unwrap();
            copies.push((Some(f32::from(step % 10 + 1)), copy));
        }
        for (expected, copy) in copies {
            let staging = copy.wait().unwrap();
            if let Some(expected) = expected {
                let got: &[f32] = bytemuck::cast_slice(staging.bytes());
                assert_eq!(got, [expected; ROWS * COLS]);
            }
        }
        for run in runs {
            run.wait().unwrap();
        }
        assert_eq!((rig.sim.counters().ops, rig.sim.counters().submissions), (20, 20));
    });
}

#[test]
fn an_upload_owns_its_memory_until_it_is_done() {
    repeat(|seed| {
        let mut rig = Rig::new(seed);
        let x = rig.full(0.0);
        let mut staging = rig.device.staging(Bytes::of_slice(&[0f32; COLS])).unwrap();
        bytemuck::cast_slice_mut::<u8, f32>(staging.bytes_mut()).fill(7.0);
        rig.sim.hang_after(0);
        let copy = rig.queue.upload(staging, &x.rows(1..2)).unwrap();
        assert!(!copy.is_done());
        rig.sim.resume();
        let staging = copy.wait().unwrap();
        assert_eq!(bytemuck::cast_slice::<u8, f32>(staging.bytes()), [7.0; COLS]);
        let mut expected = [0.0; ROWS * COLS];
        expected[COLS..2 * COLS].fill(7.0);
        assert_eq!(rig.read(&x), expected);
    });
}

#[test]
fn a_transfer_completes_without_a_wait() {
    repeat(|seed| {
        let mut rig = Rig::new(seed);
        let x = rig.full(3.0);
        let staging = rig.device.staging(Bytes::of_slice(&[0f32; COLS])).unwrap();
        let copy = rig.queue.download(&x, staging).unwrap();
        rig.queue.finish().unwrap();
        assert!(copy.is_done());
        assert!(copy.is_done(), "a second query gives the same result");
        assert_eq!(bytemuck::cast_slice::<u8, f32>(copy.wait().unwrap().bytes()), [3.0; COLS]);
    });
}

#[test]
fn rows_are_copied_between_views() {
    repeat(|seed| {
        let mut rig = Rig::new(seed);
        let x = rig.full(0.0);
        rig.write(&x.rows(0..1), &[5.0; COLS]);
        rig.queue.copy_rows(&x.rows(0..1), &x.rows(3..4)).unwrap();
        rig.queue.finish().unwrap();
        let mut expected = [0.0; ROWS * COLS];
        expected[..COLS].fill(5.0);
        expected[3 * COLS..].fill(5.0);
        assert_eq!(rig.read(&x), expected);
    });
}

#[test]
fn a_slot_of_a_pack_is_replaced() {
    repeat(|seed| {
        let mut rig = Rig::new(seed);
        let values: Vec<f32> = (0..16u8).map(f32::from).collect();
        let bytes: Vec<u8> = bytemuck::cast_slice(&values).to_vec();
        let host = HostRows::new(Source::Owned(Arc::new(bytes)), 4, 4, Format::F32).unwrap();
        let select = Select::Rows([0, 2].into());
        let source = TensorDesc::new(4, 4, Format::F32);
        let pack = PackDesc { select, spare: 1, ..PackDesc::whole(source) };
        let tensor = rig.device.import("pack", &pack, &host).unwrap();
        assert_eq!(tensor.desc().n_rows, 3);
        let row = rig.device.pack_rows(&pack, &host, 3..4).unwrap();
        rig.queue.refill(&tensor, 2..3, &row).unwrap();
        assert_eq!(
            rig.read(&tensor),
            [0.0, 1.0, 2.0, 3.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0]
        );
        // A refill has no handle, so `finish` reports its error, once.
        rig.queue.refill(&tensor, 2..3, &row[1..]).unwrap();
        assert!(rig.queue.finish().is_err());
        rig.queue.finish().unwrap();
    });
}

#[test]
fn memory_is_free_when_a_wait_ends() {
    repeat(|seed| {
        let mut rig = Rig::new(seed);
        let (a, x) = (rig.full(1.0), rig.full(0.0));
        rig.queue.finish().unwrap();
        let run = {
            let program = rig.add(&a, &x);
            rig.queue.replay(&program).unwrap()
        };
        drop((a, x));
        run.wait().unwrap();
        assert_eq!(rig.sim.counters().used, Bytes(0));
    });
}

#[test]
fn two_queues_work_at_once() {
    repeat(|seed| {
        let mut rig = Rig::new(seed);
        let (a, x) = (rig.full(1.0), rig.full(0.0));
        let program = rig.add(&a, &x);
        rig.sim.hang_after(0);
        let run = rig.queue.replay(&program).unwrap();
        // Lets the first queue reach the hang before the second one starts.
        rig.wait_for_hang();
        let mut other = rig.device.queue("other").unwrap();
        let mut out = [1.0; COLS];
        other.read_f32(&a, &mut out).unwrap();
        assert_eq!(out, [1.0; COLS]);
        rig.sim.resume();
        run.wait().unwrap();
        assert_eq!(rig.read(&x), [1.0; ROWS * COLS]);
    });
}
