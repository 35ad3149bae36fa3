//! Adapts the hot set to the text: neurons that the CPU computes often swap places with resident
//! neurons that are rarely active.
//!
//! Every program of up to 16 tokens counts active rows, on the device and on the CPU. Every
//! [`exchange::EVERY`] tokens the counts are read and clear cases are swapped: a slot of the
//! device's pack and a slot of the CPU's pack are each filled with the other's neuron, from host
//! memory. This happens between two steps, so no program reads a half-filled slot and no spare
//! slot is needed. Packs, programs and shapes stay as they are. Experts with a ReLU swap neurons
//! within each expert. Other experts swap as a whole by renumbering: the router's rows are
//! swapped, so that group g means another expert from then on.

mod refill;

use std::sync::Arc;

use hal::Operand;

use placement::exchange::{self, Bounds, EVERY, Heat, LayerHeat, Weight};
use placement::{CPU, LayerPlacement, Neurons, Placement};

use crate::error::Result;
use crate::load::{Layer, Loaded, lane_mut};
use crate::size::Sizing;
use crate::size::exchange::{ExchangeUnit, sides, transposed_size};
use crate::step::StepStats;
use refill::{ByNeuron, exchange_in};

/// Neurons exchanged since the model was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Exchanged {
    /// Neurons moved to a device.
    pub neurons: u64,
    /// Share of active neurons that were not on the CPU, over the first tokens.
    pub first: f64,
    /// Share of active neurons that were not on the CPU, over the last tokens.
    pub last: f64,
}

/// One layer whose neurons are exchanged.
#[derive(Debug)]
struct Exchanging {
    layer: usize,
    unit: ExchangeUnit,
    heat: Heat,
    bounds: Bounds,
    /// Present if whole experts are exchanged.
    numbers: Option<ExpertNumbers>,
    /// The transposed down matrix, where slots could not be filled from the file in time.
    down: Option<ByNeuron>,
}

/// Expert numbers of a layer that exchanges whole experts.
#[derive(Debug)]
struct ExpertNumbers {
    /// Expert number at load of each unit, for each side (home, CPU).
    units: [Vec<usize>; 2],
    /// The expert in the file that each expert number now stands for.
    experts: Vec<u32>,
}

/// The counts of all layers, and when to read them.
#[derive(Debug)]
pub(crate) struct Adapt {
    layers: Vec<Exchanging>,
    weight: Weight,
    /// Tokens since the last decision, and their active neurons.
    since: usize,
    seen: StepStats,
    done: Option<Exchanged>,
    neurons: u64,
    /// Counts of one layer on one side.
    counts: Vec<f32>,
}

impl Adapt {
    /// Records the statistics of steps of up to [`hal::op::MOST_COUNTED`] tokens.
    pub(crate) fn found(&mut self, stats: &StepStats) {
        self.seen += *stats;
    }

    /// Counts a step; returns whether a decision is due.
    pub(crate) fn saw(&mut self, n_tokens: usize) -> bool {
        if n_tokens > hal::op::MOST_COUNTED {
            return false;
        }
        self.since += n_tokens;
        self.weight += n_tokens;
        self.since >= EVERY
    }

    /// Resets the count for the next decision.
    fn decide(&mut self) {
        let share = self.seen.off_cpu / self.seen.active.max(1.0);
        let done = self.done.get_or_insert(Exchanged { neurons: 0, first: share, last: share });
        done.last = share;
        (self.since, self.seen) = (0, StepStats::default());
    }

    pub(crate) fn exchanged(&self) -> Option<Exchanged> {
        self.done.map(|done| Exchanged { neurons: self.neurons, ..done })
    }

    /// The expert that each number of `layer` means, if experts were swapped.
    pub(crate) fn experts(&self, layer: usize) -> Option<&[u32]> {
        let at = self.layers.iter().find(|at| at.layer == layer)?;
        at.numbers.as_ref().map(|numbers| &numbers.experts[..])
    }
}

impl Adapt {
    /// Sets up the exchange of neurons, or reports why it is off although it was requested.
    /// `seconds` is the estimated time of a token, if there is an estimate.
    pub(crate) fn new(
        sizing: &Sizing<'_>,
        layers: &[Layer],
        placement: &Placement,
        seconds: Option<f64>,
    ) -> std::result::Result<Option<Adapt>, String> {
        let Some(needs) = sizing.exchange_needs(placement, seconds) else { return Ok(None) };
        if needs.most == 0 {
            return Ok(None);
        }
        let free = sizing.devices[CPU].memory().ok().and_then(|memory| memory.free);
        if let Some(free) = free.filter(|free| *free < needs.host) {
            return Err(format!(
                "the hot set is not adapted: that needs {} of the model in host memory, and {free} are free",
                needs.host
            ));
        }
        let made = placement.layers.iter().zip(layers).enumerate();
        let made = made
            .filter_map(|(i, (placed, layer))| Exchanging::new(sizing, i, placed, layer, seconds));
        let layers: hal::Result<Vec<Exchanging>> = made.collect();
        let layers = layers.map_err(|error| format!("the hot set is not adapted: {error}"))?;
        Ok((!layers.is_empty()).then(|| Adapt {
            layers,
            weight: Weight::default(),
            since: 0,
            seen: StepStats::default(),
            done: None,
            neurons: 0,
            counts: Vec::new(),
        }))
    }
}

