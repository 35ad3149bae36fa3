//! The backend on a fake of ROCm whose devices are the CPU. A passing test shows that the backend
//! follows the API rules that the fake checks, and nothing about a real card.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::sync::{Arc, OnceLock};

use fakes::{Fake, Vendor, suite};
use hal::Backend;
use simt::Options;
use thermocline_hip::{devices, open_with};

/// The fake, the only one in this process; `None`, with the reason printed, if it cannot be
/// compiled.
fn fake() -> Option<&'static Fake> {
    static FAKE: OnceLock<Option<Fake>> = OnceLock::new();
    let load = || {
        let fake = Fake::load(Vendor::Hip).map_err(|why| eprintln!("skipped: {why}")).ok()?;
        // Cards without matrix units: the test with waves of 64 uses cards that have them.
        fake.set(&format!("devices={} wave=32 arch=gfx1030", suite::DEVICES));
        Some(fake)
    };
    FAKE.get_or_init(load).as_ref()
}

fn open(number: usize, options: Options) -> hal::Result<Arc<dyn Backend>> {
    let found = devices().expect("the fake has devices");
    open_with(&found[number], None, options).map(|backend| backend as Arc<dyn Backend>)
}

#[test]
fn devices_of_the_fake_are_named_and_described() {
    let Some(_fake) = fake() else { return };
    let found = devices().expect("the fake has devices");
    assert_eq!(found.len(), suite::DEVICES);
    for (number, device) in found.iter().enumerate() {
        assert_eq!(device.name, format!("HIP{number}"));
        assert!(device.description.contains("gfx1030"), "{}", device.description);
        assert!(device.memory.0 > 0 && !device.pci.is_empty());
    }
}

#[test]
fn the_fake_conforms() {
    if let Some(fake) = fake() {
        suite::conforms(&open, suite::SECOND, fake);
    }
}

#[test]
fn the_fake_conforms_without_graphs() {
    if let Some(fake) = fake() {
        suite::conforms_without_graphs(&open, fake);
    }
}

#[test]
fn the_fake_runs_out_of_memory() {
    if let Some(fake) = fake() {
        suite::runs_out_of_memory(&open, fake);
    }
}

#[test]
fn the_fake_is_lost() {
    if let Some(fake) = fake() {
        suite::is_lost(&open, fake);
    }
}

#[test]
fn the_fake_refuses_a_call() {
    if let Some(fake) = fake() {
        suite::refuses_a_call(&open, fake);
    }
}

#[test]
fn two_fakes_work_beside_each_other() {
    if let Some(fake) = fake() {
        suite::works_beside_others(&open, fake);
        // One after the other, because both use the same devices.
        suite::loads_beside_others(&open);
        suite::is_shared(&open, fake);
    }
}
