//! The user's rules for the placement of layers, such as experts that stay on the CPU.

use super::facts::Task;
use super::forecast::Forecast;
use super::{CPU, DeviceIndex};

/// The user's rule for one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerRule {
    /// The home of the layer; `None` lets the planner decide. The layer is whole, unless its
    /// neurons stay on the CPU.
    pub home: Option<DeviceIndex>,
    /// Whether all neurons of the layer stay on the CPU.
    pub neurons_on_cpu: bool,
}

/// The user's rules for a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacementRules {
    /// By layer; layers beyond the list have no rule.
    pub layers: Vec<LayerRule>,
    /// Device of the embedding; `None` lets the planner decide.
    pub embed: Option<DeviceIndex>,
    /// Device of the output norm and matrix; `None` lets the planner decide.
    pub head: Option<DeviceIndex>,
}

/// A rule that a placement does not follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmetRule {
    /// The layer, and the device of its rule.
    Layer(usize, DeviceIndex),
    /// The device of the embedding's rule.
    Embed(DeviceIndex),
    /// The device of the head's rule.
    Head(DeviceIndex),
}

impl PlacementRules {
    /// The rules that `forecast` does not follow.
    #[must_use]
    pub fn unmet(&self, forecast: &Forecast) -> Vec<UnmetRule> {
        let placement = &forecast.placement;
        let layers = self.layers.iter().zip(&placement.layers).enumerate();
        let layer = |(layer, (rule, placed)): (usize, (&LayerRule, &super::LayerPlacement))| {
            let home = rule.home.filter(|home| *home != placed.home)?;
            Some(UnmetRule::Layer(layer, home))
        };
        let unmet = |rule: Option<DeviceIndex>, at| rule.filter(|home| *home != at);
        let ends = [
            unmet(self.embed, placement.embed).map(UnmetRule::Embed),
            unmet(self.head, placement.head).map(UnmetRule::Head),
        ];
        layers.filter_map(layer).chain(ends.into_iter().flatten()).collect()
    }
}

impl Task {
    /// Restricts the placements of this task to those that follow `rules`. A layer that does not
    /// fit on the device of its rule stays on the CPU.
    pub fn follow(&mut self, rules: &PlacementRules) {
        for (layer, rule) in rules.layers.iter().enumerate().take(self.layers.len()) {
            let facts = &mut self.layers[layer];
            let keeps_neurons = rule.neurons_on_cpu && facts.cut.n_ff > 0;
            facts.neurons_on_cpu = keeps_neurons;
            facts.leaves_cpu = rule.home.is_some_and(|home| home != CPU);
            facts.stays_on_cpu = rule.home == Some(CPU);
            for (device, facts) in self.devices.iter_mut().enumerate().skip(CPU + 1) {
                let sizes = &mut facts.layers[layer];
                let is_elsewhere = rule.home.is_some_and(|home| home != device);
                if is_elsewhere || keeps_neurons {
                    sizes.whole = None;
                }
                if is_elsewhere || (rule.home == Some(device) && !keeps_neurons) {
                    sizes.shares = [].into();
                } else if keeps_neurons {
                    sizes.shares = sizes.shares.iter().take(1).copied().collect();
                }
            }
        }
        for (device, facts) in self.devices.iter_mut().enumerate().skip(CPU + 1) {
            facts.embed = facts.embed.filter(|_| rules.embed.is_none_or(|home| home == device));
            facts.head = facts.head.filter(|_| rules.head.is_none_or(|home| home == device));
        }
    }
}
