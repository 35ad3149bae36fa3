//! A device never exceeds its budget, its memory or its binding limit, and computes no op that it
//! does not support; the CPU does the remaining work.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use super::graphics::built_in;
use super::*;

#[test]
fn budgets_from_nothing_to_everything_are_kept() {
    within(LIMIT, || {
        let model = Tiny { format: Format::Q8_0, ..Tiny::default() }.model();
        let expected = logits(&mut load(&model, vec![cpu_device(2)], None), &[23]);
        let (_, roomy) = sim_device(1, Bytes::MAX, Duration::ZERO..Duration::ZERO, 1);
        let engine = load(&model, vec![cpu_device(2), roomy.clone()], None);
        assert!(engine.placement().layers.iter().all(|layer| layer.home == 1 && !layer.is_split()));
        assert_eq!(engine.placement().head, 1);
        let all = roomy.ledger().peak().0;
        drop(engine);
        let mut kinds = [0; 3];
        for step in 0..=24 {
            let budget = Bytes(all * step / 24);
            let (sim, device) = sim_device(1, budget, Duration::ZERO..Duration::ZERO, step);
            let mut engine = load(&model, vec![cpu_device(2), device.clone()], None);
            let got = logits(&mut engine, &[7]);
            assert!(difference(&expected, &got) <= bound(Format::Q8_0), "budget {budget}");
            assert!(device.ledger().peak() <= budget, "{} of {budget}", device.ledger().peak());
            assert!(sim.counters().peak <= budget, "physical peak over {budget}");
            let placement = engine.placement();
            kinds[0] += usize::from(placement.layers.iter().all(|layer| layer.home == 0));
            kinds[1] += usize::from(placement.n_split() > 0);
            kinds[2] += usize::from(placement.layers.iter().all(|layer| layer.home == 1));
        }
        assert!(
            kinds.iter().all(|&n| n > 0),
            "none, some and all of the model was on the device: {kinds:?}"
        );
    });
}

#[test]
fn a_failed_allocation_shrinks_the_share() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let expected = logits(&mut load(&model, vec![cpu_device(2)], None), &[23]);
        for nth in [1, 5, 12, 20, 40] {
            let (sim, device) = sim_device(1, Bytes(1 << 20), Duration::ZERO..Duration::ZERO, nth);
            sim.out_of_memory_at(nth);
            let failed = Arc::new(AtomicBool::new(false));
            let flag = Arc::clone(&failed);
            let notice: NoticeCallback =
                Arc::new(move |_: &str| flag.store(true, Ordering::Relaxed));
            let devices = vec![cpu_device(2), device];
            let mut engine =
                Engine::load(Arc::clone(&model), devices, options(), None, notice, &|_, _| {})
                    .unwrap();
            assert!(failed.load(Ordering::Relaxed), "allocation {nth}");
            assert!(difference(&expected, &logits(&mut engine, &[23])) <= bound(Format::F16));
        }
    });
}

#[test]
fn refused_ops_run_on_the_cpu() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let expected = logits(&mut load(&model, vec![cpu_device(2)], None), &[23]);
        let options =
            SimOptions { name: "SIM1".into(), max_binding: Bytes(6000), ..SimOptions::default() };
        for refused in [Some("SparseFfn"), None] {
            let sim = SimBackend::new(options.clone());
            if let Some(op) = refused {
                sim.refuse(op);
            }
            let device = Device::new(sim, DeviceId(1), Bytes::MAX);
            let mut engine = load(&model, vec![cpu_device(2), device], None);
            let shares = engine.placement().layers.iter().flat_map(|layer| &layer.shares);
            assert!(shares.clone().all(|share| share.device == 0), "neurons are on the CPU");
            assert!(difference(&expected, &logits(&mut engine, &[23])) <= bound(Format::F16));
        }
    });
}

