//! Planning time for a large model.

use super::*;

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
