//! The backend on a fake CUDA driver whose devices are the CPU. A passing test shows that the
//! backend follows the API rules that the fake checks, and nothing about a real card.

use std::sync::{Arc, OnceLock};

use fakes::{Fake, Vendor, suite};
use hal::Backend;
use simt::Options;
use thermocline_cuda::{devices, open_with};

/// The fake, the only one in this process; `None`, with the reason printed, if it cannot be
/// compiled.
fn fake() -> Option<&'static Fake> {
    static FAKE: OnceLock<Option<Fake>> = OnceLock::new();
    let load = || {
        let fake = Fake::load(Vendor::Cuda).map_err(|why| eprintln!("skipped: {why}")).ok()?;
        // Two of the devices have fast matrix units for floats.
        fake.set(&format!(
            "devices={} 0:major=9 0:minor=0 {}:major=9 {1}:minor=0",
            suite::DEVICES,
            suite::SECOND
        ));
        Some(fake)
    };
    FAKE.get_or_init(load).as_ref()
}

fn open(number: usize, options: Options) -> hal::Result<Arc<dyn Backend>> {
    let found = devices().expect("the fake has devices");
    open_with(&found[number], options).map(|backend| backend as Arc<dyn Backend>)
}

#[test]
fn devices_of_the_fake_are_named_and_described() {
    let Some(_fake) = fake() else { return };
    let found = devices().expect("the fake has devices");
    assert_eq!(found.len(), suite::DEVICES);
    for (number, device) in found.iter().enumerate() {
        assert_eq!(device.name, format!("CUDA{number}"));
        assert!(device.description.contains("compute capability"), "{}", device.description);
        assert!(device.memory.0 > 0 && !device.pci.is_empty());
    }
}

#[test]
fn an_old_card_of_the_fake_is_refused_with_a_sentence() {
    let Some(fake) = fake() else { return };
    fake.set("7:major=6 7:minor=1");
    let found = devices().expect("the fake has devices");
    let why = found[7].refusal.clone().expect("a refusal");
    assert!(why.contains("6.1") && why.contains("7.5"), "{why}");
    let refused = open(7, Options::default()).expect_err("it is refused");
    assert!(refused.to_string().contains(&why), "{refused}");
    assert!(found[..7].iter().all(|device| device.refusal.is_none()));
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
fn wrong_matrix_units_of_the_fake_are_not_used() {
    let Some(fake) = fake() else { return };
    fake.set(&format!("{}:major=9 {0}:minor=0", suite::WRONG));
    suite::does_without_wrong_matrix_units(&open, fake);
    // One after the other, because both use the same device.
    suite::does_without_bad_graphs(&open, fake);
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
