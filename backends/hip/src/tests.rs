//! Tests of embedded kernels on a fake ROCm, which all tests here share.

use std::io::Write as _;
use std::sync::Mutex;

use fakes::{Fake, Vendor};
use flate2::Compression;
use flate2::write::DeflateEncoder;
use hal::format::Format;
use hal::op::Add;
use hal::{Backend, Bytes, Device, DeviceId, Error, TensorDesc};
use simt::Options;

use crate::devices::{NOT_LOADED, devices, open_from};
use crate::embedded::EmbeddedUnit;
use crate::helper::Compilation;

/// Lets one test run at a time, since the settings of the fake are global.
static FAKE_LOCK: Mutex<()> = Mutex::new(());

/// The table that `build.rs` would generate. Compiled code for the fake is text.
fn embedded(arch: &'static str, units: &[&'static str]) -> &'static [EmbeddedUnit] {
    let text = |unit: &str| format!("// unit {unit}\nFAKE code for {arch}\n\0");
    let entry = |unit: &&'static str| EmbeddedUnit { arch, unit, packed: deflate(&text(unit)) };
    units.iter().map(entry).collect::<Vec<_>>().leak()
}

fn deflate(text: &str) -> &'static [u8] {
    let mut packed = DeflateEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(text.as_bytes()).unwrap();
    packed.finish().unwrap().leak()
}

/// The units needed to open a device and to add two numbers.
const UNITS: [&str; 3] = ["add", "matrix_check", "probe"];

/// Opens the device and computes 1 + 2 on it.
fn add_on_fake(embedded: &'static [EmbeddedUnit]) -> hal::Result<f32> {
    let found = devices().unwrap();
    let backend = open_from(&found[0], &Compilation::default(), Options::default(), embedded)?;
    let device = Device::new(backend, DeviceId(1), Bytes(1 << 20));
    let mut queue = device.queue("add_on_fake")?;
    let row = || device.alloc("row", TensorDesc::new(1, 1, Format::F32));
    let (a, x) = (row()?, row()?);
    queue.write(&a, &1.0f32.to_le_bytes())?;
    queue.write(&x, &2.0f32.to_le_bytes())?;
    let mut recorder = device.record("add_on_fake");
    recorder.push(Add { a, x: x.clone() })?;
    let program = recorder.finish()?;
    queue.replay(&program)?.wait()?;
    let mut sum = [0.0];
    queue.read_f32(&x, &mut sum)?;
    Ok(sum[0])
}

#[test]
fn the_fake_loads_embedded_kernels_instead_of_compiling() {
    let _guard = FAKE_LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let fake = match Fake::load(Vendor::Hip) {
        Ok(fake) => fake,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    fake.set("devices=1 arch=gfx1100 refuse_compiling=1");
    assert_eq!(add_on_fake(embedded("gfx1100", &UNITS)), Ok(3.0));
    let refused = |units| matches!(add_on_fake(units), Err(Error::Driver { call, .. }) if call.contains("hiprtcCompileProgram"));
    assert!(refused(&[]), "nothing is embedded");
    assert!(refused(embedded("gfx1100", &UNITS[1..])), "a unit is missing");
    assert!(refused(embedded("gfx1030", &UNITS)), "another architecture");
    fake.set("arch=gfx90a:sramecc+:xnack-");
    assert_eq!(add_on_fake(embedded("gfx90a", &UNITS)), Ok(3.0));
    fake.set("refuse_compiling=0");
    assert_eq!(add_on_fake(&[]), Ok(3.0));
    // Embedded code that the driver rejects is compiled instead.
    let wrong = EmbeddedUnit { packed: deflate("no code\0"), ..embedded("gfx90a", &UNITS)[2] };
    assert_eq!(add_on_fake(vec![wrong].leak()), Ok(3.0));
    let opened = |embedded| {
        let first = &devices().unwrap()[0];
        let backend = open_from(first, &Compilation::default(), Options::default(), embedded);
        backend.unwrap().info().description.clone()
    };
    assert!(opened(vec![wrong].leak()).contains(NOT_LOADED), "the description has the remark");
    assert!(!opened(embedded("gfx90a", &UNITS)).contains(NOT_LOADED));
    fake.set("arch=gfx1100");
}
