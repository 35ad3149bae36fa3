//! The conformance suite, with delays and a sufficient budget.

use std::sync::Arc;
use std::time::Duration;

use hal::{Bytes, Device, DeviceId};
use thermocline_sim::{SimBackend, SimOptions};

#[test]
fn the_device_conforms() {
    let memory = Bytes(1 << 30);
    let delay = Duration::ZERO..Duration::from_micros(20);
    let sim = SimBackend::new(SimOptions { memory, delay, ..SimOptions::default() });
    let device = Device::new(Arc::clone(&sim) as _, DeviceId(0), memory);
    let report = conformance::run_all(&device);
    assert_eq!((report.n_failed(), report.n_skipped()), (0, 0), "\n{report}");
    assert_eq!(sim.counters().held, Bytes(0), "no memory is left allocated");
}
