//! Runs the conformance suite with thread pools of several sizes.

use hal::{Bytes, Device, DeviceId};
use thermocline_cpu::{CpuBackend, CpuOptions};

fn check(threads: usize) {
    let backend = CpuBackend::new(CpuOptions { threads: Some(threads), ..Default::default() });
    conformance::check(&Device::new(backend, DeviceId(0), Bytes::MAX));
}

#[test]
fn one_thread_passes_the_suite() {
    check(1);
}

#[test]
fn two_threads_pass_the_suite() {
    check(2);
}

#[test]
fn seven_threads_pass_the_suite() {
    check(7);
}
