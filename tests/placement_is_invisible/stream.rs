//! Prefill with weights streamed to the device gives the same output.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use thermocline::engine::{Error, Streaming, Work};
use thermocline::placement::Speed;

use super::adapt::{half_placement, topic, two_topics};
use super::graphics::{built_in, graphics};
use super::*;

/// Streams weights in steps of at least 8 tokens, in chunks of at most `chunk_bytes` bytes.
pub(super) fn streaming_options(chunk_bytes: u64) -> EngineOptions {
    let streaming = Streaming::Forced { from: 8, chunk_bytes: Bytes(chunk_bytes) };
    EngineOptions { n_ctx: 160, n_ubatch: 64, streaming, ..EngineOptions::default() }
}

fn hand_off_options() -> EngineOptions {
    EngineOptions { streaming: Streaming::Off, ..streaming_options(1) }
}

pub(super) fn text(model: &Model, n: usize) -> Vec<u32> {
    (0..n).map(|i| TEXT[i % TEXT.len()] % model.n_vocab() as u32).collect()
}

fn sim(seed: u64, slow: u64) -> (Arc<SimBackend>, Device) {
    sim_device(1, Bytes::MAX, Duration::ZERO..Duration::from_micros(slow), seed)
}

/// In every layer each `nth` unit of neurons is on device 1, the others on the CPU; without `nth`,
/// all are on the CPU.
pub(crate) fn split(model: &Model, nth: Option<usize>) -> Placement {
    let layer = |layer: &LayerWeights| {
        let Some(ffn) = &layer.ffn else { return LayerPlacement::whole(1) };
        let unit = unit_of(model, ffn);
        let here = |n: usize| nth.is_some_and(|nth| (n / unit).is_multiple_of(nth));
        let share = |device, there: bool| {
            let neurons = (0..ffn.n_ff()).filter(|&n| here(n) == there).map(|n| n as u32).collect();
            Share { device, neurons: Neurons::List(neurons) }
        };
        LayerPlacement { home: 1, shares: vec![share(1, true), share(0, false)] }
    };
    Placement { embed: 1, head: 1, layers: model.layers.iter().map(layer).collect() }
}

/// Checks a prompt of 70 tokens; 64 of them are one step.
fn check(tiny: &Tiny) {
    let model = tiny.model();
    let text = text(&model, 70);
    let whole = EngineOptions { n_ubatch: 64, n_ctx: 160, ..EngineOptions::default() };
    let expected =
        logits_of(&mut load_with(&model, vec![cpu_device(2)], whole, None), &text, &[70]);
    for (round, nth) in [Some(2), Some(3), None, Some(5)].into_iter().enumerate() {
        for chunk_bytes in [1, 9_000] {
            let devices = vec![cpu_device(1 + round), sim(round as u64, 30).1];
            let placement = split(&model, nth);
            let mut engine =
                load_with(&model, devices, streaming_options(chunk_bytes), Some(placement));
            let got = logits_of(&mut engine, &text, &[70]);
            let difference = difference(&expected, &got);
            assert!(difference <= bound(tiny.format), "{tiny:?} {nth:?}: {difference}");
            assert_eq!(got, logits_of(&mut engine, &text, &[70]), "both runs give the same bits");
        }
    }
}

#[test]
fn streamed_prefill_gives_the_same_logits() {
    within(LIMIT, || {
        for (seed, format) in [Format::F32, Format::F16, Format::Q8_0, Format::Q4_0, Format::Q4_1]
            .into_iter()
            .enumerate()
        {
            let seed = seed as u64 + 31;
            check(&Tiny { seed, format, n_ff: 160, ..Tiny::default() });
            check(&Tiny { seed, format, n_ff: 160, activation: "silu", ..Tiny::default() });
        }
    });
}

#[test]
fn streamed_prefill_of_other_layouts_gives_the_same_logits() {
    within(LIMIT, || {
        check(&Tiny { pwri: true, format: Format::Q8_0, ..Tiny::default() });
        let wide = Tiny { n_embd: 256, n_ff: 768, format: Format::Q4_K, ..Tiny::default() };
        check(&wide);
        // With other seeds, roundings of activations that fall on the other side differ by up to
        // 0.12 on some processors, whatever the placement.
        check(&Tiny { seed: 6, format: Format::Q6_K, activation: "silu", ..wide });
    });
}

