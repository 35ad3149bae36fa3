//! Runs the conformance suite on a fake ROCm with wavefronts of 64 threads, as on CDNA cards.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use fakes::{Fake, Vendor, suite};
use hal::Backend;
use std::sync::Arc;

/// The kernels with reductions over a wave, in one format for each block size: the reductions are
/// the same in all formats. The CUDA fake runs all formats, with waves of 32.
const PARTS: &[&str] = &[
    "Attention",
    "GatedDelta",
    "HandOff",
    "MatMul",
    "Memory",
    "Norm",
    "Predict/F16",
    "Predict/Q4_0",
    "Predict/Q6_K",
    "Program",
    "Route",
    "Sequences",
    "SparseFfn/F16",
    "SparseFfn/Q4_0",
    "SparseFfn/Q6_K",
    "SsmScan",
    "Wkv6",
    "Wkv7",
];

#[test]
fn the_fake_conforms_with_waves_of_64() {
    conforms(&conformance::matching(PARTS));
}

/// Only `scripts/check_fakes` runs this.
#[test]
#[ignore = "takes a minute; the other test runs the same kernels in fewer formats"]
fn the_fake_conforms_in_every_case() {
    conforms(&conformance::cases());
}

fn conforms(cases: &[conformance::Case]) {
    let fake = match Fake::load(Vendor::Hip) {
        Ok(fake) => fake,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    fake.set("devices=2 wave=64 arch=gfx90a");
    let found = thermocline_hip::devices().expect("the fake has a device");
    assert!(found[0].description.contains("gfx90a"), "{}", found[0].description);
    let open = |number: usize, options| {
        let opened = thermocline_hip::open_with(
            &found[number],
            &thermocline_hip::Compilation::default(),
            options,
        );
        opened.map(|backend| backend as Arc<dyn Backend>)
    };
    suite::conforms(&open, 1, &fake, cases);
}
