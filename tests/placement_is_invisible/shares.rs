//! The benefit of a profile: the device's share of the work, as planned and as counted in a run of
//! a text that the profile has not seen but that is of the same kind.

use thermocline::engine::forecast;
use thermocline::profile::{Gatherer, Profile, Text, calibrate};
use thermocline::tokenizer::{Tokenizer, Vocab};

use super::graphics::{built_in, graphics};
use super::*;

/// Tokens of the text for the profile, of the text after it for counting, and of a run.
const KNOWN: usize = 5120;
const OTHER: usize = 5120;
const RUN: usize = 512;
const STEPS: u64 = 24;
/// Tolerance for planned shares.
const POINTS: f64 = 0.03;

/// The two parts of the model's own text.
fn texts(model: &Model) -> [Text; 2] {
    let vocab = Vocab::from_metadata(model.file.metadata()).unwrap();
    let tokenizer = Tokenizer::new(vocab).unwrap();
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/reference/eval.txt");
    let words = std::fs::read_to_string(path).unwrap();
    let tokens = tokenizer.encode(&words, false, false).unwrap();
    let (known, other) = tokens.split_at(KNOWN);
    [known, &other[..OTHER]].map(|part| Text::new(part, tokenizer.bos(), RUN, None))
}

/// How often each neuron fires.
fn profile(model: &Arc<Model>, text: &Text) -> Profile {
    let options = EngineOptions { n_ctx: RUN, n_ubatch: 64, ..EngineOptions::default() };
    let model_of_engine = Arc::clone(model);
    let devices = vec![cpu_device(2)];
    let mut engine =
        Engine::load(model_of_engine, devices, options, None, quiet(), &|_, _| {}).unwrap();
    let mut profile = text.start(model);
    let (mut gatherer, go_on) = (Gatherer::new(model).unwrap(), AtomicBool::new(false));
    calibrate(&mut engine, text, &mut profile, &mut gatherer, &go_on, &mut |_| {}).unwrap();
    profile
}

/// Share of the firing neurons of a text that a placement has off the CPU.
fn counted(placement: &Placement, text: &Profile) -> f64 {
    let (mut off_cpu, mut all) = (0, 0);
    for (placed, fires) in placement.layers.iter().zip(text.layers()) {
        all += fires.fires().iter().sum::<u64>();
        for share in placed.shares.iter().filter(|share| share.device != 0) {
            off_cpu += match &share.neurons {
                Neurons::All => fires.fires().iter().sum::<u64>(),
                Neurons::List(list) => list.iter().map(|&n| fires.fires()[n as usize]).sum(),
            };
        }
    }
    off_cpu as f64 / all as f64
}

/// Tries a range of budgets on devices that `device` makes; runs the model at every `run_every`th
/// of them.
fn check(device: &dyn Fn(Bytes) -> Device, run_every: u64) {
    let model = built_in();
    let [known, other] = texts(&model);
    let known = profile(&model, &known);
    let fired = profile(&model, &other);
    let placing = Placing { uses: Some(Arc::new(known.probabilities())), ..Placing::default() };
    let uniform = EngineOptions { n_ctx: RUN, n_ubatch: 32, ..EngineOptions::default() };
    let profiled = EngineOptions { placing, ..uniform.clone() };
    let devices = |budget| vec![cpu_device(2), device(budget)];
    let everything = forecast(&model, &devices(Bytes(1 << 30)), &profiled).devices[1].total();
    let (mut better, mut ran) = (0, 0);
    for step in 1..=STEPS {
        let budget = Bytes(everything.0 * step / STEPS);
        let [by_profile, by_nothing] =
            [&profiled, &uniform].map(|options| forecast(&model, &devices(budget), options));
        let share = counted(&by_profile.placement, &fired);
        let plain = counted(&by_nothing.placement, &fired);
        eprintln!(
            "{budget}: planned {:.3}, counted {share:.3}; without a profile {:.3}, {plain:.3}",
            by_profile.off_cpu, by_nothing.off_cpu
        );
        assert!((share - by_profile.off_cpu).abs() <= POINTS, "{budget}");
        assert!(share >= plain, "{budget}");
        // At budgets with room for some but not all neurons.
        if by_profile.off_cpu > 0.0 && by_nothing.off_cpu < 1.0 {
            assert!(share > plain, "{budget}: the hot neurons are on the device");
            better += 1;
        }
        if step % run_every == 0 {
            let (model, settings) = (Arc::clone(&model), profiled.clone());
            let mut engine =
                Engine::load(model, devices(budget), settings, None, quiet(), &|_, _| {}).unwrap();
            assert_eq!(engine.placement(), &by_profile.placement);
            let mut sequence = engine.open();
            let go_on = AtomicBool::new(false);
            let ids = other.windows().next().unwrap();
            let stats =
                engine.feed(&mut sequence, ids, Want::Last, &go_on, &mut |_, _| {}).unwrap();
            engine.close(sequence);
            let ledger = engine.devices()[1].ledger();
            assert!(ledger.peak() <= budget, "{} of {budget}", ledger.peak());
            let measured = stats.off_cpu / stats.active;
            assert!((measured - by_profile.off_cpu).abs() <= POINTS, "{budget}: {measured}");
            ran += 1;
        }
    }
    assert!(better >= STEPS / 3 && ran >= 2, "{better} budgets of {STEPS} split, {ran} ran");
}

#[test]
fn a_profile_puts_more_of_the_work_on_the_device_and_says_how_much() {
    within(Duration::from_secs(500), || {
        let device = |budget| sim_device(1, budget, Duration::ZERO..Duration::ZERO, 1).1;
        check(&device, 8);
    });
}

#[test]
fn the_same_on_a_graphics_device() {
    let Some(backend) = graphics() else { return };
    within(Duration::from_secs(500), move || {
        check(&|budget| Device::new(Arc::clone(&backend), DeviceId(1), budget), 12);
    });
}
