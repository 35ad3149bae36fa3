//! [`RunFiller::fill`] gives what trying each candidate by itself gives, to the bit.

use proptest::prelude::*;

use super::*;
use crate::tests::recipes;

/// The step and the places of a candidate; `None` if it is none.
fn place(
    filler: &RunFiller<'_>,
    layers: &WholeLayers,
    others: OtherLayers,
    room: Bytes,
) -> Option<usize> {
    let (task, facts) = (filler.costs.task, filler.facts());
    let bytes = |step: usize| {
        let spots = layers.range().clone().zip(filler.spots(others, step, layers));
        let (mut sum, mut shared) = (Bytes(0), Bytes(0));
        for (layer, spot) in spots.filter(|(_, spot)| spot.home != CPU) {
            let sizes = &facts.layers[layer];
            sum += sizes.frame + sizes.cache;
            if layers.contains(layer) || filler.is_bare(layer, others) {
                sum += sizes.whole.unwrap();
            } else {
                sum += facts.hand_off + sizes.shares[spot.groups];
                shared = facts.hand_offs;
            }
        }
        sum + shared
    };
    let spots: Vec<LayerSplit> = filler.spots(others, 0, layers).collect();
    let mut pairs = spots.windows(2).zip(layers.range().start + 1..);
    let parted =
        pairs.any(|(pair, layer)| task.layers[layer].shares_home && pair[0].home != pair[1].home);
    let n_steps = if others == OtherLayers::Split { filler.steps.len() } else { 1 };
    let last = (0..n_steps).take_while(|&step| bytes(step) <= room).last();
    last.filter(|_| !parted && spots[0].home != CPU)
}

/// The cost of a candidate, summed layer by layer.
fn cost(filler: &RunFiller<'_>, layers: &WholeLayers, others: OtherLayers, step: usize) -> Cost {
    let (mut at, mut cost) = (filler.device, Cost::default());
    for (layer, spot) in layers.range().clone().zip(filler.spots(others, step, layers)) {
        let cost_of_layer = filler.costs.layer(layer, spot);
        cost = cost + filler.costs.residual_move_time(at, spot.home) + cost_of_layer;
        at = spot.home;
    }
    cost
}

fn each_by_itself(filler: &RunFiller<'_>, range: &Range<usize>, room: Bytes) -> Vec<FilledRun> {
    let wholes = filler.whole_candidates(range);
    let n_split = range.clone().filter(|&layer| filler.both_faster[layer].is_some()).count();
    let fixed = filler.costs.task.constraints.whole_layers.is_some();
    let fewest = if fixed { range.len() - n_split } else { 0 };
    let mut fronts = [ParetoFront::default(), ParetoFront::default()];
    for n_whole in filler.whole_counts(fewest, &wholes) {
        let layers = WholeLayers::new(range, &wholes[..n_whole]);
        let mut offer = |others: OtherLayers| {
            let Some(step) = place(filler, &layers, others, room) else { return false };
            let cost = cost(filler, &layers, others, step);
            let end = filler.spots(others, step, &layers).last().unwrap().home;
            let front = &mut fronts[usize::from(end == CPU)];
            front.insert_unless_dominated(cost, || FilledRun { cost, end, n_whole, others });
            true
        };
        offer(OtherLayers::Split);
        for (towards, stages) in filler.further_stages.iter().enumerate() {
            let _ = (0..stages.len()).all(|stage| offer(OtherLayers::Stage(towards, stage)));
        }
        if !fixed || n_split == 0 {
            offer(OtherLayers::OnCpu);
        }
    }
    fronts.into_iter().flatten().map(|(_, filled)| filled).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn sums_that_are_kept_up_to_date_change_no_result(
        recipe in recipes(),
        shares in prop::array::uniform3(0.0..0.7f64),
        ends in prop::array::uniform2(any::<prop::sample::Index>()),
    ) {
        let task = recipe.task(&[0, 0]);
        let costs = Costs::new(&task, &[]);
        let mut ends = ends.map(|end| end.index(task.layers.len()));
        ends.sort_unstable();
        let range = ends[0]..ends[1] + 1;
        for device in CPU + 1..task.devices.len() {
            let filler = RunFiller::new(&costs, device);
            for share in shares {
                let room = Bytes((share * recipe.ample_budget() as f64) as u64);
                let (filled, expected) =
                    (filler.fill(&range, room), each_by_itself(&filler, &range, room));
                prop_assert_eq!(format!("{filled:?}"), format!("{expected:?}"));
                for run in &filled {
                    let spots = filler.place(&range, room, run);
                    prop_assert_eq!(spots.len(), range.len());
                    prop_assert_eq!(spots[spots.len() - 1].home, run.end);
                }
            }
        }
    }
}
