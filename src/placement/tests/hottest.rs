//! Properties of the placement that spends the budget on the hottest neurons.

use super::*;

fn fill_task(recipe: &Recipe, budgets: &[u64]) -> Task {
    let constraints =
        PlanConstraints { policy: PlacementPolicy::Fill, whole_layers: None, ..recipe.constraints };
    Recipe { constraints, ..recipe.clone() }.task(budgets)
}

/// The neurons of each layer that are on the layer's home device, if that is not the CPU.
fn on_devices(forecast: &Forecast, task: &Task) -> Vec<Option<Vec<u32>>> {
    let layers = forecast.placement.layers.iter().zip(&task.layers);
    let here = |(placed, facts): (&LayerPlacement, &LayerFacts)| {
        let share = placed.shares.iter().find(|share| share.device == placed.home);
        let list = match share.map(|share| &share.neurons) {
            Some(Neurons::All) => (0..facts.cut.n_ff as u32).collect(),
            Some(Neurons::List(list)) => list.to_vec(),
            None => Vec::new(),
        };
        (placed.home != CPU).then_some(list)
    };
    layers.map(here).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// `check` also compares the bytes with the budget.
    #[test]
    fn no_neuron_on_the_cpu_is_hotter_than_one_on_the_device(
        recipe in recipes(), share in 0.0..1.0f64,
    ) {
        let budget = (share * recipe.ample_budget() as f64) as u64;
        let task = fill_task(&recipe, &[budget]);
        let forecast = check(&task);
        prop_assert_eq!(&forecast, &check(&task));
        let here = on_devices(&forecast, &task);
        let homed = || here.iter().zip(&task.layers).filter_map(|(list, facts)| Some((list.as_ref()?, facts)));
        // The last group on the device and the first group that is not, of all layers on it.
        let mean = |facts: &LayerFacts, k: usize| facts.mean[k];
        let n_groups = |list: &Vec<u32>, facts: &LayerFacts| list.len().div_ceil(facts.cut.group);
        let coldest = homed().filter_map(|(list, facts)| Some(mean(facts, n_groups(list, facts).checked_sub(1)?)));
        let coldest = coldest.fold(f64::INFINITY, f64::min);
        let absent = homed().filter(|(list, facts)| n_groups(list, facts) < facts.cut.n_groups());
        let hottest = absent.map(|(list, facts)| mean(facts, n_groups(list, facts))).fold(0.0, f64::max);
        prop_assert!(hottest <= coldest, "{hottest} is absent, {coldest} is resident");
        for (list, facts) in homed() {
            prop_assert_eq!(list, &facts.first_groups(n_groups(list, facts)));
        }
    }

    #[test]
    fn more_budget_only_adds(
        recipe in recipes(), n_steps in 2..12u64, first in 0.0..1.0f64, span in -3.0..0.0f64,
    ) {
        let (all, span) = (recipe.ample_budget() as f64, 10f64.powf(span));
        let share = |step| first * (1.0 - span) + span * step as f64 / n_steps as f64;
        let n_devices = recipe.devices.len();
        let plans = (0..=n_steps).map(|step| {
            let budget = (all * share(step)) as u64;
            let task = fill_task(&recipe, &vec![budget; n_devices]);
            (check(&task), task)
        });
        let plans: Vec<_> = plans.collect();
        for pair in plans.windows(2) {
            let [(less, task), (more, _)] = pair else { unreachable!() };
            for (less, more) in on_devices(less, task).iter().zip(on_devices(more, task)) {
                let Some(less) = less else { continue };
                let more = more.unwrap_or_default();
                prop_assert!(less.iter().all(|n| more.binary_search(n).is_ok()));
            }
            prop_assert!(less.off_cpu <= more.off_cpu + 1e-9);
            prop_assert!(less.placement.head == CPU || more.placement.head != CPU);
            prop_assert!(less.placement.embed == CPU || more.placement.embed != CPU);
        }
    }

    /// Only the next addition does not fit: a group, a layer's frame, the head or the embedding.
    #[test]
    fn the_whole_budget_is_spent(recipe in recipes(), share in 0.0..1.0f64) {
        let recipe = Recipe { constraints: PlanConstraints::default(), ..recipe };
        let budget = (share * recipe.ample_budget() as f64) as u64;
        let task = fill_task(&recipe, &[budget]);
        let (forecast, facts) = (check(&task), &task.devices[1]);
        let placement = &forecast.placement;
        if placement == &Placement::all_on(1, task.layers.len()) {
            return Ok(());
        }
        let left = facts.budget - forecast.devices[1].total();
        let sum = |sizes: &LayerSizes| sizes.frame + sizes.cache;
        let frames: Bytes = facts.layers.iter().map(sum).sum();
        let group = task.layers.iter().enumerate().map(|(layer, _)| {
            let sizes = &facts.layers[layer];
            let steps = sizes.shares.windows(2).map(|pair| pair[1] - pair[0]);
            let last = sizes.whole.unwrap_or_default() - sizes.shares.last().copied().unwrap_or_default();
            steps.chain([last]).max().unwrap_or_default()
        });
        let group = group.max().unwrap_or_default();
        let hand_offs: Bytes = facts.hand_offs + Bytes(facts.hand_off.0 * task.layers.len() as u64);
        let homed = placement.layers.iter().all(|layer| layer.home == 1);
        let resident = homed && placement.n_split() == 0;
        let most = match (homed, resident) {
            (false, _) => facts.fixed + frames + hand_offs + group,
            (true, false) => group + hand_offs,
            (true, true) => facts.head.unwrap_or_default().max(facts.embed.unwrap_or_default()),
        };
        prop_assert!(left <= most, "{left} of {} are left, {most} at most", facts.budget);
    }
}

