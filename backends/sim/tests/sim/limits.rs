//! Limits of memory and of operand sizes, and ops that planning rejects.

use std::sync::Arc;

use hal::format::Format;
use hal::op::{Add, MatMul};
use hal::{
    Backend, Bytes, Device, DeviceId, DeviceKind, Error, HostRows, MailboxShape, Op, PackDesc,
    Plan, Source, TensorDesc,
};
use thermocline_sim::{Failures, SimBackend, SimOptions};

use crate::support::{COLS, ROWS, Rig, within_limit};

fn add(n_rows: usize) -> Op<TensorDesc> {
    let desc = TensorDesc::new(n_rows, COLS, Format::F32);
    Add { a: desc, x: desc }.into()
}

#[test]
fn planning_rejects_an_operand_above_the_binding_limit() {
    let sim = SimBackend::new(SimOptions { max_binding: Bytes(1024), ..SimOptions::default() });
    assert_eq!((sim.info().max_binding, sim.info().kind), (Bytes(1024), DeviceKind::Simulated));
    assert!(sim.info().hand_off);
    let fits = 1024 / (4 * COLS);
    assert_eq!(sim.plan(&add(fits)), Plan::yes());
    let reason = "operand a takes 1.03 KiB, but a binding covers at most 1.00 KiB";
    assert_eq!(sim.plan(&add(fits + 1)), Plan::No(reason.to_owned()));
}

#[test]
fn planning_rejects_an_op_by_name() {
    let sim = SimBackend::new(SimOptions::default());
    sim.refuse("MatMul");
    let desc = TensorDesc::new(1, 32, Format::F32);
    let y = TensorDesc::new(1, 1, Format::F32);
    let op = MatMul { w: desc, x: desc, bias: None, y };
    assert!(matches!(sim.plan(&op.into()), Plan::No(_)));
    assert_eq!(sim.plan(&add(1)), Plan::yes());
}

#[test]
fn programs_share_one_workspace() {
    let mut rig = Rig::with_options(SimOptions { workspace: Bytes(1000), ..SimOptions::default() });
    let (a, x) = (rig.full(1.0), rig.full(0.0));
    let before = rig.device.ledger().used();
    let programs = [rig.add(&a, &x), rig.add(&a, &x)];
    assert_eq!(rig.device.ledger().used(), before + Bytes(1024));
    drop(programs);
}

#[test]
fn the_physical_limit_holds_with_an_unlimited_budget() {
    let sim = SimBackend::new(SimOptions { memory: Bytes(1024), ..SimOptions::default() });
    let device = Device::new(Arc::clone(&sim) as _, DeviceId(0), Bytes::MAX);
    let held = device.alloc_f32("first", 3, 64).unwrap();
    let error = device.alloc_f32("second", 2, 64).unwrap_err();
    let expected = Error::OutOfMemory {
        device: "SIM0".to_owned(),
        label: "second".to_owned(),
        requested: Bytes(512),
        free: Bytes(256),
    };
    assert_eq!(error, expected);
    let bytes: Vec<u8> = vec![0; 512];
    let host = HostRows::new(Source::Owned(Arc::new(bytes)), 2, 64, Format::F32).unwrap();
    let pack = PackDesc::whole(host.desc());
    assert!(matches!(device.import("pack", &pack, &host), Err(Error::OutOfMemory { .. })));
    assert_eq!(device.memory().unwrap().free, Some(Bytes(256)));
    drop(held);
    device.import("pack", &pack, &host).unwrap();
    device.alloc_f32("second", 2, 64).unwrap();
    let counters = sim.counters();
    assert_eq!((counters.used, counters.peak), (Bytes(0), Bytes(768)));
    assert_eq!(device.ledger().used(), Bytes(0));
}

#[test]
fn odd_sizes_use_whole_granules() {
    let sim = SimBackend::new(SimOptions::default());
    let device = Device::new(Arc::clone(&sim) as _, DeviceId(0), Bytes::MAX);
    let desc = TensorDesc::new(3, 33, Format::F16);
    let tensor = device.alloc("odd", desc).unwrap();
    assert_eq!((device.alloc_size(&desc), sim.counters().used), (Bytes(256), Bytes(256)));
    drop(tensor);
}

#[test]
fn the_nth_allocation_fails_once() {
    let fail = Failures { out_of_memory_at: Some(2), ..Failures::default() };
    let sim = SimBackend::new(SimOptions { fail, ..SimOptions::default() });
    let device = Device::new(Arc::clone(&sim) as _, DeviceId(0), Bytes::MAX);
    let shape = MailboxShape { max_tokens: 1, n_in: 1, n_weights: 0, n_out: 1, max_rows: 0 };
    let _first = device.alloc_f32("first", 1, 64).unwrap();
    assert!(matches!(device.alloc_f32("second", 1, 64), Err(Error::OutOfMemory { .. })));
    let _third = device.alloc_f32("third", 1, 64).unwrap();
    sim.out_of_memory_at(1);
    assert!(matches!(device.mailbox(shape), Err(Error::OutOfMemory { .. })));
    device.mailbox(shape).unwrap();
    sim.out_of_memory_at(1);
    assert!(matches!(device.staging(Bytes(4)), Err(Error::OutOfMemory { .. })));
    device.staging(Bytes(4)).unwrap();
    assert_eq!(sim.counters().allocations, 7);
}

#[test]
fn fresh_memory_is_poisoned() {
    within_limit(|| {
        let mut rig = Rig::new(0);
        let tensor = rig.device.alloc_f32("fresh", ROWS, COLS).unwrap();
        assert!(rig.read(&tensor).iter().all(|value| value.is_nan()));
    });
}