/// With a CPU and two other devices, weights are streamed to either device, and layers with neurons
/// on both hand off between them.
#[test]
fn random_placements_with_streaming_give_the_same_logits() {
    within(LIMIT, || {
        for (seed, activation) in [(1, "relu"), (2, "silu"), (3, "relu")] {
            let tiny =
                Tiny { seed, activation, n_layer: 5, format: Format::F16, ..Tiny::default() };
            let model = tiny.model();
            let text = text(&model, 70);
            let cpu = vec![cpu_device(2)];
            let expected =
                logits_of(&mut load_with(&model, cpu, hand_off_options(), None), &text, &[70]);
            for round in 0..4 {
                let mut rng = ChaCha8Rng::seed_from_u64(100 * seed + round);
                let mut placement = random_placement(&mut rng, &model, 3);
                let two = |home: usize| {
                    let mut layer = split(&model, Some(2 + round as usize)).layers[0].clone();
                    layer.home = home;
                    layer.shares[0].device = home;
                    layer
                };
                (placement.layers[1], placement.layers[3]) = (two(1), two(2));
                let slow = Duration::ZERO..Duration::from_micros(30);
                let devices = [1, 2].map(|i| sim_device(i, Bytes::MAX, slow.clone(), round).1);
                let devices = [cpu_device(2)].into_iter().chain(devices).collect();
                let given = Some(placement.clone());
                let mut engine = load_with(&model, devices, streaming_options(1), given);
                let got = logits_of(&mut engine, &text, &[70]);
                let difference = difference(&expected, &got);
                assert!(difference <= bound(tiny.format), "{difference} by {placement:?}");
            }
        }
    });
}

/// In the statistics, streamed neurons count as computed on the device, and empty slots do not
/// count.
#[test]
fn streamed_neurons_count_for_the_device() {
    within(LIMIT, || {
        for activation in ["relu", "silu"] {
            let model =
                Tiny { n_ff: 160, format: Format::Q8_0, activation, ..Tiny::default() }.model();
            let text = text(&model, 64);
            let run = |devices, options, placement| {
                let mut engine = load_with(&model, devices, options, placement);
                let mut sequence = engine.new_sequence();
                let interrupt = AtomicBool::new(false);
                engine
                    .feed(&mut sequence, &text, LogitsRequest::Last, &interrupt, &mut |_, _| {})
                    .unwrap()
            };
            let cpu = run(vec![cpu_device(2)], hand_off_options(), None);
            let placed = || Some(split(&model, Some(3)));
            let handed = run(vec![cpu_device(2), sim(1, 0).1], hand_off_options(), placed());
            assert!(handed.off_cpu > 0.0 && handed.off_cpu < handed.active);
            let streamed = run(vec![cpu_device(2), sim(1, 0).1], streaming_options(1), placed());
            assert!((streamed.active / cpu.active - 1.0).abs() < 2e-3, "{streamed:?} {cpu:?}");
            assert_eq!(streamed.off_cpu, streamed.active);
            assert_eq!(streamed.neurons, cpu.neurons);
        }
    });
}

