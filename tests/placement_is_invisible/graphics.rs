//! The built-in model on a graphics device: the first one that Vulkan, Metal or DX12 reports,
//! which may be a software driver.

use thermocline::devices;
use thermocline::engine::Feed;
use wgpu_backend::{Counts, WgpuBackend};

use super::adapt::{generated, half_placement};
use super::budgets::greedy;
use super::*;

/// Opens the first device; `None` if there is none. Panics instead if `THERMOCLINE_REQUIRE_GPU` is
/// set.
#[allow(clippy::disallowed_methods, reason = "CI requires a GPU with this variable")]
pub(crate) fn graphics() -> Option<Arc<dyn Backend>> {
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

pub(crate) fn built_in() -> Arc<Model> {
    let file = thermocline::embedded::file().unwrap();
    Arc::new(Model::from_file(file, &Default::default()).unwrap())
}

#[test]
fn a_graphics_device_generates_the_tokens_of_the_cpu() {
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
                Engine::load(model, all, options, placement, ignore_notices(), &|_, _| {}).unwrap();
            greedy(&mut engine, 1, 50)
        };
        let expected = run(None);
        assert_eq!(run(Some(Placement::all_on(1, n_layer))), expected, "all on the device");
        let split =
            Placement { embed: 0, head: 0, layers: vec![deal_neurons(&model, &[1, 0]); n_layer] };
        assert_eq!(run(Some(split)), expected, "every layer split");
    });
}

#[test]
fn several_sequences_on_a_graphics_device() {
    let Some(backend) = graphics() else { return };
    within(Duration::from_secs(300), move || crate::sequences::on_device(&backend, 3));
}

/// What one token of a generation costs: the minimum over four steps, because a timed step of a
/// split model may take additional submissions, and the first step clears counters.
fn per_token(backend: &Arc<WgpuBackend>, model: &Arc<Model>, placement: Placement) -> Counts {
    let device = Device::new(Arc::clone(backend) as Arc<dyn Backend>, DeviceId(1), Bytes::MAX);
    let devices = vec![cpu_device(2), device];
    let mut engine = load_with(model, devices, options(), Some(placement));
    let mut sequence = engine.new_sequence();
    let step = |token: u32| {
        let before = backend.counts();
        let interrupt = AtomicBool::new(false);
        let (tokens, want) = (&[token][..], LogitsRequest::Last);
        let mut feeds = [Feed { sequence: &mut sequence, tokens, want }];
        engine.step(&mut feeds, &interrupt, &mut |_, _, _| {}).unwrap();
        let after = backend.counts();
        Counts {
            submissions: after.submissions - before.submissions,
            dispatches: after.dispatches - before.dispatches,
            waits: after.waits - before.waits,
            copies: after.copies - before.copies,
            encoded_ahead: after.encoded_ahead - before.encoded_ahead,
        }
    };
    (3..7).map(step).min_by_key(|counts| (counts.submissions, counts.waits, counts.copies)).unwrap()
}

/// The overhead of a layer and of a token on any device (docs/measurements/gpu.md multiplies the
/// dispatches by the time of one): a run of whole layers is one submission, a split layer two, and
/// the number of dispatches must not grow unnoticed.
#[test]
fn the_dispatches_per_layer_are_pinned() {
    if graphics().is_none() {
        return;
    }
    let found = wgpu_backend::adapters();
    let Some(adapter) = found.first() else { return };
    let backend = adapter.open(&wgpu_backend::Options::default()).unwrap();
    for (spec, whole, split) in [(":Q4_0:silu", 9, 10), (":Q4_0:relu", 10, 11)] {
        let models = [2, 5].map(|n| generated(&format!("128x{n}x256x4/2{spec}")));
        let count = |place: &dyn Fn(&Model) -> Placement| {
            let counts = [0, 1].map(|i| per_token(&backend, &models[i], place(&models[i])));
            eprintln!("{spec}: {counts:?}");
            counts
        };
        let per_layer = |[two, five]: [Counts; 2]| {
            let layers = 3;
            assert!((five.dispatches - two.dispatches).is_multiple_of(layers), "{spec}");
            [five.submissions - two.submissions, five.dispatches - two.dispatches]
                .map(|n| n / layers)
        };
        let all = count(&|model| Placement::all_on(1, model.hyper.n_layer));
        assert_eq!(per_layer(all), [0, whole], "whole layers, {spec}");
        for Counts { submissions, waits, copies, encoded_ahead, .. } in all {
            // The layers, the head and the copy of the logits; the batch is uploaded without a
            // submission of its own. The host waits for the logits alone.
            assert_eq!([submissions, waits, copies], [3, 1, 2], "a token, {spec}");
            assert_eq!(encoded_ahead, 2, "the layers and the head, {spec}");
        }
        let dealt = count(&half_placement);
        assert_eq!(per_layer(dealt), [2, split], "split layers, {spec}");
    }
}
