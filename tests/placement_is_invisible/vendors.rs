//! The built-in model on fakes of CUDA and ROCm, whose devices are the CPU (`backends/fakes`).

use std::sync::OnceLock;

use fakes::{Fake, Vendor};
use thermocline::devices;

use super::budgets::greedy;
use super::graphics::built_in;
use super::*;

/// The fake, loaded once for this process, and the devices `which` of its three; `None`, with the
/// reason printed, if it could not be compiled.
pub(crate) fn fake(
    vendor: Vendor,
    backend: &str,
    which: Range<usize>,
) -> Option<(&'static Fake, Vec<Arc<dyn Backend>>)> {
    static FAKES: [OnceLock<Option<Fake>>; 2] = [OnceLock::new(), OnceLock::new()];
    let load = || {
        let fake = Fake::load(vendor).map_err(|why| eprintln!("skipped: {why}")).ok()?;
        fake.set("devices=4");
        Some(fake)
    };
    let fake = FAKES[usize::from(vendor == Vendor::Hip)].get_or_init(load).as_ref()?;
    let (found, missing) = devices::candidates(None);
    let found: Vec<_> = found.into_iter().filter(|found| found.backend == backend).collect();
    assert_eq!(found.len(), 4, "{missing:?}");
    Some((fake, found[which].iter().map(|found| found.open().unwrap()).collect()))
}

fn generate(backends: &[Arc<dyn Backend>], placement: Option<Placement>) -> Vec<u32> {
    let model = built_in();
    let mut all = vec![cpu_device(2)];
    for (i, backend) in backends.iter().enumerate() {
        all.push(Device::new(Arc::clone(backend), DeviceId(i as u32 + 1), Bytes::MAX));
    }
    let options = EngineOptions { n_ctx: 64, n_ubatch: 4, ..EngineOptions::default() };
    let mut engine =
        Engine::load(model, all, options, placement, ignore_notices(), &|_, _| {}).unwrap();
    greedy(&mut engine, 1, 40)
}

/// Tests the whole model on one device, then every layer split between the CPU and one or two
/// devices.
fn check_tokens_of_the_cpu(vendor: Vendor, backend: &str) {
    let Some((_, backends)) = fake(vendor, backend, 0..2) else { return };
    within(Duration::from_secs(500), move || {
        let model = built_in();
        let n_layer = model.hyper.n_layer;
        let expected = generate(&[], None);
        let split = |devices: &[usize]| Placement {
            embed: 0,
            head: 0,
            layers: vec![deal_neurons(&model, devices); n_layer],
        };
        let whole = Placement::all_on(1, n_layer);
        for (name, placement) in
            [("whole", whole), ("split", split(&[1, 0])), ("over two", split(&[1, 2, 0]))]
        {
            assert_eq!(generate(&backends, Some(placement)), expected, "{name}");
        }
    });
}

#[test]
fn several_sequences_on_fakes() {
    for (vendor, backend) in [(Vendor::Cuda, "cuda"), (Vendor::Hip, "hip")] {
        let Some((_, backends)) = fake(vendor, backend, 1..2) else { continue };
        within(Duration::from_secs(500), move || crate::sequences::on_device(&backends[0], 2));
    }
}

