//! The self-test of kernels when a model is loaded: right devices pass, planted faults are found,
//! and the words stay those of the CPU.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hal::{Backend, Bytes, Device, DeviceId};
use measure::self_test::{Verdict, cases, check};
use thermocline::engine::{self, Engine, EngineOptions};
use thermocline::model::Model;
use thermocline::placement::{PlacementPolicy, PlanConstraints};
use wgpu_backend::PlantedFault;

use crate::families;
use crate::placement_is_invisible::budgets::greedy;
use crate::placement_is_invisible::graphics::built_in;
use crate::placement_is_invisible::{cpu_device, ignore_notices, sim_device};
use crate::support::within;

fn tested(model: &Model, device: &Device) -> Verdict {
    let (cpu, options) = (cpu_device(2), EngineOptions { n_ctx: 256, ..EngineOptions::default() });
    let devices = [cpu.clone(), device.clone()];
    let cases = cases(engine::programs(model, &devices, &options));
    check(device, &cpu, &cases, &|_| ()).unwrap()
}

/// Every op of every family, in decode, a small batch and prefill: a false alarm would take a layer from
/// a right device.
#[test]
fn a_right_device_passes_with_every_family() {
    within(Duration::from_secs(400), || {
        let (_, device) = sim_device(1, Bytes::MAX, Duration::ZERO..Duration::ZERO, 1);
        let mut n_cases = 0;
        for (name, model) in families::models()
            .chain(families::qwen4exp::models())
            .chain(families::deepseek4::models())
        {
            let verdict = tested(&model, &device);
            assert_eq!(verdict.refused, [], "{name}");
            assert!(verdict.n_cases > 20, "{name}: {verdict:?}");
            n_cases += verdict.n_cases;
        }
        eprintln!("{n_cases} cases");
    });
}

/// The first graphics device, with a fault in its shaders.
fn faulty(fault: Option<[&str; 2]>) -> Option<Arc<dyn Backend>> {
    let planted = PlantedFault(fault.map(|[right, wrong]| (right.to_owned(), wrong.to_owned())));
    let options = wgpu_backend::Options { planted_fault: planted, ..Default::default() };
    let Some(adapter) = wgpu_backend::adapters().into_iter().next() else {
        eprintln!("skipped: no graphics device");
        return None;
    };
    Some(adapter.open(&options).unwrap())
}

/// The verdict about a graphics device with a fault, the words of the model with as much on that
/// device as it runs, and whether the device has a layer.
fn words_with(fault: Option<[&str; 2]>) -> Option<(Verdict, Vec<u32>, bool)> {
    let backend = faulty(fault)?;
    let (model, device) = (built_in(), Device::new(backend, DeviceId(1), Bytes::MAX));
    let began = Instant::now();
    let verdict = tested(&model, &device);
    eprintln!("{fault:?}: {:?}, {verdict:?}", began.elapsed());
    verdict.apply(&device);
    let mut options = EngineOptions { n_ctx: 64, n_ubatch: 32, ..EngineOptions::default() };
    options.placing.constraints = PlanConstraints {
        policy: PlacementPolicy::Layers,
        whole_layers: Some(usize::MAX),
        ..PlanConstraints::default()
    };
    let devices = vec![cpu_device(2), device];
    let mut engine =
        Engine::load(model, devices, options, None, ignore_notices(), &|_, _| {}).unwrap();
    let used = engine.placement().layers.iter().any(|layer| layer.home == 1);
    Some((verdict, greedy(&mut engine, 1, 40), used))
}

fn words_of_the_cpu() -> Vec<u32> {
    let options = EngineOptions { n_ctx: 64, n_ubatch: 32, ..EngineOptions::default() };
    let cpu = vec![cpu_device(2)];
    let mut engine =
        Engine::load(built_in(), cpu, options, None, ignore_notices(), &|_, _| {}).unwrap();
    greedy(&mut engine, 1, 40)
}

#[test]
fn a_wrong_shader_is_replaced_or_its_op_refused() {
    within(Duration::from_secs(400), || {
        let Some((verdict, words, used)) = words_with(None) else { return };
        let expected = words_of_the_cpu();
        assert!(verdict.refused.is_empty() && verdict.replaced.is_empty(), "{verdict:?}");
        assert!(verdict.n_units > 8 && used, "{verdict:?}");
        assert_eq!(words, expected);

        // A wrong lane in sums with subgroups: sums in workgroup memory take their place.
        let lane = ["subgroupShuffleXor(sum, 1u)", "subgroupShuffleXor(sum, 2u)"];
        let (verdict, words, used) = words_with(Some(lane)).unwrap();
        assert!(!verdict.replaced.is_empty() && verdict.refused.is_empty(), "{verdict:?}");
        assert!(used, "the device has another way");
        assert_eq!(words, expected);

        // A wrong constant, for which the device has no other shader.
        let factor = ["let factor = select(1.0 /", "let factor = select(1.01 /"];
        let (verdict, words, used) = words_with(Some(factor)).unwrap();
        let refused: Vec<&str> = verdict.refused.iter().map(|op| op.kind.as_str()).collect();
        assert_eq!(refused, ["Norm"], "{verdict:?}");
        assert!(verdict.refused[0].reason.contains("kernels norm"), "{verdict:?}");
        assert!(!used, "every layer has a norm");
        assert_eq!(words, expected);
    });
}
