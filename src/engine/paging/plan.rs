//! Which weights are pinned in memory, and which are units that come and go.

use std::sync::atomic::AtomicBool;

use hal::{Bytes, HostRows};
use model::Model;
use store::{CachePolicy, Piece, Store, UnitId};

use super::weights::{Owner, PagedMatrix};
use super::{Stop, Stops, Tiers};
use crate::error::Result;

/// Bytes of a chunk of a layer: large enough for the disk's full bandwidth, small enough that the
/// pinned share of a layer is close to what fits.
const CHUNK: u64 = 4 << 20;

/// The units of a layer that are not pinned.
#[derive(Clone, Debug, Default)]
pub(crate) struct LayerUnits {
    /// Parts of the layer that every token needs.
    pub(crate) chunks: Vec<UnitId>,
    pub(crate) neurons: NeuronUnits,
}

#[derive(Clone, Debug, Default)]
pub(crate) enum NeuronUnits {
    /// All neurons are pinned or in chunks.
    #[default]
    Dense,
    /// For each expert, its unit.
    Experts(Vec<UnitId>),
}

impl NeuronUnits {
    pub(crate) fn units(&self) -> &[UnitId] {
        match self {
            NeuronUnits::Dense => &[],
            NeuronUnits::Experts(units) => units,
        }
    }
}

impl LayerUnits {
    pub(crate) fn stops(&self) -> Stops {
        let inside = match &self.neurons {
            NeuronUnits::Dense => None,
            NeuronUnits::Experts(_) => Some(Stop::Router),
        };
        Stops { layer: !self.chunks.is_empty(), inside }
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
}

impl Parts<'_> {
    fn neurons(&self, layer: usize) -> Vec<&PagedMatrix> {
        let own = self.matrices.iter();
        own.filter(|matrix| matrix.owner == Owner::Neurons(layer)).collect()
    }

    /// The number of experts that are units of their own; `None` in a layer without them.
    fn n_expert(&self, layer: usize) -> Option<usize> {
        let n = self.model.layers[layer].ffn.as_ref().and_then(|ffn| ffn.n_expert());
        n.filter(|_| !self.neurons(layer).is_empty())
    }
}

impl Plan {
    /// Fills `capacity` bytes of `store`: pins what every token needs, as much as fits, and leaves
    /// room for the units of the layers in use. `progress` gets the bytes read so far and in total.
    ///
    /// # Errors
    /// [`store::Error::Capacity`] if what one layer needs does not fit; errors of reading.
    pub(crate) fn fill(
        store: &mut Store,
        parts: &Parts<'_>,
        capacity: Bytes,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Plan> {
        store.begin(capacity, CachePolicy::default());
        let layers = vec![LayerUnits::default(); parts.model.hyper.n_layer];
        let mut plan = Plan { layers, tiers: Tiers::default() };
        let mut pinned = plan.pin_model(store, parts.matrices)?;
        let dense = plan.chunks(store, parts);
        plan.add_experts(store, parts);
        let sum =
            |units: &[UnitId]| -> u64 { units.iter().map(|&unit| store.unit_bytes(unit).0).sum() };
        let chosen = plan.layers.iter().map(|layer| sum(layer.neurons.units())).max().unwrap_or(0);
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
            for (n, chunk) in chunks.into_iter().enumerate() {
                let step = |n: usize| (n as f64 * share) as usize;
                if step(n + 1) > step(n) && store.pin(chunk) {
                    pinned.push(chunk);
                } else {
                    plan.layers[layer].chunks.push(chunk);
                }
            }
        }
        plan.pin_experts_that_fit(store, &mut pinned);
        plan.tiers = plan.estimate(store, &pinned, parts);
        read_all(store, &pinned, progress)?;
        Ok(plan)
    }

