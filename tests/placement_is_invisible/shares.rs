//! With a profile, the device gets a larger fraction of the work. The planned fraction is compared
//! with the counts of a run over another text of the same kind.

use thermocline::engine::{LayerActivity, forecast};
use thermocline::profile::{Gatherer, Profile, Text, calibrate};
use thermocline::tokenizer::{Tokenizer, Vocab};

use super::graphics::{built_in, graphics};
use super::*;

/// Numbers of tokens: of the profiled text, of the following text for counting, and of a run.
const KNOWN: usize = 5120;
const OTHER: usize = 5120;
const RUN: usize = 512;
const STEPS: u64 = 24;
/// Largest allowed difference of planned and counted fractions.
const MAX_ERROR: f64 = 0.03;

/// Splits the model's evaluation text into a text to profile and a text to count.
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
        Engine::load(model_of_engine, devices, options, None, ignore_notices(), &|_, _| {})
            .unwrap();
    let mut profile = text.start(model);
    let (mut gatherer, interrupt) = (Gatherer::new(model).unwrap(), AtomicBool::new(false));
    calibrate(&mut engine, text, &mut profile, &mut gatherer, &interrupt, &mut |_, _| {}).unwrap();
    profile
}

/// Fraction of the firing neurons of `text` that `placement` puts on devices other than the CPU.
fn share_off_cpu(placement: &Placement, text: &Profile) -> f64 {
    let (mut off_cpu, mut all) = (0, 0);
    for (placed, fires) in placement.layers.iter().zip(text.layers()) {
        all += fires.active_counts().iter().sum::<u64>();
        for share in placed.shares.iter().filter(|share| share.device != 0) {
            off_cpu += match &share.neurons {
                Neurons::All => fires.active_counts().iter().sum::<u64>(),
                Neurons::List(list) => {
                    list.iter().map(|&n| fires.active_counts()[n as usize]).sum()
                }
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
    let placing =
        PlannerInputs { uses: Some(Arc::new(known.probabilities())), ..PlannerInputs::default() };
    let uniform = EngineOptions { n_ctx: RUN, n_ubatch: 32, ..EngineOptions::default() };
    let profiled = EngineOptions { placing, ..uniform.clone() };
    let devices = |budget| vec![cpu_device(2), device(budget)];
    let everything = forecast(&model, &devices(Bytes(1 << 30)), &profiled).devices[1].total();
    let (mut better, mut ran) = (0, 0);
    for step in 1..=STEPS {
        let budget = Bytes(everything.0 * step / STEPS);
        let [by_profile, by_nothing] =
            [&profiled, &uniform].map(|options| forecast(&model, &devices(budget), options));
        let share = share_off_cpu(&by_profile.placement, &fired);
        let plain = share_off_cpu(&by_nothing.placement, &fired);
        eprintln!(
            "{budget}: planned {:.3}, counted {share:.3}; without a profile {:.3}, {plain:.3}",
            by_profile.off_cpu, by_nothing.off_cpu
        );
        assert!((share - by_profile.off_cpu).abs() <= MAX_ERROR, "{budget}");
        assert!(share >= plain, "{budget}");
        // Some, but not all neurons fit into the budget.
        if by_profile.off_cpu > 0.0 && by_nothing.off_cpu < 1.0 {
            assert!(share > plain, "{budget}: the hot neurons are on the device");
            better += 1;
        }
        if step % run_every == 0 {
            let (model, settings) = (Arc::clone(&model), profiled.clone());
            let mut engine =
                Engine::load(model, devices(budget), settings, None, ignore_notices(), &|_, _| {})
                    .unwrap();
            assert_eq!(engine.placement(), &by_profile.placement);
            let mut sequence = engine.new_sequence();
            let interrupt = AtomicBool::new(false);
            let ids = other.windows().next().unwrap();
            let stats = engine
                .feed(&mut sequence, ids, LogitsRequest::Last, &interrupt, &mut |_, _| {})
                .unwrap();
            drop(sequence);
            let layers = engine.layer_activity();
            let sum = |part: fn(&LayerActivity) -> f64| layers.iter().map(part).sum::<f64>();
            assert_eq!(sum(|l| l.neurons), stats.neurons, "{budget}");
            // Neurons of streamed weights are counted for all layers together.
            if by_profile.stream_from.iter().all(Option::is_none) {
                let sums = [sum(|l| l.active), sum(|l| l.off_cpu)];
                assert_eq!(sums, [stats.active, stats.off_cpu], "{budget}");
            }
            let ledger = engine.devices()[1].ledger();
            assert!(ledger.peak() <= budget, "{} of {budget}", ledger.peak());
            let measured = stats.off_cpu / stats.active;
            assert!((measured - by_profile.off_cpu).abs() <= MAX_ERROR, "{budget}: {measured}");
            ran += 1;
        }
    }
    assert!(better >= STEPS / 3 && ran >= 2, "{better} budgets of {STEPS} split, {ran} ran");
}

#[test]
fn a_profile_raises_the_reported_share_of_the_device() {
    within(Duration::from_secs(500), || {
        let device = |budget| sim_device(1, budget, Duration::ZERO..Duration::ZERO, 1).1;
        check(&device, 8);
    });
}

#[test]
fn a_profile_raises_the_share_of_a_graphics_device() {
    let Some(backend) = graphics() else { return };
    within(Duration::from_secs(500), move || {
        check(&|budget| Device::new(Arc::clone(&backend), DeviceId(1), budget), 12);
    });
}
