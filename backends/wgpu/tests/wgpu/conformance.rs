//! The conformance suite, for all ops that have shaders.

use hal::{Bytes, Device, DeviceId, DeviceKind};
use thermocline_wgpu::{Options, Tuning};

use crate::support::{BUDGET, device, open};

#[test]
fn the_device_conforms() {
    // A device of its own for each half: threads that share one wait for each other.
    let (Some(device), Some(other)) = (device(), open(&Options::default())) else { return };
    let other = Device::new(other, DeviceId(5), BUDGET);
    let software = device.info().kind == DeviceKind::Simulated;
    let cases = if software { conformance::representative() } else { conformance::cases() };
    let report = conformance::run_in_parallel(&[device, other], &cases);
    eprintln!("{report}");
    assert_eq!(report.n_failed(), 0, "\n{report}");
}

/// Only `scripts/check_fakes` runs this.
#[test]
#[ignore = "takes minutes on a software driver; most cases are alike"]
fn the_device_conforms_in_every_case() {
    let Some(device) = device() else { return };
    conformance::check(&device);
}

/// Tests the shaders without subgroups, on a device that has subgroups.
#[test]
fn a_device_without_subgroups_conforms() {
    let Some(backend) = open(&Options { no_subgroups: true, ..Options::default() }) else { return };
    let device = Device::new(backend, DeviceId(2), BUDGET);
    let filters = ["MatMul/Q4_0", "MatMul/F32", "SparseFfn/Q8_0", "Norm", "Route"];
    for filter in filters.into_iter().chain(["Attention/F16+F16/head-", "Attention/F16+F16/long"]) {
        let report = conformance::run_matching(&device, filter);
        assert_eq!(report.n_failed(), 0, "\n{report}");
        assert!(report.passed().count() > 0, "{filter}");
    }
}

/// If the limit of a binding is low, matrices are split by rows, and large operands of other kinds
/// are refused.
#[test]
fn a_device_with_small_bindings_conforms() {
    // A row has 96 bytes, so that 64 rows fit a binding and 67 rows do not.
    let options = Options { max_binding: Some(Bytes(7 << 10)), ..Options::default() };
    let Some(backend) = open(&options) else { return };
    let device = Device::new(backend, DeviceId(1), BUDGET);
    let filters = ["MatMul/Q4_0", "GetRows/Q8_0", "Memory"];
    let blocks = [
        "SparseFfn/Q4_0/Stored/t5",
        "SparseFfn/Q4_0/Transposed/t5",
        "SparseFfn/Q4_0/Across/t5",
        "SparseFfn/Q4_0/Stored/listed/t5",
        "SparseFfn/Q4_0/Across/experts/t1",
        "SparseFfn/Q4_0/Stored/experts/t1",
        "Predict/Q4_0/t1",
    ];
    let mut passed = Vec::new();
    for filter in filters.into_iter().chain(blocks) {
        let report = conformance::run_matching(&device, filter);
        assert_eq!(report.n_failed(), 0, "\n{report}");
        passed.extend(report.passed().map(str::to_owned));
    }
    assert!(passed.iter().any(|name| name == "MatMul/Q4_0/67x160/t1"), "{passed:?}");
}

/// Tests a low limit for the work of a submission: almost every dispatch is a submission, and
/// products are split by rows.
#[test]
fn a_device_with_small_submissions_conforms() {
    let options = Options { max_work: Some(100_000), ..Options::default() };
    let Some(backend) = open(&options) else { return };
    let device = Device::new(backend, DeviceId(3), BUDGET);
    let filters =
        ["MatMul/Q4_K", "MatMul/F16", "SparseFfn/Q4_0", "Predict/Q4_0", "HandOff", "Program"];
    for filter in filters {
        let report = conformance::run_matching(&device, filter);
        assert_eq!(report.n_failed(), 0, "\n{report}");
        assert!(report.passed().count() > 0, "{filter}");
    }
}

/// Tests each vendor's tuning constants on the available device. The first constants are those of
/// software drivers, which `the_device_conforms` tests with the whole suite. Of constants that differ
/// from tested ones in the number of workgroups alone, only sparse FFNs are tested: other shaders do
/// not use that number.
#[test]
fn the_tuning_constants_of_every_vendor_conform() {
    constants_conform(&[
        "MatMul/Q4_K/67x",
        "MatMul/F16/67x",
        "SparseFfn/Q4_0/Stored/t",
        "SparseFfn/Q4_0/Stored/experts",
        "SparseFfn/Q6_K/Transposed/t",
        "SparseFfn/Q8_0/Across",
        "SparseFfn/F32/Transposed/listed",
        "Predict/Q4_0",
        "Attention/F16+F16",
        "Attention/Q8_0+Q8_0/long",
        "Norm",
        "Route",
        "Program/",
        "GatedDelta",
        "SsmScan",
        "Wkv6",
        "Wkv7",
        "Sequences",
    ]);
}

/// Only `scripts/check_fakes` runs this.
#[test]
#[ignore = "takes minutes on a software driver; F16 caches have the same cases"]
fn the_tuning_constants_of_every_vendor_conform_with_quantised_caches() {
    constants_conform(&["Attention/Q8_0+Q8_0", "Attention/Q4_0+Q4_0"]);
}

/// Runs the cases of `filters` with the constants of each vendor.
fn constants_conform(filters: &[&str]) {
    let classes = Tuning::classes();
    for (i, &tuning) in classes.iter().enumerate().skip(1) {
        let options = Options { tuning: Some(tuning), ..Options::default() };
        let Some(backend) = open(&options) else { return };
        let device = Device::new(backend, DeviceId(4), BUDGET);
        let only_ffn = classes[..i].iter().any(|tested| tested.has_workgroups_of(&tuning));
        let filters = filters.iter().filter(|name| !only_ffn || name.starts_with("SparseFfn"));
        for filter in filters {
            let report = conformance::run_matching(&device, filter);
            assert_eq!(report.n_failed(), 0, "{tuning:?}\n{report}");
            assert!(report.passed().count() > 0, "{filter}");
        }
    }
}
