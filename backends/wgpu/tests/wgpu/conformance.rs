//! The suite of all backends, as far as there are shaders.

use crate::support::device;

#[test]
fn the_device_conforms() {
    let Some(device) = device() else { return };
    let report = conformance::run_all(&device);
    eprintln!("{report}");
    assert_eq!(report.n_failed(), 0, "\n{report}");
}
