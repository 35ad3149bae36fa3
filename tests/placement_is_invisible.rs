//! Placement may change speed, never words: the most valuable test we own.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cpu::{CpuBackend, CpuOptions};
use hal::format::Format;
use hal::{Backend, Bytes, Device, DeviceId};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sim::{SimBackend, SimOptions};
use thermocline::engine::{Engine, EngineOptions, Notice, Want};
use thermocline::model::Model;
use thermocline::placement::{LayerPlacement, Neurons, Placement, Share};

use crate::support::{Tiny, within};

const LIMIT: Duration = Duration::from_secs(120);
const TEXT: [u32; 23] =
    [3, 17, 60, 2, 9, 41, 41, 7, 30, 55, 12, 1, 0, 79, 23, 24, 25, 66, 5, 5, 18, 33, 71];

/// Logits of the reference text by one placement, F64-free: `[token][vocab]`.
type Logits = Vec<Vec<f32>>;

fn cpu_device(threads: usize) -> Device {
    let backend = CpuBackend::new(CpuOptions { threads: Some(threads) });
    Device::new(backend, DeviceId(0), Bytes::MAX)
}

fn sim_device(
    index: u32,
    budget: Bytes,
    delay: Range<Duration>,
    seed: u64,
) -> (Arc<SimBackend>, Device) {
    let options = SimOptions { name: format!("SIM{index}"), seed, delay, ..SimOptions::default() };
    let backend = SimBackend::new(options);
    let device = Device::new(Arc::clone(&backend) as Arc<dyn Backend>, DeviceId(index), budget);
    (backend, device)
}

fn quiet() -> Notice {
    Arc::new(|_: &str| {})
}

fn options() -> EngineOptions {
    EngineOptions { n_ctx: 96, n_ubatch: 16, ..EngineOptions::default() }
}

fn load(model: &Arc<Model>, devices: Vec<Device>, placement: Option<Placement>) -> Engine {
    Engine::load(Arc::clone(model), devices, options(), placement, quiet(), &|_, _| {}).unwrap()
}

/// The text in pieces of the given sizes, logits of every token.
fn logits(engine: &mut Engine, pieces: &[usize]) -> Logits {
    let mut session = engine.open();
    let mut all = Vec::new();
    let mut rest = &TEXT[..];
    let mut sizes = pieces.iter().cycle();
    while !rest.is_empty() {
        let (piece, after) = rest.split_at((*sizes.next().unwrap()).min(rest.len()));
        let go_on = AtomicBool::new(false);
        let each = &mut |_: usize, row: &[f32]| all.push(row.to_vec());
        engine.feed(&mut session, piece, Want::All, &go_on, each).unwrap();
        rest = after;
    }
    engine.close(session);
    all
}

/// Largest difference over all tokens, relative to the spread of the expected logits.
fn difference(expected: &Logits, got: &Logits) -> f32 {
    assert_eq!(expected.len(), got.len());
    let mut worst = 0.0f32;
    for (a, b) in expected.iter().zip(got) {
        let spread = a.iter().map(|v| v * v).sum::<f32>().sqrt() / (a.len() as f32).sqrt();
        let most = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        worst = worst.max(most / spread);
    }
    worst
}

/// The rounding bound. Unquantised weights: sums of F32 in another order, and keys rounded to F16. Quantised
/// ones: an activation that lies at the edge of two 8-bit steps may fall to either side; a step is 1/127 of its
/// block's largest value, which in rows of 64 moves a product by about 1 % of its spread, and a few of them add up.
fn bound(format: Format) -> f32 {
    match format {
        Format::F32 | Format::F16 | Format::BF16 => 2e-3,
        Format::Q4_0 | Format::Q4_1 | Format::Q8_0 => 8e-2,
        Format::Q4_K | Format::Q5_K | Format::Q6_K => 8e-2,
        Format::U32 => unreachable!("no weights have it"),
    }
}

/// A random placement on `n_devices`, neurons in blocks of `unit`.
fn random_placement(
    rng: &mut ChaCha8Rng,
    model: &Model,
    n_devices: usize,
    unit: usize,
) -> Placement {
    let n_ff = model.hyper.n_ff;
    let mut layers = Vec::new();
    for _ in 0..model.hyper.n_layer {
        let home = rng.random_range(0..n_devices);
        // The CPU is the other side of a hand-off, so only layers of other homes can be split.
        if home == 0 || rng.random_range(0..3) == 0 {
            layers.push(LayerPlacement::whole(home));
            continue;
        }
        let mut lists = vec![Vec::new(); n_devices];
        let bias = rng.random_range(0..n_devices);
        for block in 0..n_ff / unit {
            let to = if rng.random_bool(0.4) { bias } else { rng.random_range(0..n_devices) };
            lists[to].extend((block * unit..(block + 1) * unit).map(|n| n as u32));
        }
        let share = |(device, list): (usize, Vec<u32>)| Share {
            device,
            neurons: Neurons::List(list.into()),
        };
        layers.push(LayerPlacement {
            home,
            shares: lists.into_iter().enumerate().map(share).collect(),
        });
    }
    let pick = |rng: &mut ChaCha8Rng| rng.random_range(0..n_devices);
    Placement { embed: pick(rng), head: pick(rng), layers }
}

fn unit(model: &Model) -> usize {
    let across = !model.is_exactly_sparse() && !model.layers[0].ffn.down_by_neuron;
    if across { model.layers[0].ffn.down.desc().format.block_values() } else { 1 }
}

