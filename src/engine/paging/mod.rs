//! Weights of the CPU that are partly on disk: before a layer's neurons run, the units that its
//! tokens need are made resident, and those of the next layer are read ahead.
//!
//! What all tokens need is pinned first; if it does not fit, the same share of each layer is
//! pinned, and the rest is read in turn, layer after layer, in chunks. Each expert of a MoE block
//! is a unit; how often it is used decides whether it stays in memory. A program is cut at a *stop*
//! where units must be in memory: before a layer, and after a router. The CPU's share of a layer of
//! another device has no stop: the host makes its units resident when it answers the hand-off.
//! Kernels know nothing of this: a unit that is not resident is never read.
//!
//! Placement comes first: weights on other devices are not pinned, take no room among the resident
//! units, and are not read after they were loaded.
//!
//! Each neuron that a predictor chooses can be a unit too. Its rows are 2 KiB in three places of
//! the file, so a repack file has the rows of each neuron together
//! ([`crate::NeuronReads::Bundles`]). A disk reads fewer bytes a second in such small reads, so
//! where that costs more than it saves, neurons are read with their layer
//! (docs/measurements/tiers.md).

mod estimate;
mod plan;
mod units;
mod weights;

use std::sync::atomic::AtomicBool;

use hal::{Bytes, HostRowSet, HostRows, Reservation};
use store::{Store, StoreStats, UnitId};

use crate::error::Result;
use crate::options::ReadRates;
pub(crate) use plan::{LayerUnits, NeuronUnits, Parts, Plan};
pub(crate) use weights::{Owner, PagedMatrix, PagedWeights, row_count};

/// A guessed expert is read ahead if its weight is at least this part of the token's highest one.
const SURE: f32 = 0.75;

/// Seconds of CPU time for each single neuron that is read: the request, the choice of the evicted
/// neuron, and the copy to its place. Measured on Zen 3 (docs/measurements/tiers.md).
const ROW_SECONDS: f64 = 8e-6;

/// Sizes of the tiers: devices, memory, disk.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tiers {
    /// Bytes of weights on devices other than the CPU, as in the file.
    pub devices: Bytes,
    /// Bytes of weights that are copied to memory and stay there: repacked ones, and neurons on the
    /// CPU of layers that are not split into whole experts.
    pub copies: Bytes,
    /// Bytes of all other weights that the CPU uses.
    pub weights: Bytes,
    /// Bytes of weights that are always in memory.
    pub pinned: Bytes,
    /// Bytes of memory for the other weights.
    pub cache: Bytes,
    /// Bytes that a token reads from disk by the estimate: of a dense model, everything that is not
    /// pinned; of experts, the share that is not resident, by the profile, or as if all experts
    /// were used equally often.
    pub read_per_token: Bytes,
    /// The part of `read_per_token` that is known before the step, so that it is read while the
    /// layers before compute.
    pub read_ahead: Bytes,
    /// The part of `read_per_token` that are single neurons, and their number.
    pub rows_per_token: Bytes,
    /// See `rows_per_token`.
    pub row_reads_per_token: f64,
    /// Bytes that the largest prefill step reads by the estimate: the experts of all its tokens.
    pub read_per_prompt: Bytes,
    /// Bytes of weights that a token needs.
    pub needed_per_token: Bytes,
    /// Whether the use of experts comes from a profile; otherwise all are assumed to be used
    /// equally often.
    pub by_profile: bool,
}

impl Tiers {
    /// Bytes of weights in memory, copies included.
    #[must_use]
    pub fn in_memory(&self) -> Bytes {
        self.copies + self.pinned + self.cache
    }

    /// Bytes of weights that stay on disk at any time.
    #[must_use]
    pub fn on_disk(&self) -> Bytes {
        self.weights - self.pinned - self.cache
    }

    /// The share of the bytes that a token needs that is in memory by the estimate.
    #[must_use]
    pub fn hits(&self) -> f64 {
        1.0 - self.read_per_token.0 as f64 / self.needed_per_token.0.max(1) as f64
    }