#[test]
fn a_device_smaller_than_its_budget_gets_what_fits() {
    within(LIMIT, || {
        let model = Tiny { format: Format::Q8_0, ..Tiny::default() }.model();
        let expected = logits(&mut load(&model, vec![cpu_device(2)], None), &[23]);
        let mut kinds = [0; 3];
        for step in 0..=12 {
            let memory = Bytes(400_000 * step / 12);
            for budget in [Bytes::MAX, Bytes(1 << 20)] {
                let options = SimOptions {
                    name: "SIM1".into(),
                    memory,
                    workspace: Bytes(5000),
                    ..SimOptions::default()
                };
                let sim = SimBackend::new(options);
                let device = Device::new(Arc::clone(&sim) as Arc<dyn Backend>, DeviceId(1), budget);
                let tries = Arc::new(Mutex::new(0));
                let count = Arc::clone(&tries);
                let notice: NoticeCallback = Arc::new(move |_: &str| *count.lock().unwrap() += 1);
                let devices = vec![cpu_device(2), device];
                let mut engine = Engine::load(
                    Arc::clone(&model),
                    devices,
                    options_of(7),
                    None,
                    notice,
                    &|_, _| {},
                )
                .unwrap();
                assert!(sim.counters().peak <= memory, "{} of {memory}", sim.counters().peak);
                assert!(*tries.lock().unwrap() < 40, "{} tries", tries.lock().unwrap());
                assert!(difference(&expected, &logits(&mut engine, &[7])) <= bound(Format::Q8_0));
                let placement = engine.placement();
                kinds[0] += usize::from(placement.layers.iter().all(|layer| layer.home == 0));
                kinds[1] += usize::from(placement.n_split() > 0);
                kinds[2] += usize::from(placement.layers.iter().all(|layer| layer.home == 1));
            }
        }
        assert!(
            kinds.iter().all(|&n| n > 0),
            "none, some and all of the model was on the device: {kinds:?}"
        );
    });
}

fn options_of(n_ubatch: usize) -> EngineOptions {
    EngineOptions { n_ubatch, ..options() }
}

#[test]
fn any_op_may_be_refused() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let expected = logits(&mut load(&model, vec![cpu_device(2)], None), &[23]);
        let run = |sim: Arc<SimBackend>, budget: Bytes| {
            let device = Device::new(sim, DeviceId(1), budget);
            let mut engine = load(&model, vec![cpu_device(2), device], None);
            assert!(difference(&expected, &logits(&mut engine, &[23])) <= bound(Format::F16));
            engine.placement().clone()
        };
        for op in hal::op::OP_NAMES {
            for budget in [Bytes(150_000), Bytes::MAX] {
                let sim =
                    SimBackend::new(SimOptions { name: "SIM1".into(), ..SimOptions::default() });
                sim.refuse(op);
                let placement = run(sim, budget);
                if ["Norm", "Rope", "Attention", "StoreKv", "Add", "MatMul"].contains(op) {
                    assert!(placement.layers.iter().all(|layer| layer.home == 0), "{op}");
                }
            }
        }
        let mut used = 0;
        for limit in (1000..30_000).step_by(2000) {
            let max_binding = Bytes(limit);
            let options = SimOptions { name: "SIM1".into(), max_binding, ..SimOptions::default() };
            let placement = run(SimBackend::new(options), Bytes::MAX);
            used += usize::from(placement.layers.iter().any(|layer| layer.home == 1));
        }
        assert!(used > 0, "with large bindings, the device runs layers");
    });
}

/// `start` and `n` greedily sampled tokens after it, one token per step.
pub(crate) fn greedy(engine: &mut Engine, start: u32, n: usize) -> Vec<u32> {
    let mut sequence = engine.new_sequence();
    let mut ids = vec![start];
    for _ in 0..n {
        let mut next = 0;
        let interrupt = AtomicBool::new(false);
        let last = [ids[ids.len() - 1]];
        let sink = &mut |_: usize, row: &[f32]| {
            let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
            next = best.map_or(0, |(id, _)| id as u32);
        };
        engine.feed(&mut sequence, &last, LogitsRequest::All, &interrupt, sink).unwrap();
        ids.push(next);
    }
    ids
}

#[test]
fn the_built_in_model_generates_the_same_tokens_within_every_budget() {
    within(LIMIT, || {
        let model = built_in();
        let load = |devices| {
            let options = EngineOptions { n_ctx: 64, n_ubatch: 4, ..EngineOptions::default() };
            Engine::load(Arc::clone(&model), devices, options, None, ignore_notices(), &|_, _| {})
                .unwrap()
        };
        let expected = greedy(&mut load(vec![cpu_device(2)]), 1, 24);
        let (mut n_split, mut n_whole, mut last) = (0, 0, f64::INFINITY);
        for step in 0..=8 {
            let budget = Bytes(step * (3 << 19)) - Bytes(100_000 * (step % 3));
            let (sim, device) = sim_device(1, budget, Duration::ZERO..Duration::ZERO, step);
            let mut engine = load(vec![cpu_device(2), device.clone()]);
            assert_eq!(greedy(&mut engine, 1, 24), expected, "budget {budget}");
            assert!(device.ledger().peak() <= budget && sim.counters().peak <= budget);
            n_split += usize::from(engine.placement().n_split() > 0);
            n_whole += usize::from(engine.placement().layers.iter().all(|layer| layer.home == 1));
            if let Some(forecast) = engine.forecast() {
                let planned = forecast.devices[1].total();
                assert!(device.ledger().peak() <= planned, "{} is planned", planned);
                assert!(forecast.seconds <= last * (1.0 + 1e-9), "more budget is never worse");
                last = forecast.seconds;
            }
        }
        assert!(n_split > 0 && n_whole > 0, "{n_split} split, {n_whole} whole");
    });
}

