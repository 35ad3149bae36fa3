//! A device that does nothing fails the suite.

use std::sync::Arc;

use hal::null::NullBackend;
use hal::{Bytes, Device, DeviceId};

#[test]
fn the_null_backend_fails() {
    let device = Device::new(Arc::new(NullBackend::default()), DeviceId(0), Bytes(1 << 30));
    let report = thermocline_conformance::run_all(&device);
    let passed: Vec<&str> = report.passed().collect();
    // `hal` itself enforces the budget, whatever the backend.
    assert_eq!(passed, ["Memory/budget"], "\n{report}");
    assert_eq!(report.n_skipped(), 0);
}
