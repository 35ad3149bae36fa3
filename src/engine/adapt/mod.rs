//! Adapts the hot set to the text: neurons on the CPU that are often active swap places with
//! neurons on a device that are rarely active.
//!
//! Programs of up to 16 tokens count active rows, on the device and on the CPU. Every
//! [`exchange::DECISION_INTERVAL`] tokens the counts are read, and neurons are swapped where the
//! gain is clear: a slot of the device's pack and a slot of the CPU's pack are each filled with the
//! other's neuron, from host memory. This happens between two steps, so no program reads a
//! half-filled slot and no spare slot is needed. Packs, programs and shapes stay as they are.
//! Experts with a ReLU swap neurons within each expert. Other experts swap as a whole, and are
//! renumbered: the rows of the router are swapped too, so that an expert number then refers to
//! another expert. The CPU has its experts in place (`load/held.rs`), so only the device's slot is
//! filled: from memory or, for weights on disk, from the store, which then drops the expert.

mod refill;

use std::sync::Arc;

use hal::Operand;
use model::LayerWeights;

use placement::exchange::{
    self, Allowance, Balance, Bounds, CountedTokens, DECISION_INTERVAL, Heat, LayerHeat,
};
use placement::{CPU, LayerPlacement, Neurons, Placement};

use crate::error::Result;
use crate::load::{Layer, LoadedModel, lane_mut};
use crate::paging::Paging;
use crate::size::Sizing;
use crate::size::exchange::{ExchangeUnit, neurons_by_side, transposed_size};
use crate::step::StepStats;
use refill::{TransposedDown, swap_neurons};

/// Effect of the exchange of neurons since the model was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExchangeStats {
    /// Number of neurons moved to a device.
    pub neurons: u64,
    /// Share of active neurons that were on devices other than the CPU, before the first decision.
    pub first: f64,
    /// Share of active neurons that were on devices other than the CPU, between the last two
    /// decisions.
    pub last: f64,
}

#[derive(Debug)]
struct LayerExchange {
    layer: usize,
    unit: ExchangeUnit,
    heat: Heat,
    bounds: Bounds,
    /// For each neuron, whether it was on the home device when the model was loaded.
    at_first: Vec<bool>,
    /// Present if whole experts are exchanged.
    numbers: Option<ExpertNumbers>,
    /// The transposed down matrix in host memory; present if filling slots from the file would take
    /// too long.
    down: Option<TransposedDown>,
}

/// Expert numbers of a layer that exchanges whole experts.
#[derive(Debug)]
struct ExpertNumbers {
    /// For the home device and for the CPU: the expert number of each unit of slots, as loaded.
    units: [Vec<usize>; 2],
    /// The expert in the file that each expert number now stands for.
    experts: Vec<u32>,
}

#[derive(Debug)]
pub(crate) struct NeuronExchange {
    layers: Vec<LayerExchange>,
    counted: CountedTokens,
    balance: Balance,
    allowance: Allowance,
    /// Number of tokens since the last decision.
    n_tokens: usize,
    /// Statistics of the steps since the last decision.
    stats: StepStats,
    effect: Option<ExchangeStats>,
    neurons: u64,
    /// Buffer for the counts of one layer on one device.
    counts: Vec<f32>,
}

impl NeuronExchange {
    /// Adds the statistics of steps of up to [`hal::op::MAX_COUNTED_TOKENS`] tokens.
    pub(crate) fn add_stats(&mut self, stats: &StepStats) {
        self.stats += *stats;
    }

    /// Counts the tokens of a step of up to [`hal::op::MAX_COUNTED_TOKENS`] tokens; returns whether
    /// a decision is due. Longer steps do not count.
    pub(crate) fn count_step(&mut self, n_tokens: usize) -> bool {
        if n_tokens > hal::op::MAX_COUNTED_TOKENS {
            return false;
        }
        self.n_tokens += n_tokens;
        self.counted += n_tokens;
        self.n_tokens >= DECISION_INTERVAL
    }

    /// Ends an interval between decisions: records the share of active neurons off the CPU, and
    /// resets the number of tokens and the statistics.
    fn end_interval(&mut self) {
        let share = self.stats.off_cpu / self.stats.active.max(1.0);
        let start = ExchangeStats { neurons: 0, first: share, last: share };
        self.effect.get_or_insert(start).last = share;
        (self.n_tokens, self.stats) = (0, StepStats::default());
    }

    pub(crate) fn exchange_stats(&self) -> Option<ExchangeStats> {
        self.effect.map(|effect| ExchangeStats { neurons: self.neurons, ..effect })
    }

