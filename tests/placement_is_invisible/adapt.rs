//! The hot set adapts to the sequence without changing the output.

use thermocline::engine::{ObservedBlock, exchange_needs};
use thermocline::gguf::File;
use thermocline::model::ModelOptions;
use thermocline::placement::{Speed, plan, plan_whole_layers};
use thermocline::synthetic::Spec;

use super::budgets::greedy;
use super::*;
use crate::support::packed::families;

/// A model with two topics: the first half of a layer's neurons fires for one topic, the second
/// half for the other.
pub(super) fn two_topics() -> Tiny {
    Tiny { marked: true, topics: true, n_vocab: 96, ..Tiny::default() }
}

fn exchanging_options() -> EngineOptions {
    EngineOptions { n_ctx: 256, adapt: true, ..options() }
}

fn fixed_options() -> EngineOptions {
    EngineOptions { adapt: false, ..exchanging_options() }
}

/// Ids of the tokens whose first mark is positive (one topic), or of the others (the other topic).
fn tokens_of(model: &Model, positive: bool) -> Vec<u32> {
    let table = &model.token_embd;
    let desc = table.desc();
    let bytes = table.rows(0..desc.n_rows).unwrap();
    let mut values = vec![0.0; desc.n_rows * desc.n_cols];
    desc.format.dequantize(&bytes, &mut values);
    let marks = values.chunks_exact(desc.n_cols).map(|row| row[0] > 0.0);
    (0..).zip(marks).filter(|(_, mark)| *mark == positive).map(|(id, _)| id).collect()
}

pub(super) fn topic(model: &Model, positive: bool, n: usize) -> Vec<u32> {
    let ids = tokens_of(model, positive);
    (0..n).map(|i| ids[i * 7 % ids.len()]).collect()
}

/// In each layer the first `n` neurons are on device 1, the others on the CPU.
fn first_on_device(model: &Model, n: usize) -> Placement {
    let n_ff = model.max_n_ff() as u32;
    let share = |device, neurons| Share { device, neurons: Neurons::List(neurons) };
    let layer = LayerPlacement {
        home: 1,
        shares: vec![share(1, (0..n as u32).collect()), share(0, (n as u32..n_ff).collect())],
    };
    Placement { embed: 1, head: 1, layers: vec![layer; model.hyper.n_layer] }
}

pub(super) fn half_placement(model: &Model) -> Placement {
    first_on_device(model, model.max_n_ff() / 2)
}

/// Results of a sequence that is fed one token per step.
#[derive(Debug, PartialEq)]
struct TextRun {
    logits: Logits,
    /// Fraction of the active neurons that were on a device, for each token.
    shares: Vec<f64>,
}

fn text_run(engine: &mut Engine, text: &[u32]) -> TextRun {
    let mut sequence = engine.new_sequence();
    let interrupt = AtomicBool::new(false);
    let (mut logits, mut shares) = (Vec::new(), Vec::new());
    for &token in text {
        let sink = &mut |_: usize, row: &[f32]| logits.push(row.to_vec());
        let stats =
            engine.feed(&mut sequence, &[token], LogitsRequest::Last, &interrupt, sink).unwrap();
        shares.push(stats.off_cpu / stats.active.max(1.0));
    }
    TextRun { logits, shares }
}

fn mean(shares: &[f64]) -> f64 {
    shares.iter().sum::<f64>() / shares.len() as f64
}

fn argmax(logits: &[f32]) -> u32 {
    (0..).zip(logits).max_by(|a, b| a.1.total_cmp(b.1)).map(|(id, _)| id).unwrap()
}

fn sim(seed: u64, slow: u64) -> (Arc<SimBackend>, Device) {
    sim_device(1, Bytes::MAX, Duration::ZERO..Duration::from_micros(slow), seed)
}

/// 64 tokens of one topic, then 160 of the other.
fn drifting_text(model: &Model) -> Vec<u32> {
    [topic(model, true, 64), topic(model, false, 160)].concat()
}

