//! The backend on a fake of ROCm whose devices are the CPU. A passing test shows that the backend
//! follows the API rules that the fake checks, and nothing about a real card.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::sync::{Arc, OnceLock};

use fakes::{Fake, Vendor, suite, vendor_tests};
use hal::Backend;
use simt::Options;
use thermocline_hip::{devices, open_with};

vendor_tests!(fake, devices, open, "HIP", "gfx1030");

/// The fake, the only one in this process; `None`, with the reason printed, if it cannot be
/// compiled.
fn fake() -> Option<&'static Fake> {
    static FAKE: OnceLock<Option<Fake>> = OnceLock::new();
    let load = || {
        let fake = Fake::load(Vendor::Hip).map_err(|why| eprintln!("skipped: {why}")).ok()?;
        fake.set(&settings());
        Some(fake)
    };
    FAKE.get_or_init(load).as_ref()
}

/// GPUs without matrix units; the wave64 test uses GPUs that have them.
fn settings() -> String {
    format!("devices={} wave=32 arch=gfx1030", suite::DEVICES)
}

fn open(number: usize, options: Options) -> hal::Result<Arc<dyn Backend>> {
    let found = devices().expect("the fake has devices");
    open_with(&found[number], None, options).map(|backend| backend as Arc<dyn Backend>)
}
