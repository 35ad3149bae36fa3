//! Placement may change the speed but never the output.
//!
//! This file has shared helpers and tests of random placements. Budgets, losses, hand-offs that end
//! early, graphics devices and streaming have their own files.

mod adapt;
pub(crate) mod budgets;
mod fired;
pub(crate) mod graphics;
mod hand_off;
mod loss;
mod policies;
mod predictor;
mod refused;
mod shares;
pub(crate) mod stream;
mod stream_chosen;
mod unified;
pub(crate) mod vendors;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cpu::{CpuBackend, CpuOptions};
use hal::format::Format;
use hal::{Backend, Bytes, Device, DeviceId};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sim::{SimBackend, SimOptions};
use thermocline::engine::{Engine, EngineOptions, LogitsRequest, NoticeCallback, PlannerInputs};
use thermocline::model::{Ffn, LayerWeights, Model};
use thermocline::placement::{LayerPlacement, Neurons, Placement, Share};

use crate::support::{Tiny, largest_difference, within};

const LIMIT: Duration = Duration::from_secs(120);
const TEXT: [u32; 23] =
    [3, 17, 60, 2, 9, 41, 41, 7, 30, 55, 12, 1, 0, 79, 23, 24, 25, 66, 5, 5, 18, 33, 71];

/// Logits of the reference sequence with one placement: `[token][vocab]`.
pub(crate) type Logits = Vec<Vec<f32>>;

pub(crate) fn cpu_device(threads: usize) -> Device {
    let backend = CpuBackend::new(CpuOptions { threads: Some(threads), ..Default::default() });
    Device::new(backend, DeviceId(0), Bytes::MAX)
}