    /// Estimated seconds of a token that takes `computed` seconds with all weights in memory.
    /// Experts and single neurons are read once they are chosen, everything else while the CPU
    /// computes.
    #[must_use]
    pub fn token_seconds(&self, computed: f64, disk: ReadRates) -> f64 {
        let rows = self.rows_per_token.0 as f64 / disk.bandwidth;
        let rows = rows.max(self.row_reads_per_token / disk.small_reads);
        let rows = rows + self.row_reads_per_token * ROW_SECONDS;
        self.seconds(self.read_per_token - self.rows_per_token, computed, disk) + rows
    }

    /// As [`Tiers::token_seconds`], for the largest prefill step.
    #[must_use]
    pub fn prompt_seconds(&self, computed: f64, disk: ReadRates) -> f64 {
        self.seconds(self.read_per_prompt, computed, disk)
    }

    fn seconds(&self, read: Bytes, computed: f64, disk: ReadRates) -> f64 {
        let ahead = self.read_ahead.0 as f64 / disk.bandwidth;
        computed.max(ahead) + (read - self.read_ahead).0 as f64 / disk.bandwidth
    }
}

/// A place where a layer's programs are cut, because weights must be in memory from there on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Before the layer.
    Layer,
    /// After the router, before the experts.
    Router,
    /// After the predictor, before the neurons.
    Predictor,
}

/// The stops of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stops {
    /// Whether the layer has a [`Stop::Layer`].
    pub(crate) layer: bool,
    /// The stop inside the layer; `None` without one.
    pub(crate) inside: Option<Stop>,
    /// Whether the layer before can guess what this one needs.
    pub(crate) is_guessed: bool,
}

impl Stops {
    pub(crate) fn any(self) -> bool {
        self.layer || self.inside.is_some()
    }
}

/// The neurons that the tokens of a step need of a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Needed<'a> {
    /// Nothing but what all tokens need.
    Layer,
    /// The experts with a weight other than 0, `[n_tokens, n_expert]`, in the file's order.
    Experts(&'a [f32]),
    /// Neurons, by their numbers in the file, and those that the next layer is likely to need.
    Neurons { list: &'a HostRowSet, guess: Option<&'a HostRowSet> },
}

/// The weights of a loaded model that are partly on disk.
#[derive(Debug)]
pub(crate) struct Paging {
    store: Store,
    layers: Vec<LayerUnits>,
    /// The layers with chunks, in order.
    in_turn: Vec<usize>,
    matrices: Vec<PagedMatrix>,
    needed: Vec<UnitId>,
    ahead: Vec<UnitId>,
    counts: Vec<usize>,
    /// The value of the store's statistics at the last [`Paging::take_stats`].
    taken: StoreStats,
    tiers: Tiers,
    /// The memory of the resident weights in the CPU's ledger.
    _memory: Reservation,
}

impl Paging {
    pub(crate) fn new(
        store: Store,
        plan: Plan,
        matrices: Vec<PagedMatrix>,
        memory: Reservation,
    ) -> Paging {
        let Plan { layers, tiers } = plan;
        let in_turn = (0..layers.len()).filter(|&at| !layers[at].chunks.is_empty()).collect();
        let (needed, ahead, counts) = Default::default();
        let (taken, _memory) = (store.stats(), memory);
        Paging { store, layers, in_turn, matrices, needed, ahead, counts, taken, tiers, _memory }
    }

    /// Where the programs of all layers are cut.
    pub(crate) fn all_stops(&self) -> Vec<Stops> {
        self.layers.iter().map(LayerUnits::stops).collect()
    }

    /// The store's statistics since the last call.
    pub(crate) fn take_stats(&mut self) -> StoreStats {
        let now = self.store.stats();
        now - std::mem::replace(&mut self.taken, now)
    }

    /// Sizes of the tiers, and what a token needs of them.
    pub(crate) fn tiers(&self) -> Tiers {
        self.tiers
    }

    /// Counts the tokens of a step.
    pub(crate) fn count_tokens(&mut self, n_tokens: usize) {
        self.store.advance(n_tokens);
    }

