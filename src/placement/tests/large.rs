//! Planning of large models.

use super::super::front::{Costs, EXHAUSTIVE};
use super::super::search::Search;
use super::*;

/// A model of many layers, and budgets for parts of it.
fn deep(n_layer: usize, prompts: Option<f64>, joined: Vec<bool>) -> (Recipe, [u64; 4]) {
    let layer = (6 << 16) + 32 * 19_200;
    let recipe = Recipe {
        n_layer,
        n_ff: 32,
        joined,
        sizes: [5 << 16, 1 << 16, 19_200, 0],
        granule: 1,
        falls: vec![0.8, 0.9, 0.95],
        ends: 20 << 16,
        devices: vec![(8.0, 0.5)],
        prompts,
        ..usual()
    };
    (recipe, [0.1, 0.35, 0.6, 0.95].map(|share| (share * (n_layer * layer) as f64) as u64))
}

#[test]
fn up_to_128_layers_every_number_is_tried() {
    for n_layer in [1, EXHAUSTIVE, EXHAUSTIVE + 1] {
        let (recipe, [budget, ..]) = deep(n_layer, None, vec![false]);
        let task = recipe.task(&[budget]);
        assert_eq!(Costs::new(&task, &[]).step == 1, n_layer <= EXHAUSTIVE);
    }
}

#[test]
fn a_grid_of_numbers_loses_little_time() {
    for joined in [vec![false], vec![false, true, true, true, true]] {
        for prompts in [None, Some(6.0)] {
            let (recipe, budgets) = deep(150, prompts, joined.clone());
            for budget in budgets {
                let task = recipe.task(&[budget]);
                let time = |step: usize| {
                    let mut costs = Costs::new(&task, &[]);
                    costs.step = step;
                    Search::new(&costs).candidates().fastest().unwrap().0.token
                };
                let (all, some) = (time(1), time(150_usize.div_ceil(32)));
                let cpu = task.seconds(&task.on_cpu());
                assert!(all <= some && some <= 1.02 * all, "{budget}: {some} instead of {all}");
                assert!(some < cpu, "{some} on a device, {cpu} without");
            }
        }
    }
}

/// Nanoseconds that this thread has run. Where the system does not say so, the time of day counts.
fn thread_time() -> u64 {
    let ran = std::fs::read_to_string("/proc/thread-self/schedstat");
    let ran = ran.ok().and_then(|text| text.split(' ').next()?.parse().ok());
    ran.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.unwrap().as_nanos() as u64
    })
}

/// The limits are those of a debug build: a release build takes 0.4 s at most with two devices.
#[test]
fn a_thousand_layers_are_planned_in_seconds() {
    let sizes = [(1000, 1, 3.0), (1000, 2, 6.0), (4000, 1, 6.0)];
    for (streams, prompts) in [(None, None), (Some((10 << 16, 10.0)), Some(8.0))] {
        for (n_layer, n_devices, limit) in sizes {
            let (recipe, budgets) = deep(n_layer, prompts, vec![false]);
            let recipe = Recipe { devices: vec![(8.0, 0.5); n_devices], streams, ..recipe };
            let task = recipe.task(&vec![budgets[2] / n_devices as u64; n_devices]);
            let begin = thread_time();
            let forecast = plan(&task);
            let seconds = (thread_time() - begin) as f64 * 1e-9;
            println!("{n_layer} layers, {n_devices} devices, {prompts:?}: {seconds:.3} s");
            assert!(seconds < limit, "{n_layer} layers, {n_devices} devices: {seconds} s");
            assert!(forecast.placement.layers.iter().any(|layer| layer.home != CPU));
        }
    }
}

/// Prints planning times:
/// `cargo test --release -p thermocline-placement planning_times -- --ignored --nocapture`.
#[test]
#[ignore = "slow in a debug build"]
fn planning_times_of_a_large_model() {
    let layers = Recipe {
        n_layer: 80,
        n_ff: 28_672,
        sizes: [85 << 20, 4 << 20, 13_824, 0],
        granule: 256,
        falls: vec![0.9998, 0.99985, 0.9999],
        ends: 150 << 20,
        ..usual()
    };
    for n_devices in 1..=3 {
        for streams in [None, Some((200 << 20, 10.0))] {
            let devices = vec![(15.0, 10.0); n_devices];
            let recipe = Recipe { devices, prompts: Some(8.0), streams, ..layers.clone() };
            for share in [0.1, 0.3, 0.5, 0.9] {
                let whole = 80 * ((89 << 20) + 28_672 * 13_824u64);
                let budget = (share * whole as f64 / n_devices as f64) as u64;
                let task = recipe.task(&vec![budget; n_devices]);
                let begin = std::time::Instant::now();
                let forecast = plan(&task);
                let took = begin.elapsed();
                println!(
                    "{n_devices} devices, {share}, streams {}: {took:?}, {:.1} ms a token, prompt {:?}",
                    streams.is_some(),
                    1e3 * forecast.seconds,
                    forecast.prompt
                );
            }
        }
    }
}
