//! The built-in model on fakes of CUDA and ROCm, whose devices are the CPU (`backends/fakes`).

use std::sync::OnceLock;

use fakes::{Fake, Vendor};
use thermocline::devices;

use super::budgets::greedy;
use super::graphics::built_in;
use super::*;

/// The fake, loaded once for this process, and its first two devices; `None`, with the reason printed, where it could not
/// be compiled.
fn fake(vendor: Vendor, backend: &str) -> Option<Vec<Arc<dyn Backend>>> {
    static FAKES: [OnceLock<Option<Fake>>; 2] = [OnceLock::new(), OnceLock::new()];
    let load = || {
        let fake = Fake::load(vendor).map_err(|why| eprintln!("skipped: {why}")).ok()?;
        fake.set("devices=3");
        Some(fake)
    };
    FAKES[usize::from(vendor == Vendor::Hip)].get_or_init(load).as_ref()?;
    let (found, missing) = devices::candidates(None);
    let found: Vec<_> = found.into_iter().filter(|found| found.backend == backend).collect();
    assert_eq!(found.len(), 3, "{missing:?}");
    Some(found.iter().map(|found| found.open().unwrap()).collect())
}

fn words(backends: &[Arc<dyn Backend>], placement: Option<Placement>) -> Vec<u32> {
    let model = built_in();
    let mut all = vec![cpu_device(2)];
    for (i, backend) in backends.iter().enumerate() {
        all.push(Device::new(Arc::clone(backend), DeviceId(i as u32 + 1), Bytes::MAX));
    }
    let options = EngineOptions { n_ctx: 64, n_ubatch: 4, ..EngineOptions::default() };
    let mut engine = Engine::load(model, all, options, placement, quiet(), &|_, _| {}).unwrap();
    greedy(&mut engine, 1, 40)
}

/// All on one device; every layer split with the CPU; over two devices.
fn a_fake_says_the_cpus_words(vendor: Vendor, backend: &str) {
    let Some(backends) = fake(vendor, backend) else { return };
    let backends = backends[..2].to_vec();
    within(Duration::from_secs(500), move || {
        let model = built_in();
        let n_layer = model.hyper.n_layer;
        let expected = words(&[], None);
        let split = |devices: &[usize]| Placement {
            embed: 0,
            head: 0,
            layers: vec![deal(&model, devices); n_layer],
        };
        let whole = Placement::all_on(1, n_layer);
        for (name, placement) in
            [("whole", whole), ("split", split(&[1, 0])), ("over two", split(&[1, 2, 0]))]
        {
            assert_eq!(words(&backends, Some(placement)), expected, "{name}");
        }
    });
}

#[test]
fn a_fake_of_cuda_says_the_cpus_words() {
    a_fake_says_the_cpus_words(Vendor::Cuda, "cuda");
}

#[test]
fn a_fake_of_rocm_says_the_cpus_words() {
    a_fake_says_the_cpus_words(Vendor::Hip, "hip");
}