#[test]
fn the_hot_set_follows_a_drifting_text() {
    within(LIMIT, || {
        let model = two_topics().model();
        let text = drifting_text(&model);
        let expected =
            text_run(&mut load_with(&model, vec![cpu_device(2)], fixed_options(), None), &text);
        let by = |options: EngineOptions, seed| {
            let devices = vec![cpu_device(seed as usize), sim(seed, 20).1];
            let mut engine = load_with(&model, devices, options, Some(half_placement(&model)));
            let course = text_run(&mut engine, &text);
            (course, engine.exchange_stats())
        };
        let (still, none) = by(fixed_options(), 2);
        assert!(none.is_none());
        assert!(mean(&still.shares[..64]) > 0.95 && mean(&still.shares[160..]) < 0.05);
        let (moved, done) = by(exchanging_options(), 2);
        assert!(mean(&moved.shares[..64]) > 0.95);
        let last = mean(&moved.shares[160..]);
        assert!(last > 0.95, "at the end, {last} of the active neurons are on the device");
        let done = done.unwrap();
        let all = (model.hyper.n_layer * model.max_n_ff() / 2) as u64;
        assert_eq!(done.neurons, all, "every neuron of the device was exchanged once");
        assert!(done.first > 0.95 && done.last > 0.95, "{done:?}");
        for course in [&still, &moved] {
            let difference = difference(&expected.logits, &course.logits);
            assert!(difference <= bound(Format::F16), "{difference}");
            for (a, b) in expected.logits.iter().zip(&course.logits) {
                assert_eq!(argmax(a), argmax(b));
            }
        }
        // Neither threads nor the device's delays affect the decisions.
        assert_eq!(by(exchanging_options(), 1).0, moved);
    });
}

#[test]
fn two_hundred_greedy_tokens_match_the_cpu() {
    within(LIMIT, || {
        let tiny = two_topics();
        let listed = Tiny { pwri: true, rank: 32, ..tiny.clone() };
        let transposed = Tiny { n_ff: 128, format: Format::F32, ..tiny.clone() };
        for tiny in [tiny, listed, transposed] {
            let model = tiny.model();
            let cpu = &mut load_with(&model, vec![cpu_device(2)], fixed_options(), None);
            for positive in [true, false] {
                let first = tokens_of(&model, positive)[3];
                let devices = vec![cpu_device(2), sim(1, 10).1];
                let mut engine =
                    load_with(&model, devices, exchanging_options(), Some(half_placement(&model)));
                // This sequence uses the neurons on the CPU, so that some are exchanged before the
                // comparison.
                text_run(&mut engine, &topic(&model, false, 40));
                assert_eq!(greedy(&mut engine, first, 200), greedy(cpu, first, 200), "{tiny:?}");
                assert!(engine.exchange_stats().is_some_and(|done| done.neurons > 0), "{tiny:?}");
            }
        }
    });
}

/// In quantised formats, rows are regrouped and slots share scale tables, which an exchange must
/// keep correct.
#[test]
fn exchanges_preserve_every_layout() {
    within(LIMIT, || {
        for format in [Format::Q8_0, Format::Q4_0, Format::Q4_1] {
            for pwri in [false, true] {
                let tiny = Tiny { format, pwri, ..two_topics() };
                let model = tiny.model();
                let text = drifting_text(&model);
                let mut cpu = load_with(&model, vec![cpu_device(2)], fixed_options(), None);
                let devices = vec![cpu_device(2), sim(3, 0).1];
                let mut engine =
                    load_with(&model, devices, exchanging_options(), Some(half_placement(&model)));
                let moved = text_run(&mut engine, &text);
                let difference = difference(&text_run(&mut cpu, &text).logits, &moved.logits);
                assert!(difference <= bound(format), "{format} {pwri}: {difference}");
                assert!(mean(&moved.shares[160..]) > 0.9, "{format} {pwri}");
            }
        }
    });
}

#[test]
fn budgets_hold_during_exchanges() {
    within(LIMIT, || {
        let model = Tiny { format: Format::Q8_0, ..two_topics() }.model();
        let text = drifting_text(&model);
        let (_, roomy) = sim(1, 0);
        drop(load_with(&model, vec![cpu_device(2), roomy.clone()], exchanging_options(), None));
        let all = roomy.ledger().peak().0;
        let mut exchanged = 0;
        for step in 0..=12 {
            let budget = Bytes(all * step / 12);
            let (sim, device) = sim_device(1, budget, Duration::ZERO..Duration::ZERO, step);
            let devices = vec![cpu_device(2), device.clone()];
            let mut engine = load_with(&model, devices, exchanging_options(), None);
            let held = sim.counters().used;
            text_run(&mut engine, &text[..192]);
            assert!(device.ledger().peak() <= budget, "{} of {budget}", device.ledger().peak());
            assert!(sim.counters().peak <= budget, "physical peak over {budget}");
            assert_eq!(sim.counters().used, held, "nothing is allocated for an exchange");
            exchanged += engine.exchange_stats().map_or(0, |done| done.neurons);
        }
        assert!(exchanged > 0, "with some budget, neurons were exchanged");
    });
}