pub(crate) fn sim_device(
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

pub(crate) fn ignore_notices() -> NoticeCallback {
    Arc::new(|_: &str| {})
}

fn options() -> EngineOptions {
    EngineOptions { n_ctx: 96, n_ubatch: 16, ..EngineOptions::default() }
}

fn load(model: &Arc<Model>, devices: Vec<Device>, placement: Option<Placement>) -> Engine {
    load_with(model, devices, options(), placement)
}

fn load_with(
    model: &Arc<Model>,
    devices: Vec<Device>,
    options: EngineOptions,
    placement: Option<Placement>,
) -> Engine {
    Engine::load(Arc::clone(model), devices, options, placement, ignore_notices(), &|_, _| {})
        .unwrap()
}

/// Feeds the reference sequence in chunks of the given sizes; returns the logits of every token.
fn logits(engine: &mut Engine, pieces: &[usize]) -> Logits {
    logits_of(engine, &TEXT, pieces)
}

/// Feeds `ids` in chunks of the given sizes; returns the logits of every token.
pub(crate) fn logits_of(engine: &mut Engine, ids: &[u32], pieces: &[usize]) -> Logits {
    let mut sequence = engine.new_sequence();
    let mut all = Vec::new();
    if !engine.model().hyper.causal {
        let interrupt = AtomicBool::new(false);
        let sink = &mut |_: usize, row: &[f32]| all.push(row.to_vec());
        engine.hidden_states(&mut sequence, ids, &interrupt, sink).unwrap();
        return all;
    }
    let mut rest = ids;
    let mut sizes = pieces.iter().cycle();
    while !rest.is_empty() {
        let (piece, after) = rest.split_at((*sizes.next().unwrap()).min(rest.len()));
        let interrupt = AtomicBool::new(false);
        let sink = &mut |_: usize, row: &[f32]| all.push(row.to_vec());
        engine.feed(&mut sequence, piece, LogitsRequest::All, &interrupt, sink).unwrap();
        rest = after;
    }
    all
}

/// Largest difference over all tokens, relative to the spread of the expected logits.
pub(crate) fn difference(expected: &Logits, got: &Logits) -> f32 {
    assert_eq!(expected.len(), got.len());
    let mut worst = 0.0f32;
    for (a, b) in expected.iter().zip(got) {
        let spread = a.iter().map(|v| v * v).sum::<f32>().sqrt() / (a.len() as f32).sqrt();
        let most = largest_difference(a, b);
        worst = worst.max(most / spread);
    }
    worst
}

/// The rounding bound. Unquantised weights: sums of F32 in another order, and keys rounded to F16.
/// Quantised weights: an activation may round to the neighbouring 8-bit step; a step is 1/127 of
/// its block's largest value, which in rows of 64 changes a product by about 1 % of its spread,
/// and a few of these add up.
fn bound(format: Format) -> f32 {
    if format.quants().is_some() { 8e-2 } else { 2e-3 }
}

/// A random placement on `n_devices`.
pub(crate) fn random_placement(rng: &mut ChaCha8Rng, model: &Model, n_devices: usize) -> Placement {
    let mut layers: Vec<LayerPlacement> = Vec::new();
    for (n_ff, layer) in model.neurons().into_iter().zip(&model.layers) {
        let drawn = rng.random_range(0..n_devices);
        // A layer shares the home of the layer whose KV cache it uses.
        let home = layer.frame.mixer.kv_source().map_or(drawn, |source| layers[source].home);
        // The CPU is the other side of a hand-off, so only layers with another home can be split.
        if home == 0 || n_ff == 0 || rng.random_range(0..3) == 0 {
            layers.push(LayerPlacement::whole(home));
            continue;
        }
        let unit = layer.ffn.as_ref().map_or(1, |ffn| unit_of(model, ffn));
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

/// The placement of a layer whose neurons are assigned in turn to `devices`; the first device is
/// the home.
fn deal_neurons(model: &Model, devices: &[usize]) -> LayerPlacement {
    let n_ff = model.max_n_ff() as u32;
    let share = |(i, &device): (usize, &usize)| Share {
        device,
        neurons: Neurons::List((i as u32..n_ff).step_by(devices.len()).collect()),
    };
    LayerPlacement { home: devices[0], shares: devices.iter().enumerate().map(share).collect() }
}

/// Number of neurons of a block that stay together.
fn unit_of(model: &Model, ffn: &Ffn) -> usize {
    if ffn.gaussian_cut.is_some() {
        return ffn.n_ff();
    }
    match (model.is_exactly_sparse() || ffn.down_by_neuron, ffn.n_expert()) {
        (true, _) => 1,
        (false, Some(_)) => ffn.n_per_expert(),
        (false, None) => ffn.down.w.desc().format.block_values(),
    }
}

fn check_random(tiny: &Tiny, rounds: u64) {
    check_random_within(tiny, rounds, bound(tiny.format));
}

fn check_random_within(tiny: &Tiny, rounds: u64, bound: f32) {
    let model = tiny.model();
    let expected = logits(&mut load(&model, vec![cpu_device(1)], None), &[23]);
    for round in 0..rounds {
        let mut rng = ChaCha8Rng::seed_from_u64(tiny.seed * 1000 + round);
        let threads = rng.random_range(1..5);
        let slow = Duration::from_micros(rng.random_range(0..200));
        let mut devices = vec![cpu_device(threads)];
        for index in 1..rng.random_range(2..4) {
            let options = SimOptions {
                name: format!("SIM{index}"),
                seed: round,
                delay: Duration::ZERO..slow,
                // A scratch tensor that is reused and grows from op to op must not change results
                // either.
                workspace: Bytes(rng.random_range(0..3) * 1000),
                ..SimOptions::default()
            };
            let backend = SimBackend::new(options);
            devices.push(Device::new(backend, DeviceId(index), Bytes::MAX));
        }
        let placement = random_placement(&mut rng, &model, devices.len());
        let pieces: Vec<usize> = (0..4).map(|_| rng.random_range(1..20)).collect();
        let mut engine = load(&model, devices, Some(placement.clone()));
        let got = logits(&mut engine, &pieces);
        let difference = difference(&expected, &got);
        assert!(
            difference <= bound,
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
fn dense_models_and_powerinfer_files_give_the_same_logits() {
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
fn thread_and_chunk_counts_do_not_change_the_bits() {
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
