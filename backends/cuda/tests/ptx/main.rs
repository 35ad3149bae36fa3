//! Runs the built-in PTX through the backend: the fake driver passes the text that it gets to an
//! interpreter (`backends/ptx`). A fault of a kernel loses the device, so its case fails.

mod archive;
mod costs;
mod faults;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use conformance::Case;
use fakes::{Fake, Vendor};
use hal::{Bytes, Device, DeviceId};
use ptx::{Interpreter, Module};
use simt::Options;
use thermocline_cuda::{devices, open_with};

/// Compute capability of each device. Those of 9.0 use matrix units for floats too, the device of
/// 7.5 has smaller ones. Each test has devices of its own, since a fault loses a device.
const CAPABILITIES: [(u32, u32); 10] =
    [(9, 0), (7, 5), (9, 0), (9, 0), (8, 6), (9, 0), (9, 0), (9, 0), (8, 6), (7, 5)];
/// The devices of the test of all cases.
const ALL: [usize; 3] = [7, 8, 9];
/// Held by a test while it uses one of `ALL`: the launches of one are counted by another test.
static SHARED: Mutex<()> = Mutex::new(());

/// Settings that give a device its compute capability.
fn capability(number: usize) -> String {
    let (major, minor) = CAPABILITIES[number];
    format!("{number}:major={major} {number}:minor={minor}")
}

/// The fake driver with an interpreter; prints the reason and returns `None` if this build lacks it.
fn interpreter() -> Option<(&'static Fake, &'static Interpreter)> {
    static LOADED: OnceLock<Option<(Fake, Interpreter)>> = OnceLock::new();
    let load = || {
        let fake = Fake::load(Vendor::Cuda).map_err(|why| eprintln!("skipped: {why}")).ok()?;
        fake.set("devices=10");
        (0..CAPABILITIES.len()).for_each(|number| fake.set(&capability(number)));
        Some((fake, Interpreter::default()))
    };
    let (fake, interpreter) = LOADED.get_or_init(load).as_ref()?;
    fake.set_executor(interpreter);
    Some((fake, interpreter))
}

fn device(number: usize) -> Device {
    let found = devices().expect("the fake has devices");
    let options = Options { graphs: Some(true), flags: Some(true), ..Options::default() };
    let backend = open_with(&found[number], options).expect("the device opens");
    Device::new(backend, DeviceId(number as u32), Bytes(2 << 30))
}

/// Runs cases on devices of these numbers, each case on one of them.
fn conforms(interpreter: &Interpreter, numbers: &[usize], cases: &[Case]) {
    let devices: Vec<Device> = numbers.iter().map(|&number| device(number)).collect();
    let report = conformance::run_in_parallel(&devices, cases);
    for &number in numbers {
        let found: Vec<String> =
            interpreter.take_faults(number as i32).iter().map(ToString::to_string).collect();
        assert!(found.is_empty(), "device {number}:\n{}", found.join("\n"));
    }
    assert_eq!(report.n_failed(), 0, "\n{report}");
}

/// Unit and kernel of each kernel that was executed.
fn executed(interpreter: &Interpreter) -> BTreeSet<(String, String)> {
    let modules = interpreter.modules();
    let of = |module: &Arc<Module>| -> Vec<(String, String)> {
        let entries = module.entries().iter().filter(|entry| entry.coverage().0 > 0);
        entries.map(|entry| (module.name().to_owned(), entry.name().to_owned())).collect()
    };
    modules.iter().flat_map(of).collect()
}

#[test]
fn every_unit_of_the_archive_is_understood() {
    let units = archive::units();
    let half = units.len() / 2;
    let parse = |units: &[String]| -> usize {
        let parse = |text: &String| Module::parse(text).expect("a valid unit").entries().len();
        units.iter().map(parse).sum()
    };
    let n = std::thread::scope(|scope| {
        let first = scope.spawn(|| parse(&units[..half]));
        parse(&units[half..]) + first.join().expect("it does not panic")
    });
    assert!(n > units.len(), "{n} kernels in {} units", units.len());
}

/// Runs the cases whose names contain one of `parts` on a device.
fn check(number: usize, parts: &[&str]) {
    let Some((_, interpreter)) = interpreter() else { return };
    let started = Instant::now();
    let cases = conformance::matching(parts);
    assert!(!cases.is_empty(), "{parts:?}");
    conforms(interpreter, &[number], &cases);
    eprintln!("{parts:?}: {} cases in {:.1} s", cases.len(), started.elapsed().as_secs_f64());
}

#[test]
fn elementwise_kernels_conform() {
    check(
        0,
        &["Add/", "Norm/", "Gather/", "CopyHeads/", "SoftCap/", "ScaleByPosition/", "GetRows/Q4_K"],
    );
    check(0, &["Route/F32", "Predict/F32", "StoreKv/F16", "ShortConv/4", "SsmScan/"]);
    check(0, &["Wkv6/", "Wkv7/"]);
}

#[test]
fn products_of_bytes_conform_on_small_matrix_units() {
    check(1, &["MatMul/Q4_0/67x", "MatMul/Q4_0/bias"]);
}

#[test]
fn products_conform() {
    check(2, &["MatMul/Q6_K/67x", "MatMul/F16/67x", "MatMul/IQ2_S/3x"]);
}

#[test]
fn attention_conforms() {
    let shapes = ["one-token", "values-5", "softcap", "window-7", "around-3"];
    let of = |format: &str| shapes.map(|shape| format!("Attention/{format}+{format}/{shape}"));
    let names = [of("F16"), of("Q8_0")].concat();
    check(4, &names.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn sparse_attention_conforms() {
    check(
        3,
        &["LightningIndexer/F16/few", "LightningIndexer/BF16/ties-few", "LightningIndexer/F32/NaN"],
    );
    check(3, &["Attention/F16/selected-few", "Attention/Q8_0/selected-values-few", "PoolKeys/F16"]);
    check(3, &["HyperWeights", "HyperRead", "HyperWrite"]);
}

#[test]
fn feed_forward_blocks_conform() {
    check(5, &["SparseFfn/Q4_0/selected", "SparseFfn/Q4_0/alone"]);
}

#[test]
fn hand_offs_and_programs_conform() {
    check(6, &["HandOff/", "Program/"]);
}

/// Only `scripts/check_fakes` runs this.
#[test]
#[ignore = "takes minutes"]
fn every_kernel_conforms_in_every_case() {
    let Some((_, interpreter)) = interpreter() else { return };
    let _alone = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    // Each capability runs all cases, since its kernels differ.
    std::thread::scope(|scope| {
        for number in ALL {
            scope.spawn(move || {
                let started = Instant::now();
                conforms(interpreter, &[number], &conformance::without_long_prompts());
                println!("device {number}: {:.0} s", started.elapsed().as_secs_f64());
            });
        }
    });
    let executed = executed(interpreter);
    let mut missing = Vec::new();
    for text in archive::units() {
        let module = Module::parse(&text).expect("a valid unit");
        let entries = module
            .entries()
            .iter()
            .map(|entry| (module.name().to_owned(), entry.name().to_owned()));
        missing.extend(entries.filter(|found| !executed.contains(found)));
    }
    assert!(missing.is_empty(), "kernels that no case executes: {missing:?}");
}