#[test]
fn a_device_may_be_lost_in_the_middle_of_an_exchange() {
    within(LIMIT, || {
        let model = two_topics().model();
        // The device starts with unused neurons, so half of all neurons are exchanged at the 32nd
        // token.
        let text = topic(&model, false, 40);
        let expected =
            text_run(&mut load_with(&model, vec![cpu_device(2)], fixed_options(), None), &text);
        let mut lost = 0;
        for after in (0..600).step_by(17) {
            let (sim, device) = sim(after, 0);
            let devices = vec![cpu_device(2), device];
            let mut engine =
                load_with(&model, devices, exchanging_options(), Some(half_placement(&model)));
            let mut sequence = engine.new_sequence();
            let interrupt = AtomicBool::new(false);
            let mut got = Vec::new();
            for (i, &token) in text.iter().enumerate() {
                if i == 31 {
                    sim.lose_after(after);
                }
                let sink = &mut |_: usize, row: &[f32]| got.push(row.to_vec());
                engine
                    .feed(&mut sequence, &[token], LogitsRequest::Last, &interrupt, sink)
                    .unwrap();
                if i == 31 && engine.placement().layers.iter().all(|layer| layer.home == 0) {
                    lost += 1;
                }
            }
            let difference = difference(&expected.logits, &got);
            assert!(difference <= bound(Format::F16), "lost after {after}: {difference}");
        }
        assert!(lost > 3, "the device was lost during that step, at {lost} moments");
    });
}

#[test]
fn observers_see_original_neuron_ids_after_exchanges() {
    within(LIMIT, || {
        let two = two_topics().model();
        let (topic, word) = (topic(&two, false, 40), vec![21; 40]);
        for (model, text) in [(two, topic), (generated("64x2x64x4/2*8/2:F16:silu"), word)] {
            let look = |engine: &mut Engine| {
                let mut seen: Vec<f32> = Vec::new();
                let mut sequence = engine.new_sequence();
                let interrupt = AtomicBool::new(false);
                let sink = &mut |_: usize, observed: &ObservedBlock<'_>| {
                    seen.extend(observed.gate.unwrap());
                    seen.extend(observed.up);
                    seen.extend(observed.weights.unwrap_or_default());
                };
                engine.observe(&mut sequence, &TEXT, &interrupt, sink).unwrap();
                seen
            };
            let expected = look(&mut load_with(&model, vec![cpu_device(2)], fixed_options(), None));
            for early in [false, true] {
                let devices = vec![cpu_device(2), sim(1, 0).1];
                let mut engine =
                    load_with(&model, devices, exchanging_options(), Some(half_placement(&model)));
                // Tests programs that were recorded before an exchange and programs that were
                // recorded after it.
                if early {
                    look(&mut engine);
                }
                text_run(&mut engine, &[&text[..], &text[..], &text[..]].concat());
                assert!(engine.exchange_stats().is_some_and(|done| done.neurons > 0));
                let got = look(&mut engine);
                let most = largest_difference(&got, &expected);
                let size = expected.iter().fold(0.0f32, |size, v| size.max(v.abs()));
                assert!(most < 5e-3 * size, "{most} of {size}");
            }
        }
    });
}

/// A generated model, such as `64x2x64x4/2*8/2:F16:silu` with experts.
pub(super) fn generated(spec: &str) -> Arc<Model> {
    let spec = Spec { n_vocab: 300, ..Spec::parse(spec).unwrap() };
    let file = spec.build(&mut |_, _| true).unwrap();
    Arc::new(Model::from_file(file, &ModelOptions::default()).unwrap())
}

fn fixture(name: &str) -> Arc<Model> {
    let file = File::open(&families().join(format!("{name}.gguf"))).unwrap();
    Arc::new(Model::from_file(file, &ModelOptions::default()).unwrap())
}

