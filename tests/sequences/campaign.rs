//! Random schedules on random devices, for as long as asked: models of all families, placements,
//! budgets, failed allocations, refused ops, streaming, adapting, slow devices and lost ones.

use std::ops::Range;
use std::time::Instant;

use hal::{Backend, Device, DeviceId, KvCache};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sim::{SimBackend, SimOptions};
use thermocline::engine::Streaming;

use super::schedules::{N, RECURRENT, SingleSequence, family, run};
use super::*;
use crate::placement_is_invisible::random_placement;
use crate::support::packed::families;

const N_ACTIONS: usize = 24;

/// What one trial draws; the seed repeats it.
struct Trial {
    seed: u64,
    name: String,
    n_ubatch: usize,
    adapt: bool,
    streaming: bool,
    /// Budgets of the simulated devices, if the planner places the model.
    budgets: Option<Vec<Bytes>>,
    n_devices: usize,
    refused: Option<&'static str>,
    failed_allocation: Option<u64>,
    /// The action before which the first device gets its last ops, and how many.
    loss: Option<(usize, u64)>,
    delay: Range<Duration>,
}

/// Says which trial failed.
struct Announce<'a>(&'a Trial);

impl Drop for Announce<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let Trial { seed, name, n_ubatch, adapt, streaming, budgets, .. } = self.0;
            let Trial { n_devices, refused, failed_allocation, loss, delay, .. } = self.0;
            println!("failed: seed {seed}, {name}, micro-batches of {n_ubatch}, adapting: {adapt}");
            println!(
                "streaming: {streaming}; {n_devices} devices, budgets {budgets:?}, {delay:?} per op"
            );
            println!(
                "refused: {refused:?}; failed allocation: {failed_allocation:?}; loss: {loss:?}"
            );
        }
    }
}

impl Trial {
    fn draw(seed: u64, models: &[(String, Arc<Model>)]) -> (Trial, Arc<Model>) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (name, model) = &models[rng.random_range(0..models.len())];
        let n_devices = rng.random_range(1..3);
        let planned = rng.random_bool(0.5);
        let budget = |rng: &mut ChaCha8Rng| {
            if rng.random_bool(0.2) {
                return Bytes::MAX;
            }
            Bytes(1 << rng.random_range(12..22)) + Bytes(rng.random_range(0..4096))
        };
        let mut maybe = |share: f64, n: u64| rng.random_bool(share).then(|| rng.random_range(0..n));
        // A given placement that does not fit is an error, a planned one becomes smaller.
        let failed_allocation = maybe(0.2, 60).filter(|_| planned).map(|n| n + 1);
        let refused = maybe(0.1, hal::op::OP_NAMES.len() as u64).filter(|_| planned);
        let loss = maybe(0.3, N_ACTIONS as u64);
        let maybe_slow = maybe(0.1, 40).unwrap_or(0);
        let budgets = planned.then(|| (0..n_devices).map(|_| budget(&mut rng)).collect());
        let trial = Trial {
            seed,
            name: name.clone(),
            n_ubatch: [1, 7, 16, 64][rng.random_range(0..4)],
            adapt: rng.random_bool(0.4),
            streaming: rng.random_bool(0.3),
            budgets,
            n_devices,
            refused: refused.map(|i| hal::op::OP_NAMES[i as usize]),
            failed_allocation,
            loss: loss.map(|at| (at as usize, rng.random_range(0..60))),
            // Each op sleeps that long, so only some devices are slow.
            delay: Duration::ZERO..Duration::from_micros(maybe_slow),
        };
        (trial, Arc::clone(model))
    }

    /// The simulated devices, with what fails on the first of them.
    fn devices(&self) -> Vec<(Arc<SimBackend>, Device)> {
        let open = |i: usize| {
            let budget = self.budgets.as_ref().map_or(Bytes::MAX, |budgets| budgets[i]);
            let backend = SimBackend::new(SimOptions {
                name: format!("SIM{}", i + 1),
                seed: self.seed + i as u64,
                delay: self.delay.clone(),
                ..SimOptions::default()
            });
            let shared = Arc::clone(&backend) as Arc<dyn Backend>;
            (backend, Device::new(shared, DeviceId(i as u32 + 1), budget))
        };
        let devices: Vec<_> = (0..self.n_devices).map(open).collect();
        if let Some(op) = self.refused {
            devices[0].0.refuse(op);
        }
        if let Some(nth) = self.failed_allocation {
            devices[0].0.out_of_memory_at(nth);
        }
        devices
    }

    fn options(&self, n_seq: usize) -> EngineOptions {
        let kv_formats = KvCache::both(Format::F32);
        let (n_ubatch, adapt) = (self.n_ubatch, self.adapt);
        let options =
            EngineOptions { n_ubatch, adapt, kv_formats, n_checkpoint: 3, ..options(n_seq) };
        if !self.streaming {
            return options;
        }
        let streaming = Streaming::Forced { from: 17, chunk_bytes: Bytes(8 << 10) };
        EngineOptions { streaming, ..options }
    }

    fn run(&self, model: &Arc<Model>) {
        let _announce = Announce(self);
        let kv_formats = KvCache::both(Format::F32);
        let reference = EngineOptions { kv_formats, ..options(1) };
        let mut alone = SingleSequence::new(load(model, vec![cpu_device(1)], reference, None));
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        let sims = self.devices();
        let devices = sims.iter().map(|(_, device)| device.clone());
        let devices: Vec<_> =
            [cpu_device(rng.random_range(1..3))].into_iter().chain(devices).collect();
        let placement = match self.budgets {
            Some(_) => None,
            None => Some(random_placement(&mut rng, model, devices.len())),
        };
        let engine = load(model, devices, self.options(N), placement);
        // Later, it would fail what the engine was asked for.
        sims[0].0.change_failures(|failures| failures.out_of_memory_at = None);
        let quantised = model
            .file
            .tensors()
            .iter()
            .any(|tensor| tensor.ty.format().is_some_and(|format| format.quants().is_some()));
        let bound = if quantised { 8e-2 } else { 2e-3 };
        let between = &mut |act: usize| {
            if let Some((at, n)) = self.loss.filter(|(at, _)| *at == act) {
                sims[at % sims.len()].0.lose_after(n);
            }
        };
        run(engine, &mut alone, (self.seed, N_ACTIONS, bound), between);
        for ((backend, device), i) in sims.iter().zip(0..) {
            let budget = self.budgets.as_ref().map_or(Bytes::MAX, |budgets| budgets[i]);
            let (counted, real) = (device.ledger().peak(), backend.counters().peak);
            assert!(counted.max(real) <= budget, "{counted} counted, {real} used of {budget}");
        }
    }
}

