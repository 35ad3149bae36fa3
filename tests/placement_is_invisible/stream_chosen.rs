//! Prefill that streams only selected neurons: experts selected by a router, or neurons listed by a
//! predictor.

use thermocline::engine::{ExchangeStats, StepStats};

use super::adapt::{generated, half_placement, topic, two_topics};
use super::stream::{split, streaming_options, text};
use super::*;

fn hand_off_options() -> EngineOptions {
    EngineOptions { streaming: thermocline::engine::Streaming::Off, ..streaming_options(1) }
}

fn sim(seed: u64) -> Device {
    sim_device(1, Bytes::MAX, Duration::ZERO..Duration::from_micros(30), seed).1
}

/// Logits and statistics of one prompt.
fn prompt(engine: &mut Engine, text: &[u32]) -> (Logits, StepStats) {
    let mut sequence = engine.new_sequence();
    let (mut logits, interrupt) = (Vec::new(), AtomicBool::new(false));
    let stats = engine.feed(&mut sequence, text, LogitsRequest::All, &interrupt, &mut |_, row| {
        logits.push(row.to_vec());
    });
    (logits, stats.unwrap())
}

/// Compares a prompt of 64 tokens with the CPU alone: with every second, every third or no unit of
/// neurons resident, and with chunks of each of the sizes `chunk_sizes`.
fn check(model: &Arc<Model>, chunk_sizes: &[u64], bound: f32) {
    let text = text(model, 64);
    let cpu = load_with(model, vec![cpu_device(2)], hand_off_options(), None);
    let (expected, all) = prompt(&mut { cpu }, &text);
    for (round, nth) in [Some(2), Some(3), None].into_iter().enumerate() {
        for &chunk_bytes in chunk_sizes {
            let run = |options| {
                let devices = vec![cpu_device(1 + round), sim(round as u64)];
                let mut engine = load_with(model, devices, options, Some(split(model, nth)));
                let (logits, stats) = prompt(&mut engine, &text);
                assert_eq!(logits, prompt(&mut engine, &text).0, "the same bits twice");
                (logits, stats)
            };
            let (logits, stats) = run(streaming_options(chunk_bytes));
            let difference = difference(&expected, &logits);
            assert!(difference <= bound, "{nth:?}, {chunk_bytes}: {difference}");
            assert_eq!(stats.off_cpu, stats.active, "{nth:?}, {chunk_bytes}: all on the device");
            let same = (stats.active / all.active - 1.0).abs() < 5e-3;
            assert!(
                same && stats.neurons == all.neurons,
                "{nth:?}, {chunk_bytes}: {stats:?} {all:?}"
            );
            let handed = run(hand_off_options()).1;
            assert!(handed.off_cpu < handed.active, "{handed:?}");
        }
    }
}

#[test]
fn experts_are_streamed_in_chunks() {
    within(LIMIT, || {
        for (spec, format) in [
            ("64x3x64x4/2*8/2:F16:silu", Format::F16),
            ("64x2x32x4/2*16/3:Q8_0:silu", Format::Q8_0),
            ("64x2x96x4/2*6/2:Q4_0:silu", Format::Q4_0),
            ("64x2x96x4/2*6/2:Q4_0:relu", Format::Q4_0),
            ("64x2x64x4/2*8/2:F16:relu", Format::F16),
        ] {
            // Chunks smaller than an expert, and the largest possible ones.
            check(&generated(spec), &[1, 1 << 20], bound(format));
        }
    });
}