#[test]
fn experts_are_exchanged_whole() {
    within(LIMIT, || {
        let models = ["64x3x64x4/2*8/2:F16:silu", "64x2x32x4/2*16/3:Q8_0:silu"];
        let models = models.map(|spec| (spec, generated(spec), 0.9));
        // Each expert of this model has its own scale.
        let scaled = ("gemma4-moe", fixture("gemma4-moe"), 0.85);
        for (spec, model, least) in models.into_iter().chain([scaled]) {
            let format = model.blocks().next().unwrap().1.up.w.desc().format;
            // Almost always the same token, so that the router selects the same experts.
            let text: Vec<u32> = (0..200).map(|i| if i % 9 == 0 { 7 } else { 21 }).collect();
            let mut cpu = load_with(&model, vec![cpu_device(2)], fixed_options(), None);
            let expected = text_run(&mut cpu, &text);
            let by = |options: EngineOptions| {
                let (sim, device) = sim(2, 10);
                let devices = vec![cpu_device(2), device];
                let mut engine = load_with(&model, devices, options, Some(half_placement(&model)));
                let course = text_run(&mut engine, &text);
                (course, engine.exchange_stats(), sim.counters().copies)
            };
            let (still, _, copies) = by(fixed_options());
            let (moved, done, more) = by(exchanging_options());
            let [before, after] = [&still, &moved].map(|course| mean(&course.shares[120..]));
            assert!(after > before + 0.2 && after > least, "{spec}: {before} became {after}");
            assert!(done.is_some_and(|done| done.neurons > 0 && done.last > done.first));
            // One copy writes a whole matrix of an expert, and some copies read counts. One copy
            // per row would be many more.
            let (more, neurons) = (more - copies, done.unwrap().neurons);
            assert!(more < neurons, "{spec}: {more} copies for {neurons} neurons");
            for course in [&still, &moved] {
                let difference = difference(&expected.logits, &course.logits);
                assert!(difference <= bound(format), "{spec}: {difference}");
            }
        }
    });
}

/// An expert of realistic size has several megabytes, but a few uses of it on the device save the
/// time of its upload.
#[test]
fn experts_of_realistic_size_are_exchanged() {
    let model = generated("2048x2x768x16/4*8/2:Q4_0:silu");
    let width = model.experts().unwrap().n_ff;
    let cpu = Speed { dense: 40e9, sparse: 40e9, refill: 5e-6, ..Speed::default() };
    let card = |upload: f64| Speed {
        dense: 500e9,
        sparse: 350e9,
        hand_off: 20e-6,
        op: 2e-6,
        upload,
        ..cpu
    };
    let most = |upload: f64, budget: Bytes| {
        let placing = PlannerInputs { speeds: vec![cpu, card(upload)], ..PlannerInputs::default() };
        let options = EngineOptions { placing, n_ctx: 256, ..exchanging_options() };
        let devices = [cpu_device(1), sim_device(1, budget, Duration::ZERO..Duration::ZERO, 1).1];
        let plan = plan(&thermocline::engine::task(&model, &devices, &options));
        let needs = exchange_needs(&model, &devices, &options, &plan);
        (needs.map(|needs| needs.max_neurons), plan.devices.iter().map(|bytes| bytes.total()).sum())
    };
    let (none, all): (_, Bytes) = most(12e9, Bytes::MAX);
    assert_eq!(none, None, "nothing is left on the CPU");
    let half = Bytes(all.0 / 2);
    let (by_bytes, _) = most(12e9, half);
    assert!(by_bytes.is_some_and(|most| most >= width), "{by_bytes:?}");
    // If the upload speed is unknown, uploading an expert is assumed to take as long as uploading
    // its rows one by one.
    assert_eq!(most(0.0, half).0, Some(0));
}

#[test]
fn neurons_are_exchanged_within_their_experts() {
    within(LIMIT, || {
        for (spec, format) in [
            ("64x3x64x4/2*8/2:F16:relu", Format::F16),
            ("64x2x96x4/2*6/2:Q8_0:relu", Format::Q8_0),
            ("64x2x96x4/2*6/2:Q4_0:relu", Format::Q4_0),
        ] {
            let model = generated(spec);
            let text: Vec<u32> = (0..200).map(|i| if i % 9 == 0 { 7 } else { 21 }).collect();
            let mut cpu = load_with(&model, vec![cpu_device(2)], fixed_options(), None);
            let expected = text_run(&mut cpu, &text);
            let devices = vec![cpu_device(2), sim(2, 10).1];
            let placement = super::stream::split(&model, Some(2));
            let mut engine = load_with(&model, devices, exchanging_options(), Some(placement));
            let moved = text_run(&mut engine, &text);
            let [before, after] = [&moved.shares[..24], &moved.shares[120..]].map(mean);
            assert!(after > before + 0.15, "{spec}: {before} became {after}");
            let difference = difference(&expected.logits, &moved.logits);
            assert!(difference <= bound(format), "{spec}: {difference}");
        }
    });
}

