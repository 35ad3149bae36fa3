//! Which weights are pinned in memory, and which are units that come and go.

use std::sync::atomic::AtomicBool;

use hal::Bytes;
use model::Model;
use store::{Piece, Store, UnitId};

use super::units::{CountedUnits, Units};
use super::weights::{Owner, PagedMatrix};
use super::{Stop, Stops, Tiers};
use crate::error::Result;

/// Bytes of a chunk of a layer: large enough for the disk's full bandwidth, small enough that the
/// pinned share of a layer is close to what fits.
const CHUNK: u64 = 4 << 20;

/// Predictors are always in memory if they take at most this part of it: 1 in 3.
const MAX_PREDICTORS: u64 = 3;

/// Bytes of memory of a unit that is a row, beside its weights: its score and state.
const ROW_OVERHEAD: usize = 128;

/// The units of a layer that are not pinned.
#[derive(Clone, Debug, Default)]
pub(crate) struct LayerUnits {
    /// Parts of the layer that every token needs.
    pub(crate) chunks: Vec<UnitId>,
    pub(crate) neurons: NeuronUnits,
    /// Whether the CPU is the layer's home.
    pub(crate) on_cpu: bool,
    /// Whether the layer's vectors and its predictor are always in memory, whatever is in chunks.
    pub(crate) has_predictor: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) enum NeuronUnits {
    /// All neurons are pinned or in chunks.
    #[default]
    Dense,
    /// For each expert of the file, on any device, its unit.
    Experts(Vec<UnitId>),
    /// For each neuron, its unit.
    Rows(Vec<UnitId>),
}

impl NeuronUnits {
    pub(crate) fn units(&self) -> &[UnitId] {
        match self {
            NeuronUnits::Dense => &[],
            NeuronUnits::Experts(units) | NeuronUnits::Rows(units) => units,
        }
    }
}

impl LayerUnits {
    /// Whether the layer before guesses what this one needs: its router or predictor is in memory.
    pub(crate) fn is_guessed(&self) -> bool {
        let by_predictor = matches!(self.neurons, NeuronUnits::Rows(_)) && self.has_predictor;
        self.on_cpu && (self.chunks.is_empty() || by_predictor)
    }

    pub(crate) fn stops(&self) -> Stops {
        let inside = match &self.neurons {
            NeuronUnits::Dense => None,
            NeuronUnits::Experts(_) => Some(Stop::Router),
            NeuronUnits::Rows(_) => Some(Stop::Predictor),
        };
        let (layer, is_guessed) = (!self.chunks.is_empty(), self.is_guessed());
        let all = Stops { layer, inside, is_guessed };
        if self.on_cpu { all } else { Stops::default() }
    }
}

/// The units of a model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) layers: Vec<LayerUnits>,
    pub(crate) tiers: Tiers,
}

/// What the units are made of.
pub(crate) struct Parts<'a> {
    pub(crate) matrices: &'a [PagedMatrix],
    pub(crate) model: &'a Model,
    /// The share of tokens that use a neuron of a layer; 0 where it is unknown.
    pub(crate) uses: &'a dyn Fn(usize, usize) -> f64,
    /// Whether the CPU is the home of a layer.
    pub(crate) on_cpu: &'a dyn Fn(usize) -> bool,
    /// Whether an expert of a layer is on the CPU.
    pub(crate) has_expert: &'a dyn Fn(usize, usize) -> bool,
    /// Whether a predictor chooses the neurons of a layer, and they may be units of their own.
    pub(crate) by_neuron: &'a dyn Fn(usize) -> bool,
    /// The share of neurons that a token uses where `uses` is unknown.
    pub(crate) density: f64,
    /// Whether experts move between devices.
    pub(crate) adapts: bool,
    /// Tokens of the largest prefill step.
    pub(crate) n_prompt: usize,
}

impl Parts<'_> {
    pub(super) fn neurons(&self, layer: usize) -> Vec<&PagedMatrix> {
        let own = self.matrices.iter();
        own.filter(|matrix| matrix.owner == Owner::Neurons(layer)).collect()
    }

    /// The number of experts if each is a unit; `None` in a layer without experts.
    fn n_expert(&self, layer: usize) -> Option<usize> {
        let n = self.model.layers[layer].ffn.as_ref().and_then(|ffn| ffn.n_expert())?;
        let own = self.neurons(layer);
        let whole = own.iter().all(|matrix| matrix.n_rows.is_multiple_of(n));
        (whole && !own.is_empty()).then_some(n)
    }

    /// The number of neurons that are units of their own in each layer, if not all weights fit into
    /// `capacity` bytes; 0 in layers without such neurons.
    fn n_neurons(&self, capacity: Bytes) -> Vec<usize> {
        let all: Bytes = self.matrices.iter().map(|matrix| matrix.piece.memory()).sum();
        let n = |layer: usize| {
            let (own, n_ff) = (self.neurons(layer), self.model.layers[layer].n_ff());
            let by_row = !own.is_empty() && own.iter().all(|matrix| matrix.n_rows == n_ff);
            if by_row && (self.by_neuron)(layer) { n_ff } else { 0 }
        };
        let layers = 0..self.model.hyper.n_layer;
        if all <= capacity { vec![0; layers.len()] } else { layers.map(n).collect() }
    }
}

