//! From sizes and budgets to a placement.
//!
//! Layers are taken in order: a device gets whole layers while they fit, then one split layer with as many
//! neurons as still fit, then the next device goes on. What is left stays on the CPU. Without a profile all
//! neurons count the same, so the first ones are taken.

use hal::Bytes;

use super::{CPU, DeviceIndex, LayerPlacement, Neurons, Placement, Share};

/// What things cost on a device, in its own layout.
pub trait Costs {
    /// What a device needs before the first weight: batch, scratch, staging.
    fn fixed(&self, device: DeviceIndex) -> Bytes;
    /// Attention, norms and cache of a layer.
    fn layer(&self, device: DeviceIndex, layer: usize) -> Bytes;
    /// `n` neurons of a layer, alone on the device (`n` is all of them) or as its share of a split.
    fn neurons(&self, device: DeviceIndex, layer: usize, n: usize) -> Bytes;
    /// The hand-off of a split layer.
    fn hand_off(&self, device: DeviceIndex) -> Bytes;
    /// Output norm, matrix and logits.
    fn head(&self, device: DeviceIndex) -> Bytes;
    /// Whether the device can run the layer with `n` of its neurons.
    fn can_run(&self, device: DeviceIndex, layer: usize, n: usize) -> bool;
    /// Whether the device can run the head.
    fn can_run_head(&self, device: DeviceIndex) -> bool;
}

/// Places `n_layer` layers of `n_ff` neurons on devices with these `budgets` (entry 0, the CPU, is not read).
/// `unit` neurons stay together.
#[must_use]
pub fn plan(
    costs: &dyn Costs,
    budgets: &[Bytes],
    n_layer: usize,
    n_ff: usize,
    unit: usize,
) -> Placement {
    let mut placement = Placement::all_on(CPU, n_layer);
    let mut next = 0;
    for (device, &budget) in budgets.iter().enumerate().skip(1) {
        let mut left = match budget.0.checked_sub(costs.fixed(device).0) {
            Some(left) => Bytes(left),
            None => continue,
        };
        let mut used = false;
        while next < n_layer {
            let whole = costs.layer(device, next) + costs.neurons(device, next, n_ff);
            if whole > left || !costs.can_run(device, next, n_ff) {
                break;
            }
            placement.layers[next] = LayerPlacement::whole(device);
            left = left - whole;
            next += 1;
            used = true;
        }
        if next < n_layer
            && let Some(split) = split(costs, device, next, n_ff, unit, left)
        {
            placement.layers[next] = split;
            next += 1;
            continue;
        }
        if used && next == n_layer && costs.can_run_head(device) && costs.head(device) <= left {
            placement.head = device;
        }
        if next == n_layer {
            break;
        }
    }
    placement
}

/// The layer with as many neurons on `device` as `left` allows, at least one unit.
fn split(
    costs: &dyn Costs,
    device: DeviceIndex,
    layer: usize,
    n_ff: usize,
    unit: usize,
    left: Bytes,
) -> Option<LayerPlacement> {
    let fits = |units: usize| {
        let n = units * unit;
        let bytes =
            costs.layer(device, layer) + costs.hand_off(device) + costs.neurons(device, layer, n);
        bytes <= left && costs.can_run(device, layer, n)
    };
    // The cost grows with the number of neurons, so the boundary is found by bisection.
    let (mut low, mut high) = (0, n_ff.div_ceil(unit));
    while high - low > 1 {
        let middle = low.midpoint(high);
        if fits(middle) { low = middle } else { high = middle }
    }
    if low == 0 {
        return None;
    }
    let cut = (low * unit) as u32;
    let share = |device, neurons: std::ops::Range<u32>| Share {
        device,
        neurons: Neurons::List(neurons.collect()),
    };
    Some(LayerPlacement {
        home: device,
        shares: vec![share(device, 0..cut), share(CPU, cut..n_ff as u32)],
    })
}