#[test]
fn experts_are_placed_by_how_often_they_are_used() {
    let model = generated("64x3x64x4/2*8/2:F16:silu");
    let width = model.experts().unwrap().n_ff;
    let hot = [6, 7, 2];
    let share = |n: usize| if hot.contains(&(n / width)) { 0.6 } else { 0.04 };
    let uses: Vec<f32> = (0..model.max_n_ff()).map(share).collect();
    let uses = Arc::new(vec![uses; model.hyper.n_layer]);
    let cpu = Speed { dense: 1e8, sparse: 1e8, refill: 1e-6, ..Speed::default() };
    let card = Speed { dense: 2e9, sparse: 1e9, hand_off: 2e-6, ..cpu };
    let plans = |known: bool, budget: Bytes| {
        let uses = known.then(|| Arc::clone(&uses));
        let placing = PlannerInputs { uses, speeds: vec![cpu, card], ..PlannerInputs::default() };
        let options = EngineOptions { placing, n_ctx: 32, ..exchanging_options() };
        let (_, device) = sim_device(1, budget, Duration::ZERO..Duration::ZERO, 1);
        let devices = [cpu_device(1), device];
        let task = thermocline::engine::task(&model, &devices, &options);
        (plan(&task), plan_whole_layers(&task))
    };
    let all: Bytes = plans(true, Bytes::MAX).0.devices.iter().map(|bytes| bytes.total()).sum();
    let mut split = 0;
    for step in 0..=32 {
        for known in [false, true] {
            let (plan, whole) = plans(known, Bytes(all.0 * step / 32));
            assert!(plan.seconds <= whole.seconds * (1.0 + 1e-9), "step {step}, {known}");
            for layer in plan.placement.layers.iter().filter(|layer| layer.is_split()) {
                let Neurons::List(here) = &layer.shares[0].neurons else { continue };
                assert!(
                    here.chunks(width)
                        .all(|c| (c[0] as usize).is_multiple_of(width) && c.len() == width)
                );
                let n_hot = here.iter().filter(|&&n| hot.contains(&(n as usize / width))).count();
                assert!(!known || n_hot == here.len().min(hot.len() * width), "step {step}");
                split += usize::from(known);
            }
        }
    }
    assert!(split > 0, "some layer was split");
}

#[test]
fn graphics_devices_exchange_neurons_too() {
    let Some(backend) = super::graphics::graphics() else { return };
    let listed = Tiny { pwri: true, rank: 32, ..two_topics() };
    let quantised = Tiny { format: Format::Q4_0, n_layer: 2, ..two_topics() };
    let models = [
        (two_topics().model(), Format::F16),
        (listed.model(), Format::F16),
        (quantised.model(), Format::Q4_0),
        (generated("64x2x64x4/2*8/2:F16:silu"), Format::F16),
    ];
    check_exchanges(&backend, &models);
}

/// Checks on `backend` that the hot set of each model adapts to a sequence without changing the
/// output.
pub(super) fn check_exchanges(backend: &Arc<dyn Backend>, models: &[(Arc<Model>, Format)]) {
    for (model, format) in models {
        let text = [topic(model, false, 72), topic(model, true, 24)].concat();
        let device = Device::new(Arc::clone(backend), DeviceId(1), Bytes::MAX);
        let devices = vec![cpu_device(2), device];
        let mut engine =
            load_with(model, devices, exchanging_options(), Some(half_placement(model)));
        let moved = text_run(&mut engine, &text);
        assert!(engine.exchange_stats().is_some_and(|done| done.neurons > 0));
        let mut cpu = load_with(model, vec![cpu_device(2)], fixed_options(), None);
        let difference = difference(&text_run(&mut cpu, &text).logits, &moved.logits);
        assert!(difference <= bound(*format), "{format}: {difference}");
    }
}
