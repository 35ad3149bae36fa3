//! Runs the conformance suite with thread pools of several sizes.

use hal::{Bytes, Device, DeviceId};
use thermocline_cpu::{CpuBackend, CpuOptions};

fn check(threads: usize) {
    let backend = CpuBackend::new(CpuOptions { threads: Some(threads), ..Default::default() });
    conformance::check(&Device::new(backend, DeviceId(0), Bytes::MAX));
}

#[test]
fn one_thread() {
    check(1);
}

#[test]
fn two_threads() {
    check(2);
}

#[test]
fn more_threads_than_cores() {
    check(7);
}