/// The host copies and the device computes chunks, layer by layer; decode still uses hand-offs.
#[test]
fn a_trace_shows_streamed_chunks() {
    within(LIMIT, || {
        let model = Tiny { n_ff: 160, format: Format::Q8_0, ..Tiny::default() }.model();
        let delay = Duration::from_millis(1)..Duration::from_millis(2);
        let devices = vec![cpu_device(2), sim_device(1, Bytes::MAX, delay, 1).1];
        let placement = split(&model, Some(2));
        let mut engine = load_with(&model, devices, streaming_options(1), Some(placement));
        let steps = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&steps);
        engine.set_tracer(Some(Box::new(move |step| {
            seen.lock().unwrap().push((step.n_tokens, step.events.to_vec()));
        })));
        logits_of(&mut engine, &text(&model, 68), &[64, 4]);
        let steps = steps.lock().unwrap();
        let [(64, streamed), (4, handed)] = &steps[..] else { panic!("{} steps", steps.len()) };
        for layer in 0..model.hyper.n_layer {
            let count = |events: &[thermocline::engine::Event], device, work| {
                events.iter().filter(|e| e.device == device && e.work == work).count()
            };
            assert!(count(streamed, 1, Work::Neurons(layer)) > 2, "resident and streamed neurons");
            assert_eq!(count(streamed, 0, Work::Neurons(layer)), 0);
            assert_eq!(count(handed, 0, Work::Neurons(layer)), 1);
        }
        let copies = streamed.iter().filter(|e| e.device == 0 && e.work == Work::Copy).count();
        assert!(copies > 2 * model.hyper.n_layer, "{copies}");
        // The first event of a layer covers its resident neurons. While a chunk runs, the host
        // packs the next chunk, which may belong to the next layer.
        let mut pieces: Vec<&thermocline::engine::Event> = Vec::new();
        for layer in 0..model.hyper.n_layer {
            let work = Work::Neurons(layer);
            let of_layer = streamed.iter().filter(|e| e.device == 1 && e.work == work);
            pieces.extend(of_layer.skip(1));
        }
        let packed = streamed.iter().filter(|e| e.device == 0 && e.work == Work::Copy).skip(1);
        let packed: Vec<_> = packed.take(pieces.len()).collect();
        let beside = pieces.iter().zip(&packed[1..]).filter(|(piece, next)| next.end < piece.end);
        // A chunk is packed too late only if the machine delays the host for as long as a chunk
        // takes.
        let (n, all) = (beside.count(), packed.len() - 1);
        assert!(2 * n > all, "{n} of {all}: {pieces:?} {packed:?}");
    });
}

#[test]
fn chunks_follow_the_hot_set() {
    within(LIMIT, || {
        for format in [Format::F16, Format::Q8_0] {
            let model = Tiny { format, ..two_topics() }.model();
            let options = EngineOptions { n_ctx: 256, adapt: true, ..streaming_options(1) };
            let cpu_options = EngineOptions { n_ctx: 256, ..hand_off_options() };
            let text = topic(&model, false, 230);
            // Token by token first, so that neurons are counted, then as a prompt.
            let pieces: Vec<usize> = [vec![1; 128], vec![64, 1, 1, 36]].concat();
            let expected = logits_of(
                &mut load_with(&model, vec![cpu_device(2)], cpu_options, None),
                &text,
                &pieces,
            );
            let devices = vec![cpu_device(2), sim(2, 0).1];
            let mut engine = load_with(&model, devices, options, Some(half_placement(&model)));
            let got = logits_of(&mut engine, &text, &pieces);
            assert!(engine.exchange_stats().is_some_and(|done| done.neurons > 0));
            let difference = difference(&expected, &got);
            assert!(difference <= bound(format), "{format}: {difference}");
        }
    });
}

#[test]
fn a_device_lost_while_streaming_is_dropped() {
    within(LIMIT, || {
        let model = Tiny { n_ff: 160, format: Format::Q8_0, ..Tiny::default() }.model();
        let text = text(&model, 70);
        let expected = logits_of(
            &mut load_with(&model, vec![cpu_device(2)], hand_off_options(), None),
            &text,
            &[70],
        );
        for lost_after in [0, 2, 9, 21, 40, 55, 77, 100, 130] {
            for by_panic in [false, true] {
                let (sim, device) = sim(lost_after, 20);
                let devices = vec![cpu_device(2), device];
                let mut placement = split(&model, Some(2));
                if lost_after % 2 == 1 {
                    placement.layers[1] = LayerPlacement::whole(0);
                }
                let mut engine = load_with(&model, devices, streaming_options(1), Some(placement));
                if by_panic {
                    sim.panic_after(lost_after)
                } else {
                    sim.lose_after(lost_after)
                }
                let got = logits_of(&mut engine, &text, &[70]);
                let difference = difference(&expected, &got);
                assert!(difference <= bound(Format::Q8_0), "after {lost_after}: {difference}");
            }
        }
    });
}

