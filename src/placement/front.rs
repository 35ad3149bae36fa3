//! Costs of placements and of single layers, in decode and prefill time; and the Pareto front of
//! candidates.

use std::ops::Add;

use super::estimate::{Choice, LayerSplit};
use super::facts::Task;
use super::prompt::stream_target;
use super::{CPU, DeviceIndex};

/// Tolerance, as a factor, for sums that are added up in different orders.
const ROUNDING: f64 = 1.0 + 1e-9;

/// Cost of a layer on the CPU that a rule demands on a device, in seconds: more than any placement
/// takes, so that the search leaves the layer on the CPU only if it does not fit.
const UNMET: f64 = 1e9;

/// Estimated times in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Cost {
    /// Time of one generated token.
    pub(super) token: f64,
    /// Time of a prompt as long as the largest prefill step; 0 if prefill is not considered.
    pub(super) prompt: f64,
}

impl Cost {
    /// The lesser of both times of each kind.
    pub(super) fn least_of_each(self, other: Cost) -> Cost {
        Cost { token: self.token.min(other.token), prompt: self.prompt.min(other.prompt) }
    }
}

impl Add for Cost {
    type Output = Cost;

    fn add(self, other: Cost) -> Cost {
        Cost { token: self.token + other.token, prompt: self.prompt + other.prompt }
    }
}

/// Computes the cost of each layer, of the head, and of whole placements.
#[derive(Clone, Debug)]
pub(super) struct Costs<'a> {
    pub(super) task: &'a Task,
    /// Length of the prompt in tokens; `None` if prefill is not considered.
    pub(super) n_prompt: Option<usize>,
    /// By device, whether absent neurons are streamed to it in prefill.
    streams: Vec<bool>,
    /// Distance of the numbers of layers that the search tries.
    pub(super) step: usize,
}

/// Number of layers up to which every number is tried: the time of a search grows with its cube.
pub(super) const EXHAUSTIVE: usize = 128;
/// How many numbers are tried in models with more layers.
const GRID: usize = 32;