#[test]
fn two_hundred_tokens_match_across_three_devices() {
    within(LIMIT, || {
        let model = built_in();
        let run = |devices, placement| {
            let options = EngineOptions { n_ctx: 224, n_ubatch: 4, ..EngineOptions::default() };
            let model = Arc::clone(&model);
            let mut engine =
                Engine::load(model, devices, options, placement, ignore_notices(), &|_, _| {})
                    .unwrap();
            greedy(&mut engine, 1, 200)
        };
        let expected = run(vec![cpu_device(2)], None);
        let sim = |n| sim_device(n, Bytes::MAX, Duration::ZERO..Duration::from_micros(20), 5).1;
        let layers = (0..model.hyper.n_layer)
            .map(|layer| deal_neurons(&model, &[1 + layer % 2, 0, 2 - layer % 2]));
        let placement = Placement { embed: 1, head: 2, layers: layers.collect() };
        assert_eq!(run(vec![cpu_device(2), sim(1), sim(2)], Some(placement)), expected);
    });
}

#[test]
fn activation_frequencies_decide_the_placement() {
    within(LIMIT, || {
        for (seed, activation) in [(1, "relu"), (2, "silu")] {
            let tiny = Tiny { seed, activation, format: Format::Q8_0, ..Tiny::default() };
            let model = tiny.model();
            let expected = logits(&mut load(&model, vec![cpu_device(2)], None), &[23]);
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let n_ff = model.max_n_ff();
            let layer = |_| (0..n_ff).map(|_| rng.random_range(0.0..1.0f32)).collect();
            let uses: Arc<Vec<Vec<f32>>> = Arc::new((0..model.hyper.n_layer).map(layer).collect());
            let placing =
                PlannerInputs { uses: Some(Arc::clone(&uses)), ..PlannerInputs::default() };
            let settings = EngineOptions { placing, ..options() };
            let mut n_split = 0;
            for kib in (100..260).step_by(10) {
                let budget = Bytes(kib << 10);
                let (_, device) = sim_device(1, budget, Duration::ZERO..Duration::ZERO, seed);
                let devices = vec![cpu_device(2), device.clone()];
                let (model, settings) = (Arc::clone(&model), settings.clone());
                let mut engine =
                    Engine::load(model, devices, settings, None, ignore_notices(), &|_, _| {})
                        .unwrap();
                let got = logits(&mut engine, &[7]);
                assert!(difference(&expected, &got) <= bound(Format::Q8_0), "{budget}");
                assert!(device.ledger().peak() <= budget);
                for (placed, uses) in engine.placement().layers.iter().zip(uses.iter()) {
                    let [hot, cold] = &placed.shares[..] else { continue };
                    let (Neurons::List(hot), Neurons::List(cold)) = (&hot.neurons, &cold.neurons)
                    else {
                        panic!("shares of a split are lists")
                    };
                    let mean = |list: &[u32]| {
                        let sum: f32 = list.iter().map(|&n| uses[n as usize]).sum();
                        sum / list.len() as f32
                    };
                    assert!(mean(hot) > mean(cold), "hot neurons are on the device");
                    n_split += 1;
                }
            }
            assert!(n_split > 0, "{activation}");
        }
    });
}

/// Everything that a step copies between devices has its memory before the first step.
#[test]
fn steps_of_all_families_need_no_more_memory_than_loading() {
    within(LIMIT, || {
        for (name, model) in crate::families::all_models() {
            let sims =
                [1, 2].map(|n| sim_device(n, Bytes::MAX, Duration::ZERO..Duration::ZERO, 3).1);
            let mut layers: Vec<LayerPlacement> = Vec::new();
            for (i, layer) in model.layers.iter().enumerate() {
                let source = layer.frame.mixer.kv_source();
                layers.push(LayerPlacement::whole(source.map_or(i % 3, |at| layers[at].home)));
            }
            let placement = Placement { embed: 2, head: 1, layers };
            let devices = [cpu_device(2)].into_iter().chain(sims.iter().cloned()).collect();
            let options = EngineOptions { n_ctx: 48, ..options() };
            let mut engine = load_with(&model, devices, options, Some(placement));
            let used = || sims.each_ref().map(|device| device.ledger().used());
            let loaded = used();
            logits(&mut engine, &[16, 1]);
            assert_eq!(used(), loaded, "{name}");
        }
    });
}
