//! Watched steps: the cells show the neurons and experts that fire in an observed run on the CPU,
//! in every placement, and watching does not change the output.

use thermocline::engine::{Error, Feed, FiredNeurons, ObservedBlock};

use super::adapt::{generated, half_placement, topic, two_topics};
use super::*;

/// For each layer of one token: whether each neuron fires; `None` if rounding decides the sign of
/// the gate.
type Reference = Vec<Vec<Option<bool>>>;

/// The neurons that fire for each token of `text`, from the gates and router weights that an
/// observed run of the CPU computes.
fn reference(model: &Arc<Model>, text: &[u32]) -> Vec<Reference> {
    let options = EngineOptions { n_ctx: 256, ..options() };
    let mut engine = load_with(model, vec![cpu_device(2)], options, None);
    let mut sequence = engine.new_sequence();
    let interrupt = AtomicBool::new(false);
    let relu = model.is_exactly_sparse();
    let mut all = Vec::new();
    for &token in text {
        let mut layers = vec![Vec::new(); model.hyper.n_layer];
        let sink = &mut |layer: usize, block: &ObservedBlock<'_>| {
            let gates = block.gate.unwrap();
            let most = gates.iter().fold(0.0f32, |most, v| most.max(v.abs()));
            let n_per_expert = gates.len() / block.weights.map_or(1, <[f32]>::len);
            let fires = gates.iter().enumerate().map(|(i, &gate)| {
                let used = block.weights.is_none_or(|weights| weights[i / n_per_expert] != 0.0);
                let near = relu && gate.abs() < 5e-3 * most;
                (!near || !used).then_some(used && (gate > 0.0 || !relu))
            });
            layers[layer] = fires.collect();
        };
        engine.observe(&mut sequence, &[token], &interrupt, sink).unwrap();
        all.push(layers);
    }
    all
}

/// The neurons of a layer in the order of its cells: grouped by device with the CPU last, then from
/// most to least used.
fn order(
    placed: &LayerPlacement,
    n_ff: usize,
    n_per_expert: usize,
    uses: Option<&[f32]>,
) -> Vec<usize> {
    let mut device = vec![usize::MAX; n_ff];
    for share in &placed.shares {
        let rank = if share.device == 0 { usize::MAX } else { share.device };
        match &share.neurons {
            Neurons::All => device.fill(rank),
            Neurons::List(list) => list.iter().for_each(|&n| device[n as usize] = rank),
        }
    }
    let mut units: Vec<usize> = (0..n_ff / n_per_expert).collect();
    units.sort_by(|&a, &b| {
        let of_use = |unit: usize| uses.map_or(0.0, |uses| uses[unit * n_per_expert]);
        let placed = device[a * n_per_expert].cmp(&device[b * n_per_expert]);
        placed.then(of_use(b).total_cmp(&of_use(a)))
    });
    units.into_iter().flat_map(|unit| unit * n_per_expert..(unit + 1) * n_per_expert).collect()
}

/// Checks the cells of a step whose tokens fire as in `expected`; `orders` has the neurons of each
/// layer in order. Returns the number of cells whose value does not depend on rounding.
fn check(fired: &FiredNeurons, expected: &[&Reference], orders: &[Vec<usize>]) -> usize {
    assert_eq!((fired.n_tokens, &fired.refused), (expected.len(), &None));
    assert_eq!(fired.layers.len(), orders.len());
    let mut exact = 0;
    for (layer, (cells, order)) in fired.layers.iter().zip(orders).enumerate() {
        let n_units = order.len();
        let mut bounds = vec![[0, 0, 0]; cells.len()];
        for (position, &neuron) in order.iter().enumerate() {
            let [least, most, all] = &mut bounds[position * cells.len() / n_units];
            for token in expected {
                *all += 1;
                *least += usize::from(token[layer][neuron] == Some(true));
                *most += usize::from(token[layer][neuron] != Some(false));
            }
        }
        for (cell, [least, most, all]) in bounds.into_iter().enumerate() {
            let value = |n: usize| (15 * n).div_ceil(all);
            let got = usize::from(cells[cell]);
            let expected = value(least)..=value(most);
            assert!(expected.contains(&got), "layer {layer}, cell {cell}: {got}, not {expected:?}");
            exact += usize::from(least == most);
        }
    }
    exact
}

/// Appends a token to each sequence in one watched step; returns the logits of each.
fn step(
    engine: &mut Engine,
    sequences: &mut [thermocline::engine::Sequence],
    ids: &[u32],
) -> Logits {
    let mut logits = vec![Vec::new(); ids.len()];
    let mut feeds: Vec<Feed<'_>> = sequences
        .iter_mut()
        .zip(ids.chunks(1))
        .map(|(sequence, tokens)| Feed { sequence, tokens, want: LogitsRequest::Last })
        .collect();
    let sink = &mut |index: usize, _: usize, row: &[f32]| logits[index] = row.to_vec();
    engine.step_watched(&mut feeds, &AtomicBool::new(false), sink).unwrap();
    logits
}