fn check_random(tiny: &Tiny, rounds: u64) {
    let model = tiny.model();
    let expected = logits(&mut load(&model, vec![cpu_device(1)], None), &[23]);
    for round in 0..rounds {
        let mut rng = ChaCha8Rng::seed_from_u64(tiny.seed * 1000 + round);
        let threads = rng.random_range(1..5);
        let slow = Duration::from_micros(rng.random_range(0..200));
        let mut devices = vec![cpu_device(threads)];
        for index in 1..rng.random_range(2..4) {
            devices.push(sim_device(index, Bytes::MAX, Duration::ZERO..slow, round).1);
        }
        let placement = random_placement(&mut rng, &model, devices.len(), unit(&model));
        let pieces: Vec<usize> = (0..4).map(|_| rng.random_range(1..20)).collect();
        let mut engine = load(&model, devices, Some(placement.clone()));
        let got = logits(&mut engine, &pieces);
        let difference = difference(&expected, &got);
        assert!(
            difference <= bound(tiny.format),
            "round {round} of {tiny:?}: logits differ by {difference} with {placement:?}"
        );
        let again = logits(&mut engine, &pieces);
        assert_eq!(got, again, "the same placement gives the same bits");
    }
}

#[test]
fn random_placements_give_the_same_logits() {
    within(LIMIT, || {
        for (seed, format) in
            [Format::F32, Format::F16, Format::Q8_0, Format::Q4_0].into_iter().enumerate()
        {
            check_random(&Tiny { seed: seed as u64 + 1, format, ..Tiny::default() }, 6);
        }
    });
}

#[test]
fn dense_models_and_powerinfer_files_too() {
    within(LIMIT, || {
        check_random(&Tiny { activation: "silu", format: Format::Q8_0, ..Tiny::default() }, 5);
        check_random(
            &Tiny { activation: "silu", format: Format::F16, tied: true, ..Tiny::default() },
            4,
        );
        check_random(&Tiny { pwri: true, format: Format::Q4_0, ..Tiny::default() }, 4);
        let wide = Tiny {
            n_embd: 256,
            n_ff: 512,
            format: Format::Q4_K,
            window: Some(9),
            ..Tiny::default()
        };
        check_random(&wide, 3);
        check_random(&Tiny { format: Format::Q6_K, activation: "drelu", ..wide }, 3);
    });
}

#[test]
fn threads_and_pieces_change_no_bit_on_the_cpu() {
    within(LIMIT, || {
        for activation in ["relu", "silu"] {
            let model = Tiny { format: Format::Q4_0, activation, ..Tiny::default() }.model();
            let expected = logits(&mut load(&model, vec![cpu_device(1)], None), &[1]);
            for (threads, pieces) in [(1, 23), (2, 1), (3, 5), (7, 16)] {
                let got = logits(&mut load(&model, vec![cpu_device(threads)], None), &[pieces]);
                assert_eq!(expected, got, "{threads} threads, pieces of {pieces}");
            }
        }
    });
}

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
fn the_text_goes_on_when_a_device_is_lost() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let expected = logits(&mut load(&model, vec![cpu_device(2)], None), &[23]);
        for lost_after in [0, 3, 17, 40, 90, 200, 333, 700] {
            for by_panic in [false, true] {
                let mut rng = ChaCha8Rng::seed_from_u64(lost_after);
                let delay = Duration::ZERO..Duration::from_micros(50);
                let (first, a) = sim_device(1, Bytes::MAX, delay.clone(), 1);
                let (_, b) = sim_device(2, Bytes::MAX, delay, 2);
                let placement = random_placement(&mut rng, &model, 3, 1);
                let mut engine = load(&model, vec![cpu_device(2), a, b], Some(placement));
                match by_panic {
                    true => first.panic_after(lost_after),
                    false => first.lose_after(lost_after),
                }
                let got = logits(&mut engine, &[3, 1, 6]);
                let difference = difference(&expected, &got);
                assert!(difference <= bound(Format::F16), "lost after {lost_after}: {difference}");
            }
        }
    });
}

#[test]
fn an_interrupt_leaves_the_text_where_it_was() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let expected = logits(&mut load(&model, vec![cpu_device(2)], None), &[1]);
        let (_, device) = sim_device(1, Bytes::MAX, Duration::ZERO..Duration::from_micros(300), 5);
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let mut placement = random_placement(&mut rng, &model, 2, 1);
        let half = |range: Range<u32>| Neurons::List(range.collect());
        placement.layers[1] = LayerPlacement {
            home: 1,
            shares: vec![
                Share { device: 1, neurons: half(0..40) },
                Share { device: 0, neurons: half(40..96) },
            ],
        };
        let mut engine = load(&model, vec![cpu_device(2), device], Some(placement));
        let mut session = engine.open();
        for (i, &token) in TEXT.iter().enumerate() {
            let stop = AtomicBool::new(true);
            let stopped = engine.feed(&mut session, &[token], Want::Last, &stop, &mut |_, _| {});
            assert!(matches!(stopped, Err(thermocline::engine::Error::Interrupted)), "{stopped:?}");
            assert_eq!(session.tokens(), &TEXT[..i]);
            let go_on = AtomicBool::new(false);
            let mut row = Vec::new();
            let each = &mut |_: usize, logits: &[f32]| row = logits.to_vec();
            engine.feed(&mut session, &[token], Want::Last, &go_on, each).unwrap();
            let one = |row: &Vec<f32>| vec![row.clone()];
            assert!(difference(&one(&expected[i]), &one(&row)) <= bound(Format::F16), "token {i}");
        }
    });
}
