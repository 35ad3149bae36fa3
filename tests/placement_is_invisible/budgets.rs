//! Budgets are hard, whoever sets them: the ledger, the device's memory, its bindings, the ops it can run.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

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
        assert!(kinds.iter().all(|&n| n > 0), "nothing, some and all were seen: {kinds:?}");
    });
}

#[test]
fn an_allocation_that_fails_shrinks_the_share() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let expected = logits(&mut load(&model, vec![cpu_device(2)], None), &[23]);
        for nth in [1, 5, 12, 20, 40] {
            let (sim, device) = sim_device(1, Bytes(1 << 20), Duration::ZERO..Duration::ZERO, nth);
            sim.out_of_memory_at(nth);
            let told = Arc::new(AtomicBool::new(false));
            let flag = Arc::clone(&told);
            let notice: Notice = Arc::new(move |_: &str| flag.store(true, Ordering::Relaxed));
            let devices = vec![cpu_device(2), device];
            let mut engine =
                Engine::load(Arc::clone(&model), devices, options(), None, notice, &|_, _| {})
                    .unwrap();
            assert!(told.load(Ordering::Relaxed), "allocation {nth}");
            assert!(difference(&expected, &logits(&mut engine, &[23])) <= bound(Format::F16));
        }
    });
}

/// What a device that cannot run an op, or not at this size, does to the plan.
#[test]
fn a_device_that_refuses_leaves_the_work_to_the_cpu() {
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
            assert!(engine.placement().layers.iter().all(|layer| layer.home == 0));
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
                let notice: Notice = Arc::new(move |_: &str| *count.lock().unwrap() += 1);
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
        assert!(kinds.iter().all(|&n| n > 0), "nothing, some and all were seen: {kinds:?}");
    });
}

fn options_of(n_ubatch: usize) -> EngineOptions {
    EngineOptions { n_ubatch, ..options() }
}

/// Whatever op a device cannot run, and however little it can bind, the model runs.
#[test]
fn every_op_may_be_refused() {
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
                    assert_eq!(placement, Placement::all_on(0, model.hyper.n_layer), "{op}");
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
        assert!(used > 0, "a large binding lets layers run there");
    });
}