/// The CPU's part of a layer takes longer than the device may wait: the model is loaded once more
/// and ends its submissions at hand-offs, and the tokens stay the same.
#[test]
fn a_wait_that_is_too_long_ends_and_the_tokens_stay_the_same() {
    let Some((fake, _)) = fake(Vendor::Cuda, "cuda", 0..0) else { return };
    within(Duration::from_secs(300), move || {
        // The card drives a display, so its waits are short; here they have no time at all.
        fake.set("3:watchdog=1");
        let found = cuda::devices().unwrap();
        let notes = |options| cuda::open_with(&found[3], options).unwrap().feature_notes();
        let forced = simt::Options { graphs: Some(true), ..simt::Options::default() };
        let waits = "the device itself waits for the CPU's answers";
        // On a busy machine the probe may measure a false delay, so this tries three times.
        assert!((0..3).any(|_| notes(forced).iter().any(|note| note.contains(waits))));
        let flags = Some(true);
        let options = simt::Options { flags, wait_limit: Some(Duration::ZERO), ..forced };
        let backend: Arc<dyn Backend> = cuda::open_with(&found[3], options).unwrap();
        fake.set("3:watchdog=0");
        let expected = generate(&[], None);
        let delay = Duration::from_millis(2);
        let (_, slow_host) = sim_device(0, Bytes::MAX, delay..delay, 0);
        let (tokens, n_timeouts) = generate_split(slow_host, backend);
        assert_eq!((tokens, n_timeouts), (expected.clone(), 1));
        // The engine makes no call for which a driver waits while the device waits for the engine.
        fake.set("3:blocking_calls=1");
        let wait_limit = Some(Duration::from_secs(5));
        let options = simt::Options { flags, wait_limit, ..forced };
        let backend: Arc<dyn Backend> = cuda::open_with(&found[3], options).unwrap();
        let (tokens, n_timeouts) = generate_split(cpu_device(2), backend);
        fake.set("3:blocking_calls=0");
        assert_eq!((tokens, n_timeouts), (expected, 0));
    });
}

/// The tokens with every layer split between `host` and a device, which exchange neurons, and how
/// often the device waited too long.
fn generate_split(host: Device, backend: Arc<dyn Backend>) -> (Vec<u32>, usize) {
    let model = built_in();
    let layers = vec![deal_neurons(&model, &[1, 0]); model.hyper.n_layer];
    let placement = Placement { embed: 0, head: 0, layers };
    let devices = vec![host, Device::new(backend, DeviceId(1), Bytes::MAX)];
    let options = EngineOptions { n_ctx: 64, n_ubatch: 4, ..EngineOptions::default() };
    let said = Arc::new(std::sync::Mutex::new(Vec::new()));
    let sink = Arc::clone(&said);
    let notice = Arc::new(move |text: &str| sink.lock().unwrap().push(text.to_owned()));
    let mut engine =
        Engine::load(model, devices, options, Some(placement), notice, &|_, _| {}).unwrap();
    let tokens = greedy(&mut engine, 1, 40);
    let said = said.lock().unwrap();
    (tokens, said.iter().filter(|text| text.contains("waited too long")).count())
}

#[test]
fn a_cuda_fake_generates_the_tokens_of_the_cpu() {
    check_tokens_of_the_cpu(Vendor::Cuda, "cuda");
}

#[test]
fn a_rocm_fake_generates_the_tokens_of_the_cpu() {
    check_tokens_of_the_cpu(Vendor::Hip, "hip");
}

fn check_streamed_chosen_neurons(vendor: Vendor, backend: &str) {
    let Some((_, backends)) = fake(vendor, backend, 0..1) else { return };
    within(Duration::from_secs(500), move || {
        super::stream_chosen::check_chosen_neurons(&backends[0]);
    });
}

#[test]
fn a_cuda_fake_streams_chosen_neurons() {
    check_streamed_chosen_neurons(Vendor::Cuda, "cuda");
}

#[test]
fn a_rocm_fake_streams_chosen_neurons() {
    check_streamed_chosen_neurons(Vendor::Hip, "hip");
}

#[test]
fn fired_neurons_on_fakes() {
    for (vendor, backend) in [(Vendor::Cuda, "cuda"), (Vendor::Hip, "hip")] {
        let Some((_, backends)) = fake(vendor, backend, 0..1) else { continue };
        within(Duration::from_secs(500), move || {
            let experts = super::adapt::generated("64x2x64x4/2*8/2:F16:silu");
            for (model, adapt) in
                [(Tiny::default().model(), false), (experts.clone(), false), (experts, true)]
            {
                super::fired::check_on(Some(&backends[0]), &model, adapt, &TEXT);
            }
        });
    }
}