#[test]
fn an_interrupted_stream_restarts() {
    within(LIMIT, || {
        let model = Tiny { n_ff: 160, format: Format::Q8_0, ..Tiny::default() }.model();
        let text = text(&model, 64);
        let (backend, device) = sim(7, 300);
        let devices = vec![cpu_device(2), device.clone()];
        let mut placement = split(&model, Some(2));
        placement.layers[2] = LayerPlacement::whole(0);
        let mut engine = load_with(&model, devices, streaming_options(1), Some(placement));
        let expected = logits_of(&mut engine, &text, &[64]);
        let (booked, held) = (device.ledger().used(), backend.counters().used);
        let mut n_interrupted = 0;
        for micros in [0, 200, 700, 1500, 3000, 5000, 9000] {
            let stop = Arc::new(AtomicBool::new(false));
            let flag = Arc::clone(&stop);
            let stopper = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_micros(micros));
                flag.store(true, Ordering::Relaxed);
            });
            let mut sequence = engine.new_sequence();
            let fed = engine.feed(&mut sequence, &text, LogitsRequest::Last, &stop, &mut |_, _| {});
            n_interrupted += usize::from(matches!(fed, Err(Error::Interrupted)));
            stopper.join().unwrap();
            drop(sequence);
            assert_eq!(logits_of(&mut engine, &text, &[64]), expected, "after {micros} us");
            assert_eq!((device.ledger().used(), backend.counters().used), (booked, held));
        }
        assert!(n_interrupted > 0);
    });
}

#[test]
fn budgets_include_the_slots() {
    within(LIMIT, || {
        let model = Tiny { n_ff: 160, format: Format::Q8_0, ..Tiny::default() }.model();
        let text = text(&model, 70);
        let expected = logits_of(
            &mut load_with(&model, vec![cpu_device(2)], hand_off_options(), None),
            &text,
            &[70],
        );
        let (_, roomy) = sim(1, 0);
        drop(load_with(&model, vec![cpu_device(2), roomy.clone()], streaming_options(1), None));
        let all = roomy.ledger().peak().0 + 100_000;
        let mut n_split = 0;
        for step in 0..=24 {
            let budget = Bytes(all * step / 24);
            let (sim, device) = sim_device(1, budget, Duration::ZERO..Duration::ZERO, step);
            let notices = Arc::new(Mutex::new(Vec::new()));
            let sink = Arc::clone(&notices);
            let notice: NoticeCallback =
                Arc::new(move |text: &str| sink.lock().unwrap().push(text.to_owned()));
            let devices = vec![cpu_device(2), device.clone()];
            let model = Arc::clone(&model);
            let mut engine =
                Engine::load(model, devices, streaming_options(1), None, notice, &|_, _| {})
                    .unwrap();
            let held = sim.counters().used;
            let got = logits_of(&mut engine, &text, &[70]);
            assert!(difference(&expected, &got) <= bound(Format::Q8_0), "budget {budget}");
            assert!(device.ledger().peak() <= budget, "{} of {budget}", device.ledger().peak());
            assert!(sim.counters().peak <= budget, "physical peak over {budget}");
            assert_eq!(sim.counters().used, held, "nothing is allocated for a prompt");
            assert!(notices.lock().unwrap().is_empty(), "{notices:?}: the planned memory fits");
            n_split += usize::from(engine.placement().n_split() > 0);
        }
        assert!(n_split > 2, "{n_split}");
    });
}