    /// Makes the weights resident that the tokens of a step need of `layer` up to its next stop,
    /// and reads ahead the weights that all tokens need of the next layers.
    ///
    /// # Errors
    /// Errors of reading, and of an interrupt.
    pub(crate) fn prepare(
        &mut self,
        layer: usize,
        by_tokens: Needed<'_>,
        interrupt: &AtomicBool,
    ) -> Result<()> {
        let Paging { store, layers, needed, counts, .. } = self;
        needed.clear();
        let at = &layers[layer];
        // Chunks have no score: the chunk used last is needed latest.
        needed.extend_from_slice(&at.chunks);
        needed.iter().for_each(|&unit| store.touch(unit, 0));
        match (by_tokens, &at.neurons) {
            (Needed::Experts(weights), NeuronUnits::Experts(experts)) => {
                counts.clear();
                counts.resize(experts.len(), 0);
                for token in weights.chunks_exact(experts.len().max(1)) {
                    let used = counts.iter_mut().zip(token).filter(|(_, weight)| **weight != 0.0);
                    used.for_each(|(count, _)| *count += 1);
                }
                for (&unit, &n) in experts.iter().zip(&*counts).filter(|(_, n)| **n > 0) {
                    store.touch(unit, n);
                    needed.push(unit);
                }
            }
            (Needed::Neurons { list, .. }, NeuronUnits::Rows(rows)) => {
                for (at, &neuron) in list.ids.iter().enumerate() {
                    let tokens = &list.members[at * list.words..][..list.words];
                    let n: u32 = tokens.iter().map(|word| word.count_ones()).sum();
                    store.touch(rows[neuron as usize], n as usize);
                    needed.push(rows[neuron as usize]);
                }
            }
            (Needed::Layer | Needed::Experts(_) | Needed::Neurons { .. }, _) => {}
        }
        store.order_needed(needed)?;
        self.read_ahead(layer);
        if let Needed::Neurons { guess: Some(guess), .. } = by_tokens {
            self.read_neurons_ahead(layer, guess);
        }
        // The disk has the next reads when these end.
        Ok(self.store.wait(&self.needed, interrupt)?)
    }

    /// Makes all weights of `layer` resident, for programs that compute all experts. `is_here` says
    /// whether the CPU has an expert.
    pub(crate) fn prepare_all(
        &mut self,
        layer: usize,
        is_here: impl Fn(usize) -> bool,
        interrupt: &AtomicBool,
    ) -> Result<()> {
        let Paging { store, layers, needed, .. } = self;
        let Some(at) = layers.get(layer) else { return Ok(()) };
        needed.clear();
        needed.extend_from_slice(&at.chunks);
        let experts = at.neurons.units().iter().enumerate();
        needed.extend(experts.filter(|(expert, _)| is_here(*expert)).map(|(_, &unit)| unit));
        Ok(store.ensure(needed, interrupt)?)
    }

    /// Requests reads of the weights that all tokens need of the layers after `layer`, as far as
    /// there is room.
    fn read_ahead(&mut self, layer: usize) {
        let Paging { store, layers, in_turn, .. } = self;
        let at = in_turn.partition_point(|&other| other <= layer);
        let next = in_turn[at..].iter().chain(&in_turn[..at.saturating_sub(1)]);
        // More than the next two layers cannot be read while this one computes.
        for &next in next.take(2) {
            store.look_ahead(&layers[next].chunks);
        }
    }

    /// Requests reads of the neurons of the layer after `layer` that are likely to be needed. Its
    /// predictor chose them for the present residual, so that they are read while this layer and
    /// the next one's attention compute.
    fn read_neurons_ahead(&mut self, layer: usize, guess: &HostRowSet) {
        let Paging { store, layers, ahead, .. } = self;
        let next = layers.get(layer + 1).filter(|next| next.is_guessed());
        let Some(NeuronUnits::Rows(rows)) = next.map(|next| &next.neurons) else { return };
        ahead.clear();
        ahead.extend(guess.ids.iter().filter_map(|&neuron| rows.get(neuron as usize)));
        store.look_ahead(ahead);
    }