impl Plan {
    /// Fills `capacity` bytes of `store` as [`Plan::divide`] says. `progress` gets the bytes read so
    /// far and in total.
    ///
    /// # Errors
    /// As [`Plan::divide`]; errors of reading.
    pub(crate) fn fill(
        store: &mut Store,
        parts: &Parts<'_>,
        capacity: Bytes,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Plan> {
        let (plan, pinned) = Plan::divide(store, parts, capacity)?;
        read_all(store, &pinned, progress)?;
        plan.read_usual_neurons(store)?;
        Ok(plan)
    }

    /// Fills the room with the neurons that a profile says are used most often.
    fn read_usual_neurons(&self, store: &mut Store) -> Result<()> {
        let rows = |layer: &LayerUnits| match &layer.neurons {
            NeuronUnits::Rows(units) => units.clone(),
            NeuronUnits::Dense | NeuronUnits::Experts(_) => Vec::new(),
        };
        let mut rows: Vec<UnitId> = self.layers.iter().flat_map(rows).collect();
        rows.retain(|&row| store.probability(row) > 0.0);
        rows.sort_by(|&a, &b| store.probability(b).total_cmp(&store.probability(a)));
        let mut room = (store.capacity() - store.used()).0;
        let fitting = rows.iter().take_while(|&&row| {
            let left = room.checked_sub(store.unit_bytes(row).0);
            room = left.unwrap_or(0);
            left.is_some()
        });
        let n = fitting.count();
        rows.truncate(n);
        rows.sort_unstable();
        for some in rows.chunks(4096) {
            store.ensure(some, &AtomicBool::new(false))?;
        }
        Ok(())
    }

    /// The tiers that [`Plan::fill`] would make of `capacity` bytes; nothing is read.
    ///
    /// # Errors
    /// As [`Plan::divide`].
    pub(crate) fn tiers(parts: &Parts<'_>, capacity: Bytes) -> Result<Tiers> {
        Ok(Plan::divide(&mut CountedUnits::new(), parts, capacity)?.0.tiers)
    }

    /// Divides the weights into units: pins what every token needs, as much as fits in `capacity`
    /// bytes, and leaves room for the units of the layers in use. Also returns the pinned units.
    ///
    /// # Errors
    /// [`store::Error::Capacity`] if what one layer needs does not fit.
    fn divide(
        store: &mut impl Units,
        parts: &Parts<'_>,
        capacity: Bytes,
    ) -> Result<(Plan, Vec<UnitId>)> {
        let by_neuron = parts.n_neurons(capacity);
        let n_rows: usize = by_neuron.iter().sum();
        store.begin(capacity - Bytes((n_rows * ROW_OVERHEAD) as u64));
        let layers = (0..parts.model.hyper.n_layer)
            .map(|layer| LayerUnits { on_cpu: (parts.on_cpu)(layer), ..LayerUnits::default() })
            .collect();
        let mut plan = Plan { layers, tiers: Tiers::default() };
        let mut pinned = plan.pin_model(store, parts.matrices)?;
        pinned.extend(plan.pin_predictors(store, parts, &by_neuron));
        let dense = plan.chunks(store, parts, &by_neuron);
        plan.add_experts(store, parts);
        plan.add_neurons(store, parts, &by_neuron);
        let sum =
            |units: &[UnitId]| -> u64 { units.iter().map(|&unit| store.unit_bytes(unit).0).sum() };
        let chosen = (0..plan.layers.len()).map(|layer| sum(&plan.chosen_here(layer, parts)));
        let chosen = chosen.max().unwrap_or(0);
        let total: u64 = dense.iter().map(|chunks| sum(chunks)).sum();
        let largest = dense.iter().map(|chunks| sum(chunks)).max().unwrap_or(0);
        let free = (store.capacity() - store.used()).0;
        let share = pinned_share(free.saturating_sub(chosen), total, largest);
        let least = chosen + if share < 1.0 { largest } else { total };
        if least > free {
            let needed = store.used() + Bytes(least.min(chosen + largest));
            return Err(store::Error::Capacity { needed, capacity: store.capacity() }.into());
        }
        for (layer, chunks) in dense.into_iter().enumerate() {
            // Pins evenly over the bytes of the layer, and never more than the share: the rest
            // needs the room that `pinned_share` leaves.
            let (mut seen, mut kept) = (0, 0);
            for chunk in chunks {
                let bytes = store.unit_bytes(chunk).0;
                seen += bytes;
                if (kept + bytes) as f64 <= share * seen as f64 && store.pin(chunk) {
                    kept += bytes;
                    pinned.push(chunk);
                } else {
                    plan.layers[layer].chunks.push(chunk);
                }
            }
        }
        plan.pin_experts_that_fit(store, parts, &mut pinned);
        plan.tiers = plan.estimate(store, &pinned, parts);
        Ok((plan, pinned))
    }

    /// Pins the matrices that belong to no layer.
    fn pin_model(&self, store: &mut impl Units, matrices: &[PagedMatrix]) -> Result<Vec<UnitId>> {
        let mut pinned = Vec::new();
        for matrix in matrices.iter().filter(|matrix| matrix.owner == Owner::Model) {
            for piece in chunks(&matrix.piece) {
                let unit = store.add(vec![piece], 1.0);
                if !store.pin(unit) {
                    let needed = store.used() + store.unit_bytes(unit);
                    return Err(
                        store::Error::Capacity { needed, capacity: store.capacity() }.into()
                    );
                }
                pinned.push(unit);
            }
        }
        Ok(pinned)
    }

    /// Pins the predictors of layers whose neurons are units, and the vectors of these layers, so
    /// that reads can be ordered before a layer begins. If they would take much of the memory, they
    /// are read in chunks, like everything else that all tokens need.
    fn pin_predictors(
        &mut self,
        store: &mut impl Units,
        parts: &Parts<'_>,
        by_neuron: &[usize],
    ) -> Vec<UnitId> {
        let early = |matrix: &&PagedMatrix| match matrix.owner {
            Owner::Predictor(layer) => by_neuron[layer] > 0,
            Owner::Frame(layer) => by_neuron[layer] > 0 && matrix.n_rows == 1,
            Owner::Model | Owner::Neurons(_) => false,
        };
        let all = || parts.matrices.iter().filter(early);
        let bytes: Bytes = all().map(|matrix| matrix.piece.memory()).sum();
        if bytes.0 > (store.capacity() - store.used()).0 / MAX_PREDICTORS {
            return Vec::new();
        }
        for (layer, &n) in self.layers.iter_mut().zip(by_neuron) {
            layer.has_predictor = n > 0;
        }
        let pieces = all().flat_map(|matrix| chunks(&matrix.piece));
        let pinned: Vec<UnitId> = pieces.map(|piece| store.add(vec![piece], 1.0)).collect();
        pinned.iter().for_each(|&unit| _ = store.pin(unit));
        pinned
    }

    /// Chunks of what every token needs of each layer.
    fn chunks(
        &self,
        store: &mut impl Units,
        parts: &Parts<'_>,
        by_neuron: &[usize],
    ) -> Vec<Vec<UnitId>> {
        let mut dense = vec![Vec::new(); self.layers.len()];
        // In the order of the file, whatever the order of loading.
        let mut matrices: Vec<&PagedMatrix> = parts.matrices.iter().collect();
        matrices.sort_by_key(|matrix| (matrix.piece.file, matrix.piece.range.start));
        for matrix in matrices {
            let layer = match matrix.owner {
                Owner::Model => continue,
                Owner::Predictor(layer) if self.layers[layer].has_predictor => continue,
                Owner::Frame(layer) if self.layers[layer].has_predictor && matrix.n_rows == 1 => {
                    continue;
                }
                Owner::Neurons(layer)
                    if parts.n_expert(layer).is_some() || by_neuron[layer] > 0 =>
                {
                    continue;
                }
                Owner::Neurons(layer) | Owner::Frame(layer) | Owner::Predictor(layer) => layer,
            };
            for piece in chunks(&matrix.piece) {
                dense[layer].push(store.add(vec![piece], 0.0));
            }
        }
        dense
    }

    /// A unit for each expert: its rows of all matrices.
    fn add_experts(&mut self, store: &mut impl Units, parts: &Parts<'_>) {
        for (layer, units) in self.layers.iter_mut().enumerate() {
            let Some(n) = parts.n_expert(layer) else { continue };
            let (own, n_ff) = (parts.neurons(layer), parts.model.layers[layer].n_ff());
            let expert = |expert: usize| {
                let rows = |matrix: &&PagedMatrix| {
                    let per_expert = matrix.n_rows / n;
                    matrix.rows(expert * per_expert..(expert + 1) * per_expert)
                };
                own.iter().map(rows).collect()
            };
            let share = |expert: usize| (parts.uses)(layer, expert * (n_ff / n));
            let all = (0..n).map(|e| store.add(expert(e), share(e))).collect();
            units.neurons = NeuronUnits::Experts(all);
        }
    }

    /// A unit for each neuron of the layers in which a predictor chooses them.
    fn add_neurons(&mut self, store: &mut impl Units, parts: &Parts<'_>, by_neuron: &[usize]) {
        for (layer, (units, &n)) in self.layers.iter_mut().zip(by_neuron).enumerate() {
            if n > 0 {
                let matrices = parts.neurons(layer).iter().map(|matrix| matrix.by_row()).collect();
                let rows = store.add_rows(matrices, n, &|neuron| (parts.uses)(layer, neuron));
                units.neurons = NeuronUnits::Rows(rows.collect());
            }
        }
    }

    /// The units of a layer on the CPU that tokens choose: experts or neurons.
    pub(super) fn chosen_here(&self, layer: usize, parts: &Parts<'_>) -> Vec<UnitId> {
        match &self.layers[layer].neurons {
            NeuronUnits::Dense => Vec::new(),
            NeuronUnits::Rows(units) => units.clone(),
            NeuronUnits::Experts(units) => {
                let experts = units.iter().enumerate();
                let here = experts.filter(|(expert, _)| (parts.has_expert)(layer, *expert));
                here.map(|(_, &unit)| unit).collect()
            }
        }
    }

    /// Pins all experts on the CPU if all of them fit, unless they may move to another device.
    fn pin_experts_that_fit(
        &mut self,
        store: &mut impl Units,
        parts: &Parts<'_>,
        pinned: &mut Vec<UnitId>,
    ) {
        if self.layers.iter().any(|layer| matches!(layer.neurons, NeuronUnits::Rows(_))) {
            return;
        }
        let all = (0..self.layers.len()).flat_map(|layer| self.chosen_here(layer, parts));
        let all: Vec<UnitId> = all.collect();
        let bytes: Bytes = all.iter().map(|&unit| store.unit_bytes(unit)).sum();
        let whole = self.layers.iter().all(|layer| layer.chunks.is_empty());
        if whole && !parts.adapts && store.used() + bytes <= store.capacity() {
            for unit in all {
                store.pin(unit);
                pinned.push(unit);
            }
            self.layers.iter_mut().for_each(|layer| layer.neurons = NeuronUnits::Dense);
        }
    }
}

/// The share of each layer that is pinned: the rest needs room for the layer in use and the next.
fn pinned_share(free: u64, total: u64, largest: u64) -> f64 {
    if total <= free {
        return 1.0;
    }
    let (free, total, two) = (free as f64, total as f64, 2.0 * largest as f64);
    ((free - two) / (total - two).max(1.0)).clamp(0.0, 1.0)
}

/// `piece` in chunks that begin and end on whole chunks of the file, so that no page belongs to two
/// of them.
fn chunks(piece: &Piece) -> impl Iterator<Item = Piece> + use<> {
    let Piece { file, range } = piece.clone();
    let first = range.start / CHUNK;
    let last = range.end.div_ceil(CHUNK);
    (first..last).map(move |n| {
        let cut = range.start.max(n * CHUNK)..range.end.min((n + 1) * CHUNK);
        Piece { file, range: cut }
    })
}

/// Waits for the reads of all `units`.
fn read_all(store: &mut Store, units: &[UnitId], progress: &dyn Fn(u64, u64)) -> Result<()> {
    let total: u64 = units.iter().map(|&unit| store.unit_bytes(unit).0).sum();
    let mut done = 0;
    for some in units.chunks(16) {
        store.wait(some, &AtomicBool::new(false))?;
        done += some.iter().map(|&unit| store.unit_bytes(unit).0).sum::<u64>();
        progress(done, total);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_a_piece_and_share_no_page() {
        for range in [0..1, 5..CHUNK + 3, 7..3 * CHUNK, CHUNK..2 * CHUNK, CHUNK - 1..CHUNK + 1] {
            let all: Vec<Piece> = chunks(&Piece { file: 1, range: range.clone() }).collect();
            assert!(all.iter().all(|piece| piece.file == 1 && piece.range.start < piece.range.end));
            assert_eq!(all[0].range.start, range.start);
            assert_eq!(all[all.len() - 1].range.end, range.end);
            for pair in all.windows(2) {
                assert_eq!(pair[0].range.end, pair[1].range.start);
                assert!(pair[0].range.end.is_multiple_of(CHUNK));
            }
        }
    }

    #[test]
    fn the_pinned_share_leaves_room_for_two_layers() {
        assert_eq!(pinned_share(100, 100, 10), 1.0);
        assert_eq!(pinned_share(15, 100, 10), 0.0);
        for free in [20, 30, 77, 99] {
            let share = pinned_share(free, 100, 10);
            let used = share * 100.0 + 2.0 * 10.0 * (1.0 - share);
            assert!((used - free as f64).abs() < 1e-9, "{free}: {share}");
        }
    }
}
