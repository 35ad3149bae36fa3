//! The suite of all backends, as far as there are shaders.

use hal::{Bytes, Device, DeviceId};
use thermocline_wgpu::Options;

use crate::support::{BUDGET, device, open};

#[test]
fn the_device_conforms() {
    let Some(device) = device() else { return };
    let report = conformance::run_all(&device);
    eprintln!("{report}");
    assert_eq!(report.n_failed(), 0, "\n{report}");
}

/// Matrices are cut by rows where an op can bind little; what cannot be cut is refused with the reason.
#[test]
fn a_device_that_binds_little_conforms() {
    let options = Options { max_binding: Some(Bytes(8 << 10)), ..Options::default() };
    let Some(backend) = open(&options) else { return };
    let device = Device::new(backend, DeviceId(1), BUDGET);
    for part in
        ["MatMul/Q4_0", "MatMul/F32", "GetRows/Q8_0", "Attention/F16+F16/one-token", "Memory"]
    {
        let report = conformance::run_matching(&device, part);
        assert_eq!(report.n_failed(), 0, "\n{report}");
        assert!(report.passed().count() > 0, "\n{report}");
    }
}