    /// Whether the layer before guesses what layer `layer`, whose home is the CPU, needs.
    pub(crate) fn is_guessed(&self, layer: usize) -> bool {
        self.layers.get(layer).is_some_and(LayerUnits::is_guessed)
    }

    /// Requests reads of the experts of the layer after `layer` that are most likely to be needed,
    /// if they are on disk and `is_here` says that the CPU has them. `guess` are the weights of its
    /// router for the present residual, `[n_tokens, n_expert]`.
    ///
    /// Only the highest weights are certain enough: a wrong guess takes bandwidth from reads that
    /// are needed.
    pub(crate) fn read_experts_ahead(
        &mut self,
        layer: usize,
        guess: &[f32],
        is_here: impl Fn(usize) -> bool,
    ) {
        let Paging { store, layers, ahead, .. } = self;
        let next = layers.get(layer + 1).map(|next| &next.neurons);
        let Some(NeuronUnits::Experts(experts)) = next else { return };
        ahead.clear();
        for token in guess.chunks_exact(experts.len().max(1)) {
            let highest = token.iter().copied().fold(0.0, f32::max);
            let likely = |(expert, weight): &(usize, &f32)| {
                **weight > 0.0 && **weight >= SURE * highest && is_here(*expert)
            };
            ahead.extend(token.iter().enumerate().filter(likely).map(|(at, _)| experts[at]));
        }
        ahead.sort_unstable();
        ahead.dedup();
        store.look_ahead(ahead);
    }
}

/// Experts that move to another device.
impl Paging {
    /// Requests reads of `experts` of a layer, as far as there is room.
    pub(crate) fn order_experts(&mut self, layer: usize, experts: impl Iterator<Item = usize>) {
        let Paging { store, layers, ahead, .. } = self;
        let units = layers[layer].neurons.units();
        ahead.clear();
        ahead.extend(experts.filter_map(|expert| units.get(expert)));
        store.look_ahead(ahead);
    }

    /// Makes an expert resident, so that [`Paging::stored_rows`] has its rows.
    pub(crate) fn read_expert(&mut self, layer: usize, expert: usize) -> Result<()> {
        let unit = self.layers[layer].neurons.units().get(expert).copied();
        Ok(self.store.ensure(unit.as_slice(), &AtomicBool::new(false))?)
    }

    /// Drops an expert from memory.
    pub(crate) fn drop_expert(&mut self, layer: usize, expert: usize) {
        let unit = self.layers[layer].neurons.units().get(expert);
        unit.into_iter().for_each(|&unit| self.store.evict(unit));
    }

    /// The matrix `rows` of the model in the store; `None` if it is not there.
    pub(crate) fn stored_rows(&self, rows: &HostRows) -> Option<&HostRows> {
        self.matrices.iter().find_map(|matrix| matrix.stored(rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dense_reads_overlap_with_work_and_expert_reads_do_not() {
        let tiers = Tiers {
            read_ahead: Bytes(100),
            read_per_token: Bytes(150),
            read_per_prompt: Bytes(400),
            needed_per_token: Bytes(600),
            ..Tiers::default()
        };
        assert_eq!(tiers.hits(), 0.75);
        // At 10 bytes a second: 10 s of dense reads and 5 s of experts' reads.
        let disk = ReadRates { bandwidth: 10.0, small_reads: 2.0 };
        assert_eq!(tiers.token_seconds(2.0, disk), 15.0);
        assert_eq!(tiers.token_seconds(20.0, disk), 25.0);
        assert_eq!(tiers.prompt_seconds(20.0, disk), 50.0);
        assert_eq!(Tiers::default().token_seconds(2.0, disk), 2.0);
        // 30 of the 50 bytes are rows: 3 s by their bytes, 8 s by their number.
        let rows = |row_reads_per_token| {
            let tiers = Tiers { rows_per_token: Bytes(30), row_reads_per_token, ..tiers };
            tiers.token_seconds(20.0, disk)
        };
        assert_eq!(rows(3.0), 25.0 + 3.0 * ROW_SECONDS);
        assert_eq!(rows(16.0), 30.0 + 16.0 * ROW_SECONDS);
        assert_eq!(Tiers::default().hits(), 1.0);
    }
}