impl<'a> Costs<'a> {
    pub(super) fn of_decode(task: &'a Task) -> Costs<'a> {
        let n_layer = task.layers.len();
        let step = if n_layer <= EXHAUSTIVE { 1 } else { n_layer.div_ceil(GRID) };
        Costs { task, n_prompt: None, streams: vec![false; task.devices.len()], step }
    }

    /// Costs of decode and prefill, with absent neurons streamed to the devices `streams` in
    /// prefill. Prefill is not considered if the prefill speed of a device is unknown, or if the
    /// user sets the number of layers on devices or demands layers on them.
    pub(super) fn new(task: &'a Task, streams: &[DeviceIndex]) -> Costs<'a> {
        let known = task.devices.iter().all(|device| device.speed.prompt > 0.0);
        let demanded = task.layers.iter().any(|facts| facts.leaves_cpu);
        let count = known && task.constraints.whole_layers.is_none() && !demanded;
        let streams = (0..task.devices.len()).map(|device| streams.contains(&device)).collect();
        Costs { n_prompt: count.then(|| task.n_prompt()), streams, ..Costs::of_decode(task) }
    }

    fn cost(&self, token: f64, prompt: impl FnOnce(usize) -> f64) -> Cost {
        Cost { token, prompt: self.n_prompt.map_or(0.0, prompt) }
    }

    pub(super) fn layer(&self, layer: usize, spot: LayerSplit) -> Cost {
        let to = stream_target(&self.streams, spot.home);
        let prompt = |n| self.task.prompt_layer_time(layer, spot, n, to);
        let unmet = self.task.layers[layer].leaves_cpu && spot.home == CPU;
        let penalty = if unmet { UNMET } else { 0.0 };
        self.cost(self.task.layer_time(layer, spot).total() + penalty, prompt)
    }

    pub(super) fn head(&self, device: DeviceIndex) -> Cost {
        let seconds = self.task.head_time(device);
        self.cost(seconds, |_| seconds)
    }

    pub(super) fn residual_move_time(&self, from: DeviceIndex, to: DeviceIndex) -> Cost {
        let seconds = self.task.residual_move_time(from, to);
        self.cost(seconds, |_| seconds)
    }

    pub(super) fn placement(&self, choice: &Choice) -> Cost {
        let layers = choice.layers.iter().enumerate();
        let layers = layers.fold(Cost::default(), |sum, (i, spot)| sum + self.layer(i, *spot));
        let residual_moves = self.task.residual_moves(choice);
        layers + self.head(choice.head) + self.cost(residual_moves, |_| residual_moves)
    }
}

/// Candidates that do not dominate each other, in ascending order of decode time and therefore in
/// descending order of prefill time.
#[derive(Clone, Debug)]
pub(super) struct ParetoFront<T>(Vec<(Cost, T)>);

impl<T> Default for ParetoFront<T> {
    fn default() -> ParetoFront<T> {
        ParetoFront(Vec::new())
    }
}

impl<T> ParetoFront<T> {
    /// Adds a candidate unless a known candidate is at least as good in both times. Removes the
    /// candidates that the new one dominates.
    pub(super) fn insert_unless_dominated(&mut self, cost: Cost, candidate: impl FnOnce() -> T) {
        let after = self.0.partition_point(|(other, _)| other.token <= cost.token);
        let before = after.checked_sub(1).map(|last| self.0[last].0);
        if before.is_some_and(|before| before.prompt <= cost.prompt) {
            return;
        }
        let first = after - usize::from(before.is_some_and(|before| before.token == cost.token));
        let beaten = self.0[after..].iter().take_while(|(other, _)| other.prompt >= cost.prompt);
        let end = after + beaten.count();
        self.0.splice(first..end, [(cost, candidate())]);
    }

    /// Whether a known candidate is at least as good as `cost` in both times.
    pub(super) fn dominates(&self, cost: Cost) -> bool {
        let after = self.0.partition_point(|(other, _)| other.token <= cost.token);
        after.checked_sub(1).is_some_and(|last| self.0[last].0.prompt <= cost.prompt)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(Cost, T)> {
        self.0.iter()
    }

    /// The candidate with the fastest decode; `None` if the front is empty.
    pub(super) fn fastest(&self) -> Option<&(Cost, T)> {
        self.0.first()
    }

    /// The candidate with the fastest decode among those whose prefill takes at most `prompt`;
    /// `None` if there is no such candidate.
    pub(super) fn within(&self, prompt: f64) -> Option<&(Cost, T)> {
        self.iter().find(|(cost, _)| cost.prompt <= prompt * ROUNDING)
    }
}

impl<T> IntoIterator for ParetoFront<T> {
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
        fn kept_candidates_are_not_dominated_and_dominate_all_others(
            all in prop::collection::vec((0..9u8, 0..9u8), 0..30), bound in 0..9u8,
        ) {
            let costs = all.iter().map(|&(token, prompt)| Cost { token: token.into(), prompt: prompt.into() });
            let costs: Vec<Cost> = costs.collect();
            let dominates = |a: &Cost, b: &Cost| a.token <= b.token && a.prompt <= b.prompt;
            let mut front = ParetoFront::default();
            costs.iter().enumerate().for_each(|(i, cost)| front.insert_unless_dominated(*cost, || i));
            for (cost, i) in front.iter() {
                prop_assert_eq!(&costs[*i], cost);
                let first = costs.iter().position(|other| dominates(other, cost));
                prop_assert_eq!(first, Some(*i), "the first of equal candidates is kept");
            }
            prop_assert!(costs.iter().all(|cost| front.iter().any(|(kept, _)| dominates(kept, cost))));
            let least = costs.iter().filter(|cost| cost.prompt <= bound.into()).map(|cost| cost.token as u8).min();
            prop_assert_eq!(front.within(bound.into()).map(|(cost, _)| cost.token as u8), least);
        }
    }
}