/// Tiny models with random weights, and the generators of text in `tests/families`.
fn models() -> Vec<(String, Arc<Model>)> {
    let tiny = |tiny: Tiny| (format!("{tiny:?}"), tiny.model());
    let chosen = Tiny { pwri: true, rank: 8, marked: true, ..Tiny::default() };
    let window = Tiny { window: Some(9), activation: "silu", ..Tiny::default() };
    let made = [
        Tiny::default(),
        Tiny { format: Format::Q4_0, ..Tiny::default() },
        Tiny { format: Format::Q8_0, activation: "silu", tied: true, ..Tiny::default() },
        chosen,
        window,
    ];
    let mut all: Vec<_> = made.into_iter().map(tiny).collect();
    let files = std::fs::read_dir(families()).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<String> = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "gguf"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    let opened = names.into_iter().map(|name| (name.clone(), family(&name)));
    // A predictor may choose other neurons after other roundings.
    let runs = |model: &Model| {
        let n_ctx = options(1).n_ctx;
        model.hyper.causal && model.positions.as_ref().is_none_or(|by| by.n_positions() >= n_ctx)
    };
    all.extend(opened.filter(|(name, model)| runs(model) && !name.ends_with("-pwri")));
    assert!(RECURRENT.iter().all(|name| all.iter().any(|(known, _)| known == name)));
    all
}

/// Runs trials from the seed `first` on, until `ended` says so, given their number.
fn trials(first: u64, ended: impl Fn(u64) -> bool) {
    let models = models();
    let (mut n, mut lost, mut planned) = (0, 0, 0);
    while !ended(n) {
        let (trial, model) = Trial::draw(first + n, &models);
        trial.run(&model);
        n += 1;
        lost += u64::from(trial.loss.is_some());
        planned += u64::from(trial.budgets.is_some());
    }
    println!("{n} trials from seed {first}: {planned} planned within budgets, {lost} with a loss");
}

#[test]
fn random_trials_have_the_logits_of_single_sequences() {
    within(LIMIT, || trials(0, |n| n == 60));
}

#[test]
#[ignore = "scripts/check_placements runs it for minutes or hours"]
#[allow(clippy::disallowed_methods)] // set by the script
fn random_trials_for_minutes() {
    let number = |name: &str| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let time = Duration::from_secs(60 * number("THERMOCLINE_CAMPAIGN_MINUTES"));
    let started = Instant::now();
    trials(number("THERMOCLINE_CAMPAIGN_SEED"), |_| started.elapsed() >= time);
}
