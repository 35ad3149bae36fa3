//! Tests the backend on a fake ROCm, which runs kernels on the CPU. A passing test shows that the
//! backend follows the API rules that the fake checks; it does not test a real card.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::sync::{Arc, OnceLock};

use fakes::{Fake, Vendor, suite, vendor_tests};
use hal::Backend;
use simt::Options;
use thermocline_hip::{Compilation, devices, open_with};

/// Cases for HIP with warps of 32 lanes and without matrix units. The CUDA fake runs the other
/// kernels, and `tests/wave64.rs` runs reductions over warps of 64 lanes.
const PARTS: &[&str] = &[
    "HandOff",
    "MatMul",
    "Memory",
    "Predict/Q4_0",
    "Program",
    "Sequences",
    "SparseFfn/F16",
    "SparseFfn/Q4_0",
    "SparseFfn/Q6_K",
];

vendor_tests!(fake, devices, open, "HIP", "gfx1030", conformance::matching(PARTS));

/// Only `scripts/check_fakes` runs this.
#[test]
#[ignore = "takes a minute; the other tests run the same kernels in other combinations"]
fn the_fake_conforms_in_every_case() {
    if let Some(fake) = fake() {
        suite::conforms(&open, suite::SECOND_DEVICE, fake, &conformance::cases());
    }
}

/// The fake driver of this process; prints the reason and returns `None` if it cannot be compiled.
fn fake() -> Option<&'static Fake> {
    static FAKE: OnceLock<Option<Fake>> = OnceLock::new();
    let load = || {
        let fake = Fake::load(Vendor::Hip).map_err(|why| eprintln!("skipped: {why}")).ok()?;
        fake.set(&settings());
        Some(fake)
    };
    FAKE.get_or_init(load).as_ref()
}

/// Settings of the fake: GPUs without matrix instructions; `tests/wave64.rs` uses GPUs that have
/// them.
fn settings() -> String {
    format!("devices={} wave=32 arch=gfx1030", suite::DEVICES)
}

fn open(number: usize, options: Options) -> hal::Result<Arc<dyn Backend>> {
    let found = devices().expect("the fake has devices");
    open_with(&found[number], &Compilation::default(), options)
        .map(|backend| backend as Arc<dyn Backend>)
}