/// Exchanges single neurons, and whole experts.
fn check_hot_set(vendor: Vendor, backend: &str) {
    use super::adapt::{check_exchanges, generated, two_topics};
    let Some((_, backends)) = fake(vendor, backend, 0..1) else { return };
    within(Duration::from_secs(500), move || {
        let quantised = generated("64x2x32x4/2*8/2:Q8_0:silu");
        let models = [(two_topics().model(), Format::F16), (quantised, Format::Q8_0)];
        check_exchanges(&backends[0], &models);
    });
}

#[test]
fn the_hot_set_follows_on_a_cuda_fake() {
    check_hot_set(Vendor::Cuda, "cuda");
}

#[test]
fn the_hot_set_follows_on_a_rocm_fake() {
    check_hot_set(Vendor::Hip, "hip");
}

/// The third device, whose memory no other test of this vendor uses.
fn third_device(vendor: Vendor, backend: &str) -> Option<(&'static Fake, Arc<dyn Backend>)> {
    let (fake, backends) = fake(vendor, backend, 2..3)?;
    Some((fake, backends.into_iter().next_back()?))
}

/// Generates 12 tokens with the built-in model within a device budget. Returns the tokens, the
/// engine, its device and its notices.
fn generate_within(
    backend: &Arc<dyn Backend>,
    budget: Bytes,
) -> (Vec<u32>, Engine, Device, Vec<String>) {
    let device = Device::new(Arc::clone(backend), DeviceId(1), budget);
    let notices = Arc::new(std::sync::Mutex::new(Vec::new()));
    let to = Arc::clone(&notices);
    let notice: NoticeCallback =
        Arc::new(move |text: &str| to.lock().unwrap().push(text.to_owned()));
    let options = EngineOptions { n_ctx: 64, n_ubatch: 4, ..EngineOptions::default() };
    let devices = vec![cpu_device(2), device.clone()];
    let mut engine = Engine::load(built_in(), devices, options, None, notice, &|_, _| {}).unwrap();
    let words = greedy(&mut engine, 1, 12);
    let notices = notices.lock().unwrap().clone();
    (words, engine, device, notices)
}

/// Tries budgets from 0 to the whole model, and then memory that the driver reports as free but
/// does not allocate.
fn check_budgets(vendor: Vendor, backend: &str) {
    let Some((fake, backend)) = third_device(vendor, backend) else { return };
    within(Duration::from_secs(500), move || {
        let expected = generate(&[], None)[..].to_vec();
        let same = |words: &[u32], why: &str| assert_eq!(words, &expected[..words.len()], "{why}");
        let (words, engine, device, _) = generate_within(&backend, Bytes::MAX);
        same(&words, "no limit");
        let (all, n_layer) = (device.ledger().peak().0, engine.placement().layers.len());
        drop((engine, device));
        let mut kinds = [0; 3];
        for step in 0..=8 {
            let budget = Bytes(all * step / 8);
            let (words, engine, device, _) = generate_within(&backend, budget);
            same(&words, &format!("budget {budget}"));
            assert!(device.ledger().peak() <= budget, "{} of {budget}", device.ledger().peak());
            let n_on_device =
                engine.placement().layers.iter().filter(|layer| layer.home == 1).count();
            kinds[0] += usize::from(n_on_device == 0);
            kinds[1] += usize::from(n_on_device > 0 && n_on_device < n_layer);
            kinds[2] += usize::from(n_on_device == n_layer);
        }
        assert!(kinds.iter().all(|&n| n > 0), "no, some and all layers were on it: {kinds:?}");
        let used = fake.count(2, "used");
        for part in [1, 4, 7] {
            fake.set(&format!("2:hidden={}", (4 << 30) - used - all * part / 8));
            let (words, _, _, notices) = generate_within(&backend, Bytes::MAX);
            same(&words, &format!("{part}/8 of the model"));
            assert!(
                notices.iter().any(|text| text.contains("continuing with")),
                "{part}: {notices:?}"
            );
        }
        fake.set("2:hidden=0");
    });
}

#[test]
fn budgets_of_a_cuda_fake_are_kept() {
    check_budgets(Vendor::Cuda, "cuda");
}

#[test]
fn budgets_of_a_rocm_fake_are_kept() {
    check_budgets(Vendor::Hip, "hip");
}