    /// The file's expert for each expert number of `layer`, if whole experts are exchanged.
    pub(crate) fn experts(&self, layer: usize) -> Option<&[u32]> {
        let at = self.layers.iter().find(|at| at.layer == layer)?;
        at.numbers.as_ref().map(|numbers| &numbers.experts[..])
    }
}

impl NeuronExchange {
    /// Sets up the exchange of neurons. `None` if it is off or would gain nothing; an error message
    /// if it cannot be set up. `seconds` is the estimated time of a token; `None` if unknown.
    pub(crate) fn new(
        sizing: &Sizing<'_>,
        layers: &[Layer],
        placement: &Placement,
        seconds: Option<f64>,
    ) -> std::result::Result<Option<NeuronExchange>, String> {
        let Some(needs) = sizing.exchange_needs(placement, seconds) else { return Ok(None) };
        if needs.max_neurons == 0 {
            return Ok(None);
        }
        let free = sizing.devices[CPU].memory().ok().and_then(|memory| memory.free);
        if let Some(free) = free.filter(|free| *free < needs.host) {
            return Err(format!(
                "the hot set does not adapt to the text: this needs {} of host memory for weights, but only {free} are free",
                needs.host
            ));
        }
        let made = placement.layers.iter().zip(layers).enumerate();
        let made = made.filter_map(|(i, (placed, layer))| {
            LayerExchange::new(sizing, i, placed, layer, seconds)
        });
        let layers: hal::Result<Vec<LayerExchange>> = made.collect();
        let layers =
            layers.map_err(|error| format!("the hot set does not adapt to the text: {error}"))?;
        Ok((!layers.is_empty()).then(|| NeuronExchange {
            layers,
            counted: CountedTokens::default(),
            balance: Balance::default(),
            allowance: Allowance::default(),
            n_tokens: 0,
            stats: StepStats::default(),
            effect: None,
            neurons: 0,
            counts: Vec::new(),
        }))
    }
}

impl LayerExchange {
    /// Sets up a layer; `None` if its neurons cannot be exchanged.
    fn new(
        sizing: &Sizing<'_>,
        index: usize,
        placed: &LayerPlacement,
        layer: &Layer,
        seconds: Option<f64>,
    ) -> Option<hal::Result<LayerExchange>> {
        let LayerWeights { ffn, frame, .. } = &sizing.model.layers[index];
        let ffn = ffn.as_ref()?;
        let lists = neurons_by_side(placed)?;
        let unit = sizing.exchange_unit(ffn)?;
        let is_whole = matches!(unit, ExchangeUnit::Experts(_));
        // A table of each token's experts keeps the numbers of the file.
        if is_whole && frame.listed_experts.is_some() {
            return None;
        }
        // The `bias_down` of an expert moves with its number. This works only on the home device:
        // the CPU reads `bias_down` from the file.
        let added_here = layer.own.as_ref().is_some_and(|own| own.bias_down.is_some());
        if is_whole && ffn.down.bias.is_some() && !added_here {
            return None;
        }
        let (n_unit, n_ff) = (unit.len(), ffn.n_ff());
        let (placing, used) = (&sizing.options.placing, ffn.share_used());
        let uses = placing.uses.as_ref().and_then(|uses| uses.get(index));
        let uses = uses.filter(|uses| uses.len() == n_ff);
        let density = if sizing.mode.is_sparse() { placing.density } else { 1.0 };
        let expected = |n: usize| uses.map_or((density * used) as f32, |uses| uses[n]);
        let number = |list: &Arc<[u32]>| -> Vec<usize> {
            list.iter().step_by(n_unit).map(|&n| n as usize / n_unit).collect()
        };
        let whole = ffn.n_expert().filter(|_| is_whole);
        let numbers = whole
            .map(|n| ExpertNumbers { units: lists.map(number), experts: (0..n as u32).collect() });
        let packs = sizing.mode.packs(&sizing.devices[CPU], ffn, &Neurons::All);
        let down = packs.iter().find(|packed| transposed_size(packed).is_some());
        let down = down.map(|packed| {
            let down = TransposedDown::new(packed, &sizing.devices[CPU]);
            sizing.model.file.release_rows(&packed.rows);
            down
        });
        let mut at_first = vec![false; n_ff];
        lists[0].iter().for_each(|&neuron| at_first[neuron as usize] = true);
        Some(down.transpose().map(|down| LayerExchange {
            layer: index,
            unit,
            heat: Heat::new((0..n_ff).map(expected)),
            bounds: sizing.bounds(index, placed.home, unit, seconds),
            at_first,
            numbers,
            down,
        }))
    }
}

