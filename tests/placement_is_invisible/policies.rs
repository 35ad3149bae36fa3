//! The placement policies, with random budgets on the simulated device and the graphics device:
//! every policy generates the tokens of the CPU, and none exceeds its budget.

use thermocline::placement::{LayerRule, PlacementPolicy, PlacementRules, PlanConstraints};

use super::budgets::greedy;
use super::graphics::{built_in, graphics};
use super::*;

const POLICIES: [PlacementPolicy; 3] =
    [PlacementPolicy::Fastest, PlacementPolicy::Fill, PlacementPolicy::Layers];

const N_TOKENS: usize = 24;

/// Tokens of `model` on the CPU alone and with the placement of a policy.
struct Runs {
    model: Arc<Model>,
    expected: Vec<u32>,
    uses: Arc<Vec<Vec<f32>>>,
}

impl Runs {
    fn new(model: Arc<Model>, seed: u64) -> Runs {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let n_ff = model.max_n_ff();
        let layer = |_| (0..n_ff).map(|_| rng.random_range(0.0..1.0f32)).collect();
        let uses = Arc::new((0..model.hyper.n_layer).map(layer).collect());
        let mut runs = Runs { model, expected: Vec::new(), uses };
        let mut cpu = runs.load(vec![cpu_device(2)], PlacementPolicy::Fastest);
        runs.expected = greedy(&mut cpu, 1, N_TOKENS);
        runs
    }

    fn load(&self, devices: Vec<Device>, policy: PlacementPolicy) -> Engine {
        let constraints = PlanConstraints { policy, ..PlanConstraints::default() };
        let uses = Some(Arc::clone(&self.uses));
        let placing = PlannerInputs { uses, constraints, ..PlannerInputs::default() };
        let options = EngineOptions { n_ctx: 64, n_ubatch: 4, placing, ..EngineOptions::default() };
        load_with(&self.model, devices, options, None)
    }

    /// Compares the tokens, and checks the budget. Returns the placement.
    #[track_caller]
    fn check(&self, device: Device, policy: PlacementPolicy) -> Placement {
        let budget = device.ledger().budget();
        let mut engine = self.load(vec![cpu_device(2), device.clone()], policy);
        let tokens = greedy(&mut engine, 1, N_TOKENS);
        assert_eq!(tokens, self.expected, "{policy:?} within {budget}");
        let peak = device.ledger().peak();
        assert!(peak <= budget, "{policy:?} took {peak} of {budget}");
        engine.placement().clone()
    }
}

#[test]
fn every_policy_generates_the_same_tokens_within_random_budgets() {
    within(LIMIT, || {
        let runs = Runs::new(built_in(), 3);
        let (_, roomy) = sim_device(1, Bytes::MAX, Duration::ZERO..Duration::ZERO, 1);
        let all = runs.check(roomy.clone(), PlacementPolicy::Fill);
        assert_eq!(all, Placement::all_on(1, runs.model.hyper.n_layer));
        let most = roomy.ledger().peak().0;
        let mut rng = ChaCha8Rng::seed_from_u64(23);
        let mut n_split = [0; 3];
        for round in 0..5 {
            let budget = Bytes(rng.random_range(most / 4..most));
            let delay = Duration::ZERO..Duration::from_micros(50);
            for (policy, n_split) in POLICIES.into_iter().zip(&mut n_split) {
                let (_, device) = sim_device(1, budget, delay.clone(), round);
                *n_split += runs.check(device, policy).n_split();
            }
        }
        let [_, fill, layers] = n_split;
        assert!(fill > 0 && layers == 0, "split layers by policy: {n_split:?}");
    });
}

#[test]
fn every_policy_gives_the_same_logits_for_random_models() {
    within(LIMIT, || {
        for (seed, format) in [Format::F16, Format::Q8_0].into_iter().enumerate() {
            let tiny = Tiny { seed: seed as u64 + 7, format, ..Tiny::default() };
            let model = tiny.model();
            let expected = logits(&mut load(&model, vec![cpu_device(1)], None), &[23]);
            let mut rng = ChaCha8Rng::seed_from_u64(tiny.seed);
            for policy in POLICIES.iter().cycle().take(9) {
                let constraints = PlanConstraints { policy: *policy, ..PlanConstraints::default() };
                let placing = PlannerInputs { constraints, ..PlannerInputs::default() };
                let settings = EngineOptions { placing, ..options() };
                let budget = Bytes(rng.random_range(80_000..260_000));
                let devices = [1, 2]
                    .map(|i| sim_device(i, budget, Duration::ZERO..Duration::ZERO, tiny.seed).1);
                let all = [cpu_device(2)].into_iter().chain(devices.clone()).collect();
                let mut engine = load_with(&model, all, settings, None);
                let difference = difference(&expected, &logits(&mut engine, &[7]));
                assert!(difference <= bound(format), "{policy:?} within {budget}: {difference}");
                assert!(devices.iter().all(|device| device.ledger().peak() <= budget));
            }
        }
    });
}

#[test]
fn every_policy_generates_the_same_tokens_on_a_graphics_device() {
    let Some(backend) = graphics() else { return };
    within(Duration::from_secs(500), move || {
        let runs = Runs::new(built_in(), 4);
        let mut rng = ChaCha8Rng::seed_from_u64(24);
        for policy in POLICIES {
            let budget = Bytes(rng.random_range(6 << 20..9 << 20));
            let device = Device::new(Arc::clone(&backend), DeviceId(1), budget);
            let placement = runs.check(device, policy);
            match policy {
                PlacementPolicy::Fill => assert!(placement.n_split() > 0, "{placement:?}"),
                PlacementPolicy::Layers => assert_eq!(placement.n_split(), 0),
                PlacementPolicy::Fastest => (),
            }
        }
    });
}

/// Rules as from llama.cpp's overrides of tensor buffers, with an MoE model and a dense one.
#[test]
fn rules_are_followed_and_change_no_logits() {
    let [free, cold, whole, cpu] =
        [(None, false), (None, true), (Some(1), false), (Some(0), false)]
            .map(|(home, neurons_on_cpu)| LayerRule { home, neurons_on_cpu });
    within(LIMIT, move || {
        for spec in ["64x4x64x4/2*8/2:F16:silu", "64x4x96x4/2:F16:relu"] {
            let model = super::adapt::generated(spec);
            let expected = logits(&mut load(&model, vec![cpu_device(1)], None), &[23]);
            for layers in [vec![cold; 4], vec![whole, cold, free, cpu], vec![whole; 4]] {
                let rules = PlacementRules { layers: layers.clone(), ..PlacementRules::default() };
                let placing = PlannerInputs { rules: Arc::new(rules), ..PlannerInputs::default() };
                let (_, device) = sim_device(1, Bytes::MAX, Duration::ZERO..Duration::ZERO, 1);
                let settings = EngineOptions { placing, ..options() };
                let mut engine = load_with(&model, vec![cpu_device(2), device], settings, None);
                let placement = engine.placement().clone();
                for (rule, placed) in layers.iter().zip(&placement.layers) {
                    assert_eq!(rule.home.unwrap_or(placed.home), placed.home, "{placement:?}");
                    let here = placed.shares.iter().filter(|share| share.device != 0);
                    assert!(!rule.neurons_on_cpu || here.count() == 0, "{placement:?}");
                }
                let difference = difference(&expected, &logits(&mut engine, &[7]));
                assert!(difference <= bound(Format::F16), "{spec}: {difference}");
            }
        }
    });
}