    /// Pins the matrices outside of layers.
    fn pin_model(&self, store: &mut Store, matrices: &[PagedMatrix]) -> Result<Vec<UnitId>> {
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

    /// Chunks of what every token needs of each layer.
    fn chunks(&self, store: &mut Store, parts: &Parts<'_>) -> Vec<Vec<UnitId>> {
        let mut dense = vec![Vec::new(); self.layers.len()];
        for matrix in parts.matrices {
            let layer = match matrix.owner {
                Owner::Model => continue,
                Owner::Neurons(layer) if parts.n_expert(layer).is_some() => continue,
                Owner::Neurons(layer) | Owner::Frame(layer) => layer,
            };
            for piece in chunks(&matrix.piece) {
                dense[layer].push(store.add(vec![piece], 0.0));
            }
        }
        dense
    }

    /// A unit for each expert: its rows of all matrices.
    fn add_experts(&mut self, store: &mut Store, parts: &Parts<'_>) {
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

    /// Pins all experts if all of them fit.
    fn pin_experts_that_fit(&mut self, store: &mut Store, pinned: &mut Vec<UnitId>) {
        let all = self.layers.iter().flat_map(|layer| layer.neurons.units());
        let all: Vec<UnitId> = all.copied().collect();
        let bytes: Bytes = all.iter().map(|&unit| store.unit_bytes(unit)).sum();
        let whole = self.layers.iter().all(|layer| layer.chunks.is_empty());
        if whole && store.used() + bytes <= store.capacity() {
            for unit in all {
                store.pin(unit);
                pinned.push(unit);
            }
            self.layers.iter_mut().for_each(|layer| layer.neurons = NeuronUnits::Dense);
        }
    }
}

impl Plan {
    /// Sizes of the tiers, and what a token needs, from the probability of each unit.
    fn estimate(&self, store: &Store, pinned: &[UnitId], parts: &Parts<'_>) -> Tiers {
        let sum =
            |units: &[UnitId]| units.iter().map(|&unit| store.unit_bytes(unit)).sum::<Bytes>();
        let pinned = sum(pinned);
        let cache = store.capacity() - pinned;
        let (mut chunks, mut experts, mut total) = (Bytes(0), Vec::new(), pinned);
        for (layer, units) in self.layers.iter().enumerate() {
            chunks += sum(&units.chunks);
            let chosen = units.neurons.units();
            total += sum(&units.chunks) + sum(chosen);
            let n_used = parts.model.layers[layer].experts().map(|experts| experts.n_used);
            let usual = n_used.map_or(1.0, |n| n as f64 / chosen.len() as f64);
            let probability: Vec<f64> =
                chosen.iter().map(|&unit| store.probability(unit)).collect();
            let known = probability.iter().any(|share| *share > 0.0);
            for (&unit, share) in chosen.iter().zip(probability) {
                experts.push((if known { share } else { usual }, store.unit_bytes(unit)));
            }
        }
        // The cache holds the most used experts.
        experts.sort_by(|a, b| b.0.total_cmp(&a.0));
        let (mut room, mut read, mut needed) = (cache.0, chunks.0 as f64, 0.0);
        for (share, bytes) in experts {
            needed += share * bytes.0 as f64;
            match room.checked_sub(bytes.0) {
                Some(rest) => room = rest,
                None => read += share * bytes.0 as f64,
            }
        }
        let needed = Bytes(needed as u64) + chunks + pinned;
        Tiers {
            weights: total,
            pinned,
            cache: cache.min(total - pinned),
            read_per_token: Bytes(read as u64),
            needed_per_token: needed,
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

/// Bytes of the weights of `model` that must be in memory at once, if as many as possible stay on
/// disk: less is an error when a model is loaded.
#[must_use]
pub fn least_paged(model: &Model) -> Bytes {
    let bytes = |rows: &HostRows| rows.desc().bytes().unwrap_or_default();
    let (mut frames, mut largest_layer, mut largest_experts) = (Bytes(0), Bytes(0), Bytes(0));
    for layer in &model.layers {
        let mut frame = Bytes(0);
        layer.frame.for_each(&mut |_, rows| frame += bytes(rows));
        let ffn: Bytes =
            layer.ffn.iter().flat_map(|ffn| ffn.matrices()).map(|(_, m)| bytes(m)).sum();
        if layer.experts().is_some() {
            largest_experts = largest_experts.max(ffn);
            frames += frame;
        } else {
            frames += frame + ffn;
        }
        largest_layer = largest_layer.max(frame + ffn);
    }
    let layers = if largest_experts > Bytes(0) { frames + largest_experts } else { largest_layer };
    bytes(&model.output) + layers
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
