//! Cases that the property tests found.

use super::*;

/// One layer fits whole and leaves no memory for half of the
/// other. The planner once charged layers on the CPU at the end of a run for moving the
/// residual back.
#[test]
fn a_whole_layer_is_not_given_up_for_two_split_ones() {
    let one = Recipe {
        n_layer: 2,
        n_ff: 2,
        sizes: [4696, 11_507, 144, 0],
        granule: 256,
        falls: vec![0.92, 0.5],
        devices: vec![(5.5, 0.0)],
        ends: 0,
        ..usual()
    };
    for share in 0..100u64 {
        let task = one.task(&[share * one.ample_budget() / 100]);
        assert!(not_slower(check(&task).seconds, plan_whole_layers(&task).seconds), "{share} %");
    }
}

/// The memory is enough for one layer without neurons or for
/// the head, and the layer saves more time.
#[test]
fn a_layer_without_neurons_is_placed_before_the_head() {
    let one = Recipe {
        n_layer: 4,
        n_ff: 10,
        widths: vec![0.0, 0.1],
        sizes: [34_340, 2810, 1, 0],
        falls: vec![0.5],
        sparse: false,
        devices: vec![(0.2, 0.0), (39.062_195, 0.0)],
        ends: 5366,
        ..usual()
    };
    for prompts in [None, Some(8.0)] {
        for share in 0..100u64 {
            let one = Recipe { prompts, ..one.clone() };
            let task = one.task(&[0, share * one.ample_budget() / 100]);
            let (plan, whole) = (check(&task), plan_whole_layers(&task));
            assert!(not_slower(plan.seconds, whole.seconds), "{share} %");
        }
    }
}