fn orders(engine: &Engine, uses: Option<&[f32]>) -> Vec<Vec<usize>> {
    let model = engine.model();
    let layers = engine.placement().layers.iter().zip(&model.layers);
    layers
        .map(|(placed, layer)| {
            let n_per_expert = layer.experts().map_or(1, |experts| layer.n_ff() / experts.n);
            order(placed, layer.n_ff(), n_per_expert, uses)
        })
        .collect()
}

/// Runs `text` with every step watched, checks the cells, and compares the logits with those of the
/// same engine without a watch.
fn check_text(model: &Arc<Model>, devices: usize, adapt: bool, text: &[u32]) {
    let delay = Duration::ZERO..Duration::from_micros(20);
    let sim = (devices > 1).then(|| sim_device(1, Bytes::MAX, delay, 3).0 as Arc<dyn Backend>);
    check_on(sim.as_ref(), model, adapt, text);
}

/// As [`check_text`], with half of all neurons on a device of `backend`.
pub(super) fn check_on(
    backend: Option<&Arc<dyn Backend>>,
    model: &Arc<Model>,
    adapt: bool,
    text: &[u32],
) {
    let expected = reference(model, text);
    let make = || {
        let other = backend.map(|it| Device::new(Arc::clone(it), DeviceId(1), Bytes::MAX));
        let placement = other.is_some().then(|| half_placement(model));
        let all = [cpu_device(2)].into_iter().chain(other).collect();
        load_with(model, all, EngineOptions { n_ctx: 256, adapt, ..options() }, placement)
    };
    let mut engine = make();
    let used = |engine: &Engine| -> Vec<Bytes> {
        engine.devices().iter().map(|device| device.ledger().used()).collect()
    };
    let before = used(&engine);
    let mut sequences = [engine.new_sequence()];
    let (mut logits, mut exact, mut cells) = (Vec::new(), 0, 0);
    for (i, (&token, expected)) in text.iter().zip(&expected).enumerate() {
        let orders = orders(&engine, None);
        logits.extend(step(&mut engine, &mut sequences, &[token]));
        assert_eq!(engine.fired().n_steps, i as u64 + 1);
        exact += check(engine.fired(), &[expected], &orders);
        cells += engine.fired().layers.iter().map(Vec::len).sum::<usize>();
    }
    assert!(exact * 10 > cells * 8, "only {exact} of {cells} cells do not depend on rounding");
    engine.stop_watching();
    assert!(engine.fired().layers.is_empty());
    // The queue keeps its staging memory for the counters of a layer.
    let staging = Bytes(4 * model.max_n_ff() as u64);
    let after = used(&engine);
    assert!(before.iter().zip(&after).all(|(before, after)| *after <= *before + staging));
    step(&mut engine, &mut sequences, &[text[0]]);
    engine.stop_watching();
    assert_eq!(used(&engine), after, "stopping the watch releases its memory");
    let plain = logits_of(&mut make(), text, &[1]);
    assert_eq!(logits, plain, "watching changes no bit");
}

#[test]
fn cells_show_the_neurons_that_fire() {
    within(LIMIT, || {
        let wide = Tiny { n_ff: 320, ..Tiny::default() };
        let uneven = Tiny { n_ffs: vec![96, 0, 64], ..Tiny::default() };
        for (tiny, devices) in
            [(Tiny::default(), 1), (Tiny::default(), 2), (wide.clone(), 1), (wide, 2), (uneven, 1)]
        {
            check_text(&tiny.model(), devices, false, &TEXT);
        }
    });
}

#[test]
fn cells_show_the_experts_of_a_token() {
    within(LIMIT, || {
        for spec in ["64x2x64x4/2*8/2:F16:silu", "64x2x32x4/2*16/3:F16:relu"] {
            let model = generated(spec);
            for (devices, adapt) in [(1, false), (2, false), (2, true)] {
                check_text(&model, devices, adapt, &TEXT);
            }
        }
        let model = generated("64x2x64x4/2*8/2:F16:silu");
        let mut engine = load(&model, vec![cpu_device(1)], None);
        let mut sequences = [engine.new_sequence()];
        step(&mut engine, &mut sequences, &[5]);
        for cells in &engine.fired().layers {
            assert_eq!(cells.len(), 8, "an expert has a cell");
            assert_eq!(cells.iter().filter(|value| **value == FiredNeurons::ALL_FIRED).count(), 2);
            assert_eq!(cells.iter().filter(|value| **value == 0).count(), 6);
        }
    });
}

#[test]
fn cells_follow_the_exchange_of_neurons() {
    within(LIMIT, || {
        let model = two_topics().model();
        let text = [topic(&model, true, 40), topic(&model, false, 80)].concat();
        check_text(&model, 2, true, &text);
    });
}

