//! The conformance suite, with delays and a sufficient budget.

use std::sync::Arc;
use std::time::Duration;

use hal::{Bytes, Device, DeviceId};
use thermocline_sim::{SimBackend, SimOptions};

#[test]
fn the_device_conforms() {
    let memory = Bytes(1 << 30);
    let delay = Duration::ZERO..Duration::from_micros(20);
    let options = SimOptions { memory, delay, ..SimOptions::default() };
    let sims = [(); 2].map(|()| SimBackend::new(options.clone()));
    let device = |sim: &Arc<SimBackend>| Device::new(Arc::clone(sim) as _, DeviceId(0), memory);
    let report = conformance::run_in_parallel(&sims.each_ref().map(device), &conformance::cases());
    assert_eq!((report.n_failed(), report.n_skipped()), (0, 0), "\n{report}");
    for sim in sims {
        assert_eq!(sim.counters().used, Bytes(0), "no memory is left allocated");
    }
}