#[test]
fn filling_spends_the_budget_even_where_that_is_slower() {
    let recipe = Recipe { devices: vec![(20.0, 5000.0)], ..usual() };
    let fastest = check(&recipe.task(&[600_000]));
    let fill = check(&fill_task(&recipe, &[600_000]));
    assert!(fill.seconds > 2.0 * fastest.seconds, "{} and {}", fill.seconds, fastest.seconds);
    assert_eq!(fill.placement.n_split(), 12);
    let left = Bytes(600_000) - fill.devices[1].total();
    assert!(left < Bytes(4 * 300 + 1), "{left} are unused");
    let all = check(&fill_task(&recipe, &[10_000_000]));
    assert_eq!(all.placement, Placement::all_on(1, 12));
}

#[test]
fn neurons_of_a_hotter_layer_come_first() {
    let recipe = Recipe { falls: vec![0.97, 0.9999], ..usual() };
    let forecast = check(&fill_task(&recipe, &[900_000]));
    let n_here: Vec<usize> = forecast.layers.iter().map(|layer| layer.n_home).collect();
    assert!(n_here.iter().step_by(2).all(|&n| n > 0 && n < n_here[1]), "{n_here:?}");
    assert_eq!(n_here[1], 256);
}

#[test]
fn layers_are_filled_within_ngl_and_placed_whole_by_the_other_policy() {
    let with = |policy, whole_layers, budget| {
        let constraints = PlanConstraints { policy, whole_layers, ..PlanConstraints::default() };
        check(&Recipe { constraints, ..usual() }.task(&[budget]))
    };
    let homes = |forecast: &Forecast| {
        let layers = forecast.placement.layers.iter();
        layers.map(|layer| (layer.home, layer.is_split())).collect::<Vec<_>>()
    };
    let four = with(PlacementPolicy::Fill, Some(4), 200_000);
    assert_eq!(homes(&four), [[(CPU, false); 8].as_slice(), &[(1, true); 4]].concat());
    let whole = with(PlacementPolicy::Layers, None, 400_000);
    assert_eq!(whole.placement.n_split(), 0);
    assert!(n_whole(&whole) > 1 && n_whole(&whole) < 12);
    assert_eq!(whole, with(PlacementPolicy::Layers, Some(99), 400_000));
    let all = with(PlacementPolicy::Layers, None, 10_000_000);
    assert_eq!(all.placement, Placement::all_on(1, 12));
    assert_eq!(
        with(PlacementPolicy::Layers, Some(0), 10_000_000).placement.layers,
        vec![LayerPlacement::whole(CPU); 12]
    );
}
