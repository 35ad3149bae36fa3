//! The suite of all backends, with delays and with limits far away.

use std::time::Duration;

use thermocline_sim::SimOptions;

use crate::support::Rig;

#[test]
fn the_device_conforms() {
    let delay = Duration::ZERO..Duration::from_micros(20);
    let rig = Rig::with(SimOptions { delay, ..SimOptions::default() });
    let report = conformance::run_all(&rig.device);
    assert_eq!((report.n_failed(), report.n_skipped()), (0, 0), "\n{report}");
}
