//! The cost of a placement, or of a part of one, for decode and prefill; and the Pareto front of
//! candidates.

use std::ops::Add;

use super::DeviceIndex;
use super::estimate::{Choice, Spot};
use super::facts::Task;
use super::prompt::via;

/// Tolerance for sums added up in different orders.
const ROUNDING: f64 = 1.0 + 1e-9;

/// Seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Cost {
    /// Of a generated token.
    pub(super) token: f64,
    /// Of a prompt of the largest prefill step; 0 if prefill is not considered.
    pub(super) prompt: f64,
}

impl Add for Cost {
    type Output = Cost;

    fn add(self, other: Cost) -> Cost {
        Cost { token: self.token + other.token, prompt: self.prompt + other.prompt }
    }
}

/// Costs of the parts of a task's placements.
#[derive(Clone, Debug)]
pub(super) struct Costs<'a> {
    pub(super) task: &'a Task,
    /// Tokens of a prompt; `None` if prefill is not considered.
    pub(super) n_prompt: Option<usize>,
    /// By device, whether absent neurons are streamed to it in prefill.
    streams: Vec<bool>,
}

impl<'a> Costs<'a> {
    /// Costs of decode alone.
    pub(super) fn of_tokens(task: &'a Task) -> Costs<'a> {
        Costs { task, n_prompt: None, streams: vec![false; task.devices.len()] }
    }

    /// Costs of both, with absent neurons streamed to these devices in prefill. Prefill is not
    /// considered if a device's prefill speed is unknown, or if the user sets the number of layers
    /// on devices.
    pub(super) fn new(task: &'a Task, streams: &[DeviceIndex]) -> Costs<'a> {
        let known = task.devices.iter().all(|device| device.speed.prompt > 0.0);
        let count = known && task.constraints.whole_layers.is_none();
        let streams = (0..task.devices.len()).map(|device| streams.contains(&device)).collect();
        Costs { n_prompt: count.then(|| task.n_prompt()), streams, ..Costs::of_tokens(task) }
    }

    fn cost(&self, token: f64, prompt: impl FnOnce(usize) -> f64) -> Cost {
        Cost { token, prompt: self.n_prompt.map_or(0.0, prompt) }
    }

    /// One layer at `spot`.
    pub(super) fn layer(&self, layer: usize, spot: Spot) -> Cost {
        let to = via(&self.streams, spot.home);
        let prompt = |n| self.task.prompt_layer(layer, spot, n, to);
        self.cost(self.task.layer_time(layer, spot).total(), prompt)
    }

    /// The head.
    pub(super) fn head(&self, device: DeviceIndex) -> Cost {
        let seconds = self.task.head_time(device);
        self.cost(seconds, |_| seconds)
    }

    /// Moving the residual from one device to another.
    pub(super) fn carry(&self, from: DeviceIndex, to: DeviceIndex) -> Cost {
        let seconds = self.task.carry(from, to);
        self.cost(seconds, |_| seconds)
    }

    /// A whole placement.
    pub(super) fn of(&self, choice: &Choice) -> Cost {
        let layers = choice.layers.iter().enumerate();
        let layers = layers.fold(Cost::default(), |sum, (i, spot)| sum + self.layer(i, *spot));
        let carries = self.task.carries(choice);
        layers + self.head(choice.head) + self.cost(carries, |_| carries)
    }
}

/// Candidates of which none dominates another: ascending by decode time, so descending by prefill
/// time.
#[derive(Clone, Debug)]
pub(super) struct Front<T>(Vec<(Cost, T)>);

impl<T> Default for Front<T> {
    fn default() -> Front<T> {
        Front(Vec::new())
    }
}

impl<T> Front<T> {
    /// Adds a candidate unless another one is at least as good in both; removes those that it
    /// dominates.
    pub(super) fn offer(&mut self, cost: Cost, way: impl FnOnce() -> T) {
        let after = self.0.partition_point(|(other, _)| other.token <= cost.token);
        let before = after.checked_sub(1).map(|last| self.0[last].0);
        if before.is_some_and(|before| before.prompt <= cost.prompt) {
            return;
        }
        let first = after - usize::from(before.is_some_and(|before| before.token == cost.token));
        let beaten = self.0[after..].iter().take_while(|(other, _)| other.prompt >= cost.prompt);
        let end = after + beaten.count();
        self.0.splice(first..end, [(cost, way())]);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(Cost, T)> {
        self.0.iter()
    }

    /// The candidate with the fastest decode.
    pub(super) fn fastest(&self) -> Option<&(Cost, T)> {
        self.0.first()
    }

    /// The candidate with the fastest decode among those whose prefill takes at most `prompt`.
    pub(super) fn within(&self, prompt: f64) -> Option<&(Cost, T)> {
        self.iter().find(|(cost, _)| cost.prompt <= prompt * ROUNDING)
    }
}

impl<T> IntoIterator for Front<T> {
    type Item = (Cost, T);
    type IntoIter = std::vec::IntoIter<(Cost, T)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_kept_is_beaten_by_nothing_and_beats_the_rest(
            all in prop::collection::vec((0..9u8, 0..9u8), 0..30), bound in 0..9u8,
        ) {
            let costs = all.iter().map(|&(token, prompt)| Cost { token: token.into(), prompt: prompt.into() });
            let costs: Vec<Cost> = costs.collect();
            let beats = |a: &Cost, b: &Cost| a.token <= b.token && a.prompt <= b.prompt;
            let mut front = Front::default();
            costs.iter().enumerate().for_each(|(i, cost)| front.offer(*cost, || i));
            for (cost, i) in front.iter() {
                prop_assert_eq!(&costs[*i], cost);
                let first = costs.iter().position(|other| beats(other, cost));
                prop_assert_eq!(first, Some(*i), "of equals the first is kept");
            }
            prop_assert!(costs.iter().all(|cost| front.iter().any(|(kept, _)| beats(kept, cost))));
            let least = costs.iter().filter(|cost| cost.prompt <= bound.into()).map(|cost| cost.token as u8).min();
            prop_assert_eq!(front.within(bound.into()).map(|(cost, _)| cost.token as u8), least);
        }
    }
}
