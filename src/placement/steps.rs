//! How many groups of neurons the split layers of a run have: added one by one in the order of their
//! use, or to all layers together.

use super::facts::{LayerSizes, Task};
use super::front::EXHAUSTIVE;
use super::{CPU, DeviceIndex};

/// Maximum number of entries of [`steps`] if the model has more layers than
/// [`EXHAUSTIVE`].
const MAX_STEPS: usize = 1024;

/// Maximum number of stages beyond the groups that make both decode and prefill faster.
const STAGES: usize = 16;

/// Number of groups of each split layer; `None` if the device cannot split the layer.
pub(super) type Caps = Vec<Option<usize>>;

/// At most [`STAGES`] even steps from `both` (excluded) to `best` (included), each with the number
/// of groups of every layer; empty if the two are equal.
pub(super) fn stages(both: &Caps, best: &Caps) -> Vec<Caps> {
    let pairs: Vec<_> = both.iter().zip(best).map(|(from, to)| from.zip(*to)).collect();
    let most = pairs.iter().flatten().map(|(from, to)| to - from).max().unwrap_or(0);
    let n = most.min(STAGES);
    let stage = |i: usize| {
        pairs.iter().map(|pair| pair.map(|(from, to)| from + (to - from) * i / n)).collect()
    };
    (1..=n).map(stage).collect()
}

/// Entry `i` has the number of groups of each layer after `i` additions, in the order of
/// decode time saved per byte on `device`. Prefill does not influence the order: all neurons of one
/// format save the same prefill time.
pub(super) fn steps(task: &Task, device: DeviceIndex) -> Vec<Vec<u16>> {
    let mut order: Vec<(f64, usize, usize)> = Vec::new();
    for (layer, facts) in task.layers.iter().enumerate() {
        let sizes = &task.devices[device].layers[layer];
        let bytes = sizes.shares.last().map_or(0, |bytes| bytes.0).max(1) as f64;
        let cpu = &task.devices[CPU].speed;
        let mut last = f64::INFINITY;
        for k in 0..facts.cut.n_groups().min(sizes.shares.len().saturating_sub(1)) {
            let saved =
                facts.reads.tested / cpu.dense + facts.mean[k] * facts.reads.used / cpu.sparse;
            last = (saved / bytes).min(last);
            order.push((last, k, layer));
        }
    }
    // Ties are spread evenly over the layers, so that the device and the CPU both have work in each
    // layer.
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let mut steps = vec![vec![0; task.layers.len()]];
    // With very many layers, several groups at a time: the list grows with the square.
    let at_once = match task.layers.len() {
        ..=EXHAUSTIVE => 1,
        _ => order.len().div_ceil(MAX_STEPS).max(1),
    };
    for groups in order.chunks(at_once) {
        let mut step = steps[steps.len() - 1].clone();
        groups.iter().for_each(|(_, _, layer)| step[*layer] += 1);
        steps.push(step);
    }
    steps
}

/// Bytes of the groups of a step in each layer, up to `caps`; 0 for a layer that is not split.
pub(super) fn step_bytes(step: &[u16], caps: &Caps, sizes: &[LayerSizes]) -> Vec<u64> {
    let layers = step.iter().zip(caps).zip(sizes);
    let bytes = |((&groups, cap), sizes): ((&u16, &Option<usize>), &LayerSizes)| {
        let groups = cap.map_or(0, |cap| cap.min(groups.into()));
        sizes.shares.get(groups).map_or(0, |share| (*share - sizes.shares[0]).0)
    };
    layers.map(bytes).collect()
}