/// Layers on the CPU send x to the device and get y back, however neurons are selected; layers
/// with a predictor or a bias on down are not streamed.
#[test]
fn neurons_of_layers_on_the_cpu_are_streamed() {
    within(LIMIT, || {
        let tiny = |activation, format| Tiny { activation, format, n_ff: 160, ..Tiny::default() };
        let listed = Tiny { pwri: true, rank: 32, marked: true, ..Tiny::default() };
        for (model, format, all_streamed) in [
            (tiny("relu", Format::Q8_0).model(), Format::Q8_0, true),
            (tiny("silu", Format::Q4_0).model(), Format::Q4_0, true),
            (generated("64x3x64x4/2*8/2:F16:silu"), Format::F16, true),
            (generated("64x3x96x4/2*6/2:Q4_0:relu"), Format::Q4_0, true),
            (listed.model(), listed.format, false),
        ] {
            let text = text(&model, 64);
            let mut cpu = load_with(&model, vec![cpu_device(2)], hand_off_options(), None);
            let (expected, all) = prompt(&mut cpu, &text);
            for (embed, head, split_one) in [(0, 1, false), (1, 0, true), (0, 1, true)] {
                let mut placement = split(&model, Some(3));
                (placement.embed, placement.head) = (embed, head);
                placement.layers.fill(LayerPlacement::whole(0));
                if split_one {
                    placement.layers[1] = split(&model, Some(3)).layers[1].clone();
                }
                let devices = vec![cpu_device(2), sim(1)];
                let mut engine = load_with(&model, devices, streaming_options(1), Some(placement));
                let (got, stats) = prompt(&mut engine, &text);
                let difference = difference(&expected, &got);
                assert!(difference <= bound(format), "{format}, {split_one}: {difference}");
                assert_eq!(got, prompt(&mut engine, &text).0, "the same bits twice");
                assert!((stats.active / all.active - 1.0).abs() < 5e-3, "{stats:?} {all:?}");
                assert_eq!(stats.off_cpu == stats.active, all_streamed, "{format}: {stats:?}");
            }
        }
    });
}

#[test]
fn exchanged_experts_are_streamed_in_chunks() {
    within(LIMIT, || {
        for (spec, format) in [
            ("64x3x64x4/2*8/2:F16:silu", Format::F16),
            ("64x2x32x4/2*16/3:Q8_0:silu", Format::Q8_0),
        ] {
            let model = generated(spec);
            let text: Vec<u32> = (0..230).map(|i| if i % 9 == 0 { 7 } else { 21 }).collect();
            check_after_exchanges(&model, &text, bound(format));
        }
    });
}

/// Checks the logits of single tokens, during which neurons are exchanged, and of a prompt after
/// them.
fn check_after_exchanges(model: &Arc<Model>, text: &[u32], bound: f32) -> ExchangeStats {
    let pieces: Vec<usize> = [vec![1; 128], vec![64, 1, 1, 36]].concat();
    let options = EngineOptions { n_ctx: 256, ..hand_off_options() };
    let mut cpu = load_with(model, vec![cpu_device(2)], options, None);
    let expected = logits_of(&mut cpu, text, &pieces);
    let adapting = EngineOptions { n_ctx: 256, adapt: true, ..streaming_options(1) };
    let mut engine =
        load_with(model, vec![cpu_device(2), sim(2)], adapting, Some(half_placement(model)));
    let got = logits_of(&mut engine, text, &pieces);
    let difference = difference(&expected, &got);
    assert!(difference <= bound, "{difference}");
    let done = engine.exchange_stats().unwrap();
    assert!(done.neurons > 0);
    done
}

#[test]
fn listed_neurons_are_streamed_in_chunks() {
    within(LIMIT, || {
        let marked = Tiny { pwri: true, rank: 32, marked: true, n_ff: 160, ..Tiny::default() };
        for (seed, format) in (1..).zip([Format::F16, Format::Q8_0, Format::Q4_0]) {
            let model = Tiny { seed, format, ..marked.clone() }.model();
            check(&model, &[1, 9_000], bound(format));
        }
    });
}

#[test]
fn exchanged_listed_neurons_are_streamed_in_chunks() {
    within(LIMIT, || {
        let tiny = Tiny { pwri: true, rank: 32, ..two_topics() };
        let model = tiny.model();
        check_after_exchanges(&model, &topic(&model, false, 230), bound(tiny.format));
    });
}