#[test]
fn dense_blocks_fire_whole_and_need_no_counters() {
    within(LIMIT, || {
        let model = Tiny { activation: "silu", ..Tiny::default() }.model();
        let device = cpu_device(1);
        let mut engine = load(&model, vec![device.clone()], None);
        let mut sequences = [engine.new_sequence()];
        let before = device.ledger().used();
        step(&mut engine, &mut sequences, &[5]);
        assert_eq!(device.ledger().used(), before);
        let all = vec![vec![FiredNeurons::ALL_FIRED; 96]; 3];
        assert_eq!((engine.fired().n_tokens, &engine.fired().layers), (1, &all));
    });
}

#[test]
fn cells_are_ordered_by_the_profile() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let uses: Vec<f32> = (0..96).map(|n| ((n * 37) % 96) as f32 / 96.0).collect();
        let placing =
            PlannerInputs { uses: Some(Arc::new(vec![uses.clone(); 3])), ..options().placing };
        let options = EngineOptions { placing, ..options() };
        let mut engine = load_with(&model, vec![cpu_device(1)], options, None);
        let mut sequences = [engine.new_sequence()];
        for (&token, expected) in TEXT.iter().zip(&reference(&model, &TEXT)) {
            step(&mut engine, &mut sequences, &[token]);
            let orders = orders(&engine, Some(&uses));
            check(engine.fired(), &[expected], &orders);
        }
    });
}

/// Three sequences are three tokens of a step, for which programs are padded unless the step is
/// watched.
#[test]
fn cells_add_up_the_sequences_of_a_step() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let texts = [&TEXT[..8], &TEXT[8..16], &TEXT[12..20]];
        let expected: Vec<_> = texts.iter().map(|text| reference(&model, text)).collect();
        let options = EngineOptions { n_seq: 3, ..options() };
        let mut engine = load_with(&model, vec![cpu_device(2)], options, None);
        let mut cpu = load(&model, vec![cpu_device(2)], None);
        let plain: Vec<_> = texts.iter().map(|text| logits_of(&mut cpu, text, &[1])).collect();
        let mut sequences = [engine.new_sequence(), engine.new_sequence(), engine.new_sequence()];
        for i in 0..8 {
            let ids = texts.map(|text| text[i]);
            let logits = step(&mut engine, &mut sequences, &ids);
            let step: Vec<&Reference> = expected.iter().map(|text| &text[i]).collect();
            check(engine.fired(), &step, &orders(&engine, None));
            let plain: Logits = plain.iter().map(|text| text[i].clone()).collect();
            assert_eq!(logits, plain);
        }
    });
}

#[test]
fn a_watch_without_device_memory_is_refused_and_names_the_device() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let roomy = sim_device(1, Bytes::MAX, Duration::ZERO..Duration::ZERO, 1).1;
        let make = |device: Device| {
            let placement = Some(half_placement(&model));
            let options = EngineOptions { adapt: false, ..options() };
            load_with(&model, vec![cpu_device(2), device], options, placement)
        };
        drop(make(roomy.clone()));
        let full = sim_device(1, roomy.ledger().peak(), Duration::ZERO..Duration::ZERO, 1).1;
        let mut engine = make(full.clone());
        let before = full.ledger().used();
        let mut sequences = [engine.new_sequence()];
        let mut logits = Vec::new();
        for &token in &TEXT {
            logits.extend(step(&mut engine, &mut sequences, &[token]));
        }
        let fired = engine.fired().clone();
        assert_eq!((fired.n_steps, full.ledger().used()), (0, before));
        drop((engine, sequences));
        assert!(fired.refused.as_ref().is_some_and(|why| why.contains("SIM1")), "{fired:?}");
        assert_eq!(logits, logits_of(&mut make(full.clone()), &TEXT, &[1]));
    });
}

#[test]
fn a_lost_device_does_not_end_the_watch() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let expected = reference(&model, &TEXT);
        let mut lost = 0;
        for after in (0..400).step_by(37) {
            let (sim, device) = sim_device(1, Bytes::MAX, Duration::ZERO..Duration::ZERO, after);
            let devices = vec![cpu_device(2), device];
            let options = EngineOptions { adapt: false, ..options() };
            let mut engine = load_with(&model, devices, options, Some(half_placement(&model)));
            let mut sequences = [engine.new_sequence()];
            for (i, &token) in TEXT.iter().enumerate() {
                if i == 5 {
                    sim.lose_after(after);
                }
                step(&mut engine, &mut sequences, &[token]);
                if i > 8 {
                    // After a loss, all neurons are on the CPU.
                    let orders = orders(&engine, None);
                    check(engine.fired(), &[&expected[i]], &orders);
                }
            }
            lost += usize::from(engine.placement().layers.iter().all(|layer| layer.home == 0));
        }
        assert!(lost > 3, "the device was lost in {lost} runs");
    });
}

#[test]
fn an_interrupted_step_fails_as_without_a_watch() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let mut engine = load(&model, vec![cpu_device(1)], None);
        let mut sequence = engine.new_sequence();
        let mut feeds = [Feed { sequence: &mut sequence, tokens: &[3], want: LogitsRequest::Last }];
        let stopped = engine.step_watched(&mut feeds, &AtomicBool::new(true), &mut |_, _, _| {});
        assert!(matches!(stopped, Err(Error::Interrupted)), "{stopped:?}");
    });
}
