//! Properties of plans with rules of the user.

use super::*;

fn layer_rules() -> impl Strategy<Value = Vec<LayerRule>> {
    let home = prop_oneof![2 => Just(None), 1 => Just(Some(CPU)), 1 => Just(Some(1))];
    let rule = (home, any::<bool>());
    let rule = rule.prop_map(|(home, neurons_on_cpu)| LayerRule { home, neurons_on_cpu });
    prop::collection::vec(rule, 1..9)
}

/// Rules for every layer of `recipe`, and its task.
fn ruled(recipe: &Recipe, rules: &[LayerRule], budget: u64) -> (PlacementRules, Task) {
    let layers = rules.iter().cycle().take(recipe.n_layer).copied().collect();
    let rules = PlacementRules { layers, embed: Some(CPU), head: None };
    let mut task = recipe.task(&[budget]);
    task.follow(&rules);
    (rules, task)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn nothing_leaves_the_cpu_against_a_rule(
        recipe in recipes(), rules in layer_rules(), share in 0.0..1.0f64, policy in 0..3usize,
    ) {
        let policy = [PlacementPolicy::Fastest, PlacementPolicy::Fill, PlacementPolicy::Layers][policy];
        let recipe = Recipe { constraints: PlanConstraints { policy, ..recipe.constraints }, ..recipe };
        let budget = (share * recipe.ample_budget() as f64) as u64;
        let (rules, task) = ruled(&recipe, &rules, budget);
        let forecast = check(&task);
        prop_assert_eq!(forecast.placement.embed, CPU);
        for (rule, (placed, layer)) in rules.layers.iter().zip(forecast.placement.layers.iter().zip(&forecast.layers)) {
            prop_assert!(rule.home != Some(CPU) || placed.home == CPU);
            let on_device = placed.home != CPU && layer.n_home > 0;
            prop_assert!(!rule.neurons_on_cpu || !on_device, "{:?}", placed);
        }
    }

    #[test]
    fn demanded_layers_are_on_the_device_if_it_is_large_enough(
        recipe in recipes(), rules in layer_rules(), policy in 0..3usize, slow in any::<bool>(),
    ) {
        let policy = [PlacementPolicy::Fastest, PlacementPolicy::Fill, PlacementPolicy::Layers][policy];
        let constraints = PlanConstraints { policy, ..PlanConstraints::default() };
        let devices = vec![(if slow { 0.3 } else { 9.0 }, 20.0)];
        let recipe = Recipe { constraints, devices, joined: vec![false], ..recipe };
        let (rules, task) = ruled(&recipe, &rules, recipe.ample_budget());
        let forecast = check(&task);
        let unmet = rules.unmet(&forecast);
        prop_assert!(unmet.is_empty(), "{:?} of {:?}", unmet, rules);
    }
}

/// The line that is posted most: all layers on the device, their experts on the CPU.
#[test]
fn requested_layers_are_on_the_device_without_their_ruled_neurons() {
    for n_ruled in [0, 1, 5, 12] {
        let constraints = PlanConstraints { whole_layers: Some(99), ..PlanConstraints::default() };
        let recipe = Recipe { constraints, ..usual() };
        let ruled = LayerRule { home: None, neurons_on_cpu: true };
        let mut task = recipe.task(&[recipe.ample_budget()]);
        let layers = vec![ruled; n_ruled];
        task.follow(&PlacementRules { layers, ..PlacementRules::default() });
        let forecast = check(&task);
        let placement = &forecast.placement;
        assert!(placement.layers.iter().all(|layer| layer.home == 1), "{n_ruled}");
        assert_eq!((placement.n_split(), placement.head), (n_ruled, 1));
        assert!(forecast.layers[..n_ruled].iter().all(|layer| layer.n_home == 0));
    }
}

#[test]
fn a_demanded_layer_is_placed_before_faster_ones() {
    let recipe = usual();
    let one = LayerRule { home: Some(1), neurons_on_cpu: false };
    let mut layers = vec![LayerRule::default(); 12];
    layers[4] = one;
    // Enough for one whole layer and little more.
    let mut task = recipe.task(&[125_000]);
    task.follow(&PlacementRules { layers, ..PlacementRules::default() });
    let placement = check(&task).placement;
    assert_eq!(placement.layers[4], LayerPlacement::whole(1));
    let mut task = recipe.task(&[50_000]);
    let rules = PlacementRules { layers: vec![one; 12], ..PlacementRules::default() };
    task.follow(&rules);
    let unmet = rules.unmet(&check(&task));
    assert_eq!(unmet.len(), 12);
    assert_eq!(unmet[0], UnmetRule::Layer(0, 1));
}
