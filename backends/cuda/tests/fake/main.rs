//! Tests the backend on a fake CUDA driver, which runs kernels on the CPU. A passing test shows
//! that the backend follows the API rules that the fake checks; it does not test a real card.

use std::sync::{Arc, OnceLock};

use fakes::{Fake, Vendor, suite, vendor_tests};
use hal::Backend;
use simt::Options;
use thermocline_cuda::{devices, open_with};

vendor_tests!(fake, devices, open, "CUDA", "compute capability", conformance::representative());

/// Only `scripts/check_fakes` runs this.
#[test]
#[ignore = "takes a minute; most cases are alike"]
fn the_fake_conforms_in_every_case() {
    if let Some(fake) = fake() {
        suite::conforms(&open, suite::SECOND_DEVICE, fake, &conformance::cases());
    }
}

/// The fake driver of this process; prints the reason and returns `None` if it cannot be compiled.
fn fake() -> Option<&'static Fake> {
    static FAKE: OnceLock<Option<Fake>> = OnceLock::new();
    let load = || {
        let fake = Fake::load(Vendor::Cuda).map_err(|why| eprintln!("skipped: {why}")).ok()?;
        fake.set(&settings());
        Some(fake)
    };
    FAKE.get_or_init(load).as_ref()
}

/// Settings of the fake: two of its devices have fast matrix instructions for floats.
fn settings() -> String {
    let (n, second) = (suite::DEVICES, suite::SECOND_DEVICE);
    format!("devices={n} 0:major=9 0:minor=0 {second}:major=9 {second}:minor=0")
}

fn open(number: usize, options: Options) -> hal::Result<Arc<dyn Backend>> {
    let found = devices().expect("the fake has devices");
    open_with(&found[number], options).map(|backend| backend as Arc<dyn Backend>)
}

#[test]
fn an_old_fake_card_and_faulty_matrix_units_are_not_used() {
    let Some(fake) = fake() else { return };
    // In one test, because all checks use the same device.
    let number = suite::FAULTY_DEVICE;
    fake.set(&format!("{number}:major=6 {number}:minor=1"));
    let found = devices().expect("the fake has devices");
    let why = found[number].refusal.clone().expect("a refusal");
    assert!(why.contains("6.1") && why.contains("7.5"), "{why}");
    let refused = open(number, Options::default()).expect_err("it is refused");
    assert!(refused.to_string().contains(&why), "{refused}");
    assert!(found[..number].iter().all(|device| device.refusal.is_none()));

    fake.set(&format!("{number}:major=9 {number}:minor=0"));
    suite::avoids_wrong_matrix_units(&open, fake);
    suite::avoids_bad_graphs(&open, fake);
}