pub(crate) struct ExchangedLayer {
    pub(crate) layer: usize,
    pub(crate) placed: LayerPlacement,
    /// As [`ExpertNumbers::experts`]; `None` if single neurons are exchanged.
    pub(crate) experts: Option<Vec<u32>>,
}

impl NeuronExchange {
    /// Reserves the staging memory of exchanges, so that an exchange cannot run out of memory.
    pub(crate) fn reserve(
        sizing: &Sizing<'_>,
        loaded: &mut LoadedModel,
        placement: &Placement,
    ) -> Result<()> {
        let LoadedModel { lanes, layers, .. } = loaded;
        for (index, (layer, placed)) in layers.iter().zip(&placement.layers).enumerate() {
            let own = layer.own.iter().map(|own| (placed.home, own));
            let all = own.chain(layer.remotes.iter().map(|remote| (remote.device, &remote.ffn)));
            for (device, ffn) in all {
                let n = ffn.up.desc().n_rows;
                let none = Neurons::List([].into());
                if !ffn.vectors(sizing, index, &none).is_empty() {
                    lane_mut(lanes, device).queue.reserve(4 * n)?;
                }
            }
        }
        Ok(())
    }

    /// Reads the counts of the interval.
    fn count(&mut self, loaded: &mut LoadedModel, placement: &Placement) -> Result<()> {
        for at in &mut self.layers {
            let placed = &placement.layers[at.layer];
            let Some(lists) = neurons_by_side(placed) else { continue };
            for (device, list) in [placed.home, CPU].into_iter().zip(lists) {
                let lane = lane_mut(&mut loaded.lanes, device);
                lane.take_hits(at.layer, &mut self.counts)?;
                let in_file_order = loaded.layers[at.layer].held_on(device).is_some();
                for (row, &neuron) in list.iter().enumerate() {
                    let row = if in_file_order { neuron as usize } else { row };
                    let n = self.counts.get(row).copied().unwrap_or(0.0);
                    at.heat.add(neuron, n);
                    self.balance.add(n, device != CPU, at.at_first[neuron as usize]);
                }
            }
        }
        Ok(())
    }

    /// Reads the counts, and exchanges neurons where the gain is clear. Returns the layers whose
    /// placement changed. After an error, the contents of the slots are unknown.
    pub(crate) fn exchange(
        &mut self,
        sizing: &Sizing<'_>,
        loaded: &mut LoadedModel,
        mut paging: Option<&mut Paging>,
        placement: &Placement,
    ) -> Result<Vec<ExchangedLayer>> {
        self.end_interval();
        self.count(loaded, placement)?;
        let caution = self.balance.caution();
        let (mut all, mut most, mut per_decision) = (Vec::new(), usize::MAX, f64::INFINITY);
        for at in &self.layers {
            let Some(lists) = neurons_by_side(&placement.layers[at.layer]) else { continue };
            let lists = lists.map(|list| &list[..]);
            let heat = LayerHeat { layer: at.layer, heat: &at.heat, counted: self.counted };
            let bounds = at.bounds.with_caution(caution);
            all.extend(match at.unit {
                ExchangeUnit::WithinExperts(n) => {
                    exchange::swaps_within_experts(heat, lists, n, &bounds)
                }
                unit @ (ExchangeUnit::Neurons | ExchangeUnit::Experts(_)) => {
                    exchange::swaps(heat, lists, unit.len(), &bounds)
                }
            });
            most = most.min(bounds.max_swaps);
            per_decision = per_decision.min(bounds.per_decision);
        }
        self.counted.decay(self.layers.iter_mut().map(|at| &mut at.heat));
        let chosen = exchange::best_swaps(all, most.min(self.allowance.next(per_decision)));
        self.allowance.spend(chosen.len());
        let mut changed = Vec::new();
        for swaps in chosen.chunk_by(|a, b| a.layer == b.layer) {
            let Some(at) = self.layers.iter_mut().find(|at| at.layer == swaps[0].layer) else {
                continue;
            };
            let placed = &placement.layers[at.layer];
            let placed = swap_neurons(sizing, at, loaded, paging.as_deref_mut(), placed, swaps)?;
            self.neurons += (swaps.len() * at.unit.len()) as u64;
            let experts = at.numbers.as_ref().map(|numbers| numbers.experts.clone());
            changed.push(ExchangedLayer { layer: at.layer, placed, experts });
        }
        Ok(changed)
    }
}