#[test]
fn measured_speeds_decide_whether_to_stream() {
    within(LIMIT, || {
        let tiny = Tiny { n_embd: 128, n_ff: 2048, format: Format::Q8_0, ..Tiny::default() };
        let model = tiny.model();
        let text = text(&model, 70);
        let expected = logits_of(
            &mut load_with(&model, vec![cpu_device(2)], hand_off_options(), None),
            &text,
            &[70],
        );
        let options = |upload: f64| {
            let cpu = Speed { dense: 1e9, sparse: 1e9, prompt: 2e9, ..Speed::default() };
            let card = Speed { dense: 2e10, sparse: 1e10, prompt: 2e11, upload, ..cpu };
            let placing = PlannerInputs { speeds: vec![cpu, card], ..PlannerInputs::default() };
            EngineOptions { placing, streaming: Streaming::Measured, ..streaming_options(1) }
        };
        let (_, roomy) = sim(1, 0);
        drop(load_with(&model, vec![cpu_device(2), roomy.clone()], options(0.0), None));
        let all = roomy.ledger().peak().0;
        let mut n_streamed = 0;
        for step in 0..=16 {
            let budget = Bytes(all * step / 16);
            let load = |upload| {
                let (sim, device) = sim_device(1, budget, Duration::ZERO..Duration::ZERO, step);
                let devices = vec![cpu_device(2), device.clone()];
                let mut engine = load_with(&model, devices, options(upload), None);
                assert!(device.ledger().peak() <= budget && sim.counters().peak <= budget);
                if let Some(forecast) = engine.forecast() {
                    assert!(device.ledger().peak() <= forecast.devices[1].total());
                }
                assert!(difference(&expected, &logits_of(&mut engine, &text, &[70])) <= 8e-2);
                engine.forecast().cloned()
            };
            let (slow, quick) = (load(1e5), load(1e10));
            let [Some(slow), Some(quick)] = [slow, quick] else { continue };
            assert_eq!(slow.stream_from, [None, None]);
            assert!(quick.prompt.unwrap() <= slow.prompt.unwrap());
            assert!(
                quick.prompt_and_reply_seconds().unwrap()
                    <= slow.prompt_and_reply_seconds().unwrap()
            );
            if let Some(from) = quick.stream_from[1] {
                assert!(from > 16 && quick.placement.n_split() > 0);
                n_streamed += 1;
            }
        }
        assert!(n_streamed > 2, "{n_streamed}");
    });
}

#[test]
fn without_memory_for_slots_prefill_uses_hand_offs() {
    within(LIMIT, || {
        let model = Tiny { n_ff: 160, format: Format::Q8_0, ..Tiny::default() }.model();
        let text = text(&model, 70);
        let (_, roomy) = sim(1, 0);
        let placement = split(&model, Some(2));
        let load = |device, options| {
            let notices = Arc::new(Mutex::new(Vec::new()));
            let sink = Arc::clone(&notices);
            let notice: NoticeCallback =
                Arc::new(move |text: &str| sink.lock().unwrap().push(text.to_owned()));
            let (model, placement) = (Arc::clone(&model), Some(placement.clone()));
            let devices = vec![cpu_device(2), device];
            (Engine::load(model, devices, options, placement, notice, &|_, _| {}).unwrap(), notices)
        };
        let (mut engine, _) = load(roomy.clone(), hand_off_options());
        let expected = logits_of(&mut engine, &text, &[70]);
        let needed = roomy.ledger().peak();
        let (_, tight) = sim_device(1, needed, Duration::ZERO..Duration::ZERO, 1);
        let (mut engine, notices) = load(tight, streaming_options(1));
        assert_eq!(logits_of(&mut engine, &text, &[70]), expected);
        let notices = notices.lock().unwrap();
        assert!(
            notices.len() == 1 && notices[0].contains("weights on the CPU are not streamed"),
            "{notices:?}"
        );
    });
}

#[test]
fn a_graphics_device_streams_with_the_same_tokens() {
    let Some(backend) = graphics() else { return };
    within(Duration::from_secs(500), move || {
        let model = built_in();
        let text: Vec<u32> = (0..70).map(|i| 3 + i * 11 % 200).collect();
        let run = |split_by: Option<usize>| {
            let mut all = vec![cpu_device(2)];
            let placement = split_by.map(|nth| {
                all.push(Device::new(Arc::clone(&backend), DeviceId(1), Bytes::MAX));
                split(&model, Some(nth))
            });
            let mut engine = load_with(&model, all, streaming_options(60_000), placement);
            logits_of(&mut engine, &text, &[70])
        };
        let expected = run(None);
        let got = run(Some(3));
        let difference = difference(&expected, &got);
        assert!(difference <= bound(Format::Q4_0), "{difference}");
        let best = |row: &Vec<f32>| row.iter().copied().fold(f32::MIN, f32::max);
        let same = expected.iter().zip(&got).filter(|(a, b)| {
            let at = |row: &Vec<f32>| row.iter().position(|v| *v == best(row));
            at(a) == at(b)
        });
        assert!(same.count() >= 66, "the most probable token is the same except for near ties");
    });
}