/// With thresholds that select every neuron or none, the counters are right: empty slots do not
/// count as active.
#[test]
fn predictor_thresholds_apply_to_chunks() {
    within(LIMIT, || {
        let tiny = Tiny { pwri: true, rank: 32, marked: true, ..Tiny::default() };
        let model = tiny.model();
        let text = text(&model, 64);
        for threshold in [f32::NEG_INFINITY, f32::INFINITY] {
            let run = |devices, options, placement| {
                let options = EngineOptions { sparse_threshold: Some(threshold), ..options };
                prompt(&mut load_with(&model, devices, options, placement), &text)
            };
            let (expected, all) = run(vec![cpu_device(2)], hand_off_options(), None);
            let devices = vec![cpu_device(2), sim(1)];
            let (got, stats) = run(devices, streaming_options(1), Some(split(&model, Some(3))));
            assert!(difference(&expected, &got) <= bound(tiny.format));
            assert!((stats.active - all.active).abs() <= 5e-3 * all.active, "{stats:?} {all:?}");
        }
    });
}

#[test]
fn budgets_include_the_slots_for_chosen_neurons() {
    within(LIMIT, || {
        let listed = Tiny { pwri: true, rank: 32, marked: true, n_ff: 160, ..Tiny::default() };
        for (model, format) in [
            (listed.model(), listed.format),
            (generated("64x3x64x4/2*8/2:F16:silu"), Format::F16),
            (generated("64x2x96x4/2*6/2:Q4_0:relu"), Format::Q4_0),
        ] {
            let text = text(&model, 64);
            let mut cpu = load_with(&model, vec![cpu_device(2)], hand_off_options(), None);
            let expected = prompt(&mut cpu, &text).0;
            let roomy = sim(1);
            drop(load_with(&model, vec![cpu_device(2), roomy.clone()], streaming_options(1), None));
            let all = roomy.ledger().peak().0 + 100_000;
            let mut n_split = 0;
            for step in 0..=12 {
                let budget = Bytes(all * step / 12);
                let no_delay = Duration::ZERO..Duration::ZERO;
                let (sim, device) = sim_device(1, budget, no_delay, step);
                let devices = vec![cpu_device(2), device.clone()];
                let mut engine = load_with(&model, devices, streaming_options(1), None);
                let held = sim.counters().used;
                let got = prompt(&mut engine, &text).0;
                assert!(difference(&expected, &got) <= bound(format), "budget {budget}");
                assert!(device.ledger().peak() <= budget && sim.counters().peak <= budget);
                assert_eq!(sim.counters().used, held, "nothing is allocated for a prompt");
                n_split += usize::from(engine.placement().n_split() > 0);
            }
            assert!(n_split > 1, "{n_split}");
        }
    });
}

/// Tests the device's kernels on chunks of experts, of listed neurons and of a layer on the CPU.
pub(super) fn check_chosen_neurons(backend: &Arc<dyn Backend>) {
    let marked = Tiny { pwri: true, rank: 32, marked: true, n_ff: 160, ..Tiny::default() };
    for (model, format) in [
        (Tiny { format: Format::Q8_0, ..marked.clone() }.model(), Format::Q8_0),
        (marked.model(), Format::F16),
        (generated("64x2x32x4/2*8/3:Q8_0:silu"), Format::Q8_0),
        (generated("64x2x64x4/2*6/2:Q4_0:relu"), Format::Q4_0),
    ] {
        let text = text(&model, 32);
        let run = |home: Option<usize>| {
            let mut devices = vec![cpu_device(2)];
            let placement = home.map(|nth| {
                devices.push(Device::new(Arc::clone(backend), DeviceId(1), Bytes::MAX));
                let mut placement = split(&model, Some(nth));
                // A layer on the CPU, if the model supports that.
                if model.layers[1].ffn.as_ref().unwrap().predictor.is_none() {
                    placement.layers[1] = LayerPlacement::whole(0);
                }
                placement
            });
            let options =
                if home.is_some() { streaming_options(9_000) } else { hand_off_options() };
            prompt(&mut load_with(&model, devices, options, placement), &text)
        };
        let ((expected, _), (got, stats)) = (run(None), run(Some(3)));
        let difference = difference(&expected, &got);
        assert!(difference <= bound(format), "{format}: {difference}");
        assert_eq!(stats.off_cpu, stats.active, "{format}");
    }
}

#[test]
fn a_graphics_device_streams_chosen_neurons() {
    let Some(backend) = super::graphics::graphics() else { return };
    within(Duration::from_secs(500), move || check_chosen_neurons(&backend));
}
