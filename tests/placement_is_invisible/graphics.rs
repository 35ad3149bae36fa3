//! The built-in model on a graphics device: the first that Vulkan, Metal or DX12 shows, be it software.

use thermocline::devices;

use super::budgets::greedy;
use super::*;

/// Opens the first device. Where there is none, that is a failure if `THERMOCLINE_REQUIRE_GPU` is set.
#[allow(clippy::disallowed_methods, reason = "CI asks a test to fail, and has no other way")]
pub(super) fn graphics() -> Option<Arc<dyn Backend>> {
    let (found, missing) = devices::candidates(None);
    let Some(candidate) = found.iter().find(|candidate| candidate.backend == "wgpu") else {
        let required = std::env::var_os("THERMOCLINE_REQUIRE_GPU").is_some();
        assert!(!required, "{missing:?}");
        eprintln!("skipped: {missing:?}");
        return None;
    };
    eprintln!("{}: {}", candidate.name, candidate.description);
    Some(candidate.open().unwrap())
}

pub(super) fn built_in() -> Arc<Model> {
    let file = thermocline::embedded::file().unwrap();
    Arc::new(Model::from_file(file, &Default::default()).unwrap())
}

/// Fifty tokens, all on the device, and with the neurons of every layer dealt out over it and the CPU.
#[test]
fn a_graphics_device_says_the_cpus_words() {
    let Some(backend) = graphics() else { return };
    within(Duration::from_secs(500), move || {
        let model = built_in();
        let n_layer = model.hyper.n_layer;
        let run = |placement: Option<Placement>| {
            let mut all = vec![cpu_device(2)];
            if placement.is_some() {
                all.push(Device::new(Arc::clone(&backend), DeviceId(1), Bytes::MAX));
            }
            let options = EngineOptions { n_ctx: 64, n_ubatch: 4, ..EngineOptions::default() };
            let model = Arc::clone(&model);
            let mut engine =
                Engine::load(model, all, options, placement, quiet(), &|_, _| {}).unwrap();
            greedy(&mut engine, 1, 50)
        };
        let expected = run(None);
        assert_eq!(run(Some(Placement::all_on(1, n_layer))), expected, "all on the device");
        let split = Placement { embed: 0, head: 0, layers: vec![deal(&model, &[1, 0]); n_layer] };
        assert_eq!(run(Some(split)), expected, "every layer split");
    });
}