impl Exchanging {
    /// `None` if neurons of the layer cannot be exchanged.
    fn new(
        sizing: &Sizing<'_>,
        index: usize,
        placed: &LayerPlacement,
        layer: &Layer,
        seconds: Option<f64>,
    ) -> Option<hal::Result<Exchanging>> {
        let ffn = sizing.model.layers[index].ffn.as_ref()?;
        let lists = sides(placed)?;
        let unit = sizing.mode.exchanges(ffn)?;
        // An expert's `bias_down` moves with its number; on the CPU it is read from the file.
        let added_here = layer.own.as_ref().is_some_and(|own| own.bias_down.is_some());
        if matches!(unit, ExchangeUnit::Experts(_)) && ffn.down.bias.is_some() && !added_here {
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
        let whole = ffn.n_expert().filter(|_| matches!(unit, ExchangeUnit::Experts(_)));
        let numbers = whole
            .map(|n| ExpertNumbers { units: lists.map(number), experts: (0..n as u32).collect() });
        let packs = sizing.mode.packs(&sizing.devices[CPU], ffn, &Neurons::All);
        let down = packs.iter().find(|packed| transposed_size(packed).is_some());
        let down = down.map(|packed| {
            let down = ByNeuron::new(packed, &sizing.devices[CPU]);
            sizing.model.file.release_rows(&packed.rows);
            down
        });
        Some(down.transpose().map(|down| Exchanging {
            layer: index,
            unit,
            heat: Heat::new((0..n_ff).map(expected)),
            bounds: sizing.bounds(index, placed.home, unit, seconds),
            numbers,
            down,
        }))
    }
}

/// A layer after an exchange.
pub(crate) struct ExchangedLayer {
    pub(crate) layer: usize,
    pub(crate) placed: LayerPlacement,
    /// The expert in the file that each expert number now stands for; `None` if single neurons are
    /// exchanged.
    pub(crate) experts: Option<Vec<u32>>,
}

impl Adapt {
    /// Reserves the staging memory of exchanges, so that an exchange cannot run out of memory.
    ///
    /// # Errors
    /// Device errors.
    pub(crate) fn reserve(
        sizing: &Sizing<'_>,
        loaded: &mut Loaded,
        placement: &Placement,
    ) -> Result<()> {
        let Loaded { lanes, layers, .. } = loaded;
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

    /// Reads the counts and exchanges neurons where the gain is clear. Returns the layers whose
    /// placement changed. After an error the contents of the slots are unknown.
    ///
    /// # Errors
    /// Device errors.
    pub(crate) fn exchange(
        &mut self,
        sizing: &Sizing<'_>,
        loaded: &mut Loaded,
        placement: &Placement,
    ) -> Result<Vec<ExchangedLayer>> {
        self.decide();
        let mut all = Vec::new();
        let mut most = usize::MAX;
        for at in &mut self.layers {
            let placed = &placement.layers[at.layer];
            let Some(lists) = sides(placed) else { continue };
            for (device, list) in [placed.home, CPU].into_iter().zip(lists) {
                let lane = lane_mut(&mut loaded.lanes, device);
                lane.take_hits(at.layer, &mut self.counts)?;
                list.iter().zip(&self.counts).for_each(|(&neuron, &n)| at.heat.add(neuron, n));
            }
            let lists = lists.map(|list| &list[..]);
            let heat = LayerHeat { layer: at.layer, heat: &at.heat, weight: self.weight };
            all.extend(match at.unit {
                ExchangeUnit::WithinExperts(n) => {
                    exchange::swaps_within(heat, lists, n, &at.bounds)
                }
                unit @ (ExchangeUnit::Neurons | ExchangeUnit::Experts(_)) => {
                    exchange::swaps(heat, lists, unit.len(), &at.bounds)
                }
            });
            most = most.min(at.bounds.most);
        }
        self.weight.decay(self.layers.iter_mut().map(|at| &mut at.heat));
        let chosen = exchange::best(all, most);
        let mut changed = Vec::new();
        for swaps in chosen.chunk_by(|a, b| a.layer == b.layer) {
            let Some(at) = self.layers.iter_mut().find(|at| at.layer == swaps[0].layer) else {
                continue;
            };
            let placed = exchange_in(sizing, at, loaded, &placement.layers[at.layer], swaps)?;
            self.neurons += (swaps.len() * at.unit.len()) as u64;
            let experts = at.numbers.as_ref().map(|numbers| numbers.experts.clone());
            changed.push(ExchangedLayer { layer: at.layer, placed, experts });
        }
        Ok(changed)
    }
}
